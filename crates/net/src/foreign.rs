//! Mapping another process's memory.

use glowfs_rt::BufMut;
use glowfs_rt::mem::{Owner, Region};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::Rc;

/// A mapped region of a peer. Buffers in it keep it mapped.
pub(crate) struct ForeignRegion {
    ptr: NonNull<u8>,
    region: Rc<Region>,
}

/// Maps the first `len` bytes of a memfd, which must be sealed against shrinking: else its owner could take the memory away under
/// us, and we would die of SIGBUS.
pub(crate) fn map_foreign(fd: OwnedFd, len: u64) -> io::Result<Rc<ForeignRegion>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let seals = fcntl_get_seals(&fd).map_err(|_| invalid("not a memfd"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid("the memfd is not sealed against shrinking"));
    }
    if u64::try_from(fstat(&fd)?.st_size).unwrap_or(0) < len {
        return Err(invalid("the memfd is shorter than the region"));
    }
    let bytes = usize::try_from(len).map_err(|_| invalid("too long for this machine"))?;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let raw = unsafe {
        mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &fd,
            0,
        )?
    };
    let ptr = NonNull::new(raw.cast()).ok_or_else(|| invalid("mapped at address zero"))?;
    let region = Rc::new(Region { id: next_id(), fd, len });
    Ok(Rc::new(ForeignRegion { ptr, region }))
}

fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    // Far from the ids of the pool's own regions.
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    NEXT.fetch_add(1, Relaxed)
}

impl ForeignRegion {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.region.len
    }
    /// `len` bytes at `offset`; `None` if they are not all inside.
    pub(crate) fn view(self: &Rc<Self>, offset: u64, len: usize) -> Option<BufMut> {
        if offset.checked_add(len as u64)? > self.region.len {
            return None;
        }
        // SAFETY: offset is inside the mapping, or one past its end with len 0.
        let ptr = unsafe { self.ptr.add(usize::try_from(offset).ok()?) };
        // SAFETY: the range is inside the mapping, which lives as long as its owner, and readable and writable since the memfd
        // cannot shrink. The peer may hand out overlapping places; we accept regions of trusted peers only (see `rt::mem`), and never
        // rely on the bytes staying what they were.
        Some(unsafe { BufMut::from_raw(ptr, len, self.clone()) })
    }
}

impl Owner for ForeignRegion {
    fn region(&self, ptr: *const u8) -> Option<(Rc<Region>, u64)> {
        let offset = (ptr as usize).checked_sub(self.ptr.as_ptr() as usize)? as u64;
        (offset <= self.region.len).then(|| (self.region.clone(), offset))
    }
}

impl Drop for ForeignRegion {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map_foreign`; every buffer in it holds an Rc of `self`, so none is left.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.region.len as usize) };
    }
}
