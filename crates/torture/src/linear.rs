//! Linearizability of what applications on two mounts see of the same blocks and the same names, under faults.
//!
//! Threads of both mounts hit few keys at once, each call and answer is recorded, and an existing checker (Wing and Gong's algorithm
//! with Lowe's memory, `todc-utils`) looks for an order that explains every answer. A key lives for a bounded number of operations,
//! since the search grows with the history. The history of a key in which operations hardly overlap proves nothing, so it fails the run, whatever those of others are;
//! as do more keys with too few operations to tell than are in use at the end.

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
/// Less overlap of a key's operations than this, in percent, is no proof.
pub const OVERLAP_MIN: f64 = 20.0;
/// Of a key with fewer operations than this nothing is demanded: those in use at the end have had no time for more.
const OPERATIONS_MIN: usize = 40;

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
    /// The lowest share of a key with enough operations to tell; 100 if there is none.
    pub least: f64,
    /// Keys with too few operations to tell.
    pub short: usize,
    /// Of each key: its operations, and how many of them overlap another one.
    pub contention: BTreeMap<String, (usize, usize)>,
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
            if k.operations < OPERATIONS_MIN {
                v.short += 1;
            } else {
                v.least = v.least.min(percent(k.overlapping, k.operations));
            }
            v.violations.extend(k.violation);
            v.contention.insert(k.key, (k.operations, k.overlapping));
        }
        v.overlapping = percent(overlapping, v.operations);
        v
    }
    /// Why these are no proof, if `in_use` of the keys are in use at once.
    fn failures(&self, what: &str, in_use: usize) -> Vec<String> {
        let mut f = vec![];
        for v in self.violations.iter().take(3) {
            f.push(format!("{what}: not linearizable: {v}"));
        }
        if self.keys == self.short {
            f.push(format!("{what}: nothing was recorded that tells anything"));
        }
        if self.short > in_use {
            let (short, keys) = (self.short, self.keys);
            f.push(format!("{what}: {short} of {keys} keys have too few operations to tell"));
        }
        let enough = |c: &(usize, usize)| c.0 < OPERATIONS_MIN || percent(c.1, c.0) >= OVERLAP_MIN;
        let lonely: Vec<_> = self.contention.iter().filter(|(_, c)| !enough(c)).collect();
        for (key, (operations, overlapping)) in lonely.iter().take(3) {
            f.push(format!(
                "{what}: {key}: only {overlapping} of its {operations} operations overlap: no contention, no proof ({} such keys)",
                lonely.len()
            ));
        }
        f
    }
}

fn percent(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
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
                "{what}: {} keys ({} too short to tell), {} operations, {:.0} % overlapping (of one key at least {:.0} %), {} not linearizable",
                v.keys,
                v.short,
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
    failures.extend(registers.failures("blocks", registers::ACTIVE));
    failures.extend(names.failures("names", names::ACTIVE));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(key: &str, operations: usize, overlapping: usize) -> Kept {
        Kept { key: key.into(), operations, overlapping, violation: None }
    }

    /// Threads that take turns at a key, as real histories record them.
    fn without_contention(key: &str) -> Kept {
        let history = Recorder::new(key.into());
        for nth in 0..100 {
            assert!(history.call(nth % 2, RegisterOp::Write(nth as u64 + 1), 1000));
            history.answer(nth % 2, Some(RegisterOp::Write(nth as u64 + 1)));
        }
        history.check::<Register>().expect("a history")
    }

    #[test]
    fn each_key_has_to_be_fought_for() {
        let good = Verdict::of(vec![kept("a", 240, 200), kept("b", 240, 60), kept("c", 9, 0)]);
        assert_eq!(good.failures("blocks", 1), Vec::<String>::new());
        assert_eq!((good.short, good.least, good.contention["b"]), (1, 25.0, (240, 60)));
        // What others have does not make up for it.
        let many = (0..20).map(|i| kept(&format!("fought for {i}"), 240, 240));
        let v = Verdict::of(many.chain([without_contention("alone")]).collect());
        assert!(v.overlapping > 90.0 && v.violations.is_empty());
        let failures = v.failures("blocks", 1);
        assert!(failures.len() == 1 && failures[0].contains("alone: only 0 of"), "{failures:?}");
    }

    #[test]
    fn keys_that_are_too_short_to_tell_are_few() {
        let short = |n: usize| (0..n).map(|i| kept(&format!("short {i}"), OPERATIONS_MIN - 1, 0));
        let with = |n| Verdict::of(short(n).chain([kept("long", 240, 200)]).collect());
        assert!(with(2).failures("names", 2).is_empty());
        assert_eq!(with(3).failures("names", 2).len(), 1);
        assert!(!Verdict::of(short(1).collect()).failures("names", 2).is_empty(), "nothing tells");
        assert!(!Verdict::of(vec![]).failures("names", 2).is_empty());
    }
}
