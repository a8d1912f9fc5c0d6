//! What goes wrong on purpose: every n-th time, set by the test that loaded this library.
// SAFETY of every `no_mangle` here: nobody else's names begin with `glowfs_fdb_fake_`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of faults. Their numbers are what a test says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A commit that did not happen ends in `commit_unknown_result`.
    UnknownNotDone = 0,
    /// One that did.
    UnknownDone = 1,
    /// One that happens, or not, some time after that was said.
    UnknownLate = 2,
    /// `not_committed` although nothing was in conflict.
    Conflict = 3,
    /// `transaction_too_old`.
    TooOld = 4,
    /// `future_version`.
    FutureVersion = 5,
    /// The answer comes late.
    Slow = 6,
    /// A commit that did happen is never answered.
    Silent = 7,
}

/// How many kinds there are.
const KINDS: usize = 8;

struct Counter {
    every: AtomicU64,
    asked: AtomicU64,
    done: AtomicU64,
}

static COUNTERS: [Counter; KINDS] = [const {
    Counter { every: AtomicU64::new(0), asked: AtomicU64::new(0), done: AtomicU64::new(0) }
}; KINDS];

/// Whether it strikes now.
pub fn strikes(fault: Fault) -> bool {
    let c = &COUNTERS[fault as usize];
    let every = c.every.load(Ordering::Relaxed);
    let strikes = every > 0 && (c.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every);
    if strikes {
        c.done.fetch_add(1, Ordering::Relaxed);
    }
    strikes
}

/// Sets how often a fault strikes: every n-th time; 0: never.
#[unsafe(no_mangle)]
pub extern "C" fn glowfs_fdb_fake_every(kind: u32, every: u64) {
    if let Some(c) = COUNTERS.get(kind as usize) {
        c.every.store(every, Ordering::Relaxed);
    }
}

/// How often it struck so far.
#[unsafe(no_mangle)]
pub extern "C" fn glowfs_fdb_fake_struck(kind: u32) -> u64 {
    COUNTERS.get(kind as usize).map_or(0, |c| c.done.load(Ordering::Relaxed))
}
