//! Slots that are mostly dead: a checkpoint copies what is left in them elsewhere and gives them up, and begins for that alone.

use crate::fake::{Crash, Disk, run};
use crate::small::{CHUNK_BYTES, T, bytes, id, request, update};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::{ChunkVersion, Status};
use std::rc::Rc;

/// The size of the chunk that is written over at shifting places,
const GREAT: u32 = 1 << 20;
/// of each write,
const WRITE: usize = 512 << 10;
/// and how much further on the next one begins.
const SHIFT: u32 = 4096;

/// The log is never full.
fn config() -> StoreConfig {
    let mib = 1 << 20;
    StoreConfig { log_segment_bytes: mib, log_bytes_max: 64 * mib, ..crate::small::config() }
}

async fn open(rt: &Rt, disk: &Rc<Disk>) -> Store {
    let store = Store::open(rt, disk.dir(), config()).await.expect("open");
    store.create_target(T).await.expect("target");
    store
}

/// Writes from one end of a chunk to the other; what is in it then.
async fn write_shifting(store: &Store, index: u64) -> Vec<u8> {
    let mut content = vec![0; GREAT as usize];
    for k in 0..=(GREAT as usize - WRITE) as u32 / SHIFT {
        let (at, payload) = (k * SHIFT, bytes(u64::from(k), WRITE));
        content[at as usize..at as usize + WRITE].copy_from_slice(&payload);
        let write = update(index, 1 + u64::from(k), StageKind::Write, at, payload);
        store.stage(T, StageRequest { chunk_bytes: GREAT, ..write }).await.expect("written");
    }
    content
}

async fn holds(rt: &Rt, store: &Store, index: u64, content: &[u8]) {
    let (r, buf) = store.read(T, id(index), 0, rt.alloc(content.len().max(4096))).await;
    assert_eq!(r.expect("readable").len as usize, content.len(), "chunk {index}");
    assert!(buf[..content.len()] == *content, "chunk {index}");
}

#[test]
fn writes_at_shifting_places_leave_no_more_than_twice_the_chunk() {
    for (seed, crash) in (0..4).zip([Crash::Kill, Crash::Power].into_iter().cycle()) {
        let disk = Disk::new(seed);
        let d = disk.clone();
        let content = run(seed, &disk, |rt| async move {
            let store = open(&rt, &d).await;
            let content = write_shifting(&store, 1).await;
            store.checkpoint().await.expect("a checkpoint");
            let after = store.space().used_bytes;
            assert!(after <= 2 * u64::from(GREAT), "{after} bytes used");
            holds(&rt, &store, 1, &content).await;
            // What was given up is used anew.
            let more = write_shifting(&store, 2).await;
            holds(&rt, &store, 1, &content).await;
            holds(&rt, &store, 2, &more).await;
            store.flush(T).await.expect("flushed");
            content
        });
        let (content, disk) = (content.expect("ran"), disk.after(crash, seed));
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let store = open(&rt, &d).await;
            holds(&rt, &store, 1, &content).await;
            // Nothing is written, and it knows of the second one all the same.
            store.checkpoint().await.expect("a checkpoint");
            let after = store.space().used_bytes;
            assert!(after <= 4 * u64::from(GREAT), "{after} bytes used");
            holds(&rt, &store, 1, &content).await;
        })
        .expect("ran");
    }
}

#[test]
fn a_checkpoint_begins_when_much_has_died() {
    let disk = Disk::new(7);
    let d = disk.clone();
    run(7, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let content = write_shifting(&store, 1).await;
        rt.sleep(Duration::from_secs(1)).await;
        let used = store.space().used_bytes;
        assert!(used <= 20 << 20, "{used} bytes used");
        holds(&rt, &store, 1, &content).await;
    })
    .expect("ran");
}

#[test]
fn a_chunk_that_is_cut_short_keeps_no_more_than_it_needs() {
    let disk = Disk::new(8);
    let d = disk.clone();
    run(8, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let whole = CHUNK_BYTES as usize;
        for i in 0..40 {
            store.stage(T, request(i, 1, StageKind::Write, bytes(i, whole))).await.expect("write");
            let cut = request(i, 2, StageKind::Truncate, Vec::new());
            store.stage(T, StageRequest { len: 10_000, ..cut }).await.expect("cut");
        }
        // One has a pending version whose slot must stay, and one is read meanwhile.
        let pending = request(5, 3, StageKind::Write, bytes(500, whole));
        store.stage(T, StageRequest { commit: false, ..pending }).await.expect("staged");
        let before = store.space().used_bytes;
        let (read, checkpoint) =
            glowfs_rt::sync::join(store.read(T, id(6), 0, rt.alloc(10_000)), store.checkpoint())
                .await;
        checkpoint.expect("a checkpoint");
        assert!(read.1[..] == bytes(6, 10_000)[..]);
        let after = store.space().used_bytes;
        assert!(before >= 10 << 20 && after <= 1 << 20, "{before} bytes used, then {after}");
        for i in 0..40 {
            holds(&rt, &store, i, &bytes(i, 10_000)).await;
        }
        store.commit(T, id(5), ChunkVersion(3)).await.expect("committed");
        holds(&rt, &store, 5, &bytes(500, whole)).await;
    })
    .expect("ran");
}

/// Little by little, so that no cut says that much has died.
#[test]
fn a_chunk_that_is_cut_again_and_again_keeps_no_more_than_it_needs() {
    let disk = Disk::new(9);
    let d = disk.clone();
    run(9, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        for i in 0..40 {
            let whole = bytes(i, CHUNK_BYTES as usize);
            store.stage(T, request(i, 1, StageKind::Write, whole)).await.expect("write");
        }
        for (version, kib) in (2..).zip((16..256).step_by(16).rev()) {
            for i in 0..40 {
                let cut = request(i, version, StageKind::Truncate, Vec::new());
                store.stage(T, StageRequest { len: kib << 10, ..cut }).await.expect("cut");
            }
        }
        store.checkpoint().await.expect("a checkpoint");
        let used = store.space().used_bytes;
        assert!(used <= 1 << 20, "{used} bytes used");
        for i in 0..40 {
            holds(&rt, &store, i, &bytes(i, 16 << 10)).await;
        }
    })
    .expect("ran");
}

/// A chunk whose blocks are being moved is written anew, twice, and has its old slot again if that is free meanwhile: what was there before must not take the
/// place of what is there now.
#[test]
fn what_is_moved_is_what_was_read() {
    let disk = Disk::new(10);
    let d = disk.clone();
    run(10, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let write = async |version: u64| {
            let whole = bytes(version, CHUNK_BYTES as usize);
            store.stage(T, request(1, version, StageKind::Write, whole)).await.expect("written");
        };
        let cut = async |version| {
            let cut = request(1, version, StageKind::Truncate, Vec::new());
            store.stage(T, StageRequest { len: 16 << 10, ..cut }).await.expect("cut");
            store.flush(T).await.expect("flushed");
        };
        write(1).await;
        cut(2).await;
        d.hold("blocks-14");
        let write_anew = async {
            rt.sleep(Duration::from_secs(1)).await;
            assert!(d.holds(), "nothing is moved");
            write(3).await;
            store.flush(T).await.expect("flushed");
            write(4).await;
            cut(5).await;
            d.let_go();
        };
        let (checkpoint, ()) = glowfs_rt::sync::join(store.checkpoint(), write_anew).await;
        checkpoint.expect("a checkpoint");
        holds(&rt, &store, 1, &bytes(4, 16 << 10)).await;
    })
    .expect("ran");
}

/// The reserve of a store that becomes full.
const RESERVE: u64 = 16 << 20;

/// Writes as a storage service admits it, or until nothing goes in; how many chunks from `first` on, up to `most`.
async fn fill(rt: &Rt, store: &Store, first: u64, len: usize, admits: bool, most: u64) -> u64 {
    let (mut there, mut refused) = (0, 0);
    while there < most && refused < 40 {
        let i = first + there;
        let write = request(i, 1, StageKind::Write, bytes(i, len));
        let written = match admits && store.free_bytes() <= RESERVE / 32 {
            true => Err(Status::NoSpace.into()),
            false => store.stage(T, write).await,
        };
        match written {
            Ok(()) => there += 1,
            Err(e) => {
                assert_eq!(e.status, Status::NoSpace, "{e}");
                refused += 1;
                rt.sleep(Duration::from_millis(100)).await;
            }
        }
    }
    there
}

/// With the little room that is left some chunks can be moved, with what that frees the next. Where there is none at all, the store rests.
#[test]
fn a_store_that_is_nearly_full_gets_its_room_back_and_does_not_spin() {
    for (seed, admits) in (0..8).zip([true, false].into_iter().cycle()) {
        let disk = Disk::new(seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            d.capacity.set(40 << 20);
            let cfg = StoreConfig { reserve_bytes: RESERVE, ..config() };
            let store = Store::open(&rt, d.dir(), cfg).await.expect("open");
            store.create_target(T).await.expect("target");
            let rest = 60_000;
            let n = fill(&rt, &store, 0, CHUNK_BYTES as usize, admits, u64::MAX).await;
            assert!(n > 40, "{n} chunks");
            for i in 0..n {
                let cut = request(i, 2, StageKind::Truncate, Vec::new());
                store.stage(T, StageRequest { len: rest, ..cut }).await.expect("cut");
            }
            let back = fill(&rt, &store, n, 70_000, admits, n).await;
            assert!(back == n || !admits, "{back} of {n}");
            let before = d.syncs.get();
            for k in 0..100 {
                fill(&rt, &store, n + back + k, 200_000, admits, 1).await;
                rt.sleep(Duration::from_secs(1)).await;
            }
            let flushes = d.syncs.get() - before;
            assert!(flushes < 600, "{flushes} flushes in more than 100 s");
            for i in 0..n {
                holds(&rt, &store, i, &bytes(i, rest as usize)).await;
            }
        })
        .expect("ran");
    }
}
