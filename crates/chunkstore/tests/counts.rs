//! How much a store holds: known without a look at every chunk.

use crate::fake::{Disk, Rng, run};
use crate::small::{T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::Duration;
use glowfs_types::{ChunkVersion, TargetId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Chunks, of which a walk takes long.
const CHUNKS: u64 = 20_000;
/// How often it is asked for.
const ASKED: u64 = 1000;
/// Nanoseconds of CPU that all of that may take; a walk each time takes 2 s.
const ASKED_CPU_MAX: u64 = 200_000_000;

/// Nanoseconds that this thread has run.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    stat.split(' ').next().expect("a number").parse().expect("a number")
}

/// What it takes to say how much there is on the disk, and in a target.
fn ask(store: &Store, target: TargetId) -> u64 {
    let begin = cpu();
    for _ in 0..ASKED {
        std::hint::black_box((store.space(), store.chunk_count(target)));
    }
    cpu() - begin
}

/// Heartbeats ask: with millions of chunks, or of tombstones, they may not take as long as the lease.
#[test]
fn what_there_is_takes_no_walk() {
    const OTHER: TargetId = TargetId(4);
    let disk = Disk::new(31);
    let d = disk.clone();
    run(31, &disk, |rt| async move {
        let config = StoreConfig { log_bytes_max: 64 << 20, ..config() };
        let store = Store::open(&rt, d.dir(), config).await.expect("open");
        store.create_target(T).await.expect("target");
        store.create_target(OTHER).await.expect("target");
        for i in 0..CHUNKS {
            let kind = StageKind::Remove;
            store.stage(T, request(i, 1, kind, vec![])).await.expect("a tombstone");
            let all = request(i, 1, StageKind::Replace, vec![1]);
            store.stage(OTHER, all).await.expect("written");
        }
        assert_eq!((store.chunk_count(T), store.chunk_count(OTHER)), (0, CHUNKS));
        for target in [T, OTHER] {
            let took = ask(&store, target);
            assert!(took < ASKED_CPU_MAX, "target {target}: {took} ns");
        }
    })
    .expect("ran");
}

/// The number is that of what is listed, whatever was done, and after a start.
#[test]
fn the_number_is_that_of_the_list() {
    let disk = Disk::new(32);
    let d = disk.clone();
    run(32, &disk, |rt| async move {
        let rng = Rng::new(32);
        let mut store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let mut seen = BTreeSet::new();
        for step in 0..4000 {
            let chunk = rng.below(6);
            let newest = store.pending(T, id(chunk)).last().map(|p| p.version);
            let committed = store.chunk(T, id(chunk)).map_or(ChunkVersion(0), |c| c.committed);
            let next = newest.unwrap_or(committed).max(committed).0 + 1;
            let (kind, payload) = match rng.below(4) {
                0 | 1 => (StageKind::Remove, vec![]),
                2 => (StageKind::Replace, bytes(step, 100)),
                _ => (StageKind::Write, bytes(step, 5000)),
            };
            let update = request(chunk, next, kind, payload);
            match rng.below(12) {
                0..=3 => drop(store.stage(T, StageRequest { commit: false, ..update }).await),
                4..=6 => drop(store.stage(T, update).await),
                7 | 8 => drop(store.commit(T, id(chunk), ChunkVersion(next - 1)).await),
                9 => drop(store.discard(T, id(chunk), ChunkVersion(next - 1)).await),
                _ => match rng.below(40) {
                    0 => store.purge_tombstones(T).await.expect("purged"),
                    1 => store.checkpoint().await.expect("checkpoint"),
                    2 => {
                        store.close().await.expect("closed");
                        drop(store);
                        store = Store::open(&rt, d.dir(), config()).await.expect("open");
                    }
                    _ => {}
                },
            }
            let listed = store.list(T, None, 100).await.0.len() as u64;
            assert_eq!(store.chunk_count(T), listed, "step {step}");
            seen.insert(listed);
        }
        assert!(seen.len() > 5, "{seen:?}");
    })
    .expect("ran");
}

/// A target is removed while one of its updates is under way, which comes into the log behind that: what it took is free at once, not only after
/// a start.
#[test]
fn a_stage_that_ends_behind_the_removal_of_its_target_leaves_nothing_used() {
    let disk = Disk::new(33);
    let d = disk.clone();
    run(33, &disk, |rt| async move {
        let store = Rc::new(Store::open(&rt, d.dir(), config()).await.expect("open"));
        store.create_target(T).await.expect("target");
        // It takes several operations to put a large update into slots, and one to put the removal into the log.
        d.slow_down(&rt, Duration::from_millis(2));
        let s = store.clone();
        let large = request(1, 1, StageKind::Write, bytes(1, 128 << 10));
        let stage = rt.spawn(async move { s.stage(T, large).await });
        rt.yield_now().await;
        store.remove_target(T).await.expect("removed");
        stage.await.expect("the target was there when it began");
        assert_eq!(store.space().used_bytes, 0);
    })
    .expect("ran");
}
