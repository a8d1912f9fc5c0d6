//! A rename that a change of another client overtakes: what the kernel knew of the old name is not what was moved. One test: the switches are the
//! process's.

mod common;

use common::TestMount;
use glowfs_mount::ram::{LISTS_LEASED, RENAME_OVERTAKEN};
use std::fs;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Much less than what was listed is leased for.
const SOON: Duration = Duration::from_secs(3);

/// The kernel takes its entry of the old name along to the new one; the recall of the old name has to reach it there.
#[test]
fn what_a_rename_took_along_is_recalled_under_its_new_name() {
    let Some(m) = TestMount::new(60) else { return };
    fs::write(m.join("old"), "mine").expect("written");
    fs::write(m.join("other"), "another's").expect("written");
    LISTS_LEASED.store(true, SeqCst);
    for entry in fs::read_dir(m.join("")).expect("listed") {
        entry.expect("an entry").metadata().expect("its attributes");
    }
    RENAME_OVERTAKEN.store(true, SeqCst);
    fs::rename(m.join("old"), m.join("new")).expect("renamed");
    assert!(!RENAME_OVERTAKEN.load(SeqCst), "it was overtaken");
    let since = Instant::now();
    loop {
        let found = fs::read_to_string(m.join("new")).expect("read");
        if found == "another's" {
            break;
        }
        assert!(since.elapsed() < SOON, "«new» leads to {found:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
