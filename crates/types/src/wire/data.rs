//! The data path: fixed little-endian structures, read in place.
//!
//! Structures only ever grow at the end; every body begins with its fixed part's size in the first word of
//! its header, so that an older reader skips what it does not know.

use crate::checksum::block_count;
use crate::{Capability, ChunkId, Error, Result, Status};
use minicbor::{Decode, Encode};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The greatest number of operations in one READ.
pub const READ_OPS_MAX: u32 = 256;

/// [`crate::ChunkId`] in a fixed structure.
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
pub struct WireChunkId {
    /// Volume.
    pub volume: U64,
    /// Data id.
    pub data: U64,
    /// Chunk index.
    pub index: U64,
}

impl From<ChunkId> for WireChunkId {
    fn from(c: ChunkId) -> Self {
        Self { volume: c.volume.0.into(), data: c.data.0.into(), index: c.index.into() }
    }
}
impl From<WireChunkId> for ChunkId {
    fn from(c: WireChunkId) -> Self {
        Self { volume: c.volume.get().into(), data: c.data.get().into(), index: c.index.get() }
    }
}

/// Head of a READ body; `count` × [`ReadOp`] follow. All chunks belong to the data id of the capability.
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
pub struct ReadHead {
    /// Bytes of this structure.
    pub size: U32,
    /// Operations that follow.
    pub count: U32,
    /// Lets the client read.
    pub capability: Capability,
}

/// One piece to read.
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
pub struct ReadOp {
    /// The chunk.
    pub chunk: WireChunkId,
    /// Its chain.
    pub chain: U64,
    /// The chain version the client knows.
    pub chain_version: U64,
    /// The target that is asked.
    pub target: U64,
    /// Offset in the chunk.
    pub offset: U32,
    /// Bytes wanted.
    pub len: U32,
    /// Where in the request's bulk region the bytes go.
    pub at: U32,
    /// Zero.
    pub flags: U32,
}

/// The answer to one [`ReadOp`]; the answer's body is an array of these. Bytes of the chunk past `len` that the
/// client wanted are a hole: the service has filled them with zeros in the bulk.
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
pub struct ReadResult {
    /// Outcome of this piece.
    pub status: U16,
    /// Zero.
    pub flags: U16,
    /// Bytes that exist in the chunk from `offset` on, at most the wanted ones.
    pub len: U32,
    /// The committed version that was read; 0 if the chunk does not exist.
    pub version: U64,
    /// CRC-32C over the whole wanted piece as it stands in the bulk (zeros included).
    pub crc: U32,
    /// The chain version of the target.
    pub chain_version: U64,
}

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

/// The answer to WRITE, TRIM of one chunk, and FORWARD.
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

/// A parsed READ.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The fixed part.
    pub head: &'a ReadHead,
    /// The pieces.
    pub ops: &'a [ReadOp],
}

impl<'a> Read<'a> {
    /// Parses and checks the form of a READ body from outside; `room` is the size of the bulk region.
    pub fn parse(body: &'a [u8], room: u32) -> Result<Self> {
        let bad = |what: &str| Error::new(Status::BadMessage, format!("read: {what}"));
        let (head, _) = ReadHead::ref_from_prefix(body).map_err(|_| bad("too short"))?;
        let size = head.size.get() as usize;
        if size < size_of::<ReadHead>() || size > body.len() {
            return Err(bad("wrong size of its fixed part"));
        }
        let ops =
            <[ReadOp]>::ref_from_bytes(&body[size..]).map_err(|_| bad("ragged operations"))?;
        if ops.len() != head.count.get() as usize || head.count.get() > READ_OPS_MAX {
            return Err(bad("wrong number of operations"));
        }
        for op in ops {
            let fits = |a: U32, b: U32, max: u32| {
                a.get().checked_add(b.get()).is_some_and(|end| end <= max)
            };
            if !fits(op.at, op.len, room) {
                return Err(bad("a piece reaches past the buffer"));
            }
            if !fits(op.offset, op.len, crate::layout::CHUNK_BYTES_MAX) {
                return Err(bad("a piece reaches past the end of any chunk"));
            }
        }
        Ok(Self { head, ops })
    }

    /// Builds a body.
    pub fn encode(capability: &Capability, ops: &[ReadOp]) -> Vec<u8> {
        let head = ReadHead {
            size: (size_of::<ReadHead>() as u32).into(),
            count: (ops.len() as u32).into(),
            capability: *capability,
        };
        let mut body = Vec::with_capacity(size_of::<ReadHead>() + size_of_val(ops));
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(ops.as_bytes());
        body
    }
}

// ---- control messages of storage (CBOR) ----

/// QUERY_EXTENT: what is the last chunk of a data id on this chain?
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QueryExtent {
    /// Volume and data id; the index is ignored.
    #[n(0)]
    pub data: ChunkId,
    /// The chain.
    #[n(1)]
    pub chain: crate::ChainId,
    /// The chain version the sender knows.
    #[n(2)]
    pub chain_version: crate::ChainVersion,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct QueryExtentReply {
    /// Index and length of the last chunk, if there is one.
    #[n(0)]
    pub last: Option<(u64, u32)>,
    /// Chunks of the data id on this chain.
    #[n(1)]
    pub chunks: u64,
    /// Bytes they hold.
    #[n(2)]
    pub bytes: u64,
}

/// FLUSH: make everything acknowledged so far on a chain durable on every serving target. Sent to the head, which
/// sends it down.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Flush {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// The chain version the sender knows.
    #[n(1)]
    pub chain_version: crate::ChainVersion,
}

/// REMOVE_DATA and TRIM over a range: remove every chunk of a data id on this chain whose index is at least `from`.
/// Replicated down the chain as one update for each chunk; answers when at most `limit` were removed.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveData {
    /// Volume and data id, and the first index to remove.
    #[n(0)]
    pub from: ChunkId,
    /// The chain.
    #[n(1)]
    pub chain: crate::ChainId,
    /// The chain version the sender knows.
    #[n(2)]
    pub chain_version: crate::ChainVersion,
    /// At most so many chunks in this call.
    #[n(3)]
    pub limit: u32,
    /// A [`Capability`] with the right to remove, as bytes.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub capability: Vec<u8>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct RemoveDataReply {
    /// Chunks removed by this call.
    #[n(0)]
    pub removed: u32,
    /// Whether more remain.
    #[n(1)]
    pub more: bool,
}

/// QUERY_CHUNK: what a target has of a chunk, whatever its state (for operators and checkers).
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QueryChunk {
    /// The chunk.
    #[n(0)]
    pub chunk: ChunkId,
    /// The chain.
    #[n(1)]
    pub chain: crate::ChainId,
    /// The target that is asked.
    #[n(2)]
    pub target: crate::TargetId,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct QueryChunkReply {
    /// What it has; none if the chunk does not exist there.
    #[n(0)]
    pub chunk: Option<ChunkSummary>,
}

/// SYNC_LIST: one page of the receiver's chunks.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SyncList {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// The chain version the sender knows.
    #[n(1)]
    pub chain_version: crate::ChainVersion,
    /// Only chunks after this one.
    #[n(2)]
    pub after: Option<ChunkId>,
    /// At most so many.
    #[n(3)]
    pub limit: u32,
}

/// LIST_CHUNKS: one page of what a target holds (tombstones left out), whether it serves or not. Its answer is a
/// [`SyncListReply`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListChunks {
    /// The target.
    #[n(0)]
    pub target: crate::TargetId,
    /// Only chunks after this one.
    #[n(1)]
    pub after: Option<ChunkId>,
    /// At most so many.
    #[n(2)]
    pub limit: u32,
}

/// What a replica has of a chunk.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChunkSummary {
    /// The chunk.
    #[n(0)]
    pub chunk: ChunkId,
    /// Committed version.
    #[n(1)]
    pub committed: crate::ChunkVersion,
    /// Newest pending version; equal to `committed` if none.
    #[n(2)]
    pub pending: crate::ChunkVersion,
    /// Committed length in bytes.
    #[n(3)]
    pub len: u32,
    /// CRC-32C of the list of its block checksums (little-endian u32 each): equal contents have equal ones.
    #[n(4)]
    pub content_crc: u32,
    /// The chunk size it was created with.
    #[n(5)]
    pub chunk_bytes: u32,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct SyncListReply {
    /// The page, in chunk order.
    #[n(0)]
    pub chunks: Vec<ChunkSummary>,
    /// Whether more follow.
    #[n(1)]
    pub more: bool,
}

/// The last write of a channel that a target knows: travels with resync.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChannelRecord {
    /// The client.
    #[n(0)]
    pub client: crate::ClientId,
    /// Its channel.
    #[n(1)]
    pub channel: crate::ChannelId,
    /// The last sequence number.
    #[n(2)]
    pub seq: crate::Seq,
    /// The chunk it went to.
    #[n(3)]
    pub chunk: ChunkId,
    /// The version it became.
    #[n(4)]
    pub version: crate::ChunkVersion,
}

/// SYNC_DONE: everything was sent; with all channel records.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SyncDone {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// The chain version the sender knows.
    #[n(1)]
    pub chain_version: crate::ChainVersion,
    /// Channel records of the predecessor (several messages if there are many).
    #[n(2)]
    pub channels: Vec<ChannelRecord>,
    /// Whether this is the last message.
    #[n(3)]
    pub last: bool,
}

/// One disk of a storage node.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DiskInfo {
    /// The store on it.
    #[n(0)]
    pub store: crate::StoreId,
    /// Its directory.
    #[n(1)]
    pub path: String,
    /// Its size in bytes.
    #[n(2)]
    pub capacity_bytes: u64,
    /// What is free in bytes.
    #[n(3)]
    pub free_bytes: u64,
    /// What chunks use.
    #[n(4)]
    pub used_bytes: u64,
    /// What is wrong with it, if anything.
    #[n(5)]
    pub problem: Option<String>,
}

/// STORAGE_INFO's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct StorageInfo {
    /// Its disks.
    #[n(0)]
    pub disks: Vec<DiskInfo>,
    /// Its targets and their chunk counts.
    #[n(1)]
    pub targets: Vec<(crate::TargetId, u64)>,
    /// Checksummed read operations served since the start.
    #[n(2)]
    pub reads: u64,
    /// Client writes served since the start.
    #[n(3)]
    pub writes: u64,
    /// Resyncs that it sends or is about to send.
    #[n(4)]
    #[cbor(default)]
    pub resyncs: Vec<ResyncInfo>,
    /// Channels of clients that its targets remember, added up.
    #[n(5)]
    #[cbor(default)]
    pub channels: u64,
}

/// How far a resync has come, as its source sees it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ResyncInfo {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// The target that sends.
    #[n(1)]
    pub source: crate::TargetId,
    /// The target that is brought up to date.
    #[n(2)]
    pub target: crate::TargetId,
    /// It works; else it waits for its turn.
    #[n(3)]
    pub running: bool,
    /// Chunks to compare.
    #[n(4)]
    pub total_chunks: u64,
    /// Chunks compared so far, and sent where they differed.
    #[n(5)]
    pub compared_chunks: u64,
    /// Chunks sent or removed.
    #[n(6)]
    pub sent_chunks: u64,
    /// Bytes sent.
    #[n(7)]
    pub sent_bytes: u64,
    /// Since it was wanted, in ms.
    #[n(8)]
    pub elapsed_ms: u64,
}

impl ResyncInfo {
    /// How long it will still take if it goes on as so far, in ms; unknown at the beginning.
    pub fn left_ms(&self) -> Option<u64> {
        let left = self.total_chunks.saturating_sub(self.compared_chunks);
        let per = u128::from(self.elapsed_ms) * u128::from(left);
        (self.compared_chunks > 0).then(|| (per / u128::from(self.compared_chunks)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_fixed() {
        assert_eq!(size_of::<ReadHead>(), 104);
        assert_eq!(size_of::<ReadOp>(), 64);
        assert_eq!(size_of::<ReadResult>(), 28);
        assert_eq!(size_of::<UpdateHead>(), 224);
        assert_eq!(size_of::<UpdateResult>(), 24);
    }

    #[test]
    fn update_round_trips() {
        let head = UpdateHead {
            kind: update::WRITE,
            offset: 4000.into(),
            len: 200.into(),
            chunk_bytes: 65536.into(),
            ..Default::default()
        };
        let body = Update::encode(&head, &[1, 2]);
        let parsed = Update::parse(&body).expect("valid");
        assert_eq!(parsed.head.offset.get(), 4000);
        assert_eq!(parsed.crcs.iter().map(|c| c.get()).collect::<Vec<_>>(), [1, 2]);
        assert!(Update::parse(&Update::encode(&head, &[1])).is_err(), "a checksum is missing");
    }

    proptest! {
        #[test]
        fn parsers_never_panic(body: Vec<u8>, room: u32) {
            let _ = Update::parse(&body);
            let _ = Read::parse(&body, room);
        }
    }
}
