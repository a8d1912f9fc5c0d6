//! What a call is made of.

use glowfs_rt::{Buf, BufMut, Duration};
use glowfs_types::TenantId;

/// The bulk of a call.
#[derive(Debug, Default)]
pub enum Bulk {
    /// None.
    #[default]
    None,
    /// Sent with the request. Memory in a region is shared where the peer can map it, so nobody may change it until the
    /// answer came: which holds for every `Buf`.
    Send(Vec<Buf>),
    /// Room for the bulk of the answer.
    Recv(BufMut),
}

/// A call to make.
#[derive(Debug)]
pub struct Request {
    /// Which method: see [`glowfs_types::wire::method`].
    pub method: u16,
    /// The encoded body.
    pub body: Vec<u8>,
    /// The bulk.
    pub bulk: Bulk,
    /// Whose call it is, for fair queues.
    pub tenant: TenantId,
    /// How long to wait for the answer.
    pub deadline: Duration,
}

/// A successful answer.
#[derive(Debug)]
pub struct Response {
    /// The encoded body.
    pub body: Vec<u8>,
    /// For [`Bulk::Recv`]: the same buffer, filled with `bulk_len` bytes; what lies behind them is arbitrary.
    pub bulk: Option<BufMut>,
    /// Bytes of bulk that the answer brought.
    pub bulk_len: usize,
}

/// What a service answers.
#[derive(Debug, Default)]
pub struct Reply {
    /// The encoded body.
    pub body: Vec<u8>,
    /// The bulk: best the buffer of [`crate::Incoming::reply_buffer`], truncated to what was filled. Never longer than the room the
    /// caller offered.
    pub bulk: Option<BufMut>,
}

impl Reply {
    /// An answer without bulk.
    pub fn body(body: Vec<u8>) -> Self {
        Self { body, bulk: None }
    }
    /// A control message as the answer.
    pub fn msg<R: minicbor::Encode<()>>(message: &R) -> Self {
        Self::body(glowfs_types::wire::encode(message))
    }
}
