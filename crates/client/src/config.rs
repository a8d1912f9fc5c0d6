//! What a client is told when it starts, and every bound it keeps.

use glowfs_rt::Duration;
use glowfs_types::limits::REQUEST_TRIED_MAX_MS;
use glowfs_types::routing::Role;
use glowfs_types::{ClusterId, HostId, NodeId, TenantId};

/// How to reach the cluster, and the bounds of everything the client does.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Addresses of mgmtd services; any of them names the primary.
    pub mgmtd: Vec<String>,
    /// The token that names the user.
    pub token: String,
    /// What the client is: [`Role::Mount`], [`Role::Client`], or the service that uses it.
    pub role: Role,
    /// What it is for (the mount point), for `admin list clients`.
    pub description: String,
    /// The cluster it must be; all zero: whichever answers.
    pub cluster: ClusterId,
    /// The node id, if a service uses it; 0 otherwise.
    pub node: NodeId,
    /// The host it runs on, to prefer replicas and transports of the same host; 0: unknown.
    pub host: HostId,
    /// The host's name, for people.
    pub hostname: String,
    /// The process id, for people.
    pub pid: u32,
    /// Transports to use, of `shm` and `tcp`; empty: all.
    pub transports: Vec<String>,
    /// The tenant its requests are counted under.
    pub tenant: TenantId,
    /// Whether it opens a client session with mgmtd. Services that use the client have none.
    pub session: bool,
    /// How long [`crate::Client::connect`] tries.
    pub connect_timeout: Duration,
    /// How long one attempt of a metadata call waits for its answer.
    pub meta_attempt: Duration,
    /// How long a metadata call is tried in all, also where this client begins a new life meanwhile. Longer than `REQUEST_TRIED_MAX_MS` only where the metadata services remember requests for as
    /// long (their `request_keep_ms`), or one may be done twice.
    pub meta_total: Duration,
    /// How long one attempt of a read waits.
    pub read_attempt: Duration,
    /// How long one attempt of a write or flush waits.
    pub write_attempt: Duration,
    /// How long one attempt of a read or write waits in all, where its connection carries less than is asked of it and the answer is on its way behind others.
    pub late_attempt: Duration,
    /// How long a read, write or flush is tried in all.
    pub data_total: Duration,
    /// The first pause between attempts; it doubles up to `backoff_max`, with jitter.
    pub backoff_min: Duration,
    /// The longest pause between attempts.
    pub backoff_max: Duration,
    /// Channels: the greatest number of chunk writes outstanding.
    pub channels: usize,
    /// The greatest number of bytes of reads and writes in flight.
    pub inflight_bytes: usize,
    /// Whether a slow read is asked of a second replica.
    pub hedge: bool,
    /// The shortest delay before a hedge; the delay adapts upwards from the latencies seen.
    pub hedge_min: Duration,
    /// How long routing info may be used without news from mgmtd, until mgmtd names its own bound.
    pub routing_stale: Duration,
}

impl ClientConfig {
    /// Fills in host, host name and process id of this process, so that same-host replicas and shared memory are preferred. (The
    /// simulator gives its nodes hosts of their own instead.)
    #[must_use]
    pub fn on_this_host(mut self) -> Self {
        self.host = glowfs_net::local_host_id();
        self.pid = glowfs_rt::process::pid();
        self.hostname = glowfs_rt::process::hostname();
        self
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            mgmtd: Vec::new(),
            token: String::new(),
            role: Role::Client,
            description: String::new(),
            cluster: ClusterId::default(),
            node: NodeId::default(),
            host: HostId::default(),
            hostname: String::new(),
            pid: 0,
            transports: Vec::new(),
            tenant: TenantId::default(),
            session: true,
            connect_timeout: Duration::from_secs(30),
            meta_attempt: Duration::from_secs(5),
            meta_total: Duration::from_millis(REQUEST_TRIED_MAX_MS),
            read_attempt: Duration::from_secs(3),
            write_attempt: Duration::from_secs(5),
            late_attempt: glowfs_net::limits::LATE_MAX,
            data_total: Duration::from_secs(60),
            backoff_min: Duration::from_millis(2),
            backoff_max: Duration::from_millis(500),
            channels: 256,
            inflight_bytes: 256 << 20,
            hedge: true,
            hedge_min: Duration::from_millis(20),
            routing_stale: Duration::from_secs(10),
        }
    }
}
