//! What has to do with very much of a store goes on in small steps: everything else of the process has its turn in between.

mod fake;
mod small;

use fake::{Disk, run};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::Rt;
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkId, ChunkVersion, ClientId, DataId, Seq, VolumeId};
use small::{T, bytes, id, request};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Updates that are made at once.
const AT_ONCE: u64 = 500;

/// The log is not full before a checkpoint is asked for.
fn config() -> StoreConfig {
    StoreConfig { log_segment_bytes: 16 << 20, log_bytes_max: 1 << 30, ..small::config() }
}

async fn open(rt: &Rt, disk: &Rc<Disk>) -> Store {
    let store = Store::open(rt, disk.dir(), config()).await.expect("open");
    store.create_target(T).await.expect("target");
    store
}

/// What `work` gives, and how often another task had its turn meanwhile.
async fn beside<W: Future>(rt: &Rt, what: &str, work: W) -> (W::Output, u64) {
    let (turns, longest) = (Cell::new(0), Cell::new(Duration::ZERO));
    let others = async {
        let mut last = Instant::now();
        loop {
            rt.yield_now().await;
            turns.set(turns.get() + 1);
            longest.set(longest.get().max(last.elapsed()));
            last = Instant::now();
        }
    };
    let out = match select(pin!(work), pin!(others)).await {
        Either::Left(out) => out,
        Either::Right(never) => never,
    };
    println!("{what}: {} turns of others, {:?} between two at most", turns.get(), longest.get());
    (out, turns.get())
}

async fn stage_all(store: &Store, updates: impl Iterator<Item = StageRequest>) {
    let mut updates = updates.peekable();
    while updates.peek().is_some() {
        let some = updates.by_ref().take(AT_ONCE as usize).map(|u| store.stage(T, u));
        for staged in join_all(some.collect::<Vec<_>>()).await {
            staged.expect("staged");
        }
    }
}

#[test]
fn a_target_is_removed_in_steps() {
    const CHUNKS: u64 = 30_000;
    let disk = Disk::new(51);
    let d = disk.clone();
    run(51, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let small = |i| request(i, 1, StageKind::Replace, vec![1]);
        stage_all(&store, (0..CHUNKS).map(small)).await;
        store.checkpoint().await.expect("a checkpoint");
        // The last segment of the log is not folded.
        assert!(store.space().used_bytes > CHUNKS * 4096 / 2, "most lie in slots");
        let (removed, turns) = beside(&rt, "removal", store.remove_target(T)).await;
        removed.expect("removed");
        assert_eq!(store.space().used_bytes, 0);
        assert!(turns > CHUNKS / 512, "{turns} turns of others");
    })
    .expect("ran");
}

#[test]
fn compaction_looks_at_chunks_in_steps() {
    const CHUNKS: u64 = 1000;
    let disk = Disk::new(52);
    let d = disk.clone();
    run(52, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let whole = |i| request(i, 1, StageKind::Write, bytes(i, 128 << 10));
        stage_all(&store, (0..CHUNKS).map(whole)).await;
        store.checkpoint().await.expect("a checkpoint");
        // So much dies that they are looked at, and so much stays that they are left alone.
        let cut =
            |i| StageRequest { len: 56 << 10, ..request(i, 2, StageKind::Truncate, Vec::new()) };
        stage_all(&store, (0..CHUNKS).map(cut)).await;
        let (done, turns) = beside(&rt, "compaction", store.checkpoint()).await;
        done.expect("a checkpoint");
        let (_, without) = beside(&rt, "no compaction", store.checkpoint()).await;
        assert!(turns > without + CHUNKS / 32, "{turns} turns of others, {without} without");
    })
    .expect("ran");
}

