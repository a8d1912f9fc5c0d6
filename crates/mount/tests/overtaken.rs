//! A rename that a change of another client overtakes: what the kernel knew of the old name is not what was moved.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::{LISTS_LEASED, RENAME_OVERTAKEN, RENAMES_SLOW};
use std::fs;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Much less than what was listed is leased for.
const SOON: Duration = Duration::from_secs(3);
/// What a slow rename takes.
const RENAMING: Duration = Duration::from_millis(200);

/// The kernel has everything in the root under a long lease, and the next rename is overtaken.
fn list(m: &TestMount) {
    LISTS_LEASED.store(true, SeqCst);
    for entry in fs::read_dir(m.join("")).expect("listed") {
        entry.expect("an entry").metadata().expect("its attributes");
    }
    RENAME_OVERTAKEN.store(true, SeqCst);
}

fn soon(m: &TestMount, name: &str, contents: &str) {
    assert!(!RENAME_OVERTAKEN.load(SeqCst), "a rename was overtaken");
    let since = Instant::now();
    loop {
        let found = fs::read_to_string(m.join(name)).expect("read");
        if found == contents {
            break;
        }
        assert!(since.elapsed() < SOON, "«{name}» leads to {found:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel takes its entry of the old name along to the new one; the recall of the old name has to reach it there, and where it is taken on to
/// while the recall runs: back to where it was.
#[test]
fn what_a_rename_took_along_is_recalled_wherever_it_went() {
    let _alone = alone();
    let Some(m) = TestMount::new(60) else { return };
    let contents = ["one", "two"];
    fs::write(m.join("old"), contents[0]).expect("written");
    fs::write(m.join("other"), contents[1]).expect("written");
    list(&m);
    fs::rename(m.join("old"), m.join("new")).expect("renamed");
    soon(&m, "new", contents[1]);
    fs::rename(m.join("new"), m.join("old")).expect("renamed");

    // Somebody waits to take it back: behind the recall, which waits for the first rename.
    RENAMES_SLOW.store(true, SeqCst);
    list(&m);
    std::thread::scope(|s| {
        s.spawn(|| fs::rename(m.join("old"), m.join("new")).expect("renamed"));
        std::thread::sleep(RENAMING / 2);
        fs::rename(m.join("new"), m.join("old")).expect("renamed");
    });
    // What «other» was before.
    soon(&m, "old", contents[0]);
}
