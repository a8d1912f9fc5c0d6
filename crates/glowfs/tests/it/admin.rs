//! `glowfs admin` against a running cluster: every list, with and without `--json`, against any service.

use crate::harness::{Cluster, binary, must, run, sh};
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
    assert_eq!(c.admin(&["list-chain-tables"]).as_array().expect("tables").len(), 1);
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
