//! Bringing a storage node that was away up to date: only what differs travels, at the pace that the operator sets.

use crate::harness::{Cluster, sh};
use std::time::{Duration, Instant};

const MIB: f64 = 1_048_576.0;
/// How long a resync of these sizes may take on a slow machine.
const BOUND: Duration = Duration::from_secs(90);
/// A bandwidth that would need minutes for what there is to send, in bytes per second.
const CRAWL: u64 = 256 << 10;

fn resync_bytes(c: &Cluster) -> f64 {
    c.metric("storage", "glowfs_storage_resync_bytes_total")
}

/// Waits until some member does not serve: the node's silence has been noticed.
fn wait_noticed(c: &Cluster) {
    let end = Instant::now() + BOUND;
    loop {
        let chains = c.admin(&["list-chains"]);
        if chains.as_array().expect("chains").iter().all(|c| c["status"] != "complete") {
            return;
        }
        assert!(Instant::now() < end, "nobody noticed: {chains:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn only_what_changed_travels_and_the_pace_is_live() {
    let c = Cluster::up("resync");
    // Chunks are 1 MiB: 256 of them, on every node, since there are as many replicas as nodes.
    sh(&c.mnt, "dd if=/dev/urandom of=big bs=1M count=256 status=none && sync big");
    c.dev("kill", &["storage-3"]);
    wait_noticed(&c);
    // About 1 % is stale when it comes back.
    sh(
        &c.mnt,
        "for at in 7 88 201; do dd if=/dev/urandom of=big bs=1M seek=$at count=1 conv=notrunc,fsync status=none; done",
    );
    c.dev("start", &["storage-3"]);
    c.wait_serving(BOUND);
    let moved = resync_bytes(&c);
    assert!(moved >= 3.0 * MIB, "the stale chunks travelled: {moved} bytes");
    assert!(moved <= 0.02 * 256.0 * MIB, "{} MiB moved for 3 MiB that were stale", moved / MIB);

    // Slow by command, while it runs; the file system goes on meanwhile.
    c.dev("kill", &["storage-3"]);
    wait_noticed(&c);
    sh(
        &c.mnt,
        "dd if=/dev/urandom of=big bs=1M count=128 conv=notrunc,fsync status=none; md5sum < big > ../local/sum",
    );
    c.admin(&["set-config", "storage", &format!("sync_bytes_per_s={CRAWL}")]);
    c.dev("start", &["storage-3"]);
    let end = Instant::now() + BOUND;
    let seen = loop {
        let rows = c.admin(&["list-resyncs"]);
        let rows = rows.as_array().expect("rows").clone();
        let on_its_way = |r: &serde_json::Value| r["sent_bytes"].as_u64() > Some(0);
        if let Some(row) = rows.into_iter().find(on_its_way) {
            break row;
        }
        assert!(Instant::now() < end, "no resync was seen");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(seen["state"], "running", "{seen}");
    assert!(seen["total_chunks"].as_u64() >= seen["compared_chunks"].as_u64(), "{seen}");
    assert!(seen["left_ms"].as_u64().is_some(), "{seen}");
    sh(&c.mnt, "md5sum < big | cmp - ../local/sum && echo works > while && cat while");
    let chains = c.admin(&["list-chains"]);
    let done = chains.as_array().expect("chains").iter().all(|c| c["status"] == "complete");
    assert!(!done, "128 MiB at {CRAWL} bytes per second cannot be done yet");
    let refused = c.admin_fails(&["set-config", "storage", "sync_bytes=1"]);
    assert!(refused.contains("sync_bytes"), "{refused}");
    c.admin(&["set-config", "storage", "sync_bytes_per_s="]);
    c.wait_serving(BOUND);
    assert_eq!(c.admin(&["list-resyncs"]).as_array().map(Vec::len), Some(0));
    sh(&c.mnt, "md5sum < big | cmp - ../local/sum");
}
