//! [`SharedMemory`]: a memfd that both sides have mapped.
//!
//! It is sealed against shrinking and growing before it is shown to anybody, and its pages exist from the beginning, so that a machine without memory says so at
//! once instead of ending somebody with SIGBUS later; what has not all of them is refused. Not prevented: that somebody who has it gives pages back
//! (`FALLOC_FL_PUNCH_HOLE`). Who touches those next makes them anew, and is ended if the machine gives it none. The seal against that, `F_SEAL_FUTURE_WRITE`,
//! also forbids the other side to map the memory. So the daemon maps rings, which are bounded, and of buffers little at a time, which it does not touch itself
//! ([`crate::Windows`]).

use crate::available::available_bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// `statfs` type of tmpfs, which memfds are on (linux/magic.h), but those of huge pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// See the module.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread; bytes are reached through raw pointers and atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; `SharedMemory` itself never reads or writes its bytes but through atomics or volatile copies.
unsafe impl Sync for SharedMemory {}

/// Which memory a memfd is, on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its device number, as fstat(2) says.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
}

impl Identity {
    /// Of a memfd: any other descriptor may be of a file system that does not answer.
    pub fn of(memfd: &impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(memfd)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Whether a memfd of another process may be used: its length is what it is, it has no huge pages, is so long, and all of it is there.
pub(crate) fn check(fd: &OwnedFd, len: u64) -> io::Result<()> {
    // First the one question that never leaves this machine: only memfds have seals.
    let seals =
        rustix::fs::fcntl_get_seals(fd).map_err(|_| invalid("the descriptor is not a memfd"))?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(invalid("the memfd is not sealed against shrinking and growing"));
    }
    // Touching a huge page that is not there any more ends a process.
    if rustix::fs::fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(invalid("the memfd has huge pages"));
    }
    let real = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
    // Pages behind the end (FALLOC_FL_KEEP_SIZE) would count in the place of missing ones. The seal lets nobody make any from here on, and this takes away those that are there.
    rustix::fs::ftruncate(fd, real)?;
    if len == 0 || real < len {
        return Err(invalid(format!("the memfd has {real} bytes, not {len}")));
    }
    if !has_all_pages(fd)? {
        return Err(invalid("not all pages of the memfd are there: fallocate(2) makes them"));
    }
    Ok(())
}

/// Whether no page of a memfd is missing; those that are swapped out count. (How many there are is one number; to look for a hole would take a step for each
/// page.)
pub(crate) fn has_all_pages(memfd: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(memfd)?;
    let number = |n| u64::try_from(n).unwrap_or(0);
    Ok(number(stat.st_blocks) >= number(stat.st_size).div_ceil(512))
}

impl SharedMemory {
    /// New memory, zeroed, all of it there.
    pub fn new(name: &str, len: usize) -> io::Result<Self> {
        if len == 0 || i64::try_from(len).is_err() {
            return Err(invalid(format!("shared memory of {len} bytes cannot be made")));
        }
        // Asked for more than there is, the kernel would end some process, perhaps another one, of the machine or of a container.
        if let Some(available) = available_bytes()
            && len as u64 > available
        {
            let what = format!("no memory for a buffer of {len} bytes: {available} are available");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(|e| {
            io::Error::new(
                io::Error::from(e).kind(),
                format!("no memory for a buffer of {len} bytes: {e}"),
            )
        })?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(fd, len)
    }

    /// Memory that another process made. It must be a memfd of at least this length that cannot be shrunk and has all of its pages.
    ///
    /// Call where waiting does no harm: the descriptor is closed here if it is refused, and may be of a mount.
    pub fn adopt(fd: OwnedFd, len: usize) -> io::Result<Self> {
        check(&fd, len as u64)?;
        Self::map(fd, len)
    }

    /// Memory that another process has open as descriptor `fd`; the caller needs the right to look into that process. `which` it has to be is known but
    /// from older daemons.
    pub fn of_process(
        process: u32,
        fd: i32,
        len: usize,
        which: Option<Identity>,
    ) -> io::Result<Self> {
        let path = format!("/proc/{process}/fd/{fd}");
        let another = || {
            let what = format!(
                "{path} is not the memory that was named: its owner has closed it, or this process sees the owner under another number than the daemon \
                 does (another PID namespace); run all three in one"
            );
            io::Error::new(io::ErrorKind::NotFound, what)
        };
        // Before it is opened: by that number it may be anything here, a device too.
        match std::fs::read_link(&path) {
            Ok(target) if target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") => {}
            Ok(_) => return Err(another()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(another()),
            Err(e) => return Err(e),
        }
        let file = std::fs::File::options().read(true).write(true).open(&path)?;
        // As in `adopt`: only memfds have seals, and of these one may ask.
        let is_memfd = rustix::fs::fcntl_get_seals(&file).is_ok();
        if let Some(which) = which
            && !(is_memfd && Identity::of(&file)? == which)
        {
            return Err(another());
        }
        Self::adopt(file.into(), len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| invalid("mapped at address 0"))?;
        Ok(Self { base, len, fd })
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// A number in it that both sides change.
    ///
    /// # Panics
    /// If it is not aligned or not inside: offsets are ours, never the other side's.
    pub(crate) fn atomic(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "offset {offset}");
        // SAFETY: inside the mapping, aligned (it begins on a page), lives as long as self; all access is atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
    /// Copies a record out. The other side may write to it meanwhile: the copy is what gets checked and used.
    pub(crate) fn load<T: zerocopy::FromBytes + Copy>(&self, offset: usize) -> T {
        assert!(offset + size_of::<T>() <= self.len, "offset {offset}");
        // SAFETY: inside the mapping; any bytes are a T.
        unsafe { self.base.as_ptr().add(offset).cast::<T>().read_volatile() }
    }
    /// Stores a record.
    pub(crate) fn store<T: zerocopy::IntoBytes + Copy>(&self, offset: usize, value: T) {
        assert!(offset + size_of::<T>() <= self.len, "offset {offset}");
        // SAFETY: inside the mapping; both queues are aligned for their records.
        unsafe { self.base.as_ptr().add(offset).cast::<T>().write_volatile(value) }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; nothing borrowed from self is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_can_be_adopted_and_not_be_shrunk() {
        let m = SharedMemory::new("t", 8192).unwrap();
        assert!(rustix::fs::ftruncate(m.as_fd(), 0).is_err());
        let other = SharedMemory::adopt(m.as_fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        m.store(64, 7u32);
        assert_eq!(other.load::<u32>(64), 7);
        assert!(SharedMemory::adopt(m.as_fd().try_clone_to_owned().unwrap(), 8193).is_err());
    }

    #[test]
    fn what_is_not_sealed_memory_is_refused() {
        let plain = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        assert!(SharedMemory::adopt(plain, 4096).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(SharedMemory::adopt(file.into(), 4096).is_err());
    }

    #[test]
    fn more_than_there_is_is_refused_at_once() {
        let e = SharedMemory::new("t", 1 << 46).err().unwrap();
        assert_eq!(e.kind(), io::ErrorKind::OutOfMemory);
    }
}
