//! The flush of one file: it is done with when that file is, and has nothing to do where only others have something.

use crate::fake::{Crash, Disk, run};
use crate::small::{CHUNK_BYTES, T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store};
use glowfs_types::{ChunkId, ChunkVersion, DataId, VolumeId};

const ONE: DataId = DataId(5);
const OTHER: DataId = DataId(6);

fn of(data: DataId) -> [(VolumeId, DataId); 1] {
    [(VolumeId(1), data)]
}

/// The first chunk of a file, replaced; small ones go into the log, great ones into slots.
fn update(data: DataId, version: u64, len: usize) -> StageRequest {
    let r = request(0, version, StageKind::Replace, bytes(data.0 + version, len));
    StageRequest { chunk: ChunkId { data, ..id(0) }, ..r }
}

#[test]
fn it_flushes_where_that_file_has_something_only() {
    let disk = Disk::new(1);
    let d = disk.clone();
    run(1, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let flushes = |of: [(VolumeId, DataId); 1]| {
            let (store, d) = (store.clone(), d.clone());
            async move {
                let before = d.syncs.get();
                store.flush_of(T, &of).await.expect("flush");
                d.syncs.get() - before
            }
        };
        store.stage(T, update(ONE, 1, 7_000)).await.expect("stage");
        assert_eq!(flushes(of(OTHER)).await, 0);
        assert!(flushes(of(ONE)).await > 0);
        assert_eq!(flushes(of(ONE)).await, 0, "it is durable");
        // A pending version, its commit, and its end are changes of the file as well.
        store.stage(T, StageRequest { commit: false, ..update(ONE, 2, 100) }).await.expect("stage");
        assert!(flushes(of(ONE)).await > 0);
        store.commit(T, id(0), ChunkVersion(2)).await.expect("commit");
        assert_eq!(flushes(of(OTHER)).await, 0);
        assert!(flushes(of(ONE)).await > 0);
        // One round is of all that was written when it began.
        store.stage(T, update(OTHER, 1, 90_000)).await.expect("stage");
        store.stage(T, update(ONE, 3, 90_000)).await.expect("stage");
        assert!(flushes(of(OTHER)).await > 0);
        assert_eq!(flushes(of(ONE)).await, 0);
    })
    .expect("ran");
}

/// The power goes right after the flush of one of two files, whose updates come by turns.
#[test]
fn what_it_covers_survives_the_power() {
    for seed in 0..20 {
        let disk = Disk::new(seed);
        let d = disk.clone();
        let len =
            move |version: u64| if (version + seed).is_multiple_of(3) { 90_000 } else { 7_000 };
        run(seed, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            store.create_target(T).await.expect("target");
            for version in 1..=1 + seed {
                store.stage(T, update(ONE, version, len(version))).await.expect("stage");
                store.stage(T, update(OTHER, version, len(version))).await.expect("stage");
            }
            store.flush_of(T, &of(ONE)).await.expect("flush");
        })
        .expect("ran");
        let disk = disk.after(Crash::Power, seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            let version = 1 + seed;
            let (read, buf) = store.read(T, id(0), 0, rt.alloc(CHUNK_BYTES as usize)).await;
            let read = read.expect("read");
            assert_eq!((read.version.0, read.len as usize), (version, len(version)), "{seed}");
            assert!(buf[..len(version)] == bytes(ONE.0 + version, len(version))[..], "{seed}");
        })
        .expect("ran");
    }
}
