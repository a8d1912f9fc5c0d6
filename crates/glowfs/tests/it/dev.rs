//! The `glowfs dev` interface that scripts rely on.

use crate::harness::{Cluster, Scratch, binary, must, run, sh};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn up_down_up_keeps_data_and_the_interface() {
    let c = Cluster::up("dev");
    let status = c.status();
    assert_eq!(status["mount"]["path"], c.mnt.to_str().expect("UTF-8"));
    assert!(status["mount"]["pid"].as_u64().is_some());
    assert!(status["mgmtd"][0].as_str().expect("address").contains(':'));
    let roles = |r: &str| c.services(r).len();
    assert_eq!((roles("mgmtd"), roles("meta"), roles("storage")), (1, 1, 3));
    for s in c.services("storage") {
        assert_eq!(s["data"].as_array().expect("data").len(), 2);
        assert_eq!(s["state"], "running");
        let pid = s["pid"].as_u64().expect("pid");
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
    sh(&c.mnt, "echo kept > f");
    c.dev("up", &[]); // Already up: nothing happens.
    c.dev("down", &[]);
    assert!(c.services("storage").iter().all(|s| s["state"] == "down"));
    assert!(!c.mnt.join("f").exists(), "unmounted");
    c.dev("up", &[]);
    assert_eq!(sh(&c.mnt, "cat f"), "kept\n");
}

/// The first thread of a process is gone before its files and its address are.
#[test]
fn a_service_that_is_just_ending_is_started_again() {
    let c = Cluster::up("ending");
    let of = |id: &str| c.services("storage").into_iter().find(|s| s["id"] == id).expect("service");
    for round in 0..12 {
        let id = ["storage-1", "storage-2", "storage-3"][round % 3];
        let before = of(id)["pid"].clone();
        c.dev("kill", &["--signal", "TERM", id]);
        let status = format!("/proc/{before}/status");
        // No pause: it is about the milliseconds that follow.
        while std::fs::read_to_string(&status).is_ok_and(|s| !s.contains("State:\tZ")) {}
        c.dev("start", &[id]);
        let now = of(id);
        assert!(now["state"] == "running" && now["pid"] != before, "round {round}: {now}");
    }
}

#[test]
fn two_clusters_side_by_side_and_a_second_mount() {
    let c = Cluster::up("first");
    // A second cluster, of the smallest shape.
    let s = Scratch::new("second");
    let (dir, mnt) = (s.path.join("cluster"), s.path.join("mnt"));
    let up = ["--storages", "1", "--disks", "1", "--replicas", "1", "--chunk-size", "64K"];
    must(
        Command::new(binary())
            .args(["dev", "up", "--dir"])
            .arg(&dir)
            .arg("--mount")
            .arg(&mnt)
            .args(up),
    );
    sh(&mnt, "echo second > f");
    sh(&c.mnt, "echo first > f");
    assert_eq!(sh(&mnt, "cat f"), "second\n");
    assert_eq!(sh(&c.mnt, "cat f"), "first\n");
    must(Command::new(binary()).args(["dev", "destroy", "--yes", "--dir"]).arg(&dir));
    assert!(!dir.exists());

    // A further, independent client of the first.
    let status = c.status();
    let second = c.local.join("mnt2");
    std::fs::create_dir(&second).expect("directory");
    let mut mount = Command::new(binary())
        .args(["mount", "--mgmtd", status["mgmtd"][0].as_str().expect("address"), "--token-file"])
        .arg(status["token_file"].as_str().expect("file"))
        .arg(&second)
        .spawn()
        .expect("mount");
    let end = Instant::now() + Duration::from_secs(10);
    while !second.join("f").exists() {
        assert!(Instant::now() < end, "the second mount does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let result = std::panic::catch_unwind(|| {
        for i in 0..20 {
            sh(&c.mnt, &format!("echo {i} > shared"));
            assert_eq!(sh(&second, "cat shared"), format!("{i}\n"), "after close, others see it");
            sh(&second, &format!("echo more{i} >> shared"));
            assert_eq!(sh(&c.mnt, "cat shared"), format!("{i}\nmore{i}\n"));
        }
    });
    sh(&c.local, "umount mnt2");
    assert!(mount.wait().expect("mount ends").success());
    result.expect("both mounts see the same");
}

#[test]
fn kill_and_start_by_id() {
    let c = Cluster::up("kill");
    c.dev("kill", &["storage-2"]);
    assert_eq!(c.services("storage")[1]["state"], "down");
    let o = run(Command::new(binary()).args(["dev", "kill", "--dir"]).arg(&c.dir).arg("storage-2"));
    assert!(o.code != 0 && o.err.contains("dev start"), "{}", o.err);
    let o = run(Command::new(binary()).args(["dev", "kill", "--dir"]).arg(&c.dir).arg("nobody"));
    assert!(o.code != 0 && o.err.contains("storage-1"), "names what there is: {}", o.err);
    c.dev("kill", &["storage-3", "--signal", "STOP"]);
    assert_eq!(c.services("storage")[2]["state"], "stopped");
    c.dev("start", &["storage-3"]);
    c.dev("start", &["storage-2"]);
    c.wait_serving(Duration::from_secs(60));
    let o = run(Command::new(binary()).args(["dev", "destroy", "--dir"]).arg(&c.dir));
    assert!(o.code != 0 && o.err.contains("--yes"), "asks first: {}", o.err);
    assert!(c.dir.exists());
}

/// The kernel keeps the mount of a daemon that was killed; it answers ENOTCONN. `dev up` and `dev start` took it for the cluster's.
#[test]
fn a_mount_whose_daemon_was_killed_is_made_anew() {
    let c = Cluster::up("deadmount");
    sh(&c.mnt, "echo kept > f");
    let end_daemon = || {
        let pid = c.status()["mount"]["pid"].as_u64().expect("it runs").to_string();
        must(Command::new("kill").args(["-9", &pid]));
        while std::fs::metadata(&c.mnt).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    end_daemon();
    assert_eq!(c.status()["mount"]["mounted"], false);
    c.dev("up", &[]);
    assert_eq!(sh(&c.mnt, "cat f"), "kept\n");
    end_daemon();
    c.dev("start", &["mount"]);
    assert_eq!(sh(&c.mnt, "cat f"), "kept\n");

    // What somebody else has mounted there is not taken for the cluster's, and left alone.
    end_daemon();
    must(Command::new("umount").arg("-l").arg(&c.mnt));
    let status = c.status();
    let mut other = Command::new(binary());
    other.args(["mount", "--background", "--mgmtd"]);
    other.arg(status["mgmtd"][0].as_str().expect("address")).arg("--token-file");
    must(other.arg(status["token_file"].as_str().expect("file")).arg(&c.mnt));
    let up = run(Command::new(binary()).args(["dev", "up", "--dir"]).arg(&c.dir));
    assert!(up.code != 0 && up.err.contains("another file system"), "{}", up.err);
    c.dev("down", &[]);
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(table.contains(c.mnt.to_str().expect("UTF-8")), "it was unmounted");
    must(Command::new("umount").arg("-l").arg(&c.mnt));
}

#[test]
fn two_metadata_services_at_once() {
    let c = Cluster::up_with("metas", &["--metas", "2"]);
    let nodes = c.admin(&["list-nodes"]);
    let metas = |n: &serde_json::Value| n["role"] == "meta" && n["status"] == "active";
    assert_eq!(nodes.as_array().expect("nodes").iter().filter(|n| metas(n)).count(), 2, "{nodes}");
    let work = |tag: &str| {
        let script = format!(
            "mkdir {tag}; for i in $(seq 40); do echo {tag}$i > {tag}/f$i; done; \
             for i in $(seq 40); do test \"$(cat {tag}/f$i)\" = {tag}$i; done; mv {tag}/f1 {tag}/g; rm {tag}/f2; ls {tag} | wc -l"
        );
        assert_eq!(sh(&c.mnt, &script).trim(), "39");
    };
    work("both");
    // The one that hosts no engine goes: the other takes its clients over.
    c.dev("kill", &["meta-2"]);
    work("one");
    c.dev("start", &["meta-2"]);
    work("again");
    // Each of them answers by itself, with the same tree.
    let token = c.status()["token_file"].as_str().expect("file").to_owned();
    for meta in c.services("meta") {
        let address = meta["address"].as_str().expect("address");
        let mut ls = Command::new(binary());
        let text = must(ls.args(["admin", "--mgmtd", address, "--token-file", &token, "ls", "/"]));
        assert!(text.contains("both") && text.contains("again"), "{text}");
        let mut named = Command::new(binary());
        named
            .env("GLOWFS_MGMTD", format!(" 127.0.0.1:1, {address}"))
            .env("GLOWFS_TOKEN_FILE", &token);
        assert_eq!(must(named.args(["admin", "ls", "/"])), text);
    }
}
