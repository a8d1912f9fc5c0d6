//! The configuration file of mgmtd.

use glowfs_kv::EngineConfig;
use glowfs_types::limits::NODE_HEARTBEAT_MS;
use glowfs_types::{ClusterId, Error, NodeId, Result, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Settings of one mgmtd instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Its node id; unlike any other node's.
    pub node_id: u64,
    /// The cluster's id: 32 hexadecimal digits.
    pub cluster_id: String,
    /// Where it listens: `tcp://HOST:PORT`, `unix:///PATH`.
    pub listen: Vec<String>,
    /// Where health and metrics are served (`HOST:PORT`); nowhere if absent.
    #[serde(default)]
    pub http: Option<String>,
    /// Where the metadata is kept.
    pub engine: EngineConfig,
    /// The file with the cluster's service token.
    pub service_token_file: PathBuf,
    /// The file with the token of the first administrator (root).
    pub root_token_file: PathBuf,
    /// Labels: rack, zone.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Transports that connections may use: `tcp`, `unix`, `shm`; empty for all.
    #[serde(default)]
    pub transports: Vec<String>,
    /// Leases and periods.
    #[serde(default)]
    pub timing: Timing,
}

/// Leases and periods, in milliseconds.
///
/// Rules (checked): a node stops serving `node_lease_ms` after it sent its last answered heartbeat and is declared dead
/// `margin_ms` after that; a primary that died is replaced before the nodes stop. Nodes send heartbeats every [`NODE_HEARTBEAT_MS`], whatever is set here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// The time between heartbeats of an mgmtd that stands by. (Those of nodes come every 300 ms.)
    pub heartbeat_ms: u64,
    /// How long a node may serve after a heartbeat.
    pub node_lease_ms: u64,
    /// How much longer mgmtd waits before it declares the node dead (clock drift, delays).
    pub margin_ms: u64,
    /// How long a primary may act after it renewed its lease.
    pub primary_lease_ms: u64,
    /// The time between renewals of the primary's lease.
    pub primary_renew_ms: u64,
    /// The time between looks at leases and chains when nothing happens.
    pub scan_ms: u64,
    /// How long a client's session lives without being extended.
    pub client_session_ms: u64,
    /// How long a target that was too slow or not reached waits before it may sync again, and how long a storage node must be well that has died or become deaf twice in a short time; doubled each time.
    pub slow_pause_ms: u64,
    /// How long a replica may be away, or wait in vain to be brought up to date, before another one is made elsewhere; 0: for ever. The cluster's configuration can change it.
    pub replace_after_ms: u64,
    /// The time between looks for replicas to make or to move.
    pub repair_ms: u64,
    /// The greatest number of chains of which a replica is being made or moved at a time.
    pub recoveries_max: u32,
    /// The longest such pause.
    pub slow_pause_max_ms: u64,
    /// How long it counts that one node says of another one that it does not answer.
    pub reach_memory_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_ms: 300,
            node_lease_ms: 1500,
            margin_ms: 200,
            primary_lease_ms: 700,
            primary_renew_ms: 200,
            scan_ms: 50,
            client_session_ms: 20_000,
            slow_pause_ms: 5_000,
            replace_after_ms: 600_000,
            repair_ms: 500,
            recoveries_max: 64,
            slow_pause_max_ms: 60_000,
            reach_memory_ms: 30_000,
        }
    }
}

impl Config {
    /// The cluster's id.
    pub fn cluster(&self) -> Result<ClusterId> {
        self.cluster_id.parse().map_err(|_| {
            Error::new(
                Status::InvalidArgument,
                format!("cluster_id «{}» is not 32 hexadecimal digits", self.cluster_id),
            )
        })
    }
    /// The node id.
    pub fn node(&self) -> NodeId {
        NodeId(self.node_id)
    }
    /// Checks every field.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
        if self.node_id == 0 {
            return bad("node_id 0 is no node; choose another number".into());
        }
        if self.cluster()? == ClusterId(0) {
            return bad("cluster_id may not be zero".into());
        }
        if self.listen.is_empty() {
            return bad("`listen` names no address".into());
        }
        if let EngineConfig::Embedded { .. } = &self.engine {
            return bad(
                "engine.kind: a metadata service hosts the embedded engine; write kind = \"remote\" and that service's addresses".into(),
            );
        }
        self.engine.validate().or_else(bad)?;
        let others = match &self.engine {
            EngineConfig::Remote { addresses } => addresses.as_slice(),
            _ => &[],
        };
        if let Err(e) = glowfs_rt::check_announced(&self.listen, others) {
            return bad(format!("`listen`: {e}"));
        }
        self.timing.validate()
    }
}

impl Timing {
    /// Checks how the times relate.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Status::InvalidArgument, format!("timing: {what}")));
        let periods = [self.heartbeat_ms, self.scan_ms, self.primary_renew_ms, self.repair_ms];
        if periods.contains(&0) {
            return bad(
                "heartbeat_ms, scan_ms, primary_renew_ms and repair_ms must be greater than 0",
            );
        }
        if self.recoveries_max == 0 {
            return bad(
                "recoveries_max: 0 would leave every lost replica lost and every drain undone; the least is 1 (not to replace what is away: replace_after_ms = 0)",
            );
        }
        let heartbeat_ms = self.heartbeat_ms.max(NODE_HEARTBEAT_MS);
        if self.node_lease_ms < heartbeat_ms.saturating_mul(2) {
            return bad(&format!(
                "node_lease_ms must be at least twice the time between heartbeats ({heartbeat_ms}: heartbeat_ms, or {NODE_HEARTBEAT_MS}, which nodes keep), or one lost heartbeat stops a node"
            ));
        }
        if self.primary_lease_ms < self.primary_renew_ms.saturating_mul(2) {
            return bad("primary_lease_ms must be at least twice primary_renew_ms");
        }
        let taken_over_ms = self.primary_lease_ms.saturating_add(self.margin_ms);
        if taken_over_ms.saturating_add(heartbeat_ms) > self.node_lease_ms {
            return bad(&format!(
                "primary_lease_ms + margin_ms + {heartbeat_ms} (the time between heartbeats: heartbeat_ms, or {NODE_HEARTBEAT_MS}, which nodes keep) must not exceed node_lease_ms, or a change of primary stops nodes"
            ));
        }
        if self.client_session_ms < self.node_lease_ms {
            return bad(
                "client_session_ms must be at least node_lease_ms, or clients that live are given up, and others get their locks",
            );
        }
        if self.margin_ms == 0 {
            return bad("margin_ms must be greater than 0: clocks drift");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes do not follow `heartbeat_ms`: each was dead between any two of its heartbeats.
    #[test]
    fn leases_outlive_a_lost_heartbeat_of_a_node_whatever_is_expected_of_them() {
        let timing = |node_lease_ms, primary_lease_ms| Timing {
            heartbeat_ms: 100,
            node_lease_ms,
            primary_lease_ms,
            primary_renew_ms: 50,
            margin_ms: 50,
            ..Timing::default()
        };
        for (node, primary) in [(250, 100), (400, 100), (600, 300)] {
            let e = timing(node, primary).validate().expect_err("too short");
            assert!(e.message.contains("300"), "{e}");
        }
        timing(600, 250).validate().expect("just long enough");
    }

    #[test]
    fn times_that_no_sum_can_hold_are_refused() {
        let huge = i64::MAX as u64;
        let timing = Timing { primary_lease_ms: huge, margin_ms: huge, ..Timing::default() };
        assert!(timing.validate().is_err());
        for (heartbeat_ms, primary_renew_ms) in [(u64::MAX, 200), (300, u64::MAX)] {
            let timing = Timing { heartbeat_ms, primary_renew_ms, ..Timing::default() };
            assert!(timing.validate().is_err());
        }
    }

    #[test]
    fn no_recovery_at_a_time_would_be_none_ever() {
        let timing = |recoveries_max| Timing { recoveries_max, ..Timing::default() };
        timing(1).validate().expect("one after the other");
        let e = timing(0).validate().expect_err("none");
        assert!(e.message.contains("recoveries_max"), "{e}");
    }

    #[test]
    fn sessions_of_clients_outlive_a_change_of_primary() {
        let timing = |client_session_ms| Timing { client_session_ms, ..Timing::default() };
        let least = Timing::default().node_lease_ms;
        timing(least).validate().expect("long enough");
        let e = timing(least - 1).validate().expect_err("too short");
        assert!(e.message.contains("client_session_ms"), "{e}");
    }
}
