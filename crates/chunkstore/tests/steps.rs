//! What has to do with very much of a store goes on in small steps: everything else of the process has its turn in between.

use crate::fake::{Disk, run};
use crate::small::{T, bytes, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::Rt;
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkId, ChunkVersion, ClientId, DataId, Seq, VolumeId};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Updates that are made at once.
const AT_ONCE: u64 = 500;

/// The log is not full before a checkpoint is asked for.
fn config() -> StoreConfig {
    StoreConfig { log_segment_bytes: 16 << 20, log_bytes_max: 1 << 30, ..crate::small::config() }
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

#[test]
fn channels_are_checkpointed_in_steps() {
    const CHANNELS: u64 = 100_000;
    let disk = Disk::new(53);
    let d = disk.clone();
    run(53, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let record = |n: u64| ChannelRecord {
            client: ClientId(u128::from(n / 256)),
            channel: ChannelId(n % 256),
            seq: Seq(1),
            chunk: id(1),
            version: ChunkVersion(1),
        };
        for page in 0..CHANNELS / AT_ONCE {
            let records = (page * AT_ONCE..(page + 1) * AT_ONCE).map(record).collect();
            store.put_channels(T, records).await.expect("put");
        }
        store.checkpoint().await.expect("a checkpoint");
        let (done, turns) = beside(&rt, "channels", store.checkpoint()).await;
        done.expect("a checkpoint");
        assert!(turns > CHANNELS / 256, "{turns} turns of others");
    })
    .expect("ran");
}

/// Behind one live chunk, as a file that is cut now and then has them in front of others that are gone.
#[test]
fn tombstones_are_passed_in_steps_or_not_at_all() {
    const TOMBSTONES: u64 = 100_000;
    let disk = Disk::new(54);
    let d = disk.clone();
    run(54, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let of = |data, r: StageRequest| StageRequest {
            chunk: ChunkId { data: DataId(data), ..r.chunk },
            ..r
        };
        let gone = |i| of(7, request(i, 1, StageKind::Remove, vec![]));
        stage_all(&store, (0..TOMBSTONES).map(gone)).await;
        let small = |data| of(data, request(1, 1, StageKind::Replace, vec![1]));
        stage_all(&store, [5, 9].into_iter().map(small)).await;

        let (all, turns) = beside(&rt, "all", store.list(T, None, 10)).await;
        assert_eq!((all.0.len(), all.1), (2, false));
        assert!(turns > TOMBSTONES / 4096, "{turns} turns of others");
        let (ids, turns) = beside(&rt, "data ids", store.data_ids(T, None, 10)).await;
        assert_eq!(ids, (vec![(VolumeId(1), DataId(5)), (VolumeId(1), DataId(9))], false));
        assert!(turns > TOMBSTONES / 4096, "{turns} turns of others");
        let from = ChunkId { index: 0, ..id(0) };
        let ((one, more), turns) = beside(&rt, "one", store.list_of(T, from, 10)).await;
        assert_eq!((one.len(), more, turns), (1, false, 0), "others' tombstones are not looked at");
    })
    .expect("ran");
}

/// Data ids come once each, from where the page before has ended, also where it was full.
#[test]
fn data_ids_come_in_pages() {
    let disk = Disk::new(55);
    let d = disk.clone();
    run(55, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let chunk = |n: u64| {
            let r = request(n % 3, 1, StageKind::Replace, vec![1]);
            StageRequest { chunk: ChunkId { data: DataId(n / 3), ..r.chunk }, ..r }
        };
        stage_all(&store, (0..30).map(chunk)).await;
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let (page, more) = store.data_ids(T, after, 4).await;
            seen.extend(page.iter().map(|(_, data)| data.0));
            after = page.last().copied();
            assert_eq!(more, seen.len() < 10);
            if !more {
                break;
            }
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        let (page, more) = store.list_of(T, ChunkId { data: DataId(4), ..id(1) }, 1).await;
        assert_eq!((page.len(), page[0].chunk.index, more), (1, 1, true));
    })
    .expect("ran");
}
