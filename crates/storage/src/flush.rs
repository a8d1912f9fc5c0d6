//! FLUSH: everything acknowledged so far on a chain becomes durable on every serving target.

use crate::node::Node;
use glowfs_net::Incoming;
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_rt::{BoxFuture, Duration};
use glowfs_types::routing::Role;
use glowfs_types::wire::Empty;
use glowfs_types::wire::data::Flush;
use glowfs_types::wire::method;
use glowfs_types::{Error, NodeId, Result, Status};
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
