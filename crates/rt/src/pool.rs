//! [`Pool`]: where the buffers of one thread come from.
//!
//! A shared pool is one memfd of a fixed size (its bound), sealed so that it can neither shrink nor grow: a peer
//! that maps it cannot be hurt by us, and needs to be handed one descriptor only. The kernel gives memory to
//! the pages that are used; pages of freed buffers are used again first.

use crate::buddy::Buddy;
use crate::mem::{BufMut, Owner, PAGE_BYTES, Region};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

/// The default bound of a shared pool, in bytes.
pub const POOL_BYTES_DEFAULT: u64 = 1 << 30;
/// The greatest bound of a pool, in bytes.
pub const POOL_BYTES_MAX: u64 = 1 << 40;
/// The greatest buffer, in bytes.
pub const BUFFER_BYTES_MAX: usize = 1 << 30;

/// The pool is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Its bound.
    pub bytes_max: u64,
    /// Bytes in buffers now.
    pub bytes_used: u64,
    /// Buffers that had to be taken from the heap since the start because the pool was used up.
    pub overflows: u64,
}

/// Where the buffers of one thread come from.
pub struct Pool {
    bytes_max: u64,
    /// None: heap only, or the kernel gave us no memfd.
    shared: OnceCell<Option<Rc<Shared>>>,
    overflows: Cell<u64>,
}

struct Shared {
    region: Rc<Region>,
    base: NonNull<u8>,
    pages: RefCell<Buddy>,
}

impl Pool {
    /// A pool of heap memory, which cannot be shared with other processes (simulator, tests).
    pub fn heap() -> Self {
        Self { bytes_max: 0, shared: OnceCell::from(None), overflows: Cell::new(0) }
    }
    /// A pool of at most `bytes_max` that peers can map. Nothing is taken from the kernel before the first buffer.
    pub fn shared(bytes_max: u64) -> Self {
        let bytes_max = bytes_max.clamp(PAGE_BYTES as u64, POOL_BYTES_MAX);
        let bytes_max = bytes_max.next_multiple_of(PAGE_BYTES as u64);
        Self { bytes_max, shared: OnceCell::new(), overflows: Cell::new(0) }
    }
    /// A page-aligned buffer of `len` bytes, contents arbitrary. Comes from the heap (and cannot be shared) if the
    /// pool is used up; where that must not happen use [`Pool::try_alloc`].
    pub fn alloc(&self, len: usize) -> BufMut {
        if let Ok(buf) = self.try_alloc(len) {
            return buf;
        }
        if self.bytes_max > 0 {
            self.overflows.set(self.overflows.get() + 1);
            if self.overflows.get().is_power_of_two() {
                tracing::warn!(
                    overflows = self.overflows.get(),
                    bytes_max = self.bytes_max,
                    "the buffer pool is used up; buffers come from the heap and are copied between processes"
                );
            }
        }
        heap_alloc(len)
    }
    /// Like [`Pool::alloc`], within the bound. A heap pool has no bound.
    pub fn try_alloc(&self, len: usize) -> Result<BufMut, Exhausted> {
        if len > BUFFER_BYTES_MAX {
            return Err(Exhausted);
        }
        if self.bytes_max == 0 {
            return Ok(heap_alloc(len));
        }
        let shared = self.mapped().ok_or(Exhausted)?;
        let pages = len.div_ceil(PAGE_BYTES).max(1) as u32;
        let page = shared.pages.borrow_mut().alloc(pages).ok_or(Exhausted)?;
        // SAFETY: the allocator gives pages inside the mapping.
        let ptr = unsafe { shared.base.add(page as usize * PAGE_BYTES) };
        let owner = Rc::new(Piece { shared: shared.clone(), page, pages });
        // SAFETY: the pages are ours alone until the piece is dropped, and mapped as long as it lives.
        Ok(unsafe { BufMut::from_raw(ptr, len, owner) })
    }
    /// The one region that all its shared buffers lie in.
    pub fn region(&self) -> Option<Rc<Region>> {
        self.mapped().map(|s| s.region.clone())
    }
    /// How full it is.
    pub fn stats(&self) -> PoolStats {
        let free = self
            .shared
            .get()
            .and_then(Option::as_ref)
            .map_or(self.bytes_max, |s| s.pages.borrow().free_pages() * PAGE_BYTES as u64);
        PoolStats {
            bytes_max: self.bytes_max,
            bytes_used: self.bytes_max - free,
            overflows: self.overflows.get(),
        }
    }

    fn mapped(&self) -> Option<&Rc<Shared>> {
        let make = || {
            Shared::new(self.bytes_max)
                .inspect_err(
                    |error| tracing::warn!(%error, "no shared memory; buffers come from the heap"),
                )
                .ok()
        };
        self.shared.get_or_init(make).as_ref()
    }
}

impl Shared {
    fn new(bytes: u64) -> io::Result<Rc<Self>> {
        let too_big = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = usize::try_from(bytes).map_err(|_| too_big())?;
        let pages = u32::try_from(bytes / PAGE_BYTES as u64).map_err(|_| too_big())?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("glowfs-pool", flags)?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map_shared(&fd, len)?;
        let region = Rc::new(Region::new(fd, bytes));
        let shared = Self { region, base, pages: RefCell::new(Buddy::new(pages)) };
        // Only a matter of speed.
        // SAFETY: advice about our own mapping, which changes no contents.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(Rc::new(shared))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; every buffer holds the pool, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.region.len as usize) };
    }
}

/// Maps all of `fd`, readable and writable, shared.
pub(crate) fn map_shared(fd: &std::os::fd::OwnedFd, len: usize) -> io::Result<NonNull<u8>> {
    let (prot, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0)? };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped memory at null"))
}

/// The pages of one buffer.
struct Piece {
    shared: Rc<Shared>,
    page: u32,
    pages: u32,
}

impl Owner for Piece {
    fn region(&self, ptr: *const u8) -> Option<(Rc<Region>, u64)> {
        let offset = (ptr as usize).checked_sub(self.shared.base.as_ptr() as usize)?;
        Some((self.shared.region.clone(), offset as u64))
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.shared.pages.borrow_mut().release(self.page, self.pages);
    }
}

fn heap_alloc(len: usize) -> BufMut {
    let owner = Rc::new(HeapPages::new(len.div_ceil(PAGE_BYTES).max(1)));
    let ptr = owner.ptr;
    // SAFETY: the owner has at least `len` bytes at `ptr`, and this is the first handle.
    unsafe { BufMut::from_raw(ptr, len, owner) }
}

struct HeapPages {
    ptr: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl HeapPages {
    fn new(pages: usize) -> Self {
        let layout =
            std::alloc::Layout::from_size_align(pages.saturating_mul(PAGE_BYTES), PAGE_BYTES)
                .expect("a buffer is smaller than the address space");
        // SAFETY: the size is not zero.
        let raw = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { std::alloc::handle_alloc_error(layout) };
        Self { ptr, layout }
    }
}

impl Owner for HeapPages {
    fn region(&self, _: *const u8) -> Option<(Rc<Region>, u64)> {
        None
    }
}

impl Drop for HeapPages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::map_foreign;

    #[test]
    fn buffers_are_aligned_bounded_and_reused() {
        let pool = Pool::shared(1 << 20);
        let mut all = Vec::new();
        while let Ok(mut b) = pool.try_alloc(5000) {
            b.fill(all.len() as u8);
            assert_eq!((b.len(), b.as_ptr() as usize % PAGE_BYTES), (5000, 0));
            all.push(b);
        }
        assert_eq!(all.len(), 128);
        for (i, b) in all.iter().enumerate() {
            assert!(b.iter().all(|x| *x == i as u8));
        }
        assert_eq!(
            pool.stats(),
            PoolStats { bytes_max: 1 << 20, bytes_used: 1 << 20, overflows: 0 }
        );
        let spill = pool.alloc(10);
        assert!(spill.region().is_none());
        assert_eq!(pool.stats().overflows, 1);
        drop(all);
        assert_eq!(pool.stats().bytes_used, 0);
        assert!(pool.try_alloc(1 << 20).is_ok());
        assert!(pool.try_alloc((1 << 20) + 1).is_err());
    }

    #[test]
    fn a_peer_sees_the_same_bytes() {
        let pool = Pool::shared(1 << 20);
        let mut ours = pool.alloc(8192);
        ours.fill(7);
        let (region, offset) = ours.region().expect("shared");
        let fd = region.fd.try_clone().expect("dup");
        let foreign = map_foreign(fd, region.len).expect("map");
        let mut theirs = foreign.buf_mut(offset + 4096, 4096).expect("inside");
        assert_eq!(theirs[0], 7);
        theirs.fill(9);
        let (again, place) = theirs.region().expect("can be passed on");
        assert_eq!((again.len, place), (region.len, offset + 4096));
        drop(theirs);
        assert_eq!((ours[4095], ours[4096]), (7, 9));
        for (offset, len) in [(1 << 20, 1), (0, (1 << 20) + 1), (u64::MAX, 2), (1, usize::MAX)] {
            assert!(foreign.buf(offset, len).is_err());
            assert!(foreign.buf_mut(offset, len).is_err());
        }
    }

    #[test]
    fn memory_that_could_vanish_is_refused() {
        let file = tempfile::tempfile().expect("file");
        file.set_len(8192).expect("grow");
        assert!(map_foreign(file.into(), 8192).is_err());
        let memfd = || {
            let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).expect("memfd");
            rustix::fs::ftruncate(&fd, 8192).expect("grow");
            fd
        };
        assert!(map_foreign(memfd(), 8192).is_err(), "not sealed");
        let sealed = memfd();
        rustix::fs::fcntl_add_seals(&sealed, SealFlags::SHRINK).expect("seal");
        let other = sealed.try_clone().expect("dup");
        assert!(map_foreign(other, 8193).is_err(), "shorter than said");
        assert!(map_foreign(sealed.try_clone().expect("dup"), 0).is_err(), "empty");
        assert!(map_foreign(sealed, 8192).is_ok());
    }
}
