//! What a new life does before, and with, what it has found.

use crate::fake::{Crash, Disk, run, run_observed};
use crate::small::{CHUNK_BYTES, T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store};
use glowfs_rt::{Duration, Rt};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes that are left of a chunk that was cut.
const REST: u32 = 16 << 10;
/// The file of the slots that whole chunks lie in.
const WHOLE: &str = "blocks-18";

/// A chunk is cut, and a checkpoint moves what is left of it; the disk as of when that checkpoint has its name, and the directory was not flushed.
fn killed_behind_a_checkpoint(seed: u64) -> Rc<Disk> {
    let disk = Disk::new(seed);
    disk.yields.set(true);
    let named: RefCell<Option<Rc<Disk>>> = RefCell::default();
    let observe = || {
        if named.borrow().is_none() && disk.file_names().iter().any(|n| n == "checkpoint") {
            *named.borrow_mut() = Some(disk.after(Crash::Kill, seed));
        }
    };
    let d = disk.clone();
    run_observed(seed, &disk, observe, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let whole = request(1, 1, StageKind::Write, bytes(1, CHUNK_BYTES as usize));
        store.stage(T, whole).await.expect("written");
        let cut = request(1, 2, StageKind::Truncate, Vec::new());
        store.stage(T, StageRequest { len: REST, ..cut }).await.expect("cut");
        store.flush(T).await.expect("flushed");
        // Some free slot has no room.
        let slot = u64::from(CHUNK_BYTES);
        assert!(d.len(WHOLE) > slot, "a free slot");
        d.punch(WHOLE, d.len(WHOLE) - slot, slot);
        store.checkpoint().await.expect("a checkpoint");
        assert!(d.file_names().iter().any(|n| n == "blocks-14"), "it was moved");
    })
    .expect("ran");
    named.take().expect("it was named")
}

/// Until the directory is flushed, the power may bring the checkpoint before back, and that refers to slots which this one has given up.
#[test]
fn what_a_checkpoint_has_given_up_is_not_punched_before_that_is_durable() {
    for seed in 0..3 {
        let killed = killed_behind_a_checkpoint(seed);
        for cut in 1.. {
            let disk = killed.after(Crash::Kill, seed);
            // So all slots that are free are punched.
            disk.tells_rooms.set(false);
            disk.cut_at.set(cut);
            let d = disk.clone();
            let opened = run(cut, &disk, |rt| async move {
                Store::open(&rt, d.dir(), config()).await.map(drop).expect("open");
            });
            for fate in 0..12 {
                let disk = disk.after(Crash::Power, fate);
                let (d, what) = (disk.clone(), format!("seed {seed}, cut {cut}, fate {fate}"));
                run(fate, &disk, |rt| async move {
                    let store = Store::open(&rt, d.dir(), config()).await.expect("open");
                    let (r, buf) = store.read(T, id(1), 0, rt.alloc(REST as usize)).await;
                    r.unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert!(buf[..] == bytes(1, REST as usize), "{what}");
                })
                .expect("ran");
            }
            if opened.is_some() {
                break;
            }
        }
    }
}

/// Updates while no checkpoint ends: how much log there is when they wait for one. Then they go on.
async fn filled(rt: &Rt, disk: &Rc<Disk>, store: &Store) -> u64 {
    disk.hold("checkpoint.new");
    let first = store.chunk(T, id(1)).map_or(1, |c| c.committed.0 + 1);
    let updates = async {
        for version in first..first + 40 {
            let update = request(1, version, StageKind::Replace, bytes(version, 60_000));
            store.stage(T, update).await.expect("taken");
        }
    };
    let full = async {
        rt.sleep(Duration::from_secs(5)).await;
        assert!(disk.holds(), "a checkpoint is being written");
        let bytes = store.space().log_bytes;
        disk.let_go();
        bytes
    };
    let ((), bytes) = glowfs_rt::sync::join(updates, full).await;
    store.checkpoint().await.expect("a checkpoint");
    bytes
}

/// A free segment that has no room, and gets none at a start, is left alone; the log has another one in its place when there is room again.
#[test]
fn the_log_has_all_its_segments_after_a_start_without_room() {
    let segment = config().log_segment_bytes;
    let most = config().log_bytes_max;
    let disk = Disk::new(4);
    let d = disk.clone();
    run(4, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        assert_eq!(filled(&rt, &d, &store).await, most);
    })
    .expect("ran");
    let disk = disk.after(Crash::Kill, 4);
    // The one that is written last is needed; of the others the checkpoint has freed all.
    let seq = |name: &str| {
        disk.bytes(name, 0)[32..40].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    };
    let mut logs: Vec<_> =
        disk.file_names().into_iter().filter(|n| n.starts_with("log-")).collect();
    logs.sort_by_key(|n| seq(n));
    disk.punch(&logs[0], 0, segment);
    // For a superblock.
    disk.capacity.set(disk.used() + 4096);
    let d = disk.clone();
    run(5, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        d.capacity.set(1 << 40);
        assert_eq!(filled(&rt, &d, &store).await, most);
    })
    .expect("ran");
}
