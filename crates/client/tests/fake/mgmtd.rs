//! A node as a manager: who is primary, routing info, sessions.

use super::node::Node;
use glowfs_net::{Incoming, Reply};
use glowfs_rt::Duration;
use glowfs_types::routing::*;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;

impl Node {
    pub(super) async fn mgmtd(&self, incoming: &Incoming) -> Result<Reply> {
        if incoming.method() == method::GET_PRIMARY {
            let info = self.state.routing.borrow();
            let standby = self.state.standby.borrow();
            let primary =
                info.nodes.values().find(|n| n.role == Role::Mgmtd && !standby.contains(&n.id));
            return Ok(Reply::msg(&PrimaryInfo {
                cluster: ClusterId(0),
                node: primary.map(|n| n.id),
                addresses: primary.map(|n| n.addresses.clone()).unwrap_or_default(),
                silent_ms: 0,
            }));
        }
        if self.state.standby.borrow().contains(&self.id) {
            return Err(Error::new(Status::NotPrimary, "standby"));
        }
        match incoming.method() {
            method::GET_ROUTING => {
                let q: GetRouting = incoming.msg()?;
                if self.state.routing.borrow().version <= q.have {
                    let news = self.state.changed.wait();
                    let _ = self.rt.timeout(Duration::from_millis(q.wait_ms), news).await;
                }
                Ok(Reply::msg(&*self.state.routing.borrow()))
            }
            method::CLIENT_SESSION => {
                let q: ClientSession = incoming.msg()?;
                self.state.sessions.borrow_mut().insert(q.client);
                Ok(Reply::msg(&ClientSessionReply { session_ms: 3000, routing_stale_ms: 3000 }))
            }
            method::CLIENT_GOODBYE => {
                let q: ClientGoodbye = incoming.msg()?;
                self.state.sessions.borrow_mut().remove(&q.client);
                Ok(Reply::msg(&Empty {}))
            }
            m => Err(Error::new(Status::UnknownMethod, format!("{m}"))),
        }
    }
}
