//! What an fsync makes the disks do: one flush of each replica's for each group of fsyncs that is acknowledged, and none where
//! everything is on disk already.

use crate::harness::{Cluster, scrape};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// fsyncs one after the other.
const ROUNDS: u64 = 20;

/// The flushes of each storage's disk so far.
fn flushes(c: &Cluster) -> Vec<u64> {
    let name = "glowfs_storage_disk_flushes_total";
    let http = |s: &serde_json::Value| s["http"].as_str().expect("http").to_owned();
    c.services("storage").iter().map(|s| scrape(&http(s), name) as u64).collect()
}

#[test]
fn an_fsync_flushes_every_replica_once_and_only_if_there_is_something() {
    let c = Cluster::up_with("flushes", &["--storages", "3", "--replicas", "3"]);
    let file = File::create(c.mnt.join("f")).expect("create");
    file.write_all_at(&[1; 1 << 20], 0).expect("write");
    file.sync_all().expect("fsync");
    let before = flushes(&c);
    assert_eq!(before.len(), 3);
    for i in 0..ROUNDS {
        file.write_all_at(&[i as u8; 4096], i * 8192).expect("write");
        file.sync_all().expect("fsync");
    }
    let after = flushes(&c);
    for (b, a) in before.iter().zip(&after) {
        assert!(a - b >= ROUNDS, "every replica was flushed for every fsync: {b} -> {a}");
        // Checkpoints and marks of the log flush as well.
        assert!(a - b <= ROUNDS + 4, "once, however many chains the file has: {b} -> {a}");
    }
    for _ in 0..ROUNDS {
        file.sync_all().expect("fsync");
    }
    for (b, a) in after.iter().zip(flushes(&c)) {
        assert!(a - b <= 2, "nothing was left to flush: {b} -> {a}");
    }
}
