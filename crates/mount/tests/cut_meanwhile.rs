//! Writes that another client's truncate overtakes.

use crate::common::{TestMount, alone, has};
use crate::mapped::Mapping;
use glowfs_mount::MountConfig;
use glowfs_mount::ram::{
    CUT_BEFORE_WRITE, CUT_DURING_SEEK, CUT_TOLD_AGAIN, CUT_TOLD_LATE, CUT_UNFINISHED, LONG_AGAIN,
    OPEN_ANSWERED_LATE, READS_WAIT_AT,
};
use rustix::fs::FallocateFlags;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Another client cuts the file to this length before the next write to it is there.
fn cut_to(len: u64) {
    CUT_BEFORE_WRITE.store(len + 1, SeqCst);
}

#[test]
fn an_append_that_a_truncate_overtakes_goes_to_the_new_end() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let mut f = OpenOptions::new().create(true).append(true).open(&path).expect("open");
    f.write_all(&[b'a'; 8192]).expect("append");
    for (cut, tail) in [(1000, "behind"), (500, "and"), (0, "behind"), (7000, "holes")] {
        cut_to(cut);
        f.write_all(tail.as_bytes()).expect("append");
        f.write_all(b"!").expect("append");
        let found = std::fs::read(&path).expect("read");
        let end = format!("{tail}!");
        assert_eq!(found.len(), cut as usize + end.len(), "cut to {cut}");
        assert!(found.ends_with(end.as_bytes()), "cut to {cut}");
    }
}

/// Nobody may write until the truncate is finished; what was said under its epoch would go with it.
#[test]
fn what_fallocate_makes_longer_stays_so_when_a_truncate_ends() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create_new(true).write(true).open(&path).expect("open");
    f.write_all_at(&[b'a'; 8192], 0).expect("write");
    f.sync_all().expect("fsync");
    for cut in [1000, 0] {
        CUT_UNFINISHED.store(cut + 1, SeqCst);
        rustix::fs::fallocate(&f, FallocateFlags::empty(), 0, 5000).expect("fallocate");
        f.sync_all().expect("fsync");
        assert_eq!(f.metadata().expect("stat").len(), 5000, "cut to {cut}");
        let found = std::fs::read(&path).expect("read");
        assert!(found[cut as usize..].iter().all(|b| *b == 0), "cut to {cut}");
    }
}

/// Meta has read what it answers to an open before another client cut the file to nothing, and this one has heard of that when the answer comes.
#[test]
fn what_is_opened_while_it_is_cut_to_nothing_has_the_new_data() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create_new(true).write(true).open(&path).expect("open");
    f.write_all_at(&[b'a'; 8192], 0).expect("write");
    f.sync_all().expect("fsync");
    OPEN_ANSWERED_LATE.store(true, SeqCst);
    let opening = std::thread::spawn(move || std::fs::File::open(path).expect("open"));
    std::thread::sleep(Duration::from_millis(100));
    cut_to(0);
    f.write_all_at(b"new", 0).expect("write");
    let late = opening.join().expect("opened");
    let mut found = [0; 3];
    late.read_exact_at(&mut found, 0).expect("read");
    assert_eq!(&found, b"new");
}

/// What a search finds in chunks that another client has cut off, and that may have been collected, does not count.
#[test]
fn a_search_for_data_that_a_truncate_overtakes_begins_anew() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create_new(true).write(true).open(&path).expect("open");
    f.write_all_at(&[b'a'; 8192], 0).expect("write");
    f.sync_all().expect("fsync");
    CUT_DURING_SEEK.store(1, SeqCst);
    let found = rustix::fs::seek(&f, rustix::fs::SeekFrom::Data(0));
    assert_eq!(found, Err(rustix::io::Errno::NXIO), "it is cut to nothing");
}

#[test]
fn pages_of_a_mapping_do_not_make_a_file_longer_that_was_cut() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    for cut in [10_000, 8192, 100, 0] {
        std::fs::write(&path, [b'a'; 20_000]).expect("write");
        let mapping = Mapping::stored(&path, 0);
        cut_to(cut);
        mapping.write_back();
        let found = std::fs::read(&path).expect("read");
        assert_eq!(found.len() as u64, cut);
        assert!(found.iter().all(|b| *b == b'm'), "cut to {cut}");
    }
}

/// The kernel is told to give its pages back, and comes to them when the other client has made the file long again already.
#[test]
fn pages_of_before_a_cut_do_not_lie_over_what_came_behind_it() {
    const FAR: u64 = 1 << 20;
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create_new(true).read(true).write(true).open(&path).expect("open");
    f.set_len(FAR + 4096).expect("length");
    // By itself, so that the kernel can have it by itself.
    f.write_all_at(&[b'a'; 4096], 0).expect("write");
    let mapping = Mapping::stored(&path, FAR);
    // SAFETY: hints about a descriptor of ours.
    unsafe {
        libc::posix_fadvise(f.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
        libc::posix_fadvise(f.as_raw_fd(), 0, 4096, libc::POSIX_FADV_DONTNEED);
    }
    // It waits for this page first.
    READS_WAIT_AT.store(1, SeqCst);
    let reader = {
        let f = f.try_clone().expect("a descriptor");
        std::thread::spawn(move || f.read_at(&mut [0; 4096], 0))
    };
    std::thread::sleep(Duration::from_millis(200));
    LONG_AGAIN.store(2 * FAR + 1, SeqCst);
    cut_to(1000);
    f.write_all_at(b"x", 8192).expect("write");
    std::thread::sleep(Duration::from_millis(600));
    READS_WAIT_AT.store(0, SeqCst);
    reader.join().expect("a reader").expect("read");
    mapping.write_back();
    let found = std::fs::read(&path).expect("read");
    assert_eq!(found.len() as u64, 2 * FAR);
    let wrong = found[8193..].iter().position(|b| *b != 0);
    assert_eq!(wrong, None, "from 8193 on");
}

/// With writes that are answered before they are sent.
fn waits_long(c: &mut MountConfig) {
    (c.write_back, c.write_back_ms) = (Some(true), 10_000);
}

/// Pieces that were answered wait for the capability with which they are sent.
#[test]
fn what_was_answered_before_a_truncate_does_not_come_back_behind_it() {
    let _alone = alone();
    let Some(m) = TestMount::with(60, waits_long) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create(true).truncate(false).write(true).open(&path).expect("open");
    f.write_all_at(&[b'a'; 20_000], 0).expect("write");
    f.sync_all().expect("fsync");
    for cut in [10_000, 3000, 100, 0] {
        f.write_all_at(&[b'b'; 8000], 2000).expect("write");
        f.write_all_at(&[b'c'; 50], 30_000).expect("write");
        cut_to(cut);
        f.sync_all().expect("fsync");
        let found = std::fs::read(&path).expect("read");
        let expected = |at| if at < 2000 { b'a' } else { b'b' };
        assert_eq!(found.len() as u64, cut);
        assert!((0..found.len()).all(|at| found[at] == expected(at)), "cut to {cut}");
    }
    // What is written after it stays where it stands.
    f.write_all_at(b"behind a hole", 5000).expect("write");
    f.sync_all().expect("fsync");
    assert_eq!(std::fs::read(&path).expect("read")[5000..], *b"behind a hole");
}

/// Meta tells those who have leased the file, and then those who have it open for writing.
#[test]
fn what_was_answered_after_a_truncate_stays_when_that_is_told_again() {
    let _alone = alone();
    let Some(m) = TestMount::with(60, waits_long) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create_new(true).write(true).open(&path).expect("open");
    for cut in [1000, 0] {
        f.write_all_at(&[b'a'; 20_000], 0).expect("write");
        CUT_TOLD_AGAIN.store(true, SeqCst);
        cut_to(cut);
        f.sync_all().expect("fsync");
        assert_eq!(f.metadata().expect("stat").len(), cut);
        f.write_all_at(b"after it", 5000).expect("write");
        std::thread::sleep(Duration::from_millis(400));
        f.sync_all().expect("fsync");
        let found = std::fs::read(&path).expect("read");
        assert_eq!(found.len(), 5008, "cut to {cut}");
        assert_eq!(found[5000..], *b"after it");
    }
}

/// A renewal of the capability can bring the new epoch before meta has told of it.
#[test]
fn what_was_answered_before_a_truncate_to_nothing_does_not_come_back_though_it_is_told_late() {
    let _alone = alone();
    let Some(m) = TestMount::with(60, waits_long) else { return };
    let path = m.join("f");
    let f = OpenOptions::new().create_new(true).write(true).open(&path).expect("open");
    f.write_all_at(&[b'a'; 20_000], 0).expect("write");
    f.sync_all().expect("fsync");
    f.write_all_at(&[b'b'; 8000], 2000).expect("write");
    f.write_all_at(&[b'c'; 50], 30_000).expect("write");
    CUT_TOLD_LATE.store(true, SeqCst);
    cut_to(0);
    f.sync_all().expect("fsync");
    assert_eq!(std::fs::read(&path).expect("read").len(), 0);
    f.write_all_at(b"after it", 0).expect("write");
    std::thread::sleep(Duration::from_millis(400));
    f.sync_all().expect("fsync");
    assert_eq!(std::fs::read(&path).expect("read"), b"after it");
}
