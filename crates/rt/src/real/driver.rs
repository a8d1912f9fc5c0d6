//! What the two ways of waiting (epoll, io_uring) have in common: sources and operations.
//!
//! A *source* is a file descriptor whose readiness tasks wait for. An *operation* is one on a file; it owns its
//! buffers until the kernel has let go of them, also when the future that began it was dropped.

use super::helpers::Helpers;
use super::ops::{Op, OpTable};
use super::shares::NOBODY;
use crate::backend::Command;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How long the end of a runtime waits for operations on files: what a disk that hangs was asked never ends. With what a service takes to
/// stop (15 s) it stays below the 20 s that `dev down` waits before it kills.
pub(super) const DRAIN_PATIENCE: Duration = Duration::from_secs(3);
/// How often it looks meanwhile.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Whose share of the kernel's operations, and whose share of helper threads something takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub ops: usize,
    pub jobs: usize,
}

impl Owner {
    /// Of what belongs to no directory.
    pub(crate) const NOBODY: Self = Self { ops: NOBODY, jobs: NOBODY };
}

/// The shares of a directory and of the files that were opened from it; given up when the last of them is dropped.
pub(crate) struct Share {
    pub driver: Rc<dyn Driver>,
    pub owner: Owner,
}

impl Share {
    pub(crate) fn new(driver: &Rc<dyn Driver>) -> Self {
        Self { driver: driver.clone(), owner: driver.add_owner() }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.driver.remove_owner(self.owner);
    }
}

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
}

/// The number of a source; never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(crate) struct SourceKey(pub u64);

/// A way of waiting.
pub(crate) trait Driver {
    /// Its name, for logs.
    fn name(&self) -> &'static str;
    /// Makes a source of a descriptor. No system call.
    fn add_source(&self, fd: RawFd) -> SourceKey;
    /// Wakes `waker` when the source becomes ready. Called after the descriptor said "would block".
    fn arm(&self, key: SourceKey, direction: Direction, waker: &Waker) -> io::Result<()>;
    /// Whether an event came since the last call.
    fn take_event(&self, key: SourceKey, direction: Direction) -> bool;
    /// Forgets a source; called while the descriptor is still open.
    fn remove_source(&self, key: SourceKey);
    /// A new owner of operations and jobs.
    fn add_owner(&self) -> Owner;
    /// An owner comes with nothing more; what it has under way may still hang.
    fn remove_owner(&self, owner: Owner);
    /// See [`crate::backend::DirIo::under_way_since`].
    fn under_way_since(&self, owner: Owner) -> Option<crate::Instant> {
        self.helpers().under_way_since(owner.jobs)
    }
    /// The helper threads.
    fn helpers(&self) -> &Helpers;
    /// The operations.
    fn ops(&self) -> &OpTable;
    /// Begins an operation that is in the table.
    fn start(&self, key: usize);
    /// Whether [`Driver::arm`] also notices what was ready before it was called, so that nobody needs to hear "would block" first.
    fn arms_by_level(&self) -> bool {
        false
    }
    /// Whether writes that are begun in one turn reach the kernel together.
    fn batches(&self) -> bool {
        false
    }
    /// See [`crate::backend::Backend::takes_commands`].
    fn takes_commands(&self) -> bool {
        false
    }
    /// See [`crate::backend::Backend::command`].
    ///
    /// # Safety
    /// As there.
    unsafe fn command(&self, command: Command) -> bool {
        drop(command);
        false
    }
    /// See [`crate::backend::Backend::poll_handed_over`].
    fn poll_handed_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }
    /// Handles what has happened; waits for it at most `timeout` (None: until something does).
    fn turn(&self, timeout: Option<Duration>) -> io::Result<()>;
    /// Waits until the kernel and the helper threads have let go of all buffers ([`DRAIN_PATIENCE`] at most; then these are never used again).
    fn drain(&self);
}

/// See [`Driver::drain`]; `about_to_sleep` comes before each turn.
pub(super) fn drain(driver: &impl Driver, about_to_sleep: impl Fn()) {
    let end = Instant::now() + DRAIN_PATIENCE;
    let io = driver.name();
    while driver.ops().any_running() {
        about_to_sleep();
        let failed = driver.turn(Some(DRAIN_LOOK));
        let operations = driver.ops().running();
        match failed {
            Err(error) => {
                tracing::error!(%error, io, operations, "waiting failed with operations on files under way; their memory is leaked");
            }
            Ok(()) if operations > 0 && Instant::now() >= end => {
                tracing::error!(
                    io,
                    operations,
                    "operations on files did not end within {DRAIN_PATIENCE:?}, so a disk hangs; their memory is leaked. The process may not go away before the kernel gives that disk up"
                );
            }
            Ok(()) => continue,
        }
        // The kernel may still write to these buffers, so they must never be used again.
        driver.ops().leak();
    }
}

/// A source that is forgotten when dropped. Keep it in front of the descriptor in a structure.
pub(crate) struct Source {
    driver: Rc<dyn Driver>,
    key: SourceKey,
}

impl Source {
    pub(crate) fn new(driver: &Rc<dyn Driver>, fd: RawFd) -> Self {
        Self { driver: driver.clone(), key: driver.add_source(fd) }
    }
    /// Whether it may be armed without having been tried.
    pub(crate) fn arms_by_level(&self) -> bool {
        self.driver.arms_by_level()
    }
    /// Arranges to be woken without trying anything: for who knows that it would block, and [`Source::arms_by_level`].
    pub(crate) fn wait<T>(&self, cx: &Context<'_>, direction: Direction) -> Poll<io::Result<T>> {
        match self.driver.arm(self.key, direction, cx.waker()) {
            Ok(()) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }
    /// Tries `io`; if it would block, arranges to be woken.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        direction: Direction,
        mut io: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            match io() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return self.wait(cx, direction);
                }
                other => return Poll::Ready(other),
            }
        }
    }
    /// Resolves when an event came after this was first called.
    pub(crate) fn poll_event(
        &self,
        cx: &Context<'_>,
        direction: Direction,
    ) -> Poll<io::Result<()>> {
        if self.driver.take_event(self.key, direction) {
            return Poll::Ready(Ok(()));
        }
        self.wait(cx, direction)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.driver.remove_source(self.key);
    }
}

/// Begins `op`; a future of its outcome.
pub(crate) fn submit(driver: &Rc<dyn Driver>, op: Op) -> super::ops::OpFuture {
    let key = driver.ops().insert(op);
    driver.start(key);
    super::ops::OpFuture::new(driver.clone(), key)
}
