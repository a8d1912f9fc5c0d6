//! Flushes: everything acknowledged so far on a chain becomes durable on every serving target. Clients ask every node once, for all
//! of its targets (FLUSH_TARGETS); those of former releases ask the head of each chain (FLUSH).

use crate::node::Node;
use glowfs_chunkstore::Store;
use glowfs_net::Incoming;
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_rt::{BoxFuture, Duration};
use glowfs_types::routing::Role;
use glowfs_types::wire::Empty;
use glowfs_types::wire::data::Flush;
use glowfs_types::wire::flush::{
    FLUSH_FILES_MAX, FLUSH_TARGETS_MAX, FlushTarget, FlushTargets, FlushTargetsReply,
};
use glowfs_types::wire::method;
use glowfs_types::{Error, NodeId, Result, Status};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

/// How long the flush of one target may take.
const FLUSH_DEADLINE: Duration = Duration::from_secs(30);

impl Node {
    /// From a client at the head: flushes all serving targets at once. From the head (a storage service): flushes the own
    /// one.
    pub(crate) async fn flush(self: &Rc<Self>, incoming: &Incoming) -> Result<Empty> {
        self.check_lease()?;
        let flush: Flush = incoming.msg()?;
        let peer = incoming.conn().peer();
        let from_head = peer.identity.service && peer.role == Some(Role::Storage);
        let (target, view) = self.member(flush.chain, flush.chain_version, "its head", |v| {
            v.serving() && v.head != from_head
        })?;
        let others: Vec<NodeId> = if from_head {
            Vec::new()
        } else {
            let routing = self.routing();
            let chain = routing
                .chains
                .get(&flush.chain)
                .filter(|c| c.version == view.version)
                .ok_or_else(|| target.refusal(Status::WrongChainVersion))?;
            chain.serving().filter(|m| m.target != target.id).map(|m| m.node).collect()
        };
        self.metrics.flushes.inc();
        let mut work: Vec<BoxFuture<Result<()>>> = Vec::new();
        let own = target.clone();
        work.push(Box::pin(async move { own.store.flush(own.id).await }));
        for to in others {
            let (node, flush, asker) = (self.clone(), flush.clone(), target.clone());
            work.push(Box::pin(async move {
                let call = async {
                    let conn = node.connect(to).await?;
                    conn.call_msg::<_, Empty>(method::FLUSH, &flush, FLUSH_DEADLINE).await
                };
                let late = |_| {
                    Error::new(Status::TimedOut, format!("storage node {to} did not flush in time"))
                };
                let call = node.rt.timeout(FLUSH_DEADLINE, call);
                // One that hangs is out of the chain soon; the flush is asked for again then.
                match select(pin!(call), pin!(asker.left(flush.chain_version))).await {
                    Either::Left(answer) => answer.map_err(late)?.map(|_| ()),
                    Either::Right(()) => Err(asker.refusal(Status::WrongChainVersion)),
                }
            }));
        }
        for result in join_all(work).await {
            result.map_err(|e| e.context(format_args!("flush of chain {}", flush.chain)))?;
        }
        self.check_answer()?;
        // A member that joined meanwhile was not asked.
        if target.view().is_none_or(|v| v.version != view.version) {
            return Err(target.refusal(Status::WrongChainVersion));
        }
        Ok(Empty {})
    }
}

fn check_bounds(asked: &FlushTargets) -> Result<()> {
    let (targets, files) = (asked.targets.len(), asked.files.as_ref().map_or(0, Vec::len));
    if targets <= FLUSH_TARGETS_MAX && files <= FLUSH_FILES_MAX {
        return Ok(());
    }
    let e = format!(
        "flush of {files} files on {targets} targets; at most {FLUSH_FILES_MAX} and {FLUSH_TARGETS_MAX}"
    );
    Err(Error::new(Status::BadMessage, e))
}

impl Node {
    /// FLUSH_TARGETS: one flush a disk for all the targets on it, if it has anything of the files that is not durable. The sender asks every serving target of its chains itself; what makes
    /// that as good as asking the head is the check before and after: a chain whose members all say that they still serve under a
    /// version had no later one in which somebody could have acknowledged a write without them.
    pub(crate) async fn flush_targets(
        self: &Rc<Self>,
        incoming: &Incoming,
    ) -> Result<FlushTargetsReply> {
        self.check_lease()?;
        let asked: FlushTargets = incoming.msg()?;
        check_bounds(&asked)?;
        let mut outcomes: Vec<Status> = asked.targets.iter().map(|t| self.serves(t)).collect();
        let mut disks = BTreeMap::new();
        for (t, outcome) in asked.targets.iter().zip(&outcomes) {
            if *outcome == Status::Ok
                && let Ok(target) = self.target(t.target)
            {
                self.metrics.flushes.inc();
                disks.entry(target.store.id()).or_insert((target.store.clone(), t.target));
            }
        }
        let files = asked.files.as_deref();
        let flush = async |store: &Store, any| match files {
            Some(files) => store.flush_of(any, files).await,
            None => store.flush(any).await,
        };
        let flushed = join_all(disks.values().map(|(store, any)| flush(store, *any))).await;
        self.check_answer()?;
        for (t, outcome) in asked.targets.iter().zip(&mut outcomes) {
            if *outcome == Status::Ok {
                *outcome = self.serves(t);
            }
        }
        for ((store, _), result) in disks.values().zip(flushed) {
            let Err(error) = result else { continue };
            tracing::warn!(%error, "flush failed");
            for (t, outcome) in asked.targets.iter().zip(&mut outcomes) {
                if self.target(t.target).is_ok_and(|t| t.store.id() == store.id()) {
                    *outcome = error.status;
                }
            }
        }
        Ok(FlushTargetsReply { statuses: outcomes.into_iter().map(Status::code).collect() })
    }

    /// Whether a target is a serving member of its chain under that very version.
    fn serves(&self, asked: &FlushTarget) -> Status {
        let Ok(target) = self.target(asked.target) else { return Status::NoTarget };
        let Some(view) = target.view().filter(|v| v.chain == asked.chain) else {
            return Status::NoTarget;
        };
        // A newer version that is being adopted ends the old one.
        if view.version != asked.chain_version || target.replica.borrow().adopting().is_some() {
            if asked.chain_version > view.version {
                self.refresh();
            }
            return Status::WrongChainVersion;
        }
        if !target.can_go_on(view.version) || !view.serving() {
            return Status::NotServing;
        }
        Status::Ok
    }
}
