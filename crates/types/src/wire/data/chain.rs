//! What is asked of a chain about all of its chunks, or all of one data id: its extent, a flush, a removal.

use crate::ChunkId;
use minicbor::{Decode, Encode};

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

/// REMOVE_DATA: remove every chunk of a data id on this chain whose index is at least `from`.
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
    /// A [`crate::Capability`] with the right to remove, as bytes.
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
