//! Random writes under O_DIRECT to one file through both mounts, and reads of any file through either.

use super::{Job, open};
use crate::ledger::Ledger;
use std::fs::File;
use std::sync::Arc;

/// Blocks of the file: over several chunks of 1 MiB.
const BLOCKS: u64 = 1024;
/// The longest read or write, in blocks.
const IO_BLOCKS: u64 = 24;
/// Blocks of one write when the file is made.
const FILL_BLOCKS: u64 = 64;

/// Makes the file, whole: its length is known to everybody from then on.
pub fn prepare(job: &mut Job) -> Option<Arc<Ledger>> {
    let name = format!("direct-{}", job.lane);
    let l = job.files.add(Ledger::new(job.lane as u64, name, BLOCKS));
    let path = job.dirs[0].join(&l.name);
    let file = job.op("create", || open(&path, true, true, true))?;
    for at in (0..BLOCKS).step_by(FILL_BLOCKS as usize) {
        job.write(&l, &file, at..at + FILL_BLOCKS);
    }
    job.fsync(&l, &file).then_some(l)
}

/// Writes and reads until the end.
pub fn work(mut job: Job, l: Arc<Ledger>) {
    let mut files: Vec<File> = vec![];
    for dir in job.dirs.clone() {
        let path = dir.join(&l.name);
        let Some(f) = job.op("open", || open(&path, true, false, true)) else { return };
        files.push(f);
    }
    while job.think() {
        let which = job.random.below(2) as usize;
        let through = ["mount 1", "mount 2"][which];
        let count = 1 + job.random.below(IO_BLOCKS);
        let at = job.random.below(BLOCKS - count);
        match job.random.below(100) {
            0..55 => {
                job.write(&l, &files[which], at..at + count);
            }
            55..96 => {
                job.read(&l, &files[which], at..at + count, through);
            }
            _ => {
                job.fsync(&l, &files[which]);
            }
        }
    }
    for f in files {
        job.flight.op(job.lane, "close", || drop(f));
    }
}

/// Reads files of others through both mounts until the end, while they are written.
pub fn read_others(mut job: Job) {
    let mut opened: Vec<(Arc<Ledger>, &str, File)> = vec![];
    let direct = |l: &Arc<Ledger>| l.name.starts_with("direct") || l.name.starts_with("library");
    let files: Vec<_> = job.files.all().into_iter().filter(direct).collect();
    for l in files {
        for (dir, through) in job.dirs.clone().iter().zip(["mount 1", "mount 2"]) {
            let path = dir.join(&l.name);
            let Some(f) = job.op("open", || open(&path, false, false, true)) else { return };
            opened.push((l.clone(), through, f));
        }
    }
    while job.think() {
        let at = job.random.below(opened.len() as u64) as usize;
        let Some((l, through, f)) = opened.get(at) else { continue };
        let count = 1 + job.random.below(IO_BLOCKS.min(l.len()));
        let from = job.random.below(l.len().saturating_sub(count));
        job.read(l, f, from..from + count, through);
    }
    for (_, _, f) in opened {
        job.flight.op(job.lane, "close", || drop(f));
    }
}
