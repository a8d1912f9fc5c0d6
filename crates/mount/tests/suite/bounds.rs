//! What applications with rings can take of the daemon at most, however many ask at once.

use crate::common::{TestMount, sh};
use glowfs_usrbio::control::{self, Control};
use glowfs_usrbio::{Connection, Kind, Ring, RingOptions};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const ENOSPC: i32 = 28;
/// Operations of a session that are taken and not answered, at most.
const SESSION_OPERATIONS_MAX: u32 = 4096;
/// Buffers of a session.
const BUFFERS_MAX: usize = 4096;

fn ioctl<C: Control>(fd: &impl AsFd, message: &mut C) -> io::Result<()> {
    // SAFETY: the command carries the size of the record.
    let r = unsafe {
        libc::ioctl(fd.as_fd().as_raw_fd(), C::COMMAND as libc::Ioctl, std::ptr::from_mut(message))
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Operations of all these rings that are taken and not answered: so many at least at one moment, which lies between the two readings.
fn working(rings: &[Ring]) -> u32 {
    // docs/formats/rings.md: submissions taken, completions there.
    let all = |offset| {
        let index = |ring: &Ring| {
            // SAFETY: an aligned word of the ring's first page, which both ends only use as an atomic.
            let word = unsafe { AtomicU32::from_ptr(ring.memory().as_ptr().add(offset).cast()) };
            word.load(SeqCst)
        };
        rings.iter().map(index).sum::<u32>()
    };
    let taken = all(128);
    taken.saturating_sub(all(192))
}

#[test]
fn what_is_taken_of_rings_is_bounded_and_nobody_is_forgotten() {
    const ENTRIES: u32 = 1 << 16;
    let Some(m) = TestMount::new(120) else { return };
    let c = Connection::open(m.path()).unwrap();
    std::fs::write(m.join("f"), "x").unwrap();
    let f = c.register(File::open(m.join("f")).unwrap()).unwrap();
    let buffer = c.buffer(4096).unwrap();
    // As soon as possible, and a whole batch at a time that is greater than what may be taken.
    let depths = [0, 0, ENTRIES as i32];
    let mut rings = depths.map(|io_depth| {
        let options = RingOptions { io_depth, ..RingOptions::new(Kind::Read, ENTRIES) };
        c.ring(options).unwrap()
    });
    for ring in &mut rings {
        for i in 0..ENTRIES {
            ring.prepare(&f, 0, &buffer, 0, 1, i.into()).unwrap();
        }
    }
    rings.iter_mut().for_each(|r| r.submit().unwrap());
    let mut most = 0;
    let mut done = [0; 3];
    let end = Instant::now() + Duration::from_secs(60);
    while done != [ENTRIES; 3] {
        assert!(Instant::now() < end, "{done:?}");
        most = most.max(working(&rings));
        // The last one reads its completions when all have come.
        for (ring, done) in rings.iter_mut().zip(&mut done).take(2) {
            while let Some(c) = ring.take() {
                assert_eq!(c.result, 1);
                *done += 1;
            }
        }
        if done[..2] == [ENTRIES; 2] {
            let last = &mut rings[2];
            assert!(last.wait(Some(end)).unwrap());
            done[2] += std::iter::from_fn(|| last.take()).count() as u32;
        }
    }
    assert!(most > 0 && most <= SESSION_OPERATIONS_MAX, "{most} at a time");
}

#[test]
fn limits_hold_for_many_who_ask_at_once() {
    const LAST: usize = 4;
    const THREADS: usize = 32;
    let Some(m) = TestMount::new(60) else { return };
    let dir = File::open(m.path()).unwrap();
    ioctl(&dir, &mut control::Open { version: 1, ..Default::default() }).unwrap();
    let memory = glowfs_usrbio::SharedMemory::new("t", 4096).unwrap();
    let add = || {
        let fd = memory.as_fd().as_raw_fd();
        let mut q = control::AddBuffer { fd, buffer: 0, len: 4096 };
        ioctl(&dir, &mut q).map_err(|e| e.raw_os_error())
    };
    for i in 0..BUFFERS_MAX - LAST {
        if add() == Err(Some(ENOSPC)) {
            eprintln!("SKIPPED: this process may have descriptors for {i} buffers only");
            return;
        }
    }
    let (added, begin) = (AtomicUsize::new(0), Barrier::new(THREADS));
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                begin.wait();
                match add() {
                    Ok(()) => drop(added.fetch_add(1, SeqCst)),
                    Err(e) => assert_eq!(e, Some(ENOSPC)),
                }
            });
        }
    });
    assert_eq!(added.into_inner(), LAST);
}

/// Sessions of a mount, of all users.
const SESSIONS_MAX: usize = 4096;

#[test]
fn one_user_leaves_ring_sessions_to_others() {
    if glowfs_rt::process::raise_descriptor_limit() < 2 * SESSIONS_MAX as u64 {
        eprintln!("SKIPPED: this process may have too few descriptors");
        return;
    }
    let Some(m) = TestMount::new(120) else { return };
    let mut sessions = Vec::new();
    let refused = loop {
        let dir = File::open(m.path()).unwrap();
        let mut open = control::Open { version: 1, ..Default::default() };
        match ioctl(&dir, &mut open) {
            Ok(()) => sessions.push(dir),
            Err(e) => break e.raw_os_error(),
        }
    };
    assert_eq!(refused, Some(ENOSPC));
    sh(m.path(), "chmod 755 . ..");
    let by_another = || {
        // SAFETY: this thread has this user from now on (not the process, as by the function of the C library), and ends soon.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0);
        let mut open = control::Open { version: 1, ..Default::default() };
        ioctl(&File::open(m.path()).unwrap(), &mut open).map_err(|e| e.raw_os_error())
    };
    let opened = std::thread::scope(|s| s.spawn(by_another).join().unwrap());
    assert_eq!(opened, Ok(()), "beside {} sessions", sessions.len());
}

#[test]
fn one_user_leaves_waiting_for_locks_to_others() {
    const WAITERS: usize = 1100;
    const STACK_BYTES: usize = 64 << 10;
    glowfs_rt::process::raise_descriptor_limit();
    let Some(m) = TestMount::new(120) else { return };
    let path = m.join("f");
    let held = File::create(&path).unwrap();
    held.lock().unwrap();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..WAITERS {
            let wait = || {
                let got = File::open(&path).unwrap().lock();
                refused.fetch_add(usize::from(got.is_err()), SeqCst);
            };
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(s, wait).unwrap();
        }
        let end = Instant::now() + Duration::from_secs(20);
        while refused.load(SeqCst) == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_secs(1));
        // It waits, and is ended while it does (124); flock(1) says 71 or the like if it cannot.
        let out = sh(
            m.path(),
            "chmod 755 . ..
            setpriv --reuid=65534 --regid=65534 --clear-groups timeout 2 flock f true || echo $?",
        );
        drop(held);
        assert_eq!(out, "124\n", "{refused:?} were refused");
    });
    assert!(refused.into_inner() > 0);
}
