//! Appends to a log through a mount that is killed now and then: what fsync covered is there at once for everybody else, what was only
//! acknowledged is there, behind a length that leads to it, when the cluster has ended the killed mount's session.

use super::{Job, open};
use crate::block::BLOCK;
use crate::ledger::Ledger;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Its place in the flight.
pub const LANE: usize = 9;
/// Blocks of a full log.
const FULL: u64 = 256;
/// The longest append, in blocks.
const APPEND: u64 = 4;
/// File numbers of its logs begin here.
const NUMBERS: u64 = 1 << 40;
/// The session of a killed mount ends, and the length of its files is settled, within this time.
const SETTLED_BOUND: Duration = Duration::from_secs(90);

/// What one log came to.
struct Written {
    /// Blocks that fsync covered.
    synced: u64,
    /// Blocks acknowledged.
    acked: u64,
    /// The mount was killed.
    killed: bool,
}

/// Appends until the end; `own` is the directory in the doomed mount.
pub fn work(mut job: Job, own: &Path) {
    let mut number = 0;
    while job.flight.go_on() {
        let kills = job.flight.mount_kills.load(SeqCst);
        if job.flight.mount_returns.load(SeqCst) < kills {
            // There is no mount.
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        number += 1;
        let name = format!("doomed-{number}");
        let l = job.files.add(Ledger::new(NUMBERS + number, name, 0));
        let made = job.flight.op(LANE, "create", || open(&own.join(&l.name), true, true, false));
        let file = match made {
            Ok(file) => file,
            Err(e) => {
                failed(&job, kills, "create", &e);
                remove(&job, &l, true);
                continue;
            }
        };
        let written = append(&mut job, &l, &file, kills);
        // Closing what lay in a killed mount does nothing.
        job.flight.op(LANE, "close", || drop(file));
        check(&job, &l, &written);
        // It is not written any more: the checker at the end need not look again, and its space is wanted.
        remove(&job, &l, false);
    }
}

/// Removes a log, which may be missing if its creation failed.
fn remove(job: &Job, l: &Arc<Ledger>, may_be_missing: bool) {
    job.files.remove(l);
    let path = job.dirs[0].join(&l.name);
    job.op("unlink of a killed mount's file", || match std::fs::remove_file(&path) {
        Err(e) if may_be_missing && e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    });
}

/// Notes a failure, unless the mount was killed meanwhile. Whether it was.
fn failed(job: &Job, kills: u64, what: &str, e: &std::io::Error) -> bool {
    let killed = job.flight.mount_kills.load(SeqCst) != kills;
    if !killed {
        job.flight.error(LANE, what, e);
    }
    killed
}

fn append(job: &mut Job, l: &Arc<Ledger>, file: &File, kills: u64) -> Written {
    let mut w = Written { synced: 0, acked: 0, killed: false };
    while w.acked < FULL && job.think() {
        let count = 1 + job.random.below(APPEND);
        let writing = l.write(w.acked..w.acked + count, LANE as u32, vec![]);
        let at = w.acked * BLOCK as u64;
        let done = job.flight.op(LANE, "append", || {
            std::os::unix::fs::FileExt::write_all_at(file, writing.bytes(), at)
        });
        l.wrote(writing, done.is_ok());
        if let Err(e) = done {
            w.killed = failed(job, kills, "write", &e);
            return w;
        }
        w.acked += count;
        if job.random.chance(20) {
            match job.flight.op(LANE, "fsync", || file.sync_all()) {
                Ok(()) => w.synced = w.acked,
                Err(e) => {
                    w.killed = failed(job, kills, "fsync", &e);
                    return w;
                }
            }
        }
    }
    w
}

/// Looks from the first mount.
fn check(job: &Job, l: &Ledger, w: &Written) {
    let path = job.dirs[0].join(&l.name);
    let began = Instant::now();
    // A close makes the whole length known; a kill only what was synced, until the session has ended.
    let at_once = if w.killed { w.synced } else { w.acked };
    let Some(len) = length(job, &path) else { return };
    if len < at_once * BLOCK as u64 {
        job.flight.wrong(format!("{}: {len} bytes, {at_once} blocks were made durable", l.name));
    }
    while length(job, &path).is_some_and(|len| len < w.acked * BLOCK as u64) {
        if began.elapsed() > SETTLED_BOUND {
            let acked = w.acked;
            job.flight.wrong(format!(
                "{}: {acked} blocks were acknowledged before the kill, its length never says so",
                l.name
            ));
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let opened = job.op("open of a killed mount's file", || open(&path, false, false, false));
    let Some(file) = opened else { return };
    job.read(l, &file, 0..w.acked, "mount 1, after mount 3 was killed");
    job.flight.op(LANE, "close", || drop(file));
}

fn length(job: &Job, path: &Path) -> Option<u64> {
    job.op("stat", || std::fs::metadata(path)).map(|m| m.len())
}
