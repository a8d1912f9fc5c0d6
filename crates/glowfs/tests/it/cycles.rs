//! Directories that two clients move into each other at the same time: none comes to lie in itself, none is lost, and the tree stays a tree
//! (docs/semantics.md, «Files that are open while others change them»).

use crate::harness::{Cluster, Mount};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Directories: no path of them can be longer.
const DIRS: usize = 8;
/// How long they are moved in circles, and how long at random.
const CIRCLES: Duration = Duration::from_secs(3);
const AT_RANDOM: Duration = Duration::from_secs(3);

fn name(i: usize) -> String {
    format!("d{i}")
}

/// Where each directory is found from the root. What goes away meanwhile is missing; a path that is longer than there are directories goes through one of them twice.
fn places(root: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    fn walk(dir: &Path, depth: usize, found: &mut BTreeMap<String, Vec<PathBuf>>) {
        if depth > DIRS {
            return;
        }
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().expect("UTF-8");
            found.entry(name).or_default().push(entry.path());
            walk(&entry.path(), depth + 1, found);
        }
    }
    let mut found = BTreeMap::new();
    walk(root, 0, &mut found);
    found
}

/// Each directory is there once, for both clients, at the same place.
#[track_caller]
fn all_are_there_once(roots: [&Path; 2], inodes: &BTreeMap<String, u64>, when: &str) {
    use std::os::unix::fs::MetadataExt;
    let seen = roots.map(|root| {
        let places = places(root);
        assert!(places.values().all(|at| at.len() == 1), "{when}: not once: {places:#?}");
        let one = |(name, at): (String, Vec<PathBuf>)| {
            let inode = at[0].symlink_metadata().expect("there").ino();
            assert_eq!(inodes.get(&name), Some(&inode), "{when}: {}", at[0].display());
            (name, at[0].strip_prefix(root).expect("below").to_owned())
        };
        places.into_iter().map(one).collect::<BTreeMap<_, _>>()
    });
    assert_eq!(seen[0], seen[1], "{when}");
    assert_eq!(seen[0].len(), DIRS, "{when}: lost: {seen:#?}");
}

/// What a rename may say that somebody else was faster than. With several services also that the kernel has a directory where it is no more ([G123]).
fn overtaken(e: &io::Error) -> bool {
    let errors = [Errno::INVAL, Errno::NOENT, Errno::LOOP, Errno::STALE];
    errors.iter().any(|known| e.raw_os_error() == Some(known.raw_os_error()))
}

/// Moves all of them to the root again.
fn flatten(root: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let mut deep: Vec<_> = places(root).into_values().flatten().collect();
        deep.retain(|at| at.parent() != Some(root));
        // The deepest first: the others' paths stay.
        deep.sort_by_key(|at| std::cmp::Reverse(at.components().count()));
        let moved = deep
            .iter()
            .try_for_each(|at| fs::rename(at, root.join(at.file_name().expect("a name"))));
        match moved {
            Ok(()) => return,
            Err(e) if overtaken(&e) && Instant::now() < end => {}
            Err(e) => panic!("moved back: {e}: {deep:#?}"),
        }
    }
}

/// As many as there are in a circle, each into the next one, all at once: the first one can, and not all can.
fn in_circles(roots: [&Path; 2], inodes: &BTreeMap<String, u64>) {
    let (end, mut succeeded) = (Instant::now() + CIRCLES, BTreeMap::new());
    for round in 0.. {
        if Instant::now() > end && round > 10 {
            break;
        }
        let many = 2 + round % 3;
        let start = Barrier::new(many);
        let moves: Vec<_> = std::thread::scope(|s| {
            let of = |i: usize| {
                let (root, start) = (roots[(i + round) % 2], &start);
                s.spawn(move || {
                    let (from, into) = (root.join(name(i)), root.join(name((i + 1) % many)));
                    start.wait();
                    fs::rename(&from, into.join(name(i)))
                })
            };
            let all: Vec<_> = (0..many).map(of).collect();
            all.into_iter().map(|t| t.join().expect("join")).collect()
        });
        let when = format!("round {round}: {moves:?}");
        let done = moves.iter().filter(|m| m.is_ok()).count();
        assert!((1..many).contains(&done), "{when}");
        assert!(moves.iter().all(|m| m.as_ref().err().is_none_or(overtaken)), "{when}");
        *succeeded.entry((many, done)).or_insert(0) += 1;
        all_are_there_once(roots, inodes, &when);
        flatten(roots[round % 2]);
    }
    eprintln!("circles of so many, moved of them: {succeeded:?}");
}

/// Each of four moves whichever it likes into whichever it likes, wherever they are.
fn at_random(roots: [&Path; 2]) {
    let (end, moved) = (Instant::now() + AT_RANDOM, AtomicU64::new(0));
    std::thread::scope(|s| {
        for who in 0..4usize {
            let (root, moved) = (roots[who % 2], &moved);
            s.spawn(move || {
                let mut state = who as u64 + 1;
                let mut random = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as usize % (DIRS + 1)
                };
                while Instant::now() < end {
                    let (what, into, places) = (random() % DIRS, random(), places(root));
                    let at = |i: usize| places.get(&name(i)).map(|at| at[0].clone());
                    let into = if into == DIRS { Some(root.to_owned()) } else { at(into) };
                    let (Some(from), Some(into)) = (at(what), into) else { continue };
                    match fs::rename(&from, into.join(name(what))) {
                        Ok(()) => drop(moved.fetch_add(1, Ordering::Relaxed)),
                        Err(e) => assert!(overtaken(&e), "{}: {e}", from.display()),
                    }
                }
            });
        }
    });
    let moved = moved.into_inner();
    eprintln!("moved {moved} times");
    assert!(moved > 10, "{moved}");
}

fn the_tree_stays_a_tree(c: &Cluster) {
    use std::os::unix::fs::MetadataExt;
    let other = Mount::new(c, "mnt2");
    let top = c.mnt.join("top");
    let (ours, theirs) = (top.as_path(), &other.path.join("top"));
    fs::create_dir(ours).expect("mkdir");
    let made = (0..DIRS).map(|i| {
        fs::create_dir(ours.join(name(i))).expect("mkdir");
        (name(i), ours.join(name(i)).symlink_metadata().expect("there").ino())
    });
    let inodes: BTreeMap<_, _> = made.collect();
    in_circles([ours, theirs], &inodes);
    at_random([ours, theirs]);
    all_are_there_once([ours, theirs], &inodes, "at the end");
    let (clean, found) = c.admin_tried(&["--timeout", "60", "fsck"]);
    assert!(clean && found["problems"] == serde_json::json!([]), "{found:#}");
    flatten(theirs);
    all_are_there_once([ours, theirs], &inodes, "flat");
    assert_eq!(ours.symlink_metadata().expect("there").nlink(), 2 + DIRS as u64);
}

#[test]
fn directories_are_moved_into_each_other() {
    the_tree_stays_a_tree(&Cluster::up("cycles"));
}

#[test]
fn directories_are_moved_into_each_other_by_two_metadata_services() {
    the_tree_stays_a_tree(&Cluster::up_with("cycles2", &["--metas", "2"]));
}
