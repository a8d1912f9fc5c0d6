//! Writes that another client's truncate overtakes. One test at a time: the switches are the process's.

mod common;

use common::TestMount;
use glowfs_mount::ram::CUT_BEFORE_WRITE;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};

static ONE: Mutex<()> = Mutex::new(());

/// Another client cuts the file to this length before the next write to it is there.
fn cut_to(len: u64) {
    CUT_BEFORE_WRITE.store(len + 1, SeqCst);
}

#[test]
fn an_append_that_a_truncate_overtakes_goes_to_the_new_end() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    let mut f = OpenOptions::new().create(true).append(true).open(&path).expect("open");
    f.write_all(&[b'a'; 8192]).expect("append");
    for (cut, tail) in [(1000, "behind"), (500, "and"), (0, "behind"), (7000, "holes")] {
        cut_to(cut);
        f.write_all(tail.as_bytes()).expect("append");
        f.write_all(b"!").expect("append");
        let found = std::fs::read(&path).expect("read");
        let end = format!("{tail}!");
        assert_eq!(found.len(), cut as usize + end.len(), "cut to {cut}");
        assert!(found.ends_with(end.as_bytes()), "cut to {cut}");
    }
}
