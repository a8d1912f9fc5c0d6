//! What asks meta to make something durable. One test: the counter is the process's.

mod common;

use common::TestMount;
use glowfs_mount::ram::DURABLE_SYNCS;
use std::fs::File;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn fsync_of_a_file_and_of_a_directory_reach_meta() {
    let Some(m) = TestMount::new(60) else { return };
    let syncs = || DURABLE_SYNCS.load(SeqCst);
    let file = File::create(m.join("f")).expect("create");
    assert_eq!(syncs(), 0, "a create alone is not durable at once");
    file.sync_all().expect("fsync");
    assert_eq!(syncs(), 1);
    std::fs::rename(m.join("f"), m.join("g")).expect("rename");
    let dir = File::open(m.path()).expect("open the directory");
    dir.sync_all().expect("fsync of the directory");
    assert_eq!(syncs(), 2, "a rename is made durable by fsync of its directory");
}
