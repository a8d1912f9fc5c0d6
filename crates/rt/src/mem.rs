//! Buffers: page-aligned memory that disks, sockets and peers on the same host can use without a copy.
//!
//! [`BufMut`] is the only handle on its bytes; [`Buf`] is shared and read-only. Both know the *region* (a memfd)
//! they lie in, so that a transport can hand them to another process as (region, offset, length).
//!
//! Memory of a *foreign* region (mapped from a peer) can be changed by that peer at any time. It is accepted only
//! from the trusted mount daemon and from services of the cluster; what is checksummed is verified at the place
//! that stores it.

pub use crate::foreign::{FOREIGN_BYTES_MAX, ForeignRegion, map_foreign};
pub use crate::pool::{Exhausted, POOL_BYTES_DEFAULT, Pool, PoolStats};

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

impl Region {
    pub(crate) fn new(fd: std::os::fd::OwnedFd, len: u64) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed), fd, len }
    }
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
    /// `[ptr, ptr + len)` is readable and writable as long as `owner` lives. No other handle on it exists, or it is memory that another process has as well
    /// ([`ForeignRegion`] says what that takes).
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
    /// Whether it begins on a page and could be used for direct I/O.
    pub fn is_aligned(&self) -> bool {
        (self.ptr.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
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
    /// Makes it writable again, if this is the only handle on the memory.
    pub fn try_mut(self) -> Result<BufMut, Buf> {
        if Rc::strong_count(&self.owner) == 1 {
            Ok(BufMut { ptr: self.ptr, len: self.len, owner: self.owner })
        } else {
            Err(self)
        }
    }
    /// Bytes on the heap, for small things that nobody needs to share.
    pub fn from_vec(mut bytes: Vec<u8>) -> Buf {
        let len = bytes.len();
        let ptr = NonNull::new(bytes.as_mut_ptr()).expect("a Vec's pointer is not null");
        Buf { ptr, len, owner: Rc::new(HeapOwner(bytes)) }
    }
}

/// Only keeps the bytes alive.
struct HeapOwner(#[allow(dead_code)] Vec<u8>);
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
        // SAFETY: from_raw's contract; `self` is the only handle, but on foreign memory.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: from_raw's contract; no BufMut on these bytes exists any more, but on foreign memory.
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
