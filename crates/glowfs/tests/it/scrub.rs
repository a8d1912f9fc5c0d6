//! Bytes that turn over at rest on one replica of a running cluster: readers get the right ones, and the scrub repairs.

use crate::harness::{Cluster, sh};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Turns a byte over in every second block of a disk's block files, as far as something is there. Returns how many.
fn damage(disk: &std::path::Path) -> u64 {
    let mut flipped = 0;
    for entry in std::fs::read_dir(disk).expect("a disk").map(|e| e.expect("an entry")) {
        if !entry.file_name().to_string_lossy().starts_with("blocks-") {
            continue;
        }
        let file =
            std::fs::File::options().read(true).write(true).open(entry.path()).expect("a file");
        let len = file.metadata().expect("its length").len();
        for at in (0..len).step_by(8192) {
            let mut byte = [0];
            if file.read_at(&mut byte, at + 77).expect("read") == 1 {
                file.write_all_at(&[byte[0] ^ 0x40], at + 77).expect("written");
                flipped += 1;
            }
        }
        file.sync_all().expect("synced");
    }
    flipped
}

#[test]
fn the_scrub_finds_and_repairs_planted_damage() {
    let c = Cluster::up("scrub");
    sh(
        &c.mnt,
        "for i in 1 2 3 4; do dd if=/dev/urandom of=f$i bs=1M count=3 iflag=fullblock status=none; done; sync; sha256sum f? > sums",
    );
    let disks: Vec<_> = find_disks(&c.dir);
    assert!(damage(&disks[0]) > 50, "{disks:?}");
    // Whatever a reader is given is right, and it is given something.
    sh(&c.mnt, "sha256sum -c --quiet sums");
    let sum = |field: &str| -> u64 {
        let rows = c.admin(&["scrub"]);
        rows.as_array().expect("rows").iter().map(|r| r[field].as_u64().expect("a number")).sum()
    };
    let targets = c.admin(&["scrub"]).as_array().expect("rows").len() as u64;
    let pass = || {
        let before = sum("passes");
        c.admin(&["scrub", "--now"]);
        let began = Instant::now();
        while sum("passes") < before + targets {
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "the pass does not end: {}",
                c.logs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    pass();
    assert!(sum("repaired") > 0 && sum("failed") == 0, "{}", c.admin(&["scrub"]));
    let found = sum("found");
    pass();
    assert_eq!(sum("found"), found, "nothing is left: {}", c.admin(&["scrub"]));
    sh(&c.mnt, "sha256sum -c --quiet sums");
    assert!(c.metric("storage", "glowfs_storage_repaired_total") > 0.0);
}

/// The directories of the cluster that hold a store.
fn find_disks(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let (mut todo, mut found) = (vec![dir.to_owned()], Vec::new());
    while let Some(d) = todo.pop() {
        if d.join("superblock").exists() {
            found.push(d);
            continue;
        }
        let entries = std::fs::read_dir(&d).into_iter().flatten().flatten();
        todo.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    found.sort();
    found
}
