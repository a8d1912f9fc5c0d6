//! Leases of nodes: who is alive.
//!
//! A node counts its lease from the moment it sent a heartbeat; mgmtd declares it dead only when a lease *and a margin* have
//! passed since the heartbeat arrived, so a node stops serving before its targets are given away. A new primary waits as
//! long before it declares anybody dead. Times are milliseconds of mgmtd's own clock, passed in.
//!
//! A node that is heard, but that mgmtd's answers reach too late for a lease, or never, is *deaf* ([`NodeLeases::deaf`]): it lives and cannot serve.

use glowfs_types::{Incarnation, NodeId};
use std::collections::BTreeMap;

/// A node is deaf when none of its heartbeats was answered in time for so many leases.
const DEAF_LEASES: u64 = 2;
/// Where so many hundredths of the storage nodes that live lack answers at the same time, it is not they: nobody becomes deaf.
const OWN_FAULT_PERCENT: usize = 50;
/// So many late looks give a node more time while nothing is heard of it. Who is always late hears the living all the same, between its looks.
const LATE_LOOKS_MAX: u32 = 8;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseConfig {
    /// How long a node may serve after it sent a heartbeat, in ms.
    pub lease_ms: u64,
    /// How much longer mgmtd waits, in ms.
    pub margin_ms: u64,
    /// A look at the leases that comes later than this after the one before (mgmtd itself was held up: heartbeats may lie
    /// unread) gives every node that much more time, in ms.
    pub stall_ms: u64,
    /// So many heartbeats in a row a node of the same life must send after it was declared dead before it counts again.
    pub return_beats: u32,
}

/// A heartbeat, as far as leases care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Who.
    pub node: NodeId,
    /// The life of the process.
    pub incarnation: Incarnation,
    /// Grows within a life.
    pub sequence: u64,
    /// It stops.
    pub leaving: bool,
    /// How long before this one the newest heartbeat was sent that was answered in time, in ms.
    pub unanswered_ms: u64,
    /// It is a storage node.
    pub storage: bool,
}

/// What follows from a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The node lives on. Grant a lease.
    Alive,
    /// The node is new, or back. Grant a lease once its targets' chains are settled, and say so ([`NodeLeases::settled`]): until then
    /// every heartbeat is answered like this one.
    Joined,
    /// The node leaves: it counts as dead from now on. Grant nothing.
    Left,
    /// The node was dead and must be heard again before it counts. Grant nothing.
    Probation,
    /// An old message. Grant nothing.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    incarnation: Incarnation,
    sequence: u64,
    heard_ms: u64,
    alive: bool,
    /// Its targets' chains know that it is back.
    settled: bool,
    beats: u32,
    /// Late looks since it was heard.
    late_looks: u32,
    /// Since when it was granted leases, without a gap in what is heard of it.
    granted_since_ms: Option<u64>,
    /// A storage node, and the newest of its heartbeats that was answered in time is older than a lease.
    lacks_answers: bool,
    storage: bool,
    /// Answers do not come through to it.
    deaf: bool,
}

/// The book of leases of one primary.
#[derive(Clone, Debug)]
pub struct NodeLeases {
    config: LeaseConfig,
    /// Nobody is dead before this.
    quiet_until_ms: u64,
    /// Late looks that have put that off.
    late_looks: u32,
    last_tick_ms: u64,
    nodes: BTreeMap<NodeId, Node>,
}

impl NodeLeases {
    /// A new primary's book: `known` are the nodes that were alive when it took over; each has a full lease and the margin to be
    /// heard. `extra_ms` more if the primary before may still grant leases for so long.
    pub fn new(
        config: LeaseConfig,
        known: impl IntoIterator<Item = NodeId>,
        now_ms: u64,
        extra_ms: u64,
    ) -> Self {
        let node = Node {
            incarnation: Incarnation(0),
            sequence: 0,
            heard_ms: now_ms,
            alive: true,
            settled: true,
            beats: 0,
            late_looks: 0,
            granted_since_ms: None,
            storage: false,
            lacks_answers: false,
            deaf: false,
        };
        Self {
            config,
            quiet_until_ms: now_ms + config.lease_ms + config.margin_ms + extra_ms,
            late_looks: 0,
            last_tick_ms: now_ms,
            nodes: known.into_iter().map(|id| (id, node)).collect(),
        }
    }
    /// Whether a node counts as alive.
    pub fn alive(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.alive)
    }
    /// The life in which a node was heard last; 0 if this primary has not heard it.
    pub fn life(&self, node: NodeId) -> Incarnation {
        self.nodes.get(&node).map_or(Incarnation(0), |n| n.incarnation)
    }
    /// Whether a node that lives hears too little of this primary to hold a lease, though it was granted one again and again.
    pub fn deaf(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.alive && n.deaf)
    }
    /// When what is granted until `now_ms` is over for certain, in ms.
    pub fn over_ms(&self, now_ms: u64) -> u64 {
        now_ms + self.config.lease_ms + self.config.margin_ms
    }
    /// A lease was granted to a node.
    pub fn granted(&mut self, node: NodeId, now_ms: u64) {
        if let Some(n) = self.nodes.get_mut(&node) {
            n.granted_since_ms.get_or_insert(now_ms);
        }
    }
    /// A node was granted no lease, or too late: what it lacks is no sign of the way to it.
    pub fn withheld(&mut self, node: NodeId) {
        if let Some(n) = self.nodes.get_mut(&node) {
            n.granted_since_ms = None;
        }
    }
    /// Whether so many storage nodes lack answers that this primary, or its network, must be at fault.
    fn own_fault(&self) -> bool {
        let alive = || self.nodes.values().filter(|n| n.alive && n.storage);
        let lack = alive().filter(|n| n.lacks_answers).count();
        lack > 1 && lack * 100 >= alive().count() * OWN_FAULT_PERCENT
    }
    /// The lease to grant, in ms.
    pub fn lease_ms(&self) -> u64 {
        self.config.lease_ms
    }
    /// A heartbeat arrived.
    pub fn beat(&mut self, beat: Beat, now_ms: u64) -> Verdict {
        let fresh = Node {
            incarnation: beat.incarnation,
            sequence: beat.sequence,
            heard_ms: now_ms,
            alive: !beat.leaving,
            settled: false,
            beats: 0,
            late_looks: 0,
            granted_since_ms: None,
            storage: beat.storage,
            lacks_answers: false,
            deaf: false,
        };
        let joined = if beat.leaving { Verdict::Left } else { Verdict::Joined };
        let Some(node) = self.nodes.get_mut(&beat.node) else {
            self.nodes.insert(beat.node, fresh);
            return joined;
        };
        // Whoever was silent for so long that it was declared dead is over; whatever comes now is a new life, even if its number,
        // which comes from a wall clock that may have been set back, is less.
        let over = !node.alive
            && now_ms.saturating_sub(node.heard_ms) >= self.config.lease_ms + self.config.margin_ms;
        if over && beat.incarnation < node.incarnation {
            *node = fresh;
            return joined;
        }
        if node.incarnation > beat.incarnation
            || (node.incarnation == beat.incarnation && node.sequence >= beat.sequence)
        {
            return Verdict::Stale;
        }
        if beat.incarnation > node.incarnation {
            let known = node.incarnation == Incarnation(0) && node.alive && !beat.leaving;
            *node = Node { settled: known, ..fresh };
            return if known { Verdict::Alive } else { joined };
        }
        let gap = now_ms.saturating_sub(node.heard_ms);
        node.sequence = beat.sequence;
        node.heard_ms = now_ms;
        node.late_looks = 0;
        // What it missed while it was not heard, or while nobody could answer, says nothing.
        if gap > self.config.lease_ms || !node.alive {
            node.granted_since_ms = None;
        }
        let deaf_ms = DEAF_LEASES * self.config.lease_ms;
        let answered = node.granted_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        node.storage = beat.storage;
        node.lacks_answers = beat.unanswered_ms >= self.config.lease_ms;
        if !node.lacks_answers {
            node.deaf = false;
        }
        let lacks = beat.unanswered_ms >= deaf_ms && answered >= deaf_ms && !node.deaf;
        if lacks && !self.own_fault() {
            self.nodes.entry(beat.node).and_modify(|n| n.deaf = true);
        }
        let Some(node) = self.nodes.get_mut(&beat.node) else { return joined };
        if beat.leaving {
            node.alive = false;
            return Verdict::Left;
        }
        if node.alive {
            return if node.settled { Verdict::Alive } else { Verdict::Joined };
        }
        node.beats = if gap > self.config.lease_ms { 1 } else { node.beats + 1 };
        if node.beats < self.config.return_beats {
            return Verdict::Probation;
        }
        node.alive = true;
        node.settled = false;
        node.beats = 0;
        Verdict::Joined
    }
    /// Everything that was heard is in force: nodes that are back may be granted leases from now on.
    pub fn settled(&mut self) {
        for node in self.nodes.values_mut() {
            node.settled = true;
        }
    }
    /// Looks at the leases: the nodes that died since the last look.
    pub fn tick(&mut self, now_ms: u64) -> Vec<NodeId> {
        let gap = now_ms.saturating_sub(self.last_tick_ms);
        self.last_tick_ms = now_ms;
        if gap > self.config.stall_ms {
            // We were away, not they.
            for node in self.nodes.values_mut().filter(|n| n.late_looks < LATE_LOOKS_MAX) {
                node.late_looks += 1;
                node.heard_ms = (node.heard_ms + gap).min(now_ms);
            }
            if self.late_looks < LATE_LOOKS_MAX {
                self.late_looks += 1;
                self.quiet_until_ms += gap;
            }
        }
        if now_ms < self.quiet_until_ms {
            return Vec::new();
        }
        let limit = self.config.lease_ms + self.config.margin_ms;
        let mut dead = Vec::new();
        for (id, node) in &mut self.nodes {
            if node.alive && now_ms.saturating_sub(node.heard_ms) >= limit {
                node.alive = false;
                node.deaf = false;
                node.beats = 0;
                dead.push(*id);
            }
        }
        dead
    }
    /// Forgets a node that an operator removed.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of lives come from the wall clock. One that is set back further than a restart took must not keep the node out (it
    /// did, for ever; simulator); a straggler of a life that is still there must count for nothing.
    #[test]
    fn a_life_with_a_lesser_number_counts_once_the_former_is_dead() {
        let config =
            LeaseConfig { lease_ms: 1500, margin_ms: 200, stall_ms: 10_000, return_beats: 2 };
        let beat = |life, sequence| Beat {
            node: NodeId(1),
            incarnation: Incarnation(life),
            sequence,
            leaving: false,
            unanswered_ms: 0,
            storage: true,
        };
        let mut book = NodeLeases::new(config, [], 0, 0);
        assert_eq!(book.beat(beat(9, 1), 2000), Verdict::Joined);
        assert_eq!(book.beat(beat(5, 1), 2100), Verdict::Stale);
        assert_eq!(book.tick(3800), [NodeId(1)]);
        assert_eq!(book.beat(beat(5, 1), 3900), Verdict::Joined);
        assert!(book.alive(NodeId(1)));
        book.settled();
        assert_eq!(book.beat(beat(5, 2), 4000), Verdict::Alive);
    }

    /// A primary that comes late to every look takes each silence for its own; it declared nobody dead, ever.
    #[test]
    fn a_primary_that_is_always_late_finds_the_dead_all_the_same() {
        const LATE_MS: u64 = 400;
        let config = LeaseConfig { lease_ms: 1500, margin_ms: 200, stall_ms: 200, return_beats: 2 };
        let mut book = NodeLeases::new(config, [NodeId(1), NodeId(2)], 0, 0);
        let mut died = None;
        for look in 1..100 {
            let sequence = look;
            let (node, incarnation) = (NodeId(2), Incarnation(7));
            let beat = Beat {
                node,
                incarnation,
                sequence,
                leaving: false,
                unanswered_ms: 0,
                storage: true,
            };
            book.beat(beat, look * LATE_MS - 1);
            let dead = book.tick(look * LATE_MS);
            assert!(!dead.contains(&NodeId(2)), "it is heard before every look");
            if dead.contains(&NodeId(1)) {
                died = Some(look * LATE_MS);
            }
        }
        let limit = u64::from(LATE_LOOKS_MAX + 1) * LATE_MS + config.lease_ms + config.margin_ms;
        assert!(died.is_some_and(|at| at <= limit), "{died:?}, and not within {limit} ms");
    }

    /// While the engine was away, the second heartbeat of a node that was back got the lease that the first one waited for; the next
    /// primary took the node for dead (simulator).
    #[test]
    fn who_is_back_gets_no_lease_before_that_is_settled() {
        let config =
            LeaseConfig { lease_ms: 1500, margin_ms: 200, stall_ms: 10_000, return_beats: 2 };
        let beat = |sequence| Beat {
            node: NodeId(1),
            incarnation: Incarnation(7),
            sequence,
            leaving: false,
            unanswered_ms: 0,
            storage: true,
        };
        let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
        assert_eq!(book.beat(beat(1), 100), Verdict::Alive, "known to the primary before");
        assert_eq!(book.tick(1900), [NodeId(1)]);
        assert_eq!(book.beat(beat(2), 2000), Verdict::Probation);
        assert_eq!(book.beat(beat(3), 2100), Verdict::Joined);
        assert_eq!(book.beat(beat(4), 2200), Verdict::Joined);
        book.settled();
        assert_eq!(book.beat(beat(5), 2300), Verdict::Alive);
    }

    /// A node that hears no answer stays alive for mgmtd by its heartbeats, and kept its chains for ever, without a lease.
    #[test]
    fn who_is_granted_leases_and_hears_of_none_is_deaf() {
        let config = LeaseConfig { lease_ms: 1500, margin_ms: 200, stall_ms: 200, return_beats: 2 };
        let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
        let mut sequence = 0;
        let mut say = |now_ms: u64, unanswered_ms: u64, granted: bool| {
            sequence += 1;
            let (node, incarnation, leaving) = (NodeId(1), Incarnation(7), false);
            let beat = Beat { node, incarnation, sequence, leaving, unanswered_ms, storage: true };
            assert_ne!(book.beat(beat, now_ms), Verdict::Stale);
            if granted {
                book.granted(NodeId(1), now_ms);
            }
            book.deaf(NodeId(1))
        };
        // It was not answered for long, since nobody was there who could have.
        assert!(!say(100, 60_000, true));
        assert!(!say(1000, 60_900, true));
        assert!(!say(2000, 1600, true), "late answers are no reason");
        assert!(!say(3000, 2900, true));
        assert!(say(3300, 3200, true), "it hears nothing");
        assert!(say(3600, 1501, true), "a single answer on the edge does not make it well");
        assert!(!say(3900, 300, true));
        assert!(
            !say(5500, 3100, true),
            "granted for long, and silent itself for more than a lease"
        );
        assert!(!say(6900, 4500, true), "after a gap all begins anew");
        assert!(!say(8300, 5900, true));
        assert!(say(8600, 6200, true));
    }

    /// Where the primary's own answers are late, each node that became deaf left its chains, until every chain had one replica.
    #[test]
    fn nobody_is_deaf_where_half_of_all_lack_answers() {
        let config = LeaseConfig { lease_ms: 1500, margin_ms: 200, stall_ms: 200, return_beats: 2 };
        let mut book = NodeLeases::new(config, (1..=4).map(NodeId), 0, 0);
        let mut now_ms = 0;
        let mut deaf_of = |lacking: u64| {
            let mut deaf = 0;
            for step in 1..=50 {
                now_ms += 300;
                for node in (1..=4).map(NodeId) {
                    let (incarnation, sequence) = (Incarnation(7), now_ms);
                    let unanswered_ms = if node.0 <= lacking { step * 300 } else { 0 };
                    let (leaving, storage) = (false, true);
                    let beat =
                        Beat { node, incarnation, sequence, leaving, unanswered_ms, storage };
                    assert_ne!(book.beat(beat, now_ms), Verdict::Stale);
                    book.granted(node, now_ms);
                    deaf = deaf.max((1..=4).filter(|n| book.deaf(NodeId(*n))).count());
                }
            }
            deaf
        };
        assert_eq!((deaf_of(4), deaf_of(2), deaf_of(0), deaf_of(1)), (0, 0, 0, 1));
    }

    /// A primary that answered nothing for long, for the engine was away, took who waited for deaf.
    #[test]
    fn who_was_granted_nothing_is_not_deaf() {
        let config = LeaseConfig { lease_ms: 1500, margin_ms: 200, stall_ms: 200, return_beats: 2 };
        let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
        for step in 1..40 {
            let unanswered_ms = if step > 20 { (step - 20) * 300 } else { 0 };
            let (node, incarnation, leaving) = (NodeId(1), Incarnation(7), false);
            let beat =
                Beat { node, incarnation, sequence: step, leaving, unanswered_ms, storage: true };
            book.beat(beat, step * 300);
            if step <= 20 {
                book.granted(node, step * 300)
            } else {
                book.withheld(node)
            }
            assert!(!book.deaf(node), "{step}");
        }
    }
}
