//! A small store for tests: one target, chunks of 256 KiB, a log that is soon full; and updates of it.

use glowfs_chunkstore::{StageKind, StageRequest, StoreConfig};
use glowfs_rt::Buf;
use glowfs_types::checksum::piece_checksums;
use glowfs_types::{ChunkId, ChunkVersion, ClusterId, DataId, NodeId, TargetId, VolumeId};

/// The target.
pub const T: TargetId = TargetId(3);
/// The size of its chunks.
pub const CHUNK_BYTES: u32 = 256 << 10;

pub fn config() -> StoreConfig {
    StoreConfig {
        log_segment_bytes: 256 << 10,
        log_bytes_max: 1 << 20,
        reserve_bytes: 0,
        ..StoreConfig::new(ClusterId(1), NodeId(2))
    }
}

/// A chunk.
pub fn id(index: u64) -> ChunkId {
    ChunkId { volume: VolumeId(1), data: DataId(5), index }
}

/// Bytes that differ by `seed`, and from block to block.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + seed * 77 + i as u64 / 97) as u8).collect()
}

/// An update that is committed at once, not flushed. `offset` counts for a write only.
pub fn update(
    index: u64,
    version: u64,
    kind: StageKind,
    offset: u32,
    payload: Vec<u8>,
) -> StageRequest {
    let mut crcs = Vec::new();
    piece_checksums(offset, &payload, &mut crcs);
    StageRequest {
        chunk: id(index),
        version: ChunkVersion(version),
        kind,
        offset,
        len: 0,
        payload: Buf::from_vec(payload),
        crcs,
        chunk_bytes: CHUNK_BYTES,
        channel: None,
        commit: true,
        flush: false,
        anew: false,
        any_version: false,
        damaged: false,
    }
}

/// The same at the chunk's begin.
pub fn request(index: u64, version: u64, kind: StageKind, payload: Vec<u8>) -> StageRequest {
    update(index, version, kind, 0, payload)
}
