//! Buffers: page-aligned memory that disks, sockets and peers on the same host can use without a copy.
//!
//! [`BufMut`] is the only handle on its bytes; [`Buf`] is shared and read-only. Both know the *region* (a memfd)
//! they lie in, so that a transport can hand them to another process as (region, offset, length).
//!
//! Memory of a *foreign* region (mapped from a peer) can be changed by that peer at any time. It is accepted only
//! from the trusted mount daemon and from services of the cluster; what is checksummed is verified at the place
//! that stores it.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

/// The alignment of every buffer that a [`Pool`] hands out, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Whoever keeps the memory of buffers alive.
pub trait Owner {
    /// The region the memory lies in, and the offset of `ptr` in it, if it can be shared.
    fn region(&self, ptr: *const u8) -> Option<(Rc<Region>, u64)>;
}

/// Memory that can be handed to another process of this host.
#[derive(Debug)]
pub struct Region {
    /// Unique in this process.
    pub id: u64,
    /// The memfd.
    pub fd: std::os::fd::OwnedFd,
    /// Its length in bytes.
    pub len: u64,
}

/// The only handle on some bytes.
pub struct BufMut {
    ptr: NonNull<u8>,
    len: usize,
    owner: Rc<dyn Owner>,
}

/// Shared, read-only bytes. Cloning and slicing copy nothing.
#[derive(Clone)]
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    owner: Rc<dyn Owner>,
}

impl BufMut {
    /// A handle on `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `[ptr, ptr + len)` is readable and writable as long as `owner` lives, and no other handle on it exists.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize, owner: Rc<dyn Owner>) -> Self {
        Self { ptr, len, owner }
    }
    /// Takes the first `n` bytes off; `self` keeps the rest.
    ///
    /// # Panics
    /// If there are fewer than `n`.
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> BufMut {
        assert!(n <= self.len, "split_to({n}) of {} bytes", self.len);
        let front = BufMut { ptr: self.ptr, len: n, owner: self.owner.clone() };
        // SAFETY: n <= len, so the new start is inside the allocation or one past its end.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n;
        front
    }
    /// Joins `next` to the end again, if it lies just behind `self` in the same owner; else gives it back.
    pub fn unsplit(&mut self, next: BufMut) -> Result<(), BufMut> {
        // SAFETY: one past the end of the allocation is a valid pointer to form.
        let end = unsafe { self.ptr.add(self.len) };
        if end == next.ptr && Rc::ptr_eq(&self.owner, &next.owner) {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }
    /// Keeps the first `n` bytes only.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }
    /// Makes it shared and read-only.
    pub fn freeze(self) -> Buf {
        Buf { ptr: self.ptr, len: self.len, owner: self.owner }
    }
    /// The region it lies in and its offset there.
    pub fn region(&self) -> Option<(Rc<Region>, u64)> {
        self.owner.region(self.ptr.as_ptr())
    }
}

impl Buf {
    /// A part of it.
    ///
    /// # Panics
    /// If the range reaches past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: start <= len.
        let ptr = unsafe { self.ptr.add(range.start) };
        Buf { ptr, len: range.end - range.start, owner: self.owner.clone() }
    }
    /// The region it lies in and its offset there.
    pub fn region(&self) -> Option<(Rc<Region>, u64)> {
        self.owner.region(self.ptr.as_ptr())
    }
    /// Whether it begins on a page and could be used for direct I/O.
    pub fn is_aligned(&self) -> bool {
        (self.ptr.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
    }
    /// Bytes on the heap, for small things that nobody needs to share.
    pub fn from_vec(bytes: Vec<u8>) -> Buf {
        let len = bytes.len();
        let owner = Rc::new(HeapOwner(bytes));
        let ptr = NonNull::new(owner.0.as_ptr().cast_mut()).expect("a Vec's pointer is not null");
        Buf { ptr, len, owner }
    }
}

struct HeapOwner(Vec<u8>);
impl Owner for HeapOwner {
    fn region(&self, _: *const u8) -> Option<(Rc<Region>, u64)> {
        None
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: from_raw's contract.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}
impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: from_raw's contract; `self` is the only handle.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: from_raw's contract; no BufMut on these bytes exists any more.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}
impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}
impl std::fmt::Debug for BufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// Where the buffers of one thread come from.
pub struct Pool {
    _private: (),
}

impl Pool {
    /// A pool of heap memory, which cannot be shared with other processes (simulator, tests).
    pub fn heap() -> Self {
        Self { _private: () }
    }
    /// A page-aligned buffer of `len` bytes, contents arbitrary.
    pub fn alloc(&self, len: usize) -> BufMut {
        let pages = len.div_ceil(PAGE_BYTES).max(1);
        let owner = Rc::new(PagesOwner::new(pages));
        let ptr = owner.ptr;
        // SAFETY: the owner has at least `len` bytes at `ptr`, and this is the first handle.
        unsafe { BufMut::from_raw(ptr, len, owner) }
    }
}

struct PagesOwner {
    ptr: NonNull<u8>,
    layout: std::alloc::Layout,
}
impl PagesOwner {
    fn new(pages: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(pages * PAGE_BYTES, PAGE_BYTES)
            .expect("a buffer is smaller than the address space");
        // SAFETY: the size is not zero.
        let raw = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { std::alloc::handle_alloc_error(layout) };
        Self { ptr, layout }
    }
}
impl Owner for PagesOwner {
    fn region(&self, _: *const u8) -> Option<(Rc<Region>, u64)> {
        None
    }
}
impl Drop for PagesOwner {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.ptr.as_ptr(), self.layout) }
    }
}
