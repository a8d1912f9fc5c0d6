//! All replicas of a chunk lose their power, and with it what was written and not flushed: the next fsync or close says so, once to each open file. One test at a
//! time: the switch is the process's.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::CHUNKS_LOST;
use std::fs::{File, OpenOptions};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

const EIO: i32 = 5;
const O_DSYNC: i32 = libc::O_DSYNC;
const O_DIRECT: i32 = libc::O_DIRECT;

fn open(path: &Path) -> File {
    File::options().create(true).truncate(false).read(true).write(true).open(path).expect("open")
}
fn write(file: &File, byte: u8) {
    file.write_all_at(&[byte; 4096], 0).expect("write");
}
#[track_caller]
fn lost(outcome: std::io::Result<()>) {
    assert_eq!(outcome.expect_err("something is gone").raw_os_error(), Some(EIO));
}

#[test]
fn an_fsync_does_not_hide_that_writes_are_gone() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let file = open(&path);
    write(&file, 1);
    file.sync_all().expect("fsync");
    // Nothing is unflushed.
    CHUNKS_LOST.store(true, SeqCst);
    file.sync_all().expect("all is there");
    write(&file, 2);
    lost(file.sync_all());
    assert!(!CHUNKS_LOST.load(SeqCst));
    file.sync_all().expect("heard of once");
    write(&file, 3);
    file.sync_all().expect("written again");
    write(&file, 4);
    CHUNKS_LOST.store(true, SeqCst);
    lost(file.sync_data());
    file.sync_data().expect("heard of once");
}

#[test]
fn each_open_file_hears_of_it_once() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let (one, two) = (open(&path), open(&path));
    let reader = File::open(&path).expect("open");
    write(&one, 1);
    CHUNKS_LOST.store(true, SeqCst);
    lost(two.sync_all());
    lost(one.sync_all());
    lost(reader.sync_all());
    for file in [&one, &two, &reader, &open(&path)] {
        file.sync_all().expect("heard of once, or opened later");
    }
}

#[test]
fn a_close_says_so_as_far_as_it_is_known() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let file = open(&m.join("f"));
    write(&file, 1);
    CHUNKS_LOST.store(true, SeqCst);
    // SAFETY: the descriptor is ours, and is not used any more.
    let closed = unsafe { libc::close(file.into_raw_fd()) };
    let error = std::io::Error::last_os_error();
    assert_eq!((closed, error.raw_os_error()), (-1, Some(EIO)), "something is gone");
    let again = open(&m.join("f"));
    again.sync_all().expect("told");
}

/// What is to be durable when it returns, past the kernel's page cache.
#[test]
fn a_durable_write_that_is_gone_fails() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false).custom_flags(O_DIRECT | O_DSYNC);
    let file = options.open(m.join("f")).expect("open");
    file.write_all_at(&[1; 4096], 0).expect("write");
    CHUNKS_LOST.store(true, SeqCst);
    lost(file.write_all_at(&[2; 4096], 0));
    file.write_all_at(&[3; 4096], 0).expect("again");
}
