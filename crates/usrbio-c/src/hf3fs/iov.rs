//! Buffers that an application shares with the daemon.
//!
//! Safety: as in the module above.

use super::{PATH_BYTES, code, error, mount_point};
use crate::own::path;
use crate::registry::{connection, registry, view};
use glowfs_usrbio::{Buffer, Connection};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::Arc;

/// The last byte of [`Iov::mount_point`], behind the zero that ends the path: 1 in a wrapped iov that the registry counts. No other place of the structure is
/// nobody's.
const COUNTED: usize = PATH_BYTES - 1;

/// `struct hf3fs_iov`.
#[repr(C)]
pub struct Iov {
    pub(super) base: *mut u8,
    /// An `Arc<Buffer>`, leaked; NULL: a wrapped one, which holds none.
    pub(super) handle: *mut c_void,
    pub(super) id: [u8; 16],
    pub(super) mount_point: [u8; PATH_BYTES],
    pub(super) size: usize,
    pub(super) block_size: usize,
    pub(super) numa: c_int,
}

/// Fills an iov in for a buffer that was made or found, and that it holds.
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
    let connection = connection(path)?;
    let (buffer, id) = get(&connection)?;
    if buffer.len() < size {
        return Err(error(libc::EINVAL));
    }
    let base = buffer.as_ptr();
    let buffer = Arc::new(buffer);
    registry().add_buffer(id, buffer.clone());
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
    let open = |c: &Connection| Ok((c.find(id)?, id));
    // SAFETY: by the caller.
    code(unsafe { fill(iov, p, (size, block_size, numa), open) })
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
    if base.is_null() || iov.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: by the caller.
    let paths = unsafe { mount_point(p).and_then(|m| Ok((m, path(p)?))) };
    let wrapped = paths.and_then(|(mut mount_point, path)| {
        if mount_point[COUNTED - 1] != 0 {
            return Err(error(libc::EINVAL));
        }
        let view = view(id, path)?;
        if view.bytes < size {
            let gone = view.counted.then(|| registry().remove_view(&id));
            drop(gone);
            return Err(error(libc::EINVAL));
        }
        mount_point[COUNTED] = view.counted.into();
        Ok(mount_point)
    });
    code(wrapped.map(|mount_point| {
        let (base, handle) = (base.cast(), std::ptr::null_mut());
        // SAFETY: the caller's structure.
        unsafe { iov.write(Iov { base, handle, id, mount_point, size, block_size, numa }) };
    }))
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
pub unsafe extern "C" fn hf3fs_iovopen_device(
    _iov: *mut Iov,
    _id: *const [u8; 16],
    _p: *const c_char,
    _size: usize,
    _block_size: usize,
    _device: c_int,
) -> c_int {
    -libc::ENOTSUP
}
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hf3fs_iovwrap_device(
    _iov: *mut Iov,
    _memory: *mut c_void,
    _id: *const [u8; 16],
    _p: *const c_char,
    _size: usize,
    _block_size: usize,
    _device: c_int,
) -> c_int {
    -libc::ENOTSUP
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
        // A wrapped one holds nothing; but what was found for it may not be needed any more.
        let counted = std::mem::take(&mut iov.mount_point[COUNTED]) == 1;
        let gone = counted.then(|| registry().remove_view(&iov.id));
        drop(gone);
        return;
    }
    // SAFETY: made by `Arc::into_raw` in `fill`, taken back once: the handle is cleared below.
    let buffer = unsafe { Arc::from_raw(iov.handle.cast::<Buffer>().cast_const()) };
    (iov.handle, iov.base) = (std::ptr::null_mut(), std::ptr::null_mut());
    let gone = registry().remove_buffer(&iov.id, &buffer);
    drop((gone, buffer));
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
