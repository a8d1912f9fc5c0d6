//! The store on a real file system.

use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::sync::{join, join_all};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::checksum::{crc32c, piece_checksums};
use glowfs_types::{ChunkId, ChunkVersion, ClusterId, DataId, NodeId, Status, TargetId, VolumeId};

const T: TargetId = TargetId(7);

fn config() -> StoreConfig {
    StoreConfig {
        log_segment_bytes: 1 << 20,
        log_bytes_max: 4 << 20,
        reserve_bytes: 0,
        ..StoreConfig::new(ClusterId(1), NodeId(2))
    }
}

fn chunk(index: u64) -> ChunkId {
    ChunkId { volume: VolumeId(1), data: DataId(5), index }
}

fn write(c: u64, version: u64, offset: u32, bytes: Vec<u8>, commit: bool) -> StageRequest {
    let mut crcs = Vec::new();
    piece_checksums(offset, &bytes, &mut crcs);
    StageRequest {
        anew: false,
        any_version: false,
        damaged: false,
        chunk: chunk(c),
        version: ChunkVersion(version),
        kind: StageKind::Write,
        offset,
        len: 0,
        payload: Buf::from_vec(bytes),
        crcs,
        chunk_bytes: 1 << 20,
        channel: None,
        commit,
        flush: false,
    }
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

async fn read_all(store: &Store, rt: &Rt, c: u64, len: usize) -> Vec<u8> {
    let (r, buf) = store.read(T, chunk(c), 0, rt.alloc(len)).await;
    let r = r.expect("readable");
    assert_eq!(r.crc, crc32c(&buf));
    buf.to_vec()
}

/// The size in a tombstone is whatever the removal named. A pending version above it has its own: a whole content that was sent
/// with the tombstone's size was refused for ever (simulator).
#[test]
fn a_pending_version_knows_its_own_size() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let removal = StageRequest {
            kind: StageKind::Remove,
            payload: Buf::from_vec(Vec::new()),
            crcs: Vec::new(),
            chunk_bytes: 4096,
            any_version: true,
            damaged: false,
            ..write(0, 5, 0, vec![1], true)
        };
        store.stage(T, removal).await.expect("tombstone");
        store.stage(T, write(0, 6, 0, pattern(1, 9000), false)).await.expect("staged");
        let pending = store.pending(T, chunk(0));
        assert_eq!((pending[0].len, pending[0].chunk_bytes), (9000, 1 << 20));
    });
}

/// Who says that a chunk begins anew is believed where the chunk is gone and nothing of it under way; nobody else comes after a gap.
#[test]
fn a_chunk_begins_anew_only_where_that_is_said_and_it_is_gone() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let open = async || Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await;
        let store = open().await.expect("open");
        store.create_target(T).await.expect("target");
        let removal = StageRequest {
            kind: StageKind::Remove,
            payload: Buf::from_vec(Vec::new()),
            crcs: Vec::new(),
            any_version: true,
            ..write(1, 5, 0, vec![1], true)
        };
        store.stage(T, removal).await.expect("tombstone");
        let next = |c, version| write(c, version, 0, pattern(3, 9000), false);
        let anew = |c, version| StageRequest { anew: true, ..next(c, version) };
        let gap = async |request| {
            let refused = store.stage(T, request).await.expect_err("a gap");
            assert_eq!(refused.status, Status::VersionGap);
        };
        // One that was never here, and one that was removed as version 5.
        for (c, next_version) in [(0, 1), (1, 6)] {
            gap(next(c, next_version + 1)).await;
            store.stage(T, anew(c, next_version + 3)).await.expect("begins anew");
            gap(anew(c, next_version + 5)).await;
            store.stage(T, next(c, next_version + 4)).await.expect("follows");
            store.discard(T, chunk(c), ChunkVersion(next_version)).await.expect("discarded");
            gap(next(c, next_version + 3)).await;
            store.stage(T, next(c, next_version)).await.expect("it is as before");
            store.discard(T, chunk(c), ChunkVersion(next_version)).await.expect("discarded");
            store.stage(T, anew(c, next_version + 7)).await.expect("begins anew");
            store.commit(T, chunk(c), ChunkVersion(next_version + 7)).await.expect("committed");
            gap(anew(c, next_version + 9)).await;
        }
        store.close().await.expect("closed");
        drop(store);
        let store = open().await.expect("opens again");
        for (c, version) in [(0, 8), (1, 13)] {
            let state = store.chunk(T, chunk(c)).expect("there");
            assert_eq!((state.committed, state.removed), (ChunkVersion(version), false));
            assert_eq!(read_all(&store, &rt, c, 9000).await, pattern(3, 9000));
        }
        store.close().await.expect("closed");
    });
}

/// Two updates at once, of which the second names another chunk size: it was taken, for the chunk did not exist yet, and the log with it refused.
#[test]
fn an_update_that_names_another_size_is_refused_while_the_chunk_is_being_made() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let open = async || Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await;
        let store = open().await.expect("open");
        store.create_target(T).await.expect("target");
        let end = (1 << 20) - 4096;
        let small = |c, version| StageRequest {
            chunk_bytes: 4096,
            ..write(c, version, 0, pattern(2, 4096), false)
        };
        let removal = StageRequest {
            kind: StageKind::Remove,
            payload: Buf::from_vec(Vec::new()),
            crcs: Vec::new(),
            any_version: true,
            ..write(1, 5, 0, vec![1], true)
        };
        store.stage(T, removal).await.expect("tombstone");
        // A chunk that nobody knows, and one that is being made above a tombstone.
        for (c, version) in [(0, 1), (1, 6)] {
            let first = store.stage(T, write(c, version, end, pattern(1, 4096), false));
            let (first, second) = join(first, store.stage(T, small(c, version + 1))).await;
            first.expect("the chunk is made");
            assert_eq!(second.expect_err("another size").status, Status::InvalidArgument);
            let later = store.stage(T, small(c, version + 1)).await;
            assert_eq!(later.expect_err("another size").status, Status::InvalidArgument);
            store.commit(T, chunk(c), ChunkVersion(version)).await.expect("commit");
        }
        store.close().await.expect("closed");
        drop(store);
        let store = open().await.expect("nothing in the log is refused");
        assert!(read_all(&store, &rt, 0, 1 << 20).await.ends_with(&pattern(1, 4096)));
        store.close().await.expect("closed");
    });
}

#[test]
fn written_read_reopened() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let mut model = vec![0u8; 1 << 20];
        {
            let store =
                Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("open");
            assert!(store.was_clean());
            store.create_target(T).await.expect("target");
            store.stage(T, write(0, 1, 0, pattern(1, 1 << 20), true)).await.expect("whole");
            model.copy_from_slice(&pattern(1, 1 << 20));
            let mut version = 1;
            for i in 0..700u32 {
                version += 1;
                let offset = (i * 7_919) % ((1 << 20) - 9000);
                let len = 1 + (i as usize * 131) % 9000;
                store
                    .stage(T, write(0, version, offset, pattern(i, len), false))
                    .await
                    .expect("small");
                store.commit(T, chunk(0), ChunkVersion(version)).await.expect("commit");
                model[offset as usize..offset as usize + len].copy_from_slice(&pattern(i, len));
            }
            assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
            store
                .stage(T, write(0, version + 1, 4096, pattern(3, 300_000), true))
                .await
                .expect("large");
            model[4096..304_096].copy_from_slice(&pattern(3, 300_000));
            let state = store.chunk(T, chunk(0)).expect("there");
            assert_eq!((state.committed.0, state.len), (version + 1, 1 << 20));
            assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
            store.checkpoint().await.expect("checkpoint");
            assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
            store.close().await.expect("close");
        }
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("reopen");
        assert!(store.was_clean());
        assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
        assert!(
            store.scrub_next(T, None).await.expect("scrub").expect("one").bad_blocks.is_empty()
        );
        let other = StoreConfig { cluster: ClusterId(9), ..config() };
        drop(store);
        let e =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), other).await.err().expect("refused");
        assert_eq!(e.status, Status::WrongCluster);
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("again");
        assert!(!store.was_clean(), "it was not closed");
        assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
    });
}

/// What a target is brought up to date with counts, whatever the target has: its last versions may be ones that the chain
/// never acknowledged and will give again.
#[test]
fn a_resync_takes_a_chunk_back_to_an_older_version() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let open = || async {
            let dir = rt.open_dir(&path).expect("dir");
            Store::open(&rt, dir, config()).await.expect("open")
        };
        let resync = |c, version, kind, bytes| StageRequest {
            kind,
            chunk_bytes: 4096,
            any_version: kind == StageKind::Remove,
            ..write(c, version, 0, bytes, true)
        };
        let store = open().await;
        store.create_target(T).await.expect("target");
        for c in 0..4 {
            for version in 1..=7 {
                let data = pattern(version, 9000);
                store.stage(T, write(c, version.into(), 0, data, true)).await.expect("ahead");
            }
        }
        // An older content, an older removal, and a chunk that the chain does not know at all.
        let old = StageRequest {
            chunk_bytes: 1 << 20,
            ..resync(0, 5, StageKind::Replace, pattern(5, 8000))
        };
        store.stage(T, old).await.expect("older content");
        store.stage(T, resync(1, 6, StageKind::Remove, Vec::new())).await.expect("older removal");
        store.stage(T, resync(2, 0, StageKind::Remove, Vec::new())).await.expect("unknown");
        store.stage(T, resync(3, 12, StageKind::Remove, Vec::new())).await.expect("newer removal");
        let mut store = store;
        for round in 0..2 {
            let state = |c| store.chunk(T, chunk(c)).map(|s| (s.committed.0, s.exists()));
            assert_eq!(state(0), Some((5, true)));
            assert_eq!(read_all(&store, &rt, 0, 8000).await, pattern(5, 8000));
            assert_eq!(state(1), Some((6, false)));
            assert_eq!(state(2), None);
            assert_eq!(state(3), Some((12, false)));
            if round == 0 {
                // The log tells the same.
                drop(store);
                store = open().await;
            }
        }
    });
}

#[test]
fn the_next_version_follows_what_the_resync_brought() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for version in 1..=7 {
            store.stage(T, write(0, version, 0, pattern(1, 5000), true)).await.expect("ahead");
        }
        let back =
            StageRequest { kind: StageKind::Replace, ..write(0, 3, 0, pattern(3, 5000), true) };
        // Both are under way at once, as in a resync with concurrent writes.
        let first = rt.spawn({
            let store = store.clone();
            async move { store.stage(T, back).await }
        });
        let next =
            StageRequest { kind: StageKind::Replace, ..write(0, 4, 0, pattern(4, 6000), true) };
        let next = rt.spawn({
            let store = store.clone();
            async move { store.stage(T, next).await }
        });
        first.await.expect("older");
        next.await.expect("and the next");
        store.stage(T, write(0, 5, 0, pattern(5, 6000), true)).await.expect("goes on from there");
        assert_eq!(read_all(&store, &rt, 0, 6000).await, pattern(5, 6000));
    });
}

/// A target that is to be brought up to date forgets its tombstones, and takes its pending versions back after that. One of them left its
/// tombstone behind, so the target took the chunk's next updates for old ones (simulator).
#[test]
fn no_tombstone_is_left_below_a_pending_version() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let removal = StageRequest {
            kind: StageKind::Remove,
            payload: Buf::from_vec(Vec::new()),
            crcs: Vec::new(),
            any_version: true,
            damaged: false,
            ..write(0, 39, 0, vec![1], true)
        };
        store.stage(T, removal).await.expect("tombstone");
        store.stage(T, write(0, 40, 0, pattern(1, 9000), false)).await.expect("pending");
        store.purge_tombstones(T).await.expect("purged");
        assert_eq!(store.pending(T, chunk(0)).len(), 1, "what is pending stays");
        store.checkpoint().await.expect("written down as it is");
        store.discard(T, chunk(0), ChunkVersion(40)).await.expect("taken back");
        assert_eq!(store.chunk(T, chunk(0)), None);
        store.stage(T, write(0, 1, 0, pattern(2, 5000), true)).await.expect("begins anew");
    });
}

#[test]
fn the_room_of_a_removed_chunk_counts_as_free_at_once() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        store.stage(T, write(1, 1, 0, pattern(3, 1 << 20), true)).await.expect("staged");
        let before = store.space();
        assert!(before.used_bytes >= 1 << 20, "{before:?}");
        let remove = StageRequest {
            kind: StageKind::Remove,
            payload: Buf::from_vec(vec![]),
            crcs: vec![],
            ..write(1, 2, 0, vec![0], true)
        };
        store.stage(T, remove).await.expect("removed");
        // Not flushed: the slot may not be used anew yet, but whoever needs it only has to flush.
        assert_eq!(store.space().used_bytes, 0);
    });
}

/// An idle store whose directory was deleted, or holds another store, notices it; a failed one says so for good.
#[test]
fn a_disk_that_is_gone_or_another_one_is_noticed() {
    for other in [false, true] {
        let tmp = tempfile::tempdir().expect("tempdir");
        let path = tmp.path().join("disk");
        let spare = tmp.path().join("spare");
        glowfs_rt::real::run(|rt| async move {
            let dir = |p: &std::path::Path| rt.open_dir(p).expect("dir");
            let store = Store::open(&rt, dir(&path), config()).await.expect("open");
            let beside = dir(&path);
            store.create_target(T).await.expect("target");
            store.probe(&beside).await.expect("all is well");
            if other {
                let second = Store::open(&rt, dir(&spare), config()).await.expect("open");
                second.close().await.expect("closed");
                std::fs::copy(spare.join("superblock"), path.join("superblock")).expect("copied");
            } else {
                std::fs::remove_dir_all(&path).expect("deleted");
            }
            assert_eq!(store.failure(), None, "nobody looked yet");
            let e = store.probe(&beside).await.expect_err("it is gone");
            assert_eq!(e.status, Status::DiskFailed);
            assert!(store.failure().is_some());
            let e =
                store.stage(T, write(1, 1, 0, pattern(1, 100), true)).await.expect_err("failed");
            assert_eq!(e.status, Status::DiskFailed);
            assert_eq!(store.flush(T).await.expect_err("failed").status, Status::DiskFailed);
        });
    }
}

/// What the store asks of a disk waits in a queue when it is much; a check behind all of it took a slow disk for one that hangs.
#[test]
fn the_check_of_a_disk_does_not_wait_for_what_the_store_asked_before() {
    /// More than the kernel, or all helper threads, have of one directory at once.
    const WAITING: usize = 1100;
    glowfs_rt::real::run(|rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let [dir, beside] = [0; 2].map(|_| rt.open_dir(temp.path()).expect("dir"));
        let store = Store::open(&rt, dir.clone(), config()).await.expect("open");
        let path = temp.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let fifo = dir.open("fifo", Default::default()).await.expect("open");
        let reads: Vec<_> = (0..WAITING).map(|_| fifo.read(rt.alloc(1), 0)).collect();
        rt.sleep(Duration::from_millis(20)).await;
        let probe = rt.timeout(Duration::from_secs(5), store.probe(&beside)).await;
        let mut writer = std::fs::File::options().write(true).open(&path).expect("open");
        std::io::Write::write_all(&mut writer, &[1; WAITING]).expect("write");
        assert!(join_all(reads).await.iter().all(|(n, _)| matches!(n, Ok(1))));
        probe.expect("in time").expect("all is well");
        store.close().await.expect("close");
    });
}
