//! The host of the metadata engine loses its power under mounts that live through it: commits that were answered and not flushed are gone, and the
//! counters of what they had changed go back.

use crate::harness::{Cluster, Mount, must, sh};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Longer than anybody may keep attributes (`attr_lease_ms`), or a right to append that is not used.
const LEASES_END: Duration = Duration::from_millis(2500);

/// Runs `work`, of which nothing is flushed: then the host of the engine dies, and its disk is as it was before.
fn lost(c: &Cluster, work: impl FnOnce()) {
    let (engine, before) = (c.dir.join("data/meta-1"), c.local.join("before"));
    let copy = |from: &Path, to: &Path| must(Command::new("cp").args(["-a"]).arg(from).arg(to));
    copy(&engine, &before);
    work();
    c.dev("kill", &["meta-1"]);
    std::fs::remove_dir_all(&engine).expect("removed");
    copy(&before, &engine);
    std::fs::remove_dir_all(&before).expect("removed");
    c.dev("start", &["meta-1"]);
    std::thread::sleep(LEASES_END);
}

fn appending(path: &Path) -> File {
    File::options().append(true).create(true).open(path).expect("open")
}

/// Both mounts append in turns; each append is told to meta at once, as at every close.
fn in_turns(files: &mut [File; 2], records: std::ops::Range<usize>) -> String {
    let mut all = String::new();
    for i in records {
        let record = format!("record {i} of mount {};", i % 2);
        let file = &mut files[i % 2];
        file.write_all(record.as_bytes()).expect("append");
        drop(file.try_clone().expect("another descriptor"));
        all += &record;
    }
    all
}

fn appends(name: &str, inline: bool) {
    let c = Cluster::up(name);
    let other = Mount::new(&c, "mnt2");
    if inline {
        sh(&c.mnt, "setfattr -n glowfs.layout -v inline_bytes=16384 .");
    }
    let paths = [c.mnt.join("log"), other.path.join("log")];
    let mut files = [appending(&paths[0]), appending(&paths[1])];
    let flushed = in_turns(&mut files, 0..4);
    files.iter().for_each(|f| f.sync_all().expect("fsync"));
    std::thread::sleep(LEASES_END);
    lost(&c, || {
        let lost = in_turns(&mut files, 100..140);
        std::thread::sleep(LEASES_END);
        for p in &paths {
            let len = std::fs::metadata(p).expect("stat").size() as usize;
            assert_eq!(len, flushed.len() + lost.len(), "both mounts know it");
        }
    });
    for (p, f) in paths.iter().zip(&files) {
        let seen = (std::fs::metadata(p).expect("stat").size(), f.metadata().expect("stat").size());
        assert_eq!(seen, (flushed.len() as u64, flushed.len() as u64), "{}", p.display());
        assert_eq!(std::fs::read_to_string(p).expect("read"), flushed);
    }
    let after = in_turns(&mut files, 200..220);
    for p in &paths {
        assert_eq!(std::fs::read_to_string(p).expect("read"), format!("{flushed}{after}"));
    }
    drop(files);
    let report = c.admin(&["fsck"]);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
}

#[test]
fn appends_of_two_mounts_after_metadata_went_back_are_all_there() {
    appends("powerchunks", false);
}

#[test]
fn appends_to_a_small_file_after_metadata_went_back_are_all_there() {
    appends("powerinline", true);
}
