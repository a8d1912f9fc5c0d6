//! Nodes that live and hear nothing of this primary, so that they cannot serve; and when what leaves a chain alive has left it for certain.
//!
//! A deaf node's targets leave their chains where another member serves, like one that is not reached ([`glowfs_cluster::Chain`]); the last one
//! stays, for it may have a lease now and then. Every lease is granted with the chain versions that are in force, so whoever has not heard of one
//! may answer under the one before only as long as a lease that was granted before it.

use crate::state::State;
use glowfs_types::routing::PublicState;
use glowfs_types::{ChainId, NodeId};
use std::collections::BTreeMap;

/// When leases from before chains' versions are over.
pub struct Fences {
    /// Of every chain whose version is of before this primary, in ms of its clock; none: over.
    all: Option<u64>,
    of: BTreeMap<ChainId, u64>,
}

impl Fences {
    /// What was granted before this primary is over at `over_ms`.
    pub fn new(over_ms: u64) -> Self {
        Self { all: Some(over_ms), of: BTreeMap::new() }
    }
    /// A new version of a chain is in force; what was granted before is over at `over_ms`.
    pub fn changed(&mut self, chain: ChainId, over_ms: u64) {
        self.of.insert(chain, over_ms);
    }
    /// Whether every lease from before a chain's version is over.
    pub fn over(&self, chain: ChainId, now_ms: u64) -> bool {
        let over = |at: &u64| *at <= now_ms;
        self.all.as_ref().is_none_or(over) && self.of.get(&chain).is_none_or(over)
    }
}

impl State {
    /// Has chains looked at whose former members have no lease from before any more.
    pub fn look_at_fences(&mut self, now_ms: u64) {
        let over = |at: &u64| *at <= now_ms;
        let dirty = &mut self.dirty_chains;
        dirty.extend(self.fences.of.iter().filter(|(_, at)| over(at)).map(|(chain, _)| *chain));
        self.fences.of.retain(|_, at| !over(at));
        if self.fences.all.take_if(|at| over(at)).is_some() {
            let all = self.chains.values().map(|c| &c.value.info);
            dirty.extend(all.filter(|c| c.activated != c.version).map(|c| c.id));
        }
    }
    /// A node has become deaf: its targets leave their chains, and wait before they come back. Until when, in ms.
    pub fn deafen(&mut self, node: NodeId, now_ms: u64) -> u64 {
        let mine = self.targets.values().filter(|t| t.value.node == node);
        let writes = |chain: ChainId, target| {
            self.chains.get(&chain).is_some_and(|c| {
                let member = c.value.info.members.iter().find(|m| m.target == target);
                member
                    .is_some_and(|m| matches!(m.state, PublicState::Serving | PublicState::Syncing))
            })
        };
        let out: Vec<_> =
            mine.filter(|t| writes(t.value.chain, t.value.id)).map(|t| t.value.id).collect();
        let until = out.into_iter().map(|t| self.pauses.pause(t, now_ms)).max();
        self.touch_node(node);
        until.unwrap_or(now_ms)
    }
}
