//! Rings: operations that are prepared, submitted together and waited for.
//!
//! Safety: as in the module above.

use super::iov::Iov;
use super::{PATH_BYTES, code, error, mount_point, number};
use crate::own::{SharedRing, path};
use crate::registry::{Registered, connection, used};
use glowfs_usrbio::{Completion, ENTRIES_MAX, Kind, Ring, RingOptions, ring_bytes};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// How many there are. (Beside the lock, which a child of fork(2) may find locked.)
    entries: u32,
    /// Locked inside the ring's lock, never around it.
    slots: Mutex<Slots>,
}

/// Who waits looks so often for what another thread has prepared meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The numbers that operations go by, and the operation of each. (Not the places in the queue: those are used again while an operation that stood
/// there is still on its way.)
struct Slots {
    free: Vec<u32>,
    taken: Vec<Option<Operation>>,
}

/// An operation until its result is taken.
struct Operation {
    /// What the caller wants back with it.
    userdata: u64,
    /// It is carried out even if it is registered no more.
    file: Arc<Registered>,
}

impl Handle {
    /// A ring of which only so many entries are used as were asked for.
    fn new(ring: Ring, entries: u32) -> Self {
        let slots = Slots {
            free: (0..entries).rev().collect(),
            taken: (0..entries).map(|_| None).collect(),
        };
        Self { ring: SharedRing::new(ring), entries, slots: Mutex::new(slots) }
    }
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// A number for an operation; None: all are taken. It is fixed before the ring is locked: who waits locks these in the other order.
    fn number(&self, userdata: *const c_void, file: &Arc<Registered>) -> Option<u32> {
        let mut slots = self.slots();
        let index = slots.free.pop()?;
        let operation = Operation { userdata: userdata as u64, file: file.clone() };
        slots.taken[index as usize] = Some(operation);
        Some(index)
    }
    /// The number is free again; what it stood for.
    fn free(&self, index: u32) -> Option<Operation> {
        let mut slots = self.slots();
        let operation = slots.taken.get_mut(index as usize)?.take()?;
        slots.free.push(index);
        Some(operation)
    }
    /// Submits what was prepared, as in 3FS, where the daemon finds that by itself. The daemon is not woken for nothing: some wait in a loop, for no time at
    /// all.
    fn submit_rest(&self) {
        // Who waits hears of a daemon that is gone.
        let _ = self.ring.with(|r| if r.unsubmitted() > 0 { r.submit() } else { Ok(()) });
    }
    /// The result of an operation, for the caller; and its file, which may be closed when that is dropped, where nobody waits for it.
    fn answer(&self, c: Completion) -> (Cqe, Option<Arc<Registered>>) {
        let index = u32::try_from(c.user).unwrap_or(u32::MAX);
        let (userdata, file) = match self.free(index) {
            Some(Operation { userdata, file }) => (userdata, Some(file)),
            None => (0, None),
        };
        let userdata = userdata as usize as *const c_void;
        (Cqe { index: index as i32, reserved: 0, result: c.result, userdata }, file)
    }
}
fn entries_of(entries: c_int) -> Option<u32> {
    u32::try_from(entries).ok().filter(|e| (1..=ENTRIES_MAX).contains(e))
}

/// See the module.
#[unsafe(no_mangle)]
pub extern "C" fn hf3fs_ior_size(entries: c_int) -> usize {
    entries_of(entries).map_or(0, |e| ring_bytes(e.next_power_of_two()))
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
        let wanted = entries_of(entries).ok_or_else(invalid)?;
        let options = RingOptions {
            entries: wanted.next_power_of_two(),
            kind: if for_read { Kind::Read } else { Kind::Write },
            io_depth,
            priority,
            timeout_ms: u32::try_from(timeout).map_err(|_| invalid())?,
            flags: u32::try_from(flags).map_err(|_| invalid())?,
        };
        // A batch of more than the entries would never be there.
        if ior.is_null() || io_depth > entries {
            return Err(invalid());
        }
        // SAFETY: by the caller.
        let (mount_point, path) = unsafe { (mount_point(p)?, path(p)?) };
        let connection = connection(path)?;
        let ring = connection.ring(options)?;
        let size = ring_bytes(options.entries);
        let base = ring.memory_base();
        let handle = Box::into_raw(Box::new(Handle::new(ring, wanted))).cast();
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

/// The ring behind a structure, of this process: a child shares the queues of its parent's, but not what the parent knows of them.
///
/// # Safety
/// See the module.
unsafe fn ring<'a>(ior: *const Ior) -> Option<(&'a Ior, &'a Handle)> {
    // SAFETY: by the caller.
    unsafe { any_ring(ior) }.filter(|(_, r)| !r.ring.is_inherited())
}

/// The ring behind a structure.
///
/// # Safety
/// See the module.
unsafe fn any_ring<'a>(ior: *const Ior) -> Option<(&'a Ior, &'a Handle)> {
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
    unsafe { any_ring(ior) }.map_or(0, |(_, r)| r.entries as c_int)
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
    let (file, buffer) = match used(fd, &iov.id) {
        Ok(both) => both,
        Err(e) => return number(&e),
    };
    if (read && !file.readable) || (!read && !file.writable) {
        return -libc::EACCES;
    }
    let Some(index) = ring.number(userdata, &file) else { return -libc::EAGAIN };
    let prepared =
        ring.ring.with(|r| r.prepare(&file.file, off as u64, &buffer, at, len, index.into()));
    if prepared.is_err() {
        // There was a number left, so there was room: the buffer is of another mount.
        ring.free(index);
        return -libc::EINVAL;
    }
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
    let min = usize::try_from(min_results).unwrap_or(0).min(max);
    let mut n = 0;
    let mut files = Vec::new();
    loop {
        ring.submit_rest();
        let look_again = Instant::now() + LOOK_AGAIN;
        let last = until.is_some_and(|u| u <= look_again);
        let until = if last { until } else { Some(look_again) };
        let before = n;
        let collected =
            ring.ring.collect(max - before, min.saturating_sub(before), until, |i, c| {
                let (cqe, file) = ring.answer(c);
                files.extend(file);
                // SAFETY: before + i < max, and there is room for so many.
                unsafe { cqes.add(before + i).write(cqe) };
            });
        match collected {
            Ok(more) => n += more,
            // What was taken is not lost: the error comes with the next call.
            Err(e) if n == 0 => return number(&e),
            Err(_) => return n as c_int,
        }
        if n >= min || last {
            return n as c_int;
        }
    }
}
