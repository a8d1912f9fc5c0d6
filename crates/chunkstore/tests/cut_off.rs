//! What was acknowledged and not flushed is damaged, and only the process ended: the log is cut there, and the store tells that it lacks something.

use crate::fake::{Crash, Disk, run};
use crate::small::{T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, Store};
use glowfs_rt::process::{Simulated, pretend};
use glowfs_types::Incarnation;
use std::rc::Rc;

const BLOCK: usize = 4096;
/// Updates that are written, each in a batch of its own.
const UPDATES: u64 = 9;

/// Every third one is too large for the log.
fn size(index: u64) -> usize {
    if index % 3 == 1 { 100_000 } else { 9_000 }
}

/// Some updates, none of them flushed, and then the process ends.
fn killed(seed: u64, updates: u64) -> Rc<Disk> {
    pretend(Some(Simulated { pid: 1, host: 1, boot: 1 }));
    let disk = Disk::new(seed);
    let d = disk.clone();
    run(seed, &disk, move |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        for i in 0..updates {
            let write = request(i, 1, StageKind::Write, bytes(i, size(i)));
            store.stage(T, write).await.expect("stage");
        }
    })
    .expect("ran");
    disk.after(Crash::Kill, seed)
}

/// Opens it; this life, the first one that lacks nothing, and how many of the updates are there, from the first on.
fn opened(disk: &Rc<Disk>) -> (Incarnation, Incarnation, u64) {
    let d = disk.clone();
    run(3, disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        let there = |i: &u64| store.chunk(T, id(*i)).is_some();
        let kept = (0..).take_while(there).count() as u64;
        assert!(!(kept..100).any(|i| there(&i)), "only the last ones may be missing");
        for i in 0..kept {
            let (r, buf) = store.read(T, id(i), 0, rt.alloc(size(i))).await;
            r.unwrap_or_else(|e| panic!("chunk {i}: {e}"));
            assert!(buf[..] == bytes(i, size(i)), "chunk {i}");
        }
        (store.incarnation(), store.machine_since(), kept)
    })
    .expect("ran")
}

/// Damages what is there of updates, and opens it twice: the damage is told once, by the life that has found it.
fn is_told(updates: u64, kept: u64, damage: impl FnOnce(&Disk)) -> bool {
    let disk = killed(1, updates);
    damage(&disk);
    let (life, since, there) = opened(&disk);
    assert_eq!((life, there), (Incarnation(2), kept));
    let again = disk.after(Crash::Kill, 5);
    assert_eq!(opened(&again), (Incarnation(3), since, kept));
    assert!(since <= life);
    since == life
}

/// The blocks of a segment file in which batches begin.
fn heads(disk: &Disk, name: &str) -> Vec<u64> {
    let begins = |b: &u64| &disk.bytes(name, *b)[..4] == b"GBAT";
    disk.blocks(name).into_iter().filter(begins).collect()
}

/// Where the first block of an update lies.
fn place(disk: &Disk, index: u64) -> (String, u64) {
    let content = bytes(index, BLOCK);
    let all = disk
        .file_names()
        .into_iter()
        .flat_map(|name| disk.blocks(&name).into_iter().map(move |block| (name.clone(), block)));
    all.into_iter().find(|(n, b)| disk.bytes(n, *b) == content).expect("it is written")
}

fn spoil_data(disk: &Disk, index: u64) {
    let (name, block) = place(disk, index);
    assert_eq!(name.starts_with("log-"), size(index) == 9_000);
    disk.flip(&name, block, 77);
}

/// Of the batch of an update; the first one made the target.
fn spoil_head(disk: &Disk, index: u64) {
    disk.flip("log-0000", heads(disk, "log-0000")[1 + index as usize], 90 * 8);
}

#[test]
fn what_is_whole_lacks_nothing() {
    assert!(!is_told(UPDATES, UPDATES, |_| ()));
}

#[test]
fn damaged_data_of_an_unflushed_update_is_told() {
    // In the log, and in slots.
    for index in [0, 3, 1, 4] {
        assert!(is_told(UPDATES, index, |d| spoil_data(d, index)), "update {index}");
    }
    // It was in its slot before the batch was written.
    let last = 7;
    assert!(is_told(last + 1, last, |d| spoil_data(d, last)));
}

#[test]
fn a_damaged_batch_with_whole_ones_behind_it_is_told() {
    for index in [0, 1, 5, UPDATES - 2] {
        assert!(is_told(UPDATES, index, |d| spoil_head(d, index)), "update {index}");
    }
}

/// The first batch of a segment whose header is damaged, and the last one of the segment before a whole one.
#[test]
fn damage_where_a_segment_ends_is_told() {
    let updates = 40;
    let disk = killed(1, updates);
    let count = heads(&disk, "log-0000").len() as u64;
    let in_first = count - 1;
    assert!(in_first < updates - 1, "{in_first} of {updates} in the first segment");
    let second = disk.file_names().into_iter().filter(|n| n.starts_with("log-"));
    let mut second = second.filter(|n| n != "log-0000" && heads(&disk, n).len() > 1);
    let second = second.next_back().expect("a second segment");
    assert!(is_told(updates, in_first, |d| d.flip(&second, 0, 45 * 8)));
    assert!(is_told(updates, in_first - 1, |d| spoil_head(d, in_first - 1)));
}

/// Of the very last batch nobody knows whether its write had ended.
#[test]
fn a_torn_end_is_not_told() {
    let last = UPDATES - 1;
    assert!(!is_told(UPDATES, last, |d| spoil_head(d, last)));
    assert!(!is_told(UPDATES, last, |d| spoil_data(d, last)));
}
