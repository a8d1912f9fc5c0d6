//! The files of the metadata engine: an image that an engine made, the fuzzer's edits, checksums mended if the first byte is odd. Opening may
//! refuse; an engine that opens must answer, take a commit, close, and hold the same when it is opened again.

use crate::disk::{BLOCK, Files, directory, edit};
use crate::world;
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Transaction};
use glowfs_rt::{Dir, Rt};
use glowfs_types::ClusterId;
use glowfs_types::checksum::crc32c;
use std::rc::Rc;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        segment_bytes: 32 << 10,
        checkpoint_log_bytes: u64::MAX,
        ..EmbeddedConfig::new(ClusterId(7))
    }
}

async fn commits(engine: &Embedded, from: u64, n: u64) {
    for i in from..from + n {
        let tx = Transaction::new(Rc::new(engine.clone()));
        tx.add(b"n", 1).expect("small");
        tx.put(format!("k{}", i % 5), vec![i as u8; (i as usize * 97) % 900]).expect("small");
        if i % 4 == 3 {
            tx.clear_range(b"k1", b"k3").expect("small");
        }
        tx.commit(i % 3 == 0).await.expect("commit");
    }
}

async fn make(rt: Rt, dir: Dir) {
    let engine = Embedded::open(&rt, dir, config()).await.expect("a new engine");
    commits(&engine, 0, 12).await;
    engine.checkpoint().await.expect("checkpoint");
    commits(&engine, 12, 12).await;
    engine.close().await.expect("close");
}

thread_local! {
    static IMAGE: Files = {
        let (dir, disk) = directory(&Files::new());
        world::run(None, |rt| make(rt, dir)).expect("it ends");
        disk.image()
    };
}

fn word(block: &[u8], at: usize) -> usize {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]) as usize
}

fn mend(image: &mut Files) {
    for content in image.values_mut() {
        let blocks = content.len / BLOCK as u64;
        if blocks == 0 {
            continue;
        }
        let mut head = content.block(0);
        let crc = crc32c(&head[..BLOCK - 4]);
        head[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
        content.set_block(0, &head);
        let mut chain: [u8; 4] = [head[64], head[65], head[66], head[67]];
        let mut at = 1;
        while at < blocks {
            let mut all = content.block(at);
            let batch = &all[..4] == b"GKVB";
            if !batch && &all[..4] != b"GKVP" {
                break;
            }
            let (header, sum, own) = if batch { (64, 44, 60) } else { (32, 20, 28) };
            let len = word(&all, 4);
            let size = ((header + len) as u64).div_ceil(BLOCK as u64);
            if size > blocks - at {
                break;
            }
            (1..size).for_each(|i| all.extend(content.block(at + i)));
            let crc = crc32c(&all[header..header + len]);
            all[sum..sum + 4].copy_from_slice(&crc.to_le_bytes());
            if batch {
                all[40..44].copy_from_slice(&chain);
            }
            let crc = crc32c(&all[..own]).to_le_bytes();
            all[own..own + 4].copy_from_slice(&crc);
            chain = crc;
            content.set_block(at, &all[..BLOCK]);
            at += size;
        }
    }
}

/// From here on an engine may have come to the end of all versions.
const VERSIONS_END: u64 = u64::MAX / 2 - (1 << 33);

async fn everything(engine: &Embedded) -> Vec<(Vec<u8>, Vec<u8>)> {
    let version = engine.begin().await.expect("begin");
    let page = engine.get_range(version, vec![], vec![0xff; 8], 256, false).await.expect("range");
    let back = engine.get_range(version, vec![], vec![0xff; 8], 256, true).await.expect("range");
    if !page.more {
        assert!(page.entries.iter().eq(back.entries.iter().rev()), "the same from both ends");
    }
    page.entries
}

async fn live(rt: Rt, dir: Dir) {
    let Ok(engine) = Embedded::open(&rt, dir.clone(), config()).await else { return };
    everything(&engine).await;
    let tx = Transaction::new(Rc::new(engine.clone()));
    tx.put("fuzz", "x").expect("small");
    // It may be at the last version that there is.
    if tx.commit(true).await.is_err() {
        return;
    }
    let before = everything(&engine).await;
    let version = engine.begin().await.expect("begin");
    if engine.checkpoint().await.is_err() || engine.close().await.is_err() {
        return;
    }
    let again = match Embedded::open(&rt, dir, config()).await {
        Ok(again) => again,
        // Each opening takes some of the versions that there are; they end there.
        Err(_) if version > VERSIONS_END => return,
        Err(e) => panic!("it was closed cleanly: {e}"),
    };
    assert_eq!(everything(&again).await, before, "changed by a restart");
    let _ = again.close().await;
}

pub fn run(input: &[u8]) {
    let Some((how, edits)) = input.split_first() else { return };
    let mut image = IMAGE.with(Files::clone);
    edit(&mut image, edits);
    if how & 1 != 0 {
        mend(&mut image);
    }
    let (dir, _disk) = directory(&image);
    world::run(None, |rt| live(rt, dir));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![0], vec![1]];
    for file in 0..3u8 {
        for block in 0..3u8 {
            for at in [4, 8, 16, 24, 32, 64, 72, 76] {
                seeds.push(vec![1, file << 1, block, 0, at, 0, 4, 1, 0, 0, 0]);
            }
        }
    }
    seeds
}
