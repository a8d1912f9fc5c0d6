//! [`LentMemory`]: a buffer of an application, as the daemon reaches it.
//!
//! Read by pread(2), and written by [`crate::Windows`]: write(2) waits for the lock of the memfd's inode, which an application can hold for as long as it
//! likes. Guarantees: a copy is whole or an error. Must never: have its pages made by the daemon (the application may give them back at any time, though it
//! cannot shrink the memory): these would be memory of the daemon's.

use crate::memory::{Identity, check, has_all_pages};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module.
pub struct LentMemory {
    fd: OwnedFd,
    len: u64,
    number: u64,
}

pub(crate) fn missing() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

impl LentMemory {
    /// The first `len` bytes of a memfd of another process, which must have all of its pages and be such that it cannot be shrunk.
    ///
    /// Call where waiting does no harm: the descriptor is closed here if it is refused, and may be of a mount.
    pub fn adopt(fd: OwnedFd, len: u64) -> io::Result<Self> {
        check(&fd, len)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self { fd, len, number: NEXT.fetch_add(1, Relaxed) })
    }
    /// Which memory it is.
    pub fn identity(&self) -> io::Result<Identity> {
        Identity::of(&self.fd)
    }
    /// Which one it is of all that this process ever had.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Copies bytes in, and waits for everybody who writes to the memory, gives pages of it back or otherwise has its inode locked: to be called where waiting
    /// does no harm. EFAULT if they do not lie inside, or not all pages are there any more: the daemon makes none for others. (One that goes in the same
    /// moment it does make.)
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len())?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.fd, &bytes[done..], offset + done as u64)? {
                0 => return Err(missing()),
                n => done += n,
            }
        }
        Ok(())
    }
    /// Copies bytes out, and waits for no lock of the application (for pages that are in swap it does); fails as [`LentMemory::write`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(offset, into.len())?;
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], offset + done as u64)? {
                0 => return Err(missing()),
                n => done += n,
            }
        }
        Ok(())
    }
    pub(crate) fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        match inside && has_all_pages(&self.fd)? {
            true => Ok(()),
            false => Err(missing()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedMemory;
    use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
    use std::os::fd::AsFd;

    const LEN: usize = 64 << 10;

    #[test]
    fn what_one_side_writes_the_other_one_reads() {
        let own = SharedMemory::new("t", LEN).unwrap();
        let lent =
            LentMemory::adopt(own.as_fd().try_clone_to_owned().unwrap(), LEN as u64).unwrap();
        lent.write(4090, &[7; 100]).unwrap();
        assert_eq!(own.load::<[u8; 100]>(4090), [7; 100]);
        own.store(0, [9u8; 10]);
        let mut into = [1; 12];
        lent.read(0, &mut into).unwrap();
        assert_eq!(into, [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0]);
        let outside = |r: io::Result<()>| r.unwrap_err().raw_os_error() == Some(libc::EFAULT);
        assert!(outside(lent.write(LEN as u64 - 1, &[0; 2])));
        assert!(outside(lent.read(u64::MAX, &mut into)));
    }

    #[test]
    fn pages_that_are_not_there_are_not_made() {
        let sparse = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&sparse, LEN as u64).unwrap();
        rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(LentMemory::adopt(sparse.try_clone().unwrap(), LEN as u64).is_err());
        assert!(SharedMemory::adopt(sparse.try_clone().unwrap(), LEN).is_err(), "nor for rings");
        rustix::fs::fallocate(&sparse, FallocateFlags::empty(), 0, LEN as u64 / 2).unwrap();
        assert!(SharedMemory::adopt(sparse.try_clone().unwrap(), LEN / 2).is_err(), "nor half");
        rustix::fs::fallocate(&sparse, FallocateFlags::empty(), 0, LEN as u64).unwrap();
        let lent = LentMemory::adopt(sparse.try_clone().unwrap(), LEN as u64).unwrap();
        lent.write(0, &[7; LEN]).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&sparse, punch, 0, LEN as u64).unwrap();
        assert_eq!(lent.write(0, &[7; 10]).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(lent.read(0, &mut [0; 10]).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(rustix::fs::fstat(&sparse).unwrap().st_blocks, 0, "no page was made");
    }

    /// Pages that lie behind the end count in no other one's place.
    #[test]
    fn pages_behind_the_end_do_not_count() {
        let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        let allocate = |flags, at| rustix::fs::fallocate(&fd, flags, at, LEN as u64);
        allocate(FallocateFlags::empty(), 0).unwrap();
        allocate(FallocateFlags::KEEP_SIZE, LEN as u64).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let adopt = || LentMemory::adopt(fd.try_clone().unwrap(), LEN as u64);
        assert!(adopt().is_err(), "more may come");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW).unwrap();
        let lent = adopt().unwrap();
        assert!(allocate(FallocateFlags::KEEP_SIZE, LEN as u64).is_err(), "sealed");
        allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0).unwrap();
        assert_eq!(lent.write(0, &[7; 10]).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0, "no page was made");
    }
}
