//! An operator's moves on a real cluster: a node is drained under load and stopped, a disk is lost and replaced, a chain
//! without a server is explained. What was acknowledged is there after each.

use crate::faults::under_load;
use crate::harness::{Cluster, binary, eventually_within, run, sh};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// How long anything may take here.
const BOUND: Duration = Duration::from_secs(90);

fn targets_on(c: &Cluster, node: u64) -> usize {
    let all = c.admin(&["list-targets"]);
    all.as_array().expect("targets").iter().filter(|t| t["node"] == node).count()
}

/// Who waits for a drain only looks: that another operator calls it off is the last word.
#[test]
fn a_drain_that_is_waited_for_can_be_called_off() {
    let c = Cluster::up_with("calloff", &["--storages", "4", "--disks", "1", "--replicas", "3"]);
    sh(&c.mnt, "for i in $(seq 40); do head -c 2M /dev/urandom > f$i; done; sync");
    let before = targets_on(&c, 1004);
    // Copies take for ever.
    c.admin(&["set-config", "storage", "sync_bytes_per_s=1000"]);
    let waiting = std::process::Command::new(crate::harness::binary())
        .args(["admin", "--dev"])
        .arg(&c.dir)
        .args(["drain", "1004", "--wait"])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("drain");
    eventually_within(BOUND, "copying", || {
        let chains = c.admin(&["list-chains"]);
        let members = |k: &Value| k["members"].as_array().map_or(0, Vec::len);
        chains.as_array().expect("chains").iter().any(|k| members(k) == 4)
    });
    c.admin(&["drain", "1004", "--cancel"]);
    let o = waiting.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&o.stderr);
    assert!(!o.status.success() && said.contains("called it off"), "{said}");
    c.admin(&["set-config", "storage", "sync_bytes_per_s="]);
    c.wait_serving(BOUND);
    assert!(targets_on(&c, 1004) > 0, "of {before}, what had not moved stays");
    // A copy that was whole just then serves for a moment, as a fourth.
    eventually_within(BOUND, "three members each", || {
        let chains = c.admin(&["list-chains"]);
        let whole = |k: &Value| k["members"].as_array().map_or(0, Vec::len) == 3;
        chains.as_array().expect("chains").iter().all(whole)
    });
}

/// A disk of a running node is lost with all it had: what is put in its place is taken up by the same process.
#[test]
fn a_disk_is_replaced_while_its_service_runs() {
    let c = Cluster::up_with("newdisk", &["--storages", "3", "--disks", "2", "--replicas", "3"]);
    sh(&c.mnt, "for i in $(seq 60); do head -c $((i*9000)) /dev/urandom > f$i; done; sync");
    let sums = || {
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        sh(&c.mnt, "md5sum f*")
    };
    let before = sums();
    let pid =
        || c.services("storage").iter().find(|s| s["id"] == "storage-1").map(|s| s["pid"].clone());
    let first = pid();
    assert!(first.is_some(), "{:?}", c.services("storage"));
    let works = c.admin_fails(&["disk", "replace", "1001:0", "--yes"]);
    assert!(works.contains("cannot be replaced"), "{works}");

    let disk = c.dir.join("data/storage-1/disk-1");
    std::fs::remove_dir_all(&disk).expect("the disk is lost");
    eventually_within(BOUND, "the loss is noticed", || {
        let nodes = c.admin(&["df"]);
        nodes["disks"].as_array().expect("disks").iter().any(|d| !d["problem"].is_null())
    });
    let neighbour = c.dir.join("data/storage-1/disk-2");
    sh(&c.local, &format!("cp -a --sparse=always {} {}", neighbour.display(), disk.display()));
    let copy = c.admin_fails(&["disk", "replace", "1001:0", "--yes"]);
    assert!(copy.contains("another disk of the node"), "{copy}");
    std::fs::remove_dir_all(&disk).expect("nobody holds it");
    std::fs::create_dir(&disk).expect("a new disk");
    std::fs::write(disk.join("something"), b"of somebody").expect("written");
    let full = c.admin_fails(&["disk", "replace", "1001:0", "--yes"]);
    assert!(full.contains("not empty"), "{full}");
    std::fs::remove_file(disk.join("something")).expect("removed");
    let asked = c.admin(&["disk", "replace", "1001:0"]);
    assert_eq!(asked["path"], disk.display().to_string().as_str(), "{asked}");
    assert!(
        std::fs::read_dir(&disk).expect("there").next().is_none(),
        "without --yes nothing is done"
    );
    let replaced = c.admin(&["disk", "replace", "1001:0", "--yes", "--wait"]);
    assert_eq!(replaced["left"], Value::Array(vec![]), "{replaced}");
    c.wait_serving(BOUND);
    assert_eq!(pid(), first, "the same process");
    // It alone has everything.
    c.dev("kill", &["storage-2"]);
    c.dev("kill", &["storage-3"]);
    assert_eq!(sums(), before);
}

/// A disk that is not mounted when its node starts is missed, and nothing is put in its place; one that was replaced and returns elsewhere gives
/// its room back.
#[test]
fn a_disk_that_is_not_mounted_at_boot_takes_nothing_and_one_that_returns_is_emptied() {
    let c = Cluster::up_with("unmounted", &["--storages", "3", "--disks", "2", "--replicas", "2"]);
    sh(&c.mnt, "for i in $(seq 60); do head -c $((i*9000)) /dev/urandom > f$i; done; sync");
    let sums = || {
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        sh(&c.mnt, "md5sum f*")
    };
    let before = sums();
    let disk = |n: u32| c.dir.join(format!("data/storage-1/disk-{n}"));
    let aside = |n: u32| c.dir.join(format!("aside-{n}"));
    let store_at = |n: u32| {
        let path = disk(n).display().to_string();
        let all = c.admin(&["df"]);
        let mut disks = all["disks"].as_array().expect("disks").iter();
        disks.find(|d| d["path"] == path.as_str()).expect("the disk").clone()
    };
    let targets_of = |store: &Value| {
        let all = c.admin(&["list-targets"]);
        all.as_array().expect("targets").iter().filter(|t| t["store"] == *store).count()
    };
    let started = |what: &str| {
        eventually_within(BOUND, what, || {
            let (_, nodes) = c.admin_tried(&["status"]);
            nodes
                .as_array()
                .expect("nodes")
                .iter()
                .any(|n| n["node"] == 1001 && n["healthy"] == true)
        });
    };
    let old = store_at(1);
    let had = targets_of(&old["store"]);
    assert!(had > 0, "{old}");

    // The machine starts without it: the mount point is an empty directory.
    c.admin(&["set-config", "mgmtd", "replace_after_ms=500"]);
    c.dev("kill", &["storage-1"]);
    std::fs::rename(disk(1), aside(1)).expect("not mounted");
    c.dev("start", &["storage-1"]);
    started("without its disk");
    c.wait_serving(BOUND);
    assert_eq!(targets_of(&store_at(1)["store"]), 0, "an empty directory was filled");
    assert_eq!(sums(), before);

    // The replaced one returns in another place.
    let replaced = c.admin(&["disk", "replace", "1001:0", "--yes", "--wait"]);
    assert_eq!(replaced["left"], Value::Array(vec![]), "{replaced}");
    eventually_within(BOUND, "the old one is forgotten", || targets_of(&old["store"]) == 0);
    c.dev("kill", &["storage-1"]);
    std::fs::rename(disk(2), aside(2)).expect("taken out");
    std::fs::rename(aside(1), disk(2)).expect("put in");
    c.dev("start", &["storage-1"]);
    started("with the old disk");
    eventually_within(BOUND, "its chunks are gone", || {
        let now = store_at(2);
        now["store"] == old["store"] && now["used_bytes"].as_u64() == Some(0)
    });
    c.wait_serving(BOUND);
    assert_eq!(sums(), before);
}

/// The other disks of the node that it was put into serve; back where it belongs it is what it was.
#[test]
fn a_disk_of_another_node_keeps_nothing_but_itself_out() {
    let c = Cluster::up_with("foreign", &["--storages", "3", "--disks", "2", "--replicas", "3"]);
    sh(&c.mnt, "for i in $(seq 40); do head -c $((i*9000)) /dev/urandom > f$i; done; sync");
    let sums = || {
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        sh(&c.mnt, "md5sum f*")
    };
    let before = sums();
    let disk = |storage: u32, n: u32| c.dir.join(format!("data/storage-{storage}/disk-{n}"));
    let aside = c.dir.join("aside");
    let serving = |node: u64| {
        let chains = c.admin(&["list-chains"]);
        let chains = chains.as_array().expect("chains").iter();
        let members = chains.flat_map(|k| k["members"].as_array().expect("members").clone());
        members.filter(|m| m["node"] == node && m["state"] == "serving").count()
    };
    let had = serving(1001);
    c.dev("kill", &["storage-1"]);
    c.dev("kill", &["storage-2"]);
    std::fs::rename(disk(1, 2), &aside).expect("taken out");
    std::fs::rename(disk(2, 2), disk(1, 2)).expect("put in");
    c.dev("start", &["storage-1"]);
    eventually_within(BOUND, "it serves with its own disk", || serving(1001) == had / 2);
    eventually_within(BOUND, "it says what is wrong with the other one", || {
        let (_, nodes) = c.admin_tried(&["status"]);
        let mut nodes = nodes.as_array().expect("nodes").iter();
        let detail = nodes.find(|n| n["node"] == 1001).map(|n| n["detail"].to_string());
        detail.is_some_and(|d| d.contains("belongs to node 1002"))
    });
    c.dev("kill", &["storage-1"]);
    std::fs::rename(disk(1, 2), disk(2, 2)).expect("put back");
    std::fs::rename(&aside, disk(1, 2)).expect("put back");
    c.dev("start", &["storage-1"]);
    c.dev("start", &["storage-2"]);
    c.wait_serving(BOUND);
    assert_eq!(sums(), before);
}

#[test]
fn drain_a_node_replace_a_disk_and_explain_a_waiting_chain() {
    let c = Cluster::up_with("moves", &["--storages", "4", "--disks", "1", "--replicas", "3"]);
    sh(&c.mnt, "for i in $(seq 60); do head -c $((i*9000)) /dev/urandom > f$i; done; rm f7 f9");
    let sums = || {
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        sh(&c.mnt, "md5sum f*")
    };
    let before = sums();

    // A node is emptied while programs write and read, and then stopped.
    let dry = c.admin(&["drain", "1004", "--dry-run"]);
    let left = dry["left"].as_array().expect("rows");
    assert_eq!(left.len(), targets_on(&c, 1004), "{dry}");
    assert!(left.iter().all(|l| l["to_node"] != 1004 && l["to_node"] != 0), "{dry}");
    let stall = under_load(&c, |busy| {
        let done = c.admin(&["drain", "1004", "--wait"]);
        assert_eq!(done["left"], Value::Array(vec![]), "{done}");
        busy();
        c.dev("kill", &["--signal", "TERM", "storage-4"]);
        busy();
    });
    eprintln!("node drained and stopped under load: longest stall {stall:?}");
    assert_eq!(targets_on(&c, 1004), 0);
    c.wait_serving(BOUND);
    assert_eq!(sums(), before);

    // A disk is lost with all it had; a new one takes its place.
    c.dev("kill", &["storage-1"]);
    let disk = c.dir.join("data/storage-1/disk-1");
    std::fs::remove_dir_all(&disk).expect("the disk is lost");
    std::fs::create_dir(&disk).expect("a new disk");
    c.dev("start", &["storage-1"]);
    // Who comes with none of the node's disks may be a copy of it, for as long as the lease of its former life lasts.
    eventually_within(BOUND, "the new disk is known", || {
        let dry = ["disk", "replace", "1001:0", "--dry-run"];
        let admin = ["admin", "--dev"];
        run(Command::new(binary()).args(admin).arg(&c.dir).args(dry)).code == 0
    });
    let replaced = c.admin(&["disk", "replace", "1001:0", "--yes", "--wait"]);
    assert_eq!(replaced["left"], Value::Array(vec![]), "{replaced}");
    c.wait_serving(BOUND);
    // It alone has everything.
    c.dev("kill", &["storage-2"]);
    c.dev("kill", &["storage-3"]);
    assert_eq!(sums(), before);

    // What is written now only it has. Without it, its chain waits, and says what forcing it would lose.
    sh(&c.mnt, "echo late > late && sync late");
    let chain = c.admin(&["stat", "/late"])["chains"][0].to_string();
    c.dev("kill", &["storage-1"]);
    c.dev("start", &["storage-2"]);
    let explained = || c.admin(&["explain-force", &chain]);
    eventually_within(BOUND, "a waiting member", || {
        let e = explained();
        let waiting = |m: &Value| m["node"] == 1002 && m["state"] == "waiting";
        e["waits"] == true && e["members"].as_array().expect("members").iter().any(waiting)
    });
    let e = explained();
    let members = e["members"].as_array().expect("members");
    let stale = members.iter().find(|m| m["node"] == 1002).expect("storage-2");
    assert!(stale["chunks"].as_u64() > Some(0), "it was asked: {e}");
    assert!(members.iter().any(|m| m["node"] == 1001 && !m["problem"].is_null()), "{e}");
    let target = stale["target"].to_string();
    let told = c.admin(&["force", &chain, "--target", &target]);
    assert!(told["forced"].is_null(), "without --yes nothing is done: {told}");
    assert!(told["explanation"].as_str().expect("text").contains("is lost"), "{told}");
    c.dev("start", &["storage-1"]);
    c.dev("start", &["storage-3"]);
    c.wait_serving(BOUND);
    assert_eq!(sums(), before);
    assert_eq!(sh(&c.mnt, "cat late"), "late\n");
}

/// Three replicas leave one after the other, with writes in between. What the first one lacks of the second, whose chain still waits for the third, is named chunk by chunk.
#[test]
fn what_forcing_a_waiting_chain_loses_is_named() {
    let c = Cluster::up_with("loses", &["--storages", "3", "--disks", "1", "--replicas", "3"]);
    c.admin(&["set-layout", "/", "--stripe", "1", "--chunk-size", "64K"]);
    sh(&c.mnt, "head -c 512K /dev/zero > f; sync f");
    let stat = c.admin(&["stat", "/f"]);
    let (id, data) = (stat["chains"][0].clone(), stat["data_id"].clone());
    let chain = id.to_string();
    let members = |e: &Value| e["members"].as_array().expect("members").clone();
    let state = |node: u64| {
        let chains = c.admin(&["list-chains"]);
        let chains = chains.as_array().expect("chains").iter();
        let mut ours = chains.filter(|k| k["id"] == id).flat_map(&members);
        ours.find(|m| m["node"] == node).map(|m| m["state"].as_str().unwrap_or("").to_owned())
    };
    let leaves = |id: &str, node| {
        c.dev("kill", &[id]);
        eventually_within(BOUND, "it is out of the chain", || {
            state(node).is_some_and(|s| s != "serving")
        });
    };
    let write = |chunks: &[u64]| {
        for k in chunks {
            let place = format!("of=f bs=64K seek={k} count=1 conv=notrunc,fsync status=none");
            sh(&c.mnt, &format!("dd if=/dev/urandom {place}"));
        }
    };
    leaves("storage-1", 1001);
    // One that was there, one of which a part is written twice, and one behind the end.
    write(&[2, 5, 5, 9]);
    leaves("storage-2", 1002);
    write(&[3]);
    let all = sh(&c.mnt, "md5sum f");
    c.dev("kill", &["storage-3"]);
    c.dev("start", &["storage-1"]);
    c.dev("start", &["storage-2"]);
    eventually_within(BOUND, "both wait", || {
        [1001, 1002].iter().all(|n| state(*n).as_deref() == Some("waiting"))
    });
    let told = c.admin(&["explain-force", &chain]);
    assert_eq!(told["waits"], true, "{told}");
    let of = |node: u64| members(&told).into_iter().find(|m| m["node"] == node).expect("a member");
    let (first, second, last) = (of(1001), of(1002), of(1003));
    let lost = first["would_lose"].as_array().expect("rows");
    let named: Vec<_> = lost.iter().map(|l| l["index"].as_u64().expect("a number")).collect();
    assert_eq!(named, [2, 5, 9], "{told}");
    assert_eq!(first["behind"], 3, "{told}");
    for l in lost {
        let older = l["version"].as_u64() < l["newest"].as_u64();
        assert!(older && l["data"] == data && l["on_target"] == second["target"], "{told}");
    }
    assert_eq!(lost[2]["version"], 0, "it never had that one: {told}");
    // Of the one that knew more nothing can be said but that it was not asked.
    assert_eq!((&second["behind"], &second["would_lose"]), (&0.into(), &Value::Array(vec![])));
    assert!(last["chunks"].is_null() && !last["problem"].is_null(), "{told}");
    let text = run(Command::new(binary())
        .args(["admin", "--dev"])
        .arg(&c.dir)
        .args(["explain-force", &chain]))
    .out;
    let lines = named.iter().filter(|k| text.contains(&format!("  chunk {k} of data {data} ")));
    assert_eq!(lines.count(), 3, "{text}");
    c.dev("start", &["storage-3"]);
    c.wait_serving(BOUND);
    sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
    assert_eq!(sh(&c.mnt, "md5sum f"), all, "nothing was changed");
}
