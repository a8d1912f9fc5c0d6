//! Locks that cannot be given back at once, because meta is away.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::LOCKS_STAY;
use std::fs::File;
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
