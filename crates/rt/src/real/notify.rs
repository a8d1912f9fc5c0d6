//! The doorbell: how other threads end the loop's wait.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd that is written only while the loop sleeps.
#[derive(Clone)]
pub(crate) struct Bell(Arc<Inner>);

struct Inner {
    fd: OwnedFd,
    sleeping: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner { fd, sleeping: AtomicBool::new(false) })))
    }
    /// Ends the wait; called on any thread, after what the loop shall find was put in its place.
    pub(crate) fn ring(&self) {
        if self.0.sleeping.swap(false, Ordering::SeqCst) {
            // It can only fail when the counter is full, and then the loop wakes anyway.
            let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
        }
    }
    /// Called by the loop before it looks a last time for work and then waits.
    pub(crate) fn about_to_sleep(&self) {
        self.0.sleeping.store(true, Ordering::SeqCst);
    }
    /// Called by the loop after the wait.
    pub(crate) fn awake(&self) {
        self.0.sleeping.store(false, Ordering::SeqCst);
    }
    /// Empties the counter.
    pub(crate) fn drain(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.0.fd, &mut count);
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
