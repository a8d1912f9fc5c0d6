//! Damage at rest is found, mended in place by bytes from elsewhere, or handed on as what it is.

use crate::fake::{Crash, Disk, run};
use crate::small::{T, bytes, config, id, update};
use glowfs_chunkstore::{AsIs, StageKind, StageRequest, Store};
use glowfs_rt::{Buf, BufMut, Rt};
use glowfs_types::{ChunkVersion, Status};
use std::rc::Rc;

const BLOCK: usize = 4096;
/// Of the large chunk: the last block is not full.
const LARGE: usize = 100_000;

async fn opened(rt: &Rt, disk: &Rc<Disk>) -> Store {
    Store::open(rt, disk.dir(), config()).await.expect("open")
}

/// A large chunk in a slot, and a small one in the log with a version pending on it.
async fn filled(rt: &Rt, disk: &Rc<Disk>) -> Store {
    let store = opened(rt, disk).await;
    store.create_target(T).await.expect("target");
    let large = update(0, 1, StageKind::Write, 0, bytes(0, LARGE));
    store.stage(T, large).await.expect("large");
    let small = update(1, 1, StageKind::Write, 0, bytes(1, 9000));
    store.stage(T, small).await.expect("small");
    let pending = update(1, 2, StageKind::Write, 4096, bytes(2, 4096));
    store.stage(T, StageRequest { commit: false, ..pending }).await.expect("pending");
    store.flush(T).await.expect("flush");
    store
}

/// The blocks of the disk that hold `content`, a whole block.
fn places_of(disk: &Disk, content: &[u8]) -> Vec<(String, u64)> {
    let all = disk
        .file_names()
        .into_iter()
        .flat_map(|name| disk.blocks(&name).into_iter().map(move |block| (name.clone(), block)));
    all.filter(|(name, block)| disk.bytes(name, *block) == content).collect()
}

/// Damages the blocks of the disk that hold `content`; how many there are.
fn spoil(disk: &Disk, content: &[u8]) -> usize {
    let places = places_of(disk, content);
    places.iter().for_each(|(name, block)| disk.flip(name, *block, 77));
    places.len()
}

fn block_of(rt: &Rt, content: &[u8], block: usize) -> BufMut {
    let mut buf = rt.alloc(BLOCK);
    buf.fill(0);
    let piece = &content[block * BLOCK..content.len().min((block + 1) * BLOCK)];
    buf[..piece.len()].copy_from_slice(piece);
    buf
}

async fn read(rt: &Rt, store: &Store, chunk: u64, len: usize) -> Result<Vec<u8>, Status> {
    let (r, buf) = store.read(T, id(chunk), 0, rt.alloc(len)).await;
    r.map(|_| buf.to_vec()).map_err(|e| e.status)
}

#[test]
fn a_damaged_block_is_mended_where_it_lies() {
    for (chunk, seed, len, block) in [(0, 0, LARGE, 3), (0, 0, LARGE, 24), (1, 1, 9000, 0)] {
        let disk = Disk::new(1);
        let d = disk.clone();
        run(1, &disk, |rt| async move {
            let store = filled(&rt, &d).await;
            let content = bytes(seed, len);
            let good = block_of(&rt, &content, block);
            assert_eq!(spoil(&d, &good), 1);
            let before = (store.chunk(T, id(chunk)), store.pending(T, id(chunk)));
            assert_eq!(read(&rt, &store, chunk, len).await, Err(Status::Corrupt));
            let bad = store.bad_blocks(T, id(chunk)).await.expect("looked at");
            assert_eq!(bad.iter().map(|b| b.block as usize).collect::<Vec<_>>(), [block]);
            // Other bytes are of no use, nor are these for another block.
            let other = block_of(&rt, &bytes(9, LARGE), 0).freeze();
            let good = good.freeze();
            assert!(!store.mend(T, id(chunk), block as u32, other).await.expect("refused"));
            assert!(!store.mend(T, id(chunk), 1, good.clone()).await.expect("refused"));
            assert_eq!(read(&rt, &store, chunk, len).await, Err(Status::Corrupt));
            assert!(store.mend(T, id(chunk), block as u32, good).await.expect("mended"));
            assert_eq!(read(&rt, &store, chunk, len).await, Ok(content));
            assert_eq!(store.bad_blocks(T, id(chunk)).await.expect("looked at"), []);
            assert_eq!((store.chunk(T, id(chunk)), store.pending(T, id(chunk))), before);
        })
        .expect("ran");
        // It is durable, and what was pending is as well.
        let disk = disk.after(Crash::Power, 7);
        let d = disk.clone();
        run(2, &disk, |rt| async move {
            let store = opened(&rt, &d).await;
            assert_eq!(read(&rt, &store, 0, LARGE).await, Ok(bytes(0, LARGE)));
            store.commit(T, id(1), ChunkVersion(2)).await.expect("commit");
            let mut small = bytes(1, 9000);
            small[4096..8192].copy_from_slice(&bytes(2, 4096));
            assert_eq!(read(&rt, &store, 1, 9000).await, Ok(small));
        })
        .expect("ran");
    }
}

#[test]
fn a_block_that_cannot_be_read_says_nothing_of_its_neighbours() {
    let disk = Disk::new(1);
    let d = disk.clone();
    run(1, &disk, |rt| async move {
        let store = filled(&rt, &d).await;
        let block = block_of(&rt, &bytes(0, LARGE), 7);
        for (name, block) in places_of(&d, &block) {
            d.make_unreadable(&name, block);
        }
        let scrubbed = store.scrub_next(T, None).await.expect("looked at").expect("a chunk");
        assert_eq!((scrubbed.chunk, scrubbed.bad_blocks), (id(0), vec![7]));
        assert_eq!(scrubbed.bytes, LARGE.next_multiple_of(BLOCK) as u64);
        let bad = store.bad_blocks(T, id(0)).await.expect("looked at");
        assert_eq!(bad.iter().map(|b| b.block).collect::<Vec<_>>(), [7]);
    })
    .expect("ran");
}

#[test]
fn blocks_of_pending_versions_are_looked_at_as_well() {
    let disk = Disk::new(1);
    let d = disk.clone();
    run(1, &disk, |rt| async move {
        let store = filled(&rt, &d).await;
        let good = block_of(&rt, &bytes(2, 4096), 0);
        assert_eq!(spoil(&d, &good), 1);
        assert_eq!(read(&rt, &store, 1, 9000).await, Ok(bytes(1, 9000)), "committed is sound");
        let bad = store.bad_blocks(T, id(1)).await.expect("looked at");
        assert_eq!(bad.iter().map(|b| b.block).collect::<Vec<_>>(), [1]);
        assert!(store.mend(T, id(1), 1, good.freeze()).await.expect("mended"));
        assert_eq!(store.bad_blocks(T, id(1)).await.expect("looked at"), []);
    })
    .expect("ran");
}

/// What nobody has travels as damaged: the other blocks are readable there, that one is refused as here.
#[test]
fn what_is_lost_is_handed_on_as_lost() {
    for block in [3, 24] {
        let source = Disk::new(1);
        let s = source.clone();
        let AsIs { bytes: got, crcs, damaged, .. } = run(1, &source, |rt| async move {
            let store = filled(&rt, &s).await;
            spoil(&s, &block_of(&rt, &bytes(0, LARGE), block));
            store.read_as_is(T, id(0), None).await.expect("as it is")
        })
        .expect("ran");
        assert_eq!((got.len(), damaged), (LARGE, 1));
        let mut expected = bytes(0, LARGE);
        expected[block * BLOCK..LARGE.min((block + 1) * BLOCK)].fill(0);
        assert!(got[..] == expected);
        let payload = got.to_vec();
        let original = bytes(0, LARGE);
        let disk = Disk::new(2);
        let d = disk.clone();
        run(3, &disk, |rt| async move {
            let store = opened(&rt, &d).await;
            store.create_target(T).await.expect("target");
            let handed_on = StageRequest {
                damaged: true,
                crcs,
                ..update(0, 5, StageKind::Replace, 0, payload.clone())
            };
            // Only if it is said so, and only blocks of zeros.
            let plain = StageRequest { damaged: false, ..handed_on.clone() };
            assert_eq!(store.stage(T, plain).await.expect_err("refused").status, Status::Corrupt);
            let mut wrong = payload;
            wrong[block * BLOCK + 5] = 1;
            let wrong = StageRequest { payload: Buf::from_vec(wrong), ..handed_on.clone() };
            assert_eq!(store.stage(T, wrong).await.expect_err("refused").status, Status::Corrupt);
            store.stage(T, handed_on).await.expect("taken");
            store.stage(T, update(7, 1, StageKind::Write, 0, bytes(7, 500))).await.expect("next");
        })
        .expect("ran");
        // Killed before any flush: what came after it is not cut off with it. And the power takes none of the sound blocks, which the record vouches for.
        let powers = (0..16).map(|seed| (Crash::Power, seed));
        for (crash, seed) in powers.chain([(Crash::Kill, 4)]) {
            let disk = disk.after(crash, seed);
            let (d, original) = (disk.clone(), original.clone());
            run(5, &disk, |rt| async move {
                let store = opened(&rt, &d).await;
                if matches!(crash, Crash::Power) && store.chunk(T, id(0)).is_none() {
                    return;
                }
                assert!(matches!(crash, Crash::Power) || store.chunk(T, id(7)).is_some());
                assert_eq!(read(&rt, &store, 0, LARGE).await, Err(Status::Corrupt));
                let bad = store.bad_blocks(T, id(0)).await.expect("looked at");
                assert_eq!(bad.len(), 1, "{crash:?} {seed}");
                let first = store.read(T, id(0), 0, rt.alloc(3 * BLOCK)).await;
                assert!(first.0.is_ok() && first.1[..] == original[..3 * BLOCK]);
                // Somebody who has it comes back.
                for b in bad {
                    let good = block_of(&rt, &original, b.block as usize).freeze();
                    assert!(store.mend(T, id(0), b.block, good).await.expect("mended"));
                }
                assert_eq!(read(&rt, &store, 0, LARGE).await, Ok(original));
            })
            .expect("ran");
        }
    }
}

/// A place that cannot be read, under a write of a part of its block: damage, like wrong bytes, and not the end of the disk.
#[test]
fn a_part_of_an_unreadable_block_cannot_be_written_until_it_is_mended() {
    let disk = Disk::new(5);
    let d = disk.clone();
    run(5, &disk, |rt| async move {
        let store = filled(&rt, &d).await;
        let good = block_of(&rt, &bytes(0, LARGE), 3);
        for (name, block) in places_of(&d, &good) {
            d.make_unreadable(&name, block);
        }
        let part = |version| update(0, version, StageKind::Write, 3 * 4096 + 100, bytes(4, 200));
        let e = store.stage(T, part(2)).await.expect_err("the rest of the block is not known");
        assert_eq!(e.status, Status::Corrupt, "{e}");
        assert!(store.failure().is_none());
        let whole = update(0, 2, StageKind::Write, 3 * 4096, bytes(4, 4096));
        store.stage(T, whole).await.expect("all of it");
        store.stage(T, part(3)).await.expect("and a part now");
    })
    .expect("ran");
}

/// The flush of a mended block fails: it may have been that of others' data, and the disk tells it once.
#[test]
fn a_flush_that_fails_while_mending_ends_the_store() {
    let disk = Disk::new(6);
    let d = disk.clone();
    run(6, &disk, |rt| async move {
        let store = filled(&rt, &d).await;
        store.stage(T, update(2, 1, StageKind::Write, 0, bytes(5, LARGE))).await.expect("written");
        let good = block_of(&rt, &bytes(0, LARGE), 3);
        assert_eq!(spoil(&d, &good), 1);
        d.fail_sync.set(1);
        let e = store.mend(T, id(0), 3, good.freeze()).await.expect_err("the flush failed");
        assert_eq!(e.status, Status::DiskFailed, "{e}");
        store.flush(T).await.expect_err("nothing is answered for any more");
        assert!(store.failure().is_some());
    })
    .expect("ran");
}
