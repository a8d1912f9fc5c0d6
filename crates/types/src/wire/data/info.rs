//! STORAGE_INFO: what a storage node tells operators of itself.

use minicbor::{Decode, Encode};

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
