//! `security.capability`, given by another client to a file that is open for writing here.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::CAPABILITY_GIVEN;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// What changes the contents of a file, through a descriptor of it.
type Changes = fn(&File, &File);
const WAYS: [(&str, Changes); 4] = [
    ("a write", |f, _| f.write_all_at(b"payload", 0).expect("write")),
    ("fallocate", |f, _| {
        rustix::fs::fallocate(f, rustix::fs::FallocateFlags::empty(), 0, 5000).expect("fallocate");
    }),
    ("a copy", |f, other| {
        let (mut from, mut to) = (0, 0);
        rustix::fs::copy_file_range(other, Some(&mut from), f, Some(&mut to), 4).expect("copy");
    }),
    ("ftruncate", |f, _| f.set_len(3).expect("ftruncate")),
];

fn has_capability(path: &Path) -> bool {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    let name = c"security.capability";
    // The size alone: what it says is no capability of this kernel's.
    // SAFETY: both strings end with a zero, and nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// The kernel has heard that there is none, and does not ask again.
#[test]
fn a_capability_that_another_client_has_given_goes_with_the_next_change() {
    let _alone = alone();
    let Some(m) = TestMount::with(60, |c| c.suid = true) else { return };
    std::fs::write(m.join("other"), "other").expect("write");
    let other = File::open(m.join("other")).expect("open");
    for (way, changes) in WAYS {
        let path = m.join("program");
        let f = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let f = f.expect("open");
        f.write_all_at(b"program", 0).expect("write");
        CAPABILITY_GIVEN.store(true, SeqCst);
        f.sync_all().expect("fsync");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!CAPABILITY_GIVEN.load(SeqCst), "given");
        changes(&f, &other);
        assert!(!has_capability(&path), "after {way}");
        drop(f);
        std::fs::remove_file(&path).expect("unlink");
    }
}
