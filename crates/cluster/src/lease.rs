//! Leases of nodes: who is alive.
//!
//! A node counts its lease from the moment it sent a heartbeat; mgmtd declares it dead only when a lease *and a margin* have
//! passed since the heartbeat arrived, so a node stops serving before its targets are given away. A new primary waits as
//! long before it declares anybody dead. Times are milliseconds of mgmtd's own clock, passed in.
//!
//! A node that is heard, but that mgmtd's answers reach too late for a lease, or never, is *deaf* ([`NodeLeases::deaf`]): it lives and cannot serve.
//!
//! A storage node that dies or becomes deaf again and again must be well for longer each time before it counts again, while others serve what it holds
//! ([`crate::FallPauses`]): each time costs its chains a pause.

use crate::falls::{FallPauses, Falls};
use glowfs_types::{Incarnation, NodeId};
use std::collections::BTreeMap;

/// A node is deaf when none of its heartbeats was answered in time for so many leases.
const DEAF_LEASES: u64 = 2;
/// Where so many hundredths of the storage nodes that live lack answers at the same time, it is not they: nobody becomes deaf.
const OWN_FAULT_PERCENT: usize = 50;
/// So many late looks give a node more time while nothing is heard of it. Who is always late hears the living all the same, between its looks.
const LATE_LOOKS_MAX: u32 = 8;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
    /// How long storage nodes that fall again and again are kept out.
    pub pauses: FallPauses,
}

/// For so many times what a node may be silent it counts among those that fell silent just now.
const TOGETHER_LIMITS: u64 = 4;

/// A heartbeat, as far as leases care.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
    /// There are chains that nobody else could serve: it is not kept out.
    pub needed: bool,
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
    /// The node was dead and must be heard again before it counts, for longer if it was dead several times. Grant nothing.
    Probation,
    /// An old message. Grant nothing.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
    falls: Falls,
}

/// What a heartbeat of a life that is known says of the node.
#[derive(Clone, Copy)]
struct Heard {
    /// It was silent for longer than a lease.
    after_silence: bool,
    /// It has been well for as long as it must be before it counts.
    well: bool,
    /// It was granted leases for long, and none came in time.
    in_vain: bool,
}

impl Node {
    /// As it is after the first heartbeat of a life.
    fn of(beat: &Beat, now_ms: u64) -> Self {
        Self {
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
            falls: Falls::default(),
        }
    }
    /// The next heartbeat of its life.
    fn hear(&mut self, beat: &Beat, config: &LeaseConfig, now_ms: u64) -> Heard {
        let after_silence = now_ms.saturating_sub(self.heard_ms) > config.lease_ms;
        self.sequence = beat.sequence;
        self.heard_ms = now_ms;
        self.late_looks = 0;
        // What it missed while it was not heard, or while nobody could answer, says nothing.
        if after_silence || !self.alive {
            self.granted_since_ms = None;
        }
        self.storage = beat.storage;
        self.lacks_answers = beat.unanswered_ms >= config.lease_ms;
        self.falls.heard(!after_silence, !self.lacks_answers, now_ms);
        let well = self.falls.well_for(self.falls.pause_ms(config.pauses), now_ms);
        // Who is needed and hears is not kept waiting, or it would leave its chains when the next member is back.
        if well || (beat.needed && !self.lacks_answers) {
            self.deaf = false;
        }
        let deaf_ms = DEAF_LEASES * config.lease_ms;
        let granted_ms = self.granted_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        let in_vain = beat.unanswered_ms >= deaf_ms && granted_ms >= deaf_ms && !self.deaf;
        Heard { after_silence, well, in_vain }
    }
    /// What follows from what was heard.
    fn verdict(&mut self, beat: &Beat, heard: Heard, config: &LeaseConfig, now_ms: u64) -> Verdict {
        if beat.leaving {
            self.alive = false;
            return Verdict::Left;
        }
        if self.alive {
            if !self.deaf {
                self.falls.forget_old(config.pauses, now_ms);
            }
            return if self.settled { Verdict::Alive } else { Verdict::Joined };
        }
        self.beats = if heard.after_silence { 1 } else { self.beats.saturating_add(1) };
        let kept_out = beat.storage && !beat.needed && !heard.well;
        if self.beats < config.return_beats || kept_out {
            return Verdict::Probation;
        }
        self.alive = true;
        self.settled = false;
        self.beats = 0;
        Verdict::Joined
    }
}

/// The book of leases of one primary.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
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
            falls: Falls::default(),
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
    /// How long a node that is dead or deaf must be well before it counts again, in ms, if it is not needed.
    pub fn pause_ms(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).map_or(0, |n| n.falls.pause_ms(self.config.pauses))
    }
    /// How long a node that is heard must be well before it counts, since it fell again and again, in ms; 0: it counts, is not heard, or comes back as anybody does.
    pub fn kept_out_ms(&self, node: NodeId) -> u64 {
        let out = self.is_heard(node) && (!self.alive(node) || self.deaf(node));
        if out { self.pause_ms(node) } else { 0 }
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
        let fresh = Node::of(&beat, now_ms);
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
        let heard = node.hear(&beat, &self.config, now_ms);
        let fell = heard.in_vain && !self.own_fault();
        let Some(node) = self.nodes.get_mut(&beat.node) else { return joined };
        if fell {
            node.deaf = true;
            node.falls.fell();
        }
        node.verdict(&beat, heard, &self.config, now_ms)
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
        let together = self.fall_together(limit, now_ms);
        let mut dead = Vec::new();
        for (id, node) in &mut self.nodes {
            if now_ms.saturating_sub(node.heard_ms) < limit {
                continue;
            }
            node.beats = 0;
            if node.alive {
                node.alive = false;
                node.deaf = false;
                if !together {
                    node.falls.fell();
                }
                dead.push(*id);
            }
        }
        dead
    }
    /// Whether so many storage nodes are silent, or fell silent just now, that what they have in common must be at fault: none of them is to be kept out for that.
    fn fall_together(&self, limit_ms: u64, now_ms: u64) -> bool {
        let silent_ms = |n: &&Node| now_ms.saturating_sub(n.heard_ms);
        let lately = || {
            self.nodes.values().filter(|n| n.storage && silent_ms(n) < TOGETHER_LIMITS * limit_ms)
        };
        let silent = lately().filter(|n| silent_ms(n) >= limit_ms / 2).count();
        silent > 1 && silent * 100 >= lately().count() * OWN_FAULT_PERCENT
    }
    /// Whether a node is heard: it is alive, or kept out although it lives.
    pub fn is_heard(&self, node: NodeId) -> bool {
        let kept_out = |n: &Node| n.beats >= self.config.return_beats;
        self.nodes.get(&node).is_some_and(|n| n.alive || kept_out(n))
    }
    /// For model checkers, to which two books are one if they differ only in when they are and in how heartbeats are counted: shows all moments (of mgmtd's clock,
    /// in ms) and the sequence numbers of nodes, to be put in other words. With `silence_only`, the caller promises that no beat is of a storage node, or lacks answers: then what
    /// is read only for those is forgotten.
    pub fn reword(
        &mut self,
        silence_only: bool,
        moment: &mut dyn FnMut(&mut u64),
        sequence: &mut dyn FnMut(NodeId, &mut u64),
    ) {
        moment(&mut self.quiet_until_ms);
        moment(&mut self.last_tick_ms);
        for (id, node) in &mut self.nodes {
            sequence(*id, &mut node.sequence);
            moment(&mut node.heard_ms);
            if silence_only {
                (node.granted_since_ms, node.falls) = (None, Falls::default());
            }
            node.granted_since_ms.iter_mut().for_each(&mut *moment);
            node.falls.since_ms().into_iter().for_each(&mut *moment);
        }
    }
    /// For model checkers, of books that come late to no look: what is longer ago than anything that it is compared with is put just so long ago, what the next heartbeat forgets is
    /// forgotten, and falls of a node beyond `falls` are not told apart (as beyond `FALLS_MAX`).
    pub fn forget_long_ago(&mut self, falls: u32, now_ms: u64) {
        let LeaseConfig { lease_ms, margin_ms, return_beats, pauses, .. } = self.config;
        self.quiet_until_ms = self.quiet_until_ms.max(now_ms);
        for node in self.nodes.values_mut() {
            let gap = now_ms.saturating_sub(node.heard_ms) > lease_ms;
            if gap || !node.alive {
                node.granted_since_ms = None;
            }
            let deaf_since = now_ms.saturating_sub(DEAF_LEASES * lease_ms);
            node.granted_since_ms = node.granted_since_ms.map(|since| since.max(deaf_since));
            let silent_ms = TOGETHER_LIMITS * (lease_ms + margin_ms);
            node.heard_ms = node.heard_ms.max(now_ms.saturating_sub(silent_ms));
            node.beats = node.beats.min(return_beats);
            node.lacks_answers &= node.alive;
            node.falls.forget_long_ago(gap, falls, pauses, now_ms);
        }
    }
    /// For model checkers: with other names for the nodes.
    pub fn renamed(&self, name: impl Fn(NodeId) -> NodeId) -> Self {
        let nodes = self.nodes.iter().map(|(id, node)| (name(*id), *node)).collect();
        Self { nodes, ..self.clone() }
    }
    /// Forgets a node that an operator removed.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }
}

#[cfg(test)]
mod tests;
