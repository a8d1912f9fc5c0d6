//! io_uring: one wait for disk completions, socket readiness, the doorbell and timers.
//!
//! What tasks ask for is collected and handed to the kernel once a turn, with the wait itself. A turn that has
//! nothing to hand over and nothing to fetch makes no system call.

use super::commands::{Commands, Width};
use super::driver::{self, Direction, Driver, Owner, SourceKey};
use super::helpers::Helpers;
use super::notify::Bell;
use super::offload::Offload;
use super::ops::{Kind, OpTable, Way};
use super::ring::{COMPLETIONS_MAX, allow_workers, build, check};
use super::shares::Shares;
use crate::Instant;
use crate::backend::Command;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Operations on files of one directory that the kernel has at one time; more wait in their order. The messages, which are of no
/// directory, have as many.
pub(super) const RING_OPS_OF_DIRECTORY_MAX: usize = 512;
/// Messages are complete as soon as the kernel has taken them, and are no reason to end the wait; should one of them not be, the wait ends
/// for anything else after so many microseconds.
const POSTS_WAIT_US: u32 = 50;
/// A wait is no longer than this while the kernel has no room for requests.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a single read or write request (its length field has 32 bits).
const REQUEST_BYTES_MAX: usize = 1 << 30;

// The top byte of a request's number says what it is.
const TAG_SHIFT: u32 = 56;
const TAG_OP: u64 = 1;
const TAG_POLL: u64 = 2;
const TAG_BELL: u64 = 3;
const TAG_IGNORE: u64 = 4;
const TAG_COMMAND: u64 = 5;

/// `S`: how wide its requests are.
pub(crate) struct Uring<S: Width> {
    // In front of the commands: what they keep may only go when the kernel cannot touch it any more.
    ring: RefCell<IoUring<S>>,
    commands: Commands,
    bell: Bell,
    sources: RefCell<Sources>,
    ops: OpTable,
    /// Messages that are to be handed over: the kernel is done with them when it has taken them.
    posts: Cell<usize>,
    /// The kernel can wait for several completions, but not for long.
    patient: bool,
    /// Operations that the kernel has, and such that wait for their turn.
    shares: RefCell<Shares<usize>>,
    /// Other requests that the kernel had no room for, in their order.
    held: RefCell<VecDeque<S>>,
    /// The kernel had no room for what was asked: it is asked again in the next turn.
    refused: Cell<bool>,
    /// When the last wait ended: what is handed over until the next one counts from then on, so that no clock is asked for each operation.
    turned: Cell<Instant>,
    offload: Offload,
    completions: RefCell<Vec<(u64, i32, u32)>>,
}

#[derive(Default)]
struct Sources {
    last: u64,
    all: BTreeMap<u64, Entry>,
}

struct Entry {
    fd: RawFd,
    wakers: [Option<Waker>; 2],
    events: [bool; 2],
    armed: [bool; 2],
}

/// The kernel could not take requests now, and can later: it has no memory for them, or completions are to be fetched first.
fn no_room(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
}

/// How long to wait for `want` completions; after that, one is enough.
fn patience(want: usize) -> types::SubmitArgs<'static, 'static> {
    types::SubmitArgs::new().min_wait_usec(if want > 1 { POSTS_WAIT_US } else { 0 })
}

#[cfg(test)]
thread_local! {
    /// So many times more, handing over in mid-turn answers that the kernel has no room.
    pub(super) static NO_ROOM: Cell<u32> = const { Cell::new(0) };
}

impl<S: Width> Uring<S> {
    pub(crate) fn new(bell: Bell, offload: Offload) -> io::Result<Self> {
        let ring = build::<S>()?;
        check(&ring)?;
        let patient = ring.params().is_feature_min_timeout();
        let new = Self {
            ring: RefCell::new(ring),
            commands: Commands::default(),
            bell,
            sources: RefCell::default(),
            ops: OpTable::default(),
            posts: Cell::new(0),
            patient,
            shares: RefCell::new(Shares::new(RING_OPS_OF_DIRECTORY_MAX)),
            held: RefCell::default(),
            refused: Cell::new(false),
            turned: Cell::new(super::boottime()),
            offload,
            completions: RefCell::new(Vec::with_capacity(COMPLETIONS_MAX as usize)),
        };
        new.arm_bell()?;
        Ok(new)
    }

    /// How many threads the kernel may have for what blocks.
    #[cfg(test)]
    pub(super) fn workers_max(&self) -> io::Result<u32> {
        let mut bounds = [0; 2];
        self.ring.borrow().submitter().register_iowq_max_workers(&mut bounds)?;
        Ok(bounds[0])
    }

    /// Puts a request in the queue; hands the queue over if it is full.
    ///
    /// # Safety
    /// What the request points to stays valid until its completion.
    unsafe fn push(&self, entry: &S) -> io::Result<()> {
        let mut ring = self.ring.borrow_mut();
        loop {
            // SAFETY: the caller's promise.
            if unsafe { ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            match self.hand_over(&ring) {
                Ok(_) => self.posts.set(0),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    #[cfg(test)]
    fn hand_over(&self, ring: &IoUring<S>) -> io::Result<usize> {
        if let Some(left) = NO_ROOM.get().checked_sub(1) {
            NO_ROOM.set(left);
            return Err(io::Error::from_raw_os_error(
                [libc::EAGAIN, libc::EBUSY][left as usize % 2],
            ));
        }
        ring.submit()
    }
    #[cfg(not(test))]
    fn hand_over(&self, ring: &IoUring<S>) -> io::Result<usize> {
        ring.submit()
    }

    /// Puts a request in the queue: now, or when the kernel has room again.
    ///
    /// # Safety
    /// What the request points to stays valid until its completion, or until the ring is closed.
    unsafe fn push_or_hold(&self, entry: S) -> io::Result<()> {
        // Not past those that are held: what takes back must not come before what it takes back.
        if self.held.borrow().is_empty() {
            // SAFETY: the caller's promise.
            match unsafe { self.push(&entry) } {
                Err(e) if no_room(&e) => self.refused.set(true),
                other => return other,
            }
        }
        self.held.borrow_mut().push_back(entry);
        Ok(())
    }
    /// The same for one that points to nothing.
    fn push_plain(&self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: it points to nothing.
        unsafe { self.push_or_hold(S::from(entry)) }
    }

    /// Asks again for what the kernel had no room for.
    fn ask_again(&self) -> io::Result<()> {
        if !self.refused.take() {
            return Ok(());
        }
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for entry in held {
            // SAFETY: whoever had it held has promised.
            unsafe { self.push_or_hold(entry)? };
        }
        self.begin_waiting();
        Ok(())
    }

    fn arm_bell(&self) -> io::Result<()> {
        let fd = types::Fd(self.bell.fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        self.push_plain(entry.user_data(TAG_BELL << TAG_SHIFT))
    }

    /// Hands an operation's next system call to the ring. The table keeps its memory until `finish`.
    fn begin(&self, key: usize) -> io::Result<()> {
        let Some(call) = self.ops.call(key) else { return Ok(()) };
        call.check_time(|| self.turned.get())?;
        let fd = types::Fd(call.fd);
        let (iovecs, count) = call.iovecs();
        let single = call.single().map(|(ptr, len)| (ptr, len.min(REQUEST_BYTES_MAX) as u32));
        let entry = match (call.kind, single) {
            (Kind::Read, Some((ptr, len))) => {
                opcode::Read::new(fd, ptr, len).offset(call.offset).build()
            }
            (Kind::Read, None) => opcode::Readv::new(fd, iovecs, count).offset(call.offset).build(),
            (Kind::Write, Some((ptr, len))) => {
                opcode::Write::new(fd, ptr, len).offset(call.offset).build()
            }
            (Kind::Write, None) => {
                opcode::Writev::new(fd, iovecs, count).offset(call.offset).build()
            }
            (Kind::Post, _) => {
                // As in write(2): where the file stands.
                opcode::Writev::new(fd, iovecs, count).offset(u64::MAX).build()
            }
            (Kind::Sync, _) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            (Kind::Allocate | Kind::Punch, _) => opcode::Fallocate::new(fd, call.len)
                .offset(call.offset)
                .mode(call.fallocate_mode())
                .build(),
            // Never comes here: helper threads do it.
            (Kind::SetLen, _) => return Err(io::ErrorKind::Unsupported.into()),
        };
        // SAFETY: the table keeps descriptor, iovecs and buffers until the completion was handed to `finish`.
        unsafe { self.push(&S::from(entry.user_data((TAG_OP << TAG_SHIFT) | key as u64)))? };
        self.ops.handed_over(key, self.turned.get());
        if call.kind == Kind::Post {
            self.posts.set(self.posts.get() + 1);
        }
        Ok(())
    }

    /// Begins an operation that has a place in its owner's share; if the kernel has no room for it, it is the first to be begun later.
    fn begin_or_fail(&self, owner: usize, key: usize) {
        match self.begin(key) {
            Ok(()) => {}
            Err(e) if no_room(&e) => {
                self.refused.set(true);
                self.shares.borrow_mut().put_back(owner, key);
            }
            // Never handed over, so nothing refers to its memory.
            Err(e) => {
                self.ops.finish(key, Err(e));
                self.shares.borrow_mut().ended(owner);
            }
        }
    }

    fn begin_waiting(&self) {
        while !self.refused.get() {
            let Some((owner, key)) = self.shares.borrow_mut().next() else { break };
            self.begin_or_fail(owner, key);
        }
    }

    fn on_poll(&self, data: u64) {
        let (key, direction) = (data >> 1, (data & 1) as usize);
        let waker = {
            let mut sources = self.sources.borrow_mut();
            let Some(entry) = sources.all.get_mut(&key) else { return };
            entry.armed[direction] = false;
            entry.events[direction] = true;
            entry.wakers[direction].take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }

    fn on_op(&self, key: usize, result: i32) {
        // One whose memory was leaked counts for nobody any more.
        let Some((owner, _)) = self.ops.owner(key) else { return };
        let result = match usize::try_from(result) {
            Ok(n) => Ok(n),
            // Cancelled by nobody here: the kernel gave up on a worker. Like an interrupted call.
            Err(_) if -result == libc::ECANCELED => Err(io::ErrorKind::Interrupted.into()),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        if self.ops.finish(key, result) {
            self.begin_or_fail(owner.ops, key);
        } else {
            self.shares.borrow_mut().ended(owner.ops);
        }
        self.begin_waiting();
    }

    fn fetch(&self) -> io::Result<()> {
        let mut batch = std::mem::take(&mut *self.completions.borrow_mut());
        batch.extend(
            self.ring.borrow_mut().completion().map(|c| (c.user_data(), c.result(), c.flags())),
        );
        for (data, result, flags) in batch.drain(..) {
            let low = data & ((1 << TAG_SHIFT) - 1);
            match data >> TAG_SHIFT {
                TAG_OP => self.on_op(low as usize, result),
                TAG_POLL => self.on_poll(low),
                TAG_COMMAND => self.commands.answered(low as usize, result),
                TAG_BELL => {
                    self.bell.drain();
                    if !cqueue::more(flags) {
                        self.arm_bell()?;
                    }
                }
                _ => {}
            }
        }
        *self.completions.borrow_mut() = batch;
        Ok(())
    }

    fn enter(&self, timeout: Option<Duration>) -> io::Result<()> {
        let posts = self.posts.take();
        let want = if self.patient { posts + 1 } else { 1 };
        let mut ring = self.ring.borrow_mut();
        let outcome = match timeout {
            _ if !ring.completion().is_empty() => ring.submit(),
            Some(Duration::ZERO) => {
                let queue = ring.submission();
                let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
                drop(queue);
                if needed { ring.submit() } else { Ok(0) }
            }
            None if want == 1 => ring.submit_and_wait(1),
            None => ring.submitter().submit_with_args(want, &patience(want)),
            Some(d) => {
                let spec = types::Timespec::new().sec(d.as_secs()).nsec(d.subsec_nanos());
                let args = patience(want).timespec(&spec);
                ring.submitter().submit_with_args(want, &args)
            }
        };
        if S::COMMANDS && self.held.borrow().is_empty() && ring.submission().is_empty() {
            self.commands.handed_over();
        }
        match outcome.map_err(|e| (e.raw_os_error(), e)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {
                Ok(())
            }
            Err((_, e)) => Err(e),
        }
    }
}

impl<S: Width> Driver for Uring<S> {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn add_source(&self, fd: RawFd) -> SourceKey {
        let mut sources = self.sources.borrow_mut();
        sources.last += 1;
        let key = sources.last;
        let entry = Entry { fd, wakers: [None, None], events: [false; 2], armed: [false; 2] };
        sources.all.insert(key, entry);
        SourceKey(key)
    }

    fn arm(&self, key: SourceKey, direction: Direction, waker: &Waker) -> io::Result<()> {
        let fd = {
            let mut sources = self.sources.borrow_mut();
            let Some(entry) = sources.all.get_mut(&key.0) else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            match &mut entry.wakers[direction as usize] {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            if std::mem::replace(&mut entry.armed[direction as usize], true) {
                return Ok(());
            }
            entry.fd
        };
        let events = match direction {
            Direction::Read => libc::POLLIN | libc::POLLRDHUP,
            Direction::Write => libc::POLLOUT,
        };
        let data = (TAG_POLL << TAG_SHIFT) | (key.0 << 1) | direction as u64;
        self.push_plain(opcode::PollAdd::new(types::Fd(fd), events as u32).build().user_data(data))
    }

    fn take_event(&self, key: SourceKey, direction: Direction) -> bool {
        let mut sources = self.sources.borrow_mut();
        let entry = sources.all.get_mut(&key.0);
        entry.is_some_and(|e| std::mem::take(&mut e.events[direction as usize]))
    }

    fn remove_source(&self, key: SourceKey) {
        let Some(entry) = self.sources.borrow_mut().all.remove(&key.0) else { return };
        for direction in 0..2 {
            if entry.armed[direction as usize] {
                let data = (TAG_POLL << TAG_SHIFT) | (key.0 << 1) | direction;
                let cancel = opcode::AsyncCancel::new(data).build();
                let pushed = self.push_plain(cancel.user_data(TAG_IGNORE << TAG_SHIFT));
                // If it fails the poll stays until the descriptor's end wakes it; nobody listens to it.
                drop(pushed);
            }
        }
    }

    fn arms_by_level(&self) -> bool {
        // A poll request first looks whether the descriptor is ready already.
        true
    }

    fn batches(&self) -> bool {
        true
    }

    fn add_owner(&self) -> Owner {
        let mut shares = self.shares.borrow_mut();
        let owner = Owner { ops: shares.add(), jobs: self.helpers().add_owner() };
        allow_workers(&self.ring.borrow(), shares.most());
        owner
    }

    fn remove_owner(&self, owner: Owner) {
        self.shares.borrow_mut().leave(owner.ops);
        self.helpers().remove_owner(owner.jobs);
    }

    fn under_way_since(&self, owner: Owner) -> Option<Instant> {
        let asked = self.ops.under_way_since(owner.ops);
        asked.into_iter().chain(self.helpers().under_way_since(owner.jobs)).min()
    }

    fn helpers(&self) -> &Helpers {
        self.offload.helpers()
    }

    fn ops(&self) -> &OpTable {
        &self.ops
    }

    fn start(&self, key: usize) {
        // One that is done from the start has nothing to begin.
        let Some((owner, way)) = self.ops.owner(key) else { return };
        if way != Way::Ring {
            return self.offload.start(&self.ops, key);
        }
        let mut shares = self.shares.borrow_mut();
        if !self.refused.get() && shares.begin_now(owner.ops) {
            drop(shares);
            self.begin_or_fail(owner.ops, key);
        } else {
            // It begins when one of the same owner ends, or when the kernel is asked again.
            shares.push(owner.ops, key);
        }
    }

    fn takes_commands(&self) -> bool {
        S::COMMANDS
    }

    /// # Safety
    ///
    /// As of [`Backend::command`]: the memory that the driver touches lives as long as the command's `keep`.
    unsafe fn command(&self, command: Command) -> bool {
        let Some(mut entry) = S::command(&command) else { return false };
        let key = self.commands.next_key();
        entry.set_user_data((TAG_COMMAND << TAG_SHIFT) | key as u64);
        // SAFETY: the caller's promise. `keep` comes into the table below before an answer can be taken (only `turn` does that), and is there until the answer, or until
        // the ring is closed. If the entry is not taken the kernel has never seen it.
        let pushed = unsafe { self.push_or_hold(entry) }.is_ok();
        if pushed {
            self.commands.insert(command);
        }
        pushed
    }

    fn poll_handed_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.held.borrow().is_empty() && self.ring.borrow_mut().submission().is_empty() {
            return Poll::Ready(());
        }
        self.commands.wait_until_handed_over(cx);
        Poll::Pending
    }

    fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.offload.has_results() { Some(Duration::ZERO) } else { timeout };
        let timeout = if self.refused.get() {
            // Most likely its memory is short: it gets a moment.
            Some(timeout.unwrap_or(ROOM_PAUSE).min(ROOM_PAUSE))
        } else {
            timeout
        };
        self.enter(timeout)?;
        self.turned.set(super::boottime());
        self.fetch()?;
        self.ask_again()?;
        self.offload.collect(&self.ops);
        Ok(())
    }

    fn drain(&self) {
        driver::drain(self, || self.bell.about_to_sleep());
    }
}

impl<S: Width> Drop for Uring<S> {
    fn drop(&mut self) {
        // Files may outlive the runtime and begin operations; their memory must not be freed under them.
        self.drain();
    }
}
