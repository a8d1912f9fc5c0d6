//! Runs cluster seeds: `cargo run -p glowfs-sim --example seeds -- FIRST COUNT [SECONDS]`. Stops at the first that fails.

use glowfs_rt::Duration;
use glowfs_sim::cluster::{Plan, run_seed};

fn main() {
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
