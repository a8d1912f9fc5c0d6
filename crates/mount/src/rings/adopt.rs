//! Descriptors of an application, by their number there.
//!
//! Everything here runs on a helper thread: a descriptor may be of this very mount, and then closing it, or any question about it, waits
//! for an answer of ours.

use glowfs_rt::Rt;
use glowfs_usrbio::{Doorbell, SharedMemory};
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
        return Err(io::Error::from_raw_os_error(crate::errno::EBADF));
    }
    let process = rustix::process::pidfd_open(process_of(thread)?, PidfdFlags::empty())?;
    Ok(rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

/// A memfd that nobody can shrink, and the process it is of; anything else is refused.
pub(super) async fn memfd(rt: &Rt, thread: u32, number: i32) -> io::Result<(OwnedFd, u32)> {
    rt.unblock(move || {
        let process = process_of(thread)?.as_raw_nonzero().get().unsigned_abs();
        let fd = fetch(thread, number)?;
        // The one question that is never asked of a file system; only memfds have an answer.
        match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) if seals.contains(rustix::fs::SealFlags::SHRINK) => Ok((fd, process)),
            Ok(_) => Err(invalid("the memfd is not sealed against shrinking")),
            Err(_) => Err(invalid("the descriptor is not a memfd")),
        }
    })
    .await
}

/// The memory of a ring.
pub(super) async fn memory(
    rt: &Rt,
    thread: u32,
    number: i32,
    len: usize,
) -> io::Result<SharedMemory> {
    rt.unblock(move || SharedMemory::adopt(fetch(thread, number)?, len)).await
}

/// A doorbell.
pub(super) async fn doorbell(rt: &Rt, thread: u32, number: i32) -> io::Result<Doorbell> {
    rt.unblock(move || Doorbell::adopt(fetch(thread, number)?)).await
}
