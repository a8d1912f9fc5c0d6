//! [`Row`]: one measurement; [`Report`]: all of a run. Their JSON only ever grows.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// `disk`, `checksum`, ..., `sweep`.
    pub layer: String,
    /// What was done: `read`, `write`, `randread`, `echo`, ...
    pub what: String,
    /// How, or where: a transport; of a sweep `local`, `mount` or `rings`.
    pub way: String,
    /// Bytes of one operation.
    pub bytes: u64,
    /// Operations at a time, of each job.
    pub depth: u32,
    /// Jobs side by side.
    pub jobs: u32,
    /// Operations a second.
    pub ops_per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Latency in microseconds: mean, half, 99 of 100.
    pub latency_us: [f64; 3],
    /// CPU time of all processes that took part (not fio's), in microseconds an operation, if it is known.
    pub cpu_us_per_op: Option<f64>,
    /// What the layers below allow, in operations a second, if it is known.
    pub limit_ops_per_second: Option<f64>,
    /// The most memory that a process of each role of the cluster had meanwhile, in bytes; of a sweep only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peak_bytes: BTreeMap<String, u64>,
    /// Why it was not measured, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

impl Row {
    /// What it reached of the limit.
    pub fn of_limit(&self) -> Option<f64> {
        self.limit_ops_per_second.filter(|l| *l > 0.0).map(|l| self.ops_per_second / l)
    }
}

/// Where it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Model of its processors.
    pub cpu: String,
    /// How many there are.
    pub cores: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average when it began: other work on the machine.
    pub load: String,
}

/// All of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format: 1.
    pub format: u32,
    /// Version of the program.
    pub version: String,
    /// Whether it was built with optimisation.
    pub optimised: bool,
    /// When it began, in seconds since 1970.
    pub unix_seconds: u64,
    /// Length of a measurement, and of a run of fio.
    pub seconds: [f64; 2],
    /// Where.
    pub machine: Machine,
    /// What.
    pub rows: Vec<Row>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, v)| v.trim().to_owned()).unwrap_or_default()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self {
            host: read("/proc/sys/kernel/hostname").trim().to_owned(),
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            memory: kib << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        }
    }
}
