//! HEARTBEAT.
//!
//! The lease in the answer is safe because everything that could take the node's targets out of service is in force, and in the
//! answer's routing info, before the answer is made: a node that comes back from the dead, or with a new life of a store, is
//! answered only when its chains have settled; so are the heartbeats that it sends meanwhile.

use crate::core::Inner;
use crate::repair::removed;
use crate::second::refuse_heartbeat;
use crate::skipped::HELD_MAX;
use crate::state::{Heard, State};
use glowfs_cluster::{Beat, Verdict};
use glowfs_types::routing::{NodeStatus, Role};
use glowfs_types::wire::mgmtd::{Heartbeat, HeartbeatReply, TargetReport};
use glowfs_types::{Error, NodeId, Result, RoutingVersion, Status};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The greatest number of targets of a node.
const TARGETS_MAX: usize = 65_536;

impl Inner {
    pub async fn heartbeat(self: &Rc<Self>, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        if heartbeat.targets.len() > TARGETS_MAX || heartbeat.node.id == NodeId(0) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("a node has an id and at most {TARGETS_MAX} targets"),
            ));
        }
        self.metrics.heartbeats.inc();
        // Only a primary takes it, and nothing of itself.
        self.primary()?;
        self.with(|s| refuse_heartbeat(s, self.config.node(), &heartbeat))??;
        self.heard_time(heartbeat.node.role, heartbeat.time_ns);
        let (now_ms, now_ns) = (self.now_ms(), self.rt.unix_ns());
        let node = heartbeat.node.id;
        let (verdict, wait) = self.with(|s| {
            let before = s.leases.deaf(node);
            let taken = take(s, &heartbeat, now_ms, now_ns);
            self.note_deaf(s, &heartbeat, before, now_ms);
            taken
        })?;
        if verdict == Verdict::Stale {
            return Err(Error::new(
                Status::OldSequence,
                format!("an old heartbeat of node {node}, or a second process with this node id"),
            ));
        }
        if wait || matches!(verdict, Verdict::Joined | Verdict::Left) {
            if verdict != Verdict::Alive {
                tracing::info!(%node, role = %heartbeat.node.role, ?verdict, "node");
            }
            let settled = self.settle().await;
            self.with(|s| {
                let late = self.now_ms().saturating_sub(now_ms) > s.leases.lease_ms() / 2;
                if settled.is_err() || late {
                    s.leases.withheld(node);
                }
            })?;
            // It may be sent again, whatever has become of the change, and to another instance at once.
            settled.map_err(|e| match e.status {
                Status::CommitUnknown => Error::new(Status::NotPrimary, e.message),
                _ => e,
            })?;
        } else {
            self.work.notify_all();
        }
        // Still primary, after all that: only then a lease may be granted.
        self.with(|s| {
            let granted =
                matches!(verdict, Verdict::Alive | Verdict::Joined) && s.leases.alive(node);
            if granted {
                s.leases.granted(node, self.now_ms());
            }
            let newer = s.version > heartbeat.routing_version;
            let config = s.config_for(node, heartbeat.node.role, heartbeat.node.config_version);
            HeartbeatReply {
                time_ns: self.cluster_ns(),
                wall_ns: self.rt.unix_ns(),
                lease_ms: if granted { s.leases.lease_ms() } else { 0 },
                routing: newer.then(|| s.delta(heartbeat.routing_version)),
                config,
                capability_keys: s.cluster.capability_keys.clone(),
                removed: removed(s, &heartbeat.targets),
            }
        })
    }

    /// What follows if a node has become deaf, or is so no more.
    fn note_deaf(self: &Rc<Self>, s: &mut State, heartbeat: &Heartbeat, before: bool, now_ms: u64) {
        let node = heartbeat.node.id;
        match (before, s.leases.deaf(node)) {
            (false, true) => {
                let until_ms = s.deafen(node, now_ms);
                tracing::warn!(
                    %node, unanswered_ms = heartbeat.unanswered_ms, well_for_ms = s.leases.pause_ms(node),
                    "node is heard, and no answer reaches it in time: its targets leave their chains where others serve"
                );
                let after = (s.epoch, until_ms.saturating_sub(now_ms));
                self.look_again(after, move |s| s.touch_node(node));
            }
            (true, false) => {
                tracing::info!(%node, "answers reach the node again");
                s.touch_node(node);
            }
            _ => {}
        }
    }
}

/// Notes a heartbeat. True if the answer must wait until chains have settled.
fn take(s: &mut State, heartbeat: &Heartbeat, now_ms: u64, now_ns: u64) -> (Verdict, bool) {
    let node = heartbeat.node.id;
    let storage = heartbeat.node.role == Role::Storage;
    let beat = Beat {
        node,
        incarnation: heartbeat.incarnation,
        sequence: heartbeat.sequence,
        leaving: heartbeat.leaving,
        unanswered_ms: heartbeat.unanswered_ms,
        storage,
        // Asked only where it matters: it looks at every chain of the node.
        needed: storage && (!s.leases.alive(node) || s.leases.deaf(node)) && s.is_needed(node),
    };
    let verdict = s.leases.beat(beat, now_ms);
    if verdict == Verdict::Stale {
        return (verdict, false);
    }
    let mut said = heartbeat.node.clone();
    said.last_heartbeat_ns = now_ns;
    // Whoever is primary answers this; another mgmtd that sends it stands by.
    let standby = said.role == Role::Mgmtd;
    said.status = if standby { NodeStatus::Standby } else { NodeStatus::Active };
    let first = s.said.insert(node, said).is_none();
    let wanted = s.wanted_node(node);
    if s.nodes.get(&node).map(|i| &i.value) != wanted.as_ref() {
        s.dirty_nodes.insert(node);
    }
    if first || matches!(verdict, Verdict::Joined | Verdict::Left) {
        s.touch_node(node);
    }
    let greatest = heartbeat.targets.iter().map(|r| r.target).filter(|t| *t <= HELD_MAX).max();
    if let Some(target) = greatest.filter(|_| storage) {
        s.hold(node, target);
    }
    let mut wait = false;
    let mut named = BTreeSet::new();
    for report in &heartbeat.targets {
        named.insert(report.target);
        wait |= take_report(s, node, report, heartbeat.routing_version);
    }
    let gone: Vec<_> = s
        .targets
        .values()
        .filter(|t| t.value.node == node && !named.contains(&t.value.id))
        .map(|t| (t.value.id, t.value.chain))
        .collect();
    for (target, chain) in gone {
        if s.heard.remove(&target).is_some() {
            s.dirty_chains.insert(chain);
        }
    }
    (verdict, wait)
}

/// Notes the report of one target, by a node that has this routing info. True if it is of a life that was not accounted for yet.
fn take_report(
    s: &mut State,
    node: NodeId,
    report: &TargetReport,
    routing: RoutingVersion,
) -> bool {
    let Some(item) = s.targets.get(&report.target) else { return false };
    let info = &item.value;
    // A report of somebody else's target, or of another disk in its place, says nothing.
    if info.node != node || info.store != report.store {
        return false;
    }
    let (chain, informed) = (info.chain, routing >= item.changed);
    let record = s.chains.get(&chain).and_then(|c| c.value.records.get(&report.target));
    let accounted = record.copied().unwrap_or_default();
    let old = s.heard.get(&report.target);
    if report.incarnation < accounted.incarnation && !informed {
        // A late message of a former life; or its store was put back as it was before: that is known when the node has heard which life is accounted
        // for. Its process is not the one that was heard before, at any rate.
        if old.is_some_and(|h| h.report.incarnation > report.incarnation) {
            s.heard.remove(&report.target);
            s.dirty_chains.insert(chain);
        }
        return false;
    }
    let same = old.is_some_and(|h| {
        let o = &h.report;
        o.local == report.local
            && o.incarnation == report.incarnation
            && (o.nonce, o.former) == (report.nonce, report.former)
            && o.clean == report.clean
            && o.adopted == report.adopted
            && o.known == report.known
            && (o.used_bytes == 0) == (report.used_bytes == 0)
    });
    s.heard.insert(report.target, Heard { report: report.clone(), informed });
    if !same {
        s.dirty_chains.insert(chain);
    }
    // Nothing hangs on one that left its chain and is still there.
    let member = s.chains.get(&chain).is_some_and(|c| c.value.records.contains_key(&report.target));
    member && !accounted.accounts_for(report.incarnation, report.nonce)
}
