//! Names that several clients change and look at (docs/semantics.md, «Leases and recalls»).

use crate::harness::{Cluster, Mount};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The inodes that `a` and `b` lead to.
fn inodes(dir: &Path) -> [Option<u64>; 2] {
    ["a", "b"].map(|name| dir.join(name).symlink_metadata().ok().map(|m| m.ino()))
}

#[test]
fn a_change_is_seen_first_where_it_is_made() {
    let c = Cluster::up("nameorder");
    let (other, third) = (Mount::new(&c, "mnt2"), Mount::new(&c, "mnt3"));
    let dir = |mount: &Path| mount.join("d");
    let (ours, theirs) = (dir(&c.mnt), dir(&other.path));
    fs::create_dir(&ours).expect("mkdir");
    for round in 0..6 {
        fs::write(ours.join("a"), "a").expect("write");
        if round % 3 == 2 {
            fs::write(ours.join("b"), "b").expect("write");
        }
        // Long enough for leases to be given again.
        std::thread::sleep(Duration::from_millis(2100));
        // The change cannot end before the lease of one that does not answer.
        let before = inodes(&dir(&third.path));
        third.signal(Signal::STOP);
        assert_eq!(inodes(&ours), before, "leased here, too");
        let from = ours.join("a");
        let changing = std::thread::spawn(move || match round % 3 {
            0 => fs::remove_file(&from),
            _ => fs::rename(&from, from.with_file_name("b")),
        });
        let end = Instant::now() + Duration::from_secs(20);
        while inodes(&theirs)[0].is_some() {
            assert!(Instant::now() < end, "round {round}: the change does not come about");
        }
        let (there, here) = (inodes(&theirs), inodes(&ours));
        third.signal(Signal::CONT);
        changing.join().expect("join").expect("change");
        assert_eq!(here, there, "round {round}: another client saw the change before we did");
        assert_eq!(inodes(&ours), there, "round {round}");
        let _ = fs::remove_file(ours.join("b"));
    }
    assert!(c.metric("meta", "glowfs_meta_name_finishes_total") > 0.0, "nobody had to wait");
}

#[test]
fn clients_that_rename_in_one_directory_do_not_hold_each_other_up_for_long() {
    let c = Cluster::up("namefight");
    let other = Mount::new(&c, "mnt2");
    let dirs = [c.mnt.join("d"), other.path.join("d")];
    fs::create_dir(&dirs[0]).expect("mkdir");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let waited = || c.metric("meta", "glowfs_meta_recalls_waited_total");
    std::thread::scope(|s| {
        for (i, dir) in dirs.iter().cycle().take(4).enumerate() {
            let (stop, done) = (&stop, &done);
            s.spawn(move || {
                let names = ["a", "b"].map(|n| dir.join(n));
                for turn in i.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // Whoever comes late finds nothing, or something.
                    let (from, to) = (&names[turn % 2], &names[(turn + 1) % 2]);
                    let _ = fs::File::create_new(from);
                    let _ = from.symlink_metadata();
                    let _ = fs::rename(from, to);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // At first they do, until their leases have ended; then they have none.
        std::thread::sleep(Duration::from_secs(4));
        let before = (waited(), done.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_secs(4));
        let after = (waited(), done.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        eprintln!("recalls that waited for a lease to end, turns: {before:?}, then {after:?}");
        assert_eq!(after.0, before.0, "recalls waited for leases to end");
        assert!(after.1 > before.1 + 20, "{before:?} {after:?}");
    });
}
