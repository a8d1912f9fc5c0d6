//! Targets that left their chain: their data goes away.
//!
//! A target is dropped only when routing info names its chain, that chain does not list it, serves without it, and has
//! recorded its version as active: from then on the others hold every acknowledged write. Or when mgmtd says that it was removed, which
//! it does after that, also of what is on a disk that was away meanwhile. A target that routing info does not know, and of which mgmtd says
//! nothing, is kept: nothing says that its data is anywhere else.

use crate::node::Node;
use crate::target::Target;
use glowfs_rt::Duration;
use glowfs_types::TargetId;
use glowfs_types::routing::RoutingInfo;
use std::rc::Rc;

/// How long what is under way at a dropped target has to end before its chunks go.
const QUIET: Duration = Duration::from_secs(1);
/// The pause before a removal that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Whether routing info binds a target to one of our stores: its chain lists it.
pub(crate) fn bound(routing: &RoutingInfo, id: TargetId) -> bool {
    let chain = routing.targets.get(&id).and_then(|t| routing.chains.get(&t.chain));
    chain.is_some_and(|c| c.members.iter().any(|m| m.target == id))
}

/// Whether a target's data is not needed any more.
pub(crate) fn dismissed(routing: &RoutingInfo, id: TargetId) -> bool {
    let chain = routing.targets.get(&id).and_then(|t| routing.chains.get(&t.chain));
    chain.is_some_and(|c| {
        c.members.iter().all(|m| m.target != id)
            && c.activated == c.version
            && c.serving().next().is_some()
    })
}

impl Node {
    /// Drops targets of ours that mgmtd has removed.
    pub(crate) fn removed(self: &Rc<Self>, targets: &[TargetId]) {
        let routing = self.routing();
        for id in targets.iter().filter(|id| !routing.targets.contains_key(id)) {
            if let Ok(target) = self.target(*id) {
                self.dismiss(&target);
            }
        }
    }

    /// Drops a target that was dismissed.
    pub(crate) fn dismiss(self: &Rc<Self>, target: &Rc<Target>) {
        let gone = self.targets.borrow_mut().remove(&target.id).is_some();
        if !gone || target.store.failure().is_some() {
            return;
        }
        tracing::info!(target = %target.id, "target left its chain; its chunks are removed");
        let (node, target) = (self.clone(), target.clone());
        self.rt.spawn_detached(async move {
            node.rt.sleep(QUIET).await;
            while !node.stopping.get() && target.store.failure().is_none() {
                match target.store.remove_target(target.id).await {
                    Ok(()) => break,
                    Err(e) => {
                        tracing::warn!(target = %target.id, error = %e, "target could not be removed; trying on");
                        node.rt.sleep(RETRY).await;
                    }
                }
            }
            node.report();
        });
    }
}
