//! How each side wakes the other. To the daemon: [`Doorbell`], an eventfd, which its event loop waits for together with everything
//! else. To the application: a futex in the ring's memory.
//!
//! The daemon never blocks here, whatever the application does with its end: an eventfd's O_NONBLOCK could be taken away by
//! the application at any time and a write to a full one would then wait for ever, so the daemon only reads from it, each time saying
//! that it will not wait; and waking a futex never waits.

use crate::memory::SharedMemory;
use rustix::event::EventfdFlags;
use rustix::io::ReadWriteFlags;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// See the module.
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one, silent.
    pub fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// One that another process made; anything but an eventfd is refused.
    ///
    /// Call where waiting does no harm: the descriptor is closed here if it is refused, and may be of a mount.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        // The link's text comes from the kernel alone; fstat would ask the file system that the descriptor is of.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if link.to_string_lossy() != "anon_inode:[eventfd]" {
            let what = "the descriptor is not an eventfd";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(Self(fd))
    }

    /// Application: wakes the daemon. A bell that is full rings already.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
    /// Daemon: silences it; says whether it rang. Never waits.
    pub fn take(&self) -> bool {
        let mut count = [0u8; 8];
        let mut parts = [IoSliceMut::new(&mut count)];
        rustix::io::preadv2(&self.0, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT).is_ok()
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until the word is no longer `value`, at most for `timeout` (None: for ever). May return early.
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(1 << 30) as i64,
        tv_nsec: t.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: futex(2) FUTEX_WAIT reads the word, which lives as long as the reference, and the time, which lives on the stack.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, timeout, 0, 0)
    };
}

/// If the other side said in the word at `offset` that it waits, wakes it.
pub(crate) fn wake(memory: &SharedMemory, offset: usize) {
    let word = memory.atomic(offset);
    if word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::SeqCst) != 0 {
        // SAFETY: futex(2) FUTEX_WAKE only uses the address, which is mapped.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_taken_once_and_never_waits() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.take());
        bell.ring();
        bell.ring();
        assert!(bell.take());
        assert!(!bell.take());
        // The other side takes O_NONBLOCK away: still nobody waits.
        rustix::fs::fcntl_setfl(&bell, rustix::fs::OFlags::empty()).unwrap();
        assert!(!bell.take());
    }

    #[test]
    fn only_eventfds_are_adopted() {
        let bell = Doorbell::new().unwrap();
        assert!(Doorbell::adopt(bell.as_fd().try_clone_to_owned().unwrap()).is_ok());
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(Doorbell::adopt(pipe).is_err());
    }
}
