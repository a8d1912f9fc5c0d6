//! A target that a full disk has put offline comes back by itself when there is room again; and so does one that gave way because
//! it could not read what it had to forward, or one of whose operations failed in a way that leaves its store in service.
//!
//! It has not what its successor has taken meanwhile, so it begins like one whose service was started again: what its core had in
//! memory is forgotten, and the chain brings it up to date. Guarantees: mgmtd has heard that it was offline, and took it out of
//! the serving members, before it is anything else again; nothing that the old core had begun is under way any more.

use crate::node::Node;
use crate::target::Target;
use glowfs_rt::Duration;
use glowfs_types::routing::{LocalState, PublicState};
use std::rc::Rc;

/// The pause between two looks whether there is room.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Who holds an idle target that is to be replaced: the node and the task that does it.
const HOLDERS_IDLE: usize = 2;

impl Node {
    /// Brings the target back when that is possible; gives up when its disk fails or it is dismissed.
    pub(crate) async fn revive(self: Rc<Self>, target: Rc<Target>) {
        loop {
            self.rt.sleep(LOOK_EVERY).await;
            let ours =
                self.targets.borrow().get(&target.id).is_some_and(|t| Rc::ptr_eq(t, &target));
            if !ours || target.store.failure().is_some() || self.stopping.get() {
                return;
            }
            let idle = Rc::strong_count(&target) <= HOLDERS_IDLE;
            if !idle || !self.is_out(&target) || !self.has_room(&target.store) {
                continue;
            }
            match Target::open(&self, target.store.clone(), target.id) {
                Ok(fresh) => {
                    tracing::info!(target = %fresh.id, "the target comes back");
                    self.targets.borrow_mut().insert(fresh.id, fresh.clone());
                    self.tell_chain(&fresh, &self.routing());
                    self.report();
                }
                Err(e) => tracing::error!(target = %target.id, error = %e, "target stays offline"),
            }
            return;
        }
    }

    /// Whether mgmtd knows that it is offline and its chain goes on without it.
    fn is_out(&self, target: &Target) -> bool {
        let routing = self.routing();
        let info = routing.targets.get(&target.id).filter(|t| t.local == LocalState::Offline);
        let chain = info.and_then(|t| routing.chains.get(&t.chain));
        chain.is_some_and(|c| {
            let mut all = c.members.iter();
            // As the last one, too: its chain waits for it.
            let out = |s| matches!(s, PublicState::Offline | PublicState::LastSrv);
            all.any(|m| m.target == target.id && out(m.state))
        })
    }
}
