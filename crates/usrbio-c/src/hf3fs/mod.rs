//! The names of 3FS; `include/hf3fs_usrbio.h` says what each does: buffers ([`iov`]), rings ([`ior`]), and here what files need.
//!
//! Safety, for all of them: structures are the caller's, filled in by these functions; strings end with NUL; arrays have the stated lengths. NULL
//! is answered with EINVAL.

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
    use rustix::fs::{AtFlags, CWD};
    // SAFETY: by the caller.
    let paths = unsafe { path(target).and_then(|t| Ok((t, path(link)?))) };
    let Ok((target, link)) = paths else { return libc::EINVAL };
    let linked = rustix::fs::linkat(CWD, target, CWD, link, AtFlags::SYMLINK_FOLLOW);
    linked.map_or_else(|e| e.raw_os_error(), |()| 0)
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
    use rustix::fs::FallocateFlags;
    let Ok(n) = usize::try_from(n) else { return libc::EINVAL };
    if fd < 0 || start.is_null() || end.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: used during this call only; a number that is not open gives EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    for i in 0..n {
        // SAFETY: both arrays have `n` elements.
        let (start, end) = unsafe { (*start.add(i), *end.add(i)) };
        let Some(len) = end.checked_sub(start) else { return libc::EINVAL };
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if len > 0
            && let Err(e) = rustix::fs::fallocate(fd, how, start as u64, len as u64)
        {
            return e.raw_os_error();
        }
    }
    0
}
