//! Names that several clients change and look at (docs/semantics.md, «Leases and recalls»).

use crate::harness::{Cluster, Mount};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
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

#[test]
fn who_works_in_a_directory_with_others_keeps_its_name() {
    let c = Cluster::up("nameshared");
    let other = Mount::new(&c, "mnt2");
    let dirs = [c.mnt.join("d"), other.path.join("d")];
    fs::create_dir(&dirs[0]).expect("mkdir");
    let lookups = || c.metric("meta", "glowfs_meta_op_seconds_count{op=\"LOOKUP\"}");
    // From the first turns on each of them changes what the other one has leased.
    let create = |i: usize| fs::File::create_new(dirs[i % 2].join(i.to_string())).expect("create");
    (0..20).for_each(|i| drop(create(i)));
    let before = lookups();
    (20..220).for_each(|i| drop(create(i)));
    let asked = lookups() - before;
    // Each new name is asked for: somebody else may have made it. The directory's is not.
    assert!((200.0..260.0).contains(&asked), "{asked} look-ups for 200 files");
    // But it is taken from whoever keeps it, as any name.
    for round in 0..3 {
        let away = c.mnt.join("e");
        assert!(dirs[1].is_dir(), "round {round}");
        fs::rename(&dirs[0], &away).expect("rename");
        assert!(!dirs[1].exists() && other.path.join("e").is_dir(), "round {round}");
        fs::rename(&away, &dirs[0]).expect("rename");
        drop(create(300 + round));
    }
}

#[test]
fn a_directory_that_another_client_has_moved_is_moved_on() {
    // With one service what is looked at here is leased, and forgotten by the kernel when the other one moves it.
    let c = Cluster::up_with("namemoved", &["--metas", "2"]);
    let other = Mount::new(&c, "mnt2");
    let mut longest = Duration::ZERO;
    for round in 0..20 {
        let (ours, theirs) = (c.mnt.join(round.to_string()), other.path.join(round.to_string()));
        for made in ["d/x", "d/z", "e", "f"] {
            fs::create_dir_all(theirs.join(made)).expect("mkdir");
        }
        // Until here our kernel knows none of them.
        for known in ["d/x", "d/z", "e", "f"] {
            assert!(ours.join(known).is_dir(), "round {round}");
        }
        let inode = ours.join("d/x").symlink_metadata().expect("there").ino();
        let theirs = |from: &str, to: &str| fs::rename(theirs.join(from), theirs.join(to));
        theirs("d/x", "e/x").expect("moved there");
        let to = match round % 4 {
            0 => "f/y",
            // Back into the directory that it came from.
            1 => "d/y",
            // Over another one that was moved there.
            2 => {
                theirs("d/z", "f/z").expect("moved there");
                "f/z"
            }
            // Where we have moved it ourselves, and they back.
            _ => {
                fs::rename(ours.join("e/x"), ours.join("f/w")).expect("moved here");
                theirs("f/w", "d/w").expect("moved there");
                theirs("d/w", "e/x").expect("moved there");
                "f/y"
            }
        };
        let began = Instant::now();
        let moved = fs::rename(ours.join("e/x"), ours.join(to));
        longest = longest.max(began.elapsed());
        moved.unwrap_or_else(|e| panic!("round {round}, to {to}: {e}"));
        assert_eq!(ours.join(to).symlink_metadata().expect("there").ino(), inode);
        assert!(!ours.join("e/x").exists() && !ours.join("d/x").exists(), "round {round}");
    }
    eprintln!("longest rename: {longest:?}");
    assert!(longest < CALL_MAX, "a rename took {longest:?}");
}

#[test]
fn who_works_where_a_moved_directory_was_is_left_alone() {
    let c = Cluster::up_with("nametaken", &["--metas", "2"]);
    let other = Mount::new(&c, "mnt2");
    let (ours, theirs) = (&c.mnt, &other.path);
    for made in ["d/x", "e"] {
        fs::create_dir_all(theirs.join(made)).expect("mkdir");
    }
    assert!(ours.join("d/x").is_dir() && ours.join("e").is_dir());
    fs::rename(theirs.join("d/x"), theirs.join("e/x")).expect("moved there");
    fs::create_dir(theirs.join("d/x")).expect("another one in its place");
    // It is found moved, and somebody begins to work where it was.
    assert!(ours.join("e/x").is_dir());
    let mut works = Command::new("sleep");
    let mut works = works.arg("60").current_dir(ours.join("d/x")).spawn().expect("spawned");
    let works_in = || fs::read_link(format!("/proc/{}/cwd", works.id())).expect("a directory");
    let before = works_in();
    assert!(before.ends_with("d/x"), "{}", before.display());
    // Who was told of the one that moved comes again, as after a rename that failed.
    for _ in 0..3 {
        assert!(ours.join("e/x").is_dir());
    }
    std::thread::sleep(Duration::from_millis(200));
    let after = works_in();
    works.kill().and_then(|()| works.wait()).expect("ended");
    assert_eq!(after, before, "its name was forgotten");
}

/// The longest that a call may take here, on a busy machine. One that waited for the end of a lease took a second; some waited for each other, for ever.
const CALL_MAX: Duration = Duration::from_secs(5);

/// All of these do something at once, again and again; returns how long each call took at most. A call that does not end ends the test.
fn at_once(rounds: usize, what: Vec<Box<dyn FnMut(usize) + Send>>) -> Duration {
    let start = Arc::new(Barrier::new(what.len()));
    let (done, ends) = mpsc::channel();
    let calls = rounds * what.len();
    for mut each in what {
        let (start, done) = (start.clone(), done.clone());
        std::thread::spawn(move || {
            for round in 0..rounds {
                start.wait();
                let began = Instant::now();
                each(round);
                let _ = done.send(began.elapsed());
            }
        });
    }
    let next = |_| ends.recv_timeout(4 * CALL_MAX).expect("a call does not end");
    (0..calls).map(next).max().unwrap_or_default()
}

#[test]
fn clients_that_fail_of_each_other_do_not_wait_for_each_other() {
    // Where transactions take their time, calls overlap in them.
    let c = Cluster::up_with("namefail", &["--meta-engine", "etcd"]);
    let mounts = [Mount::new(&c, "mnt2"), Mount::new(&c, "mnt3")];
    let dirs: Vec<PathBuf> =
        [&c.mnt, &mounts[0].path, &mounts[1].path].iter().map(|m| m.join("d")).collect();
    fs::create_dir(&dirs[0]).expect("mkdir");
    // All take away the same file, by other calls in turn; one of them can.
    let make = dirs[0].join("f");
    let taking = |(i, dir): (usize, &PathBuf)| -> Box<dyn FnMut(usize) + Send> {
        let (dir, make) = (dir.clone(), make.clone());
        Box::new(move |round| match (round % 4, i) {
            (0, 0) => fs::write(&make, "f").expect("write"),
            (0, _) => {}
            (turn, _) if (turn + i) % 2 == 0 => drop(fs::remove_file(dir.join("f"))),
            _ => drop(fs::rename(dir.join("f"), dir.join(format!("g{i}")))),
        })
    };
    let longest = at_once(100, dirs.iter().enumerate().map(taking).collect());
    assert!(longest < CALL_MAX, "a call took {longest:?}");
    // Directories that are not empty cannot be removed.
    for full in ["x", "y"] {
        fs::create_dir_all(dirs[0].join(full).join("z")).expect("mkdir");
    }
    let removing = |(i, dir): (usize, &PathBuf)| -> Box<dyn FnMut(usize) + Send> {
        let dir = dir.clone();
        Box::new(move |round| match i {
            0 => fs::write(dir.join(format!("h{round}")), "h").expect("write"),
            _ => drop(fs::remove_dir(dir.join(["x", "y"][i % 2])).expect_err("not empty")),
        })
    };
    let longest = at_once(25, dirs.iter().enumerate().map(removing).collect());
    assert!(longest < CALL_MAX, "a call took {longest:?}");
}

/// Makes, renames and removes files in one view of a directory while the other view is listed and files are made there. How long did a file take
/// at most?
fn longest_beside_a_looker(ours: &Path, theirs: &Path) -> Duration {
    let stop = AtomicBool::new(false);
    let (mut turns, mut longest) = (0, Duration::ZERO);
    std::thread::scope(|s| {
        let looking = s.spawn(|| {
            let mut made = 0;
            while !stop.load(Ordering::Relaxed) {
                // A listing leases what it names; the names that are changed just now are not asked for one by one.
                let _ = fs::read_dir(theirs).expect("list").flatten().count();
                let _ = theirs.join("missing").symlink_metadata();
                made += usize::from(fs::File::create(theirs.join(format!("o{made}"))).is_ok());
            }
            made
        });
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            let began = Instant::now();
            let (a, b) = (ours.join(format!("a{turns}")), ours.join(format!("b{turns}")));
            fs::write(&a, "a").expect("write");
            fs::rename(&a, &b).expect("rename");
            fs::remove_file(&b).expect("remove");
            longest = longest.max(began.elapsed());
            turns += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let made = looking.join().expect("join");
        eprintln!("{turns} turns, {made} files made, longest turn {longest:?}");
    });
    longest
}

#[test]
fn who_looks_at_a_directory_does_not_hold_up_who_changes_it() {
    let c = Cluster::up("namelook");
    let other = Mount::new(&c, "mnt2");
    let waited = || {
        ["recalls_waited", "names_held_up"]
            .map(|n| c.metric("meta", &format!("glowfs_meta_{n}_total")))
    };
    let quiet = |dir: &&str| {
        let before = waited();
        fs::create_dir(c.mnt.join(dir)).expect("mkdir");
        let longest = longest_beside_a_looker(&c.mnt.join(dir), &other.path.join(dir));
        eprintln!("recalls that waited for a lease to end, or for a kernel: {:?}", waited());
        longest.as_millis() < 900 && waited() == before
    };
    // Leases last 1 s. (A machine that is busy may stand still for as long, but not again and again.)
    assert!(["d", "e", "f"].iter().any(quiet), "each time somebody waited for a lease to end");
}
