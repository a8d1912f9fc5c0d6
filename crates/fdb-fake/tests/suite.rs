//! The FoundationDB engine passes the suite of all engines: over the stand-in, or with `GLOWFS_FDB_CLUSTER_FILE` on a real cluster.

mod common;

use common::Place;
use glowfs_kv::dump::{self, format::Header};
use glowfs_kv::{
    Embedded, EmbeddedConfig, Engine, Fdb, Memory, Transaction, conformance, run_transaction,
};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::wire::kv::{KEY_BYTES_MAX, RANGE_ENTRIES_MAX, VALUE_BYTES_MAX};
use glowfs_types::{ClusterId, Status};
use std::rc::Rc;

#[test]
fn conformance() {
    let place = Place::new();
    real::run(move |rt| async move {
        let engine = place.open(&rt, "a");
        conformance::run(&rt, &engine, 5, 200).await.expect("FoundationDB");
        conformance::stamps_are_versions(&engine).await.expect("stamps");
        conformance::counters(&rt, &engine, 8, 25).await.expect("counters");
        engine.flush_barrier().await.expect("barrier");
    });
}

/// Two processes are two threads with engines of their own here: what one commits the other sees at once, and conflicts between them are found.
#[test]
fn two_engines_share_a_cluster() {
    let place = Place::new();
    let config = place.config("b");
    let count = |rt: Rt, engine: Rc<dyn Engine>| async move {
        for _ in 0..100 {
            run_transaction(&rt, &engine, async |tx| {
                let n = tx.get(b"n").await?.map_or(0, |v| v.len());
                tx.put(b"n", vec![0; n + 1])
            })
            .await
            .expect("counted");
        }
    };
    let other = std::thread::spawn(move || {
        real::run(move |rt| async move {
            let engine: Rc<dyn Engine> = Rc::new(Fdb::open(&rt, &config).expect("open"));
            count(rt.clone(), engine).await;
        });
    });
    real::run(move |rt| async move {
        let engine = place.open(&rt, "a");
        count(rt.clone(), engine.clone()).await;
        while !other.is_finished() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        other.join().expect("the other one");
        let tx = Transaction::new(engine);
        assert_eq!(tx.get(b"n").await.expect("read").map(|v| v.len()), Some(200));
        // Another cluster of GlowFS in the same FoundationDB sees nothing of it.
        let mut stranger = Place::new();
        stranger.cluster_file = place.cluster_file.clone();
        let stranger = Transaction::new(stranger.open(&rt, "a"));
        assert_eq!(stranger.get(b"n").await.expect("read"), None);
    });
}

#[test]
fn pages_and_limits() {
    let place = Place::new();
    real::run(move |rt| async move {
        let engine = place.open(&rt, "a");
        const KEYS: u32 = 300;
        for some in 0..3 {
            let tx = Transaction::new(engine.clone());
            for i in (0..KEYS).filter(|i| i % 3 == some) {
                tx.put(i.to_be_bytes(), vec![i as u8; 500]).expect("small");
            }
            tx.commit(false).await.expect("committed");
        }
        let tx = Transaction::new(engine.clone());
        for reverse in [false, true] {
            let page = tx.get_range(&[], &[0xff], RANGE_ENTRIES_MAX, reverse).await.expect("read");
            let mut keys: Vec<_> = page.entries.into_iter().map(|(k, _)| k).collect();
            if reverse {
                keys.reverse();
            }
            let want: Vec<_> = (0..KEYS).map(|i| i.to_be_bytes().to_vec()).collect();
            assert!(keys == want && !page.more, "{} keys", keys.len());
        }
        // Exactly as many as are asked for, and no more.
        let page = tx.get_range(&[], &10u32.to_be_bytes(), 10, false).await.expect("read");
        assert!(page.entries.len() == 10 && !page.more);
        // The greatest key, value, and as many changes as a transaction takes.
        let tx = Transaction::new(engine.clone());
        tx.put(vec![7; KEY_BYTES_MAX], vec![1; VALUE_BYTES_MAX]).expect("within the limits");
        tx.put_versionstamped(vec![8; KEY_BYTES_MAX - 12], vec![], vec![]).expect("within");
        tx.commit(false).await.expect("committed");
        let tx = Transaction::new(engine.clone());
        for i in 0..100_000u32 {
            tx.put(i.to_be_bytes(), vec![]).expect("within our limits");
        }
        let e = tx.commit(false).await.expect_err("FoundationDB counts more than we do");
        assert_eq!(e.status, Status::TooLarge, "{e}");
        assert!(e.message.contains("10000000") && e.message.contains("split"), "{e}");
        // A version that is yet to come.
        let far = engine.begin().await.expect("begin") + 1_000_000_000_000;
        let e = engine.get(far, vec![b"k".to_vec()]).await.expect_err("the future");
        assert!(matches!(e.status, Status::Overloaded | Status::TimedOut), "{e}");
    });
}

/// Everything from one engine to the other and back. FoundationDB keeps a version for 5 s only, so a dump goes on at newer ones.
#[test]
fn dumps_and_loads() {
    let place = Place::new();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_owned();
    real::run(move |rt| async move {
        let from = Memory::engine();
        for some in 0..5u32 {
            let work = async |tx: &Transaction| {
                for i in 0..500u32 {
                    tx.put((some * 500 + i).to_be_bytes(), vec![i as u8; 100])?;
                }
                tx.put_versionstamped(b"stamp".to_vec(), vec![], vec![])
            };
            run_transaction(&rt, &from, work).await.expect("filled");
        }
        let header = || Header { cluster: ClusterId(7), version: 0, taken_ns: 5 };
        let mut file = Vec::new();
        let sum = dump::dump(&from, header(), &mut file, |_| ()).await.expect("dumped");
        let engine = place.open(&rt, "load");
        dump::load(&rt, &engine, &file[..], false, |_| ()).await.expect("loaded");
        dump::compare(&engine, &file[..], |_| ()).await.expect("equal");
        dump::finish(&rt, &engine, async |_| Ok(())).await.expect("used");
        let mut back = Vec::new();
        let again = dump::dump(&engine, header(), &mut back, |_| ()).await.expect("dumped");
        assert_eq!((sum.entries, sum.bytes), (again.entries, again.bytes));
        let (header_back, _) = dump::verify(&back[..], |_| ()).expect("whole");
        let first_version = header_back.version;
        let config = EmbeddedConfig { first_version, ..EmbeddedConfig::new(ClusterId(7)) };
        let embedded = rt.open_dir(&path).expect("a directory");
        let embedded = Embedded::open(&rt, embedded, config).await.expect("open");
        let to: Rc<dyn Engine> = Rc::new(embedded.clone());
        dump::load(&rt, &to, &back[..], false, |_| ()).await.expect("loaded");
        dump::compare(&to, &file[..], |_| ()).await.expect("equal");
        embedded.close().await.expect("closed");
        // Stamps that FoundationDB may have given out before it was set up anew.
        let e = engine.raise_stamps(u64::MAX >> 2).await.expect_err("too far");
        assert!(e.status == Status::NotSupported && e.message.contains("advanceversion"), "{e}");
        // Changed meanwhile: void.
        let changed = dump::dump(&engine, header(), Vec::new(), {
            let (rt, engine) = (rt.clone(), engine.clone());
            move |_| {
                let engine = engine.clone();
                rt.spawn_detached(async move {
                    let tx = Transaction::new(engine);
                    tx.put(b"\xf0meanwhile", b"x").expect("small");
                    tx.commit(false).await.expect("committed");
                });
            }
        });
        let e = changed.await.expect_err("it was changed");
        assert!(e.status == Status::Conflict && e.message.contains("stop all services"), "{e}");
    });
}
