//! Messages of the search for chunks that nobody owns.

use crate::{ChainId, ChainVersion, DataId, NodeId, VolumeId};
use minicbor::{Decode, Encode};

/// LIST_DATA: one page of the data ids that a chain holds chunks of, asked of its head (services only).
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListData {
    /// The chain.
    #[n(0)]
    pub chain: ChainId,
    /// Its version.
    #[n(1)]
    pub chain_version: ChainVersion,
    /// The page begins behind these.
    #[n(2)]
    pub after: Option<(VolumeId, DataId)>,
    /// At most so many.
    #[n(3)]
    pub limit: u32,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ListDataReply {
    /// In order.
    #[n(0)]
    pub data: Vec<(VolumeId, DataId)>,
    /// There are more.
    #[n(1)]
    pub more: bool,
}

/// What an ORPHANS asks for.
pub mod search {
    /// How it stands.
    pub const SHOW: u8 = 0;
    /// A pass now, which reclaims nothing.
    pub const LOOK: u8 = 1;
    /// A pass now, which reclaims what was ownerless before and still is.
    pub const RECLAIM: u8 = 2;
}

/// ORPHANS: the search for chunks that nobody owns (administrators only).
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Orphans {
    /// See [`search`].
    #[n(0)]
    pub what: u8,
}

/// Data without an owner.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct OrphanData {
    /// Its id.
    #[n(0)]
    pub data: DataId,
    /// Its chunks, where they were counted.
    #[n(1)]
    pub chunks: u64,
    /// Their bytes.
    #[n(2)]
    pub bytes: u64,
    /// When it was first found ownerless: nanoseconds since the Unix epoch.
    #[n(3)]
    pub since_ns: u64,
}

/// Its answer. Counts are since the service started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct OrphansReply {
    /// Who looks.
    #[n(0)]
    pub node: NodeId,
    /// A pass is under way or about to begin.
    #[n(1)]
    pub running: bool,
    /// Passes that ended.
    #[n(2)]
    pub passes: u64,
    /// When the last one ended: nanoseconds since the Unix epoch; 0 for never.
    #[n(3)]
    pub last_pass_ns: u64,
    /// Data ids with chunks that it looked at.
    #[n(4)]
    pub checked: u64,
    /// Data without an owner: the first of them.
    #[n(5)]
    pub ownerless: Vec<OrphanData>,
    /// How many there are.
    #[n(6)]
    pub ownerless_total: u64,
    /// Data ids reclaimed.
    #[n(7)]
    pub reclaimed: u64,
    /// Their chunks.
    #[n(8)]
    pub reclaimed_chunks: u64,
    /// What was not looked at or went wrong in the last pass; empty if nothing.
    #[n(9)]
    pub problem: String,
    /// Data that is ownerless for less than this, in ms, stays.
    #[n(10)]
    pub confirm_ms: u64,
}
