//! The report of a run: for people and, as JSON, for scripts.

use crate::flight::Problems;
use crate::machine::SET_ASIDE;
use crate::nemesis::{self, Kind, Strike};
use crate::replicas::Compared;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Median, 99th percentile and worst of some times, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Distribution {
    /// How many.
    pub count: usize,
    /// The middle one.
    pub median: f64,
    /// 99 % are not longer.
    pub p99: f64,
    /// The longest.
    pub worst: f64,
}

impl Distribution {
    /// Of these times.
    pub fn of(times: impl IntoIterator<Item = f64>) -> Self {
        let mut t: Vec<f64> = times.into_iter().collect();
        t.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let i = ((t.len() as f64 * q).ceil() as usize).clamp(1, t.len().max(1)) - 1;
            t.get(i).copied().unwrap_or_default()
        };
        Self { count: t.len(), median: at(0.5), p99: at(0.99), worst: at(1.0) }
    }
}

/// What one kind of fault did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KindRow {
    /// How often it struck.
    pub strikes: usize,
    /// Of these, set aside because the machine itself stood still.
    pub set_aside: usize,
    /// The longest operation of each strike.
    pub stall_s: Distribution,
    /// Until all replicas served again.
    pub whole_s: Distribution,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// See [`Report`].
    pub seed: u64,
    /// See [`Report`].
    pub seconds: f64,
    /// See [`Report`].
    pub by_worker: Vec<(String, u64)>,
    /// Kinds of faults that were asked for.
    pub asked: Vec<Kind>,
    /// See [`Report`].
    pub strikes: Vec<Strike>,
    /// What workers and checker found.
    pub problems: Problems,
    /// What else went wrong.
    pub failures: Vec<String>,
    /// See [`Report`].
    pub blocks: (u64, u64),
    /// See [`Report`].
    pub compared: Compared,
    /// See [`Report`].
    pub machine_s: f64,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether all is well.
    pub passed: bool,
    /// Why not.
    pub failures: Vec<String>,
    /// Replays the order of faults and operations.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// Operations done.
    pub operations: u64,
    /// By worker.
    pub by_worker: Vec<(String, u64)>,
    /// Faults by kind and role.
    pub faults: BTreeMap<String, KindRow>,
    /// How often each kind that was asked for struck with effect, while operations were in flight.
    pub effective: BTreeMap<Kind, usize>,
    /// Lost or wrong bytes and names: how many checks failed.
    pub wrong: u64,
    /// Errors that applications saw.
    pub errors: u64,
    /// `ENOSPC` while a disk was full.
    pub enospc_while_full: u64,
    /// Blocks checked at the end, of these made durable by fsync.
    pub blocks: (u64, u64),
    /// All replicas of all chunks, compared at the end.
    pub compared: Compared,
    /// The longest stall of the machine itself.
    pub machine_s: f64,
    /// Every fault.
    pub strikes: Vec<Strike>,
}

impl Report {
    /// Puts one together.
    pub fn new(e: Evidence) -> Self {
        let Evidence {
            seed,
            seconds,
            by_worker,
            asked,
            strikes,
            problems,
            mut failures,
            blocks,
            compared,
            machine_s,
        } = e;
        if problems.wrong_count > 0 {
            failures.push(format!("{} checks found lost or wrong bytes", problems.wrong_count));
            failures.extend(problems.wrong.iter().take(10).cloned());
        }
        if problems.error_count > 0 {
            failures.push(format!("applications saw {} errors", problems.error_count));
            failures.extend(problems.errors.iter().take(10).cloned());
        }
        if strikes.is_empty() {
            failures.push("no fault struck".into());
        }
        let effective = nemesis::effective(&asked, &strikes);
        failures.extend(nemesis::never_struck(&effective, &strikes));
        Self {
            passed: failures.is_empty(),
            failures,
            seed,
            seconds,
            operations: by_worker.iter().map(|w| w.1).sum(),
            by_worker,
            faults: table(&strikes),
            effective,
            wrong: problems.wrong_count,
            errors: problems.error_count,
            enospc_while_full: problems.excused,
            blocks,
            compared,
            machine_s,
            strikes,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut t = String::new();
        let _ = writeln!(
            t,
            "seed {}: {} operations in {:.0} s; {} faults; {} wrong, {} errors ({} ENOSPC while a disk was full); \
             {} blocks checked at the end, {} of them covered by an fsync; {}; longest stall of the machine {:.2} s",
            self.seed,
            self.operations,
            self.seconds,
            self.strikes.len(),
            self.wrong,
            self.errors,
            self.enospc_while_full,
            self.blocks.0,
            self.blocks.1,
            self.compared.text(),
            self.machine_s
        );
        let _ = writeln!(
            t,
            "{:<24} {:>7} {:>6}   {:>7} {:>7} {:>7}   {:>7} {:>7}",
            "fault", "strikes", "aside", "stall", "p99", "worst", "whole", "worst"
        );
        for (name, r) in &self.faults {
            let _ = writeln!(
                t,
                "{name:<24} {:>7} {:>6}   {:>7.2} {:>7.2} {:>7.2}   {:>7.2} {:>7.2}",
                r.strikes,
                r.set_aside,
                r.stall_s.median,
                r.stall_s.p99,
                r.stall_s.worst,
                r.whole_s.median,
                r.whole_s.worst
            );
        }
        t += &effective_line(&self.effective);
        for f in &self.failures {
            let _ = writeln!(t, "FAILED: {f}");
        }
        let _ = writeln!(t, "{}", if self.passed { "PASSED" } else { "FAILED" });
        t
    }
}

/// How often each kind struck with effect, for people.
pub fn effective_line(effective: &BTreeMap<Kind, usize>) -> String {
    let each = effective.iter().map(|(k, n)| format!("{k:?} {n}").to_lowercase());
    format!("struck with effect: {}\n", each.collect::<Vec<_>>().join(", "))
}

fn table(strikes: &[Strike]) -> BTreeMap<String, KindRow> {
    let mut groups: BTreeMap<String, Vec<&Strike>> = BTreeMap::new();
    for s in strikes {
        let roles: Vec<_> =
            s.target.split('+').map(|t| t.split('-').next().unwrap_or_default()).collect();
        let who = match roles.as_slice() {
            [one] => (*one).to_owned(),
            many => format!("{} x{}", many.first().copied().unwrap_or_default(), many.len()),
        };
        groups.entry(format!("{:?} {who}", s.kind).to_lowercase()).or_default().push(s);
    }
    let row = |all: Vec<&Strike>| {
        let good: Vec<_> = all.iter().filter(|s| s.machine_s <= SET_ASIDE.as_secs_f64()).collect();
        KindRow {
            strikes: all.len(),
            set_aside: all.len() - good.len(),
            stall_s: Distribution::of(good.iter().map(|s| s.stall_s)),
            whole_s: Distribution::of(good.iter().map(|s| s.whole_s)),
        }
    };
    groups.into_iter().map(|(k, v)| (k, row(v))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions() {
        let d = Distribution::of((1..=100).map(f64::from));
        assert_eq!(d, Distribution { count: 100, median: 50.0, p99: 99.0, worst: 100.0 });
        assert_eq!(Distribution::of([]), Distribution::default());
        assert_eq!(Distribution::of([3.0]).worst, 3.0);
    }

    #[test]
    fn nothing_passes_without_faults_or_with_errors() {
        let r = Report::new(Evidence::default());
        assert!(!r.passed && r.text().contains("no fault struck"));
        let asked = Report::new(Evidence { asked: vec![Kind::Corrupt], ..Evidence::default() });
        assert!(
            asked.text().contains("corrupt 0") && asked.text().contains("Corrupt never struck")
        );
    }
}
