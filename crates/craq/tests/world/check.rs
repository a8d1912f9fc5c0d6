//! What must hold always, and what must come about when the troubles end.
//!
//! The four that 3FS states of its chains in P (`specs/DataStorage`) have their names here: WriteComplete, MonotoneIncreasingVersionNumber,
//! AllReplicasOnChainUpdated, AllReplicasInServingState.

use super::node::show;
use super::{Choice, Content, Fault, World, chunk};
use glowfs_types::routing::PublicState;

/// Steps within which everything must have come about once the troubles ended.
const SETTLE_STEPS: usize = 20_000;

impl World {
    pub fn removes(&self) -> bool {
        self.clients.iter().any(|c| !c.removals.is_empty())
    }

    pub fn chunks(&self) -> Vec<u8> {
        let mut c: Vec<u8> = self.clients.iter().map(|c| c.chunk).collect();
        c.sort_unstable();
        c.dedup();
        c
    }

    /// Every content that could be read now, be it told at once or later, extends every one that was shown before, under a version that is as much greater or the same, and holds
    /// every acknowledged write; no write is in it twice; no acknowledged write is missing on a serving replica. So reads and writes of a chunk are linearizable:
    /// a write takes effect when it is readable first, which is before it is answered, and is seen ever after.
    pub fn observe(&mut self) {
        for at in self.chunks() {
            let mut readable: Vec<(u8, Content, u64)> = Vec::new();
            for (i, n) in self.nodes.iter().enumerate() {
                if n.replica.is_none() {
                    continue;
                }
                let m = n.store.chunks.get(&chunk(at)).cloned().unwrap_or_default();
                for w in &m.content {
                    let times = m.content.iter().filter(|x| *x == w).count();
                    assert_eq!(
                        times,
                        1,
                        "node {i}: a write was applied {times} times: {}",
                        show(&m.content)
                    );
                }
                let fenced = n.fenced && self.fault != Some(Fault::LeaseUnchecked);
                if fenced || !self.can_read(i as u8, at) {
                    continue;
                }
                readable.push((i as u8, m.content, m.committed));
            }
            if self.fault == Some(Fault::NothingTransferred) {
                continue;
            }
            for (i, content, version) in &readable {
                if self.shows(*i, at) {
                    self.check_stored((*i, "serves"), at, content, *version);
                }
            }
            if self.removes() || self.gave_way {
                continue;
            }
            for (i, content, version) in readable {
                let shows = self.shows(i, at);
                let serves = if shows { "serves" } else { "lets others read" };
                let (seen, shown) = self.observed.entry(at).or_default();
                assert!(
                    content.starts_with(seen),
                    "linearizable: node {i} {serves} [{}] of chunk {at} after [{}] was served",
                    show(&content),
                    show(seen)
                );
                for (c, w) in &self.acked {
                    assert!(
                        *c != at || content.contains(w),
                        "linearizable: node {i} {serves} [{}] of chunk {at} without the acknowledged write {w:?}",
                        show(&content)
                    );
                }
                let right = match content.len() - seen.len() {
                    0 => version == *shown || content.is_empty(),
                    _ => version > *shown,
                };
                assert!(
                    right,
                    "MonotoneIncreasingVersionNumber: node {i} {serves} [{}] of chunk {at} as version {version} after [{}] as version {shown}",
                    show(&content),
                    show(seen)
                );
                if shows {
                    (*seen, *shown) = (content, version);
                }
            }
        }
    }

    /// Ends all troubles and lets everything run; then all must serve, be equal and quiet, and all writes be done.
    pub fn settle(mut self) {
        self.budget = super::Budget::default();
        self.serial_disks = true;
        self.stay_away = false;
        for step in 0..SETTLE_STEPS {
            self.budget.pauses = 1;
            self.budget.syncs = 1;
            for c in &mut self.clients {
                c.repeats = 0;
            }
            let choices = self.choices();
            // Fair, so that nothing is put off for ever.
            let mixed = (step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            let next = choices.get(mixed as usize % choices.len().max(1)).cloned();
            match next {
                Some(choice) => self.apply(&choice),
                None => match self.clients.iter().position(|c| c.number < c.writes) {
                    Some(c) => self.apply(&Choice::Repeat(c as u8)),
                    None => {
                        let lacks = self.lacks();
                        assert!(lacks.is_empty(), "{}: {self:#?}", lacks.join("; "));
                        return;
                    }
                },
            }
        }
        panic!("does not settle: {self:#?}");
    }

    /// What is not as it must be when nothing goes on any more.
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        let mut must = |holds: bool, what: String| {
            if !holds {
                lacks.push(what);
            }
        };
        for (i, c) in self.clients.iter().enumerate() {
            let done = (c.number, c.writes);
            must(done.0 == done.1, format!("WriteComplete: client {i} has done {done:?}"));
        }
        for (i, n) in self.nodes.iter().enumerate() {
            let r = n.replica.as_ref().expect("restarted");
            let state = self.chain.state(i as u8);
            must(
                state == PublicState::Serving,
                format!("AllReplicasInServingState: node {i} is {state:?}"),
            );
            let unvouched = r.unvouched(chunk(0)).next();
            must(unvouched.is_none(), format!("WriteComplete: node {i} never shows {unvouched:?}"));
            must(
                n.readings.is_empty(),
                format!("WriteComplete: node {i} never tells {:?}", n.readings),
            );
            must(r.is_quiet(), format!("WriteComplete: node {i} has something left"));
            must(n.tickets.is_empty(), format!("WriteComplete: node {i} left requests unanswered"));
            must(n.payloads.is_empty(), format!("WriteComplete: node {i} keeps payloads"));
            for at in self.chunks() {
                let of = |node: &super::Node| {
                    let m = node.store.chunks.get(&chunk(at));
                    m.map(|m| (m.content.clone(), m.committed)).unwrap_or_default()
                };
                let (mine, first) = (of(n), of(&self.nodes[0]));
                // A target that was brought up to date has no tombstones.
                let gone = mine.0.is_empty() && first.0.is_empty();
                let same = mine == first || gone || self.removes() && mine.0 == first.0;
                must(
                    same,
                    format!(
                        "AllReplicasOnChainUpdated: node {i} has {mine:?} of chunk {at}, node 0 has {first:?}"
                    ),
                );
                let pending = n.store.chunks.get(&chunk(at)).is_some_and(|m| !m.pending.is_empty());
                must(!pending, format!("AllReplicasOnChainUpdated: node {i} has pending versions"));
            }
        }
        let missing = |(at, w): &&(u8, super::Write)| {
            let m = self.nodes[0].store.chunks.get(&chunk(*at));
            !m.is_some_and(|m| m.content.contains(w))
        };
        if let Some((at, w)) = self.acked.iter().find(missing).filter(|_| !self.removes()) {
            must(false, format!("linearizable: acknowledged write {w:?} of chunk {at} is lost"));
        }
        lacks
    }
}
