//! Messages about which parts of a file exist: LIST_EXTENTS.

use crate::{ChainId, ChainVersion, ChunkId};
use minicbor::{Decode, Encode};

/// Bytes in a block: what a run of [`ChunkExtents`] counts.
pub const EXTENT_BLOCK_BYTES: u64 = 4096;
/// The greatest number of chunks in one answer.
pub const LIST_EXTENTS_MAX: u32 = 1024;
/// The greatest number of runs in one answer; the last chunk of an answer may go beyond it.
pub const EXTENT_RUNS_MAX: usize = 16_384;

/// LIST_EXTENTS: which chunks of a data id exist on one chain, and which blocks of them.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListExtents {
    /// Volume and data id, and the first index that is asked for.
    #[n(0)]
    pub from: ChunkId,
    /// The chain.
    #[n(1)]
    pub chain: ChainId,
    /// The chain version the sender knows.
    #[n(2)]
    pub chain_version: ChainVersion,
    /// At most so many chunks, at most [`LIST_EXTENTS_MAX`].
    #[n(3)]
    pub limit: u32,
    /// Only the number of bytes, of all chunks from `from` on.
    #[n(4)]
    pub sum_only: bool,
    /// A [`crate::Capability`] with the right to read or to write, as bytes; not needed by services.
    #[cbor(n(5), with = "minicbor::bytes")]
    pub capability: Vec<u8>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ListExtentsReply {
    /// The chunks, in order.
    #[n(0)]
    pub chunks: Vec<ChunkExtents>,
    /// Whether there are more behind the last one.
    #[n(1)]
    pub more: bool,
    /// With `sum_only`: bytes of their blocks.
    #[n(2)]
    pub bytes: u64,
}

/// What exists of one chunk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ChunkExtents {
    /// Its index.
    #[n(0)]
    pub index: u64,
    /// First block and number of blocks of each run, in order, apart from one another.
    #[n(1)]
    pub runs: Vec<(u32, u32)>,
}
