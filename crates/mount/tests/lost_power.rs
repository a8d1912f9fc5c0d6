//! The metadata engine loses its power, and with it what it had said and not flushed: the mount goes on from what is left. One test at a time: the
//! switches are the process's.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{COUNTS_WAIT, LAST_RIGHT, POWER_KEEPS, POWER_LOST, PUT_BACK, RIGHTS_GIVEN};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const EIO: i32 = 5;
const ESTALE: i32 = 116;
const FLUSHED: &str = "flushed;";
const LOST: &str = "told to meta, and lost with the power;";

/// A file of [`FLUSHED`], open for appends, to which [`LOST`] was appended.
fn with_loss(m: &TestMount) -> File {
    let path = m.join("log");
    let mut file = File::options().append(true).create(true).open(&path).expect("open");
    file.write_all(FLUSHED.as_bytes()).expect("append");
    file.sync_all().expect("fsync");
    let at = |len: usize| assert_eq!(fs::metadata(&path).expect("stat").len(), len as u64);
    POWER_KEEPS.store(true, SeqCst);
    at(FLUSHED.len());
    assert!(!POWER_KEEPS.load(SeqCst), "nobody asked");
    // More changes than there will be afterwards. Each close tells meta.
    for byte in LOST.bytes() {
        file.write_all(&[byte]).expect("append");
        drop(file.try_clone().expect("another descriptor"));
    }
    at(FLUSHED.len() + LOST.len());
    POWER_LOST.store(true, SeqCst);
    file
}

#[test]
fn a_file_that_went_back_is_shown_as_it_is() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let file = with_loss(&m);
    assert_eq!(file.metadata().expect("stat").len(), FLUSHED.len() as u64);
    assert!(!POWER_LOST.load(SeqCst), "nobody asked");
    assert_eq!(fs::read_to_string(m.join("log")).expect("read"), FLUSHED);
}

#[test]
fn appends_to_a_file_that_went_back_are_all_there() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let mut file = with_loss(&m);
    for (i, record) in ["one;", "two;", "three;"].into_iter().enumerate() {
        file.write_all(record.as_bytes()).expect("append");
        match i {
            0 => assert_eq!(
                file.sync_all().expect_err("what was lost").raw_os_error(),
                Some(EIO),
                "an fsync does not hide that what was written before it is gone"
            ),
            1 => {}
            _ => file.sync_all().expect("heard of once"),
        }
    }
    drop(file);
    let left = fs::read_to_string(m.join("log")).expect("read");
    assert_eq!(left, format!("{FLUSHED}one;two;three;"));
}

/// Meta may have lost that this client has the right to append.
#[test]
fn the_right_to_append_is_asked_for_again_after_a_loss_of_power() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let mut file = with_loss(&m);
    let right = || *LAST_RIGHT.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, held) = (RIGHTS_GIVEN.load(SeqCst), right());
    assert_eq!(file.metadata().expect("stat").len(), FLUSHED.len() as u64);
    file.write_all(b"one;").expect("append");
    file.write_all(b"two;").expect("append");
    assert_eq!(RIGHTS_GIVEN.load(SeqCst), before + 1);
    assert_eq!(right(), held, "the same one: who asks it back is told the length first");
}

/// What it says cannot be told from what is old any more.
#[test]
fn a_mount_that_lives_through_a_restore_is_told_so() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let mut file = with_loss(&m);
    assert_eq!(file.metadata().expect("stat").len(), FLUSHED.len() as u64);
    PUT_BACK.store(true, SeqCst);
    let error = file.write_all(b"one;").expect_err("of a life that has been before");
    assert_eq!(error.raw_os_error(), Some(ESTALE));
}

/// Where the bytes are in chunks and the length has not changed, a time is all that goes.
#[test]
fn what_was_overwritten_is_no_loss() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("log");
    let file = File::create(&path).expect("create");
    file.write_all_at(FLUSHED.as_bytes(), 0).expect("write");
    file.sync_all().expect("fsync");
    let here = || fs::metadata(&path).expect("stat").len();
    POWER_KEEPS.store(true, SeqCst);
    assert_eq!(here(), FLUSHED.len() as u64);
    for _ in 0..3 {
        file.write_all_at(b"F", 0).expect("write");
        drop(file.try_clone().expect("another descriptor"));
    }
    POWER_LOST.store(true, SeqCst);
    assert_eq!(here(), FLUSHED.len() as u64);
    file.sync_all().expect("all is there");
    drop(file);
    assert_eq!(fs::read_to_string(&path).expect("read"), FLUSHED.replacen('f', "F", 1));
}

/// What was written while another report was on its way to meta goes with that one, and is told of when it is lost like any other.
#[test]
fn what_was_written_beside_a_report_is_a_loss() {
    const HOLE: u64 = 1 << 20;
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("log");
    let len = || fs::metadata(&path).expect("stat").len();
    let file = File::create(&path).expect("create");
    file.write_all_at(FLUSHED.as_bytes(), HOLE).expect("write");
    file.sync_all().expect("fsync");
    let flushed = HOLE + FLUSHED.len() as u64;
    POWER_KEEPS.store(true, SeqCst);
    assert_eq!(len(), flushed);
    // The blocks of a file with holes are counted before meta is told.
    COUNTS_WAIT.store(true, SeqCst);
    file.write_all_at(b"x", 0).expect("write");
    let other = file.try_clone().expect("another descriptor");
    let closing = std::thread::spawn(move || drop(other));
    std::thread::sleep(Duration::from_millis(200));
    file.write_all_at(LOST.as_bytes(), flushed).expect("write");
    COUNTS_WAIT.store(false, SeqCst);
    closing.join().expect("closed");
    drop(file.try_clone().expect("another descriptor"));
    POWER_LOST.store(true, SeqCst);
    assert_eq!(len(), flushed);
    let error = file.sync_all().expect_err("what was behind the end is lost");
    assert_eq!(error.raw_os_error(), Some(EIO));
    file.sync_all().expect("heard of once");
}

/// What was durable is not lost, and nobody hears that it was.
#[test]
fn what_is_durable_is_no_loss() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("log");
    let mut file = File::options().append(true).create(true).open(&path).expect("open");
    file.write_all(FLUSHED.as_bytes()).expect("append");
    file.sync_all().expect("fsync");
    for switch in [&POWER_KEEPS, &POWER_LOST] {
        switch.store(true, SeqCst);
        assert_eq!(fs::metadata(&path).expect("stat").len(), FLUSHED.len() as u64);
    }
    file.sync_all().expect("all is there");
    file.write_all(b"more").expect("append");
    file.sync_all().expect("fsync");
    assert_eq!(fs::metadata(&path).expect("stat").len(), FLUSHED.len() as u64 + 4);
}

/// A truncate goes with the power, and what this client wrote after it: what it writes from then on counts.
#[test]
fn a_truncate_that_never_was_takes_no_length_along() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("log");
    let len = || fs::metadata(&path).expect("stat").len();
    let file = File::create(&path).expect("create");
    file.write_all_at(FLUSHED.as_bytes(), 0).expect("write");
    file.sync_all().expect("fsync");
    POWER_KEEPS.store(true, SeqCst);
    assert_eq!(len(), FLUSHED.len() as u64);
    file.set_len(0).expect("truncate");
    file.write_all_at(LOST.as_bytes(), 0).expect("write");
    assert_eq!(len(), LOST.len() as u64, "not told yet");
    POWER_LOST.store(true, SeqCst);
    assert_eq!(len(), FLUSHED.len() as u64);
    file.write_all_at(b"more", FLUSHED.len() as u64).expect("write");
    assert_eq!(len(), FLUSHED.len() as u64 + 4);
    let error = file.sync_all().expect_err("what was written after the truncate went with it");
    assert_eq!(error.raw_os_error(), Some(EIO));
    file.sync_all().expect("heard of once");
    drop(file);
    assert_eq!(len(), FLUSHED.len() as u64 + 4);
}
