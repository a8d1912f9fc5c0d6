//! A full disk: new data is refused, what makes room never is, and the room comes back. In memory, so that every step that could need
//! room finds none.

use crate::fake::{Crash, Disk, run};
use crate::small::{CHUNK_BYTES, T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkVersion, ClientId, Result, Seq, Status};
use std::rc::Rc;

/// The size of writes that go through the log.
const SMALL: usize = 4096;
/// The size of writes that go to slots.
const LARGE: usize = 128 << 10;

/// Operations of the disk in one life of a store at most: who does not come to an end is cut off.
const OPS_MAX: u64 = 1_000_000;

fn channel(n: u64) -> ChannelRecord {
    ChannelRecord {
        client: ClientId(u128::from(n)),
        channel: ChannelId(1),
        seq: Seq(1),
        chunk: id(1),
        version: ChunkVersion(1),
    }
}

async fn write(store: &Store, index: u64, len: usize) -> Result<()> {
    store.stage(T, request(index, 1, StageKind::Write, bytes(index, len))).await
}

async fn remove(store: &Store, index: u64) -> Result<()> {
    // After a loss of power the chunk may not be there at all.
    let removal = request(index, 2, StageKind::Remove, Vec::new());
    store.stage(T, StageRequest { anew: true, ..removal }).await
}

/// Writes until nothing more goes in; the chunks that are there.
async fn fill(rt: &Rt, store: &Store, from: u64, len: usize) -> Vec<u64> {
    let mut kept = Vec::new();
    let mut refused = 0;
    for i in from..from + 20_000 {
        match write(store, i, len).await {
            Ok(()) => kept.push(i),
            Err(e) => {
                assert_eq!(e.status, Status::NoSpace, "{e}");
                refused += 1;
                if refused == 20 {
                    return kept;
                }
                rt.sleep(Duration::from_millis(50)).await;
            }
        }
    }
    panic!("never full");
}

async fn all_readable(rt: &Rt, store: &Store, chunks: &[u64], len: usize) {
    for c in chunks {
        let (r, buf) = store.read(T, id(*c), 0, rt.alloc(CHUNK_BYTES as usize)).await;
        assert_eq!(r.expect("readable").len as usize, len, "chunk {c}");
        assert!(buf[..len] == bytes(*c, len), "chunk {c}");
    }
}

/// A store on a disk on which nothing is free, with data in its log.
async fn full(rt: &Rt, disk: &Rc<Disk>) -> (Store, Vec<u64>, Vec<u64>) {
    disk.capacity.set(16 << 20);
    let store = Store::open(rt, disk.dir(), config()).await.expect("open");
    store.create_target(T).await.expect("target");
    let mut small: Vec<u64> = (100_000..100_300).collect();
    for c in &small {
        write(&store, *c, SMALL).await.expect("room yet");
    }
    let large = fill(rt, &store, 0, LARGE).await;
    small.extend(fill(rt, &store, 110_000, SMALL).await);
    assert!(large.len() > 20 && small.len() > 20, "{} and {}", large.len(), small.len());
    (store, large, small)
}

#[test]
fn removals_go_on_when_the_log_is_full_of_data_and_no_slot_is_free() {
    for seed in 0..8 {
        let disk = Disk::new(seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let (store, large, small) = full(&rt, &d).await;
            // Many times what the reserve of the log holds.
            let mut gone = 0;
            for i in 0..40_000 {
                let c = large[i % large.len()];
                let version = 2 + (i / large.len()) as u64;
                let removal = request(c, version, StageKind::Remove, Vec::new());
                store.stage(T, removal).await.unwrap_or_else(|e| panic!("removal {i}: {e}"));
                gone += 1;
                if gone == large.len() && seed % 2 == 0 {
                    break;
                }
            }
            assert!(store.failure().is_none());
            all_readable(&rt, &store, &small, SMALL).await;
            let back = fill(&rt, &store, 200_000, LARGE).await;
            assert!(back.len() + 4 >= large.len(), "{} of {} came back", back.len(), large.len());
            all_readable(&rt, &store, &back, LARGE).await;
        })
        .expect("ran");
    }
}

/// A removal that waits for the log beside writes is not refused with them.
#[test]
fn removals_are_not_refused_for_their_company() {
    for seed in 0..8 {
        let disk = Disk::new(seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let (store, large, small) = full(&rt, &d).await;
            let store = Rc::new(store);
            let mut writes = Vec::new();
            let mut removals = Vec::new();
            for (i, c) in small.iter().copied().enumerate() {
                let s = store.clone();
                if i % 3 == 0 {
                    removals.push(rt.spawn(async move { remove(&s, c).await }));
                } else {
                    let again = request(c, 2, StageKind::Write, bytes(c, SMALL));
                    writes.push(rt.spawn(async move { s.stage(T, again).await }));
                }
            }
            for r in removals {
                r.await.expect("a removal is refused");
            }
            for w in writes {
                if let Err(e) = w.await {
                    assert_eq!(e.status, Status::NoSpace, "{e}");
                }
            }
            all_readable(&rt, &store, &large, LARGE).await;
        })
        .expect("ran");
    }
}

/// What is queued behind an update that is refused must be refused, too: it would be there without it.
#[test]
fn nothing_is_written_behind_a_refused_update_of_its_chunk() {
    for seed in 0..8 {
        let disk = Disk::new(seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let (store, _, small) = full(&rt, &d).await;
            let store = Rc::new(store);
            let mut calls = Vec::new();
            for c in small.iter().copied().take(50) {
                for (version, kind) in [(2, StageKind::Write), (3, StageKind::Truncate)] {
                    let payload =
                        if kind == StageKind::Write { bytes(c, SMALL) } else { Vec::new() };
                    let mut update = request(c, version, kind, payload);
                    update.commit = false;
                    let s = store.clone();
                    calls.push((c, version, rt.spawn(async move { s.stage(T, update).await })));
                }
            }
            let mut refused = std::collections::BTreeSet::new();
            for (c, version, call) in calls {
                match call.await {
                    Err(_) => {
                        refused.insert(c);
                    }
                    Ok(()) if version == 3 => assert!(!refused.contains(&c), "chunk {c}"),
                    Ok(()) => {}
                }
            }
            assert!(!refused.is_empty(), "nothing was refused");
            for c in refused {
                assert!(store.pending(T, id(c)).iter().all(|p| p.version.0 == 2), "chunk {c}");
            }
        })
        .expect("ran");
    }
}

#[test]
fn a_full_store_is_opened_again_and_recovers() {
    for (seed, crash) in (0..12).zip([Crash::Kill, Crash::Power].into_iter().cycle()) {
        let disk = Disk::new(seed);
        let d = disk.clone();
        let (large, small) = run(seed, &disk, |rt| async move {
            let (store, large, small) = full(&rt, &d).await;
            for c in &large[..large.len() / 4] {
                remove(&store, *c).await.expect("removed");
            }
            store.flush(T).await.expect("flushed");
            (large, small)
        })
        .expect("ran");
        let disk = disk.after(crash, seed);
        let d = disk.clone();
        run(seed, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            let (gone, left) = large.split_at(large.len() / 4);
            all_readable(&rt, &store, left, LARGE).await;
            all_readable(&rt, &store, &small, SMALL).await;
            let back = fill(&rt, &store, 300_000, LARGE).await;
            assert!(back.len() + 4 >= gone.len(), "{} of {}", back.len(), gone.len());
            for c in left.iter().chain(&small) {
                remove(&store, *c).await.expect("removed");
            }
            let back = fill(&rt, &store, 400_000, LARGE).await;
            assert!(back.len() + 4 >= left.len(), "{} of {}", back.len(), left.len());
        })
        .expect("ran");
    }
}

/// Room of large chunks serves small ones and the other way round, in one life and over restarts.
#[test]
fn room_goes_between_chunks_of_different_sizes() {
    for seed in 0..4 {
        refilled_by_other_sizes(seed, 0);
    }
}

/// Others have their turn before a checkpoint of many channel records writes its first chunk. What free slots gave up for it was taken to fold
/// the log, and given up again, for ever.
#[test]
fn a_checkpoint_without_room_and_the_log_do_not_take_it_from_each_other_for_ever() {
    for (seed, channels) in [(1, 300), (0, 520), (1, 800)] {
        refilled_by_other_sizes(seed, channels);
    }
}

/// A disk that is filled six times, each time by chunks of another size than those that make room for them, beside so many channel records.
fn refilled_by_other_sizes(seed: u64, channels: u64) {
    let mut disk = Disk::new(seed);
    disk.capacity.set(16 << 20);
    let (mut first, mut held) = (0, Vec::new());
    for (round, len) in (0..6).zip([LARGE, 3 * SMALL, 80_000, LARGE].into_iter().cycle()) {
        let d = disk.clone();
        // Some hundred thousand are usual.
        disk.cut_at.set(OPS_MAX);
        let now = run(seed, &disk, |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            store.create_target(T).await.expect("target");
            store.put_channels(T, (0..channels).map(channel).collect()).await.expect("put");
            for c in held {
                remove(&store, c).await.expect("removed");
            }
            let now = fill(&rt, &store, round * 100_000, len).await;
            let space = store.space();
            assert!(space.free_bytes < 1 << 20, "{space:?}");
            all_readable(&rt, &store, &now, len).await;
            if seed.is_multiple_of(2) {
                store.close().await.expect("closed");
            }
            now
        });
        held = now.expect("ran");
        let bytes = held.len() * len;
        first = if round == 0 { bytes } else { first };
        // Blocks, and slots that are powers of two, waste some.
        assert!(bytes * 10 >= first * 6, "round {round}: {bytes} of {first} bytes");
        disk = disk.after(if seed < 2 { Crash::Kill } else { Crash::Power }, seed);
    }
}

#[test]
fn what_a_store_gave_back_it_may_take_again_below_the_reserve() {
    let disk = Disk::new(5);
    let d = disk.clone();
    run(5, &disk, |rt| async move {
        d.capacity.set(16 << 20);
        let cfg = StoreConfig { reserve_bytes: 2 << 20, ..config() };
        let store = Store::open(&rt, d.dir(), cfg).await.expect("open");
        store.create_target(T).await.expect("target");
        let large = fill(&rt, &store, 0, LARGE).await;
        // Somebody else (a log, a neighbour on the same file system) takes nearly all of the reserve.
        d.capacity.set(d.used() + (64 << 10));
        let removed = &large[..large.len() / 2];
        for c in removed {
            remove(&store, *c).await.expect("a removal");
        }
        // Slots of twice the size: there are none yet.
        for i in 0..removed.len() as u64 / 2 - 1 {
            write(&store, 1000 + i, 2 * LARGE).await.expect("room of what was removed");
        }
    })
    .expect("ran");
}

/// The room of its free slots is the store's, also in its next life, when others have left none on the disk.
#[test]
fn free_slots_keep_their_room_over_a_restart() {
    for (seed, tells) in [(0, true), (1, true), (2, false)] {
        let disk = Disk::new(seed);
        let d = disk.clone();
        let reserve_bytes = 2 << 20;
        let cfg = StoreConfig { reserve_bytes, ..config() };
        let ran = run(seed, &disk, |rt| async move {
            d.capacity.set(16 << 20);
            let store = Store::open(&rt, d.dir(), cfg).await.expect("open");
            store.create_target(T).await.expect("target");
            let large = fill(&rt, &store, 0, LARGE).await;
            for c in &large[..8] {
                remove(&store, *c).await.expect("a removal");
            }
            // The room of those goes to others, so the file has holes.
            let others: Vec<u64> = (1000..1003).collect();
            for c in &others {
                write(&store, *c, 2 * LARGE).await.expect("room of what was removed");
            }
            for c in &large[8..16] {
                remove(&store, *c).await.expect("a removal");
            }
            store.close().await.expect("closed");
            (large, others)
        });
        let (large, others) = ran.expect("ran");
        let next = disk.after(Crash::Kill, seed);
        next.tells_rooms.set(tells);
        // Others have taken what is free, and more.
        next.capacity.set(next.used() + (reserve_bytes / 2));
        let d = next.clone();
        run(seed, &next, |rt| async move {
            let cfg = StoreConfig { reserve_bytes, ..config() };
            let store = Store::open(&rt, d.dir(), cfg).await.expect("open");
            let mut there = 0;
            for i in 0..8 {
                there += u32::from(write(&store, 2000 + i, LARGE).await.is_ok());
            }
            // By what the file system tells; otherwise its start has taken the room from it.
            assert!(if tells { there == 8 } else { there < 8 }, "{there} went in");
            all_readable(&rt, &store, &large[16..], LARGE).await;
            all_readable(&rt, &store, &others, 2 * LARGE).await;
        })
        .expect("ran");
    }
}

/// What is folded may take of the reserve, since the log needs its room. It takes no more than that: what it would have got beside would count as
/// room for clients.
#[test]
fn small_writes_do_not_eat_the_reserve_up() {
    const CAPACITY: u64 = 16 << 20;
    const RESERVE: u64 = 4 << 20;
    let disk = Disk::new(9);
    let d = disk.clone();
    run(9, &disk, |rt| async move {
        d.capacity.set(CAPACITY);
        let log = 2 << 20;
        let cfg = StoreConfig { reserve_bytes: RESERVE, log_bytes_max: log, ..config() };
        let store = Store::open(&rt, d.dir(), cfg).await.expect("open");
        store.create_target(T).await.expect("target");
        let mut written = 0;
        // As a storage service asks before it admits a write.
        while store.free_bytes() > RESERVE / 32 {
            match write(&store, written, SMALL).await {
                Ok(()) => written += 1,
                Err(e) if e.status == Status::NoSpace => break,
                Err(e) => panic!("{e}"),
            }
        }
        store.checkpoint().await.expect("a checkpoint");
        assert!(written > 1000, "{written} writes");
        let (used, most) = (d.used(), CAPACITY - RESERVE + log);
        assert!(used <= most, "{used} bytes are used, and may be {most}");
    })
    .expect("ran");
}

#[test]
fn a_promise_is_not_free_until_it_ends() {
    let disk = Disk::new(6);
    let d = disk.clone();
    run(6, &disk, |rt| async move {
        let (store, ..) = full(&rt, &d).await;
        d.capacity.set(64 << 20);
        rt.sleep(Duration::from_secs(1)).await;
        let free = store.free_bytes();
        let (one, two) = (store.promise(LARGE as u64), store.promise(3));
        assert_eq!(store.free_bytes(), free - LARGE as u64 - 4096);
        drop(one);
        assert_eq!(store.free_bytes(), free - 4096);
        drop(two);
        assert_eq!(store.free_bytes(), free);
    })
    .expect("ran");
}

/// Each life writes one checkpoint, into the file that was kept for it: what is kept for the next one is by what was written, not by what there
/// was room for, or it would grow from life to life.
#[test]
fn what_is_kept_for_the_next_checkpoint_does_not_grow_with_each_start() {
    let mut disk = Disk::new(31);
    let mut used = Vec::new();
    for life in 0..16 {
        let d = disk.clone();
        run(31, &disk, move |rt| async move {
            let store = Store::open(&rt, d.dir(), config()).await.expect("open");
            if life == 0 {
                store.create_target(T).await.expect("target");
            }
            store.checkpoint().await.expect("checkpoint");
            store.close().await.expect("close");
        })
        .expect("ran");
        used.push(disk.used());
        disk = disk.after(Crash::Kill, life);
    }
    assert_eq!(used[4], used[15], "{used:?}");
}

/// A process at its limit of descriptors is no broken disk: the store waits for one where it cannot go on without.
#[test]
fn a_store_that_finds_no_descriptor_waits_for_one() {
    let disk = Disk::new(32);
    let d = disk.clone();
    run(32, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for (i, len) in [LARGE, SMALL, LARGE * 2].into_iter().enumerate() {
            d.scarce.set(4);
            // A file of slots of another size, the file of a checkpoint, segments of the log.
            write(&store, i as u64, len).await.expect("written");
            store.checkpoint().await.expect("a checkpoint");
            for k in 0..100 {
                d.scarce.set(1);
                write(&store, 10 + 100 * i as u64 + k, SMALL).await.expect("written");
            }
        }
        assert!(store.failure().is_none());
        d.scarce.set(4);
        store.close().await.expect("closed");
        drop(store);
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        assert!(store.was_clean());
    })
    .expect("ran");
}
