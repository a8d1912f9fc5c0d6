//! The first message on every connection, and what every service can say of itself.

use crate::routing::Role;
use crate::{ClientId, ClusterId, HostId, NodeId, UserId};
use minicbor::{Decode, Encode};

/// Feature bits negotiated per connection: both ends use the bits that both named.
pub mod features {
    /// Bulk through shared memory regions (Unix sockets only).
    pub const SHM: u64 = 1;
}

/// Sent by the end that connects.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Hello {
    /// The cluster it belongs to; all zero if it does not know yet.
    #[n(0)]
    pub cluster: ClusterId,
    /// The token that names its user. Services of the cluster use the cluster's service token.
    #[n(1)]
    pub token: String,
    /// What it is.
    #[n(2)]
    pub role: Option<Role>,
    /// Its node id, if it is a service.
    #[n(3)]
    pub node: NodeId,
    /// Its client id, if it is a client.
    #[n(4)]
    pub client: ClientId,
    /// Its host.
    #[n(5)]
    pub host: HostId,
    /// What it can do: see [`features`].
    #[n(6)]
    pub features: u64,
    /// Its release, for people.
    #[n(7)]
    pub release: String,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct HelloReply {
    /// The cluster.
    #[n(0)]
    pub cluster: ClusterId,
    /// What the service is.
    #[n(1)]
    pub role: Option<Role>,
    /// Its node id.
    #[n(2)]
    pub node: NodeId,
    /// The features both ends use.
    #[n(3)]
    pub features: u64,
    /// Its release.
    #[n(4)]
    pub release: String,
    /// The user the token belongs to.
    #[n(5)]
    pub user: UserId,
    /// Whether that user may act as any user (root).
    #[n(6)]
    pub root: bool,
    /// Where mgmtd is, so that admin works against any service's address.
    #[n(7)]
    pub mgmtd: Vec<String>,
}

/// Body of REGISTER_REGION, a one-way message of a connection with [`features::SHM`]. The region's memfd is passed (SCM_RIGHTS)
/// with the first byte of this frame. A key is registered once, before the first frame that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct RegisterRegion {
    /// The key, as in `region_key` of later frames of this sender; not 0.
    #[n(0)]
    pub key: u32,
    /// Length of the region in bytes; the memfd is at least so long and cannot shrink.
    #[n(1)]
    pub len: u64,
}

/// Body of UNREGISTER_REGION: the sender will not name this key again, and no call that names it is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UnregisterRegion {
    /// The key.
    #[n(0)]
    pub key: u32,
}

/// Health of one process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ServiceStatus {
    /// What it is.
    #[n(0)]
    pub role: Option<Role>,
    /// Its node id.
    #[n(1)]
    pub node: NodeId,
    /// Its process id.
    #[n(2)]
    pub pid: u32,
    /// Its release.
    #[n(3)]
    pub release: String,
    /// Whether it serves.
    #[n(4)]
    pub healthy: bool,
    /// Why not, or what it is doing.
    #[n(5)]
    pub detail: String,
    /// Nanoseconds since it started.
    #[n(6)]
    pub uptime_ns: u64,
}
