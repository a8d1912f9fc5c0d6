//! The chunk store alone, on one directory.

use super::{Given, LOADS};
use crate::drive::{drive, scatter};
use crate::row::Row;
use anyhow::{Context, Result};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Buf, Rt};
use glowfs_types::checksum::piece_checksums;
use glowfs_types::{ChunkId, ChunkVersion, ClusterId, DataId, NodeId, TargetId, VolumeId};
use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;

const TARGET: TargetId = TargetId(1);
const CHUNK: u64 = 1 << 20;

/// See the module. The limit is the disk with the same load.
pub async fn store(rt: &Rt, dir: &Path, given: Given) -> Result<Vec<Row>> {
    let config = StoreConfig::new(ClusterId(1), NodeId(1));
    let store =
        Store::open(rt, rt.open_dir(dir)?, config).await.context("opening a chunk store")?;
    store.create_target(TARGET).await?;
    let mut data = rt.alloc(CHUNK as usize);
    data.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 4096) as u8);
    let data = data.freeze();
    let chunks = (given.size / CHUNK).max(64);
    for c in 0..chunks {
        store
            .stage(TARGET, write(&store, c, 0, data.clone()))
            .await
            .context("filling the store")?;
    }
    // One writer for each chunk at a time.
    let busy: Rc<RefCell<HashSet<u64>>> = Rc::default();
    let mut rows = vec![];
    for (what, bytes, depth) in LOADS {
        let plan = given.plan("store", what, "one target", bytes, depth);
        let (rt2, store2, data, busy) = (rt.clone(), store.clone(), data.clone(), busy.clone());
        let blocks = CHUNK / bytes;
        let row = drive(rt, &plan, move |n| {
            let (rt, store, data, busy) = (rt2.clone(), store2.clone(), data.clone(), busy.clone());
            async move {
                let mut chunk = scatter(n, chunks);
                let offset = (scatter(n / chunks + n, blocks) * bytes) as u32;
                if what == "read" {
                    store.read(TARGET, id(chunk), offset, rt.alloc(bytes as usize)).await.0?;
                    return Ok(());
                }
                while !busy.borrow_mut().insert(chunk) {
                    chunk = (chunk + 1) % chunks;
                }
                let done = store
                    .stage(TARGET, write(&store, chunk, offset, data.slice(0..bytes as usize)))
                    .await;
                busy.borrow_mut().remove(&chunk);
                done?;
                Ok(())
            }
        })
        .await?;
        given.done(&mut rows, given.limited(row, 1.0));
    }
    store.checkpoint().await?;
    Ok(rows)
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
        chunk_bytes: CHUNK as u32,
        channel: None,
        commit: true,
        flush: false,
    }
}
