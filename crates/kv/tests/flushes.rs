//! What the embedded engine answers while a flush or a write of its log takes time.

use crate::disk::Disk;
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Transaction};
use glowfs_rt::{Duration, Rt, Task, real};
use glowfs_types::{ClusterId, Result, Status};
use std::rc::Rc;

/// Nothing is flushed for its age.
async fn open(rt: &Rt, disk: &Rc<Disk>) -> Embedded {
    let config = EmbeddedConfig {
        flush_interval: Duration::from_secs(3600),
        checkpoint_log_bytes: u64::MAX,
        ..EmbeddedConfig::new(ClusterId(7))
    };
    Embedded::open(rt, disk.dir(), config).await.expect("open")
}

/// A commit of one key, under way.
async fn commit(rt: &Rt, engine: &Embedded, key: &'static str, durable: bool) -> Task<Result<u64>> {
    let tx = Transaction::new(Rc::new(engine.clone()));
    let task = rt.spawn(async move {
        tx.put(key, key)?;
        tx.commit(durable).await
    });
    settle(rt).await;
    task
}

/// The end of the engine, under way.
async fn close(rt: &Rt, engine: &Embedded) -> Task<Result<()>> {
    let engine = engine.clone();
    let task = rt.spawn(async move { engine.close().await });
    settle(rt).await;
    task
}

/// Everything that can go on goes on.
async fn settle(rt: &Rt) {
    for _ in 0..100 {
        rt.yield_now().await;
    }
}

/// The system tells an error of the disk to one flush of a file only: nobody is answered by another one that ends well.
#[test]
fn of_two_flushes_at_once_one_fails() {
    real::run(|rt| async move {
        for newest_first in [false, true] {
            let what = format!("newest first: {newest_first}");
            let disk = Disk::new();
            let engine = open(&rt, &disk).await;
            disk.syncs.shut();
            let durable = commit(&rt, &engine, "a", true).await;
            // A checkpoint begins with a fresh segment, and flushes the one before.
            let other = engine.clone();
            let checkpoint = rt.spawn(async move { other.checkpoint().await });
            settle(&rt).await;
            disk.fail_sync.set(1);
            disk.syncs.open(newest_first);
            let e = durable.await.expect_err(&what);
            assert_eq!(e.status, Status::CommitUnknown, "{what}: {e}");
            checkpoint.await.expect_err(&what);
            assert!(engine.failure().is_some(), "{what}");
        }
    });
}

/// Of a flush that failed nobody knows what it left, whatever it says: that there was no room was taken for a lack of room, and the log was given the reserve.
#[test]
fn a_flush_that_fails_for_want_of_room_is_a_failed_flush() {
    real::run(|rt| async move {
        for checkpoint in [false, true] {
            let what = format!("for a checkpoint: {checkpoint}");
            let disk = Disk::new();
            let config = EmbeddedConfig {
                flush_interval: Duration::from_secs(3600),
                segment_bytes: 256 << 10,
                reserve_bytes: 64 << 10,
                checkpoint_log_bytes: u64::MAX,
                ..EmbeddedConfig::new(ClusterId(7))
            };
            let engine = Embedded::open(&rt, disk.dir(), config).await.expect("open");
            commit(&rt, &engine, "a", true).await.await.expect("flushed");
            if !checkpoint {
                // The segment is full then: its head, what began the life, and these.
                for _ in 0..61 {
                    commit(&rt, &engine, "b", false).await.await.expect("written");
                }
            }
            let reserve = engine.stats().reserve_bytes;
            disk.sync_errno.set(28);
            disk.fail_sync.set(1);
            if checkpoint {
                engine.checkpoint().await.expect_err(&what);
            } else {
                let e = commit(&rt, &engine, "c", false).await.await.expect_err(&what);
                assert_eq!(e.status, Status::CommitUnknown, "{what}: {e}");
            }
            assert_eq!(disk.fail_sync.get(), 0, "{what}: nothing was flushed");
            let failure = engine.failure().expect(&what);
            assert!(failure.message.contains("restart"), "{what}: {failure}");
            let stats = engine.stats();
            assert_eq!((stats.reserve_bytes, stats.full), (reserve, false), "{what}");
            let there = keys(&rt, &disk).await;
            assert_eq!(there.first().map(Vec::as_slice), Some(&b"a"[..]), "{what}");
        }
    });
}

/// What is answered while the engine closes, or just before, is on the disk when it has closed; nobody waits for ever.
#[test]
fn commits_beside_the_end_are_flushed_or_refused() {
    real::run(|rt| async move {
        for (durable, before) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("durable: {durable}, before the end: {before}");
            let disk = Disk::new();
            let engine = open(&rt, &disk).await;
            commit(&rt, &engine, "a", false).await.await.expect("written");
            disk.syncs.shut();
            let (commit, close) = if before {
                disk.writes.shut();
                (commit(&rt, &engine, "b", durable).await, close(&rt, &engine).await)
            } else {
                let close = close(&rt, &engine).await;
                disk.writes.shut();
                (commit(&rt, &engine, "b", durable).await, close)
            };
            disk.syncs.open(false);
            settle(&rt).await;
            disk.writes.open(false);
            let end = async { (close.await, commit.await) };
            let Ok((closed, committed)) = rt.timeout(Duration::from_secs(10), end).await else {
                panic!("{what}: somebody waits for ever");
            };
            closed.expect(&what);
            let there = keys(&rt, &disk).await;
            match committed {
                Ok(_) => assert_eq!(there, [b"a", b"b"], "{what}"),
                Err(e) => assert!(!before && e.status == Status::ShuttingDown, "{what}: {e}"),
            }
        }
    });
}

/// What is there after a loss of power that takes all that was not flushed.
async fn keys(rt: &Rt, disk: &Rc<Disk>) -> Vec<Vec<u8>> {
    let engine = open(rt, &disk.without_unflushed()).await;
    let version = engine.begin().await.expect("begin");
    let page = engine.get_range(version, vec![], vec![0xff], 10, false).await.expect("range");
    page.entries.into_iter().map(|(key, _)| key).collect()
}

/// To be without a descriptor for a while is no reason to take no commits any more.
#[test]
fn a_segment_that_finds_no_descriptor_is_made_later() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = open(&rt, &disk).await;
        commit(&rt, &engine, "a", true).await.await.expect("committed");
        // The next segment, and the checkpoint's own file.
        disk.scarce.set(4);
        engine.checkpoint().await.expect("written in the end");
        assert_eq!(disk.scarce.get(), 0, "nothing was missing: the test proves nothing");
        commit(&rt, &engine, "b", true).await.await.expect("committed");
        assert!(engine.failure().is_none());
    });
}

/// The log has room: a checkpoint that has none is no reason to take no commits any more.
#[test]
fn a_checkpoint_without_room_is_written_later() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let config = EmbeddedConfig {
            checkpoint_log_bytes: 16 << 10,
            checkpoint_pause: Duration::from_millis(50),
            ..EmbeddedConfig::new(ClusterId(7))
        };
        let engine = Embedded::open(&rt, disk.dir(), config).await.expect("open");
        disk.full.set(Some("checkpoint.tmp"));
        let tmp = || disk.names().iter().any(|name| name == "checkpoint.tmp");
        for i in 0..100u8 {
            let tx = Transaction::new(Rc::new(engine.clone()));
            tx.put(vec![i], vec![i; 1000]).expect("small");
            tx.commit(i % 8 == 0).await.expect("the log has room");
            rt.sleep(Duration::from_millis(5)).await;
        }
        let stats = engine.stats();
        assert!(stats.checkpoints_without_room > 1, "{stats:?}");
        assert_eq!((stats.checkpoints, engine.failure()), (0, None), "{stats:?}");
        rt.sleep(Duration::from_millis(1)).await;
        assert!(!tmp(), "it takes room that the log needs: {:?}", disk.names());
        // It comes by itself as soon as there is room.
        disk.full.set(None);
        let written = async {
            while engine.stats().checkpoints == 0 {
                rt.sleep(Duration::from_millis(5)).await;
            }
        };
        rt.timeout(Duration::from_secs(10), written).await.expect("a checkpoint");
        engine.close().await.expect("closed");
        let there = keys(&rt, &disk).await;
        assert_eq!(there.len(), 10, "a page of what is there");
    });
}

/// Commits so much that checkpoints are due, and says how many keys there are then.
async fn fill(rt: &Rt, engine: &Embedded, from: u8) -> usize {
    for i in from..from + 60 {
        let tx = Transaction::new(Rc::new(engine.clone()));
        tx.put(vec![i], vec![i; 1000]).expect("small");
        tx.commit(i % 8 == 0).await.expect("there is room for it");
        rt.sleep(Duration::from_millis(2)).await;
    }
    from as usize + 60
}

async fn count(engine: &Embedded) -> usize {
    let version = engine.begin().await.expect("begin");
    let page = engine.get_range(version, vec![], vec![0xff], 1000, false).await.expect("range");
    page.entries.len()
}

fn eager() -> EmbeddedConfig {
    EmbeddedConfig {
        checkpoint_log_bytes: 16 << 10,
        checkpoint_pause: Duration::from_millis(20),
        reserve_bytes: 64 << 10,
        ..EmbeddedConfig::new(ClusterId(7))
    }
}

/// The room for a whole segment is only taken beforehand: to have less was an error that stopped all commits, again after each start.
#[test]
fn a_segment_without_all_its_room_grows_as_it_is_written() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), eager()).await.expect("open");
        disk.scant.set(true);
        let keys = fill(&rt, &engine, 0).await;
        assert!(engine.stats().checkpoints > 0, "{:?}", engine.stats());
        assert_eq!(engine.failure(), None);
        engine.close().await.expect("closed");
        let engine = Embedded::open(&rt, disk.dir(), eager()).await.expect("open again");
        assert_eq!(count(&engine).await, keys);
        let keys = fill(&rt, &engine, keys as u8).await;
        engine.close().await.expect("closed");
        let lost = disk.without_unflushed();
        let engine = Embedded::open(&rt, lost.dir(), eager()).await.expect("after all");
        assert_eq!(count(&engine).await, keys);
    });
}

/// Where not even the head of a segment fits, a checkpoint leaves all as it is.
#[test]
fn a_checkpoint_that_gets_no_segment_goes_on_in_the_one_in_use() {
    goes_on_without(|disk, without| disk.no_segment.set(without));
}

/// Nor where there is no room for its name; that ended the engine.
#[test]
fn a_checkpoint_that_gets_no_file_goes_on_in_the_one_in_use() {
    goes_on_without(|disk, without| disk.no_name.set(without));
}

fn goes_on_without(room: fn(&Disk, bool)) {
    real::run(move |rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), eager()).await.expect("open");
        room(&disk, true);
        let keys = fill(&rt, &engine, 0).await;
        let stats = engine.stats();
        assert!(stats.checkpoints_without_room > 0 && stats.checkpoints == 0, "{stats:?}");
        assert_eq!(engine.failure(), None);
        let logs = disk.names().iter().filter(|n| n.starts_with("log-")).count();
        assert_eq!(logs, 1, "{:?}", disk.names());
        let tx = Transaction::new(Rc::new(engine.clone()));
        tx.put(vec![0], vec![1]).expect("small");
        tx.commit(true).await.expect("durable");
        let lost = disk.without_unflushed();
        room(&lost, false);
        let after = Embedded::open(&rt, lost.dir(), eager()).await.expect("after a loss of power");
        assert_eq!(count(&after).await, keys);
        room(&disk, false);
        let written = async {
            while engine.stats().checkpoints == 0 {
                rt.sleep(Duration::from_millis(5)).await;
            }
        };
        rt.timeout(Duration::from_secs(10), written).await.expect("a checkpoint in the end");
        engine.close().await.expect("closed");
    });
}
