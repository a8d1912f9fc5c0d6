//! A name that is replaced between its look-up and the open of what it led to, or made between its look-up and its creation.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{MADE_BEFORE_CREATE, REPLACED_BEFORE_OPEN};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::Ordering::SeqCst;

/// The name was there at all times, so «no such file» would be wrong: the kernel looks it up again.
#[test]
fn a_file_that_is_gone_when_it_is_opened_is_looked_up_again() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    for how in ["read", "write"] {
        std::fs::write(m.join("old"), "old").expect("written");
        std::fs::write(m.join("new"), "new").expect("written");
        REPLACED_BEFORE_OPEN.store(true, SeqCst);
        let opened = File::options().read(true).write(how == "write").open(m.join("old"));
        let mut text = String::new();
        opened.expect(how).read_to_string(&mut text).expect("read");
        assert_eq!(text, "new");
        assert!(!REPLACED_BEFORE_OPEN.load(SeqCst), "it was in between");
        std::fs::remove_file(m.join("old")).expect("removed");
    }
}

/// Who opens a name to write there, or to make it, gets what another client has just made of that name, as if it had been there before.
#[test]
fn what_another_client_makes_where_a_file_is_created_is_opened() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let create = |kind, name: &str, write: bool, flags| {
        MADE_BEFORE_CREATE.store(kind, SeqCst);
        let mut how = File::options();
        // The standard library makes files only where it writes.
        how.read(true).write(write).custom_flags(libc::O_CREAT | flags);
        let opened = how.open(m.join(name));
        assert_eq!(MADE_BEFORE_CREATE.load(SeqCst), 0, "it was in between");
        opened
    };
    let errno = |r: std::io::Result<File>| r.map(drop).map_err(|e| e.raw_os_error());
    create(1, "link", true, 0).expect("followed").write_all(b"text").expect("written");
    assert_eq!(std::fs::read(m.join("target")).expect("what it leads to was made"), b"text");
    let nofollow = create(1, "link2", true, libc::O_NOFOLLOW);
    assert_eq!(errno(nofollow), Err(Some(libc::ELOOP)));
    assert_eq!(errno(create(1, "link3", true, libc::O_EXCL)), Err(Some(libc::EEXIST)));
    let fifo = create(2, "fifo", true, libc::O_NONBLOCK).expect("opened");
    assert!(fifo.metadata().expect("its attributes").file_type().is_fifo());
    for write in [false, true] {
        let dir = create(3, &format!("dir{write}"), write, 0);
        assert_eq!(errno(dir), Err(Some(libc::EISDIR)), "{write}");
    }
}
