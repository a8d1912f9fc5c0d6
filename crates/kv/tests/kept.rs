//! The embedded engine: versions that are kept for those who read one for long, and what goes when they have ended.

use crate::disk::Disk;
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Transaction};
use glowfs_rt::{Duration, real};
use glowfs_types::{ClusterId, Status};
use std::rc::Rc;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        window: Duration::from_millis(50),
        flush_interval: Duration::from_millis(2),
        segment_bytes: 32 << 10,
        checkpoint_log_bytes: u64::MAX,
        ..EmbeddedConfig::new(ClusterId(7))
    }
}

/// A dump of a large file system reads one version for minutes.
#[test]
fn a_version_that_is_kept_can_be_read_beyond_the_window_but_not_at_any_price() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let step = Duration::from_millis(30);
        let config = EmbeddedConfig { kept_bytes: 1 << 20, ..config() };
        let engine = Embedded::open(&rt, disk.dir(), config).await.expect("opens");
        let shared: Rc<dyn Engine> = Rc::new(engine.clone());
        let put = async |value: Vec<u8>| {
            let tx = Transaction::new(shared.clone());
            tx.put(b"k".to_vec(), value).expect("small");
            tx.commit(false).await.expect("committed");
            engine.begin().await.expect("a version")
        };
        let value = async |version| {
            let found = engine.get(version, vec![b"k".to_vec()]).await?;
            Ok::<_, glowfs_types::Error>(found.into_iter().next().flatten())
        };
        let kept = put(b"kept".to_vec()).await;
        engine.keep(kept).await.expect("kept");
        let passed = put(b"passed".to_vec()).await;
        for i in 0..20 {
            put(vec![i]).await;
            rt.sleep(step).await;
        }
        assert_eq!(value(kept).await.expect("kept"), Some(b"kept".to_vec()));
        // What is kept keeps what is newer, too; once it is given up, all is as the window says.
        assert_eq!(value(passed).await.expect("newer"), Some(b"passed".to_vec()));
        for _ in 0..3 {
            engine.keep(put(vec![0]).await).await.expect("four at a time");
        }
        let newest = put(vec![0]).await;
        let e = engine.keep(newest).await.expect_err("four at a time");
        assert_eq!(e.status, Status::Overloaded, "{e}");
        engine.keep(kept).await.expect("again");
        for _ in 0..20 {
            put(vec![0; 90_000]).await;
        }
        rt.sleep(Duration::from_millis(500)).await;
        let e = value(kept).await.expect_err("too much memory");
        assert_eq!(e.status, Status::TooOld, "{e}");
        assert_eq!(engine.keep(kept).await.expect_err("gone").status, Status::TooOld);
        engine.close().await.expect("closed");
    });
}

/// Nobody changes anything when a dump has ended: what was superseded meanwhile goes all the same.
#[test]
fn what_was_superseded_while_a_version_was_kept_goes_when_nobody_keeps_it_any_more() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let kept_for = Duration::from_secs(2);
        let config = EmbeddedConfig { kept_for, ..config() };
        let engine = Embedded::open(&rt, disk.dir(), config).await.expect("opens");
        let shared: Rc<dyn Engine> = Rc::new(engine.clone());
        let put = async |value: Vec<u8>| {
            let tx = Transaction::new(shared.clone());
            tx.put(b"k".to_vec(), value).expect("small");
            tx.commit(false).await.expect("committed");
        };
        put(vec![1; 1000]).await;
        engine.keep(engine.begin().await.expect("a version")).await.expect("kept");
        // Over several steps of the window, and the last of them at once.
        for i in 0..10 {
            put(vec![i; 1000]).await;
            rt.sleep(Duration::from_millis(30)).await;
        }
        put(vec![2; 1000]).await;
        rt.sleep(Duration::from_millis(300)).await;
        let kept = engine.stats();
        assert_eq!((kept.old_versions, kept.old_bytes), (11, 11_000), "the window has passed");
        rt.sleep(kept_for).await;
        let after = engine.stats();
        assert_eq!((after.old_versions, after.old_bytes), (0, 0));
        engine.close().await.expect("closed");
    });
}
