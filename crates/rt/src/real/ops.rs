//! Operations on files, and the table that keeps their buffers alive until the kernel is done with them.

use super::driver::{Driver, Owner};
use crate::backend::{POST_HEAD_BYTES, Post, Posted, late};
use crate::{Buf, BufMut, Instant};
use slab::Slab;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// iovecs per system call (the kernel's own bound, UIO_MAXIOV).
const IOVECS_MAX: usize = 1024;
/// Direct I/O at addresses that are not multiples of this cannot be continued.
const DIRECT_ALIGN: usize = 512;

/// Bytes of an operation on a file in memory that this thread does itself. Larger ones are worth waking another thread, which copies while this one does something else.
const HERE_BYTES_MAX: usize = 64 << 10;

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    /// A message: one write, whatever comes of it.
    Post,
    Sync,
    Allocate,
    Punch,
    SetLen,
}

/// Who makes its system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The kernel, asked by a ring, where there is one.
    Ring,
    /// Helper threads: the ring cannot.
    Helper,
    /// This thread ([`super::here`]).
    Here,
}

/// One operation on a file.
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Whose share it takes.
    owner: Owner,
    way: Way,
    pub(crate) fd: Arc<OwnedFd>,
    /// Where the next system call begins.
    pub(crate) offset: u64,
    /// Allocate, Punch, SetLen: how much.
    pub(crate) len: u64,
    pub(crate) direct: bool,
    /// Nothing of it is begun after that.
    by: Instant,
    /// The memory of what is left to do; points into `keep`.
    iovecs: Vec<libc::iovec>,
    keep: Keep,
    done: usize,
    state: State,
    /// Since when a ring of the kernel has its system call.
    under_way: Option<Instant>,
    waker: Option<Waker>,
    /// Post: whom to tell, and with which tag.
    tell: Option<(Rc<dyn Posted>, u64)>,
}

/// The buffers of an operation.
#[derive(Default)]
pub(crate) struct Keep {
    pub(crate) read: Option<BufMut>,
    /// Only kept alive.
    _write: Vec<Buf>,
    /// Only kept alive, where it is.
    _post: Option<(Box<[u8; POST_HEAD_BYTES]>, Buf)>,
}

enum State {
    Running,
    /// Nobody waits for it any more.
    Abandoned,
    Done(io::Result<usize>),
}

/// The memory of one system call, for another thread.
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    pub(crate) way: Way,
    /// The operation keeps it open.
    pub(crate) fd: RawFd,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    by: Instant,
    iovecs: *const libc::iovec,
    count: usize,
}
// SAFETY: the op table keeps the descriptor open, and the iovecs and what they point to alive and untouched, until the call is reported back.
unsafe impl Send for Call {}

impl Op {
    /// An operation without buffers.
    pub(crate) fn plain(kind: Kind, fd: &Arc<OwnedFd>, offset: u64, len: u64) -> Self {
        Self {
            kind,
            owner: Owner::NOBODY,
            way: if kind == Kind::SetLen { Way::Helper } else { Way::Ring },
            fd: fd.clone(),
            offset,
            len,
            direct: false,
            by: Instant::NEVER,
            iovecs: Vec::new(),
            keep: Keep::default(),
            done: 0,
            state: State::Running,
            under_way: None,
            waker: None,
            tell: None,
        }
    }
    pub(crate) fn post(post: Post) -> Self {
        let Post { fd, head, payload, tell, tag } = post;
        let head = Box::new(head);
        let iovec =
            |b: &[u8]| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
        let iovecs = vec![iovec(&*head), iovec(&payload)];
        let keep = Keep { _post: Some((head, payload)), ..Keep::default() };
        Self { iovecs, keep, tell: Some((tell, tag)), ..Self::plain(Kind::Post, &fd, 0, 0) }
    }
    pub(crate) fn read(fd: &Arc<OwnedFd>, direct: bool, mut buf: BufMut, offset: u64) -> Self {
        let iovecs = vec![libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
        let keep = Keep { read: Some(buf), ..Keep::default() };
        Self { iovecs, keep, direct, ..Self::plain(Kind::Read, fd, offset, 0) }
    }
    pub(crate) fn write(fd: &Arc<OwnedFd>, direct: bool, bufs: Vec<Buf>, offset: u64) -> Self {
        let iovec =
            |b: &Buf| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
        let iovecs = bufs.iter().filter(|b| !b.is_empty()).map(iovec).collect();
        let keep = Keep { _write: bufs, ..Keep::default() };
        Self { iovecs, keep, direct, ..Self::plain(Kind::Write, fd, offset, 0) }
    }
    /// The same one, if it begins by then.
    pub(crate) fn by(self, by: Instant) -> Self {
        Self { by, ..self }
    }
    /// The same one, out of the share of a directory.
    pub(crate) fn of(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }
    /// The same one, of a file that lies in memory: of what is small nobody else is asked.
    pub(crate) fn in_memory(mut self) -> Self {
        let small = match self.kind {
            Kind::Read | Kind::Write => {
                self.iovecs.iter().map(|v| v.iov_len).sum::<usize>() <= HERE_BYTES_MAX
            }
            Kind::Sync => true,
            Kind::Post | Kind::Allocate | Kind::Punch | Kind::SetLen => false,
        };
        if small {
            self.way = Way::Here;
        }
        self
    }
    /// Whether there is nothing to do from the start.
    fn is_empty(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Write) && self.iovecs.iter().all(|v| v.iov_len == 0)
    }
    /// Does all of it on this thread.
    pub(crate) fn run_now(mut self) -> io::Result<usize> {
        if self.is_empty() {
            return Ok(0);
        }
        while self.advance(self.call().run()) {}
        match self.state {
            State::Done(result) => result,
            State::Running | State::Abandoned => Err(io::Error::other("an operation without end")),
        }
    }
    /// The next system call.
    pub(crate) fn call(&self) -> Call {
        Call {
            kind: self.kind,
            owner: self.owner,
            way: self.way,
            fd: self.fd.as_raw_fd(),
            offset: self.offset,
            len: self.len,
            by: self.by,
            iovecs: self.iovecs.as_ptr(),
            count: self.iovecs.len().min(IOVECS_MAX),
        }
    }
    /// Takes note of a system call's result. True if another one must follow.
    fn advance(&mut self, result: io::Result<usize>) -> bool {
        let n = match result {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return true,
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => return true,
            // The rest of a file whose length is no multiple of the sector cannot be read directly.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.at_ragged_end() => 0,
            Err(e) => {
                self.state = State::Done(Err(e));
                return false;
            }
            Ok(n) => n,
        };
        self.done += n;
        self.offset += n as u64;
        self.consume(n);
        if self.iovecs.is_empty() || !matches!(self.kind, Kind::Read | Kind::Write) {
            self.state = State::Done(Ok(self.done));
            return false;
        }
        if n == 0 {
            // The end of the file for a read; a write that makes no progress would go on for ever.
            self.state = State::Done(match self.kind {
                Kind::Read => Ok(self.done),
                _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
            });
            return false;
        }
        if self.at_ragged_end() {
            self.state = State::Done(Ok(self.done));
            return false;
        }
        true
    }
    fn at_ragged_end(&self) -> bool {
        self.direct && self.kind == Kind::Read && !self.done.is_multiple_of(DIRECT_ALIGN)
    }
    fn consume(&mut self, mut n: usize) {
        let mut whole = 0;
        for v in &mut self.iovecs {
            if n < v.iov_len {
                v.iov_base = v.iov_base.wrapping_byte_add(n);
                v.iov_len -= n;
                break;
            }
            n -= v.iov_len;
            whole += 1;
        }
        self.iovecs.drain(..whole);
    }
}

impl Call {
    /// Fails if its time is over.
    pub(crate) fn check_time(&self, now: impl FnOnce() -> Instant) -> io::Result<()> {
        if self.by != Instant::NEVER && self.by < now() { Err(late()) } else { Ok(()) }
    }
    /// The memory, if it is in one piece.
    pub(crate) fn single(&self) -> Option<(*mut u8, usize)> {
        if self.count != 1 {
            return None;
        }
        // SAFETY: the table keeps the iovecs until the call is reported back, and there is one.
        let v = unsafe { *self.iovecs };
        Some((v.iov_base.cast(), v.iov_len))
    }
    /// The iovecs, for the ring.
    pub(crate) fn iovecs(&self) -> (*const libc::iovec, u32) {
        (self.iovecs, self.count as u32)
    }
    /// The mode of fallocate.
    pub(crate) fn fallocate_mode(&self) -> i32 {
        match self.kind {
            Kind::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            _ => 0,
        }
    }
    /// Makes the system call and waits for it.
    pub(crate) fn run(&self) -> io::Result<usize> {
        self.check_time(super::boottime)?;
        let (fd, offset, count) = (self.fd, self.offset as i64, self.count as i32);
        // SAFETY: the descriptor is open, and the iovecs describe memory that `Op::keep` keeps alive and that
        // nobody else touches before the result is reported (reads own a BufMut; a Buf is never written).
        let n = unsafe {
            match self.kind {
                Kind::Read => libc::preadv(fd, self.iovecs, count, offset),
                Kind::Write => libc::pwritev(fd, self.iovecs, count, offset),
                Kind::Post => libc::writev(fd, self.iovecs, count),
                Kind::Sync => libc::fdatasync(fd) as isize,
                Kind::Allocate | Kind::Punch => {
                    libc::fallocate(fd, self.fallocate_mode(), offset, self.len as i64) as isize
                }
                Kind::SetLen => libc::ftruncate(fd, self.len as i64) as isize,
            }
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// The operations that are under way or whose outcome was not fetched yet.
#[derive(Default)]
pub(crate) struct OpTable(RefCell<Slab<Op>>);

impl OpTable {
    pub(crate) fn insert(&self, mut op: Op) -> usize {
        if op.is_empty() {
            op.state = State::Done(Ok(0));
        }
        self.0.borrow_mut().insert(op)
    }
    /// The next system call of an operation; None if it is done already.
    pub(crate) fn call(&self, key: usize) -> Option<Call> {
        let ops = self.0.borrow();
        ops.get(key).filter(|op| !matches!(op.state, State::Done(_))).map(Op::call)
    }
    /// Whose an operation that is not done is, and who does it.
    pub(crate) fn owner(&self, key: usize) -> Option<(Owner, Way)> {
        let ops = self.0.borrow();
        ops.get(key).filter(|op| !matches!(op.state, State::Done(_))).map(|op| (op.owner, op.way))
    }
    /// The kernel has the next system call of an operation from now on.
    pub(crate) fn handed_over(&self, key: usize, at: Instant) {
        if let Some(op) = self.0.borrow_mut().get_mut(key) {
            op.under_way = Some(at);
        }
    }
    /// Since when the kernel has the oldest system call of an owner, of those that were told by [`OpTable::handed_over`].
    pub(crate) fn under_way_since(&self, owner: usize) -> Option<Instant> {
        let ops = self.0.borrow();
        ops.iter().filter(|(_, op)| op.owner.ops == owner).filter_map(|(_, op)| op.under_way).min()
    }
    /// Takes note of a result. True if the operation goes on: start it again.
    pub(crate) fn finish(&self, key: usize, result: io::Result<usize>) -> bool {
        let (waker, dead) = {
            let mut ops = self.0.borrow_mut();
            let Some(op) = ops.get_mut(key) else { return false };
            op.under_way = None;
            if let Some((tell, tag)) = op.tell.take() {
                let sent = ops.remove(key);
                drop(ops);
                drop(sent);
                tell.posted(tag, result);
                return false;
            }
            let abandoned = matches!(op.state, State::Abandoned);
            if op.advance(result) && !abandoned {
                return true;
            }
            if abandoned { (None, Some(ops.remove(key))) } else { (op.waker.take(), None) }
        };
        drop(dead);
        if let Some(w) = waker {
            w.wake();
        }
        false
    }
    /// Whether the kernel or a helper thread still holds a buffer.
    pub(crate) fn any_running(&self) -> bool {
        self.0.borrow().iter().any(|(_, op)| !matches!(op.state, State::Done(_)))
    }
    /// How many operations are not done.
    pub(crate) fn running(&self) -> usize {
        self.0.borrow().iter().filter(|(_, op)| !matches!(op.state, State::Done(_))).count()
    }
    /// Gives all memory of operations up for lost.
    pub(crate) fn leak(&self) {
        std::mem::forget(std::mem::take(&mut *self.0.borrow_mut()));
    }
    /// The outcome of an operation, which leaves the table then.
    fn poll(&self, key: usize, cx: &Context<'_>) -> Poll<(io::Result<usize>, Keep)> {
        let mut ops = self.0.borrow_mut();
        match ops.get_mut(key) {
            Some(Op { state: State::Done(_), .. }) => {}
            Some(op) => {
                op.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            None => return Poll::Ready((Err(io::ErrorKind::NotFound.into()), Keep::default())),
        }
        let op = ops.remove(key);
        match op.state {
            State::Done(result) => Poll::Ready((result, op.keep)),
            _ => Poll::Ready((Err(io::ErrorKind::Other.into()), op.keep)),
        }
    }
    fn abandon(&self, key: usize) {
        let mut ops = self.0.borrow_mut();
        let dead = match ops.get_mut(key) {
            Some(Op { state: State::Done(_), .. }) => Some(ops.remove(key)),
            Some(op) => {
                op.state = State::Abandoned;
                op.waker = None;
                None
            }
            None => None,
        };
        drop(ops);
        drop(dead);
    }
}

/// A future of an operation's outcome; gives the buffers back.
pub(crate) struct OpFuture {
    driver: Rc<dyn Driver>,
    key: Option<usize>,
}

impl OpFuture {
    pub(crate) fn new(driver: Rc<dyn Driver>, key: usize) -> Self {
        Self { driver, key: Some(key) }
    }
}

impl Future for OpFuture {
    type Output = (io::Result<usize>, Keep);
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(key) = self.key else { return Poll::Pending };
        let out = self.driver.ops().poll(key, cx);
        if out.is_ready() {
            self.key = None;
        }
        out
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.driver.ops().abandon(key);
        }
    }
}
