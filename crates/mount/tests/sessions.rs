//! Sessions that end while a file is open, files that are opened while one ends, and files that are closed while they are written.

use crate::common::{TestMount, alone, sh};
use glowfs_mount::ram::{
    COUNT_FAILS, COUNTS_WAIT, LIFE, NO_ROOM_AT, READS_WAIT_AT, WRITES, WRITES_WAIT,
};
use glowfs_usrbio::{Connection, Kind, Ring, RingOptions};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const O_DIRECT: i32 = libc::O_DIRECT;
const EIO: Option<i32> = Some(5);

fn open(m: &TestMount, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).custom_flags(flags);
    options.open(m.join("f")).expect("open")
}

#[test]
fn what_is_opened_after_a_session_ended_has_nothing_to_do_with_it() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let before = open(&m, 0);
    before.write_all_at(&[b'a'; 8192], 0).expect("write");
    // As the client library does when it was cut off for too long.
    LIFE.fetch_add(1, SeqCst);
    for _ in 0..2 {
        assert_eq!(sh(m.path(), "cat f"), "a".repeat(8192));
        let mut found = vec![0; 8192];
        let reader = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(m.join("f"));
        reader.expect("open").read_exact_at(&mut found, 0).expect("read");
        assert_eq!(found, [b'a'; 8192]);
        for flags in [0, O_DIRECT] {
            let after = open(&m, flags);
            after.write_all_at(&[b'a'; 4096], 4096).expect("write");
            after.sync_all().expect("fsync");
            after.set_len(8192).expect("truncate");
            sh(m.path(), "truncate -s 8192 f");
        }
        // What was open then stays dead.
        let late = before.write_all_at(&[b'b'; 4096], 0).expect_err("late");
        assert_eq!(late.raw_os_error(), EIO);
        let late = before.set_len(0).expect_err("late");
        assert_eq!(late.raw_os_error(), EIO);
    }
    drop(before);
    assert_eq!(fs::read(m.join("f")).expect("read"), [b'a'; 8192]);
}

/// It was never open for writing, whoever else had it open so.
#[test]
fn what_is_open_for_reading_outlives_the_session_of_a_writer() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let writer = open(&m, 0);
    writer.write_all_at(&[b'a'; 8192], 0).expect("write");
    let reader = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(m.join("f"));
    let reader = reader.expect("open");
    let mut found = vec![0; 8192];
    reader.read_exact_at(&mut found, 0).expect("read");
    assert_eq!(found, [b'a'; 8192]);
    drop(writer);
    LIFE.fetch_add(1, SeqCst);
    reader.read_exact_at(&mut found, 0).expect("read after the client was cut off");
    assert_eq!(found, [b'a'; 8192]);
}

#[test]
fn a_session_that_is_used_again_does_not_end() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let first = open(&m, 0);
    first.write_all_at(b"behind a hole", 1 << 20).expect("write");
    // The close(2) leaves the blocks uncounted, so what comes after it has to count them, which takes long.
    COUNT_FAILS.store(true, SeqCst);
    COUNTS_WAIT.store(true, SeqCst);
    drop(first);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!COUNT_FAILS.load(SeqCst), "it was counted");
    let second = open(&m, 0);
    COUNTS_WAIT.store(false, SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    second.write_all_at(b"written", 2 << 20).expect("write");
    second.sync_all().expect("fsync");
    drop(second);
    // Nobody has it open any more, so this is what meta knows.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fs::metadata(m.join("f")).expect("stat").len(), (2 << 20) + 7);
}

/// The kernel lets go of a file though an operation of a ring is on its way: what that writes counts.
#[test]
fn a_file_is_closed_when_the_operations_of_rings_have_ended() {
    const LEN: usize = 1 << 20;
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).expect("a session");
    let buffer = c.buffer(LEN).expect("a buffer");
    buffer.fill(0, &[7; LEN]);
    let mut ring = c.ring(RingOptions::new(Kind::Write, 8)).expect("a ring");
    let file = open(&m, 0);
    let registered = c.register(&file).expect("registered");

    let before = WRITES.load(SeqCst);
    WRITES_WAIT.store(true, SeqCst);
    ring.prepare(&registered, 0, &buffer, 0, LEN, 1).expect("room");
    ring.submit().expect("submitted");
    while WRITES.load(SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((registered, file));
    // Nobody waits for that; the kernel tells the daemon meanwhile.
    std::thread::sleep(Duration::from_millis(100));
    WRITES_WAIT.store(false, SeqCst);
    let soon = Some(Instant::now() + Duration::from_secs(20));
    assert!(ring.wait(soon).expect("alive"), "no completion");
    assert_eq!(ring.take().expect("it").result, LEN as i64);
    assert_eq!(fs::metadata(m.join("f")).expect("there").len(), LEN as u64);
    // Also when nothing of it is open here any more.
    std::thread::sleep(Duration::from_millis(100));
    assert!(fs::read(m.join("f")).expect("read") == [7; LEN]);
    assert_eq!(WRITES.load(SeqCst), before + 1);
}

/// As in 3FS: a count that is short says that the file ends there.
#[test]
fn an_operation_of_a_ring_of_which_a_part_fails_has_failed() {
    const PIECE: usize = 4 << 20;
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).expect("a session");
    let buffer = c.buffer(3 * PIECE).expect("a buffer");
    let file = open(&m, 0);
    let registered = c.register(&file).expect("registered");
    let begin = |kind| {
        let mut ring = c.ring(RingOptions::new(kind, 8)).expect("a ring");
        ring.prepare(&registered, 0, &buffer, 0, 3 * PIECE, 1).expect("room");
        ring.submit().expect("submitted");
        ring
    };
    let result = |mut ring: Ring| {
        let soon = Some(Instant::now() + Duration::from_secs(20));
        assert!(ring.wait(soon).expect("alive"), "no completion");
        ring.take().expect("it").result
    };
    NO_ROOM_AT.store(2 * PIECE as u64 + 1, SeqCst);
    let written = result(begin(Kind::Write));
    NO_ROOM_AT.store(0, SeqCst);
    assert_eq!(written, -28);

    file.set_len(3 * PIECE as u64).expect("truncate");
    READS_WAIT_AT.store(PIECE as u64 + 1, SeqCst);
    let ring = begin(Kind::Read);
    // Where the second piece waits it has seen that its session lives.
    std::thread::sleep(Duration::from_millis(300));
    LIFE.fetch_add(1, SeqCst);
    READS_WAIT_AT.store(0, SeqCst);
    assert_eq!(result(ring), -5);
}

/// The daemon has as many requests as it takes at a time, and reads no more for now.
#[test]
fn who_waits_for_a_ring_does_not_wait_for_a_daemon_that_is_slow() {
    let _alone = alone();
    let Some(m) = TestMount::with(60, |c| c.max_outstanding = 1) else { return };
    let file = open(&m, O_DIRECT);
    file.write_all_at(&[b'a'; 8192], 0).expect("write");
    let c = Connection::open(m.path()).expect("a connection");
    let f = c.register(&file).expect("a file");
    let buffer = c.buffer(4096).expect("a buffer");
    let mut ring = c.ring(RingOptions::new(Kind::Read, 8)).expect("a ring");
    READS_WAIT_AT.store(4096 + 1, SeqCst);
    let reader = std::thread::spawn(move || file.read_at(&mut [0; 4096], 4096));
    std::thread::sleep(Duration::from_millis(200));
    ring.prepare(&f, 4096, &buffer, 0, 4096, 7).expect("room");
    ring.submit().expect("submitted");
    let begun = Instant::now();
    let later = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(8));
        READS_WAIT_AT.store(0, SeqCst);
    });
    let waited = ring.wait(Some(begun + Duration::from_millis(2500)));
    assert!(!waited.expect("it is there"), "nothing is done yet");
    assert!(begun.elapsed() < Duration::from_secs(5), "after {:?}", begun.elapsed());
    assert!(
        ring.wait(Some(begun + Duration::from_secs(30))).expect("it is there"),
        "and now it is"
    );
    assert_eq!(ring.take().map(|c| (c.user, c.result)), Some((7, 4096)));
    later.join().expect("it ends");
    assert!(reader.join().expect("it ends").is_ok());
}
