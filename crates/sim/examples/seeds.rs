//! Runs cluster seeds: `cargo run -p glowfs-sim --example seeds -- FIRST COUNT [SECONDS]`. Stops at the first that fails.
//! With `GLOWFS_SIM_LOG=debug` (or another filter) the services' logs go to standard error, each line with the simulated time and
//! the number of the node.

use glowfs_rt::Duration;
use glowfs_sim::cluster::{Plan, run_seed};

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
    let time = Duration::from_secs(args.get(2).copied().unwrap_or(15));
    for seed in first..first + count {
        let began = std::time::Instant::now();
        let r = run_seed(seed, Plan { time, ..Plan::default() });
        println!(
            "seed {seed}: {} operations, {} cells checked, {:.0} s simulated in {:.1} s, trace {:016x}",
            r.ops,
            r.checked,
            r.simulated.as_secs_f64(),
            began.elapsed().as_secs_f64(),
            r.trace_hash
        );
        r.expect_good();
    }
}
