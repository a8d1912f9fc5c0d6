//! The files of a chunk store: an image that a store made, the fuzzer's edits, checksums mended if the first byte is odd. Opening may refuse; a
//! store that opens must serve, take an update, close, and open again with the same chunks.

use crate::disk::{BLOCK, Files, directory, edit};
use crate::world;
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Buf, Dir, Rt};
use glowfs_types::checksum::{crc32c, piece_checksums};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{
    ChannelId, ChunkId, ChunkVersion, ClientId, ClusterId, DataId, NodeId, Seq, TargetId, VolumeId,
};
use std::rc::Rc;

const TARGET: TargetId = TargetId(3);
const CHUNK_BYTES: u32 = 256 << 10;
/// Chunks looked at after a start.
const CHUNKS_MAX: usize = 64;

fn config() -> StoreConfig {
    StoreConfig {
        log_segment_bytes: 256 << 10,
        log_bytes_max: 1 << 20,
        reserve_bytes: 0,
        unflushed_bytes_max: 1 << 20,
        ..StoreConfig::new(ClusterId(1), NodeId(2))
    }
}

fn update(index: u64, version: u64, kind: StageKind, offset: u32, bytes: usize) -> StageRequest {
    let payload: Vec<u8> = (0..bytes).map(|i| (i as u64 ^ version ^ index) as u8).collect();
    let mut crcs = Vec::new();
    piece_checksums(offset, &payload, &mut crcs);
    let chunk = ChunkId { volume: VolumeId(1), data: DataId(5), index };
    StageRequest {
        anew: false,
        any_version: false,
        damaged: false,
        chunk,
        version: ChunkVersion(version),
        kind,
        offset,
        len: 6000,
        payload: Buf::from_vec(payload),
        crcs,
        chunk_bytes: CHUNK_BYTES,
        channel: Some(ChannelRecord {
            client: ClientId(9),
            channel: ChannelId(index),
            seq: Seq(version),
            chunk,
            version: ChunkVersion(version),
        }),
        commit: index != 3,
        flush: version == 2,
    }
}

async fn make(rt: Rt, dir: Dir, clean: bool) {
    let store = Store::open(&rt, dir, config()).await.expect("a new store");
    store.create_target(TARGET).await.expect("target");
    store.put_target_meta(TARGET, vec![1; 20]).await.expect("record");
    for index in 0..3 {
        for version in 1..4 {
            let bytes = if index == 1 { 90_000 } else { 3000 * version as usize };
            let request = update(index, version, StageKind::Write, 4096 * index as u32, bytes);
            store.stage(TARGET, request).await.expect("stage");
        }
    }
    store.checkpoint().await.expect("checkpoint");
    for (index, version, kind) in [
        (0, 4, StageKind::Truncate),
        (1, 4, StageKind::Replace),
        (2, 4, StageKind::Remove),
        (3, 1, StageKind::Write),
        (3, 2, StageKind::Write),
        (4, 1, StageKind::Write),
    ] {
        let bytes =
            if matches!(kind, StageKind::Truncate | StageKind::Remove) { 0 } else { 70_000 };
        let offset = 0;
        let bytes = if index == 3 { 5000 } else { bytes };
        store.stage(TARGET, update(index, version, kind, offset, bytes)).await.expect("stage");
    }
    store.flush(TARGET).await.expect("flush");
    if clean {
        store.close().await.expect("close");
    }
}

thread_local! {
    static IMAGES: [Files; 2] = [false, true].map(|clean| {
        let (dir, disk) = directory(&Files::new());
        world::run(None, |rt| make(rt, dir, clean)).expect("it ends");
        disk.image()
    });
}

/// Puts the checksum of a sealed block right.
fn seal(block: &mut [u8]) {
    let crc = crc32c(&block[..BLOCK - 4]);
    block[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Mends the checksums of all files, and the chain that they make, so that what is behind them is reached.
fn mend(image: &mut Files) {
    for (name, content) in image.iter_mut() {
        let blocks = content.len / BLOCK as u64;
        if blocks == 0 || name.starts_with("blocks-") {
            continue;
        }
        let mut head = content.block(0);
        seal(&mut head);
        content.set_block(0, &head);
        let mut at = 1;
        let mut before = word(&head, 12);
        while name.starts_with("log-") && at < blocks {
            let mut block = content.block(at);
            let (headers, payload) = (word(&block, 68), word(&block, 72));
            if &block[..4] != b"GBAT" || headers == 0 || u64::from(headers) > blocks - at {
                break;
            }
            block[56..60].copy_from_slice(&before.to_le_bytes());
            let mut all = block;
            (1..u64::from(headers)).for_each(|i| all.extend(content.block(at + i)));
            before = crc32c(&all[8..]);
            all[4..8].copy_from_slice(&before.to_le_bytes());
            content.set_block(at, &all[..BLOCK]);
            at += u64::from(headers) + u64::from(payload);
        }
        // Frames: their length is in bytes of entries, behind a head of 32.
        while name.starts_with("checkpoint") && at < blocks {
            let mut all = content.block(at);
            let frame = (32 + word(&all, 24) as u64).div_ceil(BLOCK as u64);
            if &all[..4] != b"GFRM" || frame > blocks - at {
                break;
            }
            (1..frame).for_each(|i| all.extend(content.block(at + i)));
            let crc = crc32c(&all[8..]);
            all[4..8].copy_from_slice(&crc.to_le_bytes());
            content.set_block(at, &all[..BLOCK]);
            at += frame;
        }
    }
}

/// Reads what there is; the chunks with their versions and checksums.
async fn look(rt: &Rt, store: &Store) -> Vec<(u64, ChunkId, u64, u32)> {
    let mut seen = Vec::new();
    for target in store.targets().into_iter().take(4) {
        let _ = store.target_meta(target);
        let _ = store.channels(target);
        for summary in store.list(target, None, CHUNKS_MAX).await.0 {
            let (r, buf) =
                store.read(target, summary.chunk, 0, rt.alloc(CHUNK_BYTES as usize)).await;
            if let Ok(r) = r {
                assert_eq!(r.crc, crc32c(&buf), "a read's own checksum");
            }
            for pending in store.pending(target, summary.chunk) {
                let buf = rt.alloc(8192);
                let _ = store.read_pending(target, summary.chunk, pending.version, 4096, buf).await;
            }
            let state = store.chunk(target, summary.chunk).unwrap_or_default();
            seen.push((target.0, summary.chunk, state.committed.0, state.content_crc));
        }
        let _ = store.scrub_next(target, None).await;
    }
    seen
}

async fn live(rt: Rt, dir: Dir) {
    let Ok(store) = Store::open(&rt, dir.clone(), config()).await else { return };
    let before = look(&rt, &store).await;
    if store.create_target(TargetId(77)).await.is_err()
        || store.stage(TargetId(77), update(0, 1, StageKind::Write, 100, 9000)).await.is_err()
        || store.checkpoint().await.is_err()
        || store.close().await.is_err()
    {
        return;
    }
    drop(store);
    let again = Store::open(&rt, dir, config()).await.expect("it was closed cleanly");
    let after = look(&rt, &again).await;
    for chunk in before {
        assert!(after.contains(&chunk), "{chunk:?} changed by a restart");
    }
}

pub fn run(input: &[u8]) {
    let Some((how, edits)) = input.split_first() else { return };
    let mut image = IMAGES.with(|i| i[usize::from(how & 2 != 0)].clone());
    edit(&mut image, edits);
    if how & 1 != 0 {
        mend(&mut image);
    }
    let (dir, _disk) = directory(&image);
    world::run(None, |rt| live(rt, dir));
    let _: Rc<()> = Rc::default();
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![0], vec![1], vec![2], vec![3]];
    // A number in each file's first blocks, with everything mended.
    for file in 0..8u8 {
        for block in 0..3u8 {
            seeds.push(vec![1, file << 1, block, 0, 68, 0, 4, 1, 0, 0, 0]);
            seeds.push(vec![1, file << 1, block, 0, 80, 0, 8, 24, 0, 0, 0, 1, 0, 0, 0]);
        }
    }
    seeds
}
