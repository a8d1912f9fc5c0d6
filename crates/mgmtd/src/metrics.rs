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
    /// Complete, degraded, unavailable.
    pub chains: [Gauge; 3],
}

impl Metrics {
    /// Tells how many chains are in which condition.
    pub fn set_chains(&self, counts: [usize; 3]) {
        for (gauge, count) in self.chains.iter().zip(counts) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub fn new() -> Self {
        let r = Registry::global();
        let chains = |state| {
            r.gauge(
                "glowfs_mgmtd_chains",
                "Chains by `state`: complete, degraded (fewer serve than should), unavailable (nobody serves); 0 where this instance is not primary",
                &[("state", state)],
            )
        };
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
            chains: ["complete", "degraded", "unavailable"].map(chains),
        }
    }
}
