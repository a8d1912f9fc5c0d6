//! Runs cluster seeds: `cargo run -p glowfs-sim --example seeds -- FIRST COUNT [SECONDS]`. Stops at the first that fails.
//! `GLOWFS_SIM_FAULTS=all=6,disks=0` changes the weights of the faults (`cluster/faults.rs`).
//! With `GLOWFS_SIM_LOG=debug` (or another filter) the services' logs go to standard error, each line with the simulated time and
//! the number of the node.

use glowfs_rt::Duration;
use glowfs_sim::cluster::{Faults, Plan, run_seed};

/// Up to so many seeds each gets a line; of more only one in so many.
const SAY_EACH: u64 = 25;

struct SimTime;

impl tracing_subscriber::fmt::time::FormatTime for SimTime {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        let (now, node) = glowfs_sim::world::running();
        write!(w, "{:>12.6} node {node}", now as f64 / 1e9)
    }
}

fn main() {
    if let Ok(filter) = std::env::var("GLOWFS_SIM_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_timer(SimTime)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
    }
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (first, count) = (args.first().copied().unwrap_or(1), args.get(1).copied().unwrap_or(100));
    let weights = std::env::var("GLOWFS_SIM_FAULTS").unwrap_or_default();
    let faults = Faults::ALL.with(&weights).unwrap_or_else(|e| panic!("GLOWFS_SIM_FAULTS: {e}"));
    let default = Plan { faults, ..Plan::default() };
    let time = args.get(2).map_or(default.time, |s| Duration::from_secs(*s));
    let began = std::time::Instant::now();
    let (mut ops, mut contended, mut simulated) = (0, 0, Duration::ZERO);
    for seed in first..first + count {
        let r = run_seed(seed, Plan { time, ..default });
        ops += r.ops;
        contended += r.contended;
        simulated += r.simulated;
        let done = seed - first + 1;
        if count <= SAY_EACH
            || done.is_multiple_of(SAY_EACH)
            || done == count
            || !r.problems.is_empty()
        {
            println!(
                "seed {seed}: {} operations, {:.0} s simulated, trace {:016x}; so far {done} seeds, {ops} operations, {contended} contended writes, {:.1} h simulated in {:.0} s",
                r.ops,
                r.simulated.as_secs_f64(),
                r.trace_hash,
                simulated.as_secs_f64() / 3600.0,
                began.elapsed().as_secs_f64(),
            );
        }
        let seconds = time.as_secs();
        r.expect_good(&format!("cargo run -p glowfs-sim --example seeds -- {seed} 1 {seconds}"));
    }
}
