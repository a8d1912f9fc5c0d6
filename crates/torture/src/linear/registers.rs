//! Blocks of one file as registers, under O_DIRECT from both mounts.

use super::history::{Kept, Recorder};
use super::model::{Register, RegisterOp};
use crate::block::{self, BLOCK, Stamp};
use crate::flight::Flight;
use crate::random::Random;
use crate::work::{Aligned, open, read_at_most};
use anyhow::{Context, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Operations of one block; the search grows with the square.
const OPERATIONS: usize = 240;
/// Blocks that are hit at a time.
pub const ACTIVE: usize = 2;
/// Blocks of the file.
const BLOCKS: u64 = 1 << 16;
/// Blocks are used in steps of this, so that neighbours in time lie in different chunks. Odd: every block comes once.
const STEP: u64 = 4097;
/// The longest pause between two operations, in microseconds.
const THINK_US: u64 = 2000;
/// The file's name, and its number in the blocks.
const NAME: &str = "registers";
const NUMBER: u64 = 77;

/// The file.
pub struct Blocks {
    active: Vec<Mutex<Arc<Key>>>,
    all: Mutex<Vec<Arc<Key>>>,
    next: AtomicU64,
    values: AtomicU64,
}

struct Key {
    block: u64,
    history: Recorder<RegisterOp>,
}

impl Blocks {
    /// Makes it, all holes.
    pub fn make(dir: &Path) -> Result<Self> {
        let file = open(&dir.join(NAME), true, true, false).context("making the file")?;
        file.set_len(BLOCKS * BLOCK as u64).context("setting its length")?;
        let b = Self {
            active: vec![],
            all: Mutex::default(),
            next: AtomicU64::new(0),
            values: AtomicU64::new(1),
        };
        let active = (0..ACTIVE).map(|_| Mutex::new(b.key())).collect();
        Ok(Self { active, ..b })
    }
    fn key(&self) -> Arc<Key> {
        let block = self.next.fetch_add(1, Ordering::SeqCst).wrapping_mul(STEP) % BLOCKS;
        let key = Arc::new(Key { block, history: Recorder::new(format!("block {block}")) });
        self.all.lock().unwrap_or_else(|e| e.into_inner()).push(key.clone());
        key
    }

    /// Reads and writes until the end.
    pub fn work(&self, flight: &Flight, lane: usize, mount: &Path, mut random: Random) {
        let file = match open(&mount.join(NAME), true, false, true) {
            Ok(f) => f,
            Err(e) => return flight.error(lane, "open", &e),
        };
        let mut buf = Aligned::new(BLOCK);
        while flight.go_on() {
            std::thread::sleep(Duration::from_micros(random.below(THINK_US)));
            let Some(slot) = random.pick(&self.active) else { return };
            let key = slot.lock().unwrap_or_else(|e| e.into_inner()).clone();
            let at = key.block * BLOCK as u64;
            let write = random.chance(40);
            let value = if write { self.values.fetch_add(1, Ordering::SeqCst) } else { 0 };
            let op = if write { RegisterOp::Write(value) } else { RegisterOp::Read(0) };
            if !key.history.call(lane, op, OPERATIONS) {
                let mut active = slot.lock().unwrap_or_else(|e| e.into_inner());
                if Arc::ptr_eq(&active, &key) {
                    *active = self.key();
                }
                continue;
            }
            if write {
                let stamp =
                    Stamp { file: NUMBER, block: key.block, version: value, writer: lane as u32 };
                block::fill(stamp, buf.bytes_mut());
                let done = flight.op(lane, "write", || file.write_all_at(buf.bytes(), at));
                key.history.answer(lane, done.is_ok().then_some(op));
                if let Err(e) = done {
                    flight.error(lane, "write", &e);
                }
                continue;
            }
            let done = flight.op(lane, "read", || read_at_most(&file, buf.bytes_mut(), at));
            let parsed = done.map(|n| block::parse(NUMBER, key.block, &buf.bytes()[..n]));
            let seen = match parsed {
                Ok(Ok(stamp)) => Some(RegisterOp::Read(stamp.version)),
                Ok(Err(e)) => {
                    flight.wrong(format!("block {}: {e}", key.block));
                    None
                }
                Err(e) => {
                    flight.error(lane, "read", &e);
                    None
                }
            };
            key.history.answer(lane, seen);
        }
    }

    /// Checks all histories.
    pub fn check(&self) -> Vec<Kept> {
        let all = self.all.lock().unwrap_or_else(|e| e.into_inner());
        all.iter().filter_map(|k| k.history.check::<Register>()).collect()
    }
}
