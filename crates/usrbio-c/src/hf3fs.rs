//! The names of 3FS; `include/hf3fs_usrbio.h` says what each does.
//!
//! Safety, for all of them: structures are the caller's, filled in by these functions; strings end with NUL; arrays have the stated lengths. NULL
//! is answered with EINVAL.

use crate::errno;
use crate::own::{SharedRing, path};
use crate::registry::registry;
use glowfs_usrbio::{
    Buffer, Completion, Connection, ENTRIES_MAX, Kind, Ring, RingOptions, ring_bytes,
};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PATH_BYTES: usize = 256;

/// `struct hf3fs_iov`.
#[repr(C)]
pub struct Iov {
    base: *mut u8,
    /// An `Arc<Buffer>`, leaked; null if the memory is somebody else's.
    handle: *mut c_void,
    id: [u8; 16],
    mount_point: [u8; PATH_BYTES],
    size: usize,
    block_size: usize,
    numa: c_int,
}

/// `struct hf3fs_ior`.
#[repr(C)]
pub struct Ior {
    iov: Iov,
    /// A `Box<Handle>`, leaked.
    handle: *mut c_void,
    mount_point: [u8; PATH_BYTES],
    for_read: bool,
    io_depth: c_int,
    priority: c_int,
    timeout: c_int,
    flags: u64,
}

/// `struct hf3fs_cqe`.
#[repr(C)]
pub struct Cqe {
    index: i32,
    reserved: i32,
    result: i64,
    userdata: *const c_void,
}

/// What is behind an `Ior`.
struct Handle {
    ring: SharedRing,
    slots: Mutex<Slots>,
}

/// The numbers that operations go by, and what the caller wants back with each. (Not the places in the queue: those are used again while an
/// operation that stood there is still on its way.)
struct Slots {
    free: Vec<u32>,
    userdata: Vec<u64>,
}

impl Handle {
    fn new(ring: Ring) -> Self {
        let entries = ring.options().entries;
        let slots =
            Slots { free: (0..entries).rev().collect(), userdata: vec![0; entries as usize] };
        Self { ring: SharedRing::new(ring), slots: Mutex::new(slots) }
    }
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The result of an operation, for the caller.
    fn answer(&self, c: Completion) -> Cqe {
        let mut slots = self.slots();
        let index = u32::try_from(c.user).unwrap_or(u32::MAX);
        let userdata = slots.userdata.get(index as usize).copied();
        if userdata.is_some() {
            slots.free.push(index);
        }
        let userdata = userdata.unwrap_or(0) as usize as *const c_void;
        Cqe { index: index as i32, reserved: 0, result: c.result, userdata }
    }
}

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

/// Fills an iov in for a buffer that was made or found.
///
/// # Safety
/// `iov` is the caller's.
unsafe fn fill(
    iov: *mut Iov,
    p: *const c_char,
    (size, block_size, numa): (usize, usize, c_int),
    get: impl FnOnce(&Connection) -> io::Result<(Buffer, [u8; 16])>,
) -> io::Result<()> {
    if iov.is_null() {
        return Err(error(libc::EINVAL));
    }
    // SAFETY: by the caller.
    let (mount_point, path) = unsafe { (mount_point(p)?, path(p)?) };
    let mut registry = registry();
    let (buffer, id) = get(&registry.connection(path)?)?;
    if buffer.len() < size {
        return Err(error(libc::EINVAL));
    }
    let buffer = Arc::new(buffer);
    registry.buffers.insert(id, buffer.clone());
    let base = buffer.as_ptr();
    let handle = Arc::into_raw(buffer).cast_mut().cast();
    // SAFETY: the caller's structure.
    unsafe { iov.write(Iov { base, handle, id, mount_point, size, block_size, numa }) };
    Ok(())
}

fn new_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
    Ok(id)
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovcreate(
    iov: *mut Iov,
    p: *const c_char,
    size: usize,
    block_size: usize,
    numa: c_int,
) -> c_int {
    let create = |c: &Connection| {
        let (buffer, id) = (c.buffer(size)?, new_id()?);
        c.name(&buffer, id)?;
        Ok((buffer, id))
    };
    // SAFETY: by the caller.
    code(unsafe { fill(iov, p, (size, block_size, numa), create) })
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovopen(
    iov: *mut Iov,
    id: *const [u8; 16],
    p: *const c_char,
    size: usize,
    block_size: usize,
    numa: c_int,
) -> c_int {
    // SAFETY: by the caller.
    let Some(&id) = (unsafe { id.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: by the caller.
    code(unsafe { fill(iov, p, (size, block_size, numa), |c| Ok((c.find(id)?, id))) })
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovwrap(
    iov: *mut Iov,
    base: *mut c_void,
    id: *const [u8; 16],
    p: *const c_char,
    size: usize,
    block_size: usize,
    numa: c_int,
) -> c_int {
    // SAFETY: by the caller.
    let Some(&id) = (unsafe { id.as_ref() }) else { return -libc::EINVAL };
    if iov.is_null() || base.is_null() {
        return -libc::EINVAL;
    }
    let known = registry().buffers.contains_key(&id);
    let wrapped = (|| {
        // SAFETY: by the caller.
        let (mount_point, path) = unsafe { (mount_point(p)?, path(p)?) };
        if !known {
            let mut registry = registry();
            let found = registry.connection(path)?.find(id)?;
            registry.buffers.insert(id, Arc::new(found));
        }
        let handle = std::ptr::null_mut();
        // SAFETY: the caller's structure.
        unsafe {
            iov.write(Iov { base: base.cast(), handle, id, mount_point, size, block_size, numa })
        };
        Ok(())
    })();
    code(wrapped)
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovcreate_device(
    _iov: *mut Iov,
    _p: *const c_char,
    _size: usize,
    block_size: usize,
    _device: c_int,
) -> c_int {
    if block_size != 0 { -libc::EINVAL } else { -libc::ENOTSUP }
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovunlink(iov: *mut Iov) {
    // SAFETY: by the caller.
    let Some(iov) = (unsafe { iov.as_ref() }) else { return };
    if iov.handle.is_null() {
        return;
    }
    // SAFETY: the handle of an iov that was not destroyed is the Arc's pointer.
    let buffer = unsafe { &*iov.handle.cast::<Buffer>() };
    // A daemon that is gone has forgotten the name.
    let _ = buffer.connection().name(buffer, [0; 16]);
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovdestroy(iov: *mut Iov) {
    // SAFETY: by the caller.
    let Some(iov) = (unsafe { iov.as_mut() }) else { return };
    if iov.handle.is_null() {
        return;
    }
    // SAFETY: made by `Arc::into_raw` in `fill`, taken back once: the handle is cleared below.
    let buffer = unsafe { Arc::from_raw(iov.handle.cast::<Buffer>().cast_const()) };
    (iov.handle, iov.base) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut registry = registry();
    if registry.buffers.get(&iov.id).is_some_and(|b| Arc::ptr_eq(b, &buffer)) {
        registry.buffers.remove(&iov.id);
    }
}

fn entries_of(entries: c_int) -> Option<u32> {
    u32::try_from(entries)
        .ok()
        .filter(|e| (1..=ENTRIES_MAX).contains(e))
        .map(u32::next_power_of_two)
}

/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_ior_size(entries: c_int) -> usize {
    entries_of(entries).map_or(0, ring_bytes)
}

/// What the four ways of making a ring differ in.
struct Wish {
    entries: c_int,
    for_read: bool,
    io_depth: c_int,
    priority: c_int,
    timeout: c_int,
    numa: c_int,
    flags: u64,
}

/// # Safety
/// See the module.
unsafe fn create(ior: *mut Ior, p: *const c_char, wish: Wish) -> c_int {
    let Wish { entries, for_read, io_depth, priority, timeout, numa, flags } = wish;
    let made = (|| {
        let invalid = || error(libc::EINVAL);
        let options = RingOptions {
            entries: entries_of(entries).ok_or_else(invalid)?,
            kind: if for_read { Kind::Read } else { Kind::Write },
            io_depth,
            priority,
            timeout_ms: u32::try_from(timeout).map_err(|_| invalid())?,
            flags: u32::try_from(flags).map_err(|_| invalid())?,
        };
        if ior.is_null() {
            return Err(invalid());
        }
        // SAFETY: by the caller.
        let (mount_point, path) = unsafe { (mount_point(p)?, path(p)?) };
        let ring = registry().connection(path)?.ring(options)?;
        let size = ring_bytes(options.entries);
        let base = ring.memory_base();
        let handle = Box::into_raw(Box::new(Handle::new(ring))).cast();
        let nobody = std::ptr::null_mut();
        let iov = Iov { base, handle: nobody, id: [0; 16], mount_point, size, block_size: 0, numa };
        // SAFETY: the caller's structure.
        unsafe {
            ior.write(Ior {
                iov,
                handle,
                mount_point,
                for_read,
                io_depth,
                priority,
                timeout,
                flags,
            })
        };
        Ok(())
    })();
    code(made)
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iorcreate(
    ior: *mut Ior,
    p: *const c_char,
    entries: c_int,
    for_read: bool,
    io_depth: c_int,
    numa: c_int,
) -> c_int {
    let wish = Wish { entries, for_read, io_depth, priority: 0, timeout: 0, numa, flags: 0 };
    // SAFETY: by the caller.
    unsafe { create(ior, p, wish) }
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iorcreate2(
    ior: *mut Ior,
    p: *const c_char,
    entries: c_int,
    for_read: bool,
    io_depth: c_int,
    priority: c_int,
    numa: c_int,
) -> c_int {
    let wish = Wish { entries, for_read, io_depth, priority, timeout: 0, numa, flags: 0 };
    // SAFETY: by the caller.
    unsafe { create(ior, p, wish) }
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn hf3fs_iorcreate3(
    ior: *mut Ior,
    p: *const c_char,
    entries: c_int,
    for_read: bool,
    io_depth: c_int,
    priority: c_int,
    timeout: c_int,
    numa: c_int,
) -> c_int {
    let wish = Wish { entries, for_read, io_depth, priority, timeout, numa, flags: 0 };
    // SAFETY: by the caller.
    unsafe { create(ior, p, wish) }
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn hf3fs_iorcreate4(
    ior: *mut Ior,
    p: *const c_char,
    entries: c_int,
    for_read: bool,
    io_depth: c_int,
    timeout: c_int,
    numa: c_int,
    flags: u64,
) -> c_int {
    let wish = Wish { entries, for_read, io_depth, priority: 0, timeout, numa, flags };
    // SAFETY: by the caller.
    unsafe { create(ior, p, wish) }
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iordestroy(ior: *mut Ior) {
    // SAFETY: by the caller.
    let Some(ior) = (unsafe { ior.as_mut() }) else { return };
    if !ior.handle.is_null() {
        // SAFETY: made by `Box::into_raw` in `create`, taken back once: the handle is cleared below.
        drop(unsafe { Box::from_raw(ior.handle.cast::<Handle>()) });
        (ior.handle, ior.iov.base) = (std::ptr::null_mut(), std::ptr::null_mut());
    }
}

/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_reg_fd(fd: c_int, _flags: u64) -> c_int {
    registry().register(fd).map_or_else(|e| errno(&e), |kept| -kept)
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_dereg_fd(fd: c_int) {
    registry().deregister(fd.checked_abs().unwrap_or(0));
}

/// The ring behind a structure.
///
/// # Safety
/// See the module.
unsafe fn ring<'a>(ior: *const Ior) -> Option<(&'a Ior, &'a Handle)> {
    // SAFETY: by the caller.
    let ior = unsafe { ior.as_ref() }?;
    // SAFETY: the handle of a ring that was not destroyed is the box's pointer.
    let handle = unsafe { ior.handle.cast::<Handle>().as_ref() }?;
    Some((ior, handle))
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_io_entries(ior: *const Ior) -> c_int {
    // SAFETY: by the caller.
    unsafe { ring(ior) }.map_or(0, |(_, r)| r.ring.with(|r| r.options().entries as c_int))
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn hf3fs_prep_io(
    ior: *const Ior,
    iov: *const Iov,
    read: bool,
    ptr: *mut c_void,
    fd: c_int,
    off: usize,
    len: u64,
    userdata: *const c_void,
) -> c_int {
    // SAFETY: by the caller.
    let (Some((ior, ring)), Some(iov)) = (unsafe { (ring(ior), iov.as_ref()) }) else {
        return -libc::EINVAL;
    };
    let at = (ptr as usize).checked_sub(iov.base as usize);
    let (Some(at), Ok(len), Some(fd)) = (at, usize::try_from(len), fd.checked_abs()) else {
        return -libc::EINVAL;
    };
    let inside = at.checked_add(len).is_some_and(|end| end <= iov.size);
    if read != ior.for_read || ptr.is_null() || iov.base.is_null() || len == 0 || !inside {
        return -libc::EINVAL;
    }
    let (file, buffer) = {
        let registry = registry();
        (registry.file(fd), registry.buffers.get(&iov.id).cloned())
    };
    let Some(file) = file else { return -libc::EBADF };
    let Some(buffer) = buffer else { return -libc::EINVAL };
    if (read && !file.readable) || (!read && !file.writable) {
        return -libc::EACCES;
    }
    let mut slots = ring.slots();
    let Some(index) = slots.free.pop() else { return -libc::EAGAIN };
    let prepared =
        ring.ring.with(|r| r.prepare(&file.file, off as u64, &buffer, at, len, index.into()));
    if prepared.is_err() {
        // There was a number left, so there was room: the buffer is of another mount.
        slots.free.push(index);
        return -libc::EINVAL;
    }
    slots.userdata[index as usize] = userdata as u64;
    index as c_int
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_submit_ios(ior: *const Ior) -> c_int {
    // SAFETY: by the caller.
    let Some((_, ring)) = (unsafe { ring(ior) }) else { return -libc::EINVAL };
    code(ring.ring.with(Ring::submit))
}

/// When a moment of CLOCK_REALTIME is.
fn moment(at: &libc::timespec) -> Instant {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let secs = u64::try_from(at.tv_sec).unwrap_or(0);
    let then = Duration::new(secs, u32::try_from(at.tv_nsec).unwrap_or(0).min(999_999_999));
    // A day at most: longer waits come back here.
    Instant::now() + then.saturating_sub(now).min(Duration::from_secs(86_400))
}

/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_wait_for_ios(
    ior: *const Ior,
    cqes: *mut Cqe,
    cqec: c_int,
    min_results: c_int,
    abs_timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: by the caller.
    let (ring, until) = unsafe { (ring(ior), abs_timeout.as_ref().map(moment)) };
    let (Some((_, ring)), Ok(max)) = (ring, usize::try_from(cqec)) else { return -libc::EINVAL };
    if cqes.is_null() || max == 0 {
        return -libc::EINVAL;
    }
    let min = usize::try_from(min_results).unwrap_or(0);
    let collected = ring.ring.collect(max, min, until, |n, c| {
        let cqe = ring.answer(c);
        // SAFETY: n < max, and there is room for so many.
        unsafe { cqes.add(n).write(cqe) };
    });
    collected.map_or_else(|e| number(&e), |n| n as c_int)
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

/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_gdr_available() -> bool {
    false
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_gdr_device_count() -> c_int {
    0
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_iov_mem_type(_iov: *const Iov) -> c_int {
    0
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_iov_device_id(_iov: *const Iov) -> c_int {
    -1
}
/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_iovsync(iov: *const Iov, _direction: c_int) -> c_int {
    if iov.is_null() { -libc::EINVAL } else { 0 }
}
