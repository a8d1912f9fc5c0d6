//! Linearizability of registers with many writers, from a recorded history.
//!
//! Every write has a value of its own, so the check is exact and fast (Gibbons and Korach, «Testing shared memories», 1997): all
//! operations of one value form a cluster; between the first end and the last begin of its operations lies its zone, *forward*
//! if the first end comes first. A history is linearizable if and only if no read precedes its write, no two forward
//! zones overlap, and no backward zone lies inside a forward one.

use std::collections::BTreeMap;

/// The moment of something that has not ended.
const NEVER: u64 = u64::MAX;
/// The same, of something of which an answer says nothing any more: what it tells of may be gone.
const UNTOLD: u64 = NEVER - 1;

/// The operations on one register. Moments are ticks: numbers in the order in which things happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    clusters: BTreeMap<u64, Cluster>,
    /// From this on what was written before may be gone.
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cluster {
    write: (u64, u64),
    first_end: u64,
    last_begin: u64,
    reads: u64,
    /// What had seen the value before this moment does not count: it may have been gone then, and have come again.
    lost: u64,
}

impl Cluster {
    fn of(write: (u64, u64)) -> Self {
        Self { write, first_end: write.1, last_begin: write.0, reads: 0, lost: 0 }
    }
}

impl History {
    /// A register that holds 0.
    pub fn new() -> Self {
        let mut h = Self::default();
        h.clusters.insert(0, Cluster::of((0, 0)));
        h
    }
    /// A write of a value that no other write has began.
    pub fn begin_write(&mut self, value: u64, now: u64) {
        self.clusters.insert(value, Cluster::of((now, NEVER)));
    }
    /// It was acknowledged.
    pub fn end_write(&mut self, value: u64, now: u64) {
        if let Some(c) = self.clusters.get_mut(&value)
            && c.write.1 == NEVER
        {
            c.write.1 = now;
            c.first_end = c.first_end.min(now);
        }
    }
    /// A read that began at `began` ended and returned `value`.
    pub fn read(&mut self, value: u64, began: u64, now: u64) -> Result<(), String> {
        if began < self.lost {
            return Ok(());
        }
        let c =
            self.clusters.get_mut(&value).ok_or_else(|| format!("{value} was never written"))?;
        if began < c.lost {
            return Ok(());
        }
        c.first_end = c.first_end.min(now);
        c.last_begin = c.last_begin.max(began);
        c.reads += 1;
        Ok(())
    }
    /// All replicas were interrupted at once: of what was written and not flushed any part may be gone. What ended before is
    /// judged now; after it the register may hold any value that was written (flushed ones are held by other checks).
    pub fn lose(&mut self, now: u64) -> Result<(), String> {
        let verdict = self.check();
        self.lost = now;
        for c in self.clusters.values_mut() {
            let end = if c.write.1 >= UNTOLD { c.write.1 } else { now };
            // As if written again just now, if it turns up at all.
            *c = Cluster {
                write: (c.write.0.max(now), end),
                first_end: NEVER,
                last_begin: now,
                reads: 0,
                lost: 0,
            };
        }
        verdict
    }
    /// The same where answers were on their way of what is gone.
    pub fn lose_answered(&mut self, now: u64) -> Result<(), String> {
        let verdict = self.lose(now);
        for c in self.clusters.values_mut().filter(|c| c.write.1 == NEVER) {
            c.write.1 = UNTOLD;
        }
        verdict
    }
    /// What holds the register lost what was not acknowledged yet, though it may have been seen: such a write may come again, by its
    /// repetition, or it is still there and was made long ago. All that was acknowledged is there.
    pub fn lose_unacknowledged(&mut self, now: u64) -> Result<(), String> {
        let verdict = self.check();
        for c in self.clusters.values_mut().filter(|c| c.write.1 == NEVER) {
            *c = Cluster { lost: now, ..Cluster::of((c.write.0, NEVER)) };
        }
        verdict
    }
    /// Operations of values that overlap others: without them nothing is proven.
    pub fn contended(&self) -> usize {
        let mut spans: Vec<(u64, u64)> = self.clusters.values().map(|c| c.write).collect();
        spans.sort_unstable();
        spans.windows(2).filter(|w| w[1].0 < w[0].1).count()
    }
    /// What is wrong, if anything.
    pub fn check(&self) -> Result<(), String> {
        let mut zones: Vec<(u64, u64, bool, u64)> = Vec::new();
        for (value, c) in &self.clusters {
            if c.first_end < c.write.0 {
                return Err(format!("{value} was read before its write began: {c:?}"));
            }
            let forward = c.first_end < c.last_begin;
            let (low, high) =
                if forward { (c.first_end, c.last_begin) } else { (c.last_begin, c.first_end) };
            zones.push((low, high, forward, *value));
        }
        zones.sort_unstable();
        // The forward zone that reaches farthest of those that began.
        let mut open: Option<(u64, u64, u64)> = None;
        for (low, high, forward, value) in zones {
            if let Some((from, to, other)) = open
                && ((forward && low < to) || (!forward && low > from && high < to))
            {
                let (a, b) = (self.clusters[&other], self.clusters[&value]);
                return Err(format!(
                    "value {other} was current from {from} to {to} at least ({a:?}), and so was {value} between ({b:?})"
                ));
            }
            if forward && open.is_none_or(|(_, to, _)| high > to) {
                open = Some((low, high, value));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    struct Op {
        begin: u64,
        end: u64,
        write: bool,
        value: u64,
    }

    /// Tries every order.
    fn search(ops: &mut Vec<Op>, now: u64) -> bool {
        if ops.is_empty() {
            return true;
        }
        let first_end = ops.iter().map(|o| o.end).min().unwrap_or(0);
        (0..ops.len()).any(|i| {
            let o = ops[i];
            if o.begin > first_end || (!o.write && o.value != now) {
                return false;
            }
            ops.swap_remove(i);
            let ok = search(ops, if o.write { o.value } else { now });
            ops.push(o);
            let last = ops.len() - 1;
            ops.swap(i, last);
            ok
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_the_search_of_all_orders(
            spans in prop::collection::vec((0u64..20, 1u64..8, any::<bool>(), 0usize..4), 1..7),
        ) {
            // Distinct moments: begins are even, ends odd, spread by the index.
            let mut ops = Vec::new();
            let mut values = vec![0u64];
            for (i, (begin, len, write, _)) in spans.iter().enumerate() {
                let value = if *write { values.push(i as u64 + 1); i as u64 + 1 } else { 0 };
                let at = 1 + begin * 40 + i as u64 * 2;
                ops.push(Op { begin: at, end: at + len * 40 + 1, write: *write, value });
            }
            for (op, (.., which)) in ops.iter_mut().zip(&spans) {
                if !op.write {
                    op.value = values[which % values.len()];
                }
            }
            let mut h = History::new();
            for o in ops.iter().filter(|o| o.write) {
                h.begin_write(o.value, o.begin);
                h.end_write(o.value, o.end);
            }
            for o in ops.iter().filter(|o| !o.write) {
                h.read(o.value, o.begin, o.end).expect("written");
            }
            let want = search(&mut ops.clone(), 0);
            prop_assert_eq!(h.check().is_ok(), want, "{:?} {:?}", h.check(), ops);
        }
    }

    /// A write that was seen before it was acknowledged is undone by a loss of power, and repeated; one that was acknowledged is not undone.
    #[test]
    fn what_was_seen_unacknowledged_may_go_and_come_again() {
        let history = |acknowledged: bool| {
            let mut h = History::new();
            h.begin_write(1, 10);
            h.end_write(1, 20);
            h.begin_write(2, 30);
            h.read(2, 31, 32).expect("begun");
            if acknowledged {
                h.end_write(2, 33);
            }
            h.lose_unacknowledged(40).expect("well until now");
            h.read(2, 35, 41).expect("begun");
            h.read(1, 42, 43).expect("written");
            h.end_write(2, 50);
            h.read(2, 51, 52).expect("written");
            h.check()
        };
        history(false).expect("linearizable");
        history(true).expect_err("it was acknowledged");
    }

    /// What was not acknowledged may also be there still, with its place before what was written later.
    #[test]
    fn what_was_not_acknowledged_need_not_be_lost() {
        let mut h = History::new();
        h.begin_write(1, 10);
        h.begin_write(2, 20);
        h.end_write(2, 21);
        h.lose_unacknowledged(30).expect("well until now");
        h.end_write(1, 31);
        h.read(2, 32, 33).expect("written");
        h.check().expect("linearizable: 1 came before 2");
    }

    #[test]
    fn finds_new_then_old() {
        let mut h = History::new();
        h.begin_write(1, 10);
        h.end_write(1, 20);
        h.begin_write(2, 30);
        h.read(2, 31, 32).expect("begun");
        h.read(1, 33, 34).expect("written");
        assert!(h.check().is_err());
    }
}
