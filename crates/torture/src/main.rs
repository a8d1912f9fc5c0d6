//! `glowfs-torture`: see the crate, and `./torture`.

use anyhow::{Context, Result};
use clap::Parser;
use glowfs_torture::cluster::Shape;
use glowfs_torture::nemesis::Kind;
use glowfs_torture::run::{Plan, run};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Torture of a real cluster: faults under load, and a check of every acknowledged byte.
#[derive(Parser, Debug)]
#[command(name = "torture")]
struct Arguments {
    /// How long faults strike
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Chooses operations and faults [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Which faults
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kill,stop,restart,all,corrupt,fill"
    )]
    faults: Vec<Kind>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args, Debug)]
struct Common {
    /// Write the report as JSON
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// The glowfs binary [default: beside this one]
    #[arg(long, value_name = "FILE", global = true)]
    glowfs: Option<PathBuf>,
    /// Where the cluster is made; empty or new
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    /// Storage nodes
    #[arg(long, default_value_t = 3, global = true)]
    storages: u32,
    /// The longest pause of a worker between two operations, ms
    #[arg(long, default_value_t = 5, value_name = "MS", global = true)]
    think: u64,
    /// Leave the cluster for a look when the run failed
    #[arg(long, global = true)]
    keep: bool,
}

impl Common {
    fn shape(&self) -> Result<Shape> {
        let beside = std::env::current_exe()?.with_file_name("glowfs");
        let dir = self
            .dir
            .clone()
            .unwrap_or_else(|| format!("/var/tmp/glowfs-torture-{}", std::process::id()).into());
        Ok(Shape {
            glowfs: self.glowfs.clone().unwrap_or(beside),
            dir,
            storages: self.storages,
            options: vec![],
        })
    }
}

fn main() -> Result<ExitCode> {
    let args = Arguments::parse();
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = args.seed.unwrap_or(clock.as_nanos() as u64 % 1_000_000);
    eprintln!("seed {seed}");
    let plan = Plan {
        shape: args.common.shape()?,
        time: Duration::from_secs_f64(args.minutes * 60.0),
        seed,
        faults: args.faults,
        think: Duration::from_millis(args.common.think),
        keep: args.common.keep,
    };
    let report = run(&plan)?;
    if let Some(file) = &args.common.json {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("writing {}", file.display()))?;
    }
    print!("{}", report.text());
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
