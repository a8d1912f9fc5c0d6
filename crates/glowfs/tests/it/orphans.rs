//! Chunks whose file's record was lost, in a real cluster: shown by a dry run, reclaimed later, and nothing else is touched.

use crate::harness::{Cluster, eventually, sh};
use std::time::Duration;

/// Takes the record of an inode out of the metadata engine, which must not be in use: as if the power had gone before it was flushed.
fn lose(c: &Cluster, inode: u64) {
    let text = std::fs::read_to_string(c.dir.join("etc/meta-1.toml")).expect("configuration");
    let cluster = text.lines().find_map(|l| l.strip_prefix("cluster_id = ")).expect("cluster_id");
    let cluster = cluster.trim_matches('"').parse().expect("hexadecimal");
    let dir = c.dir.join("data/meta-1");
    let key = [&1u64.to_be_bytes()[..], b"I", &inode.reverse_bits().to_be_bytes()].concat();
    glowfs_rt::real::run(move |rt| async move {
        let dir = rt.open_dir(&dir).expect("directory");
        let config = glowfs_kv::EmbeddedConfig::new(cluster);
        let engine = glowfs_kv::Embedded::open(&rt, dir, config).await.expect("engine");
        let tx = glowfs_kv::Transaction::new(std::rc::Rc::new(engine.clone()));
        assert!(tx.get(&key).await.expect("read").is_some(), "that is where its record is");
        tx.clear(key).expect("cleared");
        tx.commit(true).await.expect("commit");
        engine.close().await.expect("close");
    });
}

#[test]
fn chunks_of_a_lost_file_are_shown_and_reclaimed() {
    let c = Cluster::up("orphans");
    sh(&c.mnt, "for f in kept lost; do dd if=/dev/urandom of=$f bs=1M count=5 status=none; done");
    let sum = sh(&c.mnt, "md5sum < kept");
    let inode = sh(&c.mnt, "stat -c %i lost").trim().parse().expect("an inode");
    c.dev("down", &[]);
    lose(&c, inode);
    c.dev("up", &[]);
    c.wait_serving(Duration::from_secs(30));
    // So that what was given out for the file has expired soon; and it looks only when it is asked.
    c.retune("meta-1", "[tuning]\ncapability_ms = 1000\norphan_scan_s = 0\n");
    eventually("meta is back", || c.mnt.join("kept").exists());
    let seen = c.admin(&["--timeout", "60", "orphans", "--dry-run"]);
    assert_eq!(seen["ownerless_total"], 1, "{seen}");
    let lost = &seen["ownerless"][0];
    assert_eq!((&lost["chunks"], &lost["bytes"]), (&5.into(), &(5u64 << 20).into()), "{seen}");
    let soon = c.admin(&["--timeout", "60", "orphans", "--reclaim"]);
    assert_eq!((&soon["ownerless_total"], &soon["reclaimed"]), (&1.into(), &0.into()), "{soon}");
    std::thread::sleep(Duration::from_millis(soon["confirm_ms"].as_u64().expect("a time") + 500));
    let done = c.admin(&["--timeout", "60", "orphans", "--reclaim"]);
    assert_eq!((&done["reclaimed"], &done["reclaimed_chunks"]), (&1.into(), &5.into()), "{done}");
    let after = c.admin(&["--timeout", "60", "orphans", "--dry-run"]);
    assert_eq!((&after["ownerless_total"], &after["checked"]), (&0.into(), &1.into()), "{after}");
    assert_eq!(sh(&c.mnt, "echo 3 > /proc/sys/vm/drop_caches; md5sum < kept"), sum);
}
