//! The data path: fixed little-endian structures, read in place.
//!
//! Structures only ever grow at the end; every body begins with its fixed part's size in the first word of
//! its header, so that an older reader skips what it does not know. Control messages of storage are CBOR.

mod chain;
mod holdings;
mod info;
mod read;
mod resync;
mod write;

pub use chain::{Flush, QueryExtent, QueryExtentReply, RemoveData, RemoveDataReply};
pub use holdings::{ChunkSummary, ListChunks, QueryChunk, QueryChunkReply};
pub use info::{DiskInfo, ResyncInfo, StorageInfo};
pub use read::{READ_OPS_MAX, Read, ReadHead, ReadOp, ReadResult};
pub use resync::{ChannelRecord, SyncDone, SyncList, SyncListReply};
pub use write::{
    UPDATE_DAMAGED, UPDATE_FLUSH, UPDATE_FULL, UPDATE_SYNC, UPDATE_VOUCHES, Update, UpdateHead,
    UpdateResult, update,
};

use crate::ChunkId;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
