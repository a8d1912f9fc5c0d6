//! Writes that fail and have taken effect: others have to be told, and this client's own kernel must not go on with what it has.

use crate::common::{TestMount, alone, has};
use crate::mapped::Mapping;
use glowfs_mount::ram::{FAIL_AND_DO, SESSIONS_ENDED, SOURCE_CUT, WRITES_TOLD};
use glowfs_usrbio::{Connection, Kind, RingOptions};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const LEN: usize = 8192;

fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags).open(path).expect("open")
}

/// A ring's write of the file's second block.
fn by_ring(path: &Path) -> File {
    let c = Connection::open(path.parent().expect("the mount")).expect("a session");
    let buffer = c.buffer(4096).expect("a buffer");
    buffer.fill(0, &[b'n'; 4096]);
    let mut ring = c.ring(RingOptions::new(Kind::Write, 8)).expect("a ring");
    let file = open(path, 0);
    let registered = c.register(&file).expect("registered");
    ring.prepare(&registered, 4096, &buffer, 0, 4096, 1).expect("room");
    ring.submit().expect("submitted");
    let soon = Some(Instant::now() + Duration::from_secs(20));
    assert!(ring.wait(soon).expect("alive"), "no completion");
    assert!(ring.take().expect("it").result < 0);
    file
}

/// Something that changes the second block of a file, and fails: the descriptor that it was done through, and what is there then.
type Fails = fn(&Path) -> File;
const WAYS: [(&str, Fails, u8); 6] = [
    (
        "a write",
        |path| {
            let f = open(path, 0);
            f.write_at(&[b'n'; 4096], 4096).expect_err("it fails");
            f
        },
        b'n',
    ),
    (
        "a direct write",
        |path| {
            let f = open(path, libc::O_DIRECT);
            f.write_at(&[b'n'; 4096], 4096).expect_err("it fails");
            f
        },
        b'n',
    ),
    ("a write of a ring", by_ring, b'n'),
    (
        "a copy",
        |path| {
            let (f, source) = (open(path, 0), File::open(path.with_file_name("source")));
            let (source, mut to) = (source.expect("open"), 4096);
            copy_file_range(source, None, &f, Some(&mut to), 4096).expect_err("it fails");
            f
        },
        b'n',
    ),
    (
        "zeros",
        |path| {
            let f = open(path, 0);
            fallocate(&f, FallocateFlags::ZERO_RANGE, 4096, 4096).expect_err("it fails");
            f
        },
        0,
    ),
    (
        "a hole",
        |path| {
            let f = open(path, 0);
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&f, how, 4096, 4096).expect_err("it fails");
            f
        },
        0,
    ),
];

fn told_by(act: impl FnOnce()) -> u64 {
    let before = WRITES_TOLD.load(SeqCst);
    act();
    WRITES_TOLD.load(SeqCst) - before
}

#[test]
fn who_fails_to_write_tells_as_if_he_had_written() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    std::fs::write(m.join("source"), [b'n'; LEN]).expect("write");
    for (way, fails, is) in WAYS {
        for by_fsync in [true, false] {
            let path = m.join("f");
            std::fs::write(&path, [b'a'; LEN]).expect("write");
            // The kernel has it.
            let reader = File::open(&path).expect("open");
            let second = || {
                let mut found = [0; 4096];
                reader.read_exact_at(&mut found, 4096).expect("read");
                found
            };
            assert!(second() == [b'a'; 4096]);
            std::thread::sleep(Duration::from_millis(50));
            // Who drops a descriptor of a ring closes the file.
            let before = WRITES_TOLD.load(SeqCst);
            FAIL_AND_DO.store(true, SeqCst);
            let f = fails(&path);
            FAIL_AND_DO.store(false, SeqCst);
            assert!(second() == [is; 4096], "{way}: old bytes here");
            let ended = SESSIONS_ENDED.load(SeqCst);
            if by_fsync {
                f.sync_all().expect("fsync");
                assert_eq!(told_by(|| f.sync_all().expect("fsync")), 0, "{way}: told once");
            } else {
                drop(f);
                let until = Instant::now() + Duration::from_secs(20);
                while SESSIONS_ENDED.load(SeqCst) == ended {
                    assert!(Instant::now() < until, "{way}: not closed");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            assert!(WRITES_TOLD.load(SeqCst) > before, "{way}: not told (by fsync: {by_fsync})");
            assert_eq!(reader.metadata().expect("stat").len(), LEN as u64, "{way}");
            drop(reader);
            std::fs::remove_file(&path).expect("unlink");
        }
    }
}

/// Behind the end nobody knows how far it came: the file is as long as before, and what may be there is told of all the same.
#[test]
fn an_append_that_fails_tells_and_makes_nothing_longer() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    std::fs::write(&path, [b'a'; LEN]).expect("write");
    let mut f = OpenOptions::new().append(true).open(&path).expect("open");
    FAIL_AND_DO.store(true, SeqCst);
    f.write_all(b"more").expect_err("it fails");
    FAIL_AND_DO.store(false, SeqCst);
    assert!(told_by(|| f.sync_all().expect("fsync")) > 0);
    assert_eq!(f.metadata().expect("stat").len(), LEN as u64);
    f.write_all(b"most").expect("append");
    drop(f);
    assert!(std::fs::read(&path).expect("read").ends_with(b"aamost"));
}

/// Who has the destination does not hear of the cut, and the copy ends as if there had been nothing to copy.
#[test]
fn a_copy_whose_source_is_cut_meanwhile_tells() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    for name in ["f", "source"] {
        std::fs::write(m.join(name), [name.as_bytes()[0]; LEN]).expect("write");
    }
    let (f, source) = (open(&m.join("f"), 0), open(&m.join("source"), 0));
    SOURCE_CUT.store(true, SeqCst);
    let mut to = 4096;
    let copied = copy_file_range(&source, None, &f, Some(&mut to), 4096);
    assert!(!SOURCE_CUT.load(SeqCst), "it was sent");
    assert_eq!(copied.expect("copied"), 0);
    let mut found = [0; 4096];
    f.read_exact_at(&mut found, 4096).expect("read");
    assert_eq!(found, [b's'; 4096]);
    assert!(told_by(|| f.sync_all().expect("fsync")) > 0);
}

/// What the kernel writes back.
#[test]
fn pages_of_a_mapping_that_cannot_be_written_back_are_told_of() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    std::fs::write(&path, [b'a'; LEN]).expect("write");
    // Before: at an open the kernel gives pages back.
    let f = open(&path, 0);
    let mapping = Mapping::stored(&path, 0);
    FAIL_AND_DO.store(true, SeqCst);
    f.sync_all().expect_err("they fail");
    FAIL_AND_DO.store(false, SeqCst);
    assert!(told_by(|| f.sync_all().expect("fsync")) > 0);
    mapping.end();
}
