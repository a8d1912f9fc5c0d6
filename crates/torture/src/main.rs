//! `glowfs-torture`: see the crate, and `./torture`.

use anyhow::{Context, Result};
use clap::Parser;
use glowfs_torture::cluster::Shape;
use glowfs_torture::linear;
use glowfs_torture::nemesis::Kind;
use glowfs_torture::run::{Plan, run};
use glowfs_torture::stalls;
use glowfs_torture::watchdog::{HANG_BOUND, Patience};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Set in the process that runs in a network namespace of its own.
const APART: &str = "GLOWFS_TORTURE_APART";

/// Torture of a real cluster: faults under load, and a check of every acknowledged byte.
#[derive(Parser, Debug)]
#[command(name = "torture", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    mode: Option<Mode>,
    #[command(flatten)]
    torture: Torture,
}

#[derive(clap::Subcommand, Debug)]
enum Mode {
    /// How long applications stand still when a certain process is killed
    Stalls {
        /// Kills of each role
        #[arg(long, default_value_t = 50)]
        count: usize,
        /// Whom to kill
        #[arg(
            long,
            value_enum,
            value_delimiter = ',',
            default_value = "head,middle,tail,mgmtd,meta,engine"
        )]
        roles: Vec<stalls::Role>,
        /// No stall may be longer, seconds
        #[arg(long, default_value_t = 5.0)]
        bound: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Whether what two mounts see of the same blocks and names is linearizable under faults
    Linear {
        /// How long
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
        /// Which faults
        #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,stop,restart")]
        faults: Vec<Kind>,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args, Debug)]
struct Torture {
    /// How long faults strike
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Which faults
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kill,stop,restart,all,cut,corrupt,fill,disk,mount"
    )]
    faults: Vec<Kind>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args, Debug)]
struct Common {
    /// Chooses operations and faults [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The glowfs binary [default: beside this one]
    #[arg(long, value_name = "FILE")]
    glowfs: Option<PathBuf>,
    /// Where the run makes a directory of its own for the cluster; what else is there stays [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Storage nodes
    #[arg(long, default_value_t = 3)]
    storages: u32,
    /// More options for `glowfs dev up`, such as "--mgmtds 3 --metas 2"
    #[arg(long, default_value = "", allow_hyphen_values = true, value_name = "OPTIONS")]
    up: String,
    /// The longest pause of a worker between two operations, ms
    #[arg(long, default_value_t = 5, value_name = "MS")]
    think: u64,
    /// Leave the cluster for a look when the run failed
    #[arg(long)]
    keep: bool,
    /// The run fails when an operation goes on for so long although no fault is in force
    #[arg(long, default_value_t = HANG_BOUND.as_secs(), value_name = "SECONDS")]
    patience: u64,
}

impl Common {
    /// The seed, told so that the run can be repeated.
    fn seed(&self) -> u64 {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seed = self.seed.unwrap_or(clock.as_nanos() as u64 % 1_000_000);
        eprintln!("seed {seed}");
        seed
    }
    fn report(&self, json: &impl serde::Serialize, text: &str, passed: bool) -> Result<ExitCode> {
        if let Some(file) = &self.json {
            std::fs::write(file, serde_json::to_string_pretty(json)?)
                .with_context(|| format!("writing {}", file.display()))?;
        }
        print!("{text}");
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
    fn patience(&self) -> Patience {
        Patience { bound: Duration::from_secs(self.patience), json: self.json.clone() }
    }
    fn shape(&self) -> Result<Shape> {
        let beside = std::env::current_exe()?.with_file_name("glowfs");
        let dir = self.dir.clone().unwrap_or_else(|| "/var/tmp".into());
        Ok(Shape {
            // Commands are run elsewhere.
            glowfs: std::path::absolute(self.glowfs.clone().unwrap_or(beside))?,
            dir,
            storages: self.storages,
            options: self.up.split_whitespace().map(String::from).collect(),
        })
    }
}

fn main() -> Result<ExitCode> {
    let args = Arguments::parse();
    match args.mode {
        None => torture(args.torture),
        Some(Mode::Stalls { count, roles, bound, common }) => {
            let bound = Duration::from_secs_f64(bound);
            let mut shape = common.shape()?;
            shape.options.extend(["--mgmtds", "3", "--metas", "2"].map(String::from));
            let seed = common.seed();
            let report = stalls::run(&stalls::Plan {
                shape,
                count,
                roles,
                bound,
                seed,
                keep: common.keep,
                patience: common.patience(),
            })?;
            common.report(&report, &report.text(), report.passed)
        }
        Some(Mode::Linear { minutes, faults, common }) => {
            let time = Duration::from_secs_f64(minutes * 60.0);
            let mut shape = common.shape()?;
            apart(&mut shape, &faults)?;
            let plan = linear::Plan {
                shape,
                time,
                seed: common.seed(),
                faults,
                keep: common.keep,
                patience: common.patience(),
            };
            let report = linear::run(&plan)?;
            common.report(&report, &report.text(), report.passed)
        }
    }
}

/// Cuts need services that do not share a network, and that nothing of the machine's own network is touched: this program
/// starts itself again in a network namespace of its own.
fn apart(shape: &mut Shape, faults: &[Kind]) -> Result<()> {
    if !faults.iter().any(|f| matches!(f, Kind::Cut | Kind::Primary)) {
        return Ok(());
    }
    shape.options.push("--separate".into());
    if std::env::var_os(APART).is_some() {
        return Ok(());
    }
    let mut again = Command::new("unshare");
    again.arg("--net").arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
    let why = again.env(APART, "1").exec();
    Err(why).context("starting in a network namespace (root and util-linux), which the fault «cut» needs; or leave it out of --faults")
}

fn torture(args: Torture) -> Result<ExitCode> {
    let common = &args.common;
    let mut shape = common.shape()?;
    apart(&mut shape, &args.faults)?;
    let plan = Plan {
        shape,
        time: Duration::from_secs_f64(args.minutes * 60.0),
        seed: common.seed(),
        faults: args.faults,
        think: Duration::from_millis(common.think),
        keep: common.keep,
        patience: common.patience(),
    };
    let report = run(&plan)?;
    common.report(&report, &report.text(), report.passed)
}
