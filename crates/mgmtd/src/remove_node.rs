//! REMOVE_NODE: a node that is gone for good is forgotten.
//!
//! Nothing of it is needed any more: it does not live, so it holds no lease, and no chain has a member on it. It must never touch one that lives or that has
//! targets: [`Inner::move_away`] empties it first. What it leaves behind are its records; services that go by who was ever there (metadata services give
//! leases only while they are alone) hear that it is gone.

use crate::core::Inner;
use crate::edit::Edit;
use crate::repair::has_left;
use crate::state::State;
use glowfs_types::wire::operate::{RemoveNode, RemoveNodeReply};
use glowfs_types::{ChainId, Error, NodeId, Result, Status, StoreId, TargetId};

impl Inner {
    pub async fn remove_node(&self, ask: RemoveNode) -> Result<RemoveNodeReply> {
        let _held = self.lock.acquire(1).await;
        let node = ask.node;
        let Some((stores, removed)) = self.with(|s| leftovers(s, node, self.config.node()))??
        else {
            // A request that is repeated because its answer was lost finds it done.
            return Ok(RemoveNodeReply { explanation: format!("node {node} is gone already") });
        };
        let disks = stores.len();
        if !ask.dry_run {
            let forgotten = vec![(node, stores)];
            self.commit(Edit { forgotten, removed, ..Edit::default() }).await?;
            tracing::info!(%node, disks, "node removed");
        }
        let what = if ask.dry_run { "would be forgotten" } else { "is forgotten" };
        let explanation = format!(
            "node {node} {what}, with what is known of {disks} disks of it; nothing is on them that a chain has a use for"
        );
        Ok(RemoveNodeReply { explanation })
    }
}

/// The stores of a node, and its targets with the chains that they were of.
type Leftovers = (Vec<StoreId>, Vec<(TargetId, ChainId)>);

/// What is recorded for a node which may be forgotten: all its targets have left their chains. None if it is forgotten already.
fn leftovers(s: &State, node: NodeId, own: NodeId) -> Result<Option<Leftovers>> {
    let refuse = |status, why: String| Err(Error::new(status, why));
    let Some(known) = s.nodes.get(&node) else {
        if s.gone_nodes.contains_key(&node) {
            return Ok(None);
        }
        return refuse(
            Status::InvalidArgument,
            format!("there is no node {node}; see `glowfs admin list-nodes`"),
        );
    };
    // A primary sends itself no heartbeats.
    if node == own || s.leases.is_heard(node) {
        return refuse(
            Status::Busy,
            format!(
                "node {node} (a {} on {}) lives: stop it first. If it was stopped just now, try again in some seconds",
                known.value.role, known.value.hostname
            ),
        );
    }
    let here = || s.targets.values().map(|t| &t.value).filter(|t| t.node == node);
    let needed = here().filter(|t| !has_left(s, t)).count();
    if needed > 0 {
        return refuse(
            Status::Busy,
            format!(
                "{needed} targets on node {node} are members of chains: `glowfs admin drain {node} --wait` has their chains get other members first"
            ),
        );
    }
    let stores = s.stores.values().filter(|r| r.node == node).map(|r| r.offer.store).collect();
    Ok(Some((stores, here().map(|t| (t.id, t.chain)).collect())))
}
