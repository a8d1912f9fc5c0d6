//! The tests of the mount once more over FUSE over io_uring, and what only concerns that.

mod common;
#[path = "suite/demands.rs"]
mod demands;
#[path = "suite/posix.rs"]
mod posix;
#[path = "suite/programs.rs"]
mod programs;
#[path = "suite/rings.rs"]
mod rings;

use common::TestMount;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// All of a queue's requests come from one processor.
fn stay_on_processor(n: usize) {
    let mut set = CpuSet::new();
    set.set(n);
    sched_setaffinity(None, &set).expect("allowed");
}

fn open(m: &TestMount) -> File {
    OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(m.join("f"))
        .expect("open")
}

/// Locks that wait take entries away from their queue; who holds the lock must get through all the same.
#[test]
fn more_locks_wait_than_a_queue_has_entries() {
    const WAITERS: usize = 40;
    let Some(m) = TestMount::with(60, |c| c.fuse_queue_depth = 4) else { return };
    stay_on_processor(0);
    let holder = open(&m);
    holder.lock().expect("free");
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..WAITERS {
        let (file, tell) = (open(&m), tell.clone());
        std::thread::spawn(move || {
            stay_on_processor(0);
            let got = file.lock();
            let _ = tell.send(got.is_ok());
            drop(file);
        });
        // Not a burst: what a burst may do is below.
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "they wait");
    std::fs::write(m.join("g"), "others are served").expect("served");
    holder.unlock().expect("gets through");
    for _ in 0..WAITERS {
        assert!(told.recv_timeout(Duration::from_secs(20)).expect("each in its turn"));
    }
}

/// So many at once that they find no entry left before the daemon can add some: some may be refused (ENOLCK), but nothing stops.
#[test]
fn a_burst_of_waiting_locks_stops_nobody() {
    const WAITERS: usize = 64;
    let Some(m) = TestMount::with(60, |c| c.fuse_queue_depth = 4) else { return };
    stay_on_processor(0);
    let holder = open(&m);
    holder.lock().expect("free");
    let files: Vec<File> = (0..WAITERS).map(|_| open(&m)).collect();
    let start = std::sync::Barrier::new(WAITERS + 1);
    std::thread::scope(|scope| {
        for file in &files {
            let start = &start;
            scope.spawn(move || {
                stay_on_processor(0);
                start.wait();
                match file.lock() {
                    Ok(()) => file.unlock().expect("unlock"),
                    Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOLCK), "{e}"),
                }
            });
        }
        start.wait();
        std::thread::sleep(Duration::from_millis(200));
        std::fs::write(m.join("g"), "others are served").expect("served");
        holder.unlock().expect("gets through");
    });
}

/// A signal ends the wait for a lock, though INTERRUPT comes by another way than the request.
#[test]
fn a_wait_for_a_lock_is_interrupted() {
    let Some(m) = TestMount::new(60) else { return };
    if !common::has("flock") {
        return;
    }
    let holder = open(&m);
    holder.lock().expect("free");
    let began = std::time::Instant::now();
    let status = std::process::Command::new("timeout")
        .args(["-s", "INT", "1", "flock"])
        .arg(m.join("f"))
        .arg("true")
        .status()
        .expect("runs");
    assert!(!status.success() && began.elapsed() < Duration::from_secs(20), "{status}");
    holder.unlock().expect("unlock");
}

/// More requests at once than entries, from every processor, with contents that would show a mix-up.
#[test]
fn more_requests_than_entries() {
    let Some(m) = TestMount::with(60, |c| c.fuse_queue_depth = 4) else { return };
    let file = open(&m);
    std::thread::scope(|scope| {
        for t in 0..24u64 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..30u64 {
                    let len = 1 + (t * 7919 + round * 104_729) % 300_000;
                    let bytes = vec![(t * 31 + round) as u8; len as usize];
                    let at = t * (1 << 20);
                    file.write_all_at(&bytes, at).expect("write");
                    let mut back = vec![0; len as usize];
                    file.read_exact_at(&mut back, at).expect("read");
                    assert!(back == bytes, "thread {t}, round {round}");
                }
            });
        }
    });
}

/// An unmount with requests under way, and one with the daemon gone: neither hangs.
#[test]
fn it_ends() {
    let Some(m) = TestMount::new(60) else { return };
    let path = m.path().to_owned();
    let held = open(&m);
    drop(m);
    assert!(held.as_fd().try_clone_to_owned().is_ok());
    assert!(held.write_all_at(b"x", 0).is_err(), "detached, and the daemon is gone");
    assert!(std::fs::read_dir(path).is_err());
}

/// A runtime whose ring takes no commands: all goes by the device.
#[test]
fn without_commands_the_device_does() {
    let Some(m) = TestMount::with_runtime(60, |c| c, glowfs_rt::real::Config::default()) else {
        return;
    };
    assert_eq!(m.transport(), "/dev/fuse");
    std::fs::write(m.join("f"), "bytes").expect("written");
    assert_eq!(std::fs::read(m.join("f")).expect("read"), b"bytes");
}

/// Requests that are too small for its entries: likewise.
#[test]
fn small_requests_go_by_the_device() {
    let small =
        |c: glowfs_mount::MountConfig| glowfs_mount::MountConfig { max_request_bytes: 4096, ..c };
    let runtime = glowfs_rt::real::Config { commands: true, ..Default::default() };
    let Some(m) = TestMount::with_runtime(60, small, runtime) else { return };
    assert_eq!(m.transport(), "/dev/fuse");
    std::fs::write(m.join("f"), vec![3; 100_000]).expect("written");
    assert_eq!(std::fs::read(m.join("f")).expect("read").len(), 100_000);
}
