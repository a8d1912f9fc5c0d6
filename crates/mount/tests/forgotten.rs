//! What the kernel has of a file when a ring writes it: forgotten before the application hears of the write, and never written over it.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{CHANGED_UNSEEN, READS_WAIT_AT};
use glowfs_usrbio::{Connection, Kind, RegisteredFile, Ring, RingOptions};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Behind whatever the kernel takes together with the first page.
const FAR: u64 = 1 << 20;

fn open(m: &TestMount, name: &str) -> File {
    let path = m.join(name);
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// A ring, and the one page that it writes.
fn writer(m: &TestMount, file: &File) -> (Connection, RegisteredFile, Ring) {
    let c = Connection::open(m.path()).expect("a session");
    let f = c.register(file).expect("registered");
    let ring = c.ring(RingOptions::new(Kind::Write, 8)).expect("a ring");
    (c, f, ring)
}

/// Within this time.
fn completes(ring: &mut Ring, time: Duration) -> bool {
    let complete = ring.wait(Some(Instant::now() + time)).expect("the ring lives");
    if complete {
        assert_eq!(ring.take().expect("a completion").result, PAGE as i64);
    }
    complete
}

/// What the page there is full of.
fn page_at(file: &File, offset: u64) -> u8 {
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, offset).expect("read");
    assert!(page.iter().all(|b| *b == page[0]), "a torn page");
    page[0]
}

/// The kernel has none of its pages.
fn drop_pages(file: &File) {
    // SAFETY: hints about a descriptor of ours.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
        libc::posix_fadvise(file.as_raw_fd(), 0, PAGE as i64, libc::POSIX_FADV_DONTNEED);
    }
}

/// Reads the first page, on a thread of its own.
fn reads_first(file: &File) -> JoinHandle<u8> {
    let file = file.try_clone().expect("a descriptor");
    std::thread::spawn(move || page_at(&file, 0))
}

#[test]
fn what_was_stored_into_a_mapping_before_is_not_written_over_a_rings_write() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let file = open(&m, "f");
    file.set_len(PAGE as u64).expect("length");
    let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let (anywhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours; it is unmapped at the end.
    let mapped = unsafe { libc::mmap(anywhere, PAGE, protection, shared, fd, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let (c, f, mut ring) = writer(&m, &file);
    let buffer = c.buffer(PAGE).expect("memory");
    for round in 0..5 {
        // SAFETY: inside the mapping.
        unsafe { mapped.cast::<u8>().write_bytes(b'o', PAGE) };
        buffer.fill(0, &[b'a' + round; PAGE]);
        ring.prepare(&f, 0, &buffer, 0, PAGE, 0).expect("room");
        ring.submit().expect("submitted");
        assert!(completes(&mut ring, Duration::from_secs(20)));
        assert_eq!(page_at(&file, 0), b'a' + round, "round {round}");
        // SAFETY: inside the mapping.
        let seen = unsafe { mapped.cast::<u8>().read_volatile() };
        assert_eq!(seen, b'a' + round, "through the mapping, round {round}");
    }
    // SAFETY: ours, and not used any more.
    unsafe { libc::munmap(mapped, PAGE) };
}

/// The kernel forgets a page only when the read that fills it has ended; so the forgetting of the first write takes as long.
#[test]
fn a_rings_write_waits_for_the_forgetting_that_another_one_has_begun() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let file = open(&m, "f");
    for offset in [0, FAR] {
        file.write_all_at(&[b'o'; PAGE], offset).expect("written");
    }
    drop_pages(&file);
    assert_eq!(page_at(&file, FAR), b'o', "the kernel has it");
    READS_WAIT_AT.store(1, SeqCst);
    let reader = reads_first(&file);
    std::thread::sleep(Duration::from_millis(100));
    let (c, f, mut first) = writer(&m, &file);
    let mut second = c.ring(RingOptions::new(Kind::Write, 8)).expect("a ring");
    let buffer = c.buffer(PAGE).expect("memory");
    buffer.fill(0, &[b'n'; PAGE]);
    first.prepare(&f, 2 * FAR, &buffer, 0, PAGE, 0).expect("room");
    first.submit().expect("submitted");
    std::thread::sleep(Duration::from_millis(200));
    second.prepare(&f, FAR, &buffer, 0, PAGE, 0).expect("room");
    second.submit().expect("submitted");
    let early = completes(&mut second, Duration::from_millis(500));
    READS_WAIT_AT.store(0, SeqCst);
    assert!(!early, "the kernel still had what was there before");
    assert!(completes(&mut second, Duration::from_secs(20)));
    assert!(completes(&mut first, Duration::from_secs(20)));
    assert_eq!(page_at(&file, FAR), b'n');
    assert_eq!(reader.join().expect("the reader"), b'o');
}

/// More files than a runtime has helper threads.
const STUCK: usize = 12;

#[test]
fn pages_of_some_files_that_are_being_read_hold_up_no_other_file() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let files: Vec<File> = (0..STUCK).map(|i| open(&m, &format!("f{i}"))).collect();
    for file in &files {
        file.write_all_at(&[b'o'; PAGE], 0).expect("written");
        drop_pages(file);
    }
    let free = open(&m, "free");
    free.write_all_at(&[b'o'; PAGE], FAR).expect("written");
    assert_eq!(page_at(&free, FAR), b'o', "the kernel has it");
    // All of one session, made while nothing is stuck.
    let c = Connection::open(m.path()).expect("a session");
    let buffer = c.buffer(PAGE).expect("memory");
    buffer.fill(0, &[b'n'; PAGE]);
    let ring_of = |file: &File| {
        let f = c.register(file).expect("registered");
        (f, c.ring(RingOptions::new(Kind::Write, 8)).expect("a ring"))
    };
    let mut writers: Vec<_> = files.iter().map(ring_of).collect();
    let (f, mut ring) = ring_of(&free);
    READS_WAIT_AT.store(1, SeqCst);
    let readers: Vec<_> = files.iter().map(reads_first).collect();
    std::thread::sleep(Duration::from_millis(200));
    for (f, ring) in &mut writers {
        ring.prepare(f, FAR, &buffer, 0, PAGE, 0).expect("room");
        ring.submit().expect("submitted");
    }
    std::thread::sleep(Duration::from_millis(200));
    ring.prepare(&f, FAR, &buffer, 0, PAGE, 0).expect("room");
    ring.submit().expect("submitted");
    let goes_on = completes(&mut ring, Duration::from_secs(5));
    READS_WAIT_AT.store(0, SeqCst);
    assert!(goes_on, "another file's pages are not forgotten");
    assert_eq!(page_at(&free, FAR), b'n');
    for (_, ring) in &mut writers {
        assert!(completes(ring, Duration::from_secs(20)));
    }
    for reader in readers {
        assert_eq!(reader.join().expect("the reader"), b'o');
    }
}

/// Another client has written to the file, and set time and length to what they were: one reader finds out, and the kernel cannot forget at once.
#[test]
fn no_reader_gets_what_was_there_before_while_the_kernel_is_forgetting_it() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let file = open(&m, "f");
    for offset in [0, FAR] {
        file.write_all_at(&[b'o'; PAGE], offset).expect("written");
    }
    // What was written here is known to meta when it is closed, and opened anew.
    drop(file);
    let file = open(&m, "f");
    drop_pages(&file);
    assert_eq!(page_at(&file, FAR), b'o', "the kernel has it");
    READS_WAIT_AT.store(1, SeqCst);
    let first = reads_first(&file);
    std::thread::sleep(Duration::from_millis(200));
    CHANGED_UNSEEN.store(true, SeqCst);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let file = file.try_clone().expect("a descriptor");
            let reader = std::thread::spawn(move || page_at(&file, FAR));
            std::thread::sleep(Duration::from_millis(100));
            reader
        })
        .collect();
    READS_WAIT_AT.store(0, SeqCst);
    let seen: Vec<_> = readers.into_iter().map(|r| r.join().expect("a reader")).collect();
    first.join().expect("the first reader");
    assert_eq!(seen, [b'n'; 4]);
}
