//! Files that are closed while no metadata service answers: what was written to them, and acknowledged, counts when one does.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{
    CLOSES_ASKED, CLOSES_REFUSED, CLOSES_UNHEARD, LIFE, META_SILENT, SESSIONS_ENDED, WRITES_TOLD,
};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn open(path: &Path) -> File {
    File::options().create(true).truncate(false).read(true).write(true).open(path).expect("open")
}
/// What close(2) says.
fn close(file: File) -> Option<i32> {
    // SAFETY: the descriptor is ours, and is not used any more.
    let closed = unsafe { libc::close(file.into_raw_fd()) };
    (closed != 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}
/// By its path, without opening it.
fn truncate(path: &Path, to: i64) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the path ends with a zero.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), to) }, 0);
}
/// A file that has 8192 bytes of which meta does not know, closed in vain.
fn closed_in_vain(path: &Path) {
    let file = open(path);
    file.write_all_at(&[b'a'; 8192], 0).expect("write");
    META_SILENT.store(true, SeqCst);
    assert_eq!(close(file), Some(5), "nobody has heard of it");
    // RELEASE.
    std::thread::sleep(Duration::from_millis(200));
}
/// Meta answers, and so many sessions have ended by then.
fn answered(ended: u64) {
    META_SILENT.store(false, SeqCst);
    let until = Instant::now() + Duration::from_secs(20);
    while SESSIONS_ENDED.load(SeqCst) < ended {
        assert!(Instant::now() < until, "{} sessions ended", SESSIONS_ENDED.load(SeqCst));
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nothing is open here any more then: what is shown is what meta knows.
    std::thread::sleep(Duration::from_millis(200));
}
fn len(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").len()
}

#[test]
fn what_was_written_counts_though_its_close_had_no_answer() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    closed_in_vain(&path);
    assert_eq!(len(&path), 8192, "it is known here");
    answered(1);
    assert_eq!(len(&path), 8192);
    assert!(fs::read(&path).expect("read") == [b'a'; 8192]);
}

#[test]
fn what_meta_has_done_and_not_answered_is_not_done_again() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    CLOSES_UNHEARD.store(1, SeqCst);
    let file = open(&path);
    file.write_all_at(&[b'a'; 8192], 0).expect("write");
    assert_eq!(close(file), None, "its length is known");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((SESSIONS_ENDED.load(SeqCst), CLOSES_UNHEARD.load(SeqCst)), (1, 0));
    assert_eq!(len(&path), 8192);
}

/// So often meta was asked to end a session.
fn asked(times: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    while CLOSES_ASKED.load(SeqCst) < times {
        assert!(Instant::now() < until, "{} closes", CLOSES_ASKED.load(SeqCst));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
}

/// Nor does it take away what somebody else here has written since, of which it cannot tell.
#[test]
fn what_is_written_meanwhile_is_told() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    fs::write(&path, [b'a'; 8192]).expect("write");
    std::thread::sleep(Duration::from_millis(200));
    let (before, ended) = (CLOSES_ASKED.load(SeqCst), SESSIONS_ENDED.load(SeqCst));
    CLOSES_UNHEARD.store(1, SeqCst);
    let first = open(&path);
    first.write_all_at(b"first", 0).expect("write");
    assert_eq!(close(first), None);
    asked(before + 1);
    assert_eq!(SESSIONS_ENDED.load(SeqCst), ended + 1);
    let second = open(&path);
    second.write_all_at(b"second", 100).expect("write");
    let told = WRITES_TOLD.load(SeqCst);
    let mtime = || fs::metadata(&path).expect("stat").modified().expect("its time");
    let written = mtime();
    asked(before + 2);
    assert_eq!(close(second), None);
    asked(before + 3);
    assert!(WRITES_TOLD.load(SeqCst) > told, "nobody has told of it");
    assert_eq!(mtime(), written);
    assert_eq!(SESSIONS_ENDED.load(SeqCst), ended + 2);
}

/// Nobody waits for ever for what meta refuses.
#[test]
fn what_is_refused_is_given_up() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    CLOSES_REFUSED.store(true, SeqCst);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("open");
    file.write_all(b"it").expect("append");
    assert_eq!(close(file), None, "its length is known");
    asked(3);
    std::thread::sleep(Duration::from_millis(5000));
    assert_eq!(CLOSES_ASKED.load(SeqCst), 3);
    CLOSES_REFUSED.store(false, SeqCst);
    let mut file = OpenOptions::new().append(true).open(&path).expect("open");
    file.write_all(b"goes on").expect("append");
    assert_eq!(close(file), None);
    assert_eq!(fs::read(&path).expect("read"), b"itgoes on");
}

/// Who opens it meanwhile has a session of his own, and goes on behind what was written.
#[test]
fn who_opens_the_file_meanwhile_goes_on_behind_it() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    closed_in_vain(&path);
    let mut again = OpenOptions::new().append(true).open(&path).expect("open");
    again.write_all(b"behind").expect("append");
    answered(1);
    assert_eq!(len(&path), 8198);
    again.write_all(b"it").expect("append");
    assert_eq!(close(again), None);
    answered(2);
    let found = fs::read(&path).expect("read");
    assert_eq!((found.len(), &found[8190..]), (8200, &b"aabehindit"[..]));
}

#[test]
fn what_is_cut_off_meanwhile_stays_cut_off() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    for to in [0, 100, 5000, 20_000] {
        let path = m.join(&format!("f{to}"));
        let ended = SESSIONS_ENDED.load(SeqCst);
        closed_in_vain(&path);
        truncate(&path, to);
        answered(ended + 1);
        assert_eq!(len(&path), to as u64);
    }
}

/// Nothing of the file is open then, and meta gives it up.
#[test]
fn a_file_that_is_removed_meanwhile_is_closed_all_the_same() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    closed_in_vain(&path);
    fs::remove_file(&path).expect("unlink");
    answered(1);
    closed_in_vain(&path);
    answered(2);
    assert_eq!(len(&path), 8192, "another one");
}

/// Of a session that the cluster has ended it has asked the chunks.
#[test]
fn it_ends_with_the_life_of_the_client() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    closed_in_vain(&path);
    LIFE.fetch_add(1, SeqCst);
    META_SILENT.store(false, SeqCst);
    let until = Instant::now() + Duration::from_secs(20);
    while len(&path) != 0 {
        assert!(Instant::now() < until, "it is open here still");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(SESSIONS_ENDED.load(SeqCst), 0);
}
