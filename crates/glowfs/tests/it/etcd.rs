//! A cluster whose metadata is in etcd: real programs go on while each member of etcd is killed and started again.

use crate::harness::{Cluster, make_tree, sh};
use crate::{fio, programs, sqlite};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long one round of the load may take, faults included.
const ROUND_BOUND: Duration = Duration::from_secs(120);

/// Rounds of copying, comparing, a database, renaming and removing; any error ends it.
const LOAD: &str = r#"
i=0
while [ ! -e stop ]; do
    i=$((i+1)); t=$MNT/t$i
    cp -a tree $t
    diff -r tree $t
    sqlite3 $t/db 'create table x(a); insert into x values(1),(2); insert into x values(3);' >/dev/null
    [ "$(sqlite3 $t/db 'select sum(a) from x')" = 6 ]
    mv $t/d1 $t/moved; rm -r $t/moved
    echo $i > progress.new; mv progress.new progress
done
"#;

struct Load {
    local: PathBuf,
    thread: Option<std::thread::JoinHandle<String>>,
}

impl Load {
    fn start(c: &Cluster) -> Self {
        let (local, mnt) = (c.local.clone(), c.mnt.clone());
        let thread =
            std::thread::spawn(move || sh(&local, &format!("MNT={}\n{LOAD}", mnt.display())));
        Self { local: c.local.clone(), thread: Some(thread) }
    }
    fn rounds(&self) -> u64 {
        let text = std::fs::read_to_string(self.local.join("progress")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
    /// Waits until a round that was in work now has ended, and fails if the load did.
    fn goes_on(&mut self, what: &str) {
        let (before, end) = (self.rounds(), Instant::now() + ROUND_BOUND);
        while self.rounds() == before {
            if self.thread.as_ref().is_some_and(std::thread::JoinHandle::is_finished) {
                self.thread.take().map(std::thread::JoinHandle::join);
                panic!("the load failed {what}");
            }
            assert!(Instant::now() < end, "no progress {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    fn stop(mut self) -> u64 {
        std::fs::write(self.local.join("stop"), "").expect("stop file");
        self.thread.take().expect("it runs").join().expect("the load ends well");
        self.rounds()
    }
}

/// Whether a process runs; one that has ended and was not collected does not.
fn alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z")
}

const SHAPE: [&str; 8] =
    ["--meta-engine", "etcd", "--storages", "2", "--disks", "1", "--replicas", "2"];

#[test]
fn etcd_members_die_under_load() {
    let c = Cluster::up_with("etcd", &SHAPE);
    let members = c.services("etcd");
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(members.iter().all(|m| m["state"] == "running"), "{members:?}");
    make_tree(&c.local.join("tree"), 12);
    let mut load = Load::start(&c);
    load.goes_on("before any fault");
    for m in &members {
        let id = m["id"].as_str().expect("id");
        c.dev("kill", &[id]);
        load.goes_on(&format!("after {id} was killed"));
        c.dev("start", &[id]);
        load.goes_on(&format!("after {id} was started again"));
    }
    let rounds = load.stop();
    c.dev("down", &[]);
    assert!(c.services("etcd").iter().all(|m| m["state"] == "down"));
    // Everything is there afterwards, in the same engine.
    c.dev("up", &[]);
    sh(
        &c.local,
        &format!(
            "for i in $(seq 1 {rounds}); do diff -r --exclude db --exclude d1 tree {}/t$i; done",
            c.mnt.display()
        ),
    );
    let pids: Vec<u64> =
        c.services("etcd").iter().map(|m| m["pid"].as_u64().expect("pid")).collect();
    let dir = c.dir.clone();
    c.dev("destroy", &["--yes"]);
    assert!(!dir.exists() && !pids.iter().any(|p| alive(*p)), "destroy leaves nothing");
}

/// Kills each member and starts it again, until nothing runs any more that is to bear it.
fn strike(c: &Cluster, over: &AtomicBool, struck: &AtomicUsize) {
    let members = c.services("etcd");
    for m in members.iter().cycle() {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let id = m["id"].as_str().expect("id");
        c.dev("kill", &[id]);
        std::thread::sleep(Duration::from_secs(1));
        c.dev("start", &[id]);
        // With two of three away nobody can go on, and that is not the question here; nor are elections all the time.
        std::thread::sleep(Duration::from_secs(4));
        struck.fetch_add(1, Ordering::Relaxed);
    }
}

/// Says that it is over, also if a test fails.
struct Over<'a>(&'a AtomicBool);
impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The programs of `programs`, `sqlite` and `fio`, with less of everything: each answer of a metadata service is flushed by two members.
#[test]
fn real_programs_go_on_while_each_member_dies() {
    let c = Cluster::up_with("etcdprog", &SHAPE);
    let (over, struck) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|s| {
        let strikes = s.spawn(|| strike(&c, &over, &struck));
        let _over = Over(&over);
        let mut turn = 0;
        while turn == 0 || (struck.load(Ordering::Relaxed) < 3 && !strikes.is_finished()) {
            let (local, on) = (c.local.join(turn.to_string()), c.mnt.join(turn.to_string()));
            for dir in [&local, &on] {
                std::fs::create_dir(dir).expect("mkdir");
            }
            let began = Instant::now();
            programs::git(&local, &on, 8);
            let git = began.elapsed();
            sqlite::five_writers(&on, "DELETE");
            let sqlite = began.elapsed();
            fio::verify_some(&["rand-4k-buffered", "rw-4k-mixed"], &on);
            eprintln!("until git, sqlite, fio: {git:?} {sqlite:?} {:?}", began.elapsed());
            turn += 1;
        }
    });
    eprintln!("{} deaths", struck.into_inner());
}
