//! What a listing tells the kernel that may be kept, while this client changes what is listed.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::LISTS_LEASED;
use rustix::fs::RawDir;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Fewer than a page of meta's, more than what is listed below at a time.
const FILES: usize = 250;
const LISTED_BYTES: usize = 4096;

fn file(dir: &Path, i: usize) -> PathBuf {
    dir.join(format!("{i:0>100}"))
}

/// Lists a directory of files and looks at each. `meanwhile` comes after the first entries; the last ones wait in the daemon then.
fn list_while(m: &TestMount, meanwhile: impl FnOnce(&Path)) -> PathBuf {
    LISTS_LEASED.store(true, SeqCst);
    let dir = m.join("d");
    fs::create_dir(&dir).expect("mkdir");
    (0..FILES).for_each(|i| drop(File::create(file(&dir, i)).expect("create")));
    let opened = File::open(&dir).expect("open");
    let mut buf = [MaybeUninit::uninit(); LISTED_BYTES];
    let mut list = RawDir::new(&opened, &mut buf);
    let mut next = || {
        let entry = list.next()?.expect("an entry");
        // The kernel asks for attributes with a listing only as long as somebody wants them.
        let _ = fs::symlink_metadata(dir.join(OsStr::from_bytes(entry.file_name().to_bytes())));
        Some(())
    };
    (0..5).for_each(|_| next().expect("an entry"));
    meanwhile(&dir);
    while next().is_some() {}
    dir
}

fn written_meanwhile(and_then: impl FnOnce()) {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let dir = list_while(&m, |dir| {
        let f = File::options().write(true).open(file(dir, FILES - 1)).expect("open");
        f.write_all_at(&[7; 1 << 20], 0).expect("write");
        drop(f);
        // Until the daemon has nothing of it open any more.
        std::thread::sleep(Duration::from_millis(200));
        and_then();
    });
    let last = file(&dir, FILES - 1);
    assert_eq!(fs::metadata(&last).expect("stat").len(), 1 << 20);
    assert!(fs::read(&last).expect("read") == vec![7; 1 << 20]);
}

#[test]
fn a_listing_does_not_take_back_what_was_written_meanwhile() {
    written_meanwhile(|| ());
}

/// As it does when memory is short.
#[test]
fn a_listing_does_not_take_back_what_the_kernel_has_forgotten() {
    written_meanwhile(|| {
        let _ = fs::write("/proc/sys/vm/drop_caches", b"2"); // by root only
        std::thread::sleep(Duration::from_millis(200));
    });
}

#[test]
fn a_listing_does_not_bring_back_names_that_went_meanwhile() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let names = |dir: &Path| [1, 2].map(|i| file(dir, FILES - i));
    let dir = list_while(&m, |dir| {
        let [gone, moved] = names(dir);
        fs::remove_file(gone).expect("unlink");
        fs::rename(moved, dir.join("new")).expect("rename");
    });
    for old in names(&dir) {
        let found = fs::metadata(&old).map(|_| ()).map_err(|e| e.kind());
        assert_eq!(found, Err(ErrorKind::NotFound));
        File::create_new(old).expect("the name is free");
    }
    fs::metadata(dir.join("new")).expect("moved");
}
