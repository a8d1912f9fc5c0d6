//! What the embedded engine answers while a flush or a write of its log takes time.

mod disk;

use disk::Disk;
use glowfs_kv::{Embedded, EmbeddedConfig, Transaction};
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
