//! Messages about the contents of small files that are kept with the metadata.
//!
//! A file begins so if its layout has [`crate::Layout::inline_bytes`] and the client that makes it knows of it. It ends when its contents would
//! become longer, or when somebody needs chunks (RENEW with `spill`), and never begins again. Each read and write is a transaction.

use super::meta::{Attr, Caller};
use crate::{InodeId, RequestId, SessionId};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// INLINE_READ: all of the contents.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct InlineRead {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The file.
    #[n(1)]
    pub inode: InodeId,
    /// Its session, if any.
    #[n(2)]
    pub session: Option<SessionId>,
}

/// INLINE_WRITE: puts bytes at an offset; what lies between the end of the file and them becomes zeros.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct InlineWrite {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// The session that it is open for writing with.
    #[n(3)]
    pub session: SessionId,
    /// Where the bytes go. They end at `inline_bytes` of the file's layout at the latest.
    #[n(4)]
    pub offset: u64,
    /// The bytes.
    #[n(5)]
    pub bytes: ByteVec,
}

/// The answer to both.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct InlineReply {
    /// Attributes, as of the same moment. If they do not say [`Attr::inline`], the contents are in chunks (by now).
    #[n(0)]
    pub attr: Attr,
    /// How long the client may keep the attributes, and the contents with them, in ms, counted from when it asked.
    #[n(1)]
    pub lease_ms: u64,
    /// INLINE_READ: all of the contents. None: they are in chunks.
    #[n(2)]
    pub content: Option<ByteVec>,
    /// INLINE_WRITE: it is done. Otherwise it had no effect, because the contents are in chunks.
    #[n(3)]
    pub done: bool,
}
