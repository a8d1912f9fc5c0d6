//! User-space rings: applications hand in reads and writes through shared memory ([`glowfs_usrbio`], docs/formats/rings.md).
//!
//! An open directory of the mount is a session; what belongs to it (memory, files, rings) goes when it is closed, so also when the
//! application is killed. Guarantees: an application reaches only files that it has open, with the rights that they are open with; whatever
//! stands in its memory, or is not there any more, only its own rings suffer (of rings' memory see [`room`]). Must never: wait for an application, or use a value of shared memory without having
//! copied and checked it.

mod adopt;
mod closing;
mod control;
mod copies;
mod forget;
mod names;
mod perform;
mod room;
mod serve;
mod session;
mod threads;
mod turns;

use closing::Closing;
use copies::Copies;
use forget::Forgetting;
use glowfs_rt::sync::Semaphore;
use glowfs_rt::sync::Shares;
use names::Names;
use room::Room;
use session::Session;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use threads::{Bounds, Threads};
use turns::{Turn, Turns};

/// Sessions of a mount at a time, of all users; none gets all of them ([`Shares`]).
const SESSIONS_MAX: usize = 4096;
/// Files of a session.
const FILES_MAX: usize = 65_536;
/// Operations of all rings that were taken and are not answered: each is a task here, of a few KiB. What waits beyond that stays in the memory
/// of the applications.
const OPERATIONS_MAX: usize = 16_384;
/// The same for one session: whose storage does not answer leaves room for others.
const SESSION_OPERATIONS_MAX: usize = 4096;
/// Bytes of operations of all rings in work at a time: what they need in memory of the daemon's own.
const WORK_BYTES_MAX: usize = 128 << 20;

/// The same for one session.
const SESSION_WORK_BYTES_MAX: usize = 32 << 20;

/// Helper threads that look at descriptors of applications, and of one user's.
const ADOPTERS: (usize, usize) = (4, 2);
/// Of the requests of a mount that may be outstanding one in so many may wait for such a thread, and of one user's.
const LINE_PART: (usize, usize) = (2, 4);

/// What a mount may have of others at most.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Descriptors of its process.
    pub descriptors: u64,
    /// Mappings of its process.
    pub mappings: u64,
    /// Requests of the kernel that are outstanding.
    pub requests: usize,
}

/// The sessions of a mount.
pub struct Rings {
    /// By the directory handle.
    sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    session_shares: Shares<u32>,
    turns: Turns,
    next: Cell<u32>,
    room: Rc<Room>,
    adoptions: Threads,
    copies: Copies,
    closing: Rc<Closing>,
    names: Rc<Names>,
    forgetting: Forgetting,
    /// Operations that may still be taken.
    operations: Semaphore,
}

impl Rings {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        let Limits { descriptors, mappings, requests } = limits;
        let adopters = Bounds {
            threads: ADOPTERS.0,
            of_user: ADOPTERS.1,
            line: (requests / LINE_PART.0).max(1),
            line_of_user: (requests / LINE_PART.1).max(1),
        };
        Self {
            sessions: RefCell::default(),
            session_shares: Shares::new(SESSIONS_MAX),
            turns: Turns::new(WORK_BYTES_MAX),
            next: Cell::new(1),
            room: Room::new(descriptors, mappings),
            adoptions: Threads::new(adopters),
            copies: Copies::new(),
            closing: Rc::default(),
            names: Rc::default(),
            forgetting: Forgetting::default(),
            operations: Semaphore::new(OPERATIONS_MAX),
        }
    }
    /// The right to have so many bytes of a session in work: first of the session's own share, so that one whose storage does not answer holds no
    /// more of what is everybody's than that.
    async fn turn(&self, session: &Session, bytes: usize, priority: i32) -> (Turn, Turn) {
        let of_session = session.turns.take(bytes, session.user, priority).await;
        (of_session, self.turns.take(bytes, session.user, priority).await)
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
    /// A number for one more of these, all of a session. They are those of the mount and wrap, so what has lived for long may still have the next one.
    fn number<T>(&self, taken: &BTreeMap<u32, T>) -> u32 {
        loop {
            let n = self.next.get();
            self.next.set(n.wrapping_add(1).max(1));
            if !taken.contains_key(&n) {
                return n;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    const LIMITS: Limits = Limits { descriptors: 10_000, mappings: 65_530, requests: 1024 };

    fn now<F: Future>(f: Pin<&mut F>) -> Option<F::Output> {
        match f.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    /// Whoever registers and forgets brings the numbers round, and what had a number for long was replaced by what came then.
    #[test]
    fn a_number_that_a_session_has_is_not_given_again() {
        let rings = Rings::new(LIMITS);
        let mut files = BTreeMap::new();
        for _ in 0..2 {
            let n = rings.number(&files);
            assert!(files.insert(n, ()).is_none());
        }
        rings.next.set(u32::MAX);
        let last = rings.number(&files);
        assert_eq!((last, rings.number(&files)), (u32::MAX, 3));
    }

    #[test]
    fn a_session_at_a_standstill_leaves_turns_to_others() {
        const PIECE: usize = 4 << 20;
        let rings = Rings::new(LIMITS);
        let session = || Session::new(0, 0, rings.session_shares.take(0).unwrap());
        let (stuck, lively) = (session(), session());
        // Its storage does not answer: it asks for all it can get, and gives nothing back.
        let mut waiting: Vec<_> =
            (0..64).map(|_| Box::pin(rings.turn(&stuck, PIECE, -1))).collect();
        let held: Vec<_> = waiting.iter_mut().filter_map(|w| now(w.as_mut())).collect();
        assert_eq!(held.len(), SESSION_WORK_BYTES_MAX / PIECE);
        let others: Vec<_> =
            (0..8).filter_map(|_| now(pin!(rings.turn(&lively, PIECE, 0)))).collect();
        assert_eq!(others.len(), 8, "though they are less urgent");
        drop(held);
        let next: Vec<_> = waiting.iter_mut().skip(8).filter_map(|w| now(w.as_mut())).collect();
        assert_eq!(next.len(), 8, "what waits goes on");
    }
}
