//! Damaged files, a full disk, a failing disk: clear errors, never wrong bytes, never a panic.

use crate::fake::{Crash, Disk, Rng, run};
use crate::small::{CHUNK_BYTES, T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::{Result, Status};
use std::rc::Rc;

fn size(index: u64) -> usize {
    if index.is_multiple_of(2) { 100_000 } else { 9_000 }
}

async fn filled(rt: &Rt, disk: &Rc<Disk>, clean: bool) {
    let store = Store::open(rt, disk.dir(), config()).await.expect("open");
    store.create_target(T).await.expect("target");
    for i in 0..6 {
        store.stage(T, request(i, 1, StageKind::Write, bytes(i, size(i)))).await.expect("stage");
        if i == 3 {
            store.checkpoint().await.expect("checkpoint");
        }
    }
    store.flush(T).await.expect("flush");
    store.stage(T, request(6, 1, StageKind::Write, bytes(6, size(6)))).await.expect("stage");
    if clean {
        store.close().await.expect("close");
    }
}

/// Opens and reads all; whatever is given is right. Returns whether something was found wrong.
async fn examine(rt: &Rt, disk: &Rc<Disk>) -> bool {
    let store = match Store::open(rt, disk.dir(), config()).await {
        Ok(s) => s,
        Err(e) => {
            assert!(!e.message.is_empty());
            return true;
        }
    };
    let mut wrong = false;
    for i in 0..7 {
        let (r, buf) = store.read(T, id(i), 0, rt.alloc(CHUNK_BYTES as usize)).await;
        match r {
            Ok(r) if r.version.0 == 0 => wrong = true,
            Ok(r) => {
                assert_eq!(r.len as usize, size(i));
                assert!(buf[..size(i)] == bytes(i, size(i)), "wrong bytes of chunk {i}");
            }
            Err(e) => {
                assert_eq!(e.status, Status::Corrupt, "{e}");
                assert!(buf.iter().all(|b| *b == 0), "unverified bytes left");
                wrong = true;
            }
        }
    }
    let mut after = None;
    let mut bad = false;
    while let Some(s) = store.scrub_next(T, after).await.expect("scrub") {
        bad |= !s.bad_blocks.is_empty();
        after = Some(s.chunk);
    }
    assert!(!bad || wrong, "scrub found what a read did not");
    wrong
}

#[test]
fn a_flipped_bit_anywhere() {
    let rng = Rng::new(1);
    let base = Disk::new(1);
    let b = base.clone();
    run(1, &base, |rt| async move { filled(&rt, &b, true).await });
    let (mut found, mut tried) = (0, 0);
    for name in base.file_names() {
        for block in base.blocks(&name) {
            for _ in 0..2 {
                let disk = base.after(Crash::Kill, 5);
                disk.flip(&name, block, rng.below(4096 * 8) as usize);
                let d = disk.clone();
                let wrong = run(2, &disk, |rt| async move { examine(&rt, &d).await }).expect("ran");
                found += u32::from(wrong);
                tried += 1;
            }
        }
    }
    assert!(found * 2 > tried, "{found} of {tried} were noticed");
}

#[test]
fn a_file_cut_short() {
    let base = Disk::new(1);
    let b = base.clone();
    run(1, &base, |rt| async move { filled(&rt, &b, true).await });
    for name in base.file_names() {
        for len in [0, 4096, 8192, 65536] {
            let disk = base.after(Crash::Kill, 5);
            disk.truncate(&name, len);
            let d = disk.clone();
            run(2, &disk, |rt| async move { examine(&rt, &d).await }).expect("ran");
        }
    }
}

#[test]
fn a_flushed_batch_that_is_damaged_is_not_cut_away() {
    let base = Disk::new(1);
    let b = base.clone();
    run(1, &base, |rt| async move { filled(&rt, &b, false).await });
    let heads: Vec<u64> = base
        .blocks("log-0000")
        .into_iter()
        .filter(|b| &base.bytes("log-0000", *b)[..4] == b"GBAT")
        .collect();
    let (last, durable) = heads.split_last().expect("batches");
    assert!(durable.len() > 5);
    let open_flipped = |block: u64| {
        let disk = base.after(Crash::Kill, 5);
        disk.flip("log-0000", block, 200 * 8);
        let d = disk.clone();
        run(2, &disk, |rt| async move {
            Store::open(&rt, d.dir(), config()).await.map(|s| s.chunk(T, id(6)).is_some())
        })
        .expect("ran")
    };
    for block in durable {
        assert_eq!(open_flipped(*block).expect_err("refused").status, Status::Corrupt);
    }
    assert!(!open_flipped(*last).expect("a torn tail is cut"), "the last one was never flushed");
}

/// Nothing is written after the last flush, and the store is not closed: the mark tells that the flush ended.
#[test]
fn damage_of_the_very_last_flushed_batch_is_found() {
    let base = Disk::new(1);
    let b = base.clone();
    run(1, &base, |rt| async move {
        let store = Store::open(&rt, b.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for i in 0..3 {
            store.stage(T, request(i, 1, StageKind::Write, bytes(i, 9000))).await.expect("stage");
        }
        store.flush(T).await.expect("flush");
        rt.sleep(Duration::from_secs(1)).await;
    });
    let heads: Vec<u64> = base
        .blocks("log-0000")
        .into_iter()
        .filter(|b| &base.bytes("log-0000", *b)[..4] == b"GBAT")
        .collect();
    let (mark, flushed) = heads.split_last().expect("batches");
    let open_flipped = |block: u64| {
        let disk = base.after(Crash::Kill, 5);
        disk.flip("log-0000", block, 90 * 8);
        let d = disk.clone();
        run(2, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await?;
            Ok((0..3).filter(|i| store.chunk(T, id(*i)).is_some()).count())
        })
        .expect("ran")
    };
    for block in flushed {
        let opened: Result<usize> = open_flipped(*block);
        assert_eq!(opened.expect_err("refused").status, Status::Corrupt, "block {block}");
    }
    assert_eq!(open_flipped(*mark).expect("the mark itself holds nothing"), 3);
}

/// To begin a life takes longer than a mark waits: it must not be written where the last life's log is.
#[test]
fn a_slow_start_leaves_the_log_of_the_last_life_alone() {
    let mut disk = Disk::new(1);
    let b = disk.clone();
    run(1, &disk, |rt| async move { filled(&rt, &b, false).await });
    for (i, millis) in (10..).zip([1, 30, 90, 130, 250, 900]) {
        let d = disk.clone();
        let opened = run(2, &disk, |rt| async move {
            d.slow_down(&rt, Duration::from_millis(millis));
            let store = Store::open(&rt, d.dir(), config()).await?;
            let there = store.chunk(T, id(6)).is_some();
            store.stage(T, request(i, 1, StageKind::Write, bytes(i, 9000))).await?;
            store.flush(T).await?;
            Ok::<_, glowfs_types::Error>(there)
        });
        assert!(opened.expect("ran").expect("opened"), "{millis} ms");
        disk = disk.after(Crash::Kill, 5);
    }
}

#[test]
fn a_full_disk_refuses_takes_deletes_and_recovers() {
    let disk = Disk::new(3);
    disk.capacity.set(12 << 20);
    let d = disk.clone();
    run(3, &disk, |rt| async move {
        let cfg = StoreConfig { reserve_bytes: 3 << 20, ..config() };
        let store = Store::open(&rt, d.dir(), cfg).await.expect("open");
        store.create_target(T).await.expect("target");
        let mut kept = Vec::new();
        let mut refused = 0;
        for i in 0..200 {
            match store.stage(T, request(i * 2, 1, StageKind::Write, bytes(i * 2, 100_000))).await {
                Ok(()) => kept.push(i * 2),
                Err(e) => {
                    assert_eq!(e.status, Status::NoSpace, "{e}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0 && kept.len() > 20, "{refused} refused, {} kept", kept.len());
        assert!(store.failure().is_none());
        for c in kept.drain(..20) {
            store.stage(T, request(c, 2, StageKind::Remove, Vec::new())).await.expect("delete");
        }
        for i in 500..515 {
            store
                .stage(T, request(i * 2, 1, StageKind::Write, bytes(i * 2, 100_000)))
                .await
                .expect("room again");
        }
        for c in kept {
            let (r, buf) = store.read(T, id(c), 0, rt.alloc(CHUNK_BYTES as usize)).await;
            r.expect("readable");
            assert!(buf[..100_000] == bytes(c, 100_000));
        }
    })
    .expect("ran");
}

#[test]
fn a_failed_write_or_flush_ends_updates() {
    for at in 20..60 {
        let disk = Disk::new(3);
        let d = disk.clone();
        run(at, &disk, |rt| async move {
            let work = async {
                let store = Store::open(&rt, d.dir(), config()).await?;
                store.create_target(T).await?;
                d.fail_at.set(Some((at, std::io::ErrorKind::Other)));
                for i in 0..200 {
                    let done: Result<()> =
                        store.stage(T, request(i, 1, StageKind::Write, bytes(i, size(i)))).await;
                    let flushed = store.flush(T).await;
                    if let Err(e) = done.and(flushed) {
                        assert_eq!(e.status, Status::DiskFailed, "{e}");
                        d.fail_at.set(None);
                        if store.failure().is_some() {
                            let again = store
                                .stage(T, request(900, 1, StageKind::Write, bytes(0, 10)))
                                .await;
                            assert_eq!(again.expect_err("poisoned").status, Status::DiskFailed);
                            assert_eq!(
                                store.flush(T).await.expect_err("poisoned").status,
                                Status::DiskFailed
                            );
                        }
                        if i > 0 {
                            let (r, buf) = store.read(T, id(0), 0, rt.alloc(size(0))).await;
                            r.expect("reads go on");
                            assert!(buf[..] == bytes(0, size(0)));
                        }
                        return Ok(());
                    }
                }
                panic!("nothing failed");
            };
            let result: Result<()> = work.await;
            result.expect("as expected");
        })
        .expect("ran");
    }
}

/// One wrong bit from any one read of start-up: what was flushed is there all the same.
#[test]
fn a_wrong_bit_of_one_read_does_not_lose_the_store() {
    let disk = Disk::new(9);
    let d = disk.clone();
    run(9, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for i in 0..12 {
            let write = request(i, 1, StageKind::Write, bytes(i, size(i)));
            store.stage(T, write).await.expect("staged");
            if i == 5 {
                store.checkpoint().await.expect("checkpoint");
            }
        }
        store.flush(T).await.expect("flush");
    })
    .expect("ran");
    for nth in 1..60 {
        let disk = disk.after(Crash::Power, 1);
        disk.flip_read.set(nth);
        let d = disk.clone();
        run(nth, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await;
            let store = store.unwrap_or_else(|e| panic!("read {nth}: {e}"));
            d.flip_read.set(0);
            for i in 0..12 {
                let (r, buf) = store.read(T, id(i), 0, rt.alloc(CHUNK_BYTES as usize)).await;
                let r = r.unwrap_or_else(|e| panic!("read {nth}, chunk {i}: {e}"));
                assert!(buf[..r.len as usize] == bytes(i, size(i)), "read {nth}, chunk {i}");
            }
        })
        .expect("ran");
    }
}

/// One wrong reading while blocks move from the log to their slots is not what is kept: a replica that is the only one left would lose them.
#[test]
fn a_wrong_bit_while_the_log_is_folded_is_not_kept() {
    for seed in 1..40 {
        // One read fetches all of it, so that the second one is that of the block again: which bit is wrong differs from seed to seed.
        let nth = 1 + seed % 2;
        let disk = Disk::new(seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            store.create_target(T).await.expect("target");
            for i in 0..6 {
                store.stage(T, request(i, 1, StageKind::Write, bytes(i, 9000))).await.expect("new");
                let write = request(i, 2, StageKind::Write, bytes(10 + i, 4096));
                let pending = StageRequest { commit: i != 5, ..write };
                store.stage(T, pending).await.expect("staged");
            }
            // The segment that is being written is not folded. (With a third one a checkpoint would begin by itself.)
            for i in 10..20 {
                store.stage(T, request(i, 1, StageKind::Write, bytes(i, 9000))).await.expect("new");
            }
            d.flip_read.set(nth);
            store.checkpoint().await.expect("checkpoint");
            assert!(nth > 1 || d.flip_read.take() == 0, "blocks were read");
            d.flip_read.set(0);
            store.commit(T, id(5), 2.into()).await.expect("committed");
            for i in 0..6 {
                let (r, buf) = store.read(T, id(i), 0, rt.alloc(CHUNK_BYTES as usize)).await;
                let r = r.unwrap_or_else(|e| panic!("seed {seed}, chunk {i}: {e}"));
                let expected = [bytes(10 + i, 4096), bytes(i, 9000).split_off(4096)].concat();
                assert!(buf[..r.len as usize] == expected, "seed {seed}, chunk {i}");
            }
        })
        .expect("ran");
    }
}

/// Contents of three blocks each in a segment of the log that is folded next, and the place of one block of the first one.
async fn logged(rt: &Rt, d: &Rc<Disk>) -> (Store, u64) {
    let store = Store::open(rt, d.dir(), config()).await.expect("open");
    store.create_target(T).await.expect("target");
    for i in 0..16 {
        store.stage(T, request(i, 1, StageKind::Write, bytes(i, 9000))).await.expect("new");
    }
    let block = bytes(0, 9000)[4096..8192].to_vec();
    let at = d.blocks("log-0000").into_iter().find(|b| d.bytes("log-0000", *b) == block);
    (store, at.expect("in the first segment"))
}

async fn is_whole(rt: &Rt, store: &Store, i: u64) -> bool {
    let (r, buf) = store.read(T, id(i), 0, rt.alloc(CHUNK_BYTES as usize)).await;
    r.is_ok_and(|r| buf[..r.len as usize] == bytes(i, 9000))
}

/// A disk that for a moment does not read one block of the log loses it not: folding leaves it where it is, over a start of the store as well.
#[test]
fn what_cannot_be_read_while_the_log_is_folded_stays_in_the_log() {
    for (seed, restarts) in [(1, false), (2, true)] {
        let disk = Disk::new(seed);
        let d = disk.clone();
        run(seed, &disk, move |rt| async move {
            let (mut store, block) = logged(&rt, &d).await;
            d.make_unreadable("log-0000", block);
            for _ in 0..3 {
                store.checkpoint().await.expect("checkpoint");
            }
            assert!(!is_whole(&rt, &store, 0).await && is_whole(&rt, &store, 1).await);
            d.make_readable();
            if restarts {
                store.close().await.expect("closed");
                drop(store);
                store = Store::open(&rt, d.dir(), config()).await.expect("open");
            }
            assert!(is_whole(&rt, &store, 0).await, "seed {seed}: it is still there");
            store.checkpoint().await.expect("checkpoint");
            for i in 0..16 {
                assert!(is_whole(&rt, &store, i).await, "seed {seed}: chunk {i} was moved");
            }
            store.checkpoint().await.expect("checkpoint");
            assert_eq!(store.space().log_bytes, 256 << 10, "its segment is free again");
        })
        .expect("ran");
    }
}

/// But not for ever, for its segment is needed: then that block is damaged, and no other.
#[test]
fn what_can_never_be_read_does_not_keep_its_segment() {
    let disk = Disk::new(3);
    let d = disk.clone();
    run(3, &disk, |rt| async move {
        let (store, block) = logged(&rt, &d).await;
        d.make_unreadable("log-0000", block);
        store.checkpoint().await.expect("checkpoint");
        assert_eq!(store.space().log_bytes, 2 * (256 << 10), "it is kept");
        rt.sleep(Duration::from_secs(31)).await;
        store.checkpoint().await.expect("checkpoint");
        assert_eq!(store.space().log_bytes, 256 << 10, "and let go");
        let bad = store.bad_blocks(T, id(0)).await.expect("looked at");
        assert_eq!(bad.iter().map(|b| b.block).collect::<Vec<_>>(), [1]);
        for i in 1..16 {
            assert!(is_whole(&rt, &store, i).await, "chunk {i}");
        }
        // The log goes round and round as before.
        for version in 2..60 {
            let again = request(1, version, StageKind::Replace, bytes(1, 60_000));
            store.stage(T, again).await.expect("taken");
        }
    })
    .expect("ran");
}

/// The check of a disk reads its superblock again before it judges; what stays wrong takes the disk out, and what is gone at once.
#[test]
fn one_wrong_reading_of_the_superblock_takes_no_disk_out() {
    let disk = Disk::new(11);
    let d = disk.clone();
    run(11, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for _ in 0..20 {
            d.flip_read.set(1);
            store.probe(&d.dir()).await.expect("one wrong bit");
            assert_eq!(d.flip_read.get(), 0, "the superblock was read");
        }
        store.stage(T, request(1, 1, StageKind::Write, bytes(1, 5000))).await.expect("it works");
        d.flip("superblock", 0, 77);
        let e = store.probe(&d.dir()).await.expect_err("wrong for good");
        assert_eq!(e.status, Status::DiskFailed, "{e}");
        assert!(store.failure().is_some());
    })
    .expect("ran");
}
