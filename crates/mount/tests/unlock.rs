//! Locks that cannot be given back at once, because meta is away.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{COUNTS_WAIT, LOCKS_STAY};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

#[test]
fn a_lock_that_could_not_be_given_back_is_given_back_later() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    std::fs::write(m.join("f"), "f").expect("written");
    let open = || File::options().read(true).write(true).open(m.join("f")).expect("open");
    let (first, second, other) = (open(), open(), open());
    first.lock_shared().expect("a flock");
    second.lock_shared().expect("another owner's");
    LOCKS_STAY.store(true, SeqCst);
    drop((first, second));
    std::thread::sleep(Duration::from_millis(700));
    assert!(other.try_lock().is_err(), "meta has not heard of it");
    LOCKS_STAY.store(false, SeqCst);
    let began = Instant::now();
    while other.try_lock().is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "nobody gives it back");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Who takes it meanwhile keeps it.
    std::thread::sleep(Duration::from_secs(2));
    assert!(open().try_lock().is_err());
}

/// Whoever waits for a lock is not to wait for chains that are away, of which the blocks of a file with holes cannot be counted.
#[test]
fn a_lock_is_given_back_before_blocks_are_counted() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let open =
        || File::options().create(true).truncate(false).read(true).write(true).open(m.join("f"));
    let (f, other) = (open().expect("open"), open().expect("open"));
    f.lock().expect("a flock");
    f.write_all_at(b"behind a hole", 1 << 20).expect("write");
    COUNTS_WAIT.store(true, SeqCst);
    let giving = std::thread::spawn(move || f.unlock().map(|()| f));
    let began = Instant::now();
    let mut given = false;
    while !given && began.elapsed() < Duration::from_secs(5) {
        given = other.try_lock().is_ok();
        std::thread::sleep(Duration::from_millis(10));
    }
    COUNTS_WAIT.store(false, SeqCst);
    let f = giving.join().expect("unlocks").expect("unlocked");
    assert!(given, "the lock is free");
    // It is counted with the close.
    drop((f, other));
    std::thread::sleep(Duration::from_millis(100));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&m.join("f").metadata().expect("stat"));
    assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
}
