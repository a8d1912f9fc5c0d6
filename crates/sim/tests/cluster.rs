//! Clusters under faults, some hundreds of seeds. `GLOWFS_SIM_SEED` is the first one, `GLOWFS_SIM_SEEDS` how many.

use glowfs_rt::Duration;
use glowfs_sim::cluster::{Faults, OUT, Plan, run_seed};
use std::sync::Mutex;

/// Seeds in a normal run; `./soak` runs thousands, for longer.
const SEEDS: u64 = 200;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = env("GLOWFS_SIM_SEED", 1);
    first..first + env("GLOWFS_SIM_SEEDS", count)
}

/// The command that runs one seed of a test again.
fn replay(seed: u64, test: &str) -> String {
    format!("GLOWFS_SIM_SEED={seed} GLOWFS_SIM_SEEDS=1 cargo test -p glowfs-sim --test sim {test}")
}

#[test]
fn without_faults() {
    for seed in seeds(1) {
        let plan = Plan { faults: Faults::NONE, time: Duration::from_secs(3), ..Plan::default() };
        let report = run_seed(seed, plan);
        report.expect_good(&replay(seed, "without_faults"));
        assert!(report.ops > 50 && report.checked > 300 && report.contended > 5, "{report:?}");
        assert!(report.contended_names > 5, "{report:?}");
    }
}

#[test]
fn under_faults() {
    let time = Duration::from_secs(env("GLOWFS_SIM_SECONDS", 4));
    let rest = Mutex::new(seeds(SEEDS));
    let next = || rest.lock().unwrap_or_else(|e| e.into_inner()).next();
    let work = || {
        while let Some(seed) = next() {
            let report = run_seed(seed, Plan { time, ..Plan::default() });
            report.expect_good(&replay(seed, "under_faults"));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
}

/// Nodes take disks out that hang, and are whole again in the end.
#[test]
fn disks_that_hang() {
    let faults = Faults { hangs: 2, calm: 8, ..Faults::NONE };
    let mut out = 0;
    for seed in seeds(4) {
        let report = run_seed(seed, Plan { faults, ..Plan::default() });
        report.expect_good(&replay(seed, "disks_that_hang"));
        out += report.log.iter().filter(|l| l.contains(OUT)).count();
    }
    assert!(out > 0, "no disk was taken out");
}

#[test]
fn a_seed_replays() {
    let plan = Plan { time: Duration::from_secs(3), ..Plan::default() };
    let (a, b) = (run_seed(77, plan), run_seed(77, plan));
    assert_eq!((a.trace_hash, a.ops, a.log), (b.trace_hash, b.ops, b.log));
    assert_ne!(run_seed(78, plan).trace_hash, a.trace_hash);
    // Nor may anything of the process get in (its id did, once: it stands in messages).
    if std::env::var_os("GLOWFS_SIM_CHILD").is_some() {
        println!("trace {:016x}", a.trace_hash);
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "cluster::a_seed_replays", "--nocapture"])
        .env("GLOWFS_SIM_CHILD", "1")
        .output()
        .expect("the same test in another process");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        said.contains(&format!("trace {:016x}", a.trace_hash)),
        "{:016x}: {said}",
        a.trace_hash
    );
}
