//! `glowfs admin` against a running cluster: every list, with and without `--json`, against any service.

use crate::harness::{Cluster, binary, eventually, must, run, sh};
use std::process::Command;

#[test]
fn lists_files_and_any_address() {
    let c = Cluster::up("admin");
    // The very first question to a cluster that has just come up, when meta may not yet know every storage node.
    assert!(c.admin(&["df"])["total_bytes"].as_u64().expect("bytes") > 0);
    sh(&c.mnt, "mkdir -p a/b && echo hello > a/b/c && ln -s b/c a/link");
    let nodes = c.admin(&["list-nodes"]);
    let nodes = nodes.as_array().expect("nodes");
    assert_eq!(nodes.iter().filter(|n| n["role"] == "storage").count(), 3, "{nodes:?}");
    for field in [
        "id",
        "role",
        "status",
        "host",
        "pid",
        "tags",
        "last_heartbeat_ns",
        "config_version",
        "release",
    ] {
        assert!(nodes.iter().all(|n| !n[field].is_null()), "{field} is missing: {nodes:?}");
    }
    assert!(nodes.iter().all(|n| n["status"] == "active" || n["status"] == "primary"), "{nodes:?}");
    assert_eq!(c.admin(&["list-targets"]).as_array().expect("targets").len(), 36);
    // What drain and disk replace take, and what tells of a disk that is full, or of chains that nobody serves.
    let df = c.admin(&["df"]);
    let disks: Vec<_> = df["disks"].as_array().expect("disks").iter().map(|d| &d["disk"]).collect();
    assert!(disks.len() == 6 && disks.iter().all(|d| **d == 0 || **d == 1), "{disks:?}");
    assert!(c.metric("storage", "glowfs_storage_disk_free_bytes") > 0.0);
    eventually("chains are counted", || c.metric("mgmtd", "glowfs_mgmtd_chains") == 12.0);
    let tables = c.admin(&["list-chain-tables"]);
    assert_eq!(tables.as_array().expect("tables").len(), 1);
    let chains = tables[0]["chains"].as_array().expect("chains").len();
    assert_eq!(tables[0]["replicas"].as_u64(), Some(36 / chains as u64));
    let clients = c.admin(&["list-clients"]);
    let mounts =
        clients.as_array().expect("clients").iter().filter(|k| k["role"] == "mount").count();
    assert_eq!(mounts, 1, "{clients}");
    let ls = c.admin(&["ls", "/a"]);
    let names: Vec<_> =
        ls.as_array().expect("rows").iter().map(|r| r["name"].as_str().expect("name")).collect();
    assert_eq!(names, ["b", "link"]);
    assert_eq!(c.admin(&["stat", "/a/b/c"])["length"], 6);

    let status = c.status();
    let token = status["token_file"].as_str().expect("token");
    for service in
        status["services"].as_array().expect("services").iter().filter(|s| s["role"] != "mount")
    {
        let address = service["address"].as_str().expect("address");
        let base = ["admin", "--mgmtd", address, "--token-file", token];
        let text = must(Command::new(binary()).args(base).args(["cat", "/a/link"]));
        assert_eq!(text, "hello\n", "through {}", service["id"]);
        let table = must(Command::new(binary()).args(base).arg("list-nodes"));
        assert!(table.contains("storage") && table.contains("ROLE"), "{table}");
    }

    // A wrong token is refused, in words.
    let wrong = c.local.join("wrong");
    std::fs::write(&wrong, "not-the-token\n").expect("file");
    let mgmtd = status["mgmtd"][0].as_str().expect("mgmtd");
    let o = run(Command::new(binary())
        .args(["admin", "--timeout", "5", "--mgmtd", mgmtd, "--token-file"])
        .arg(&wrong)
        .arg("list-nodes"));
    assert_ne!(o.code, 0);
    assert!(o.err.contains("token"), "{}", o.err);
    // A missing path has its error.
    let o =
        run(Command::new(binary()).args(["admin", "--dev"]).arg(&c.dir).args(["stat", "/nope"]));
    assert!(o.code != 0 && o.err.contains("nope"), "{}", o.err);
}

#[test]
fn users_are_not_replaced_and_changed_only_in_what_is_named() {
    let c = Cluster::up("users");
    c.admin(&["user-add", "1000", "ann", "--groups", "1000,27", "--admin"]);
    let e = c.admin_fails(&["user-add", "1000", "bob"]);
    assert!(e.contains("«ann»") && e.contains("user-change 1000"), "{e}");
    let ann = || {
        let users = c.admin(&["user-list"]);
        users.as_array().expect("users").iter().find(|u| u["uid"] == 1000).expect("ann").clone()
    };
    assert_eq!(ann()["groups"], serde_json::json!([1000, 27]));
    assert_eq!(ann()["admin"], true);
    let changed = c.admin(&["user-change", "1000", "--name", "anna"]);
    assert!(changed["token"].is_null() && changed["admin"] == true, "{changed}");
    c.admin(&["user-change", "1000", "--groups", "", "--admin", "false"]);
    assert_eq!(
        ann(),
        serde_json::json!({"uid": 1000, "name": "anna", "groups": [], "root": false, "admin": false, "service": false})
    );
    let token = c.admin(&["user-change", "1000", "--new-token", "--yes"])["token"].clone();
    assert_eq!(token.as_str().map(str::len), Some(64));
    assert_eq!(c.admin(&["user-remove", "1000"])["removed"], false);
    assert_eq!(ann()["name"], "anna", "without --yes nothing is done");
    assert_eq!(c.admin(&["user-remove", "1000", "--yes"])["removed"], true);
    assert_eq!(c.admin(&["user-list"]).as_array().map(Vec::len), Some(1));
    for (args, word) in [
        (&["user-change", "1000"][..], "nothing to change"),
        (&["user-change", "0", "--new-token"], "use it, and would hear EACCES"),
        (&["user-change", "7", "--root", "true"], "no user 7"),
        (&["user-remove", "1000", "--yes"], "no user 1000"),
        (&["user-remove", "0", "--yes"], "user 0"),
        (&["user-change", "0", "--root", "false"], "user 0"),
        (&["user-add", "5", "a\nb"], "control characters"),
        (&["user-add", "4294967295", "nobody"], "4294967295"),
        (&["user-remove", "4294967295", "--yes"], "4294967295"),
        (&["user-add", "5", "x", "--groups", "1,,2"], "number of a group"),
    ] {
        let e = c.admin_fails(args);
        assert!(e.contains(word), "{args:?}: {e}");
    }
}

/// Several at once change other settings of the same node, and of its role: none is lost.
#[test]
fn settings_that_are_changed_at_once_are_all_kept() {
    let c = Cluster::up("settings");
    let keys = ["sync_chunks", "sync_bytes_per_s", "sync_share_percent", "scrub_bytes_per_s"];
    for round in 1..=6 {
        std::thread::scope(|s| {
            for key in keys {
                let c = &c;
                s.spawn(move || {
                    let setting = format!("{key}={round}");
                    c.admin(&["set-config", "storage", &setting, "--node", "1001"]);
                    if key == "sync_chunks" {
                        c.admin(&["set-config", "storage", &setting]);
                    }
                });
            }
        });
        let all = c.admin(&["get-config"]);
        let of = |pick: &dyn Fn(&serde_json::Value) -> bool| {
            let rows = all.as_array().expect("rows");
            let row = rows.iter().find(|r| pick(r)).expect("a row");
            row["toml"].as_str().expect("text").to_owned()
        };
        let node = of(&|r| r["node"] == 1001);
        for key in keys {
            assert!(node.lines().any(|l| l == format!("{key} = {round}")), "{key}: {node}");
        }
        assert_eq!(of(&|r| r["role"] == "storage").trim(), format!("sync_chunks = {round}"));
    }
    let e = c.admin_fails(&["set-config", "mgmtd", "replace_after_ms=5", "--node", "1001"]);
    assert!(e.contains("of storage, not of mgmtd"), "{e}");
}

/// Services that hang cost their time once, however many they are; what is refused says so without what went before.
#[test]
fn services_that_do_not_answer_are_asked_at_once() {
    let c = Cluster::up("silent");
    let nodes = ["storage-1", "storage-2", "storage-3"];
    let signal = |s: &str| nodes.iter().for_each(|id| drop(c.dev("kill", &["--signal", s, id])));
    signal("STOP");
    for command in ["status", "list-resyncs"] {
        let began = std::time::Instant::now();
        let (ok, rows) = c.admin_tried(&[command]);
        assert!(!ok, "{command} is not all: {rows}");
        // Five seconds for each.
        assert!(began.elapsed().as_secs() < 12, "{command}: {:?}", began.elapsed());
    }
    signal("CONT");
    let (_, rows) = c.admin_tried(&["status"]);
    assert!(rows.as_array().is_some_and(|r| r.iter().any(|r| r["role"] == "chains")), "{rows}");
    c.wait_serving(std::time::Duration::from_secs(60));
    // Services that have just come back may be busy with it.
    eventually("all is well", || c.admin_tried(&["status"]).0);
    let e = c.admin_fails(&["disk", "replace", "9:9"]);
    assert!(e.contains("no storage node"), "{e}");
    let e = c.admin_fails(&["drain", "9"]);
    assert!(e.contains("9 has no disk") && !e.contains("before sending"), "{e}");
    let e = c.admin_fails(&["set-config", "storage", "sync_chunks=0"]);
    assert_eq!(e.matches("InvalidArgument").count(), 1, "{e}");
}
