//! Buffers that an application shares with the daemon.
//!
//! Safety: as in the module above.

use super::{PATH_BYTES, code, error, mount_point};
use crate::own::path;
use crate::registry::{Registry, registry};
use glowfs_usrbio::Buffer;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// `struct hf3fs_iov`.
#[repr(C)]
pub struct Iov {
    pub(super) base: *mut u8,
    /// An `Arc<Buffer>`, leaked.
    pub(super) handle: *mut c_void,
    pub(super) id: [u8; 16],
    pub(super) mount_point: [u8; PATH_BYTES],
    pub(super) size: usize,
    pub(super) block_size: usize,
    pub(super) numa: c_int,
}
/// What an iov is to stand for.
struct Found {
    buffer: Arc<Buffer>,
    id: [u8; 16],
    /// Where the caller sees the memory.
    base: *mut u8,
}

impl Found {
    fn new(buffer: Buffer, id: [u8; 16]) -> Self {
        let base = buffer.as_ptr();
        Self { buffer: Arc::new(buffer), id, base }
    }
}

/// Fills an iov in for a buffer that was made or found.
///
/// # Safety
/// `iov` is the caller's.
unsafe fn fill(
    iov: *mut Iov,
    p: *const c_char,
    (size, block_size, numa): (usize, usize, c_int),
    get: impl FnOnce(&mut Registry, &Path) -> io::Result<Found>,
) -> io::Result<()> {
    if iov.is_null() {
        return Err(error(libc::EINVAL));
    }
    // SAFETY: by the caller.
    let (mount_point, path) = unsafe { (mount_point(p)?, path(p)?) };
    let mut registry = registry();
    let Found { buffer, id, base } = get(&mut registry, path)?;
    if buffer.len() < size {
        return Err(error(libc::EINVAL));
    }
    registry.add_buffer(id, buffer.clone());
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
    let create = |registry: &mut Registry, path: &Path| {
        let c = registry.connection(path)?;
        let (buffer, id) = (c.buffer(size)?, new_id()?);
        c.name(&buffer, id)?;
        Ok(Found::new(buffer, id))
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
    let open = |registry: &mut Registry, path: &Path| {
        Ok(Found::new(registry.connection(path)?.find(id)?, id))
    };
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
    if base.is_null() {
        return -libc::EINVAL;
    }
    let wrap = |registry: &mut Registry, path: &Path| {
        let buffer = match registry.buffer(&id) {
            Ok(known) => known,
            Err(_) => Arc::new(registry.connection(path)?.find(id)?),
        };
        Ok(Found { buffer, id, base: base.cast() })
    };
    // SAFETY: by the caller.
    code(unsafe { fill(iov, p, (size, block_size, numa), wrap) })
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
        return;
    }
    // SAFETY: made by `Arc::into_raw` in `fill`, taken back once: the handle is cleared below.
    let buffer = unsafe { Arc::from_raw(iov.handle.cast::<Buffer>().cast_const()) };
    (iov.handle, iov.base) = (std::ptr::null_mut(), std::ptr::null_mut());
    registry().remove_buffer(&iov.id, &buffer);
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
