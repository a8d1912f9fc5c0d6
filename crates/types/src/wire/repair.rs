//! Messages of storage that mend what is at rest: fetching a chunk's content from another replica, and the scrub.

use crate::ChunkId;
use minicbor::{Decode, Encode};

/// FETCH_CHUNK: committed content of a chunk of a serving target, for another one of the same chain. The bytes are the bulk of the answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FetchChunk {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// Its version.
    #[n(1)]
    pub chain_version: crate::ChainVersion,
    /// The target that is asked.
    #[n(2)]
    pub target: crate::TargetId,
    /// The chunk.
    #[n(3)]
    pub chunk: ChunkId,
    /// Where in the chunk.
    #[n(4)]
    pub offset: u32,
    /// How many bytes; 0 asks for the rest of the answer only.
    #[n(5)]
    pub len: u32,
    /// The checksum of the one block that is asked for. Whoever has it in any version answers, whatever the target is in the chain and
    /// whatever version that has: who asks knows what it looks for.
    #[n(6)]
    pub block_crc: Option<u32>,
}

/// FETCH_CHUNK's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct FetchChunkReply {
    /// The committed version; 0 if it is not there.
    #[n(0)]
    pub version: crate::ChunkVersion,
    /// Whether it has content (a removed chunk keeps its version).
    #[n(1)]
    pub exists: bool,
    /// Its length in bytes.
    #[n(2)]
    pub len: u32,
    /// See [`super::data::ChunkSummary::content_crc`].
    #[n(3)]
    pub content_crc: u32,
    /// The chunk size it was made with.
    #[n(4)]
    pub chunk_bytes: u32,
}

/// SCRUB: asks for the state of the scrubs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Scrub {
    /// Begin a pass over every target now (administrators only).
    #[n(0)]
    pub now: bool,
}

/// How the scrub of one target stands. Counts are since the service started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ScrubState {
    /// The target.
    #[n(0)]
    pub target: crate::TargetId,
    /// A pass is under way.
    #[n(1)]
    pub running: bool,
    /// Chunks verified in this pass.
    #[n(2)]
    pub chunks: u64,
    /// Bytes verified in this pass.
    #[n(3)]
    pub bytes: u64,
    /// Passes that were completed.
    #[n(4)]
    pub passes: u64,
    /// When the last one ended: nanoseconds since the Unix epoch; 0 for never.
    #[n(5)]
    pub last_pass_ns: u64,
    /// Chunks that were found damaged or different from the tail's.
    #[n(6)]
    pub found: u64,
    /// Chunks that were repaired, whoever found them.
    #[n(7)]
    pub repaired: u64,
    /// Repairs that failed.
    #[n(8)]
    pub failed: u64,
}

/// SCRUB's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ScrubReply {
    /// One for each target, in order.
    #[n(0)]
    pub targets: Vec<ScrubState>,
    /// The rate in bytes per second and disk; 0 is off.
    #[n(1)]
    pub bytes_per_s: u64,
}

/// DAMAGED: one page of the blocks that no replica had any more when they were asked for (operators and services).
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Damaged {
    /// The page begins behind this.
    #[n(0)]
    pub after: Option<(crate::TargetId, ChunkId)>,
}

/// A chunk with such blocks. They were read again for this answer, and are damaged still.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct DamagedChunk {
    /// The target whose replica it is.
    #[n(0)]
    pub target: crate::TargetId,
    /// Its chain.
    #[n(1)]
    pub chain: crate::ChainId,
    /// The chunk.
    #[n(2)]
    pub chunk: ChunkId,
    /// The chunk size it was made with.
    #[n(3)]
    pub chunk_bytes: u32,
    /// The numbers of the blocks in the chunk, in order.
    #[n(4)]
    pub blocks: Vec<u32>,
    /// When they were first found: nanoseconds since the Unix epoch.
    #[n(5)]
    pub since_ns: u64,
    /// Members of the chain that did not answer, and may have them.
    #[n(6)]
    pub silent: Vec<crate::TargetId>,
}

/// DAMAGED's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct DamagedReply {
    /// In the order of targets and chunks.
    #[n(0)]
    pub chunks: Vec<DamagedChunk>,
    /// Where the next page begins; none: this was the last one.
    #[n(1)]
    pub next: Option<(crate::TargetId, ChunkId)>,
    /// There was more damage than the node remembers.
    #[n(2)]
    pub left_out: bool,
}
