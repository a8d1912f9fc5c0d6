//! Our own names; `include/glowfs_usrbio.h` says what each does.
//!
//! Safety, for all of them: pointers are those that these functions gave out and that were not freed, or point to what the header says. NULL is
//! answered with EINVAL. Of `no_mangle`: nobody else's names begin with `glowfs_`.

use crate::errno;
use glowfs_usrbio::{
    Buffer, Completion, Completions, Connection, Kind, RegisteredFile, Ring, RingError, RingOptions,
};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A ring that one thread may wait on while another one prepares.
pub struct SharedRing {
    ring: Mutex<Ring>,
    completions: Completions,
}

impl SharedRing {
    pub fn new(ring: Ring) -> Self {
        let completions = ring.completions();
        Self { ring: Mutex::new(ring), completions }
    }
    /// Whether it is of the process that this one was forked from. To be asked before anything else: the lock may be held by a thread that this process has not.
    pub fn is_inherited(&self) -> bool {
        self.completions.are_inherited()
    }
    /// Runs something on the ring.
    pub fn with<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> T {
        work(&mut self.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Takes completions until `min` were taken, the `sink` is full (`max`) or it is time.
    pub fn collect(
        &self,
        max: usize,
        min: usize,
        until: Option<Instant>,
        mut sink: impl FnMut(usize, Completion),
    ) -> io::Result<usize> {
        let mut n = 0;
        loop {
            let taken = self.with(|ring| {
                while n < max
                    && let Some(c) = ring.take()
                {
                    sink(n, c);
                    n += 1;
                }
                ring.taken()
            });
            let enough = n >= min.min(max);
            if enough && n > 0 {
                return Ok(n);
            }
            // Who never waits is to hear of a daemon that is gone as well.
            let until = if enough { Some(Instant::now()) } else { until };
            match self.completions.wait(taken, until) {
                Ok(_) if enough => return Ok(n),
                Ok(true) => {}
                Ok(false) => return Ok(n),
                // What was taken is not lost: the error comes with the next call.
                Err(_) if n > 0 => return Ok(n),
                Err(e) => return Err(e),
            }
        }
    }
}

fn set_errno(number: i32) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = number };
}

/// A pointer for C, or NULL and errno.
fn give<T>(made: io::Result<T>) -> *mut T {
    match made {
        Ok(t) => Box::into_raw(Box::new(t)),
        Err(e) => {
            set_errno(errno(&e));
            std::ptr::null_mut()
        }
    }
}

/// Ends what [`give`] gave.
///
/// # Safety
/// `p` is NULL or from [`give`], and not used any more.
unsafe fn free<T>(p: *mut T) {
    if !p.is_null() {
        // SAFETY: by the caller.
        drop(unsafe { Box::from_raw(p) });
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// A path from C.
///
/// # Safety
/// `p` is NULL or ends with NUL, and lives as long as the result is used.
pub unsafe fn path<'a>(p: *const c_char) -> io::Result<&'a Path> {
    if p.is_null() {
        return Err(invalid());
    }
    // SAFETY: by the caller.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(p) }.to_bytes())))
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_connect(p: *const c_char) -> *mut Connection {
    // SAFETY: by the caller.
    give(unsafe { path(p) }.and_then(Connection::open))
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_disconnect(c: *mut Connection) {
    // SAFETY: by the caller.
    unsafe { free(c) }
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_buffer_new(c: *mut Connection, bytes: usize) -> *mut Buffer {
    // SAFETY: by the caller.
    give(unsafe { c.as_ref() }.ok_or_else(invalid).and_then(|c| c.buffer(bytes)))
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_buffer_base(b: *mut Buffer) -> *mut c_void {
    // SAFETY: by the caller.
    unsafe { b.as_ref() }.map_or(std::ptr::null_mut(), |b| b.as_ptr().cast())
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_buffer_bytes(b: *const Buffer) -> usize {
    // SAFETY: by the caller.
    unsafe { b.as_ref() }.map_or(0, Buffer::len)
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_buffer_free(b: *mut Buffer) {
    // SAFETY: by the caller.
    unsafe { free(b) }
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_ring_new(
    c: *mut Connection,
    kind: c_int,
    entries: u32,
    io_depth: c_int,
    priority: c_int,
    timeout_ms: u32,
    flags: u32,
) -> *mut SharedRing {
    let kind = match kind {
        1 => Ok(Kind::Read),
        2 => Ok(Kind::Write),
        _ => Err(invalid()),
    };
    // SAFETY: by the caller.
    let connection = unsafe { c.as_ref() }.ok_or_else(invalid);
    give(connection.and_then(|c| {
        let options = RingOptions { entries, kind: kind?, io_depth, priority, timeout_ms, flags };
        c.ring(options).map(SharedRing::new)
    }))
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_ring_free(r: *mut SharedRing) {
    // SAFETY: by the caller.
    unsafe { free(r) }
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_file_register(
    c: *mut Connection,
    fd: c_int,
) -> *mut RegisteredFile {
    if fd < 0 {
        set_errno(libc::EBADF);
        return std::ptr::null_mut();
    }
    // SAFETY: used during this call only; a number that is not open gives EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: by the caller.
    give(unsafe { c.as_ref() }.ok_or_else(invalid).and_then(|c| c.register(fd)))
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_file_free(f: *mut RegisteredFile) {
    // SAFETY: by the caller.
    unsafe { free(f) }
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_prepare(
    r: *mut SharedRing,
    f: *mut RegisteredFile,
    file_offset: u64,
    b: *mut Buffer,
    buffer_offset: usize,
    bytes: usize,
    user: u64,
) -> c_int {
    // SAFETY: by the caller.
    let (r, f, b) = unsafe { (r.as_ref(), f.as_ref(), b.as_ref()) };
    let (Some(r), Some(f), Some(b)) = (r, f, b) else { return -libc::EINVAL };
    if r.is_inherited() {
        return -libc::EINVAL;
    }
    match r.with(|r| r.prepare(f, file_offset, b, buffer_offset, bytes, user)) {
        Ok(index) => index as c_int,
        Err(RingError::Full) => -libc::EAGAIN,
        Err(_) => -libc::EINVAL,
    }
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_submit(r: *mut SharedRing) -> c_int {
    // SAFETY: by the caller.
    let Some(r) = (unsafe { r.as_ref() }).filter(|r| !r.is_inherited()) else {
        return -libc::EINVAL;
    };
    r.with(Ring::submit).map_or_else(|e| -errno(&e), |()| 0)
}
/// # Safety
/// See the module; `out` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glowfs_wait(
    r: *mut SharedRing,
    out: *mut Completion,
    max: c_int,
    min: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: by the caller.
    let Some(r) = (unsafe { r.as_ref() }).filter(|r| !r.is_inherited()) else {
        return -libc::EINVAL;
    };
    let Ok(max) = usize::try_from(max) else { return -libc::EINVAL };
    if out.is_null() || max == 0 {
        return -libc::EINVAL;
    }
    let min = usize::try_from(min).unwrap_or(0);
    let timeout = u64::try_from(timeout_ms).ok();
    let until = timeout.map(|ms| Instant::now() + Duration::from_millis(ms));
    // SAFETY: n < max, and there is room for so many.
    let collected = r.collect(max, min, until, |n, c| unsafe { out.add(n).write(c) });
    collected.map_or_else(|e| -errno(&e), |n| n as c_int)
}
