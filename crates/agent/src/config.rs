//! What an agent is told at its start.

use glowfs_net::ConnectorOptions;
use glowfs_rt::Duration;
use glowfs_types::limits::NODE_HEARTBEAT_MS;
use glowfs_types::routing::Role;
use glowfs_types::{ClusterId, Error, HostId, NodeId, Result, Status};
use std::collections::BTreeMap;

/// Settings of an [`crate::Agent`].
#[derive(Clone)]
pub struct AgentConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// What this process is.
    pub role: Role,
    /// Its node id.
    pub node: NodeId,
    /// Addresses of mgmtd instances, each its own instance; the primary is found from any of them.
    pub mgmtd: Vec<String>,
    /// The cluster's service token.
    pub service_token: String,
    /// Where this process listens. If empty, heartbeats begin with [`crate::Agent::announce`].
    pub addresses: Vec<String>,
    /// Its host; see [`glowfs_net::local_host_id`].
    pub host: HostId,
    /// The host's name, for people.
    pub hostname: String,
    /// The process id, for people.
    pub pid: u32,
    /// Labels: rack, zone.
    pub tags: BTreeMap<String, String>,
    /// Where health and metrics are served.
    pub http: Option<String>,
    /// The release, for people.
    pub release: String,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// How long mgmtd's primary may be mute before another instance is tried. What was sent to it is waited for on.
    pub heartbeat_deadline: Duration,
    /// How long a routing request waits at mgmtd for news.
    pub routing_wait: Duration,
    /// How long the answer on a token is believed.
    pub token_ttl: Duration,
    /// How connections are made.
    pub connector: ConnectorOptions,
}

impl AgentConfig {
    /// Settings with defaults for everything but the identity of the process.
    pub fn new(
        cluster: ClusterId,
        role: Role,
        node: NodeId,
        mgmtd: Vec<String>,
        service_token: String,
    ) -> Self {
        Self {
            cluster,
            role,
            node,
            mgmtd,
            service_token,
            addresses: Vec::new(),
            host: glowfs_net::local_host_id(),
            hostname: glowfs_net::local_hostname(),
            pid: glowfs_rt::process::pid(),
            tags: BTreeMap::new(),
            http: None,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_interval: Duration::from_millis(NODE_HEARTBEAT_MS),
            heartbeat_deadline: Duration::from_millis(600),
            routing_wait: Duration::from_secs(5),
            token_ttl: Duration::from_secs(5),
            connector: ConnectorOptions::default(),
        }
    }
    /// Checks what must hold.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Status::InvalidArgument, what));
        if self.mgmtd.is_empty() {
            return bad("no address of mgmtd is given; set `mgmtd` in the configuration file");
        }
        if self.node == NodeId(0) {
            return bad("node id 0 is no node; set `node_id` in the configuration file");
        }
        if self.service_token.is_empty() {
            return bad(
                "the service token is empty; set `service_token_file` in the configuration file",
            );
        }
        if self.heartbeat_interval.is_zero() {
            return bad("a heartbeat interval of 0 is not possible");
        }
        Ok(())
    }
}
