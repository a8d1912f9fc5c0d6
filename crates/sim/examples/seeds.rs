//! Runs cluster seeds: `cargo run -p glowfs-sim --example seeds -- FIRST COUNT [SECONDS]`. Stops at the first that fails.
//! `GLOWFS_SIM_THREADS` run side by side (as many as there are cores, if it does not say); `GLOWFS_SIM_STORY=1` tells what went wrong when.
//! `GLOWFS_SIM_FAULTS=all=6,disks=0` changes the weights of the faults (`cluster/weights.rs`).
//! With `GLOWFS_SIM_LOG=debug` (or another filter) the services' logs go to standard error, each line with the simulated time and
//! the number of the node.

use glowfs_rt::Duration;
use glowfs_sim::cluster::{Faults, Plan, Report, run_seed};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static MEMORY: glowfs_sim::memory::Memory = glowfs_sim::memory::Memory;

/// Up to so many seeds each gets a line; of more only one in so many.
const SAY_EACH: u64 = 25;

/// Seeds of one process. A world that has ended leaves some 20 MB behind: its services hold each other, as they may, for a real one's
/// process ends.
const BATCH: u64 = 100;

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
    let args: Vec<u64> = std::env::args().skip(1).map(|a| number(&a)).collect();
    let (first, count) = (args.first().copied().unwrap_or(1), args.get(1).copied().unwrap_or(100));
    let weights = std::env::var("GLOWFS_SIM_FAULTS").unwrap_or_default();
    let faults = Faults::ALL.with(&weights).unwrap_or_else(|e| panic!("GLOWFS_SIM_FAULTS: {e}"));
    if count > BATCH {
        return in_batches(first..first + count, args.get(2));
    }
    let default = Plan { faults, ..Plan::default() };
    let time = args.get(2).map_or(default.time, |s| Duration::from_secs(*s));
    let run = Run {
        seeds: first..first + count,
        plan: Plan { time, ..default },
        weights,
        story: std::env::var_os("GLOWFS_SIM_STORY").is_some(),
        next: AtomicU64::new(first),
        total: Mutex::default(),
        began: std::time::Instant::now(),
    };
    let threads = std::env::var("GLOWFS_SIM_THREADS").ok().and_then(|n| n.parse().ok());
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.unwrap_or_else(cores).min(count as usize) {
            scope.spawn(|| run.work());
        }
    });
}

/// A word of the command line. What is no number ends the program: left out, a word in the wrong place would start hours of work.
fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| {
        eprintln!("seeds: «{word}» is no number. Usage: seeds FIRST COUNT [SECONDS]");
        std::process::exit(2)
    })
}

/// Runs many seeds, each batch in a process of its own.
fn in_batches(seeds: Range<u64>, seconds: Option<&u64>) {
    let binary = std::env::current_exe().expect("the path of this program");
    for first in seeds.clone().step_by(BATCH as usize) {
        let count = BATCH.min(seeds.end - first);
        let status = std::process::Command::new(&binary)
            .args([first, count].iter().chain(seconds).map(u64::to_string))
            .status()
            .unwrap_or_else(|e| panic!("starting {}: {e}", binary.display()));
        if !status.success() {
            // A signal (out of memory, for example) has no code.
            eprintln!("seeds {first} to {} ended with {status}", first + count - 1);
            std::process::exit(status.code().unwrap_or(1));
        }
        println!("{} of {} seeds", first + count - seeds.start, seeds.end - seeds.start);
    }
}

/// What all threads share. Each seed's world belongs to one of them.
struct Run {
    seeds: Range<u64>,
    plan: Plan,
    weights: String,
    story: bool,
    next: AtomicU64,
    total: Mutex<Total>,
    began: std::time::Instant,
}

#[derive(Default)]
struct Total {
    seeds: u64,
    ops: u64,
    contended: u64,
    simulated: Duration,
}

impl Run {
    fn work(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if !self.seeds.contains(&seed) {
                return;
            }
            let report = run_seed(seed, self.plan);
            self.say(&report);
            if !report.problems.is_empty() {
                let fails = std::panic::AssertUnwindSafe(|| report.expect_good(&self.replay(seed)));
                let _ = std::panic::catch_unwind(fails);
                std::process::exit(1);
            }
        }
    }

    fn replay(&self, seed: u64) -> String {
        let weights = match self.weights.as_str() {
            "" => String::new(),
            w => format!("GLOWFS_SIM_FAULTS={w} "),
        };
        let seconds = self.plan.time.as_secs();
        format!("{weights}cargo run -p glowfs-sim --example seeds -- {seed} 1 {seconds}")
    }

    fn say(&self, r: &Report) {
        let Ok(mut t) = self.total.lock() else { return };
        t.seeds += 1;
        t.ops += r.ops;
        t.contended += r.contended;
        t.simulated += r.simulated;
        let count = self.seeds.end - self.seeds.start;
        let due = t.seeds.is_multiple_of(SAY_EACH) || t.seeds == count;
        if count <= SAY_EACH || due || !r.problems.is_empty() {
            println!(
                "seed {}: {} operations, {:.0} s simulated, trace {:016x}; so far {} seeds, {} operations, {} contended writes, {:.1} h simulated in {:.0} s",
                r.seed,
                r.ops,
                r.simulated.as_secs_f64(),
                r.trace_hash,
                t.seeds,
                t.ops,
                t.contended,
                t.simulated.as_secs_f64() / 3600.0,
                self.began.elapsed().as_secs_f64(),
            );
        }
        if self.story {
            println!("{}", r.log.join("\n"));
        }
    }
}
