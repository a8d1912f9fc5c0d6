//! [`DirectWrites`]: a direct write that failed, and the truncate by which the kernel undoes it.
//!
//! The kernel sends an asynchronous direct write as several requests. If one of them fails, and the write reached behind what the kernel takes for the length, it cuts the
//! file to that length (`fuse_direct_IO`). The request looks as that of an ftruncate, and the length is one that other clients may have made longer long ago: an append
//! goes to the true end, of which the kernel knows nothing. So such a truncate is carried out as what it is meant to be, an undoing of that write:
//!
//! - Nothing of the write is stored behind where it began, or the file is longer than the write reached: nothing is cut, and the kernel is told the true length.
//! - Otherwise what the write added is cut off, and not more: not what others had stored before it, wherever the kernel believes the end to be.
//!
//! What an application's ftruncate is told from it by: the kernel's comes through the same handle, with nothing but the length, to what the kernel took for the length (or may have, [`crate::kernel_len`]) as
//! the write began or has been told since; it comes once, and before anything that needs the lock of the inode that the write holds ([`DirectWrites::over`]), soon
//! ([`UNDONE_WITHIN`]); and the thread that sends it is in no ftruncate ([`crate::call`]). A synchronous write is undone by nobody; where it cannot be looked at in which call a thread is, an
//! ftruncate of the application right after one that failed, to just that length, is taken for the kernel's: that differs from what it asked for only where others have made the file longer
//! meanwhile, and leaves it so, as if they had come after it. Every other ftruncate is carried out as it is.
//!
//! Limits: what another client adds by other writes than appends between the question for the length and the cut goes, as with any truncate.

use crate::kernel_len::{Between, KernelLen, Moves};
use glowfs_rt::{Duration, Instant};
use std::cell::RefCell;
use std::collections::VecDeque;

/// How long after the last answer to its requests a failed write may be undone. The kernel does it at once, when it comes to run; what comes later is an application's.
const UNDONE_WITHIN: Duration = Duration::from_secs(5);
/// Of requests that follow each other without a gap, each may have begun a write. So many of the last are remembered.
const STARTS_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub struct DirectWrites {
    /// What the kernel takes for the length.
    kernel_len: KernelLen,
    run: RefCell<Run>,
}

/// Requests through one handle that may be of one write.
#[derive(Default)]
struct Run {
    fh: u64,
    /// Where the kernel would go on with the same write. None: there is no run.
    next: Option<u64>,
    flying: u32,
    starts: VecDeque<Start>,
    /// The number of the first of `starts`.
    first: u64,
    /// The kernel was told this length since.
    told: Option<u64>,
    /// The greatest end of what was stored.
    reached: u64,
    /// Meta may know of what was stored.
    reported: bool,
    failed: bool,
    ended: Instant,
}

/// Where a write may have begun.
#[derive(Clone, Copy)]
struct Start {
    /// What the kernel took for the length.
    kernel_len: Between,
    /// Where the write began, once it had its place.
    from: Option<Before>,
}

/// What was there when a write, or a piece of it, got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// The length of the file as far as it was known.
    pub len: u64,
    /// It was the newest.
    pub sure: bool,
    /// The place.
    pub at: u64,
}

impl Before {
    fn with(self, other: Self) -> Self {
        let (len, at) = (self.len.min(other.len), self.at.min(other.at));
        Self { len, at, sure: self.sure && other.sure }
    }
}

/// A request of a direct write.
#[derive(Clone, Copy)]
pub struct Piece {
    fh: u64,
    start: u64,
}

/// A write that failed and is to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    from: Option<Before>,
    reached: u64,
    reported: bool,
}

impl Failed {
    /// To what length the file is to be cut of which meta says that it is so long. None: it stays as it is.
    pub fn cuts_to(self, meta_len: u64) -> Option<u64> {
        let before = self.from?;
        if meta_len > self.reached {
            return None;
        }
        let to = match (self.reported, before.sure) {
            (false, _) => before.len.max(meta_len),
            (true, true) => before.len,
            // Others may have made it longer since: what lies before the write's own first byte stays. Where it began at the known end, a program that cuts off what it has
            // half written gets what it asked for.
            (true, false) => before.len.max(before.at),
        };
        (to < self.reached).then_some(to)
    }
}

impl DirectWrites {
    /// Nothing is known but what the kernel takes for the length.
    pub fn new(kernel_len: Between) -> Self {
        Self { kernel_len: KernelLen::new(kernel_len), run: RefCell::default() }
    }
    /// What the kernel takes for the length.
    pub fn kernel_len(&self) -> Between {
        self.kernel_len.get()
    }
    /// The kernel is told that the file is so long.
    pub fn kernel_was_told(&self, len: u64) {
        self.kernel_len.told(len);
        self.run.borrow_mut().told = Some(len);
    }
    /// The kernel is about to be answered that it wrote so far.
    pub fn wrote(&self, end: u64) {
        self.kernel_len.wrote(end);
    }
    /// See [`KernelLen::moves`].
    pub fn moves(&self) -> Moves {
        self.kernel_len.moves()
    }
    /// The kernel is about to be answered that what it reads ends there, before all that it asked for; see [`KernelLen::read_short`].
    #[must_use]
    pub fn read_short(&self, end: u64, since: Moves) -> bool {
        self.kernel_len.read_short(end, since)
    }

    /// A request arrives that is of a direct write. Of an append the kernel guesses the offset: it is what it takes for the length.
    pub fn begin(&self, fh: u64, (offset, len): (u64, u64), append: bool) -> Piece {
        let mut run = self.run.borrow_mut();
        let goes_on =
            run.fh == fh && run.next.is_some() && (run.flying > 0 || run.next == Some(offset));
        if !goes_on {
            let first = run.first + run.starts.len() as u64;
            let mut starts = std::mem::take(&mut run.starts);
            starts.clear();
            *run = Run { fh, first, starts, ..Run::default() };
        }
        if run.flying == 0 {
            let known = self.kernel_len.get();
            let kernel_len = if append { Between::exactly(offset) } else { known };
            run.starts.push_back(Start { kernel_len, from: None });
            if run.starts.len() > STARTS_MAX {
                run.starts.pop_front();
                run.first += 1;
            }
        }
        run.flying += 1;
        let end = offset.saturating_add(len);
        run.next = Some(run.next.map_or(end, |next| next.max(end)));
        Piece { fh, start: run.first + run.starts.len() as u64 - 1 }
    }
    /// It has its place.
    pub fn placed(&self, piece: Piece, before: Before) {
        let mut run = self.run.borrow_mut();
        let index = piece.start.checked_sub(run.first).filter(|_| run.fh == piece.fh);
        if let Some(start) = index.and_then(|i| run.starts.get_mut(i as usize)) {
            // The first of its pieces tells where the write begins; those behind it may come to their places before it.
            start.from = Some(start.from.map_or(before, |b| b.with(before)));
        }
    }
    /// It is stored, and ends there; `reported`: meta knows.
    pub fn stored(&self, piece: Piece, end: u64, reported: bool) {
        let mut run = self.run.borrow_mut();
        if run.fh == piece.fh {
            run.reached = run.reached.max(end);
            run.reported |= reported;
        }
    }
    /// It is about to be answered.
    pub fn ended(&self, piece: Piece, done: bool, now: Instant) {
        let mut run = self.run.borrow_mut();
        if run.fh == piece.fh {
            run.flying = run.flying.saturating_sub(1);
            run.failed |= !done;
            run.ended = now;
        }
    }
    /// Meta is about to be told how far the file was written.
    pub fn report(&self) {
        let mut run = self.run.borrow_mut();
        run.reported |= run.reached > 0;
    }
    /// Something came that the kernel does not send as long as a write goes on that makes the file longer: both need the lock of the inode for themselves.
    pub fn over(&self) {
        self.run.borrow_mut().next = None;
    }
    /// Whether the kernel undoes a failed write if it cuts the file to `len` through a handle, with nothing else. Asked once.
    pub fn undone(&self, fh: u64, len: u64, now: Instant) -> Option<Failed> {
        let mut run = self.run.borrow_mut();
        let failed = run.next.take().is_some() && run.failed && run.flying == 0;
        if !failed || run.fh != fh || now.since(run.ended) > UNDONE_WITHIN {
            return None;
        }
        let start = match run.starts.iter().rev().find(|s| s.kernel_len.has(len)) {
            Some(start) => start,
            None => run.starts.back().filter(|_| run.told == Some(len))?,
        };
        Some(Failed { from: start.from, reached: run.reached, reported: run.reported })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant(1);

    /// An append of two pieces to a file of which the kernel knows 5 bytes, and which has 100; the first of 10 bytes is stored.
    fn failed() -> DirectWrites {
        let writes = DirectWrites::new(Between::exactly(5));
        let (one, two) = (writes.begin(7, (5, 10), true), writes.begin(7, (15, 10), true));
        writes.placed(two, Before { len: 110, sure: true, at: 110 });
        writes.placed(one, Before { len: 100, sure: true, at: 100 });
        writes.stored(one, 110, false);
        writes.ended(two, false, AT);
        writes.ended(one, true, AT);
        writes
    }

    #[test]
    fn what_the_kernel_undoes_is_told_from_what_a_program_cuts() {
        let undone = failed().undone(7, 5, AT).expect("the kernel's");
        assert_eq!(undone.cuts_to(100), Some(100));
        assert_eq!(undone.cuts_to(104), Some(104), "others have stored there since");
        assert_eq!(undone.cuts_to(110), None);
        assert_eq!(undone.cuts_to(5000), None);
        assert_eq!(failed().undone(7, 4, AT), None, "another length");
        assert_eq!(failed().undone(8, 5, AT), None, "another handle");
        assert_eq!(failed().undone(7, 5, AT + UNDONE_WITHIN * 2), None, "long after");
        let writes = failed();
        writes.over();
        assert_eq!(writes.undone(7, 5, AT), None, "the write had ended");
        let writes = failed();
        writes.kernel_was_told(100);
        let more = writes.begin(7, (25, 10), true);
        assert_eq!(writes.undone(7, 5, AT), None, "it is on its way");
        writes.ended(more, true, AT);
        let writes = failed();
        writes.kernel_was_told(100);
        assert_eq!(writes.undone(7, 100, AT).and_then(|f| f.cuts_to(100)), Some(100));
        assert_eq!(writes.undone(7, 100, AT), None, "once");
    }

    /// Meta may have the length from this client.
    #[test]
    fn what_was_reported_is_cut_off_if_it_is_known_where_the_file_ended() {
        let writes = failed();
        writes.report();
        let undone = writes.undone(7, 5, AT).expect("the kernel's");
        assert_eq!(undone.cuts_to(110), Some(100));
        assert_eq!(undone.cuts_to(111), None);
        let from = |len, sure, at| Failed { from: Some(Before { len, sure, at }), ..undone };
        assert_eq!(from(110, true, 110).cuts_to(110), None, "nothing");
        // What the file had is not known for certain: nothing before the write's own place goes.
        assert_eq!(from(100, false, 100).cuts_to(110), Some(100));
        assert_eq!(from(50, false, 105).cuts_to(110), Some(105));
        assert_eq!(from(50, true, 105).cuts_to(110), Some(50));
    }
}
