//! Descriptors of an application, by their number there.
//!
//! Everything here runs on a helper thread ([`super::threads`]): a descriptor may be of this very mount, and then closing it, or any question about it, waits
//! for an answer of ours. It may be of a file system that never answers, too.

use glowfs_usrbio::{Consumer, Doorbell, Identity, LentMemory, SharedMemory, ring_bytes};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::io;
use std::os::fd::OwnedFd;

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// The process that a thread belongs to. (FUSE names the thread; a pidfd is of a process.)
fn process_of(thread: u32) -> io::Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let id =
        status.lines().find_map(|l| l.strip_prefix("Tgid:")).and_then(|v| v.trim().parse().ok());
    id.and_then(Pid::from_raw).ok_or_else(|| invalid("the caller cannot be seen from here"))
}

fn fetch(thread: u32, number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let process = rustix::process::pidfd_open(process_of(thread)?, PidfdFlags::empty())?;
    Ok(rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

/// The memory of a buffer, the process it is of, and which memory it is; anything but a memfd that has all its pages, and that nobody can shrink, is refused.
pub(super) fn buffer(
    thread: u32,
    number: i32,
    len: u64,
) -> io::Result<(LentMemory, u32, Identity)> {
    let process = process_of(thread)?.as_raw_nonzero().get().unsigned_abs();
    let memory = LentMemory::adopt(fetch(thread, number)?, len)?;
    let which = memory.identity()?;
    Ok((memory, process, which))
}

/// A ring in memory of the application.
pub(super) fn ring(thread: u32, number: i32, entries: u32) -> io::Result<Consumer> {
    let memory = SharedMemory::adopt(fetch(thread, number)?, ring_bytes(entries))?;
    Consumer::new(memory, entries)
        .map_err(|broken| io::Error::new(io::ErrorKind::InvalidInput, broken.0))
}

/// A doorbell.
pub(super) fn doorbell(thread: u32, number: i32) -> io::Result<Doorbell> {
    Doorbell::adopt(fetch(thread, number)?)
}
