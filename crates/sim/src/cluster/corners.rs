//! Faults of several steps, aimed at one rule each. Single faults drawn by chance seldom line up like this.
//!
//! Each ends with everything it cut or slowed mended; services that it ended are started again.

use super::faults::{Breaker, End, life};
use super::harness::{DISK, Service};
use super::workload::Interruption;
use crate::world::{DiskFaults, Link};
use glowfs_rt::Duration;
use glowfs_types::routing::{ChainInfo, PublicState, RoutingInfo};

/// The greatest delay of an answer that is held up, in ns: below the node's lease, far above mgmtd's margin.
const HELD_UP_NS: u64 = 900_000_000;
/// How long what a head sends is under way, at least, in ns: until the head is out of the chain.
const LATE_FORWARD_NS: u64 = 2_000_000_000;
/// By then mgmtd has declared a silent node dead, in ms.
const DECLARED_MS: u64 = 2_000;
/// How the log of what went wrong says that every disk had a fault.
pub(super) const ALL_FLUSHES_FAILED: &str = "flushes failed everywhere";
/// The longest wait for a change of a chain, in ms.
const CHANGE_MS: u64 = 3_000;

/// A fault of several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corner {
    /// The others of a chain are cut off; the one that is left hears that it serves alone, but mgmtd does not hear that it knows,
    /// loses it too, and the others come back. Nothing may have been committed by the one.
    Squeeze,
    /// The answers of storage nodes do not reach a client: what it wrote is done, and its retries come late.
    Mute,
    /// The same, and all storage processes are killed meanwhile.
    MuteAndKill,
    /// Answers of the managers to a node come late, then the node is cut off from them.
    LateAnswers,
    /// What a head sends to the others of its chain is so long under way that it arrives when the head is out of the chain.
    LateForwards,
    /// Flushes fail on all disks, all storage processes are started again and flush, then all power is lost.
    FailedFlushes,
    /// The primary manager is cut off from the metadata engine when it has to make a change, and there is another one to make when
    /// the next manager is primary.
    CutPrimary,
}

impl Corner {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Squeeze,
        Self::Mute,
        Self::MuteAndKill,
        Self::LateAnswers,
        Self::LateForwards,
        Self::FailedFlushes,
        Self::CutPrimary,
    ];
}

impl Breaker<'_> {
    /// One of them, or the given one, if the cluster is whole.
    pub(super) fn corner(&mut self, which: Option<Corner>) {
        let Some(info) = self.may_lose_replicas() else { return };
        let all = Corner::ALL;
        let which = which.unwrap_or_else(|| all[self.below(all.len() as u64) as usize]);
        self.note(format!("corner: {which:?}"));
        match which {
            Corner::Squeeze => self.squeeze(&info),
            Corner::Mute => self.mute(&info, false),
            Corner::MuteAndKill => self.mute(&info, true),
            Corner::LateAnswers => self.late_answers(&info),
            Corner::LateForwards => self.late_forwards(&info),
            Corner::FailedFlushes => self.failed_flushes(&info),
            Corner::CutPrimary => self.cut_primary(&info),
        }
        self.cluster.world.mend_links();
    }

    /// Lets time pass; services that are due start again.
    fn pass(&mut self, ms: u64) {
        let end = self.now_ms() + ms;
        while self.now_ms() < end {
            self.cluster.run_for(Duration::from_millis(10.min(end - self.now_ms())));
            self.mend_due();
        }
    }
    fn fallen(&mut self, info: &RoutingInfo, s: &Service) {
        self.crashed.push((s.id(), life(info, s.id())));
    }
    pub(super) fn any_storage(&self) -> Service {
        self.cluster.storages[self.below(self.cluster.storages.len() as u64) as usize].clone()
    }
    /// What `from` sends to any manager is lost, and with `both` also what they send to it.
    fn unheard(&self, from: &Service, both: bool) {
        for m in &self.cluster.managers {
            self.cluster.world.cut(&from.node, &m.node);
            if both {
                self.cluster.world.cut(&m.node, &from.node);
            }
        }
    }

    fn squeeze(&mut self, info: &RoutingInfo) {
        let chains: Vec<&ChainInfo> = info.chains.values().collect();
        let chain = chains[self.below(chains.len() as u64) as usize];
        let keep = chain.members[self.below(chain.members.len() as u64) as usize];
        let member = |s: &&Service| chain.members.iter().any(|m| m.node == s.id());
        let members: Vec<Service> = self.cluster.storages.iter().filter(member).cloned().collect();
        let (one, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|s| s.id() == keep.node);
        let Some(one) = one.into_iter().next() else { return };
        for s in &others {
            self.cluster.world.isolate(&s.node);
        }
        self.note(format!("only {} of chain {} is not cut off", one.node.name(), chain.id));
        // Until the last moment mgmtd must hear the one, or it is declared dead with the others.
        let version = chain.version;
        let lead = 1_400 + self.below(300);
        self.pass(lead);
        self.unheard(&one, false);
        self.note(format!("the managers do not hear {}", one.node.name()));
        let until = self.now_ms() + CHANGE_MS;
        while self.now_ms() < until {
            self.pass(10);
            let alone = (self.newest)().is_some_and(|i| {
                i.chains.get(&chain.id).is_some_and(|c| {
                    c.version > version
                        && c.members.iter().filter(|m| m.state == PublicState::Serving).count() == 1
                })
            });
            if alone {
                self.note("a client knows that it serves alone".into());
                break;
            }
        }
        self.pass(DECLARED_MS);
        self.note("the others are back".into());
        for s in &others {
            self.cluster.world.rejoin(&s.node);
        }
        self.unheard(&one, true);
        let ms = 500 + self.below(1_500);
        self.pass(ms);
    }

    fn mute(&mut self, info: &RoutingInfo, kill: bool) {
        let clients = &self.cluster.clients;
        let client = clients[self.below(clients.len() as u64) as usize].clone();
        self.note(format!("answers of storage nodes to {} are lost", client.name()));
        for s in &self.cluster.storages {
            self.cluster.world.cut(&s.node, &client);
        }
        let ms = 50 + self.below(200);
        self.pass(ms);
        if kill {
            self.note("all storage processes are killed".into());
            for s in self.cluster.storages.clone() {
                self.fallen(info, &s);
                self.cluster.crash(&s, false);
                self.restart(&s);
            }
            self.shared.interrupted(Interruption::Killed);
        }
        // So long that others have overwritten what it wrote.
        let ms = if kill { 2_500 } else { 200 };
        let more = self.below(1_500);
        self.pass(ms + more);
        for s in &self.cluster.storages {
            self.cluster.world.drop_connections(&s.node, &client);
        }
    }

    fn late_answers(&mut self, info: &RoutingInfo) {
        let s = self.any_storage();
        self.fallen(info, &s);
        self.note(format!("the managers' answers to {} are late", s.node.name()));
        for m in &self.cluster.managers {
            let link = self.cluster.world.link(&m.node, &s.node);
            let late = Link { latency_ns_max: HELD_UP_NS, ..link };
            self.cluster.world.set_link(&m.node, &s.node, late);
        }
        let ms = 500 + self.below(2_000);
        self.pass(ms);
        self.unheard(&s, false);
        self.note(format!("the managers do not hear {}", s.node.name()));
        self.pass(DECLARED_MS + HELD_UP_NS / 1_000_000);
        // Its life goes on; nobody waits for a new one.
        self.crashed.clear();
    }

    fn late_forwards(&mut self, info: &RoutingInfo) {
        let chains: Vec<&ChainInfo> = info.chains.values().collect();
        let chain = chains[self.below(chains.len() as u64) as usize];
        let all = &self.cluster.storages;
        let head = chain.members.first().and_then(|m| all.iter().find(|s| s.id() == m.node));
        let Some(head) = head.cloned() else { return };
        self.fallen(info, &head);
        self.note(format!("what {} sends to other storage nodes is late", head.node.name()));
        for s in all.iter().filter(|s| s.id() != head.id()) {
            let link = self.cluster.world.link(&head.node, &s.node);
            let late = Link {
                latency_ns_min: LATE_FORWARD_NS,
                latency_ns_max: 2 * LATE_FORWARD_NS,
                ..link
            };
            self.cluster.world.set_link(&head.node, &s.node, late);
        }
        let ms = self.below(100);
        self.pass(ms);
        self.unheard(&head, true);
        self.note(format!("{} is cut off from the managers", head.node.name()));
        self.pass(DECLARED_MS + 2 * LATE_FORWARD_NS / 1_000_000);
        self.crashed.clear();
    }

    fn failed_flushes(&mut self, info: &RoutingInfo) {
        let faults = DiskFaults { sync_errors_per_million: 1_000_000, ..DiskFaults::default() };
        for s in &self.cluster.storages {
            s.node.disk(DISK).set_faults(faults);
        }
        let ms = 200 + self.below(300);
        self.pass(ms);
        self.note(format!("{ALL_FLUSHES_FAILED}; all storage processes start again"));
        for s in self.cluster.storages.clone() {
            s.node.disk(DISK).set_faults(DiskFaults::default());
            self.fallen(info, &s);
            self.cluster.crash(&s, false);
            self.restart(&s);
        }
        // What was not flushed may be gone with the processes: the system need not keep what it failed to write.
        self.shared.interrupted(Interruption::FailedFlushes);
        // Before a checkpoint has made what is in doubt superfluous, as often as after it.
        let most = if self.below(2) == 0 { 300 } else { 3_000 };
        let ms = self.below(most);
        self.pass(ms);
        self.end_all(info, End::Power, None);
    }

    fn cut_primary(&mut self, info: &RoutingInfo) {
        let Some(primary) = self.cluster.primary() else { return };
        let engine = self.cluster.metas[0].node.clone();
        let at = self.below(self.cluster.storages.len() as u64) as usize;
        let (s, next) = (&self.cluster.storages[at], (at + 1) % self.cluster.storages.len());
        let (s, other) = (s.clone(), self.cluster.storages[next].clone());
        self.note(format!("{} is cut off", s.node.name()));
        self.cluster.world.isolate(&s.node);
        // The change that follows comes when the engine is not reached any more, or only its answers are lost.
        let before = 1_000 + self.below(800);
        self.pass(before);
        self.note(format!("{} is cut off from the engine", primary.node.name()));
        self.cluster.world.cut(&engine, &primary.node);
        if self.below(2) == 0 {
            self.cluster.world.cut(&primary.node, &engine);
        }
        self.pass(DECLARED_MS - before);
        // The next primary has no reason for that change any more, and soon one for another.
        self.note(format!("{} is back", s.node.name()));
        self.cluster.world.rejoin(&s.node);
        let ms = 500 + self.below(500);
        self.pass(ms);
        self.fallen(info, &other);
        self.note(format!("{} is killed", other.node.name()));
        self.cluster.crash(&other, false);
        self.pass(DECLARED_MS + 500);
        self.restart(&other);
    }
}
