//! Who is at the other end of a connection.

use glowfs_rt::BoxFuture;
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::{Hello, HelloReply, features};
use glowfs_types::{ClientId, ClusterId, Error, HostId, NodeId, Result, Status, UserId};

/// What a token stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// The user.
    pub user: UserId,
    /// May act as any user.
    pub root: bool,
    /// May run operator's commands.
    pub admin: bool,
    /// Is a service of the cluster.
    pub service: bool,
}

impl Identity {
    /// A service of the cluster: may do everything.
    pub const SERVICE: Self = Self { user: UserId(0), root: true, admin: true, service: true };
}

/// Decides what a hello's token stands for. Called before any other byte of the peer is looked at, and again every
/// [`crate::limits::IDENTITY_RECHECK`] while the connection lives.
pub trait Authenticator {
    /// The identity, or `BadToken` with the reason.
    fn check(&self, hello: &Hello) -> BoxFuture<Result<Identity>>;
}

/// The answer of an [`Authenticator`] to a token that stands for nobody.
pub fn unknown_token() -> Error {
    Error::new(
        Status::BadToken,
        "the token is not known to this cluster; is the token file that of this cluster (of a dev cluster: tokens/root in its directory)? Otherwise an administrator makes a new token: `glowfs admin user-change UID --new-token --yes`",
    )
}

/// Takes everybody for a service of the cluster. For tests and benchmarks only.
pub struct TrustAll;
impl Authenticator for TrustAll {
    fn check(&self, _: &Hello) -> BoxFuture<Result<Identity>> {
        Box::pin(async { Ok(Identity::SERVICE) })
    }
}

/// The other end of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// Its address, for logs.
    pub address: String,
    /// The cluster it belongs to; zero if it does not know yet.
    pub cluster: ClusterId,
    /// What it is.
    pub role: Option<Role>,
    /// Its node id, if it is a service.
    pub node: NodeId,
    /// Its client id, if it is a client.
    pub client: ClientId,
    /// Its host, if it said so.
    pub host: HostId,
    /// The features both ends use.
    pub features: u64,
    /// Its release.
    pub release: String,
    /// On the accepting side: who the peer is. On the connecting side: who we are to the peer (user and root as the
    /// service said); `service` is true, since we called an address that the cluster gave us.
    pub identity: Identity,
    /// On the connecting side: where the service says mgmtd is.
    pub mgmtd: Vec<String>,
}

impl Peer {
    /// Whether bulk travels through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.features & features::SHM != 0
    }
    pub(crate) fn of_hello(
        address: String,
        hello: &Hello,
        features: u64,
        identity: Identity,
    ) -> Self {
        Self {
            address,
            cluster: hello.cluster,
            role: hello.role,
            node: hello.node,
            client: hello.client,
            host: hello.host,
            features,
            release: hello.release.clone(),
            identity,
            mgmtd: Vec::new(),
        }
    }
    pub(crate) fn of_reply(address: String, reply: HelloReply) -> Self {
        Self {
            address,
            cluster: reply.cluster,
            role: reply.role,
            node: reply.node,
            client: ClientId::default(),
            host: HostId::default(),
            features: reply.features,
            release: reply.release,
            identity: Identity { user: reply.user, root: reply.root, admin: false, service: true },
            mgmtd: reply.mgmtd,
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.role {
            Some(role) if self.node != NodeId(0) => {
                write!(f, "{role} {} at {}", self.node, self.address)
            }
            Some(role) => write!(f, "{role} at {}", self.address),
            None => write!(f, "peer at {}", self.address),
        }
    }
}

/// The host's name, for people; "" if it cannot be read.
pub fn local_hostname() -> String {
    glowfs_rt::process::hostname()
}

/// The host this process runs on: the kernel's boot id. Zero (which equals nobody's) if it cannot be read.
pub fn local_host_id() -> HostId {
    glowfs_rt::process::boot_id()
        .and_then(|text| text.replace('-', "").parse().ok())
        .unwrap_or_default()
}
