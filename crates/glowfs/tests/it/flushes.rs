//! What an fsync makes the disks do: one flush of each replica's for each group of fsyncs that is acknowledged, and none where
//! everything is on disk already.

use crate::harness::{Cluster, Mount, scrape, sh};
use std::collections::BTreeMap;
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

/// By chain, which of the storages has its (only) replica.
fn storages_of_chains(c: &Cluster) -> BTreeMap<u64, usize> {
    let nodes: Vec<_> = c.services("storage").iter().map(|s| s["node"].clone()).collect();
    let chains = c.admin(&["list-chains"]);
    let storage = |chain: &serde_json::Value| {
        let node = &chain["members"][0]["node"];
        let at = nodes.iter().position(|n| n == node).expect("a storage");
        (chain["id"].as_u64().expect("id"), at)
    };
    chains.as_array().expect("chains").iter().map(storage).collect()
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

/// Data that replaces what another client has cut off lies on chains of its own.
#[test]
fn an_fsync_flushes_what_another_client_wrote_after_it_had_cut_the_file_to_nothing() {
    let c = Cluster::up_with("flushes-cut", &["--storages", "4", "--replicas", "1"]);
    sh(
        &c.mnt,
        "mkdir d && setfattr -n glowfs.layout -v stripe=1 d && head -c 1M /dev/urandom > d/f",
    );
    let other = Mount::new(&c, "mnt2");
    let (here, there) = (c.mnt.join("d/f"), other.path.join("d/f"));
    let file = File::options().read(true).write(true).open(here).expect("open");
    file.sync_all().expect("fsync");
    let storages = storages_of_chains(&c);
    let storage_now =
        || storages[&c.admin(&["stat", "/d/f"])["chains"][0].as_u64().expect("chain")];
    let mut moved = 0;
    let mut before = (storage_now(), flushes(&c));
    for round in 0..ROUNDS {
        // Not fsynced, and not known to who has had the file open all the time.
        std::fs::write(&there, vec![round as u8; 1 << 20]).expect("write");
        match round % 2 {
            0 => file.sync_data().expect("fdatasync"),
            _ => file.sync_all().expect("fsync"),
        }
        let after = (storage_now(), flushes(&c));
        let (at, told) = (after.0, format!("round {round}: {before:?}, {after:?}"));
        assert!(after.1[at] > before.1[at], "where the data lies nothing was flushed: {told}");
        moved += u32::from(at != before.0);
        before = after;
    }
    assert!(moved > 2, "the data moved to another storage {moved} times");
}
