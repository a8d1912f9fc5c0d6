//! WRITE and FORWARD: an update of one chunk, from a client and down its chain.

use super::WireChunkId;
use crate::checksum::block_count;
use crate::{Capability, Error, Result, Status};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kinds of updates of a chunk.
pub mod update {
    /// Writes bytes at an offset; the chunk grows if need be.
    pub const WRITE: u8 = 1;
    /// Sets the chunk's length to `len`; a longer one is cut, a shorter one grows by a hole.
    pub const TRUNCATE: u8 = 2;
    /// Removes the chunk.
    pub const REMOVE: u8 = 3;
    /// Replaces the whole chunk (resync, and writes on their way through a syncing target).
    pub const REPLACE: u8 = 4;
}

/// An update of one chunk: the body of WRITE and, with the chain's fields filled in, of FORWARD.
/// After it stand the checksums of the payload's pieces, one u32 for each block touched
/// ([`crate::checksum::piece_checksums`]). The payload is the bulk.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct UpdateHead {
    /// Bytes of this structure.
    pub size: U32,
    /// What to do: see [`update`].
    pub kind: u8,
    /// `UPDATE_*` flags.
    pub flags: u8,
    /// FORWARD: how often the sender took back pending versions of this chunk under this chain version (a successor had
    /// no room); the receiver refuses what is older. Otherwise 0.
    pub generation: U16,
    /// Lets the client write. Checked by the head; a FORWARD is trusted by the service token of its sender.
    pub capability: Capability,
    /// The chunk.
    pub chunk: WireChunkId,
    /// Its chain.
    pub chain: U64,
    /// The chain version the sender knows.
    pub chain_version: U64,
    /// The target this is sent to.
    pub target: U64,
    /// Offset in the chunk.
    pub offset: U32,
    /// Bytes of payload (WRITE, REPLACE), or the new length (TRUNCATE).
    pub len: U32,
    /// The client.
    pub client: U128,
    /// Its channel.
    pub channel: U64,
    /// The sequence number on the channel. A retry carries the same one.
    pub seq: U64,
    /// FORWARD: the version the head gave this update. WRITE: 0.
    pub version: U64,
    /// FORWARD: the committed version of the sender (lets the receiver commit what it still holds as pending).
    pub committed: U64,
    /// The chunk size of the file's layout; a chunk never grows past it.
    pub chunk_bytes: U32,
    /// REPLACE: the CRC-32C of the whole chunk's content, for comparing replicas.
    pub content_crc: U32,
    /// FORWARD: the version that `version` builds on; the receiver takes it only if that is its newest one. 0: the chunk
    /// does not exist before it, and nothing else of it is pending.
    pub base: U64,
}

/// The update must be flushed on every serving target before it is acknowledged.
pub const UPDATE_FLUSH: u8 = 1;
/// The update is a part of a resync.
pub const UPDATE_SYNC: u8 = 2;
/// The REPLACE carries the whole chunk as it is after `version`, which may be any number of versions ahead.
pub const UPDATE_FULL: u8 = 4;
/// Blocks of the REPLACE are damaged at the sender, and nobody has them: pieces of zeros whose checksum is that of the whole lost block.
pub const UPDATE_DAMAGED: u8 = 8;
/// FORWARD: the sender can be asked (VOUCH) whether it and all before it have stored the update. A receiver shows it only then; one of an older release does so at once,
/// and may send this flag on, for which its successor gets `UnknownMethod` and goes without.
pub const UPDATE_VOUCHES: u8 = 16;

/// The answer to WRITE and FORWARD.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct UpdateResult {
    /// The version that the update became.
    pub version: U64,
    /// The chain version it committed under.
    pub chain_version: U64,
    /// The chunk's length after it.
    pub len: U32,
    /// CRC-32C of the chunk's content after it, where the replica knows it; 0 otherwise.
    pub content_crc: U32,
}

/// A parsed update: the head and the checksums of the payload's pieces.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The fixed part.
    pub head: &'a UpdateHead,
    /// Checksums, one per piece.
    pub crcs: &'a [U32],
}

impl<'a> Update<'a> {
    /// Parses and checks the form of a WRITE or FORWARD body from outside.
    pub fn parse(body: &'a [u8]) -> Result<Self> {
        let bad = |what: &str| Error::new(Status::BadMessage, format!("update: {what}"));
        let (head, _) = UpdateHead::ref_from_prefix(body).map_err(|_| bad("too short"))?;
        let size = head.size.get() as usize;
        if size < size_of::<UpdateHead>() || size > body.len() {
            return Err(bad("wrong size of its fixed part"));
        }
        let crcs = <[U32]>::ref_from_bytes(&body[size..]).map_err(|_| bad("ragged checksums"))?;
        let payload = match head.kind {
            update::WRITE | update::REPLACE => head.len.get(),
            update::TRUNCATE | update::REMOVE => 0,
            _ => return Err(bad("unknown kind")),
        };
        let end = head.offset.get().checked_add(head.len.get());
        if end.is_none_or(|end| end > head.chunk_bytes.get()) {
            return Err(bad("reaches past the end of its chunk"));
        }
        if !head.chunk_bytes.get().is_power_of_two()
            || head.chunk_bytes.get() > crate::layout::CHUNK_BYTES_MAX
        {
            return Err(bad("chunk size is not allowed"));
        }
        if crcs.len() != block_count(head.offset.get(), payload) {
            return Err(bad("wrong number of checksums"));
        }
        Ok(Self { head, crcs })
    }

    /// Builds a body.
    pub fn encode(head: &UpdateHead, crcs: &[u32]) -> Vec<u8> {
        let mut head = *head;
        head.size = (size_of::<UpdateHead>() as u32).into();
        let mut body = Vec::with_capacity(size_of::<UpdateHead>() + crcs.len() * 4);
        body.extend_from_slice(head.as_bytes());
        for crc in crcs {
            body.extend_from_slice(&crc.to_le_bytes());
        }
        body
    }
}
