//! Members that live but hold their chain up: whom to blame for messages that do not arrive, and how long whoever was
//! taken out stays out.
//!
//! Must never: decide that a chain loses its last member (that is for [`crate::Chain`], which knows who is left).

use glowfs_types::{NodeId, TargetId};
use std::collections::BTreeMap;

/// Accusations remembered at most; beyond that the oldest is forgotten.
const ACCUSATIONS_MAX: usize = 4096;
/// Pauses remembered at most; beyond that the one that ended first is forgotten.
const PAUSES_MAX: usize = 65_536;

/// Who is taken out of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// The one that did not answer.
    Accused,
    /// The one that says so.
    Reporter,
}

/// Which node says of which other one that it does not answer, though both of them are heard here.
#[derive(Clone, Debug)]
pub struct Reach {
    said: BTreeMap<(NodeId, NodeId), u64>,
    memory_ms: u64,
}

impl Reach {
    /// Accusations count for `memory_ms`.
    pub fn new(memory_ms: u64) -> Self {
        Self { said: BTreeMap::new(), memory_ms }
    }

    /// Notes an accusation and says who is to blame. A link has two ends, so one accusation alone proves nothing: the accused leaves,
    /// since the reporter is known to hold what it sent. But who accuses more nodes than accuse the accused is itself
    /// what these cuts have in common.
    pub fn accuse(&mut self, reporter: NodeId, accused: NodeId, now_ms: u64) -> Blame {
        let memory = self.memory_ms;
        self.said.retain(|_, at| now_ms.saturating_sub(*at) <= memory);
        if self.said.len() >= ACCUSATIONS_MAX
            && let Some(oldest) = self.said.iter().min_by_key(|(_, at)| **at).map(|(k, _)| *k)
        {
            self.said.remove(&oldest);
        }
        self.said.insert((reporter, accused), now_ms);
        let by_reporter = self.said.keys().filter(|(r, _)| *r == reporter).count();
        let of_accused = self.said.keys().filter(|(_, a)| *a == accused).count();
        if by_reporter > of_accused { Blame::Reporter } else { Blame::Accused }
    }
}

/// Which node did not get an answer from which other one just now. A member is not let into a chain behind one that does not reach it:
/// the writes of the chain would wait for it, to no avail.
#[derive(Clone, Debug)]
pub struct BrokenLinks {
    seen: BTreeMap<(NodeId, NodeId), u64>,
    memory_ms: u64,
}

impl BrokenLinks {
    /// What is not said again for `memory_ms` does not count any more.
    pub fn new(memory_ms: u64) -> Self {
        Self { seen: BTreeMap::new(), memory_ms }
    }
    /// `to` did not answer `from`. When that ceases to count.
    pub fn note(&mut self, from: NodeId, to: NodeId, now_ms: u64) -> u64 {
        let memory = self.memory_ms;
        self.seen.retain(|_, at| now_ms.saturating_sub(*at) < memory);
        if self.seen.len() >= ACCUSATIONS_MAX
            && let Some(oldest) = self.seen.iter().min_by_key(|(_, at)| **at).map(|(k, _)| *k)
        {
            self.seen.remove(&oldest);
        }
        self.seen.insert((from, to), now_ms);
        now_ms.saturating_add(memory)
    }
    /// Whether messages from one node to the other get lost, as far as is known.
    pub fn between(&self, from: NodeId, to: NodeId, now_ms: u64) -> bool {
        let at = self.seen.get(&(from, to));
        at.is_some_and(|at| now_ms.saturating_sub(*at) < self.memory_ms)
    }
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until_ms: u64,
    length_ms: u64,
}

/// How long targets that were taken out wait before they may sync again: longer each time, so that one that is slow for good
/// does not stop its chain again and again.
#[derive(Clone, Debug)]
pub struct Pauses {
    of: BTreeMap<TargetId, Pause>,
    first_ms: u64,
    longest_ms: u64,
}

impl Pauses {
    /// Pauses of `first_ms`, doubled up to `longest_ms`.
    pub fn new(first_ms: u64, longest_ms: u64) -> Self {
        Self { of: BTreeMap::new(), first_ms, longest_ms: longest_ms.max(first_ms) }
    }
    /// Whether it may sync now.
    pub fn may_sync(&self, target: TargetId, now_ms: u64) -> bool {
        self.of.get(&target).is_none_or(|p| p.until_ms <= now_ms)
    }
    /// It was taken out: when it may sync again. A target that pauses already is left as it is; one that went well for longer
    /// than the longest pause begins anew.
    pub fn pause(&mut self, target: TargetId, now_ms: u64) -> u64 {
        let length_ms = match self.of.get(&target) {
            Some(p) if p.until_ms > now_ms => return p.until_ms,
            Some(p) if now_ms - p.until_ms <= self.longest_ms => {
                p.length_ms.saturating_mul(2).min(self.longest_ms)
            }
            _ => self.first_ms,
        };
        if self.of.len() >= PAUSES_MAX
            && let Some(old) = self.of.iter().min_by_key(|(_, p)| p.until_ms).map(|(t, _)| *t)
        {
            self.of.remove(&old);
        }
        let until_ms = now_ms.saturating_add(length_ms);
        self.of.insert(target, Pause { until_ms, length_ms });
        until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cut_takes_the_accused_out_and_many_take_the_accuser_out() {
        let n = NodeId;
        let mut r = Reach::new(1000);
        assert_eq!(r.accuse(n(1), n(2), 0), Blame::Accused);
        assert_eq!(r.accuse(n(1), n(2), 10), Blame::Accused, "said twice is still one");
        assert_eq!(r.accuse(n(1), n(3), 20), Blame::Reporter, "two do not answer node 1");
        assert_eq!(r.accuse(n(4), n(2), 30), Blame::Accused, "two say it of node 2");
        assert_eq!(r.accuse(n(1), n(2), 40), Blame::Accused, "as many say it of node 2");
        assert_eq!(r.accuse(n(1), n(3), 5000), Blame::Accused, "what is old does not count");
    }

    #[test]
    fn a_cut_counts_one_way_for_a_while_and_what_is_remembered_is_bounded() {
        let n = NodeId;
        let mut c = BrokenLinks::new(100);
        assert!(!c.between(n(1), n(2), 0));
        assert_eq!(c.note(n(1), n(2), 10), 110);
        assert!(c.between(n(1), n(2), 109) && !c.between(n(2), n(1), 20));
        assert!(!c.between(n(1), n(2), 110), "nobody has said it again");
        for i in 0..2 * ACCUSATIONS_MAX as u64 {
            c.note(n(i), n(i + 1), 200);
        }
        assert!(c.seen.len() <= ACCUSATIONS_MAX);
    }

    #[test]
    fn pauses_grow_and_begin_anew_after_a_good_time() {
        let t = TargetId(1);
        let mut p = Pauses::new(5, 20);
        assert!(p.may_sync(t, 0));
        assert_eq!(p.pause(t, 100), 105);
        assert!(!p.may_sync(t, 104) && p.may_sync(t, 105));
        assert_eq!(p.pause(t, 103), 105, "it pauses already");
        assert_eq!(p.pause(t, 110), 120);
        assert_eq!(p.pause(t, 120), 140);
        assert_eq!(p.pause(t, 145), 165, "not longer than the longest");
        assert_eq!(p.pause(t, 186), 191, "it went well since");
        assert!(p.may_sync(TargetId(2), 0));
    }
}
