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

/// Turns a byte over in every copy of a block of 4 KiB that is in the block files of a disk. Returns how many there are.
fn spoil(disk: &std::path::Path, block: &[u8]) -> usize {
    let mut found = 0;
    for entry in std::fs::read_dir(disk).expect("a disk").map(|e| e.expect("an entry")) {
        if !entry.file_name().to_string_lossy().starts_with("blocks-") {
            continue;
        }
        let bytes = std::fs::read(entry.path()).expect("read");
        let file = std::fs::File::options().write(true).open(entry.path()).expect("a file");
        for (i, _) in bytes.chunks(4096).enumerate().filter(|(_, b)| *b == block) {
            file.write_all_at(&[!block[99]], i as u64 * 4096 + 99).expect("written");
            found += 1;
        }
        file.sync_all().expect("synced");
    }
    found
}

/// Two of three replicas are down, and something is written; what is done with the disks meanwhile is `work`'s. Then all are back.
fn away_meanwhile(c: &Cluster, file: &str, work: impl FnOnce(&[std::path::PathBuf])) {
    for node in ["storage-2", "storage-3"] {
        c.dev("kill", &[node]);
    }
    // Every chunk of it changes, so that all of them have to be brought up to date.
    sh(
        &c.mnt,
        &format!(
            "for i in 0 1 2; do dd if=/dev/zero of={file} bs=1M seek=$i count=4k iflag=count_bytes conv=notrunc,fsync status=none; done"
        ),
    );
    work(&find_disks(&c.dir));
    for node in ["storage-2", "storage-3"] {
        c.dev("start", &[node]);
    }
    c.wait_serving(Duration::from_secs(60));
}

/// The only replica that serves is damaged: what it lacks comes from those that are not up to date, and they are brought up to date.
#[test]
fn damage_of_the_last_serving_replica_is_mended_from_the_others() {
    let c = Cluster::up_with("lastserving", &["--disks", "1"]);
    sh(&c.mnt, "dd if=/dev/urandom of=f bs=1M count=3 iflag=fullblock status=none; sync");
    let mut expected = std::fs::read(c.mnt.join("f")).expect("read");
    away_meanwhile(&c, "f", |disks| assert!(damage(&disks[0]) > 50, "{disks:?}"));
    (0..3).for_each(|i| expected[i << 20..(i << 20) + 4096].fill(0));
    assert!(std::fs::read(c.mnt.join("f")).expect("read") == expected);
}

/// What nobody has is refused, and nothing else: the chain is whole again, and the block as soon as it is written.
#[test]
fn a_block_that_nobody_has_costs_that_block_only() {
    let c = Cluster::up_with("lostblock", &["--disks", "1"]);
    sh(&c.mnt, "dd if=/dev/urandom of=f bs=1M count=3 iflag=fullblock status=none; sync");
    let mut expected = std::fs::read(c.mnt.join("f")).expect("read");
    let at = (1 << 20) + 5 * 4096;
    let block = expected[at..at + 4096].to_vec();
    away_meanwhile(&c, "f", |disks| {
        for disk in disks {
            assert_eq!(spoil(disk, &block), 1, "{}", disk.display());
        }
    });
    (0..3).for_each(|i| expected[i << 20..(i << 20) + 4096].fill(0));
    let read = |at: usize, len: usize| {
        let dd = format!(
            "dd if=f bs=4096 skip={} count={} iflag=direct status=none",
            at / 4096,
            len / 4096
        );
        let shown =
            std::process::Command::new("bash").args(["-c", &dd]).current_dir(&c.mnt).output();
        shown.expect("dd")
    };
    assert!(read(0, at).stdout == expected[..at]);
    let rest = at + 4096;
    assert!(read(rest, expected.len() - rest).stdout == expected[rest..]);
    let began = Instant::now();
    let lost = read(at, 4096);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(!lost.status.success() && lost.stdout.is_empty(), "{lost:?}");
    assert!(String::from_utf8_lossy(&lost.stderr).contains("Input/output error"), "{lost:?}");
    assert!(c.metric("storage", "glowfs_storage_lost_blocks_total") > 0.0);
    let told = c.admin(&["damaged"]);
    let row = &told.as_array().expect("rows")[0];
    assert_eq!(row["path"], "/f", "{told}");
    assert_eq!(row["ranges"], serde_json::json!([[at, 4096]]), "{told}");
    assert_eq!((told.as_array().map(Vec::len), &row["chunk"]), (Some(1), &1.into()), "{told}");
    let stat = c.admin(&["stat", "/f"]);
    assert_eq!((&row["inode"], &row["data_id"]), (&stat["inode"], &stat["data_id"]), "{told}");
    let file = std::fs::File::options().write(true).open(c.mnt.join("f")).expect("open");
    // A part of it cannot be written, for the rest is not known: an error, and no hanging.
    let write_part = || {
        let seek = at / 512;
        let dd = format!(
            "dd if=/dev/zero of=f bs=512 seek={seek} count=1 conv=notrunc oflag=direct status=none"
        );
        let shown =
            std::process::Command::new("bash").args(["-c", &dd]).current_dir(&c.mnt).output();
        shown.expect("dd")
    };
    let began = Instant::now();
    let refused = write_part();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Input/output error"), "{refused:?}");
    file.write_all_at(&block, at as u64).expect("written again");
    assert!(write_part().status.success(), "now that the rest is there");
    expected[at..at + 512].fill(0);
    file.sync_all().expect("synced");
    assert!(std::fs::read(c.mnt.join("f")).expect("read") == expected);
    assert_eq!(c.admin(&["damaged"]), serde_json::json!([]));
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
