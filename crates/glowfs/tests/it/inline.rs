//! Small files whose contents are kept with the metadata (docs/semantics.md), from two mounts.

use crate::harness::{Cluster, Mount, binary, must, scrape, sh};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const LIMIT: usize = 16 << 10;

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

fn both(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// Writes that the storage nodes were asked for.
fn chunk_writes(c: &Cluster) -> f64 {
    c.metric("storage", "glowfs_storage_writes_total")
}

#[test]
fn a_write_is_seen_by_everybody_and_chunks_come_when_they_are_needed() {
    let c = Cluster::up("inline");
    let other = Mount::new(&c, "mnt2");
    sh(&c.mnt, "mkdir d; setfattr -n glowfs.layout -v inline_bytes=16K d");
    let before = chunk_writes(&c);
    let (here, there) = (c.mnt.join("d/f"), other.path.join("d/f"));
    let (a, b) = (both(&here), both(&there));
    // Without a close, and in turns.
    for i in 0..20u8 {
        let (writer, reader) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let bytes = content(i, 100);
        writer.write_all_at(&bytes, u64::from(i) * 80).expect("write");
        let mut got = vec![0; 100];
        reader.read_exact_at(&mut got, u64::from(i) * 80).expect("read");
        assert!(got == bytes, "turn {i}");
        let stat = std::fs::metadata(&there).expect("stat");
        assert_eq!(stat.len(), u64::from(i) * 80 + 100);
        assert_eq!(stat.blocks(), 8);
    }
    let whole = std::fs::read(&here).expect("read");
    assert!(whole == std::fs::read(&there).expect("read"));
    let cat =
        must(Command::new(binary()).args(["admin", "--dev"]).arg(&c.dir).args(["cat", "/d/f"]));
    assert!(cat.as_bytes() == whole || cat == String::from_utf8_lossy(&whole));
    assert_eq!(chunk_writes(&c), before, "no chunk was made");
    // A gap is zeros; a cut, and growth after it.
    a.write_all_at(b"end", 5000).expect("write");
    b.set_len(3000).expect("cut");
    a.set_len(4000).expect("grow");
    let mut expected = whole;
    expected.resize(4000, 0);
    assert!(std::fs::read(&here).expect("read") == expected);
    assert!(std::fs::read(&there).expect("read") == expected);
    // One of them makes it longer; the other goes on where it was.
    let long = content(7, 2 * LIMIT);
    a.write_all_at(&long, 4000).expect("write");
    b.write_all_at(b"here", 10).expect("write");
    a.sync_all().expect("fsync");
    b.sync_all().expect("fsync");
    expected.extend(&long);
    expected[10..14].copy_from_slice(b"here");
    assert!(std::fs::read(&here).expect("read") == expected);
    assert!(std::fs::read(&there).expect("read") == expected);
    assert!(chunk_writes(&c) > before);
    drop((a, b));
    sh(&c.mnt, "rm d/f");
}

#[test]
fn small_files_have_no_chunks_unless_somebody_says_otherwise() {
    let c = Cluster::up("inlinedefault");
    let whole = |name: &str, len: usize| {
        let path = c.mnt.join(name);
        let before = chunk_writes(&c);
        std::fs::write(&path, content(1, len)).expect("write");
        assert!(std::fs::read(&path).expect("read") == content(1, len));
        chunk_writes(&c) > before
    };
    assert!(!whole("small", 4096) && whole("longer", 4097));
    // What is there keeps its own layout; what is made from then on has chunks, or more without.
    sh(&c.mnt, "mkdir off more");
    c.admin(&["set-layout", "/off", "--inline-bytes", "0"]);
    c.admin(&["set-layout", "/more", "--inline-bytes", "16K"]);
    assert!(whole("off/small", 10) && !whole("more/longer", 16384));
    sh(&c.mnt, "mv small off; printf x >> off/small; [ $(stat -c %s off/small) = 4097 ]");
}

#[test]
fn what_was_synced_survives_and_programs_do_not_notice() {
    let c = Cluster::up("inlineapps");
    let other = Mount::new(&c, "mnt2");
    sh(&c.mnt, "setfattr -n glowfs.layout -v inline_bytes=16384 .");
    // Appends that grow out of it, from both mounts.
    sh(
        &c.mnt,
        r#"
        for i in $(seq 400); do echo "here and there and everywhere $i" >> log; done
        seq 3000 > numbers; cp numbers copy; cmp numbers copy
        cp --reflink=never copy small-copy; head -c 500 copy > short; cp --reflink=never short short-copy; cmp short short-copy
        dd if=/dev/zero of=short bs=1 count=1 seek=300 conv=notrunc status=none
        fallocate -p -o 10 -l 100 short-copy; truncate -s 1M copy; truncate -s 10 copy
        mkdir t; for i in $(seq 200); do seq $i > t/$i; done; tar cf t.tar t; mkdir u; tar xf t.tar -C u; diff -r t u/t
    "#,
    );
    let script = "cat log numbers copy short short-copy small-copy | md5sum; ls -l log numbers copy short short-copy | cut -c1-40; tar c --sort=name t | md5sum";
    let seen = sh(&c.mnt, script);
    assert_eq!(sh(&other.path, script), seen);
    let mut f = File::create(c.mnt.join("synced")).expect("create");
    f.write_all(b"before the power goes").expect("write");
    f.sync_all().expect("fsync");
    drop(f);
    c.dev("kill", &["meta-1"]);
    c.dev("start", &["meta-1"]);
    assert_eq!(sh(&c.mnt, "cat synced"), "before the power goes");
    assert_eq!(sh(&c.mnt, script), seen);
    let report = c.admin(&["fsck"]);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
}

/// The flushes of each storage's disk so far.
fn flushes(c: &Cluster) -> Vec<f64> {
    let http = |s: &serde_json::Value| s["http"].as_str().expect("http").to_owned();
    let name = "glowfs_storage_disk_flushes_total";
    c.services("storage").iter().map(|s| scrape(&http(s), name)).collect()
}

#[test]
fn an_fsync_by_one_who_still_takes_it_for_small_flushes_the_chunks_that_another_wrote() {
    let c = Cluster::up_with("inlineflush", &["--storages", "3", "--replicas", "3"]);
    let other = Mount::new(&c, "mnt2");
    sh(&c.mnt, "setfattr -n glowfs.layout -v inline_bytes=16384 .");
    for i in 0..4u8 {
        let name = format!("f{i}");
        let (a, b) = (both(&c.mnt.join(&name)), both(&other.path.join(&name)));
        a.write_all_at(b"small", 0).expect("write");
        b.write_all_at(&content(i, 4 * LIMIT), 5).expect("write");
        let before = flushes(&c);
        a.sync_all().expect("fsync");
        let after = flushes(&c);
        assert_eq!(before.len(), 3);
        for (b, a) in before.iter().zip(&after) {
            assert!(a > b, "file {i}: every replica is flushed: {before:?} -> {after:?}");
        }
    }
}
