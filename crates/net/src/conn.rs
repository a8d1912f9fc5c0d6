//! One connection.

use crate::{Bulk, Peer, Request, Response};
use glowfs_rt::Duration;
use glowfs_types::wire::{decode, encode};
use glowfs_types::{Result, Status, TenantId};
use std::rc::Rc;

/// One connection; symmetric after the handshake. Ends when [`Conn::close`] is called, the peer goes, or something not well-formed
/// arrives, not when the last handle is dropped.
pub struct Conn {
    peer: Peer,
}

impl Conn {
    /// Calls the peer. A status other than Ok, `TimedOut` and `Disconnected` come as errors; after these two the
    /// outcome is not known.
    pub async fn call(&self, _req: Request) -> Result<Response> {
        Err(Status::NotSupported.into())
    }
    /// Calls with control messages.
    pub async fn call_msg<Q, R>(&self, method: u16, q: &Q, deadline: Duration) -> Result<R>
    where
        Q: minicbor::Encode<()>,
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        let body = encode(q);
        let tenant = TenantId::default();
        let response =
            self.call(Request { method, body, bulk: Bulk::None, tenant, deadline }).await?;
        decode(&response.body)
    }
    /// Sends a message that is not answered. It is lost if the connection breaks.
    pub fn notify(&self, _method: u16, _body: Vec<u8>) -> Result<()> {
        Err(Status::NotSupported.into())
    }
    /// Unique among the connections of this thread.
    pub fn id(&self) -> u64 {
        0
    }
    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        true
    }
    /// Ends it: outstanding calls of ours get `Disconnected`.
    pub fn close(&self) {}
    /// Resolves when it has ended.
    pub async fn closed(self: &Rc<Self>) {}
    /// The other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}
