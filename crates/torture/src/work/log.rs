//! Buffered appends to a log through one mount, made durable now and then; what fsync or close covered must be there, length and
//! bytes, for a reader through the other mount. Full logs are closed, checked and replaced.

use super::{Job, open};
use crate::block::BLOCK;
use crate::ledger::Ledger;
use std::fs::File;
use std::sync::Arc;

/// Blocks of a full log.
const FULL: u64 = 768;
/// The longest append, in blocks.
const APPEND: u64 = 8;
/// File numbers of logs begin here, times the lane.
const NUMBERS: u64 = 1 << 32;

/// Appends until the end; `own` is the mount it writes through.
pub fn work(mut job: Job, own: usize) {
    let mut number = 0;
    let mut old: Option<Arc<Ledger>> = None;
    while job.flight.go_on() {
        number += 1;
        let name = format!("log-{}-{number}", job.lane);
        let path = job.dirs[own].join(&name);
        let Some(file) = job.op("create", || open(&path, true, true, false)) else {
            job.think();
            continue;
        };
        let l = job.files.add(Ledger::new(NUMBERS * job.lane as u64 + number, name, 0));
        let end = fill(&mut job, &l, &file, own);
        job.flight.op(job.lane, "close", || drop(file));
        check(&job, &l, end, 1 - own);
        // The one before goes, so that space comes and goes under the faults.
        if let Some(old) = old.replace(l) {
            job.files.remove(&old);
            let path = job.dirs[1 - own].join(&old.name);
            job.op(&format!("unlink {}", old.name), || std::fs::remove_file(&path));
        }
    }
}

/// Appends until the file is full; how many blocks were acknowledged.
fn fill(job: &mut Job, l: &Arc<Ledger>, file: &File, own: usize) -> u64 {
    let mut end = 0;
    while end < FULL && job.think() {
        let count = (1 + job.random.below(APPEND)).min(FULL - end);
        if !job.write(l, file, end..end + count) {
            // What of it is there is not known: the file ends here, as far as this worker cares.
            return end;
        }
        end += count;
        match job.random.below(20) {
            0..2 if job.fsync(l, file) => check(job, l, end, 1 - own),
            2..6 => {
                let at = job.random.below(end);
                let upto = (at + 1 + job.random.below(APPEND)).min(end);
                job.read(l, file, at..upto, ["mount 1", "mount 2"][own]);
            }
            _ => {}
        }
    }
    end
}

/// Through the mount `other`, the file has `blocks` blocks, all right.
fn check(job: &Job, l: &Ledger, blocks: u64, other: usize) {
    let through = ["mount 1 (opened now)", "mount 2 (opened now)"][other];
    let path = job.dirs[other].join(&l.name);
    let Some(file) =
        job.op(&format!("open {} through {through}", l.name), || open(&path, false, false, false))
    else {
        return;
    };
    if let Some(m) = job.op("fstat", || file.metadata())
        && m.len() < blocks * BLOCK as u64
    {
        job.flight.wrong(format!(
            "{}: {} bytes long through {through}, although {blocks} blocks were written and synced or closed",
            l.name,
            m.len()
        ));
    }
    job.read(l, &file, 0..blocks, through);
    job.flight.op(job.lane, "close", || drop(file));
}
