//! What tells of a flush: without it damage of what was flushed would be taken for a torn end.

use crate::fake::{Crash, Disk, run};
use crate::small::{T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, Store};
use glowfs_rt::Duration;
use glowfs_types::Status;
use std::rc::Rc;

/// The blocks in which batches begin.
fn heads(disk: &Disk) -> Vec<u64> {
    let begins = |b: &u64| &disk.bytes("log-0000", *b)[..4] == b"GBAT";
    disk.blocks("log-0000").into_iter().filter(begins).collect()
}

async fn write(store: &Store, i: u64) {
    store.stage(T, request(i, 1, StageKind::Write, bytes(i, 9000))).await.expect("stage");
}

fn is_refused(disk: &Rc<Disk>) {
    let d = disk.clone();
    let opened = run(2, disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await;
        store.map(|s| (0..3).filter(|i| s.chunk(T, id(*i)).is_some()).count())
    });
    assert_eq!(opened.expect("ran").expect_err("refused").status, Status::Corrupt);
}

/// A batch that is written while the flush runs cannot tell of it, though it follows what was flushed.
#[test]
fn damage_of_what_was_flushed_beside_a_write_is_found() {
    let base = Disk::new(1);
    let b = base.clone();
    let ran = run(1, &base, |rt| async move {
        let store = Store::open(&rt, b.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let write = async |i| write(&store, i).await;
        write(0).await;
        let flushed = heads(&b).len();
        write(1).await;
        b.hold_flushes();
        let beside = async {
            rt.sleep(Duration::from_millis(1)).await;
            assert!(b.holds(), "the flush runs");
            write(2).await;
            b.let_go();
        };
        let (done, ()) = glowfs_rt::sync::join(store.flush(T), beside).await;
        done.expect("flush");
        rt.sleep(Duration::from_secs(1)).await;
        let killed = b.after(Crash::Kill, 5);
        // That a mark was flushed needs no other mark.
        let written = heads(&b).len();
        for _ in 0..3 {
            store.flush(T).await.expect("flush");
            rt.sleep(Duration::from_secs(1)).await;
        }
        assert!(heads(&b).len() <= written + 1, "marks follow marks");
        (flushed, killed)
    });
    let (flushed, disk) = ran.expect("ran");
    disk.flip("log-0000", heads(&disk)[flushed], 90 * 8);
    is_refused(&disk);
}

/// An update that comes just when the mark is written may share its batch, and then that is more than a mark.
#[test]
fn damage_of_a_flushed_update_beside_a_mark_is_found() {
    let mut shared = 0;
    for seed in 0..24 {
        let base = Disk::new(seed);
        let b = base.clone();
        run(seed, &base, |rt| async move {
            let store = Store::open(&rt, b.dir(), config()).await.expect("open");
            store.create_target(T).await.expect("target");
            write(&store, 0).await;
            store.flush(T).await.expect("flush");
            rt.sleep(Duration::from_millis(200)).await;
            write(&store, 1).await;
            store.flush(T).await.expect("flush");
            rt.sleep(Duration::from_secs(1)).await;
        })
        .expect("ran");
        let disk = base.after(Crash::Kill, 5);
        let holds = |b: &u64| disk.bytes("log-0000", *b)[..4096] == bytes(1, 4096);
        let data = disk.blocks("log-0000").into_iter().find(holds).expect("the last update");
        // The number of records.
        shared += u64::from(disk.bytes("log-0000", data - 1)[64] > 1);
        disk.flip("log-0000", data - 1, 90 * 8);
        is_refused(&disk);
    }
    assert!(shared > 0, "no update came just then");
}
