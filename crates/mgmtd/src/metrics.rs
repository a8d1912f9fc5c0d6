//! What mgmtd counts.

use glowfs_telemetry::{Counter, Gauge, Registry};

/// Its counters and gauges.
pub struct Metrics {
    pub primary: Gauge,
    pub version: Gauge,
    pub clients: Gauge,
    pub heartbeats: Counter,
    pub deaths: Counter,
    pub transitions: Counter,
    pub moves: Counter,
}

impl Metrics {
    pub fn new() -> Self {
        let r = Registry::global();
        Self {
            primary: r.gauge("glowfs_mgmtd_primary", "1 if this instance is primary", &[]),
            version: r.gauge("glowfs_mgmtd_routing_version", "The routing version", &[]),
            clients: r.gauge("glowfs_mgmtd_clients", "Live client sessions", &[]),
            heartbeats: r.counter("glowfs_mgmtd_heartbeats_total", "Heartbeats taken", &[]),
            deaths: r.counter("glowfs_mgmtd_node_deaths_total", "Nodes declared dead", &[]),
            transitions: r.counter(
                "glowfs_mgmtd_member_changes_total",
                "State changes of chain members",
                &[],
            ),
            moves: r.counter(
                "glowfs_mgmtd_moves_total",
                "Members that joined, were retired or dismissed",
                &[],
            ),
        }
    }
}
