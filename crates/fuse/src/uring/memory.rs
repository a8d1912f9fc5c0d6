//! The memory of an entry: what the kernel copies payloads into and out of.
//!
//! The kernel is told an address once. Behind that address, a [`Window`], lies a piece of the runtime's pool, so that a peer on this host can
//! read and write payloads where they are. A peer that does not let go of one in time (a storage that hangs) must not see, or
//! spoil, the next request: then the window is moved to another piece.

use glowfs_rt::mem::{Owner, Region};
use glowfs_rt::{Buf, BufMut, Pool};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// A piece of the pool.
struct Piece {
    /// Keeps it; its bytes are used by `base` only.
    memory: BufMut,
    base: NonNull<u8>,
    lent: Cell<bool>,
}

/// What keeps the bytes of a lent buffer alive.
struct Lease(Rc<Piece>);

impl Owner for Lease {
    fn region(&self, ptr: *const u8) -> Option<(Rc<Region>, u64)> {
        let (region, offset) = self.0.memory.region()?;
        let within = (ptr as usize).checked_sub(self.0.base.as_ptr() as usize)?;
        Some((region, offset + within as u64))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.lent.set(false);
    }
}

impl Piece {
    fn new(pool: &Pool, bytes: usize) -> Option<Rc<Self>> {
        let mut memory = pool.try_alloc(bytes).ok()?;
        memory.region()?;
        let base = NonNull::new(memory.as_mut_ptr())?;
        Some(Rc::new(Self { memory, base, lent: Cell::new(false) }))
    }
}

/// See the module.
pub(super) struct Window {
    at: NonNull<u8>,
    bytes: usize,
    /// None: the window has memory of its own, which nobody else can see.
    piece: RefCell<Option<Rc<Piece>>>,
}

impl Window {
    /// A window of `bytes` (whole pages) on a piece of the pool.
    pub(super) fn on_pool(pool: &Pool, bytes: usize) -> io::Result<Self> {
        let window = Self::private(bytes)?;
        let piece = Piece::new(pool, bytes)
            .ok_or_else(|| io::Error::other("the pool of shared buffers has no room for it"))?;
        window.show(piece)?;
        Ok(window)
    }
    /// A window on memory of its own: payloads are copied. Pages that are never used take no memory.
    pub(super) fn private(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, READ_WRITE, PRIVATE)? };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(Self { at, bytes, piece: RefCell::default() })
    }
    /// The address for the kernel, and the length.
    pub(super) fn place(&self) -> (*mut u8, usize) {
        (self.at.as_ptr(), self.bytes)
    }

    /// Moves the window to a piece.
    fn show(&self, piece: Rc<Piece>) -> io::Result<()> {
        let gone = || io::Error::other("a piece of the pool without a region");
        let (region, offset) = piece.memory.region().ok_or_else(gone)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: replaces pages of our own mapping; nothing in this process refers to them by this address but `base` of a
        // private window, which is not kept.
        unsafe {
            mmap(self.at.as_ptr().cast(), self.bytes, READ_WRITE, flags, &region.fd, offset)?;
        }
        *self.piece.borrow_mut() = Some(piece);
        Ok(())
    }
    /// Gives the window memory of its own.
    fn hide(&self) -> io::Result<()> {
        // SAFETY: as in `show`.
        unsafe {
            let at = self.at.as_ptr().cast();
            mmap_anonymous(at, self.bytes, READ_WRITE, PRIVATE | MapFlags::FIXED)?;
        }
        *self.piece.borrow_mut() = None;
        Ok(())
    }

    /// Where this process finds the bytes.
    fn base(&self) -> *mut u8 {
        self.piece.borrow().as_ref().map_or(self.at.as_ptr(), |p| p.base.as_ptr())
    }
    fn is_lent(&self) -> bool {
        self.piece.borrow().as_ref().is_some_and(|p| p.lent.get())
    }

    /// The first `len` bytes as a buffer, if nobody has them yet and the window can lend.
    pub(super) fn lend(&self, len: usize) -> Option<BufMut> {
        let piece = self.piece.borrow().clone()?;
        if len > self.bytes || piece.lent.replace(true) {
            return None;
        }
        let base = piece.base;
        // SAFETY: `base` has `bytes` bytes, which live as long as the piece; `lent` says that this is the only handle on them, and the kernel
        // leaves them alone until the entry is committed, which `reclaim` comes before.
        Some(unsafe { BufMut::from_raw(base, len, Rc::new(Lease(piece))) })
    }
    /// The first `len` bytes, as the kernel has filled them. Only for an entry that is in our hands.
    pub(super) fn copy_out(&self, len: usize, to: &mut Vec<u8>) {
        assert!(len <= self.bytes && !self.is_lent());
        // SAFETY: `base` has `bytes` bytes, and neither the kernel nor a buffer has them now.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(self.base(), len) });
    }
    /// Makes the memory the kernel's again. True: somebody still had it, and the window was moved away from under him.
    pub(super) fn reclaim(&self, pool: &Pool) -> io::Result<bool> {
        if !self.is_lent() {
            return Ok(false);
        }
        match Piece::new(pool, self.bytes) {
            Some(piece) => self.show(piece)?,
            None => self.hide()?,
        }
        Ok(true)
    }
    /// Puts an answer in: `parts` one behind the other. They must fit. Only after [`Window::reclaim`].
    pub(super) fn put<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) {
        let mut at = 0;
        for part in parts {
            assert!(part.len() <= self.bytes - at && !self.is_lent());
            // SAFETY: inside the window's bytes, which nobody else has now; so a part does not lie in them.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.base().add(at), part.len()) };
            at += part.len();
        }
    }
    /// Whether `buf` lies where an answer begins.
    pub(super) fn holds(&self, buf: &Buf) -> bool {
        self.piece.borrow().as_ref().is_some_and(|p| ptr::eq(p.base.as_ptr(), buf.as_ptr()))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped in `private` with this length; the entry that told the kernel of it is gone with its last command.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    fn seen(window: &Window, at: usize) -> u8 {
        // SAFETY: inside the window, which is mapped; no buffer on these bytes is used meanwhile.
        unsafe { window.at.as_ptr().add(at).read_volatile() }
    }

    #[test]
    fn what_is_lent_is_what_the_kernel_sees() {
        let pool = Pool::shared(1 << 20);
        let window = Window::on_pool(&pool, BYTES).expect("room");
        let mut buf = window.lend(8192).expect("free");
        assert!(window.lend(1).is_none(), "one at a time");
        buf.fill(7);
        let (region, offset) = buf.region().expect("shared with peers");
        assert!(offset + 8192 <= region.len);
        let buf = buf.freeze();
        assert!(window.holds(&buf) && !window.holds(&buf.slice(1..2)));
        drop(buf);
        assert!(!window.reclaim(&pool).expect("nothing to do"));
        assert_eq!((seen(&window, 0), seen(&window, 8191), seen(&window, 8192)), (7, 7, 0));
        window.put([&b"ab"[..], b"c"].into_iter());
        let mut out = Vec::new();
        window.copy_out(4, &mut out);
        assert_eq!(out, b"abc\x07");
    }

    #[test]
    fn who_keeps_a_payload_keeps_it_for_himself() {
        let pool = Pool::shared(1 << 20);
        let window = Window::on_pool(&pool, BYTES).expect("room");
        let mut late = window.lend(4096).expect("free");
        late.fill(1);
        assert!(window.reclaim(&pool).expect("moved"));
        window.put([&[2; 4096][..]].into_iter());
        late.fill(3);
        assert_eq!(seen(&window, 0), 2, "a late peer does not reach the next request");
        let next = window.lend(4096).expect("free again");
        assert_eq!((next[0], late[0]), (2, 3));
        // The pool is used up: the window goes on without it.
        let _all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(4096).ok()).collect();
        assert!(window.reclaim(&pool).expect("moved"));
        assert!(window.lend(1).is_none());
        window.put([&[5; 10][..]].into_iter());
        assert_eq!((seen(&window, 9), next[0], late[0]), (5, 2, 3));
        let used = pool.stats().bytes_used;
        drop((late, next));
        assert_eq!(pool.stats().bytes_used, used - 2 * BYTES as u64);
    }
}
