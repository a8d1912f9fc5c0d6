//! fio with `verify=crc32c`: the patterns of the documents that the project starts from.

use crate::harness::{Cluster, large, must};
use std::path::Path;
use std::process::Command;

/// One fio job: name, pattern, block size, engine, direct, jobs, depth.
type Job = (&'static str, &'static str, &'static str, &'static str, bool, u32, u32);

const JOBS: &[Job] = &[
    ("seq-4m-libaio", "write", "4M", "libaio", true, 2, 2),
    ("seq-1m-psync", "write", "1M", "psync", true, 1, 1),
    ("seq-1m-buffered", "write", "1M", "psync", false, 1, 1),
    ("rand-128k-io_uring", "randwrite", "128k", "io_uring", true, 2, 8),
    ("rand-128k-buffered", "randwrite", "128k", "psync", false, 2, 1),
    ("rand-4k-psync", "randwrite", "4k", "psync", true, 1, 1),
    ("rand-4k-libaio", "randwrite", "4k", "libaio", true, 4, 16),
    ("rand-4k-io_uring", "randwrite", "4k", "io_uring", true, 2, 16),
    ("rand-4k-buffered", "randwrite", "4k", "psync", false, 2, 1),
    ("rw-4k-mixed", "randrw", "4k", "libaio", true, 2, 8),
    ("sixteen-jobs", "randwrite", "16k", "psync", true, 16, 1),
];

/// Runs one of the jobs in a directory, with files of this size.
fn verify((name, rw, bs, engine, direct, jobs, depth): &Job, on: &Path, size: &str) {
    let out = must(Command::new("fio").args([
        format!("--name={name}"),
        format!("--directory={}", on.display()),
        format!("--rw={rw}"),
        format!("--bs={bs}"),
        format!("--ioengine={engine}"),
        format!("--direct={}", u8::from(*direct)),
        format!("--numjobs={jobs}"),
        format!("--iodepth={depth}"),
        format!("--size={size}"),
        "--verify=crc32c".into(),
        "--verify_fatal=1".into(),
        "--verify_state_save=0".into(),
        "--do_verify=1".into(),
        "--group_reporting".into(),
        "--fallocate=none".into(),
        "--end_fsync=1".into(),
        "--unlink=1".into(),
    ]));
    assert!(out.contains("err= 0"), "{name}: {out}");
}

/// A little of each of these, by name.
pub fn verify_some(names: &[&str], on: &Path) {
    let chosen: Vec<_> = JOBS.iter().filter(|job| names.contains(&job.0)).collect();
    assert_eq!(chosen.len(), names.len(), "{names:?}");
    chosen.into_iter().for_each(|job| verify(job, on, "4m"));
}

#[test]
fn verify_every_pattern() {
    let c = Cluster::up("fio");
    for job in JOBS {
        let size = match (large(), job.5, job.2) {
            // Larger than every buffer on the way (256 MiB is the greatest): half a GiB of small blocks, 1.5 GiB and more of large ones.
            (true, jobs, "4k" | "16k") => format!("{}m", 512 / jobs),
            (true, ..) => "1536m".into(),
            (_, 16, _) => "2m".into(),
            (_, _, "4k") => "8m".into(),
            _ => "64m".into(),
        };
        verify(job, &c.mnt, &size);
    }
}
