//! FUSE over io_uring (Linux 6.14): requests arrive as completions of the runtime's own ring, and an answer leaves with the turn's one
//! system call, which brings the next request as well.
//!
//! The kernel has a queue for each processor, and puts a request into a free *entry* of the queue where the caller runs; what finds none
//! waits until an answer frees one. FORGET, INTERRUPT and notifications stay with `/dev/fuse`.
//!
//! A request that waits for others (a lock) would keep its entry, and so keep out what it waits for. So a queue gets one more entry for
//! each that parks. But the kernel looks for waiting requests only when an answer is given, not when an entry comes: so the last
//! entry of a queue that is sure to be answered must not park ([`Queues::park`]).

mod entry;
mod memory;

pub(crate) use entry::{Body, Entry};

use crate::abi::{self, UringCmdReq};
use crate::request::{BadRequest, Request};
use entry::State;
use glowfs_rt::backend::{COMMAND_BYTES, Command, Commanded};
use glowfs_rt::{Buf, Rt};
use memory::Window;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use zerocopy::IntoBytes;

/// The part of the buffer pool that entries may reserve, as a divisor.
const POOL_SHARE: u64 = 4;
/// With fewer entries a queue this transport is not worth it.
const ENTRIES_MIN: usize = 4;
/// Entries that a mount adds for requests that park, at most. They have memory of their own, which is taken as it is used.
const EXTRA_ENTRIES_MAX: usize = 1024;
/// The kernel's least payload (FUSE_MIN_READ_BUFFER and its own lists) that we accept: an xattr of 64 KiB and its name must fit.
const PAYLOAD_BYTES_MIN: usize = 128 << 10;
/// Processors of a machine, at most, that we believe in.
const QUEUES_MAX: usize = 4096;
/// Which processors the kernel may ever have: a queue each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// The entries of one processor, counted.
#[derive(Default)]
struct Queue {
    entries: Cell<usize>,
    /// Those that are parked, new ([`State::AwayAndNew`]) or dead.
    unsure: Cell<usize>,
}

impl Queue {
    /// Entries that the kernel fetches with, or that are going to be answered.
    fn sure(&self) -> usize {
        self.entries.get() - self.unsure.get()
    }
    fn add_unsure(&self, n: isize) {
        self.unsure.set(self.unsure.get().saturating_add_signed(n));
    }
}

/// See the module.
pub(crate) struct Queues {
    rt: Rt,
    fd: Arc<OwnedFd>,
    payload_bytes: usize,
    queues: Vec<Queue>,
    entries: RefCell<Vec<Rc<Entry>>>,
    extra: Cell<usize>,
    ready: RefCell<VecDeque<Rc<Entry>>>,
    reader: RefCell<Option<std::task::Waker>>,
    scratch: RefCell<Vec<u8>>,
    /// Payloads that somebody had longer than his request lived.
    moved: Cell<u64>,
    this: Weak<Self>,
}

/// A request that has come, or what is wrong with it; and its entry.
pub(crate) type Taken = (Rc<Entry>, Result<(Request, Option<Buf>), BadRequest>);

impl Queues {
    /// Makes the entries, `depth` for each processor or as many as the pool has room for. Not known to the kernel yet.
    pub(crate) fn new(
        rt: &Rt,
        fd: Arc<OwnedFd>,
        max_write: u32,
        depth: usize,
    ) -> io::Result<Rc<Self>> {
        if !rt.takes_commands() {
            return Err(io::Error::other("this runtime's ring takes no commands"));
        }
        let payload_bytes = (max_write as usize).next_multiple_of(4096);
        if payload_bytes < PAYLOAD_BYTES_MIN {
            return Err(io::Error::other(format!(
                "requests of {payload_bytes} bytes are too small for it; it needs {PAYLOAD_BYTES_MIN}"
            )));
        }
        let queues = count_processors(&std::fs::read_to_string(POSSIBLE)?)
            .filter(|n| *n <= QUEUES_MAX)
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE} makes no sense")))?;
        let room = rt.pool().stats().bytes_max / POOL_SHARE / (queues * payload_bytes) as u64;
        let depth = depth.min(usize::try_from(room).unwrap_or(usize::MAX));
        if depth < ENTRIES_MIN {
            return Err(io::Error::other(format!(
                "{queues} queues of {ENTRIES_MIN} entries of {payload_bytes} bytes would take more than a quarter of the buffer pool"
            )));
        }
        let new = Rc::new_cyclic(|this| Self {
            rt: rt.clone(),
            fd,
            payload_bytes,
            queues: (0..queues).map(|_| Queue::default()).collect(),
            entries: RefCell::default(),
            extra: Cell::new(0),
            ready: RefCell::default(),
            reader: RefCell::default(),
            scratch: RefCell::default(),
            moved: Cell::new(0),
            this: this.clone(),
        });
        for queue in 0..queues {
            for _ in 0..depth {
                let window = Window::on_pool(rt.pool(), payload_bytes)?;
                new.add(queue as u16, State::Away, window);
            }
        }
        Ok(new)
    }

    fn add(&self, queue: u16, state: State, window: Window) -> Rc<Entry> {
        let mut all = self.entries.borrow_mut();
        let entry = Rc::new(Entry::new(all.len(), queue, state, window));
        all.push(entry.clone());
        let counts = &self.queues[usize::from(queue)];
        counts.entries.set(counts.entries.get() + 1);
        if state == State::AwayAndNew {
            counts.add_unsure(1);
        }
        entry
    }

    /// Tells the kernel of all entries. From the last queue's first one on it sends requests here.
    pub(crate) fn register(&self) {
        let all = self.entries.borrow().clone();
        tracing::debug!(queues = self.queues.len(), entries = all.len(), "FUSE over io_uring");
        for entry in all {
            self.command(&entry, abi::URING_REGISTER, entry.places());
        }
    }

    fn command(&self, entry: &Rc<Entry>, op: u32, place: (*const libc::iovec, u32)) {
        let mut data = [0; COMMAND_BYTES];
        let request = UringCmdReq {
            flags: 0,
            commit_id: entry.commit_id.get(),
            qid: entry.queue,
            padding: [0; 6],
        };
        data[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        let command = Command {
            fd: self.fd.clone(),
            op,
            place,
            data,
            keep: entry.clone(),
            tell: self.this.clone(),
            tag: entry.number as u64,
        };
        // SAFETY: FUSE reads and writes the headers and the payload of this entry only, which live as long as it; and it does so only
        // as it takes the command, or as this thread runs the ring, until the command is answered.
        if !unsafe { self.rt.command(command) } {
            tracing::error!(entry = entry.number, "the ring takes no command; its entry is lost");
            self.set(entry, State::Dead);
        }
    }

    /// Changes who has an entry, and the counts with it.
    fn set(&self, entry: &Entry, state: State) {
        let unsure = |s| matches!(s, State::AwayAndNew | State::Parked | State::Dead);
        let was = entry.state.replace(state);
        self.queues[usize::from(entry.queue)]
            .add_unsure(isize::from(unsure(state)) - isize::from(unsure(was)));
    }

    /// The next request that has come.
    pub(crate) fn take(&self) -> Option<Taken> {
        let entry = self.ready.borrow_mut().pop_front()?;
        let request = entry.request(&self.rt, &mut self.scratch.borrow_mut());
        Some((entry, request))
    }
    /// Whether [`Queues::take`] has something.
    pub(crate) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.ready.borrow().is_empty() {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Answers, and asks for the next request.
    pub(crate) fn answer(&self, entry: &Rc<Entry>, unique: u64, error: i32, body: Body<'_>) {
        if !matches!(entry.state.get(), State::Here | State::Parked) {
            return;
        }
        match entry.answer(self.rt.pool(), unique, error, body) {
            Ok(false) => {}
            Ok(true) => {
                self.moved.set(self.moved.get() + 1);
                tracing::debug!(unique, moved = self.moved.get(), "a payload is still in use");
            }
            Err(error) => {
                // The kernel would write into what is not ours to give.
                tracing::error!(unique, %error, "an answer is lost: no memory for its entry");
                self.set(entry, State::Dead);
                return;
            }
        }
        self.set(entry, State::Away);
        self.command(entry, abi::URING_COMMIT_AND_FETCH, (std::ptr::null(), 0));
    }

    /// The request is going to wait for other requests. False: it must not, for nothing would fetch those that wait behind it.
    ///
    /// A queue goes on as long as one entry is sure: what is to be answered fetches when it is, and what was answered is fetched into
    /// at once, if anything waits. A new one is not: it takes a request that comes later, but none that waits already.
    pub(crate) fn park(&self, entry: &Entry) -> bool {
        let queue = &self.queues[usize::from(entry.queue)];
        match entry.state.get() {
            State::Here if queue.sure() > 1 => {}
            State::Here => return false,
            _ => return true,
        }
        self.set(entry, State::Parked);
        if self.extra.get() < EXTRA_ENTRIES_MAX {
            match Window::private(self.payload_bytes) {
                Ok(window) => {
                    self.extra.set(self.extra.get() + 1);
                    let more = self.add(entry.queue, State::AwayAndNew, window);
                    self.command(&more, abi::URING_REGISTER, more.places());
                }
                Err(error) => tracing::warn!(%error, "no memory for one more entry"),
            }
        }
        true
    }
}

impl Commanded for Queues {
    fn commanded(&self, tag: u64, answer: i32) {
        let entry = usize::try_from(tag).ok().and_then(|n| self.entries.borrow().get(n).cloned());
        let Some(entry) = entry else { return };
        if answer < 0 {
            let error = io::Error::from_raw_os_error(-answer);
            let ended = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENODEV];
            if !ended.contains(&-answer) {
                tracing::error!(%error, entry = tag, queue = entry.queue, "the kernel refused an entry");
            }
            self.set(&entry, State::Dead);
            return;
        }
        if !matches!(entry.state.get(), State::Away | State::AwayAndNew) {
            tracing::error!(entry = tag, "the kernel answered for an entry that it did not have");
            return;
        }
        self.set(&entry, State::Here);
        self.ready.borrow_mut().push_back(entry);
        if let Some(reader) = self.reader.borrow_mut().take() {
            reader.wake();
        }
    }
}

/// The number of processors in a list like `0-3,8`.
fn count_processors(list: &str) -> Option<usize> {
    let mut count = 0usize;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::{Duration, real};

    #[test]
    fn processors_are_counted() {
        for (list, n) in [("0", 1), ("0-1\n", 2), ("0-3,8", 5), ("1,3,5-6", 4)] {
            assert_eq!(count_processors(list), Some(n), "{list}");
        }
        for list in ["", "\n", "a", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count_processors(list), None, "{list}");
        }
    }

    /// `/dev/null` answers every command at once: as if a request had come.
    #[test]
    fn the_last_sure_entry_of_a_queue_does_not_park() {
        let config = real::Config { commands: true, ..real::Config::default() };
        let work = |rt: Rt| async move {
            if !rt.takes_commands() {
                eprintln!("SKIPPED: this kernel's io_uring takes no commands");
                return;
            }
            let null = std::fs::File::open("/dev/null").expect("it is there");
            let queues = Queues::new(&rt, Arc::new(null.into()), 1 << 20, 4).expect("made");
            let first = queues.entries.borrow()[..4].to_vec();
            assert!(first.iter().all(|e| e.queue == 0));
            queues.register();
            let arrive = async |n| {
                while queues.ready.borrow().len() < n {
                    rt.sleep(Duration::from_millis(1)).await;
                }
            };
            let all = queues.entries.borrow().len();
            arrive(all).await;
            for e in &first[..3] {
                assert!(queues.park(e) && queues.park(e), "others are left, and twice is once");
            }
            assert_eq!(queues.entries.borrow().len(), all + 3, "one more for each");
            assert!(!queues.park(&first[3]), "what waits already would wait for ever");
            // The new ones are used, so they are going to be answered.
            arrive(all + 3).await;
            assert!(queues.park(&first[3]));
            assert_eq!((queues.queues[0].entries.get(), queues.queues[0].sure()), (8, 3));
            for e in &first {
                queues.answer(e, 1, 0, Body::Parts(&[]));
            }
            assert_eq!(queues.queues[0].sure(), 7, "all but the newest");
            queues.ready.borrow_mut().clear();
            arrive(5).await;
            assert_eq!(queues.queues[0].sure(), 8);
            // What is over is no use to the queue.
            queues.commanded(0, -libc::ENOTCONN);
            assert_eq!((first[0].state.get(), queues.queues[0].sure()), (State::Dead, 7));
            queues.answer(&first[0], 1, 0, Body::Parts(&[]));
            assert_eq!(first[0].state.get(), State::Dead);
        };
        real::run_with(config, work).expect("a runtime");
    }

    #[test]
    fn what_cannot_be_is_not_begun() {
        let config = |pool_bytes| real::Config { commands: true, pool_bytes, ..Default::default() };
        let work = |rt: Rt| async move {
            let null = std::fs::File::open("/dev/null").expect("it is there");
            let null: Arc<OwnedFd> = Arc::new(null.into());
            assert!(Queues::new(&rt, null.clone(), 64 << 10, 4).is_err(), "requests too small");
            assert!(Queues::new(&rt, null, 1 << 20, 4).is_err(), "pool too small");
        };
        real::run_with(config(8 << 20), work).expect("a runtime");
    }
}
