//! Three mgmtd: the primary is killed and paused under load. Another takes over, no two act at once, no version goes back, and
//! applications see nothing of it.

use crate::faults::under_load;
use crate::harness::{Cluster, binary, eventually, sh};
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long a change of the primary, with all who must notice it, may take on a slow machine.
const CHANGE_BOUND: Duration = Duration::from_secs(60);

fn managers(c: &Cluster) -> Vec<Value> {
    let nodes = c.admin(&["list-nodes"]);
    nodes.as_array().expect("nodes").iter().filter(|n| n["role"] == "mgmtd").cloned().collect()
}

/// Waits until exactly one instance other than `not` is primary and `standbys` stand by; returns the primary's service id.
fn wait_primary(c: &Cluster, not: Option<&str>, standbys: usize) -> String {
    let end = Instant::now() + CHANGE_BOUND;
    loop {
        let all = managers(c);
        let with = |s: &str| all.iter().filter(|n| n["status"] == s).cloned().collect::<Vec<_>>();
        if let [one] = with("primary").as_slice() {
            let id = format!("mgmtd-{}", one["id"]);
            if Some(id.as_str()) != not && with("standby").len() == standbys {
                return id;
            }
        }
        assert!(Instant::now() < end, "no other primary with {standbys} standbys:\n{all:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// From the logs: who became primary of which epoch, and the routing version it began with, in the order of epochs.
fn epochs(c: &Cluster) -> Vec<(u64, u64)> {
    let mut found = vec![];
    for i in 1..=3 {
        let log = std::fs::read_to_string(c.dir.join(format!("log/mgmtd-{i}.log"))).expect("log");
        for line in log.lines().filter(|l| l.contains(" primary ") && l.contains("epoch")) {
            let number = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}="))?;
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u64>().ok()
            };
            if let (Some(epoch), Some(version)) = (number("epoch"), number("version")) {
                found.push((epoch, version));
            }
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn the_primary_mgmtd_is_killed_and_paused_under_load() {
    primary_changes("mgmtds", &["--mgmtds", "3", "--metas", "2", "--disks", "1"]);
}

/// The lease of the primary is a record of three members of etcd.
#[test]
fn the_primary_mgmtd_is_killed_and_paused_over_etcd() {
    let small = ["--storages", "2", "--disks", "1", "--replicas", "2"];
    let shape = ["--meta-engine", "etcd", "--mgmtds", "3", "--metas", "2"];
    primary_changes("mgmtds-etcd", &[&shape[..], &small].concat());
}

/// The primary is killed, paused for longer than its lease, and ended in good order, while files are written and read.
fn primary_changes(name: &str, shape: &[&str]) {
    let c = Cluster::up_with(name, shape);
    assert_eq!(c.status()["mgmtd"].as_array().expect("addresses").len(), 3);
    let first = wait_primary(&c, None, 2);
    for n in managers(&c) {
        let said = |f: &str| !n[f].as_str().expect("text").is_empty();
        assert!(said("host") && said("release") && n["pid"].as_u64() > Some(0), "{n}");
        assert!(n["last_heartbeat_ns"].as_u64() > Some(0), "{n}");
    }
    let stall = under_load(&c, |busy| {
        c.dev("kill", &[&first]);
        let second = wait_primary(&c, Some(&first), 1);
        busy();
        c.dev("start", &[&first]);
        wait_primary(&c, Some(&first), 2);
        // Paused for longer than its lease: another one takes over, and the first must notice when it goes on.
        c.dev("kill", &["--signal", "STOP", &second]);
        let third = wait_primary(&c, Some(&second), 1);
        busy();
        c.dev("kill", &["--signal", "CONT", &second]);
        assert_ne!(wait_primary(&c, Some(&second), 2), second);
        busy();
        // Ended in good order, it hands over at once.
        c.dev("kill", &["--signal", "TERM", &third]);
        wait_primary(&c, Some(&third), 1);
        busy();
        c.dev("start", &[&third]);
        wait_primary(&c, None, 2);
    });
    eprintln!("primary mgmtd killed, paused and stopped: longest stall {stall:?}");
    assert!(stall < Duration::from_secs(20), "a stall of {stall:?}");
    c.wait_serving(CHANGE_BOUND);
    let epochs = epochs(&c);
    assert!(epochs.len() >= 4, "three changes of the primary: {epochs:?}");
    for pair in epochs.windows(2) {
        let ((before, was), (after, is)) = (pair[0], pair[1]);
        assert!(before < after, "two instances were primary of epoch {before}: {epochs:?}");
        assert!(was <= is, "the routing version went back: {epochs:?}");
    }
}

/// The managers and the storage nodes end together, as when a whole machine or cluster is shut down in order: nobody hears that the storage
/// nodes leave, and all of them come back clean, under chain versions of their former lives.
#[test]
fn storages_that_end_while_no_manager_hears_it_serve_again() {
    let c = Cluster::up_with("unheard", &["--disks", "1"]);
    let file = c.mnt.join("f");
    std::fs::write(&file, b"there").expect("written");
    let storages = ["storage-1", "storage-2", "storage-3"];
    c.dev("kill", &["mgmtd-1"]);
    for id in storages {
        c.dev("kill", &["--signal", "TERM", id]);
    }
    for id in storages {
        let ended =
            || c.services("storage").iter().all(|s| s["id"] != id || s["state"] != "running");
        eventually("the storage node ends", ended);
    }
    // They do not wait for mgmtd to come first.
    for id in storages.into_iter().chain(["mgmtd-1"]) {
        sh(
            &c.local,
            &format!(
                "{} dev start --dir {} {id} >/dev/null 2>&1 &",
                binary().display(),
                c.dir.display()
            ),
        );
    }
    let (sender, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(std::fs::read(file)));
    let read = read.recv_timeout(Duration::from_secs(60)).expect("somebody serves").expect("read");
    assert_eq!(read, b"there");
    c.wait_serving(Duration::from_secs(60));
}
