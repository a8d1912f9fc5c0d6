//! User-space rings on a real mount: what they promise.

#[path = "hostile_rings.rs"]
mod hostile;

use crate::common::TestMount;
use glowfs_usrbio::control::{self, Control};
use glowfs_usrbio::{Connection, Kind, Ring, RingOptions, Submission, flags, mount_point_of};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const EBADF: i64 = 9;

fn open(m: &TestMount, name: &str) -> File {
    let path = m.join(name);
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn in_a_while() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// The next completion, soon.
fn next(ring: &mut Ring) -> (u64, i64) {
    ring.submit().unwrap();
    assert!(ring.wait(in_a_while()).unwrap(), "no completion");
    let c = ring.take().unwrap();
    (c.user, c.result)
}

/// Submits as it is and returns the result.
fn raw(ring: &mut Ring, s: Submission) -> i64 {
    ring.prepare_raw(s).unwrap();
    next(ring).1
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut step = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| step()).collect()
}

fn ioctl<C: Control>(fd: &impl AsFd, message: &mut C) -> io::Result<()> {
    // SAFETY: the command carries the size of the record.
    let r = unsafe {
        libc::ioctl(fd.as_fd().as_raw_fd(), C::COMMAND as libc::Ioctl, std::ptr::from_mut(message))
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn what_is_written_is_read_by_ring_and_by_system_call() {
    let Some(m) = TestMount::new(60) else { return };
    std::fs::create_dir(m.join("d")).unwrap();
    assert_eq!(mount_point_of(&m.join("d")).unwrap(), m.path());
    let c = Connection::open(&m.join("d")).unwrap();
    assert_eq!(c.mount_point(), m.path());
    let file = open(&m, "d/f");
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(16 << 20).unwrap();
    let mut w = c.ring(RingOptions::new(Kind::Write, 8)).unwrap();
    let mut r = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();

    // The kernel is given attributes and pages first, so that it has something to forget.
    let data = noise(9 << 20, 1);
    file.write_all_at(&noise(4096, 7), 0).unwrap();
    let mut before = [0; 4096];
    file.read_exact_at(&mut before, 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4096);

    buffer.fill(0, &data);
    w.prepare(&f, 0, &buffer, 0, data.len(), 77).unwrap();
    assert_eq!(next(&mut w), (77, data.len() as i64), "more than one piece");
    assert_eq!(file.metadata().unwrap().len(), data.len() as u64, "the kernel forgot the length");
    let mut after = vec![0; data.len()];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(after == data, "the kernel forgot its pages");

    buffer.fill(0, &vec![0; data.len()]);
    r.prepare(&f, 5, &buffer, 3, data.len(), 78).unwrap();
    assert_eq!(next(&mut r), (78, data.len() as i64 - 5), "up to the end of the file");
    assert!(buffer.copy_out(3, data.len() - 5) == data[5..]);
    r.prepare(&f, data.len() as u64 + 9, &buffer, 0, 10, 79).unwrap();
    assert_eq!(next(&mut r), (79, 0), "behind the end");

    // What the system call writes, the ring reads at once.
    file.write_all_at(b"news", 100).unwrap();
    r.prepare(&f, 100, &buffer, 0, 4, 80).unwrap();
    assert_eq!(next(&mut r), (80, 4));
    assert_eq!(buffer.copy_out(0, 4), b"news");
}

#[test]
fn many_at_once_keep_their_places() {
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(256 * 4096).unwrap();
    let data = noise(256 * 4096, 3);
    buffer.fill(0, &data);
    for (kind, depth) in [(Kind::Write, -7), (Kind::Read, 32), (Kind::Read, 0)] {
        let mut ring =
            c.ring(RingOptions { io_depth: depth, ..RingOptions::new(kind, 64) }).unwrap();
        if kind == Kind::Read {
            buffer.fill(0, &vec![0; data.len()]);
        }
        let (mut sent, mut seen) = (0usize, vec![false; 256]);
        while seen.iter().any(|s| !s) {
            while sent < 256 && ring.outstanding() < 64 {
                let at = sent * 4096;
                ring.prepare(&f, at as u64, &buffer, at, 4096, sent as u64).unwrap();
                sent += 1;
            }
            let (user, result) = next(&mut ring);
            assert_eq!(result, 4096);
            assert!(!std::mem::replace(&mut seen[user as usize], true), "answered twice");
        }
        assert!(buffer.copy_out(0, data.len()) == data, "{kind:?}");
    }
    let mut after = vec![0; data.len()];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(after == data);
}

#[test]
fn exactly_n_waits_for_n_or_for_its_time() {
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(4096, 3), 0).unwrap();
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(4096).unwrap();
    let of =
        |timeout_ms| RingOptions { io_depth: 4, timeout_ms, ..RingOptions::new(Kind::Read, 8) };
    let short = || Some(Instant::now() + Duration::from_millis(150));

    let mut ring = c.ring(of(0)).unwrap();
    for i in 0..3 {
        ring.prepare(&f, 0, &buffer, 0, 16, i).unwrap();
    }
    ring.submit().unwrap();
    assert!(!ring.wait(short()).unwrap(), "three wait for the fourth");
    ring.prepare(&f, 0, &buffer, 0, 16, 3).unwrap();
    for _ in 0..4 {
        assert_eq!(next(&mut ring).1, 16);
    }
    let mut ring = c.ring(of(300)).unwrap();
    let began = Instant::now();
    ring.prepare(&f, 0, &buffer, 0, 16, 9).unwrap();
    assert_eq!(next(&mut ring), (9, 16));
    assert!(
        began.elapsed() >= Duration::from_millis(290),
        "one waited for others: {:?}",
        began.elapsed()
    );
    // More than the ring has entries can never be there.
    assert!(c.ring(RingOptions { io_depth: 9, ..RingOptions::new(Kind::Read, 8) }).is_err());
}

#[test]
fn holes_are_zeros_or_forbidden() {
    const ENODATA: i64 = 61;
    // The RAM file system has holes of 64 KiB; a ring reads 4 MiB at a time.
    const HOLE: u64 = 64 << 10;
    const PIECE: u64 = 4 << 20;
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(b"abcd", 0).unwrap();
    file.write_all_at(b"behind", 2 * HOLE).unwrap();
    file.write_all_at(b"far", 2 * PIECE).unwrap();
    file.set_len(3 * PIECE).unwrap();
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(3 * PIECE as usize).unwrap();
    buffer.fill(0, &[0xff; 3 * PIECE as usize]);
    let mut plain = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    plain.prepare(&f, 0, &buffer, 0, 4096, 0).unwrap();
    assert_eq!(next(&mut plain).1, 4096);
    assert_eq!(buffer.copy_out(0, 6), b"abcd\0\0");

    let flags = flags::FORBID_READ_HOLES;
    let mut strict = c.ring(RingOptions { flags, ..RingOptions::new(Kind::Read, 8) }).unwrap();
    let mut read = |from: u64, to: u64| {
        strict.prepare(&f, from, &buffer, 0, (to - from) as usize, 0).unwrap();
        next(&mut strict).1
    };
    assert_eq!(read(0, HOLE), HOLE as i64, "there is all of it");
    assert_eq!(read(8, 2 * HOLE), HOLE as i64 - 8, "as where the file ends");
    assert_eq!(read(0, 2 * HOLE + 1), -ENODATA, "data behind a hole");
    assert_eq!(read(HOLE, 2 * HOLE), -ENODATA, "nothing but a hole");
    assert_eq!(read(HOLE, 2 * HOLE + 1), -ENODATA, "it begins in a hole");
    // In another piece.
    assert_eq!(read(2 * HOLE, 2 * PIECE), HOLE as i64);
    assert_eq!(read(2 * HOLE, 2 * PIECE + 1), -ENODATA);
    assert_eq!(read(4 * HOLE, 2 * PIECE), -ENODATA);
    assert_eq!(read(2 * PIECE, 3 * PIECE), HOLE as i64);
    assert_eq!(read(3 * PIECE, 4 * PIECE), 0, "behind the end of the file");
}

#[test]
fn rights_are_those_of_the_descriptor() {
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let writer = open(&m, "f");
    writer.write_all_at(b"mine", 0).unwrap();
    // The daemon shares one open file of its own between these; the rights must not be shared.
    let reader = c.register(File::open(m.join("f")).unwrap()).unwrap();
    let blind = c.register(OpenOptions::new().write(true).open(m.join("f")).unwrap()).unwrap();
    let buffer = c.buffer(4096).unwrap();
    let mut w = c.ring(RingOptions::new(Kind::Write, 8)).unwrap();
    let mut r = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    w.prepare(&reader, 0, &buffer, 0, 4, 0).unwrap();
    assert_eq!(next(&mut w).1, -EBADF);
    r.prepare(&blind, 0, &buffer, 0, 4, 0).unwrap();
    assert_eq!(next(&mut r).1, -EBADF);
    r.prepare(&reader, 0, &buffer, 0, 4, 0).unwrap();
    assert_eq!(next(&mut r).1, 4);
    // A file that was never registered, or whose session it is not.
    let mut q = control::AddFile { session: 1, secret: 2, ..Default::default() };
    assert_eq!(ioctl(&writer, &mut q).unwrap_err().raw_os_error(), Some(13));
    // A session of its own does not open another one's door.
    let other = Connection::open(m.path()).unwrap();
    let theirs = other.register(&writer).unwrap();
    assert!(w.prepare(&theirs, 0, &buffer, 0, 4, 0).is_err());
    let elsewhere = std::env::temp_dir();
    assert!(Connection::open(&elsewhere).is_err());
    assert!(c.register(File::open("/proc/self/exe").unwrap()).is_err());
}

#[test]
fn named_memory_is_found() {
    let Some(m) = TestMount::new(60) else { return };
    let (one, two) = (Connection::open(m.path()).unwrap(), Connection::open(m.path()).unwrap());
    let mine = one.buffer(8192).unwrap();
    let name = *b"0123456789abcdef";
    assert_eq!(two.find(name).err().unwrap().raw_os_error(), Some(2));
    one.name(&mine, name).unwrap();
    let theirs = two.find(name).unwrap();
    mine.fill(100, b"shared");
    assert_eq!(theirs.len(), 8192);
    assert_eq!(theirs.copy_out(100, 6), b"shared");
    one.name(&mine, [0; 16]).unwrap();
    assert!(two.find(name).is_err() && two.find([0; 16]).is_err());
    assert_eq!(theirs.copy_out(100, 6), b"shared", "who has it keeps it");
}

#[test]
fn what_is_closed_is_gone_and_the_rest_goes_on() {
    let Some(m) = TestMount::new(90) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(8192, 5), 0).unwrap();
    let f = c.register(&file).unwrap();
    drop(file);
    let buffer = c.buffer(8192).unwrap();
    let mut ring = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 16, 0).unwrap();
    assert_eq!(next(&mut ring).1, 16, "a registered file stays open");
    drop(f);
    let stale = Submission { kind: 1, file: 1, buffer: 2, len: 16, ..Default::default() };
    assert_eq!(raw(&mut ring, stale), -EBADF);
    // Many rings, and an application that dies with all of them open.
    let rings: Vec<Ring> =
        (0..300).map(|_| c.ring(RingOptions::new(Kind::Read, 8)).unwrap()).collect();
    drop(rings);
    // SAFETY: the child only waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: pause(2).
            unsafe { libc::pause() };
        }
    }
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    let file = open(&m, "f");
    let f = c.register(&file).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 16, 4).unwrap();
    assert_eq!(next(&mut ring).1, 16);
    // A removed file stays readable while it is registered.
    std::fs::remove_file(m.join("f")).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 16, 5).unwrap();
    assert_eq!(next(&mut ring).1, 16);
}
