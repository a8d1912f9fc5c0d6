//! What a standby does apart from waiting: it tells the primary that it is there, so that the routing info names every
//! instance, with its address, and operators see which of them would take over.

use crate::core::Inner;
use glowfs_rt::Duration;
use glowfs_types::routing::NodeStatus;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{Heartbeat, HeartbeatReply};
use glowfs_types::{NodeId, Result, RoutingVersion};
use std::rc::Rc;

impl Inner {
    /// Sends heartbeats to the primary while this instance is a standby.
    pub async fn announce(self: Rc<Self>) {
        let t = &self.config.timing;
        let (period, limit) =
            (Duration::from_millis(t.heartbeat_ms), Duration::from_millis(t.node_lease_ms));
        let mut sequence = 0;
        while !self.stopping.get() {
            if self.primary().is_err() {
                sequence += 1;
                // A failure needs no word: the election notices a primary that is away.
                let _ = self.rt.timeout(limit, self.announce_once(sequence)).await;
            }
            self.rt.sleep(period).await;
        }
    }

    async fn announce_once(&self, sequence: u64) -> Result<()> {
        let own = self.config.node();
        let primary = self
            .election
            .borrow()
            .seen()
            .filter(|r| r.holder != NodeId(0) && r.holder != own)
            .map(|r| r.addresses.clone());
        let Some(addresses) = primary else { return Ok(()) };
        let conn = self.connector.connect(&addresses).await?;
        let beat = Heartbeat {
            node: self.own_node(NodeStatus::Standby),
            incarnation: self.incarnation,
            sequence,
            targets: Vec::new(),
            // It reads the engine, not the routing info.
            routing_version: RoutingVersion(u64::MAX),
            leaving: false,
            unanswered_ms: 0,
            time_ns: Some(self.cluster_ns()),
        };
        let deadline = Duration::from_millis(self.config.timing.node_lease_ms);
        let sent = self.rt.now();
        let reply: HeartbeatReply = conn.call_msg(method::HEARTBEAT, &beat, deadline).await?;
        if reply.time_ns != 0 {
            self.time.borrow_mut().told(reply.time_ns, sent.0, self.rt.now().0);
        }
        Ok(())
    }
}
