//! What a target holds, whatever its state: one chunk, or all of them page by page.

use crate::ChunkId;
use minicbor::{Decode, Encode};

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

/// LIST_CHUNKS: one page of what a target holds (tombstones left out), whether it serves or not. Its answer is a
/// [`super::SyncListReply`].
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
