//! Two names of a directory: created, opened, renamed and removed from both mounts.

use super::history::{Kept, Recorder};
use super::model::{MountNames, NameOp};
use crate::flight::Flight;
use crate::random::Random;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Directories that are worked in at a time.
pub const ACTIVE: usize = 1;
/// Operations of one directory.
const OPERATIONS: usize = 160;
/// The longest pause between two operations, in microseconds.
const THINK_US: u64 = 2000;

/// Directories, one after another.
pub struct Directories {
    active: Mutex<Arc<Key>>,
    all: Mutex<Vec<Arc<Key>>>,
}

struct Key {
    number: u64,
    history: Recorder<NameOp>,
}

fn dir(number: u64) -> String {
    format!("names-{number}")
}

impl Directories {
    /// Makes the first.
    pub fn make(mount: &Path) -> Result<Self> {
        std::fs::create_dir(mount.join(dir(0))).context("making a directory")?;
        let key = Arc::new(Key { number: 0, history: Recorder::new(dir(0)) });
        Ok(Self { active: Mutex::new(key.clone()), all: Mutex::new(vec![key]) })
    }

    /// The next directory, if the present one is still `old`.
    fn turn(&self, flight: &Flight, lane: usize, mount: &Path, old: &Arc<Key>) {
        let mut active = self.active.lock().unwrap_or_else(|e| e.into_inner());
        if !Arc::ptr_eq(&active, old) {
            return;
        }
        let number = old.number + 1;
        match flight.op(lane, "mkdir", || std::fs::create_dir(mount.join(dir(number)))) {
            Ok(()) => {
                let key = Arc::new(Key { number, history: Recorder::new(dir(number)) });
                self.all.lock().unwrap_or_else(|e| e.into_inner()).push(key.clone());
                *active = key;
            }
            Err(e) => flight.error(lane, "mkdir", &e),
        }
    }

    /// Works until the end.
    pub fn work(&self, flight: &Flight, lane: usize, mount: &Path, mut random: Random) {
        while flight.go_on() {
            std::thread::sleep(Duration::from_micros(random.below(THINK_US)));
            let key = self.active.lock().unwrap_or_else(|e| e.into_inner()).clone();
            let (from, to) = if random.chance(50) { ("a", "b") } else { ("b", "a") };
            let op = match random.below(10) {
                0..3 => NameOp::Create(from, None),
                3..7 => NameOp::Open(from, None),
                7..9 => NameOp::Rename(from, to, false),
                _ => NameOp::Unlink(from, false),
            };
            if !key.history.call(lane, op.clone(), OPERATIONS) {
                self.turn(flight, lane, mount, &key);
                continue;
            }
            let place = mount.join(dir(key.number));
            let done = flight.op(lane, &format!("{op:?}"), || perform(&op, &place));
            if let Err(e) = &done {
                flight.error(lane, &format!("{op:?}"), e);
            }
            key.history.answer(lane, done.ok());
        }
    }

    /// Checks all histories.
    pub fn check(&self) -> Vec<Kept> {
        let all = self.all.lock().unwrap_or_else(|e| e.into_inner());
        all.iter().filter_map(|k| k.history.check::<MountNames>()).collect()
    }
}

/// Does it; with its answer.
fn perform(op: &NameOp, dir: &Path) -> io::Result<NameOp> {
    let inode = |f: File| f.metadata().map(|m| m.ino());
    let unless = |r: io::Result<u64>, kind: ErrorKind| match r {
        Ok(ino) => Ok(Some(ino)),
        Err(e) if e.kind() == kind => Ok(None),
        Err(e) => Err(e),
    };
    let was = |r: io::Result<()>| match r {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    };
    Ok(match *op {
        NameOp::Create(n, _) => {
            let made = File::create_new(dir.join(n)).and_then(inode);
            NameOp::Create(n, unless(made, ErrorKind::AlreadyExists)?)
        }
        NameOp::Open(n, _) => {
            let opened = File::open(dir.join(n)).and_then(inode);
            NameOp::Open(n, unless(opened, ErrorKind::NotFound)?)
        }
        NameOp::Rename(from, to, _) => {
            NameOp::Rename(from, to, was(std::fs::rename(dir.join(from), dir.join(to)))?)
        }
        NameOp::Unlink(n, _) => NameOp::Unlink(n, was(std::fs::remove_file(dir.join(n)))?),
    })
}
