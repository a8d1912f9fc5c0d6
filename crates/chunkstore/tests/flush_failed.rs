//! A flush fails, the process is started again, and later the power goes: the system's cache showed what the disk never had.

use crate::fake::{Crash, Disk, run};
use crate::small::{CHUNK_BYTES, T, config, id};
use glowfs_chunkstore::{StageKind, StageRequest, Store};
use glowfs_rt::sync::join;
use glowfs_rt::{Duration, Rt};
use glowfs_types::{Result, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Updates of one life.
const UPDATES: u64 = 24;

/// The content of a version of a chunk: small ones go into the log, great ones into slots.
fn content(index: u64, version: u64) -> Vec<u8> {
    let len = if (index + version).is_multiple_of(3) { 90_000 } else { 7_000 };
    (0..len).map(|i| (i * 31 + index * 77 + version * 13 + i / 97) as u8).collect()
}

fn request(index: u64, version: u64) -> StageRequest {
    crate::small::request(index, version, StageKind::Replace, content(index, version))
}

/// Versions of chunks.
type Versions = BTreeMap<u64, u64>;

/// What is there, with the right content.
async fn found(rt: &Rt, store: &Store) -> Versions {
    let mut versions: Versions = (0..4).map(|i| (i, 0)).collect();
    if store.targets().is_empty() {
        return versions;
    }
    for index in 0..4 {
        let (r, buf) = store.read(T, id(index), 0, rt.alloc(CHUNK_BYTES as usize)).await;
        let r = r.unwrap_or_else(|e| panic!("chunk {index}: {e}"));
        if r.version.0 > 0 {
            let want = content(index, r.version.0);
            assert!(buf[..r.len as usize] == want[..], "chunk {index}: wrong bytes");
        }
        versions.insert(index, r.version.0);
    }
    versions
}

/// Updates until something fails, with flushes and a checkpoint between; `flushed` gets what a flush has answered for.
async fn work(store: &Store, flushed: &RefCell<Versions>) -> Result<()> {
    store.create_target(T).await?;
    let mut now: Versions =
        (0..4).map(|i| (i, store.chunk(T, id(i)).map_or(0, |c| c.committed.0))).collect();
    for i in 0..UPDATES {
        let version = now.entry(i % 4).or_default();
        *version += 1;
        store.stage(T, request(i % 4, *version)).await?;
        if i == 15 {
            store.checkpoint().await?;
        }
        if i % 5 == 4 {
            store.flush(T).await?;
            *flushed.borrow_mut() = now.clone();
        }
    }
    Ok(())
}

fn at_least(have: &Versions, want: &Versions, what: &str) {
    for (index, version) in want {
        assert!(have[index] >= *version, "{what}: chunk {index} {have:?}, flushed {want:?}");
    }
}

/// Three lives: in the first, flush `fail` fails; after the second, in which everything that was found is flushed, the power goes.
/// Whether there was such a flush.
fn scenario(seed: u64, fail: u64) -> bool {
    let what = format!("seed {seed}, flush {fail}");
    let flushed: Rc<RefCell<Versions>> = Rc::default();
    let disk = Disk::new(seed);
    disk.fail_sync.set(fail);
    let (d, f) = (disk.clone(), flushed.clone());
    let failed = run(seed, &disk, |rt| async move {
        match Store::open(&rt, d.dir(), config()).await {
            Ok(store) => work(&store, &f).await.is_err(),
            Err(_) => true,
        }
    });
    let disk = disk.after(Crash::Kill, seed + 1);
    let (d, f, w) = (disk.clone(), flushed.clone(), what.clone());
    run(seed + 1, &disk, |rt| async move {
        let store =
            Store::open(&rt, d.dir(), config()).await.unwrap_or_else(|e| panic!("{w}: {e}"));
        at_least(&found(&rt, &store).await, &f.borrow(), &w);
        // What a life begins with is durable; half of them end before anything else is.
        *f.borrow_mut() = found(&rt, &store).await;
        if seed.is_multiple_of(2) {
            work(&store, &f).await.unwrap_or_else(|e| panic!("{w}: {e}"));
        }
    });
    let disk = disk.after(Crash::Power, seed + 2);
    let d = disk.clone();
    run(seed + 2, &disk, |rt| async move {
        let opened = Store::open(&rt, d.dir(), config()).await;
        let store = opened.unwrap_or_else(|e| panic!("{what}, after the power cut: {e}"));
        at_least(&found(&rt, &store).await, &flushed.borrow(), &what);
    });
    failed.expect("ran")
}

#[test]
fn any_flush_fails_then_a_restart_then_a_power_cut() {
    let mut failed = 0;
    for seed in 0..4 {
        failed += (1..).take_while(|fail| scenario(seed * 11, *fail)).count();
    }
    assert!(failed > 50, "{failed} flushes failed");
}

/// It reads and writes, and a flush does not end: the check of the disk is content, and whoever has the store can end it for all who wait.
#[test]
fn a_flush_that_hangs_ends_with_its_store() {
    let disk = Disk::new(3);
    let d = disk.clone();
    run(3, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        store.stage(T, request(0, 1)).await.expect("staged");
        d.hold_flushes();
        let looks = async {
            rt.sleep(Duration::from_secs(1)).await;
            store.probe(&d.dir()).await.expect("it reads and writes");
            store.stage(T, request(1, 1)).await.expect("it writes");
            rt.sleep(Duration::from_secs(60)).await;
            store.fail("a flush did not end");
        };
        let (flushed, ()) = join(store.flush(T), looks).await;
        assert_eq!(flushed.expect_err("it is answered").status, Status::DiskFailed);
        d.let_go();
        rt.sleep(Duration::from_secs(1)).await;
    })
    .expect("ran");
}
