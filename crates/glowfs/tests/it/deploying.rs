//! A cluster by hand, from the files of `docs/deploying.md` as they stand there: other addresses, other directories, nothing else.

use crate::harness::{Room, Scratch, binary, eventually, must, run, sh};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DOCUMENT: &str = include_str!("../../../../docs/deploying.md");
/// Machines of the document that get storage here, of five.
const STORAGES: u64 = 3;

/// The file of the document that begins with a node id of this role: mgmtd 1, metadata 101, storage 1001.
fn file_of(node: u64) -> &'static str {
    let mut files = DOCUMENT.split("```toml\n").skip(1).filter_map(|f| f.split("```").next());
    files.find(|f| f.starts_with(&format!("node_id = {node}\n"))).expect("the document has it")
}

/// Five machines on the loopback network, and their processes.
struct Machines {
    /// What stands for `10.0.0` of the document: this test's own.
    network: String,
    scratch: Scratch,
    running: Vec<(u64, Child)>,
    _room: Room,
}

impl Machines {
    fn new() -> Self {
        let (room, pid) = (Room::one(), std::process::id());
        let network = format!("127.{}.{}", 64 + pid / 200 % 128, 1 + pid % 200);
        let m = Self { network, scratch: Scratch::new("deploying"), running: vec![], _room: room };
        sh(
            &m.scratch.path,
            "for f in service root; do head -c 32 /dev/urandom | base64 > $f.token; done; mkdir mnt",
        );
        m
    }
    /// A file of the document for node `first + machine - 1`, on that machine.
    fn config(&self, role: &str, first: u64, machine: u64) -> PathBuf {
        let dir = self.scratch.path.display().to_string();
        let text: Vec<_> = file_of(first)
            .lines()
            .map(|line| match line.split(" = ").next() {
                Some("node_id") => format!("node_id = {}", first + machine - 1),
                Some("listen" | "http") => line.replace("10.0.0.1:", &format!("10.0.0.{machine}:")),
                _ => line.to_owned(),
            })
            .map(|line| {
                line.replace("10.0.0.", &format!("{}.", self.network))
                    .replace("/etc/glowfs", &dir)
                    .replace("/data/", &format!("{dir}/machine-{machine}/"))
            })
            .collect();
        let file = self.scratch.path.join(format!("{role}-{machine}.toml"));
        std::fs::write(&file, text.join("\n")).expect("file");
        file
    }
    fn start(&mut self, role: &str, first: u64, machine: u64, more: &[&str]) {
        let config = self.config(role, first, machine);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(config.with_extension("log"))
            .expect("log");
        let child = Command::new(binary())
            .arg(role)
            .arg("--config")
            .arg(&config)
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("a service");
        self.running.push((first + machine - 1, child));
    }
    fn end(&mut self, node: u64) {
        let at = self.running.iter().position(|(n, _)| *n == node).expect("it runs");
        let (_, mut child) = self.running.remove(at);
        sh(Path::new("/"), &format!("kill {}", child.id()));
        child.wait().expect("ends");
    }
    fn glowfs(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args);
        for machine in 1..=3 {
            command.arg("--mgmtd").arg(format!("{}.{machine}:9000", self.network));
        }
        command.arg("--token-file").arg(self.scratch.path.join("root.token"));
        command
    }
    fn admin(&self, args: &[&str]) -> Result<Value, String> {
        // Which cluster it is may be said behind the command.
        let o = run(&mut self.glowfs(&[&["admin", "--json"], args].concat()));
        if o.code != 0 {
            return Err(o.err);
        }
        serde_json::from_str(&o.out).map_err(|e| e.to_string())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.scratch.path.join("mnt")).output();
        if std::thread::panicking() {
            let _ = Command::new("bash")
                .args(["-c", "tail -n 20 *.log >&2"])
                .current_dir(&self.scratch.path)
                .status();
        }
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_files_of_the_document_make_a_cluster() {
    let mut m = Machines::new();
    m.start("meta", 101, 1, &["--format"]);
    for machine in 1..=3 {
        m.start("mgmtd", 1, machine, &[]);
    }
    for machine in 1..=STORAGES {
        m.start("storage", 1001, machine, &[]);
    }
    let table = ["create-table", "--replicas", "3", "--chains", "8"];
    eventually("all nodes are there", || {
        let nodes = m.admin(&["list-nodes"]).unwrap_or_default();
        let count = |role| {
            let of = nodes.as_array().into_iter().flatten();
            let here = ["active", "primary", "standby"].map(Value::from);
            of.filter(|n| n["role"] == role && here.contains(&n["status"])).count() as u64
        };
        (count("storage"), count("meta"), count("mgmtd")) == (STORAGES, 1, 3)
    });
    m.admin(&["status"]).expect_err("without a table not all is well");
    m.admin(&table).expect("a table");
    eventually("all is well", || m.admin(&["status"]).is_ok());
    let mount = m.scratch.path.join("mnt");
    must(
        m.glowfs(&["mount", "--background"])
            .arg("--log-file")
            .arg(m.scratch.path.join("mount.log"))
            .arg(&mount),
    );
    sh(
        &m.scratch.path,
        "head -c 20000000 /dev/urandom > local; cp local mnt/copy; cmp local mnt/copy; stat -c %a mnt | grep -qx 1777",
    );
    // The metadata service comes back without --format, and a rolling start of the others is not seen.
    m.end(101);
    m.start("meta", 101, 1, &[]);
    for machine in 1..=STORAGES {
        m.end(1000 + machine);
        m.start("storage", 1001, machine, &[]);
        eventually("all chains are complete", || {
            let chains = m.admin(&["list-chains"]).unwrap_or_default();
            let chains: Vec<_> = chains.as_array().into_iter().flatten().collect();
            !chains.is_empty() && chains.iter().all(|c| c["status"] == "complete")
        });
        sh(&m.scratch.path, "cmp local mnt/copy; echo more >> mnt/log");
    }
    grows_and_shrinks(&mut m);
    must(Command::new("umount").arg(&mount));
}

/// Two more machines take their share of what is written from then on; one of them leaves again.
fn grows_and_shrinks(m: &mut Machines) {
    for machine in 4..=5 {
        m.start("storage", 1001, machine, &[]);
    }
    let grow = ["grow-table", "--chains", "16"];
    eventually("the table has grown", || {
        let explained = m.admin(&[&grow[..], &["--dry-run"]].concat()).unwrap_or_default();
        let disks = explained["explanation"].as_str().unwrap_or_default();
        disks.contains("node 1004 disk") && disks.contains("node 1005 disk")
    });
    m.admin(&grow).expect("grown");
    let files = |test: &str| format!("for i in $(seq 24); do {test} || exit 1; done");
    sh(&m.scratch.path, &files("head -c 700000 local | tail -c $((600000 + i)) > mnt/new-$i"));
    let whole = files("head -c 700000 local | tail -c $((600000 + i)) | cmp - mnt/new-$i");
    sh(&m.scratch.path, &format!("{whole}; cmp local mnt/copy"));
    let used = |m: &Machines, node: u64| {
        let targets = m.admin(&["list-targets"]).unwrap_or_default();
        let of = targets.as_array().into_iter().flatten().filter(|t| t["node"] == node);
        of.filter_map(|t| t["used_bytes"].as_u64()).sum::<u64>()
    };
    eventually("the new ones hold a part of it", || used(m, 1004) > 0 && used(m, 1005) > 0);

    // What was there before moves, too, if it is told to.
    m.admin(&["set-config", "mgmtd", "balance=true"]).expect("set");
    let on = |m: &Machines, node: u64| {
        let targets = m.admin(&["list-targets"]).unwrap_or_default();
        targets.as_array().into_iter().flatten().filter(|t| t["node"] == node).count()
    };
    // 48 targets on 5 machines.
    eventually("it is even", || {
        let all: Vec<_> = (1001..=1005).map(|n| on(m, n)).collect();
        all.iter().all(|n| [9, 10].contains(n)) && m.admin(&["status"]).is_ok()
    });
    sh(&m.scratch.path, &format!("{whole}; cmp local mnt/copy"));
    m.admin(&["fsck"]).expect("sound");
    m.admin(&["remove-node", "1005", "--yes"]).expect_err("it lives");
    m.admin(&["drain", "1005", "--wait"]).expect("emptied");
    m.end(1005);
    eventually("it is forgotten", || m.admin(&["remove-node", "1005", "--yes"]).is_ok());
    let nodes = m.admin(&["list-nodes"]).expect("nodes");
    assert!(nodes.as_array().is_some_and(|n| n.iter().all(|n| n["id"] != 1005)), "{nodes}");
    sh(&m.scratch.path, &format!("{whole}; cmp local mnt/copy"));
}
