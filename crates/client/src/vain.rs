//! Attempts in vain: a peer that hangs (stopped, cut off) keeps its connections, so its answer is awaited to the end of the attempt. When
//! the routing info says meanwhile that somebody else is to be asked, the attempt ends at once.
//!
//! That is safe: the connection keeps the buffers of a call that nobody waits for, and a retry has the same identity.

use crate::core::Core;
use crate::routes::{self, Place};
use glowfs_rt::sync::{Either, select};
use glowfs_types::routing::{NodeStatus, RoutingInfo};
use glowfs_types::{Error, NodeId, Result, Status};
use std::pin::pin;

impl Core {
    /// Runs an attempt, unless `vain` becomes true of the routing info before it ends.
    pub async fn unless<T>(
        &self,
        vain: impl Fn(&RoutingInfo) -> bool,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut attempt = pin!(attempt);
        loop {
            let news = self.changed.wait();
            match select(attempt.as_mut(), news).await {
                Either::Left(result) => return result,
                Either::Right(()) if vain(&self.routing.borrow()) => {
                    return Err(Error::new(
                        Status::Disconnected,
                        "no answer yet, and another one is to be asked by now",
                    ));
                }
                Either::Right(()) => {}
            }
        }
    }
}

/// Whether somebody else is the head now. (A head that stays answers under the newer version: it sends again what is pending.)
pub fn head_moved(info: &RoutingInfo, asked: &Place) -> bool {
    routes::head(info, asked.chain).is_ok_and(|head| head.target != asked.target)
}

/// Whether the target does not serve any more, and another one does.
pub fn serves_no_more(info: &RoutingInfo, asked: &Place) -> bool {
    info.chains.get(&asked.chain).is_some_and(|c| {
        c.serving().next().is_some() && c.serving().all(|m| m.target != asked.target)
    })
}

/// Whether a service is known to have failed while another one of its role has not.
pub fn failed(info: &RoutingInfo, node: NodeId) -> bool {
    info.nodes.get(&node).is_some_and(|n| {
        n.status == NodeStatus::Failed
            && info
                .nodes
                .values()
                .any(|o| o.role == n.role && o.id != n.id && o.status == NodeStatus::Active)
    })
}
