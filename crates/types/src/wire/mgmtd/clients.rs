//! Sessions of clients: how long one lives, and who is alive.
//!
//! Guarantees and must never: as [`super`]. A session is also what mgmtd stores of a client.

use crate::routing::Role;
use crate::wire::meta::is_false;
use crate::{ClientId, Error, HostId, Result, Status, UserId};
use minicbor::{Decode, Encode};

/// CLIENT_SESSION: opens or extends a client's session. A client that is silent for the session's time is dead:
/// its file sessions are closed for it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClientSession {
    /// The client.
    #[n(0)]
    pub client: ClientId,
    /// Mount or other.
    #[n(1)]
    pub role: Option<Role>,
    /// Its host's name.
    #[n(2)]
    pub hostname: String,
    /// Its host.
    #[n(3)]
    pub host: HostId,
    /// Its process.
    #[n(4)]
    pub pid: u32,
    /// What it is for (mount point).
    #[n(5)]
    pub description: String,
    /// Its release.
    #[n(6)]
    pub release: String,
    /// When it began: nanoseconds since the Unix epoch.
    #[n(7)]
    pub started_ns: u64,
    /// Its user (filled in by mgmtd from the connection's token).
    #[n(8)]
    pub user: UserId,
    /// When mgmtd last heard of it (filled in by mgmtd).
    #[n(9)]
    pub last_seen_ns: u64,
    /// mgmtd has taken it before: if nothing is known of it now, its session has ended, longer ago than is remembered. Not stored. (Older builds do
    /// not say it.)
    #[cbor(n(10), default, skip_if = "is_false")]
    pub extends: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClientSessionReply {
    /// How long the session lives without being extended, in ms.
    #[n(0)]
    pub session_ms: u64,
    /// Routing info is stale when it is older than this, in ms (a node's own stop time).
    #[n(1)]
    pub routing_stale_ms: u64,
}

/// CLIENT_GOODBYE.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClientGoodbye {
    /// The client.
    #[n(0)]
    pub client: ClientId,
}

/// LIST_CLIENTS. Older releases send no field and hear of all in one message, as far as they fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ListClients {
    /// Those behind this one, in the order of their ids.
    #[n(0)]
    pub after: Option<ClientId>,
    /// Whether they may come in pages.
    #[cbor(n(1), default)]
    pub pages: bool,
}

/// LIST_CLIENTS' answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ClientList {
    /// Live sessions.
    #[n(0)]
    pub clients: Vec<ClientSession>,
    /// Clients whose sessions ended or ran out not long ago. A client in neither list was never known, or is long dead.
    #[cbor(n(1), default)]
    pub dead: Vec<ClientId>,
    /// More follow behind the last live session.
    #[cbor(n(2), default)]
    pub more: bool,
}

impl ClientList {
    /// What to ask for next: until nothing is left, who is not listed may be alive all the same.
    pub fn next(&self, asked: ListClients) -> Result<Option<ListClients>> {
        if !self.more {
            return Ok(None);
        }
        let after = self.clients.last().map(|c| c.client);
        if after <= asked.after {
            let e = "mgmtd lists its clients in circles; restart its primary";
            return Err(Error::new(Status::Internal, e));
        }
        Ok(Some(ListClients { after, ..asked }))
    }
}
