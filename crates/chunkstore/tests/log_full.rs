//! The log is full again and again, and nobody asks for a flush: updates go on all the same.

use crate::fake::{Disk, run};
use crate::small::{T, config};
use glowfs_chunkstore::{StageKind, StageRequest, Store};
use glowfs_rt::sync::join_all;
use glowfs_types::Status;

/// Chunks that are updated side by side.
const CHUNKS: u64 = 6;
/// Updates of each.
const UPDATES: u64 = 40;

/// Great contents go into slots, which the next version gives up; small ones into the log.
fn request(index: u64, version: u64) -> StageRequest {
    let len = if version.is_multiple_of(2) { 90_000 } else { 60_000 };
    crate::small::request(index, version, StageKind::Replace, vec![version as u8; len])
}

/// Updates all chunks side by side on a disk of so many bytes, without a flush; how many were refused.
fn refused(seed: u64, capacity: u64) -> usize {
    let disk = Disk::new(seed);
    disk.capacity.set(capacity);
    let d = disk.clone();
    let done = run(seed, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("a store");
        store.create_target(T).await.expect("a target");
        let writers = (0..CHUNKS).map(|index| update(&store, index));
        join_all(writers).await.into_iter().sum()
    });
    done.expect("not cut off")
}

async fn update(store: &Store, index: u64) -> usize {
    let mut refused = 0;
    let mut version = 1;
    for _ in 0..UPDATES {
        match store.stage(T, request(index, version)).await {
            Ok(()) => version += 1,
            Err(e) if e.status == Status::NoSpace => refused += 1,
            Err(e) => panic!("chunk {index} version {version}: {e}"),
        }
    }
    refused
}

#[test]
fn a_full_log_waits_for_nobodys_flush() {
    for seed in 0..20 {
        assert_eq!(refused(seed, 1 << 30), 0, "seed {seed}");
    }
}

/// Emptying the log takes slots, and there are none: what is given up meanwhile may be what the emptying itself reads.
#[test]
fn a_full_disk_does_not_stop_the_log_for_ever() {
    let tried = (0..60).map(|seed| refused(seed, (1500 + seed * 50) << 10)).collect::<Vec<_>>();
    assert!(tried.iter().any(|n| *n > 0), "never full: {tried:?}");
}
