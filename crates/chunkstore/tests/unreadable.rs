//! Blocks that cannot be read at a start (not wrong ones): of the log, which is read as a whole then, and of what the life before has not flushed.

use crate::fake::{Crash, Disk, run};
use crate::small::{CHUNK_BYTES, T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, Store};
use glowfs_rt::Rt;
use glowfs_types::{Result, Status};
use std::rc::Rc;

const BLOCK: usize = 4096;
/// Chunks of three blocks each, all in the first segment of the log.
const CHUNKS: u64 = 10;
const BYTES: usize = 9_000;
/// The segment that is written to, and the last block of it.
const LOG: (&str, u64) = ("log-0000", 63);
/// As [`glowfs_chunkstore`] has it: so many blocks of a segment a start does without.
const UNREADABLE_MAX: u64 = 32;

/// A store that was killed, with a checkpoint behind so many chunks, flushed or not.
fn killed(checkpoint_at: Option<u64>, flushed: bool) -> Rc<Disk> {
    let disk = Disk::new(1);
    let d = disk.clone();
    run(1, &disk, move |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for i in 0..=CHUNKS {
            if checkpoint_at == Some(i) {
                store.checkpoint().await.expect("checkpoint");
            }
            if i == CHUNKS {
                break;
            }
            let new = request(i, 1, StageKind::Write, bytes(i, BYTES));
            store.stage(T, new).await.expect("staged");
        }
        if flushed {
            store.flush(T).await.expect("flushed");
        }
    })
    .expect("ran");
    disk.after(Crash::Kill, 5)
}

/// The blocks of the log in which batches begin.
fn heads(disk: &Disk) -> Vec<u64> {
    let begins = |b: &u64| &disk.bytes(LOG.0, *b)[..4] == b"GBAT";
    disk.blocks(LOG.0).into_iter().filter(begins).collect()
}

/// The first block behind the end of the log.
fn end(disk: &Disk) -> u64 {
    heads(disk).last().expect("a batch") + 1 + BYTES.div_ceil(BLOCK) as u64
}

/// Where the second block of a chunk lies in the log.
fn payload(disk: &Disk, chunk: u64) -> u64 {
    let content = &bytes(chunk, BYTES)[BLOCK..2 * BLOCK];
    let is = |b: &u64| disk.bytes(LOG.0, *b) == content;
    disk.blocks(LOG.0).into_iter().find(is).expect("it was logged")
}

async fn is_whole(rt: &Rt, store: &Store, i: u64) -> bool {
    let (r, buf) = store.read(T, id(i), 0, rt.alloc(CHUNK_BYTES as usize)).await;
    r.is_ok_and(|r| buf[..r.len as usize] == bytes(i, BYTES))
}

/// Which chunks are not whole.
async fn lacks(rt: &Rt, store: &Store) -> Vec<u64> {
    let mut out = Vec::new();
    for i in 0..CHUNKS {
        if !is_whole(rt, store, i).await {
            out.push(i);
        }
    }
    out
}

/// Opens what was left, in which some blocks cannot be read; which chunks are not whole then. It takes an update, too.
fn opened(killed: &Disk, blocks: &[(&str, u64)]) -> (Rc<Disk>, Result<Vec<u64>>) {
    let disk = killed.after(Crash::Kill, 6);
    blocks.iter().for_each(|(name, block)| disk.make_unreadable(name, *block));
    let d = disk.clone();
    let found = run(2, &disk, move |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await?;
        let lacks = lacks(&rt, &store).await;
        let version = store.chunk(T, id(77)).map_or(0, |c| c.committed.0) + 1;
        let new = request(77, version, StageKind::Replace, bytes(77, BYTES));
        store.stage(T, new).await.expect("it works");
        store.flush(T).await.expect("it works");
        Ok(lacks)
    });
    (disk, found.expect("ran"))
}

/// The same, and all is there when the blocks can be read again.
fn spoils_only(killed: &Disk, blocks: &[(&str, u64)], chunks: &[u64]) {
    let (disk, found) = opened(killed, blocks);
    let found = found.unwrap_or_else(|e| panic!("{blocks:?}: {e}"));
    assert!(found.iter().all(|i| chunks.contains(i)), "{blocks:?}: {found:?} are not whole");
    let (_, found) = opened(&disk, &[]);
    assert_eq!(found.unwrap_or_else(|e| panic!("{blocks:?}, later: {e}")), [], "{blocks:?}");
}

/// The whole disk was given up for it, at each start.
#[test]
fn a_payload_that_cannot_be_read_spoils_no_other() {
    for (checkpoint_at, flushed) in [(None, true), (None, false), (Some(5), true)] {
        let killed = killed(checkpoint_at, flushed);
        for chunk in 0..CHUNKS {
            spoils_only(&killed, &[(LOG.0, payload(&killed, chunk))], &[chunk]);
        }
    }
}

#[test]
fn what_is_stale_need_not_be_read() {
    for flushed in [true, false] {
        let killed = killed(None, flushed);
        let end = end(&killed);
        assert!(end + 2 < LOG.1, "{end}");
        for block in [end + 1, end + 2, LOG.1] {
            spoils_only(&killed, &[(LOG.0, block)], &[]);
        }
        let other = killed.file_names().into_iter();
        let free: Vec<_> = other.filter(|n| n.starts_with("log-") && n != LOG.0).collect();
        assert!(!free.is_empty());
        for name in &free {
            for block in [0, 1, LOG.1] {
                spoils_only(&killed, &[(name, block)], &[]);
            }
        }
    }
}

/// Nobody knows then whether something was acknowledged there.
#[test]
fn a_header_that_cannot_be_read_where_a_batch_may_be_refuses_the_store() {
    for flushed in [true, false] {
        let killed = killed(None, flushed);
        let mut blocks = heads(&killed);
        assert!(blocks.len() as u64 > CHUNKS);
        blocks.extend([end(&killed), 0]);
        for block in blocks {
            let (disk, found) = opened(&killed, &[(LOG.0, block)]);
            let e = found.expect_err("refused");
            assert_eq!(e.status, Status::DiskFailed, "block {block}: {e}");
            // It is all there the next time.
            let (_, found) = opened(&disk, &[]);
            assert_eq!(found.unwrap_or_else(|e| panic!("block {block}: {e}")), []);
        }
    }
}

/// The checkpoint covers all of its batches, and chunks have blocks there: it was done without, and written over.
#[test]
fn a_segment_that_chunks_refer_to_is_not_given_up_for_its_header() {
    let killed = killed(Some(CHUNKS), true);
    let (disk, found) = opened(&killed, &[(LOG.0, 0)]);
    assert_eq!(found.expect_err("refused").status, Status::DiskFailed);
    let (_, found) = opened(&disk, &[]);
    assert_eq!(found.expect("it is all there the next time"), []);
}

#[test]
fn a_disk_of_which_too_much_cannot_be_read_is_refused() {
    let killed = killed(None, true);
    let end = end(&killed);
    let own: Vec<_> = (0..CHUNKS).map(|i| (LOG.0, payload(&killed, i))).collect();
    let stale = (end + 1..=LOG.1).map(|b| (LOG.0, b));
    let many: Vec<_> = own.into_iter().chain(stale).collect();
    assert!(many.len() as u64 <= UNREADABLE_MAX, "{}", many.len());
    let all: Vec<_> = (0..CHUNKS).collect();
    spoils_only(&killed, &many, &all);
    let rest = (1..end).map(|b| (LOG.0, b)).filter(|b| !many.contains(b));
    let heads = heads(&killed);
    let rest = rest.filter(|b| !heads.contains(&b.1));
    let (_, found) = opened(&killed, &many.iter().copied().chain(rest).collect::<Vec<_>>());
    assert_eq!(found.expect_err("refused").status, Status::DiskFailed);
}

/// Segments without a batch, of lives that ended at once; of one the header cannot be read for a while. No other gets its number.
#[test]
fn a_segment_whose_header_is_read_again_is_not_there_twice() {
    let mut disk = killed(None, true);
    for life in 0..3 {
        let d = disk.clone();
        run(10 + life, &disk, move |rt| async move {
            Store::open(&rt, d.dir(), config()).await.map(drop).expect("open");
        });
        disk = disk.after(Crash::Kill, life);
    }
    let logs: Vec<_> = disk.file_names().into_iter().filter(|n| n.starts_with("log-")).collect();
    for name in logs.iter().filter(|n| *n != LOG.0) {
        spoils_only(&disk, &[(name, 0)], &[]);
    }
}

/// A flush fails, the process is started again, and of an update which that flush was to make durable a block cannot be read: all others are made durable.
#[test]
fn what_lies_beside_a_block_that_cannot_be_read_is_secured() {
    let content = bytes(3, 100_000);
    for seed in 0..8 {
        let disk = Disk::new(seed);
        let (d, payload) = (disk.clone(), content.clone());
        run(seed, &disk, move |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            store.create_target(T).await.expect("target");
            store.flush(T).await.expect("flushed");
            store.stage(T, request(3, 1, StageKind::Write, payload)).await.expect("staged");
            d.fail_sync.set(1);
            store.flush(T).await.expect_err("it fails");
        })
        .expect("ran");
        let disk = disk.after(Crash::Kill, seed);
        let slots = disk.file_names().into_iter().filter(|n| n.starts_with("blocks-"));
        let all = slots.flat_map(|n| disk.blocks(&n).into_iter().map(move |b| (n.clone(), b)));
        let is = |(n, b): &(String, u64)| disk.bytes(n, *b) == content[7 * BLOCK..8 * BLOCK];
        let (slot, block) = all.into_iter().find(is).expect("it was written");
        disk.make_unreadable(&slot, block);
        let d = disk.clone();
        run(seed, &disk, move |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            assert!(store.chunk(T, id(3)).is_some());
        })
        .expect("ran");
        let disk = disk.after(Crash::Power, seed);
        let d = disk.clone();
        let bad = run(seed, &disk, move |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            store.bad_blocks(T, id(3)).await.expect("looked at")
        });
        let bad = bad.expect("ran");
        assert!(bad.iter().all(|b| b.block == 7), "seed {seed}: {} are lost", bad.len());
    }
}
