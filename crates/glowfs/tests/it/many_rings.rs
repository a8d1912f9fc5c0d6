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

/// Names the mount and the step for [`in_a_process_of_its_own`].
const STEP: &str = "GLOWFS_TEST_RINGS_STEP";
const MOUNT: &str = "GLOWFS_TEST_RINGS_MOUNT";
/// What a process has done when it is killed.
const STEPS: [&str; 9] = [
    "session",
    "buffer",
    "ring",
    "file",
    "prepared",
    "submitted reads",
    "submitted writes",
    "completions",
    "many",
];
/// Processes with many rings, and the rings of each.
const CROWDS: usize = 4;
const RINGS_OF_EACH: usize = 1000;
/// Operations on their way when it is killed, and their bytes.
const OPERATIONS: u32 = 16;
const OPERATION_BYTES: usize = 4 << 20;

/// Not a test: what the processes of the test below do. They say when they are so far, and wait to be killed.
#[test]
fn in_a_process_of_its_own() {
    let (Ok(step), Ok(mount)) = (std::env::var(STEP), std::env::var(MOUNT)) else { return };
    glowfs_rt::process::raise_descriptor_limit();
    let reached = |now: &str| {
        if now == step {
            println!("\nreached");
            loop {
                std::thread::park();
            }
        }
    };
    let connection = Connection::open(mount.as_ref()).expect("a session");
    reached("session");
    let buffer = connection.buffer(OPERATION_BYTES).expect("a buffer");
    reached("buffer");
    let kind = if step == "submitted writes" { Kind::Write } else { Kind::Read };
    let mut ring = connection.ring(RingOptions::new(kind, OPERATIONS)).expect("a ring");
    reached("ring");
    let path = std::path::Path::new(&mount).join(format!("of {step}"));
    std::fs::write(&path, vec![3; OPERATION_BYTES]).expect("a file");
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opened");
    let file = connection.register(&file).expect("registered");
    reached("file");
    for i in 0..OPERATIONS {
        ring.prepare(&file, 0, &buffer, 0, OPERATION_BYTES, i.into()).expect("prepared");
    }
    reached("prepared");
    ring.submit().expect("submitted");
    reached("submitted reads");
    reached("submitted writes");
    assert!(ring.wait(Some(Instant::now() + Duration::from_secs(60))).expect("served"));
    reached("completions");
    let more: Vec<Ring> = (0..RINGS_OF_EACH)
        .map(|_| connection.ring(RingOptions::new(Kind::Read, 8)).expect("another ring"))
        .collect();
    reached("many");
    drop(more);
}

/// Such a process; killed when the value goes.
struct Doomed(std::process::Child);

impl Doomed {
    fn new(step: &str, mount: &std::path::Path) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "many_rings::in_a_process_of_its_own", "--nocapture"]);
        command.env(STEP, step).env(MOUNT, mount).stdout(std::process::Stdio::piped());
        let mut process = Self(command.spawn().expect("a process"));
        let out = process.0.stdout.take().expect("its output");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out));
        assert!(lines.any(|l| l.is_ok_and(|l| l == "reached")), "{step}: not reached");
        process
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        self.0.kill().expect("SIGKILL");
        self.0.wait().expect("its end");
    }
}

#[test]
fn processes_that_are_killed_at_each_step_leave_nothing_behind() {
    let c = Cluster::up("doomedrings");
    let mount = Mount::new(&c, "rings");
    let daemon = mount.pid();
    std::fs::write(mount.path.join("f"), vec![7; 64 << 10]).expect("written");
    let (fds, kib) = (descriptors(daemon), resident_kib(daemon));
    let crowds = std::iter::repeat_n("many", CROWDS - 1);
    let doomed: Vec<_> =
        STEPS.into_iter().chain(crowds).map(|step| Doomed::new(step, &mount.path)).collect();
    let most = descriptors(daemon) - fds;
    assert!(most >= CROWDS * RINGS_OF_EACH * OF_A_RING as usize, "{most} descriptors");
    // Meanwhile others are served, and again when all are dead.
    assert_eq!(std::fs::read(mount.path.join("f")).expect("read"), vec![7; 64 << 10]);
    drop(doomed);
    std::fs::write(mount.path.join("f"), b"goes on").expect("the mount goes on");
    eventually("the daemon closes what it had", || descriptors(daemon) <= fds + 20);
    let grown = resident_kib(daemon).saturating_sub(kib);
    eprintln!("{most} descriptors were in use; {grown} KiB are left");
    assert!(grown <= 160 << 10, "{grown} KiB are left");
    for step in STEPS.into_iter().skip(3) {
        // What was being written is the old or the new content of each block, and nothing else.
        let bytes = std::fs::read(mount.path.join(format!("of {step}"))).expect("read");
        assert_eq!(bytes.len(), OPERATION_BYTES, "{step}");
        assert!(bytes.iter().all(|b| *b == 3 || (*b == 0 && step == "submitted writes")), "{step}");
    }
}

/// Blocks of the file below, and their bytes.
const BLOCKS: u64 = 192;
const BLOCK_BYTES: usize = 64 << 10;

#[test]
fn a_storage_goes_away_in_the_middle_of_a_batch() {
    let c = Cluster::up("ringsfailover");
    let path = c.mnt.join("f");
    std::fs::write(&path, vec![0; BLOCKS as usize * BLOCK_BYTES]).expect("written");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("opened");
    let connection = Connection::open(&c.mnt).expect("a session");
    let file = connection.register(&file).expect("registered");
    let buffer = connection.buffer(2 * BLOCKS as usize * BLOCK_BYTES).expect("a buffer");
    // Each block is written twice, the second time as soon as the first is acknowledged: a first write that is done once more later would be seen.
    let byte = |block: u64, round: u64| (block * 5 + round * 101 + 1) as u8;
    let at = |block: u64, round: u64| (round * BLOCKS + block) as usize * BLOCK_BYTES;
    for (block, round) in (0..BLOCKS).flat_map(|b| [(b, 0), (b, 1)]) {
        buffer.fill(at(block, round), &vec![byte(block, round); BLOCK_BYTES]);
    }
    let mut writes = connection
        .ring(RingOptions::new(Kind::Write, 2 * BLOCKS.next_power_of_two() as u32))
        .expect("a ring");
    let prepare = |ring: &mut Ring, block: u64, round: u64| {
        let (place, user) = (block * BLOCK_BYTES as u64, round * BLOCKS + block);
        ring.prepare(&file, place, &buffer, at(block, round), BLOCK_BYTES, user).expect("prepared");
    };
    (0..BLOCKS).for_each(|block| prepare(&mut writes, block, 0));
    writes.submit().expect("submitted");
    let patience = || Some(Instant::now() + Duration::from_secs(90));
    let mut seen = vec![0; 2 * BLOCKS as usize];
    for n in 0..2 * BLOCKS {
        if n == BLOCKS / 4 {
            c.dev("kill", &["storage-2"]);
        }
        assert!(writes.wait(patience()).expect("served"), "no completion after {n}: {}", c.logs());
        let done = writes.take().expect("a completion");
        assert_eq!(done.result, BLOCK_BYTES as i64, "operation {}: {}", done.user, c.logs());
        seen[done.user as usize] += 1;
        if done.user < BLOCKS {
            prepare(&mut writes, done.user, 1);
            writes.submit().expect("submitted");
        }
    }
    assert!(seen.iter().all(|n| *n == 1) && writes.take().is_none(), "each is answered once");
    let mut reads = connection.ring(RingOptions::new(Kind::Read, 256)).expect("a ring");
    let check = |reads: &mut Ring, kill: Option<&str>| {
        buffer.fill(0, &vec![0; BLOCKS as usize * BLOCK_BYTES]);
        for block in 0..BLOCKS {
            let (place, to) = (block * BLOCK_BYTES as u64, at(block, 0));
            reads.prepare(&file, place, &buffer, to, BLOCK_BYTES, block).expect("prepared");
        }
        reads.submit().expect("submitted");
        if let Some(id) = kill {
            c.dev("kill", &[id]);
        }
        for _ in 0..BLOCKS {
            assert!(reads.wait(patience()).expect("served"), "no completion: {}", c.logs());
            let done = reads.take().expect("a completion");
            assert_eq!(done.result, BLOCK_BYTES as i64, "block {}: {}", done.user, c.logs());
            let bytes = buffer.copy_out(at(done.user, 0), BLOCK_BYTES);
            assert!(bytes.iter().all(|b| *b == byte(done.user, 1)), "block {}", done.user);
        }
    };
    check(&mut reads, None);
    c.dev("start", &["storage-2"]);
    c.wait_serving(Duration::from_secs(90));
    // And reads on their way to one that goes are answered by another one.
    check(&mut reads, Some("storage-1"));
    c.dev("start", &["storage-1"]);
    c.wait_serving(Duration::from_secs(90));
    check(&mut reads, None);
}
