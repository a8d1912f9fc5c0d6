//! Resync: the receiver's chunks in pages, and what goes along at the end.

use super::ChunkSummary;
use crate::ChunkId;
use minicbor::{Decode, Encode};

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
