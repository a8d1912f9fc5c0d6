//! User-space rings: applications hand in reads and writes through shared memory ([`glowfs_usrbio`], docs/formats/rings.md).
//!
//! An open directory of the mount is a session; what belongs to it (memory, files, rings) goes when it is closed, so also when the
//! application is killed. Guarantees: an application reaches only files that it has open, with the rights that they are open with; whatever
//! stands in its memory, only its own rings suffer. Must never: wait for an application, or use a value of shared memory without having
//! copied and checked it.

mod adopt;
mod control;
mod perform;
mod serve;
mod session;
mod turns;

use session::Session;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use turns::Turns;

/// Sessions of a mount at a time.
const SESSIONS_MAX: usize = 4096;
/// Buffers of a session.
const BUFFERS_MAX: usize = 4096;
/// Rings of a session.
const RINGS_MAX: usize = 16_384;
/// Files of a session.
const FILES_MAX: usize = 65_536;
/// Descriptors that this process keeps for everything else: connections, files, logs. Rings and buffers get no more than what it may have
/// beyond that, or half if it may have less than twice this.
const DESCRIPTORS_KEPT: u64 = 2048;
/// Descriptors of a ring here: its memory and its doorbell.
const RING_DESCRIPTORS: u64 = 2;
/// Descriptors of a buffer here.
const BUFFER_DESCRIPTORS: u64 = 1;
/// Bytes of all buffers of a mount together: they cost addresses, of which the daemon needs some for itself, also where there is no memory
/// behind them yet. (A process has 128 TiB.)
const BUFFER_BYTES_MAX: u64 = 32 << 40;
/// Bytes of operations of all rings in work at a time: what they need in memory of the daemon's own.
const WORK_BYTES_MAX: usize = 128 << 20;

/// The sessions of a mount.
pub struct Rings {
    /// By the directory handle.
    sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    turns: Turns,
    next: Cell<u32>,
    /// Descriptors that rings and buffers of all sessions may have together.
    descriptors_max: u64,
}

impl Rings {
    /// None yet; this process may have so many descriptors.
    pub fn new(descriptors: u64) -> Self {
        Self {
            sessions: RefCell::default(),
            turns: Turns::new(WORK_BYTES_MAX),
            next: Cell::new(1),
            descriptors_max: descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2),
        }
    }
    /// Whether rings and buffers may take so many more descriptors: without any left, the mount could not even reach its cluster again.
    fn has_descriptors(&self, more: u64) -> bool {
        let of = |s: &Rc<Session>| {
            let (rings, buffers) = (s.rings.borrow().len(), s.buffers.borrow().len());
            rings as u64 * RING_DESCRIPTORS + buffers as u64 * BUFFER_DESCRIPTORS
        };
        let used: u64 = self.sessions.borrow().values().map(of).sum();
        if used + more > self.descriptors_max {
            let limit = self.descriptors_max;
            tracing::warn!(
                used,
                limit,
                "a ring or buffer is refused: its descriptors would be missing elsewhere; raise the limit of descriptors of the mount (ulimit -Hn)"
            );
            return false;
        }
        true
    }
    /// Whether buffers may take so many more bytes of addresses.
    fn has_addresses(&self, more: u64) -> bool {
        let of = |s: &Rc<Session>| s.buffers.borrow().values().map(|b| b.region.len()).sum::<u64>();
        let used: u64 = self.sessions.borrow().values().map(of).sum();
        let there = more <= BUFFER_BYTES_MAX.saturating_sub(used);
        if !there {
            tracing::warn!(used, more, limit = BUFFER_BYTES_MAX, "a buffer is refused");
        }
        there
    }
    /// A directory was closed: its session ends.
    pub fn forget(&self, directory: u64) {
        let gone = self.sessions.borrow_mut().remove(&directory);
        if let Some(session) = gone {
            session.end();
        }
    }
    /// Every session ends: the mount goes away.
    pub fn end(&self) {
        let all = std::mem::take(&mut *self.sessions.borrow_mut());
        all.values().for_each(|s| s.end());
    }
    fn session(&self, directory: u64) -> Option<Rc<Session>> {
        self.sessions.borrow().get(&directory).cloned()
    }
    /// A number that no buffer, ring or file of this mount has had lately.
    fn number(&self) -> u32 {
        let n = self.next.get();
        self.next.set(n.wrapping_add(1).max(1));
        n
    }
}
