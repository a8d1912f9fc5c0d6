//! The sweep: fio over block size, depth and jobs, on a mount and on a local directory of the same disk.

use crate::args::Sweep;
use crate::cluster::leave_to_interrupt;
use crate::cpu::Processes;
use crate::progress::{Progress, bytes};
use crate::row::Row;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Memory of fio's buffers (block x depth x jobs); what would take more is left out.
const MEMORY_MAX: u64 = 1 << 30;
/// How much longer than its run a run of fio may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A place that is swept.
pub struct Place {
    /// `local`, `mount` or `rings`.
    pub name: &'static str,
    /// Where the file is.
    pub dir: PathBuf,
    /// Options of the engine.
    pub engine: Vec<String>,
    /// Copies of what is written.
    pub copies: f64,
    /// Whose CPU time counts.
    pub who: Processes,
}

/// How to get it.
const MISSING: &str = "starting fio (Debian: apt-get install fio; without it: --layer)";

/// Whether there is a fio.
pub fn find() -> Result<()> {
    Command::new("fio").arg("--version").output().map(drop).context(MISSING)
}

/// What is swept, and how.
pub struct Sweeping<'a> {
    /// How much.
    pub sweep: Sweep,
    /// Block sizes.
    pub blocks: &'a [u64],
    /// Depths and jobs, if not those of `sweep`.
    pub depths: &'a [u32],
    /// See `depths`.
    pub jobs: &'a [u32],
    /// Length of a run, in seconds.
    pub seconds: u32,
    /// Bytes of the file.
    pub size: u64,
}

struct Cell {
    what: &'static str,
    block: u64,
    depth: u32,
    jobs: u32,
}

impl Sweeping<'_> {
    fn cells(&self) -> Vec<Cell> {
        let (whats, depths, jobs): (&[_], Vec<u32>, Vec<u32>) = match self.sweep {
            Sweep::Short => (&["randread", "randwrite"], vec![1, 4, 16, 64], vec![1, 4]),
            Sweep::Full => {
                let all: Vec<u32> = (0..8).map(|i| 1 << i).collect();
                (&["randread", "read", "randwrite", "write"], all.clone(), all)
            }
        };
        let chosen =
            |given: &[u32], usual: Vec<u32>| if given.is_empty() { usual } else { given.to_vec() };
        let (depths, jobs) = (chosen(self.depths, depths), chosen(self.jobs, jobs));
        let mut cells = vec![];
        for &what in whats {
            for &block in self.blocks {
                for &jobs in &jobs {
                    cells.extend(depths.iter().map(|&depth| Cell { what, block, depth, jobs }));
                }
            }
        }
        cells
    }

    /// Sweeps all places, cell by cell, so that what else the machine does meets all of them alike.
    pub fn run(&self, places: &[Place], progress: &Progress) -> Result<Vec<Row>> {
        let cells = self.cells();
        let runs = cells.len() * places.len();
        progress.part(&format!(
            "sweep: {runs} runs of fio, about {} min",
            (runs as f64 * (f64::from(self.seconds) + 0.7) / 60.0).ceil()
        ));
        for place in places {
            self.fill(place)?;
        }
        let mut rows = vec![];
        for cell in &cells {
            let mut local = None;
            for place in places {
                progress.begin(&format!(
                    "{} of {runs}: {} {} {} x{} j{}",
                    rows.len() + 1,
                    place.name,
                    cell.what,
                    bytes(cell.block),
                    cell.depth,
                    cell.jobs
                ));
                let mut row = self.one(place, cell)?;
                if place.name == "local" {
                    local = Some(row.ops_per_second);
                } else {
                    let copies = if cell.what.ends_with("write") { place.copies } else { 1.0 };
                    row.limit_ops_per_second = local.map(|l| l / copies).filter(|l| *l > 0.0);
                }
                progress.row(&row);
                rows.push(row);
            }
        }
        for (role, most) in peaks(&rows) {
            progress.part(&format!("peak memory of {role}: {}", bytes(most)));
        }
        Ok(rows)
    }

    fn fill(&self, place: &Place) -> Result<()> {
        let fill = ["--rw=write", "--bs=1M", "--ioengine=psync", "--direct=1", "--end_fsync=1"];
        let mut command = self.command(&place.dir);
        command.args(fill);
        finish(command, PATIENCE * 5)
            .map(drop)
            .with_context(|| format!("filling a file in {}", place.dir.display()))
    }

    fn command(&self, dir: &Path) -> Command {
        let mut c = Command::new("fio");
        c.args([
            "--name=bench",
            "--output-format=json",
            "--fallocate=none",
            "--group_reporting",
            "--randrepeat=0",
            "--norandommap",
        ]);
        c.arg(format!("--filename={}", dir.join("sweep").display()))
            .arg(format!("--size={}", self.size));
        c.current_dir("/");
        c
    }

    fn one(&self, place: &Place, cell: &Cell) -> Result<Row> {
        let mut row = Row {
            layer: "sweep".into(),
            what: cell.what.into(),
            way: place.name.into(),
            bytes: cell.block,
            depth: cell.depth,
            jobs: cell.jobs,
            ..Row::default()
        };
        let memory = cell.block * u64::from(cell.depth) * u64::from(cell.jobs);
        if memory > MEMORY_MAX {
            row.skipped = Some(format!("fio's buffers would take {}", bytes(memory)));
            return Ok(row);
        }
        let mut c = self.command(&place.dir);
        c.args(&place.engine).args(["--direct=1", "--time_based"]);
        c.arg(format!("--rw={}", cell.what)).arg(format!("--bs={}", cell.block));
        c.arg(format!("--iodepth={}", cell.depth)).arg(format!("--numjobs={}", cell.jobs));
        c.arg(format!("--runtime={}", self.seconds));
        if !cell.what.starts_with("rand") {
            c.arg(format!(
                "--offset_increment={}",
                self.size / u64::from(cell.jobs) / cell.block * cell.block
            ));
        }
        place.who.forget_peaks();
        let cpu = place.who.others();
        let out = finish(c, Duration::from_secs(self.seconds.into()) + PATIENCE);
        let cpu = place.who.others() - cpu;
        row.peak_bytes = place.who.peaks();
        match out.and_then(|text| read(&text, cell.what.ends_with("write"), &mut row)) {
            Ok(ops) if ops > 0.0 && !place.who.0.is_empty() => {
                row.cpu_us_per_op = Some(cpu * 1e6 / ops)
            }
            Ok(_) => {}
            // One that fails is part of the picture: the others go on.
            Err(e) => row.skipped = Some(format!("{e:#}")),
        }
        Ok(row)
    }
}

/// The most memory of a process of each role in all of it.
fn peaks(rows: &[Row]) -> BTreeMap<&str, u64> {
    let mut all = BTreeMap::new();
    for (role, bytes) in rows.iter().flat_map(|r| &r.peak_bytes) {
        let most: &mut u64 = all.entry(role.as_str()).or_default();
        *most = (*bytes).max(*most);
    }
    all
}

/// Reads fio's JSON into the row; how many operations there were.
fn read(text: &str, write: bool, row: &mut Row) -> Result<f64> {
    // Warnings may stand before it.
    let json = text.find('{').map(|at| &text[at..]).context("fio wrote no JSON")?;
    let v: Value = serde_json::from_str(json).context("fio's JSON")?;
    let job = &v["jobs"][0];
    if job["error"].as_i64().unwrap_or(0) != 0 {
        bail!("fio reports error {}", job["error"]);
    }
    let side = &job[if write { "write" } else { "read" }];
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    row.ops_per_second = number(&side["iops"]);
    row.bytes_per_second = number(&side["bw_bytes"]);
    let clat = &side["clat_ns"];
    let p = |name: &str| number(&clat["percentile"][name]) / 1e3;
    row.latency_us = [number(&side["lat_ns"]["mean"]) / 1e3, p("50.000000"), p("99.000000")];
    Ok(number(&side["total_ios"]))
}

/// The fio that runs; 0: none does.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Tells the fio that runs to end, with its jobs (which would outlive one that is killed).
pub fn end_running() {
    if let Some(pid) = Pid::from_raw(RUNNING.swap(0, Relaxed).cast_signed()) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Waits for the end of a child, at most so long; its output.
fn finish(mut command: Command, patience: Duration) -> Result<String> {
    // Else the next run would make the files anew that the signal's thread removes.
    leave_to_interrupt();
    let out = tempfile::tempfile()?;
    let err = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut child = command.spawn().context(MISSING)?;
    RUNNING.store(child.id(), Relaxed);
    let end = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            end_running();
            child.wait()?;
            bail!("fio did not end within {patience:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    RUNNING.store(0, Relaxed);
    if !status.success() {
        let said = all_of(err)?;
        bail!("fio: {status}: {}", said.lines().last().unwrap_or_default());
    }
    all_of(out)
}

fn all_of(mut file: std::fs::File) -> Result<String> {
    use std::io::{Read, Seek};
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says() {
        let text = r#"fio: a warning
{"jobs":[{"error":0,"read":{"iops":1000.5,"bw_bytes":4098048,"total_ios":500,"lat_ns":{"mean":2000.0},
"clat_ns":{"percentile":{"50.000000":1500,"99.000000":9000}}},"write":{"iops":0.0}}]}"#;
        let mut row = Row::default();
        assert_eq!(read(text, false, &mut row).expect("it is right"), 500.0);
        assert_eq!((row.ops_per_second, row.latency_us), (1000.5, [2.0, 1.5, 9.0]));
        assert!(read(r#"{"jobs":[{"error":5}]}"#, false, &mut row).is_err());
        assert!(read("no", false, &mut row).is_err());
    }

    #[test]
    fn the_cells_of_the_sweeps() {
        let of = |sweep| {
            Sweeping {
                sweep,
                blocks: &[4096, 1 << 20],
                depths: &[],
                jobs: &[],
                seconds: 1,
                size: 1 << 28,
            }
            .cells()
            .len()
        };
        assert_eq!(of(Sweep::Short), 2 * 2 * 4 * 2);
        assert_eq!(of(Sweep::Full), 4 * 2 * 8 * 8);
    }

    #[test]
    fn memory_is_bounded() {
        let s = Sweeping {
            sweep: Sweep::Full,
            blocks: &[],
            depths: &[],
            jobs: &[],
            seconds: 1,
            size: 1 << 20,
        };
        let place = Place {
            name: "local",
            dir: "/nowhere".into(),
            engine: vec![],
            copies: 1.0,
            who: Processes::default(),
        };
        let row = s
            .one(&place, &Cell { what: "read", block: 4 << 20, depth: 128, jobs: 128 })
            .expect("left out");
        assert!(row.skipped.expect("a reason").contains("64 GiB"));
    }
}
