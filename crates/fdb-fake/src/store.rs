//! What is stored: our engine in memory, with versions as FoundationDB has them.
//!
//! There, commits that arrive together share a version and are told apart by their order in it. So here up to [`BATCH`] commits share one: the version of the
//! engine in memory is `version * BATCH + order`. Who asks for a version closes the one that is being filled.

use crate::future::{Answer, Code};
use glowfs_kv::{Engine, Memory};
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::{Error, Status};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};

/// Commits that may share a version.
const BATCH: u64 = 4;
/// The first version.
const FIRST: u64 = 1000;
/// Entries of a page; few, so that pages end early.
const PAGE_ENTRIES_MAX: usize = 37;
/// A range that nobody reads: it begins with FoundationDB's system keys.
const NOBODY: &[u8] = b"\xff\xffpad";

/// A change, before the stamp is known.
pub enum Change {
    /// Without a stamp.
    Plain(Mutation),
    /// A key of which ten bytes at this place become the stamp, and its value.
    StampedKey(Vec<u8>, usize, Vec<u8>),
    /// A key, and its value of which ten bytes at this place become the stamp.
    StampedValue(Vec<u8>, Vec<u8>, usize),
}

/// The version that a transaction reads at: asked for with its first read, if it was not set.
#[derive(Clone, Default)]
pub struct ReadVersion(Arc<AtomicI64>);

impl ReadVersion {
    /// Sets it; what it was before, 0 for none.
    pub fn set(&self, version: i64) -> i64 {
        self.0.swap(version, Ordering::SeqCst)
    }
}

/// A transaction to commit.
#[derive(Default)]
pub struct Job {
    /// The version it stands on.
    pub version: ReadVersion,
    /// Ranges that were read.
    pub read: Vec<(Vec<u8>, Vec<u8>)>,
    /// Ranges that count as written.
    pub written: Vec<(Vec<u8>, Vec<u8>)>,
    /// Changes.
    pub changes: Vec<Change>,
}

/// A range to read.
pub struct Range {
    pub begin: Vec<u8>,
    pub end: Vec<u8>,
    pub limit: usize,
    pub reverse: bool,
}

/// See the module.
pub struct Store {
    memory: Memory,
}

/// The engine in memory answers at once.
fn now<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => panic!("the engine in memory does not wait"),
    }
}

fn code(e: &Error) -> Code {
    match e.status {
        Status::Conflict => 1020,
        Status::TooOld => 1007,
        _ => 1009,
    }
}

impl Store {
    /// An empty one.
    pub fn new() -> Self {
        let memory = Memory::unlimited();
        now(memory.raise_stamps(FIRST * BATCH)).expect("an empty engine");
        Self { memory }
    }

    fn newest(&self) -> u64 {
        now(self.memory.begin()).expect("in memory")
    }

    /// The newest version; nothing is added to it from now on.
    fn version(&mut self) -> i64 {
        while self.newest() % BATCH != BATCH - 1 {
            let nobody = (NOBODY.to_vec().into(), [NOBODY, b"\0"].concat().into());
            let pad = Commit { write_conflicts: vec![nobody], ..Commit::default() };
            now(self.memory.commit(pad)).expect("nothing was read");
        }
        (self.newest() / BATCH) as i64
    }

    /// The version of a transaction, the newest one if it has none yet.
    pub fn read_version(&mut self, version: &ReadVersion) -> i64 {
        let newest = self.version();
        match version.0.compare_exchange(0, newest, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => newest,
            Err(set) => set,
        }
    }

    /// The engine's version behind one of ours.
    fn at(&mut self, version: &ReadVersion) -> Result<u64, Code> {
        let version = self.read_version(version);
        let newest = self.version();
        // future_version
        if version > newest { Err(1009) } else { Ok(version as u64 * BATCH + BATCH - 1) }
    }

    /// Reads a key.
    pub fn get(&mut self, version: &ReadVersion, key: Vec<u8>) -> Result<Answer, Code> {
        let at = self.at(version)?;
        let found = now(self.memory.get(at, vec![key])).map_err(|e| code(&e))?;
        Ok(Answer::Value(found.into_iter().next().flatten()))
    }

    /// Reads a range.
    pub fn range(&mut self, version: &ReadVersion, range: Range) -> Result<Answer, Code> {
        let at = self.at(version)?;
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let want = limit.min(PAGE_ENTRIES_MAX);
        let page = self.memory.get_range(at, range.begin, range.end, want as u32, range.reverse);
        let page = now(page).map_err(|e| code(&e))?;
        // As FoundationDB: there may be more whenever the limit is reached.
        let more = page.more || page.entries.len() == limit;
        Ok(Answer::page(page.entries, more))
    }

    /// Commits; the version.
    pub fn commit(&mut self, job: Job) -> Result<i64, Code> {
        let read_version = match job.read.is_empty() {
            true => 0,
            false => self.at(&job.version)?,
        };
        let next = self.newest() + 1;
        let mut stamp = [0; 10];
        stamp[..8].copy_from_slice(&(next / BATCH).to_be_bytes());
        stamp[8..].copy_from_slice(&((next % BATCH) as u16).to_be_bytes());
        let mutations = job.changes.into_iter().map(|change| match change {
            Change::Plain(m) => m,
            Change::StampedKey(mut key, at, value) => {
                key[at..at + 10].copy_from_slice(&stamp);
                Mutation::Put { key, value }
            }
            Change::StampedValue(key, mut value, at) => {
                value[at..at + 10].copy_from_slice(&stamp);
                Mutation::Put { key, value }
            }
        });
        let ranges = |all: Vec<(Vec<u8>, Vec<u8>)>| {
            all.into_iter().map(|(b, e)| (b.into(), e.into())).collect()
        };
        let commit = Commit {
            read_version,
            read_conflicts: ranges(job.read),
            write_conflicts: ranges(job.written),
            mutations: mutations.collect(),
            ..Commit::default()
        };
        let version = now(self.memory.commit(commit)).map_err(|e| code(&e))?;
        assert_eq!(version, next, "the stamp is of this commit");
        Ok((version / BATCH) as i64)
    }
}
