//! Messages about file locks: flock, and byte ranges (fcntl, OFD).

use super::meta::Caller;
use crate::{ClientId, InodeId, RequestId};
use minicbor::{Decode, Encode};

/// What the owner wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum LockWish {
    /// To read: others may, too.
    #[default]
    #[n(0)]
    Shared,
    /// To write: alone.
    #[n(1)]
    Exclusive,
    /// To give back what it has of the range.
    #[n(2)]
    Release,
    /// Not to wait any longer for what it was refused.
    #[n(3)]
    GiveUp,
}

/// LOCK, LOCK_TEST, LOCK_WAIT.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Lock {
    /// Who asks. The lock belongs to its client.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once (LOCK).
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// The owner among those of the client: a process, or an open file.
    #[n(3)]
    pub owner: u64,
    /// flock: of the file as a whole, and without regard to locks of ranges.
    #[n(4)]
    pub whole: bool,
    /// What it wants.
    #[n(5)]
    pub wish: LockWish,
    /// The first byte.
    #[n(6)]
    pub start: u64,
    /// The last byte.
    #[n(7)]
    pub end: u64,
    /// The process, to be shown to others.
    #[n(8)]
    pub pid: u32,
    /// If it is refused, the owner waits for it: said so that a circle of waiting owners is found.
    #[n(9)]
    pub waits: bool,
}

/// A lock that stands in the way.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct LockHolder {
    /// Whose.
    #[n(0)]
    pub client: ClientId,
    /// The process.
    #[n(1)]
    pub pid: u32,
    /// Whether it is for writing.
    #[n(2)]
    pub exclusive: bool,
    /// Its first byte.
    #[n(3)]
    pub start: u64,
    /// Its last byte.
    #[n(4)]
    pub end: u64,
}

/// The answer: what stands in the way; nothing if the lock was granted (LOCK), or would be (LOCK_TEST, LOCK_WAIT).
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct LockReply {
    /// A lock in the way.
    #[n(0)]
    pub holder: Option<LockHolder>,
}
