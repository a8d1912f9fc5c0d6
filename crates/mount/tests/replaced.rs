//! A name that is replaced between its look-up and the open of what it led to.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::REPLACED_BEFORE_OPEN;
use std::fs::File;
use std::io::Read;
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
