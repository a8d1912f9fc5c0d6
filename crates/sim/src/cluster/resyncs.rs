//! A second failure while a target is being brought up to date: of that target, of its source, or of another node.
//!
//! The second one only ends the process, for what it acknowledged stays in its files then, whoever else is not whole yet.

use super::faults::{Breaker, End, life};
use super::harness::Service;
use glowfs_rt::Duration;
use glowfs_types::NodeId;
use glowfs_types::routing::{ChainMember, PublicState};

/// The longest wait for a resync to begin, in ms: a node that died is noticed and is back by then.
const BEGINS_MS: u64 = 6_000;
/// How far into a resync the second failure comes, at most, in ms.
const INTO_MS: u64 = 30;
/// How long the first one is away, at most, in ms.
const AWAY_MS: u64 = 300;

impl Breaker<'_> {
    /// The members of a chain of which one is being brought up to date.
    fn resync(&self) -> Option<Vec<ChainMember>> {
        let info = (self.newest)()?;
        let resyncs: Vec<_> = info
            .chains
            .values()
            .filter(|c| c.members.iter().any(|m| m.state == PublicState::Syncing))
            .collect();
        let at = self.below(resyncs.len() as u64) as usize;
        resyncs.get(at).map(|c| c.members.clone())
    }
    /// See the module.
    pub(super) fn fail_resync(&mut self) {
        if !self.bad_disks.is_empty() {
            return;
        }
        if self.resync().is_none() {
            let Some(info) = self.may_lose_replicas() else { return };
            let all = &self.cluster.storages;
            let s = all[self.below(all.len() as u64) as usize].clone();
            self.crashed.push((s.id(), life(&info, s.id())));
            let end = self.end();
            self.take_down(s, AWAY_MS, end);
        }
        let until = self.now_ms() + BEGINS_MS;
        while self.resync().is_none() {
            if self.now_ms() >= until {
                return;
            }
            self.cluster.run_for(Duration::from_millis(1));
            self.mend_due();
        }
        self.cluster.run_for(Duration::from_millis(self.below(INTO_MS)));
        let Some(members) = self.resync() else { return };
        let syncing = members.iter().find(|m| m.state == PublicState::Syncing);
        let source = members.iter().rfind(|m| m.state == PublicState::Serving);
        let (what, victim) = match self.below(3) {
            0 => ("the one that is brought up to date", syncing),
            1 => ("the source of a resync", source),
            _ => {
                ("a member beside a resync", members.get(self.below(members.len() as u64) as usize))
            }
        };
        let Some(s) = victim.and_then(|m| self.storage(m.node)).filter(|s| s.node.is_up()) else {
            return;
        };
        self.note(format!("second failure: {what}"));
        if let Some(info) = (self.newest)() {
            self.crashed.push((s.id(), life(&info, s.id())));
        }
        self.take_down(s, 3000, End::Kill);
    }
    fn storage(&self, id: NodeId) -> Option<Service> {
        self.cluster.storages.iter().find(|s| s.id() == id).cloned()
    }
}
