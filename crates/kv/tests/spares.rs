//! Spare segments of the embedded engine: what stood in them before is never taken for what came after, whatever a crash leaves; they are the first that a
//! full disk gets back; and a flush in one has nothing to note but the batch.

use crate::disk::{Disk, rand};
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Transaction};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::ClusterId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Commits of the workload: those that a segment holds, many times.
const COMMITS: u64 = 60;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        flush_interval: Duration::from_millis(2),
        segment_bytes: 16 << 10,
        checkpoint_log_bytes: u64::MAX,
        reserve_bytes: 16 << 10,
        ..EmbeddedConfig::new(ClusterId(7))
    }
}

/// Nothing is flushed for its age.
fn slow() -> EmbeddedConfig {
    EmbeddedConfig { flush_interval: Duration::from_secs(3600), ..config() }
}

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Commits of several blocks and of one, so that new batches lie across the borders of old ones.
fn value(i: u64) -> Vec<u8> {
    vec![i as u8; (i as usize * 1237) % 6000]
}

fn model(n: u64) -> Content {
    let mut all = Content::new();
    for i in 0..n {
        all.insert(b"n".to_vec(), (i + 1).to_le_bytes().to_vec());
        all.insert(vec![b'k', (i % 5) as u8], value(i));
    }
    all
}

async fn content(engine: &Embedded) -> Content {
    let version = engine.begin().await.expect("begin");
    let page = engine.get_range(version, vec![], vec![0xff], 4096, false).await.expect("range");
    page.entries.into_iter().collect()
}

async fn commit(engine: &Embedded, i: u64, durable: bool) -> bool {
    let tx = Transaction::new(Rc::new(engine.clone()));
    tx.put(b"n", (i + 1).to_le_bytes()).expect("small");
    tx.put([b'k', (i % 5) as u8], value(i)).expect("small");
    tx.commit(durable).await.is_ok()
}

/// Runs from commit `from` to an error; how many were answered, and how many of them are on the disk.
async fn workload(engine: &Embedded, from: u64) -> (u64, u64) {
    let (mut acked, mut durable) = (from, from);
    for i in from..from + COMMITS {
        let flush = i % 3 == 1;
        if !commit(engine, i, flush).await {
            break;
        }
        acked = i + 1;
        if flush {
            durable = acked;
        }
        if i % 11 == 7 && engine.checkpoint().await.is_err() {
            break;
        }
    }
    (acked, durable)
}

/// Whether there is a batch behind the end of the log, of what its last segment was before.
fn has_old_batches(disk: &Disk) -> bool {
    let Some(last) = disk.names().into_iter().rfind(|name| name.starts_with("log-")) else {
        return false;
    };
    let bytes = disk.content(&last);
    let first = u64::from_str_radix(&last[4..], 16).expect("a number");
    let sequence = |b: &[u8]| u64::from_le_bytes(b[8..16].try_into().expect("8 bytes"));
    bytes.chunks(4096).skip(1).any(|b| b.starts_with(b"GKVB") && sequence(b) < first)
}

async fn check(rt: &Rt, disk: &Rc<Disk>, least: u64, most: u64, what: &str) {
    let engine = Embedded::open(rt, disk.dir(), slow()).await;
    let engine = engine.unwrap_or_else(|e| panic!("{what}: {e}"));
    let there = content(&engine).await;
    let n = there.get(&b"n"[..]).map_or(0, |n| u64::from_le_bytes(n[..].try_into().expect("8")));
    assert!(least <= n && n <= most, "{what}: {n} of {least} to {most}");
    assert_eq!(there, model(n), "{what}");
    let (acked, _) = workload(&engine, n).await;
    assert_eq!(acked, n + COMMITS, "{what}: after recovery");
    engine.close().await.expect("close");
    let engine = Embedded::open(rt, disk.dir(), slow()).await;
    let engine = engine.unwrap_or_else(|e| panic!("{what}, again: {e}"));
    assert_eq!(content(&engine).await, model(acked), "{what}, again");
    engine.close().await.expect("close");
}

#[test]
fn what_stood_in_a_segment_before_is_never_taken_for_new() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), slow()).await.expect("open");
        assert_eq!(workload(&engine, 0).await.0, COMMITS);
        let stats = engine.stats();
        assert!(stats.recycled > 4, "{stats:?}");
        engine.close().await.expect("close");
        let operations = disk.done.get();
        let (mut seed, mut old) = (1, 0);
        for stop in 0..operations {
            let disk = Disk::new();
            disk.left.set(stop);
            let (acked, durable) = match Embedded::open(&rt, disk.dir(), slow()).await {
                Ok(engine) => workload(&engine, 0).await,
                Err(_) => (0, 0),
            };
            let killed = disk.killed();
            old += u64::from(has_old_batches(&killed));
            check(&rt, &killed, acked, acked + 1, &format!("killed at {stop}")).await;
            for round in 0..3 {
                let disk = disk.unplugged(&mut seed);
                old += u64::from(has_old_batches(&disk));
                let what = format!("power cut at {stop}, {round}");
                check(&rt, &disk, durable, acked + 1, &what).await;
            }
        }
        assert!(
            old > operations / 3,
            "{old}, with {operations} operations: old batches were hardly ever there"
        );
    });
}

/// Each part of a batch of several blocks is new or old, on its own: also where the old part is of a batch that stood at the same place.
#[test]
fn a_batch_torn_over_an_old_one_is_the_end() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), slow()).await.expect("open");
        let (mut n, _) = workload(&engine, 0).await;
        let before = engine.stats().recycled;
        assert!(engine.stats().spares > 0, "{:?}", engine.stats());
        while engine.stats().recycled == before {
            assert!(commit(&engine, n, true).await);
            n += 1;
        }
        assert!(has_old_batches(&disk));
        // Not flushed.
        for i in n..n + 2 {
            assert!(commit(&engine, i, false).await);
        }
        let (mut seed, mut found) = (7, BTreeMap::new());
        for round in 0..400 {
            let after = disk.unplugged(&mut seed);
            let engine = Embedded::open(&rt, after.dir(), slow()).await;
            let engine = engine.unwrap_or_else(|e| panic!("{round}: {e}"));
            let there = content(&engine).await;
            let count = u64::from_le_bytes(there[&b"n"[..]][..].try_into().expect("8 bytes"));
            assert!(n <= count && count <= n + 2, "{round}: {count}");
            assert_eq!(there, model(count), "{round}");
            *found.entry(count - n).or_insert(0) += 1;
            engine.close().await.expect("close");
        }
        assert!(found[&0] > 20 && found.len() > 1, "{found:?}");
        engine.close().await.expect("close");
    });
}

/// Whoever puts a directory back as it was need not remove what it does not name: batches of another past, with sequences yet to come.
#[test]
fn spares_of_another_past_are_removed() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), slow()).await.expect("open");
        workload(&engine, 0).await;
        let spare = disk.names().into_iter().find(|name| name.starts_with("spare-"));
        let name = spare.expect("one");
        let bytes = disk.content(&name);
        assert!(bytes.chunks(4096).any(|b| b.starts_with(b"GKVB")), "it was a segment");
        engine.close().await.expect("close");
        let younger = Disk::new();
        younger.add(&name, bytes);
        let engine = Embedded::open(&rt, younger.dir(), slow()).await.expect("open");
        assert!(!younger.names().contains(&name));
        engine.close().await.expect("close");
    });
}

/// Without a checkpoint there is nothing to recycle: where flushes are waited for a spare is made, and the log goes on in it.
#[test]
fn flushes_that_are_waited_for_have_spares_made() {
    real::run(|rt| async move {
        for durable in [false, true] {
            let disk = Disk::new();
            let engine = Embedded::open(&rt, disk.dir(), config()).await.expect("open");
            for i in 0..12 {
                assert!(commit(&engine, i, durable).await);
                rt.sleep(Duration::from_millis(30)).await;
            }
            let stats = engine.stats();
            assert_eq!(stats.recycled > 1, durable, "{stats:?}");
            engine.close().await.expect("close");
            check(&rt, &disk, 12, 12, "after all").await;
        }
    });
}

/// What a flush would have to put into the journal of the file system: the length of the file. (That its blocks are there the disk of the tests does not tell.)
#[test]
fn in_a_spare_no_batch_makes_the_file_longer() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), slow()).await.expect("open");
        let (n, _) = workload(&engine, 0).await;
        engine.checkpoint().await.expect("checkpoint");
        let (before, begun) = (disk.longer.get(), engine.stats());
        assert!(begun.spares >= 2, "{begun:?}");
        let tx = |i: u64| {
            let tx = Transaction::new(Rc::new(engine.clone()));
            tx.put([b'k', 0], i.to_le_bytes()).expect("small");
            tx
        };
        for i in n..n + 7 {
            tx(i).commit(true).await.expect("committed");
        }
        assert!(engine.stats().recycled > begun.recycled, "{:?}", engine.stats());
        assert_eq!(disk.longer.get(), before);
        engine.close().await.expect("close");
    });
}

/// Room is given up first where it is nobody's loss: nothing is refused, and the reserve stays as it is.
#[test]
fn a_full_disk_gets_the_spares_first() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), config()).await.expect("open");
        let (mut n, _) = workload(&engine, 0).await;
        while engine.stats().spares < 3 {
            assert!(commit(&engine, n, false).await);
            n += 1;
            engine.checkpoint().await.expect("checkpoint");
        }
        let reserve = engine.stats().reserve_bytes;
        // Before anybody has looked, and more than the segment has room for.
        disk.bytes.set(disk.used());
        let tx = Transaction::new(Rc::new(engine.clone()));
        tx.put(b"large", vec![1; 20_000]).expect("small");
        tx.commit(false).await.unwrap_or_else(|e| panic!("{e}: {:?}", engine.stats()));
        let stats = engine.stats();
        assert_eq!((stats.spares, stats.reserve_bytes), (0, reserve), "{stats:?}");
        let tx = Transaction::new(Rc::new(engine.clone()));
        tx.clear(b"large").expect("small");
        tx.commit(false).await.unwrap_or_else(|e| panic!("{e}: {:?}", engine.stats()));
        for _ in 0..3 {
            assert!(commit(&engine, n, false).await, "{:?}", engine.stats());
            n += 1;
        }
        let stats = engine.stats();
        assert_eq!((stats.refused, stats.full), (0, false), "{stats:?}");
        assert!(stats.reserve_bytes >= reserve, "{stats:?}, it had {reserve}");
        // Nor are there any as long as it is scarce.
        rt.sleep(Duration::from_millis(250)).await;
        assert_eq!(engine.stats().spares, 0, "{:?}", engine.stats());
        assert!(disk.names().iter().all(|name| !name.starts_with("spare-")), "{:?}", disk.names());
        assert_eq!(content(&engine).await, model(n));
        engine.close().await.expect("close");
        let mut seed = rand(&mut 5);
        for after in [disk.killed(), disk.unplugged(&mut seed)] {
            after.bytes.set(1 << 40);
            check(&rt, &after, n, n, "after all").await;
        }
    });
}

/// With spares, after some commits.
async fn with_spares(rt: &Rt, disk: &Rc<Disk>) -> (Embedded, u64) {
    let engine = Embedded::open(rt, disk.dir(), slow()).await.expect("open");
    let (n, _) = workload(&engine, 0).await;
    engine.checkpoint().await.expect("checkpoint");
    assert!(engine.stats().spares >= 2, "{:?}", engine.stats());
    (engine, n)
}

/// An operator whose disk is full may look for what he can remove.
#[test]
fn spares_that_somebody_has_removed_are_no_fault() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let (engine, mut n) = with_spares(&rt, &disk).await;
        for name in disk.names().iter().filter(|name| name.starts_with("spare-")) {
            disk.dir().remove(name).await.expect("removed");
        }
        for _ in 0..20 {
            assert!(commit(&engine, n, true).await, "{:?}", engine.failure());
            n += 1;
        }
        // Nor where room is wanted.
        disk.bytes.set(disk.used());
        rt.sleep(Duration::from_millis(250)).await;
        assert_eq!(engine.failure(), None);
        engine.close().await.expect("close");
        let after = disk.unplugged(&mut rand(&mut 6));
        after.bytes.set(1 << 40);
        check(&rt, &after, n, n, "after all").await;
    });
}

/// Where there is no room for its new name, a spare is given up and a segment is made as ever.
#[test]
fn a_spare_that_gets_no_name_is_given_up() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let (engine, mut n) = with_spares(&rt, &disk).await;
        let (before, recycled) = (engine.stats().spares, engine.stats().recycled);
        disk.no_rename.set(true);
        for _ in 0..10 {
            assert!(commit(&engine, n, true).await, "{:?}", engine.failure());
            n += 1;
        }
        let stats = engine.stats();
        assert!(stats.spares < before && stats.recycled == recycled, "{stats:?}");
        let left = disk.names().iter().filter(|name| name.starts_with("spare-")).count() as u64;
        assert_eq!(left, stats.spares, "what is no spare any more is gone");
        disk.no_rename.set(false);
        engine.close().await.expect("close");
        check(&rt, &disk.unplugged(&mut rand(&mut 7)), n, n, "after all").await;
    });
}

/// A name that may not be on the disk: whatever the flush says, nothing is answered by what stands in a segment of that name.
#[test]
fn a_failed_flush_of_a_segments_name_is_the_end() {
    real::run(|rt| async move {
        for (errno, spares) in [(5, true), (28, true), (28, false)] {
            let disk = Disk::new();
            let (engine, mut n) = with_spares(&rt, &disk).await;
            if !spares {
                disk.no_rename.set(true);
            }
            disk.dir_errno.set(errno);
            let first = n;
            while commit(&engine, n, true).await {
                n += 1;
                assert!(n < first + 30, "no segment was begun");
            }
            let failure = engine.failure();
            assert!(failure.is_some(), "errno {errno}, spares: {spares}");
            disk.dir_errno.set(0);
            let _ = engine.close().await;
            check(&rt, &disk.unplugged(&mut rand(&mut 8)), n, n + 1, "what was answered").await;
        }
    });
}
