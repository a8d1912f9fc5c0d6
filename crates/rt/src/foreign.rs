//! Memory of a peer process of this host.

use crate::mem::{Buf, BufMut, Owner, Region};
use crate::pool::map_shared;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::Rc;

/// The greatest region that is mapped for a peer, in bytes of address space.
pub const FOREIGN_BYTES_MAX: u64 = 1 << 40;
/// `statfs` type of tmpfs, which memfds are on (linux/magic.h). Huge-page memfds are not accepted: touching
/// one can raise SIGBUS.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A mapped region of a peer. The peer can change its bytes at any time (see [`crate::mem`]).
///
/// A slice of bytes that change is more than Rust's memory model allows: to share memory with another process without a copy we depart from it knowingly. So whoever has such bytes
/// copies them, sums them up or hands them to the kernel, and decides nothing by what it would read twice: what a decision hangs by is copied first.
#[derive(Clone)]
pub struct ForeignRegion(Rc<Mapping>);

struct Mapping {
    region: Rc<Region>,
    base: NonNull<u8>,
    len: usize,
}

fn refuse(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Maps the first `len` bytes of a memfd that a peer passed. It must be at least that long and sealed against
/// shrinking, or else the peer could make us crash on its memory.
pub fn map_foreign(fd: OwnedFd, len: u64) -> io::Result<ForeignRegion> {
    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
    if len == 0 || len > FOREIGN_BYTES_MAX {
        return Err(refuse(format!("a region of {len} bytes cannot be mapped")));
    }
    let seals = rustix::fs::fcntl_get_seals(&fd)
        .map_err(|_| refuse("the descriptor that the peer passed is not a memfd"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(refuse("the peer's memfd is not sealed against shrinking"));
    }
    if rustix::fs::fstatfs(&fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(refuse("the peer's memfd has huge pages"));
    }
    let real = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
    if real < len {
        return Err(refuse(format!("the peer's region has {real} bytes, not {len}")));
    }
    let base = map_shared(&fd, bytes)?;
    let region = Rc::new(Region::new(fd, len));
    Ok(ForeignRegion(Rc::new(Mapping { region, base, len: bytes })))
}

impl ForeignRegion {
    /// The region, to be passed on.
    pub fn region(&self) -> &Rc<Region> {
        &self.0.region
    }
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.region.len
    }
    /// Never: an empty region is not mapped.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Bytes to read. An error if they are not all inside.
    pub fn buf(&self, offset: u64, len: usize) -> io::Result<Buf> {
        Ok(self.buf_mut(offset, len)?.freeze())
    }
    /// Bytes to write. An error if they are not all inside. Whoever asks twice for the same place gets what the
    /// two writers leave there, as with a peer that writes at the same time.
    pub fn buf_mut(&self, offset: u64, len: usize) -> io::Result<BufMut> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if start.checked_add(len).is_none_or(|end| end > self.0.len) {
            return Err(refuse(format!(
                "bytes {offset} + {len} reach past the peer's region of {}",
                self.0.len
            )));
        }
        // SAFETY: start <= len of the mapping.
        let ptr = unsafe { self.0.base.add(start) };
        // SAFETY: the mapping has these bytes and lives as long as its owner does. The peer may write to them all
        // the same; they are only ever copied, checksummed or handed to the kernel as plain bytes.
        Ok(unsafe { BufMut::from_raw(ptr, len, self.0.clone()) })
    }
}

impl Owner for Mapping {
    fn region(&self, ptr: *const u8) -> Option<(Rc<Region>, u64)> {
        let offset = (ptr as usize).checked_sub(self.base.as_ptr() as usize)?;
        Some((self.region.clone(), offset as u64))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `map_foreign` with this length; every buffer holds the mapping, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
