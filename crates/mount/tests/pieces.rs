//! Appends that the kernel cuts into several requests, while another client waits to append.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{LAST_RIGHT, RIGHT_WANTED, RIGHTS_GIVEN, WRITES_WAIT};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

#[test]
fn pieces_of_one_write_stay_together_though_the_first_one_takes_long() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let mut f = OpenOptions::new().create(true).append(true).open(&path).expect("open");
    f.write_all(b"begun").expect("append");
    let given = RIGHTS_GIVEN.load(SeqCst);
    WRITES_WAIT.store(true, SeqCst);
    RIGHT_WANTED.store(true, SeqCst);
    let writer = std::thread::spawn(move || f.write_all(&vec![7; 4 << 20]).expect("append"));
    // As long as contents may take on their way into chunks.
    std::thread::sleep(Duration::from_millis(1500));
    WRITES_WAIT.store(false, SeqCst);
    writer.join().expect("the writer");
    assert_eq!(RIGHTS_GIVEN.load(SeqCst), given, "another client came between the pieces");
    // It does not wait for long after that.
    let end = Instant::now() + Duration::from_secs(20);
    while !matches!(*LAST_RIGHT.lock().unwrap_or_else(PoisonError::into_inner), Some((_, true))) {
        assert!(Instant::now() < end, "the right is not given back");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(std::fs::metadata(&path).expect("stat").len(), 5 + (4 << 20));
}
