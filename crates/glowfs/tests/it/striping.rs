//! Files are striped over chains, and reads come from the storages, checksummed, one for one.

use crate::harness::{Cluster, must, sh};
use std::process::Command;

#[test]
fn files_are_striped_and_reads_come_from_the_storages() {
    let c = Cluster::up("striping");
    let chains = c.admin(&["list-chains"]);
    assert!(chains.as_array().expect("chains").len() >= 12, "{chains}");
    sh(&c.mnt, "dd if=/dev/urandom of=f bs=1M count=48 status=none && sync f");
    let stat = c.admin(&["stat", "/f"]);
    let of_file = stat["chains"].as_array().expect("chains").len();
    assert!(of_file >= 6, "48 chunks over {of_file} chains: {stat}");
    // Every storage holds some of it: all six disks have chunks.
    let df = c.admin(&["df"]);
    for disk in df["disks"].as_array().expect("disks") {
        assert!(disk["used_bytes"].as_u64().expect("bytes") > 0, "an empty disk: {disk}");
    }

    let before = c.metric("storage", "glowfs_storage_reads_total");
    let ops = 2000;
    must(Command::new("fio").args([
        "--name=r".into(),
        format!("--filename={}", c.mnt.join("f").display()),
        "--rw=randread".into(),
        "--bs=4k".into(),
        "--direct=1".into(),
        "--ioengine=libaio".into(),
        "--iodepth=8".into(),
        format!("--number_ios={ops}"),
    ]));
    let served = c.metric("storage", "glowfs_storage_reads_total") - before;
    // A hedge may add a few; nothing may be missing.
    let want = f64::from(ops);
    assert!(served >= want && served <= want * 1.05, "{ops} operations, {served} served");

    // The mount reads no block file: it has none open.
    let pid = c.status()["mount"]["pid"].as_u64().expect("pid");
    let fds = sh(&c.local, &format!("ls -l /proc/{pid}/fd"));
    assert!(!fds.contains("/data/storage"), "the mount has a store's file open:\n{fds}");
}
