//! Every service is stopped in good order and started again, one after the other, under load: no operation of an application fails.
//!
//! With `GLOWFS_UPGRADE_FROM` (the binary of an older build; `scripts/upgrade`) the cluster is made by that one, and each service comes
//! back as the build under test; at last all of it, the mount too, is of this build and finds everything there.

use crate::faults::under_load;
use crate::harness::{Cluster, binary, sh};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Files that are left of those that [`namer`] makes.
const KEPT: u64 = 20;

fn text(file: u64) -> String {
    format!("{file}").repeat(1000)
}

/// Makes, moves, reads and removes names until told to stop; none of it may fail. How many files it made.
fn namer(dir: PathBuf, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            let (a, b) = (dir.join(format!("a{done}")), dir.join(format!("b{done}")));
            std::fs::write(&a, text(done)).expect("write");
            std::fs::rename(&a, &b).expect("rename");
            assert_eq!(std::fs::read_to_string(&b).expect("read"), text(done));
            if done >= KEPT {
                std::fs::remove_file(dir.join(format!("b{}", done - KEPT))).expect("remove");
            }
            done += 1;
        }
        done
    })
}

fn service(c: &Cluster, id: &str) -> Value {
    let status = c.status();
    let all = status["services"].as_array().expect("services");
    all.iter().find(|s| s["id"] == id).expect("service").clone()
}

/// Stops a service as an operator would, and starts it as the build under test. One shell for all of it: this test's threads wait in
/// the mount, so it must not wait for them.
fn restart(c: &Cluster, id: &str) {
    let pid = service(c, id)["pid"].clone();
    let glowfs = format!("{} dev", binary().display());
    let cluster = c.dir.display();
    sh(
        &c.local,
        &format!(
            "{glowfs} kill --signal TERM --dir {cluster} {id}; \
             for i in $(seq 1200); do grep -qs '^State:.[^Z]' /proc/{pid}/status || break; sleep 0.05; done; \
             {glowfs} start --dir {cluster} {id}"
        ),
    );
    let pid = service(c, id)["pid"].clone();
    let runs = std::fs::read_link(format!("/proc/{pid}/exe")).expect("runs");
    assert_eq!(runs, binary().canonicalize().expect("binary"), "{id}");
}

fn old_build() -> Option<PathBuf> {
    std::env::var_os("GLOWFS_UPGRADE_FROM").map(PathBuf::from)
}

#[test]
fn a_rolling_restart_of_every_service_fails_no_operation() {
    let old = old_build();
    let c = Cluster::up_by(old.as_deref().unwrap_or(binary()), "rolling");
    let dir = c.mnt.join("names");
    std::fs::create_dir(&dir).expect("directory");
    let stop = Arc::new(AtomicBool::new(false));
    let names = namer(dir.clone(), stop.clone());
    let ids = ["storage-1", "storage-2", "storage-3", "mgmtd-1", "meta-1"];
    let stall = under_load(&c, |busy| {
        for id in ids {
            restart(&c, id);
            c.wait_serving(Duration::from_secs(60));
            busy();
        }
    });
    stop.store(true, Ordering::Relaxed);
    let named = names.join().expect("an operation on names failed");
    eprintln!("rolling restart: longest stall {stall:?}, {named} files");
    assert!(named > 10 && stall < Duration::from_secs(20), "{named} files, a stall of {stall:?}");
    if old.is_some() {
        all_anew(&c, &dir, named);
    }
}

/// The rest of an upgrade: the mount comes back as the build under test, and then all does once more.
fn all_anew(c: &Cluster, dir: &Path, named: u64) {
    let sums = sh(&c.mnt, "md5sum load*");
    let all_there = |after: &str| {
        assert_eq!(sh(&c.mnt, "md5sum load*"), sums, "after {after}");
        for file in named.saturating_sub(KEPT)..named {
            let path = dir.join(format!("b{file}"));
            assert_eq!(std::fs::read_to_string(path).expect("read"), text(file), "after {after}");
        }
        c.admin(&["fsck"]);
    };
    restart(c, "mount");
    all_there("the mount");
    c.dev("down", &[]);
    c.dev("up", &[]);
    all_there("everything");
    under_load(c, |busy| busy());
}
