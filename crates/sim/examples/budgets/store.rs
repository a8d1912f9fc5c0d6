//! The chunk store alone: one target on one simulated disk.

use crate::{DEPTH, LIMIT, OP_BYTES, timed_out};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::Buf;
use glowfs_sim::world::World;
use glowfs_types::checksum::piece_checksums;
use glowfs_types::{
    ChunkId, ChunkVersion, ClusterId, DataId, Error, NodeId, Result, TargetId, VolumeId,
};
use std::path::Path;

const TARGET: TargetId = TargetId(1);
const CHUNK_BYTES: u32 = 1 << 20;
/// Operations go through these by turns, so that no two are on one at a time.
const CHUNKS: u64 = 2 * DEPTH;

/// So many reads or writes of one block.
pub fn on_a_disk(writes: bool, count: u64) -> Result<()> {
    let world = World::new(1);
    let node = world.node("disk");
    let rt = node.rt();
    let work = async move {
        let config = StoreConfig::new(ClusterId(1), NodeId(1));
        let store = Store::open(&rt, rt.open_dir(Path::new("store"))?, config).await?;
        store.create_target(TARGET).await?;
        for chunk in 0..CHUNKS {
            let whole = Buf::from_vec(vec![1; CHUNK_BYTES as usize]);
            store.stage(TARGET, write(&store, chunk, 0, whole)).await?;
        }
        let lanes: Vec<_> = (0..DEPTH)
            .map(|lane| {
                let (rt, store) = (rt.clone(), store.clone());
                rt.clone().spawn(async move {
                    for i in (lane..count).step_by(DEPTH as usize) {
                        let chunk = i % CHUNKS;
                        let block = (i / CHUNKS * 37) as u32 % (CHUNK_BYTES / OP_BYTES as u32);
                        let offset = block * OP_BYTES as u32;
                        if writes {
                            let bytes = Buf::from_vec(vec![i as u8; OP_BYTES]);
                            store.stage(TARGET, write(&store, chunk, offset, bytes)).await?;
                        } else {
                            store.read(TARGET, id(chunk), offset, rt.alloc(OP_BYTES)).await.0?;
                        }
                    }
                    Ok::<(), Error>(())
                })
            })
            .collect();
        for lane in lanes {
            lane.await?;
        }
        Ok(())
    };
    world.run(&node, LIMIT, work).unwrap_or_else(|| Err(timed_out()))
}

fn id(index: u64) -> ChunkId {
    ChunkId { volume: VolumeId(1), data: DataId(1), index }
}

/// A write that is committed at once, as a chain of one does.
fn write(store: &Store, chunk: u64, offset: u32, payload: Buf) -> StageRequest {
    let mut crcs = Vec::new();
    piece_checksums(offset, &payload, &mut crcs);
    let newest = store.chunk(TARGET, id(chunk)).map_or(ChunkVersion(0), |s| s.pending);
    StageRequest {
        anew: false,
        any_version: false,
        damaged: false,
        chunk: id(chunk),
        version: newest.next(),
        kind: StageKind::Write,
        offset,
        len: 0,
        payload,
        crcs,
        chunk_bytes: CHUNK_BYTES,
        channel: None,
        commit: true,
        flush: false,
    }
}
