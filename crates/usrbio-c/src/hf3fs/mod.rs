//! The names of 3FS; `include/hf3fs_usrbio.h` says what each does: buffers ([`iov`]), rings ([`ior`]), and here what files need.
//!
//! Safety, for all of them: structures are the caller's, filled in by these functions; strings end with NUL; arrays have the stated lengths. NULL
//! is answered with EINVAL. Of `no_mangle`: the names are those of that header, and this library is linked in place of the original, never beside it.

mod ior;
mod iov;

use crate::errno;
use crate::own::path;
use crate::registry::{register, registry};
use glowfs_usrbio::Connection;
use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PATH_BYTES: usize = 256;

fn number(e: &io::Error) -> c_int {
    -errno(e)
}
fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
fn code(outcome: io::Result<()>) -> c_int {
    outcome.map_or_else(|e| number(&e), |()| 0)
}

/// Copies a mount point into a structure.
///
/// # Safety
/// `p` is NULL or ends with NUL.
unsafe fn mount_point(p: *const c_char) -> io::Result<[u8; PATH_BYTES]> {
    // SAFETY: by the caller.
    let bytes = unsafe { path(p) }?.as_os_str().as_bytes();
    let mut out = [0; PATH_BYTES];
    if bytes.is_empty() || bytes.len() >= PATH_BYTES {
        return Err(error(libc::EINVAL));
    }
    out[..bytes.len()].copy_from_slice(bytes);
    Ok(out)
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_is_hf3fs(fd: c_int) -> bool {
    // SAFETY: used during this call only; a number that is not open gives an error.
    fd >= 0 && Connection::is_ours(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_extract_mount_point(
    out: *mut c_char,
    size: c_int,
    p: *const c_char,
) -> c_int {
    // SAFETY: by the caller.
    let found = unsafe { path(p) }.and_then(glowfs_usrbio::mount_point_of);
    let Ok(found) = found else { return -1 };
    let bytes = found.as_os_str().as_bytes();
    let needed = bytes.len() + 1;
    if !out.is_null() && usize::try_from(size).is_ok_and(|s| s >= needed) {
        // SAFETY: `out` has `size` bytes, which are enough.
        unsafe {
            out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            out.add(bytes.len()).write(0);
        }
    }
    needed as c_int
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_reg_fd(fd: c_int, _flags: u64) -> c_int {
    register(fd).map_or_else(|e| errno(&e), |kept| -kept)
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_dereg_fd(fd: c_int) {
    let gone = registry().deregister(fd.checked_abs().unwrap_or(0));
    drop(gone);
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_hardlink(target: *const c_char, link: *const c_char) -> c_int {
    // SAFETY: by the caller.
    let paths = unsafe { path(target).and_then(|t| Ok((t, path(link)?))) };
    paths.and_then(|(t, l)| hard_link(t, l)).map_or_else(|e| errno(&e), |()| 0)
}

/// As 3FS, which asks the open file for it: this file system's files only.
fn hard_link(target: &Path, link: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = rustix::fs::open(target, how, Mode::empty())?;
    if !Connection::is_ours(&open) {
        return Err(error(libc::ENOTTY));
    }
    if FileType::from_raw_mode(rustix::fs::fstat(&open)?.st_mode) == FileType::Directory {
        return Err(error(libc::EISDIR));
    }
    Ok(rustix::fs::linkat(CWD, target, CWD, link, AtFlags::SYMLINK_FOLLOW)?)
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_punchhole(
    fd: c_int,
    n: c_int,
    start: *const usize,
    end: *const usize,
    _flags: usize,
) -> c_int {
    if fd < 0 {
        return libc::EBADF;
    }
    // SAFETY: used during this call only; a number that is not open gives EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let n = usize::try_from(n).unwrap_or(0);
    if n > 0 && (start.is_null() || end.is_null()) {
        return libc::EINVAL;
    }
    // SAFETY: both arrays have `n` elements.
    let holes = (0..n).map(|i| unsafe { (*start.add(i), *end.add(i)) });
    punch_holes(fd, holes).map_or_else(|e| errno(&e), |()| 0)
}

/// One that ends before it begins is none, as in 3FS.
fn punch_holes(fd: BorrowedFd<'_>, holes: impl Iterator<Item = (usize, usize)>) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    rustix::fs::fcntl_getfl(fd)?;
    // Others may have holes, too: 3FS's ioctl is not known there.
    if !Connection::is_ours(fd) {
        return Err(error(libc::ENOTTY));
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (start, end) in holes.filter(|(start, end)| start < end) {
        rustix::fs::fallocate(fd, how, start as u64, (end - start) as u64)?;
    }
    Ok(())
}
