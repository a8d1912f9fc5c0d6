//! Linearizability of what applications on two mounts see of the same blocks and the same names, under faults.
//!
//! Threads of both mounts hit few keys at once, each call and answer is recorded, and an existing checker (Wing and Gong's algorithm
//! with Lowe's memory, `todc-utils`) looks for an order that explains every answer. A key lives for a bounded number of operations,
//! since the search grows with the history. Histories in which operations hardly overlap prove nothing, so they fail the run.

mod history;
mod model;
mod names;
mod registers;

pub use history::{Kept, Recorder, overlapping};
pub use model::{MountNames, NameOp, Names, Register, RegisterOp};

use crate::cluster::Shape;
use crate::flight::Flight;
use crate::machine::Machine;
use crate::nemesis::{self, Kind, Nemesis, Strike};
use crate::random::Random;
use crate::replicas::Compared;
use crate::report::effective_line;
use crate::run::all_replicas;
use crate::site::Site;
use crate::watchdog::{Patience, Watchdog};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Threads of each mount.
const THREADS: usize = 3;
/// Less overlap than this, in percent, is no proof.
pub const OVERLAP_MIN: f64 = 20.0;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// For how long.
    pub time: Duration,
    /// Chooses operations and faults.
    pub seed: u64,
    /// Which faults.
    pub faults: Vec<Kind>,
    /// Leave the cluster's directory when it failed.
    pub keep: bool,
    /// When to give up.
    pub patience: Patience,
}

/// What was found about one kind of keys.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// Keys checked.
    pub keys: usize,
    /// Their operations.
    pub operations: usize,
    /// Operations that overlap another one of the same key, in percent.
    pub overlapping: f64,
    /// The lowest share of one key.
    pub least: f64,
    /// Keys whose history no order explains, with the history.
    pub violations: Vec<String>,
}

impl Verdict {
    /// Puts the results of single keys together.
    pub fn of(kept: Vec<Kept>) -> Self {
        let mut v = Self { keys: kept.len(), least: 100.0, ..Self::default() };
        let mut overlapping = 0;
        for k in kept {
            v.operations += k.operations;
            overlapping += k.overlapping;
            v.least = v.least.min(100.0 * k.overlapping as f64 / k.operations.max(1) as f64);
            v.violations.extend(k.violation);
        }
        v.overlapping = 100.0 * overlapping as f64 / v.operations.max(1) as f64;
        v
    }
    fn failures(&self, what: &str) -> Vec<String> {
        let mut f = vec![];
        for v in self.violations.iter().take(3) {
            f.push(format!("{what}: not linearizable: {v}"));
        }
        if self.keys == 0 {
            f.push(format!("{what}: nothing was recorded"));
        } else if self.overlapping < OVERLAP_MIN {
            f.push(format!(
                "{what}: only {:.0} % of the operations overlap: no contention, no proof",
                self.overlapping
            ));
        }
        f
    }
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether all is well.
    pub passed: bool,
    /// Why not.
    pub failures: Vec<String>,
    /// Blocks.
    pub registers: Verdict,
    /// Directories.
    pub names: Verdict,
    /// How often each kind that was asked for struck with effect, while operations were in flight.
    pub effective: BTreeMap<Kind, usize>,
    /// All replicas of all chunks, compared at the end.
    pub compared: Compared,
    /// Every fault.
    pub strikes: Vec<Strike>,
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut t = String::new();
        for (what, v) in [("blocks", &self.registers), ("names", &self.names)] {
            let _ = writeln!(
                t,
                "{what}: {} keys, {} operations, {:.0} % overlapping (least {:.0} %), {} not linearizable",
                v.keys,
                v.operations,
                v.overlapping,
                v.least,
                v.violations.len()
            );
        }
        let _ = writeln!(t, "{} faults; {}", self.strikes.len(), self.compared.text());
        t += &effective_line(&self.effective);
        for f in &self.failures {
            let _ = writeln!(t, "FAILED: {f}");
        }
        t + if self.passed { "PASSED\n" } else { "FAILED\n" }
    }
}

/// Runs the plan.
pub fn run(plan: &Plan) -> Result<Report> {
    let machine = Arc::new(Machine::watch());
    let site = Site::up(&plan.shape, &plan.faults, plan.keep)?;
    let result = recorded(plan, &site, machine);
    site.close(result, |r| r.passed)
}

fn recorded(plan: &Plan, site: &Site, machine: Arc<Machine>) -> Result<Report> {
    let cluster = &site.cluster;
    let threads = 2 * THREADS;
    let lane = |i: usize| format!("{} {i}, mount {}", ["blocks", "names"][i / threads], i % 2 + 1);
    let flight = Arc::new(Flight::new((0..2 * threads).map(lane)));
    let _watchdog = Watchdog::watch(flight.clone(), &plan.patience, site.view(), site.give_up());
    let dirs = [cluster.mounts[0].clone(), cluster.mounts[1].clone()];
    let blocks = flight.op(0, "making the file", || registers::Blocks::make(&dirs[0]))?;
    let dir = flight.op(0, "making a directory", || names::Directories::make(&dirs[0]))?;
    let (blocks, dir) = (Arc::new(blocks), Arc::new(dir));
    let mut workers = vec![];
    for i in 0..threads {
        let (flight, mount) = (flight.clone(), dirs[i % 2].clone());
        let (blocks, random) = (blocks.clone(), Random::new(plan.seed, i as u64));
        workers.push(std::thread::spawn(move || blocks.work(&flight, i, &mount, random)));
    }
    for i in threads..2 * threads {
        let (flight, mount) = (flight.clone(), dirs[i % 2].clone());
        let (dir, random) = (dir.clone(), Random::new(plan.seed, i as u64));
        workers.push(std::thread::spawn(move || dir.work(&flight, i, &mount, random)));
    }
    let mut nemesis =
        Nemesis::new(cluster.clone(), flight.clone(), machine, plan.seed, plan.faults.clone());
    let mut failures = vec![];
    if let Err(e) = nemesis.rage(Instant::now() + plan.time) {
        failures.push(format!("{e:#}"));
    }
    flight.stop.store(true, Ordering::SeqCst);
    for w in workers {
        if w.join().is_err() {
            failures.push("a worker panicked".into());
        }
    }
    let p = flight.problems();
    failures.extend(p.wrong.into_iter().chain(p.errors).take(20));
    // Its workers are done: the first lane is free.
    let expected = nemesis.expected();
    let compared = all_replicas(cluster, &flight, 0, "at the end", &expected, &mut failures);
    flight.say("looking for an order that explains it all");
    let (registers, names) = (Verdict::of(blocks.check()), Verdict::of(dir.check()));
    failures.extend(registers.failures("blocks"));
    failures.extend(names.failures("names"));
    let effective = nemesis::effective(&plan.faults, &nemesis.done);
    failures.extend(nemesis::never_struck(&effective, &nemesis.done));
    Ok(Report {
        passed: failures.is_empty(),
        failures,
        registers,
        names,
        effective,
        compared,
        strikes: nemesis.done,
    })
}
