//! The applications: threads that write, read, rename and remove, and know what they must see.

pub mod direct;
pub mod doomed;
pub mod library;
pub mod log;
pub mod names;

use crate::block::BLOCK;
use crate::flight::Flight;
use crate::ledger::Ledger;
use crate::random::Random;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a worker gets.
#[derive(Clone)]
pub struct Job {
    /// Its place in `flight`, and who it is in blocks.
    pub lane: usize,
    /// Its own random numbers.
    pub random: Random,
    /// Where it tells what it does.
    pub flight: Arc<Flight>,
    /// Files whose content all workers may read, and the checker at the end.
    pub files: Arc<Files>,
    /// The directory of the run on both mounts.
    pub dirs: [PathBuf; 2],
    /// The longest pause between two operations.
    pub think: Duration,
}

/// Files whose content is known.
#[derive(Default)]
pub struct Files(Mutex<Vec<Arc<Ledger>>>);

impl Files {
    /// Adds one.
    pub fn add(&self, l: Ledger) -> Arc<Ledger> {
        let l = Arc::new(l);
        self.0.lock().unwrap_or_else(|e| e.into_inner()).push(l.clone());
        l
    }
    /// Takes one out that will be removed.
    pub fn remove(&self, l: &Arc<Ledger>) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).retain(|o| !Arc::ptr_eq(o, l));
    }
    /// All of them.
    pub fn all(&self) -> Vec<Arc<Ledger>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

impl Job {
    /// A pause between operations; false: end.
    pub fn think(&mut self) -> bool {
        let pause = self.random.below(self.think.as_micros() as u64 + 1);
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
        self.flight.go_on()
    }
    /// One operation that must succeed; its failure is noted.
    pub fn op<T>(&self, what: &str, f: impl FnOnce() -> io::Result<T>) -> Option<T> {
        match self.flight.op(self.lane, what, f) {
            Ok(v) => Some(v),
            Err(e) => {
                self.flight.error(self.lane, what, &e);
                None
            }
        }
    }
    /// Writes these blocks of a file.
    pub fn write(&self, l: &Ledger, file: &File, blocks: Range<u64>) -> bool {
        let at = blocks.start * BLOCK as u64;
        let what = format!("write blocks {blocks:?} of {}", l.name);
        let w = l.write(blocks, self.lane as u32, vec![]);
        let buf = Aligned::of(w.bytes());
        let ok = self.op(&what, || file.write_all_at(buf.bytes(), at)).is_some();
        l.wrote(w, ok);
        ok
    }
    /// Reads these blocks of a file and checks them.
    pub fn read(&self, l: &Ledger, file: &File, blocks: Range<u64>, through: &str) -> bool {
        let what = format!("read blocks {blocks:?} of {} through {through}", l.name);
        let mut buf = Aligned::new(blocks.clone().count() * BLOCK);
        let at = blocks.start * BLOCK as u64;
        let r = l.read(blocks);
        let Some(n) = self.op(&what, || read_at_most(file, buf.bytes_mut(), at)) else {
            return false;
        };
        for problem in l.check(r, &buf.bytes()[..n], through) {
            self.flight.wrong(problem);
        }
        true
    }
    /// Flushes a file.
    pub fn fsync(&self, l: &Ledger, file: &File) -> bool {
        let covered = l.sync();
        let ok = self.op(&format!("fsync of {}", l.name), || file.sync_all()).is_some();
        if ok {
            l.synced(&covered);
        }
        ok
    }
}

/// Reads until the buffer is full or the file ends.
pub fn read_at_most(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Opens for O_DIRECT, or buffered.
pub fn open(path: &Path, write: bool, create: bool, direct: bool) -> io::Result<File> {
    let mut o = OpenOptions::new();
    o.read(true).write(write).create(create);
    if direct {
        o.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    }
    o.open(path)
}

/// Bytes at an address that O_DIRECT takes.
pub struct Aligned {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    /// Zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK];
        let at = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { bytes, at, len }
    }
    /// A copy.
    pub fn of(bytes: &[u8]) -> Self {
        let mut a = Self::new(bytes.len());
        a.bytes_mut().copy_from_slice(bytes);
        a
    }
    /// Them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.len]
    }
    /// Them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..self.at + self.len]
    }
}
