//! Towards ten thousand rings in one application: refused clearly at the limit, and nothing is left behind.

use crate::harness::{Cluster, Mount, eventually};
use glowfs_usrbio::{Connection, Kind, Ring, RingOptions};
use std::time::{Duration, Instant};

/// Rings that are asked for.
const WANTED: usize = 10_000;
/// Descriptors that the daemon keeps for itself, and those of a ring (`mount/src/rings`).
const KEPT: u64 = 2048;
const OF_A_RING: u64 = 2;
/// Descriptors that this process needs for other things.
const OWN: u64 = 100;
/// Memory of the daemon that one small ring may take, in KiB: two shared pages, and what it keeps about it.
const RING_KIB: u64 = 24;
const ENOSPC: i32 = 28;

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon's descriptors").count()
}

fn resident_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn very_many_rings_are_bounded_and_leave_nothing_behind() {
    let limit = glowfs_rt::process::raise_descriptor_limit();
    let c = Cluster::up("manyrings");
    let mount = Mount::new(&c, "rings");
    let daemon = mount.pid();
    std::fs::write(mount.path.join("f"), vec![7; 64 << 10]).expect("written");
    let (fds, kib) = (descriptors(daemon), resident_kib(daemon));

    let connection = Connection::open(&mount.path).expect("a session");
    let buffer = connection.buffer(4096).expect("a buffer");
    let file = std::fs::File::open(mount.path.join("f")).expect("opened");
    let file = connection.register(&file).expect("registered");
    let read = |ring: &mut Ring| {
        ring.prepare(&file, 4096, &buffer, 0, 4096, 5).expect("prepared");
        ring.submit().expect("submitted");
        let until = Instant::now() + Duration::from_secs(20);
        assert!(ring.wait(Some(until)).expect("served"), "no completion");
        assert_eq!(ring.take().map(|c| (c.user, c.result)), Some((5, 4096)));
    };
    // What this process may have is a limit of the test, not of the mount.
    let own = usize::try_from((limit.saturating_sub(OWN)) / OF_A_RING).unwrap_or(WANTED);
    let mut rings: Vec<Ring> = Vec::new();
    let mut refused = None;
    while rings.len() < WANTED.min(own) && refused.is_none() {
        match connection.ring(RingOptions::new(Kind::Read, 8)) {
            Ok(ring) => rings.push(ring),
            Err(e) => refused = Some(e),
        }
    }
    let n = rings.len();
    let most = limit.saturating_sub(KEPT).max(limit / 2) / OF_A_RING;
    match &refused {
        Some(e) => assert_eq!(e.raw_os_error(), Some(ENOSPC), "after {n} rings: {e}"),
        None => assert_eq!(n, WANTED.min(own)),
    }
    assert!(n as u64 + 10 >= most.min(WANTED.min(own) as u64), "{n} rings of {limit} descriptors");
    let grown = resident_kib(daemon).saturating_sub(kib);
    eprintln!(
        "{n} rings, then {refused:?}; {} descriptors and {grown} KiB more",
        descriptors(daemon) - fds
    );
    assert!(grown <= n as u64 * RING_KIB + 8192, "{grown} KiB for {n} rings");

    // All of them work, and so does everything else.
    for ring in rings.iter_mut().step_by(97) {
        read(ring);
    }
    std::fs::write(mount.path.join("g"), b"goes on").expect("the mount goes on");
    assert_eq!(std::fs::read(mount.path.join("g")).expect("read"), b"goes on");

    // One that goes makes room for another one.
    rings.truncate(n / 2);
    let more = connection.ring(RingOptions::new(Kind::Read, 8));
    read(&mut more.expect("there is room again"));
    drop((rings, buffer, file, connection));
    eventually("the daemon closes what it had", || descriptors(daemon) <= fds + 20);
    let left = resident_kib(daemon).saturating_sub(kib);
    assert!(left <= grown / 2 + 16_384, "{left} of {grown} KiB are left");
}
