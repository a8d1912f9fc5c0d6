//! One call of the peer, on the serving side.

use crate::{Conn, Reply};
use glowfs_rt::{Buf, BufMut, Instant};
use glowfs_types::{Error, Result, Status, TenantId};
use std::rc::Rc;

/// Serves the calls of a peer.
pub trait Handler {
    /// Takes a call. Must not block; what needs to wait is spawned.
    fn handle(self: Rc<Self>, incoming: Incoming);
    /// A connection passed its handshake.
    fn connected(&self, _conn: &Rc<Conn>) {}
    /// A connection ended; called once for each `connected`.
    fn disconnected(&self, _conn: &Rc<Conn>) {}
}

/// Serves nothing: for clients that are never called.
pub struct NoCalls;
impl Handler for NoCalls {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let method = incoming.method();
        incoming.reply(Err(Error::new(
            Status::UnknownMethod,
            format!("method {method} is not served by this end"),
        )));
    }
}

/// One call of the peer. Dropping it without a reply answers `Internal`.
pub struct Incoming {
    conn: Rc<Conn>,
}

impl Incoming {
    /// Which method.
    pub fn method(&self) -> u16 {
        0
    }
    /// The encoded body.
    pub fn body(&self) -> &[u8] {
        &[]
    }
    /// The connection it came on.
    pub fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }
    /// Whose call it is.
    pub fn tenant(&self) -> TenantId {
        TenantId::default()
    }
    /// When the caller stops waiting; `Instant(u64::MAX)` if it waits for ever.
    pub fn deadline(&self) -> Instant {
        Instant(u64::MAX)
    }
    /// Decodes a control message.
    pub fn msg<'b, Q: minicbor::Decode<'b, ()>>(&'b self) -> Result<Q> {
        glowfs_types::wire::decode(self.body())
    }
    /// Bytes of bulk that the caller sent.
    pub fn bulk_len(&self) -> usize {
        0
    }
    /// Bytes of room that the caller offered for the bulk of the answer.
    pub fn reply_room(&self) -> usize {
        0
    }
    /// What the caller sent: inline bytes, or its own memory without a copy. An empty buffer if it sent none; the second take too.
    pub fn take_bulk(&mut self) -> Result<Buf> {
        Err(Status::NotSupported.into())
    }
    /// Room for the bulk of the answer: the caller's own memory if it is shared, else a buffer of the pool, of
    /// [`Incoming::reply_room`] bytes, contents arbitrary. An error if the caller offered none, or the second time.
    pub fn reply_buffer(&mut self) -> Result<BufMut> {
        Err(Status::NotSupported.into())
    }
    /// Answers. A one-way message is not answered, whatever is said here.
    pub fn reply(self, _result: Result<Reply>) {}
    /// Answers with a control message.
    pub fn reply_msg<R: minicbor::Encode<()>>(self, result: Result<R>) {
        self.reply(result.map(|m| Reply::msg(&m)));
    }
}
