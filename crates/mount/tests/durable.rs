//! What is made durable when. One test at a time: the counters are the process's.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{DURABLE_SYNCS, FLUSHES};
use glowfs_usrbio::{Connection, Kind, RingOptions};
use rustix::io::{ReadWriteFlags, pwritev2};
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering::SeqCst;

const O_APPEND: i32 = libc::O_APPEND;
const O_DSYNC: i32 = libc::O_DSYNC;
const O_DIRECT: i32 = libc::O_DIRECT;
const O_SYNC: i32 = 0o4010000;

#[test]
fn fsync_of_a_file_and_of_a_directory_reach_meta() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    DURABLE_SYNCS.store(0, SeqCst);
    let syncs = || DURABLE_SYNCS.load(SeqCst);
    let file = File::create(m.join("f")).expect("create");
    assert_eq!(syncs(), 0, "a create alone is not durable at once");
    file.sync_all().expect("fsync");
    assert_eq!(syncs(), 1);
    std::fs::rename(m.join("f"), m.join("g")).expect("rename");
    let dir = File::open(m.path()).expect("open the directory");
    dir.sync_all().expect("fsync of the directory");
    assert_eq!(syncs(), 2, "a rename is made durable by fsync of its directory");
}

/// It leaves times alone, so meta need not hear of a write whose bytes it can find already.
#[test]
fn fdatasync_reaches_meta_only_if_it_could_lose_where_the_bytes_are() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let now = || (FLUSHES.load(SeqCst), DURABLE_SYNCS.load(SeqCst));
    let file = File::options().create_new(true).write(true).open(m.join("f")).expect("create");
    let synced = |what: &str, change: &dyn Fn(), made: (u64, u64)| {
        change();
        let before = now();
        file.sync_data().expect("fdatasync");
        let after = now();
        assert_eq!((after.0 - before.0, after.1 - before.1), made, "{what}");
    };
    let write = |at: u64| file.write_all_at(&[3; 4096], at).expect("write");
    synced("the file is new", &|| (), (1, 1));
    synced("nothing", &|| (), (1, 0));
    synced("longer", &|| write(0), (1, 1));
    synced("within its length", &|| write(0), (1, 0));
    synced("once more", &|| write(0), (1, 0));
    synced("longer once more", &|| write(4096), (1, 1));
    synced("shorter", &|| file.set_len(4096).expect("truncate"), (1, 1));
    synced("longer without bytes", &|| file.set_len(1 << 20).expect("truncate"), (1, 1));
    synced("in the hole", &|| write(8192), (1, 0));
    let told = || {
        write(1 << 20);
        drop(file.try_clone().expect("another descriptor"));
    };
    synced("meta was told of a length, but may lose it", &told, (1, 1));
    let before = now();
    write(0);
    file.sync_all().expect("fsync");
    assert_eq!(now().1 - before.1, 1, "fsync keeps times as well");
}

/// For what goes through its page cache the kernel asks for an fsync after the write, for the others it does not.
#[test]
fn a_write_that_is_to_be_durable_is_when_it_returns() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let open = |flags: i32| {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).append(flags & O_APPEND != 0);
        options.custom_flags(flags & !O_APPEND).open(m.join("f")).expect("open")
    };
    let made = |write: &dyn Fn()| {
        let now = || (FLUSHES.load(SeqCst), DURABLE_SYNCS.load(SeqCst));
        let before = now();
        write();
        let after = now();
        (after.0 - before.0, after.1 - before.1)
    };
    for sync in [O_SYNC, O_DSYNC] {
        for way in [0, O_APPEND, O_DIRECT, O_APPEND | O_DIRECT] {
            let f = open(way | sync);
            for round in 0..3 {
                let write = || (&f).write_all(&[1; 4096]).expect("write");
                let (flushes, syncs) = made(&write);
                // Of bytes within the length meta hears once, if at all.
                let least = u64::from(sync == O_SYNC || way & O_APPEND != 0);
                let most = if round == 0 { 1 } else { least };
                let flags = way | sync;
                assert_eq!(flushes, 1, "flags {flags:o}");
                assert!((least..=most).contains(&syncs), "flags {flags:o}: {syncs}");
            }
        }
    }
    for way in [0, O_APPEND, O_DIRECT] {
        let f = open(way);
        let write = |how| {
            let n = pwritev2(&f, &[IoSlice::new(&[2; 4096])], 0, how).expect("write");
            assert_eq!(n, 4096);
        };
        assert_eq!(made(&|| write(ReadWriteFlags::SYNC)), (1, 1), "RWF_SYNC, flags {way:o}");
        let longer = u64::from(way == O_APPEND);
        assert_eq!(made(&|| write(ReadWriteFlags::DSYNC)), (1, longer), "RWF_DSYNC, {way:o}");
        assert_eq!(made(&|| write(ReadWriteFlags::empty())), (0, 0), "flags {way:o}");
    }
}

/// The same through a ring: the kernel does not see these at all.
#[test]
fn a_ring_write_that_is_to_be_durable_is_when_it_completes() {
    const LEN: usize = 9 << 20;
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).expect("a session");
    let buffer = c.buffer(LEN).expect("a buffer");
    let mut ring = c.ring(RingOptions::new(Kind::Write, 8)).expect("a ring");
    for (flags, made) in [(0, 0), (O_DSYNC, 1), (O_SYNC, 1), (O_DIRECT, 0), (O_DIRECT | O_SYNC, 1)]
    {
        // Opened as it is made, and again.
        for name in [format!("f{flags:o}"), "g".to_owned()] {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).custom_flags(flags);
            let file = options.open(m.join(&name)).expect("open");
            let registered = c.register(&file).expect("registered");
            // The second one takes several pieces.
            for len in [4096, LEN] {
                let before = (FLUSHES.load(SeqCst), DURABLE_SYNCS.load(SeqCst));
                ring.prepare(&registered, 0, &buffer, 0, len, 1).expect("room");
                ring.submit().expect("submitted");
                assert!(ring.wait(None).expect("alive"));
                assert_eq!(ring.take().expect("it").result, len as i64);
                let after = (FLUSHES.load(SeqCst), DURABLE_SYNCS.load(SeqCst));
                let done = (after.0 - before.0, after.1 - before.1);
                assert_eq!(done, (made, made), "{name}, flags {flags:o}, {len} bytes");
            }
        }
    }
}
