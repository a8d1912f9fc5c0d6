//! When writes that were answered are sent, and who hears of it if they are lost. One test at a time: what is counted is the process's.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{LIFE, NO_ROOM, WRITES};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const O_DIRECT: i32 = libc::O_DIRECT;
const O_DSYNC: i32 = libc::O_DSYNC;
const ENOSPC: Option<i32> = Some(28);

fn mount(age_ms: u64) -> Option<(TestMount, MutexGuard<'static, ()>)> {
    let one = alone();
    NO_ROOM.store(false, SeqCst);
    let m = TestMount::with(60, |c| (c.write_back, c.write_back_ms) = (Some(true), age_ms))?;
    WRITES.store(0, SeqCst);
    Some((m, one))
}

/// Writes that have reached the file system below.
fn sent() -> u64 {
    WRITES.load(SeqCst)
}

fn open(m: &TestMount, name: &str, flags: i32) -> File {
    OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .custom_flags(flags)
        .open(m.join(name))
        .expect("open")
}

#[test]
fn small_writes_are_sent_together_and_seen_at_once() {
    let Some((m, _one)) = mount(10_000) else { return };
    let mut f = open(&m, "f", 0);
    let before = std::time::SystemTime::now();
    for i in 0..100u8 {
        f.write_all(&[i; 1000]).expect("write");
    }
    assert_eq!(sent(), 0);
    let stat = std::fs::metadata(m.join("f")).expect("stat");
    assert_eq!((stat.len(), stat.blocks()), (100_000, 200));
    assert!(stat.modified().expect("mtime") >= before - Duration::from_millis(20));
    drop(f);
    assert_eq!(sent(), 1, "at close, as one");
    let back = std::fs::read(m.join("f")).expect("read");
    assert!((0..100_000).all(|i| back[i] == (i / 1000) as u8));
    assert_eq!(std::fs::metadata(m.join("f")).expect("stat").mtime_nsec(), stat.mtime_nsec());
}

#[test]
fn what_must_not_wait_does_not() {
    let Some((m, _one)) = mount(10_000) else { return };
    let gather = || {
        let f = open(&m, "f", 0);
        f.write_all_at(b"waits", 7).expect("write");
        assert_eq!(sent(), 0);
        f
    };
    let sends = |what: &str, act: &dyn Fn(&File)| {
        let f = gather();
        act(&f);
        assert_ne!(sent(), 0, "{what}");
        drop(f);
        WRITES.store(0, SeqCst);
    };
    sends("fsync", &|f| f.sync_all().expect("fsync"));
    sends("fdatasync", &|f| f.sync_data().expect("fdatasync"));
    sends("close of another handle", &|_| drop(open(&m, "f", 0)));
    sends("truncate", &|f| f.set_len(3).expect("truncate"));
    sends("times", &|f| f.set_modified(std::time::UNIX_EPOCH).expect("utimes"));
    sends("a read past the page cache", &|_| {
        let mut all = [0; 12];
        open(&m, "f", O_DIRECT).read_exact_at(&mut all, 0).expect("read");
        assert_eq!(all[7..], *b"waits");
    });
    sends("a great write", &|f| f.write_all_at(&vec![1; 4 << 20], 0).expect("write"));
    sends("a lock", &|f| f.lock().expect("flock"));
    sends("a hole is looked for", &|mut f| {
        let end = f.seek(SeekFrom::End(0)).expect("seek");
        rustix::fs::seek(f, rustix::fs::SeekFrom::Hole(end - 1)).expect("SEEK_HOLE");
    });
    sends("space", &|f| {
        rustix::fs::fallocate(f, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).expect("grow");
    });
    for flags in [O_DSYNC, O_DIRECT] {
        let f = open(&m, "g", flags);
        f.write_all_at(&[5; 4096], 0).expect("write");
        assert_ne!(sent(), 0, "flags {flags:o}");
        WRITES.store(0, SeqCst);
    }
    // With a lock held: before others get it.
    let f = open(&m, "h", 0);
    f.lock().expect("flock");
    f.write_all_at(b"under the lock", 0).expect("write");
    assert_eq!(sent(), 0);
    f.unlock().expect("unlock");
    assert_eq!(sent(), 1);
}

#[test]
fn nothing_waits_long_and_nothing_grows_without_bound() {
    let Some((m, _one)) = mount(100) else { return };
    let f = open(&m, "f", 0);
    f.write_all_at(b"x", 0).expect("write");
    let end = Instant::now() + Duration::from_secs(20);
    while sent() == 0 {
        assert!(Instant::now() < end, "it was never sent");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop((f, m));
    drop(_one);
    let Some((m, _one)) = mount(10_000) else { return };
    let f = open(&m, "g", 0);
    for i in 0..1024 {
        f.write_all_at(&[7; 4096], i * 4096).expect("write");
    }
    // At most one mebibyte is gathered, and one on its way.
    assert!((2..=4).contains(&sent()), "{}", sent());
    for i in 0..1000 {
        f.write_all_at(b"y", i * 4096 + 1).expect("write");
    }
    assert!(sent() >= 500, "{}", sent());
    f.sync_all().expect("fsync");
    // The end of the mount, while the file is open.
    f.write_all_at(b"last", 0).expect("write");
    let before = sent();
    drop(m);
    assert_eq!(sent(), before + 1);
}

/// Others may have gone on with the file, and it is not this client's turn to write over that.
#[test]
fn what_was_gathered_before_a_session_ended_is_not_sent_in_another_one() {
    let Some((m, _one)) = mount(10_000) else { return };
    let before = open(&m, "f", 0);
    before.write_all_at(b"old", 0).expect("answered before it was sent");
    // As the client library does when it was cut off for too long.
    LIFE.fetch_add(1, SeqCst);
    let after = open(&m, "f", 0);
    after.write_all_at(b"new", 3).expect("write");
    for f in [&before, &after] {
        assert_eq!(f.sync_all().expect_err("heard").raw_os_error(), Some(5));
    }
    after.sync_all().expect("heard once");
    drop((before, after));
    assert_eq!(std::fs::read(m.join("f")).expect("read"), b"\0\0\0new");
}

#[test]
fn each_handle_hears_once_of_what_was_lost() {
    let Some((m, _one)) = mount(10_000) else { return };
    let (a, b) = (open(&m, "f", 0), open(&m, "f", 0));
    a.write_all_at(b"stays", 0).expect("write");
    a.sync_all().expect("fsync");
    NO_ROOM.store(true, SeqCst);
    a.write_all_at(b"is lost", 5).expect("answered before it was sent");
    assert_eq!(std::fs::metadata(m.join("f")).expect("stat").len(), 12);
    assert_eq!(a.sync_all().expect_err("fsync").raw_os_error(), ENOSPC);
    NO_ROOM.store(false, SeqCst);
    assert_eq!(std::fs::metadata(m.join("f")).expect("stat").len(), 5, "as if never written");
    a.sync_all().expect("heard once");
    assert_eq!(b.sync_all().expect_err("fsync").raw_os_error(), ENOSPC);
    b.sync_all().expect("heard once");
    // At close as well.
    NO_ROOM.store(true, SeqCst);
    b.write_all_at(b"is lost", 5).expect("answered before it was sent");
    let closed = |f: File| {
        use std::os::fd::IntoRawFd;
        // SAFETY: the descriptor is ours, and nobody uses it any more.
        match unsafe { libc::close(f.into_raw_fd()) } {
            0 => None,
            _ => std::io::Error::last_os_error().raw_os_error(),
        }
    };
    assert_eq!(closed(b), ENOSPC);
    NO_ROOM.store(false, SeqCst);
    assert_eq!(closed(a), ENOSPC);
    assert_eq!(closed(open(&m, "f", 0)), None);
    assert_eq!(std::fs::read(m.join("f")).expect("read"), b"stays");
}

#[test]
fn a_lost_append_leaves_no_hole() {
    let Some((m, _one)) = mount(10_000) else { return };
    let mut log = OpenOptions::new().create(true).append(true).open(m.join("log")).expect("open");
    log.write_all(b"one ").expect("append");
    log.write_all(b"two ").expect("append");
    assert_eq!(sent(), 0);
    assert_eq!(std::fs::metadata(m.join("log")).expect("stat").len(), 8);
    log.sync_all().expect("fsync");
    NO_ROOM.store(true, SeqCst);
    log.write_all(b"lost").expect("append");
    assert_eq!(log.sync_all().expect_err("fsync").raw_os_error(), ENOSPC);
    NO_ROOM.store(false, SeqCst);
    log.write_all(b"three").expect("append");
    drop(log);
    assert_eq!(std::fs::read(m.join("log")).expect("read"), b"one two three");
}
