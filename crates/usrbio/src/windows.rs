//! [`Windows`]: how the daemon writes into buffers of applications.
//!
//! Not by write(2), which takes the lock of the memfd's inode: an application has it for as long as it writes to its own memfd from a page that does not come.
//! Pieces of buffers are mapped, and the kernel copies into them as if into another process (process_vm_writev(2)): this takes no such lock, and a page that
//! cannot be had is EFAULT and not the end of this process. What is mapped and was touched counts as the daemon's when the kernel looks for somebody to end, and so
//! do page tables; so little is mapped at a time, and what was mapped first goes first.
//!
//! Guarantees: a copy is whole or an error; at most a [`MAPPED_PART`]th of the memory in [`WINDOWS_MAX`] pieces is mapped. Must never: touch a page itself. **Not prevented**: a page
//! that lies in a hole which the application is just making is waited for until the hole is there. Callers look at how long a copy took.

use crate::lent::{LentMemory, missing};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ptr::NonNull;

/// Bytes of a window; a shorter buffer is one window.
const WINDOW_BYTES: u64 = 2 << 20;
/// Bytes of all windows: one so-manieth of the machine's memory, and at least [`MAPPED_BYTES_MIN`]. Who uses more of his buffers at random pays 7 us instead of 0.6 for each window that
/// is mapped anew.
const MAPPED_PART: u64 = 16;
/// See [`MAPPED_PART`].
const MAPPED_BYTES_MIN: u64 = 256 << 20;
/// Windows, of all buffers: a part of `vm.max_map_count` (65,530).
const WINDOWS_MAX: usize = 4096;
/// What the kernel maps for one page that is read (`fault_around_bytes`); for one that is written it maps just this.
const AROUND_BYTES: usize = 64 << 10;

/// A buffer, by its number, and which window of it.
type Key = (u64, u64);

/// A piece of a buffer that is mapped.
struct Window {
    base: NonNull<u8>,
    len: usize,
    /// Of which [`AROUND_BYTES`] pages were mapped together, a bit each.
    around: u32,
    /// The process that mapped it, this one: the C library asks the kernel for it each time.
    process: libc::pid_t,
}

/// See the module.
pub struct Windows {
    bytes_max: u64,
    windows_max: usize,
    there: BTreeMap<Key, Window>,
    /// In the order in which they were mapped.
    order: VecDeque<Key>,
    bytes: u64,
}

impl Default for Windows {
    fn default() -> Self {
        Self::new()
    }
}

impl Windows {
    /// None yet.
    pub fn new() -> Self {
        let all = rustix::system::sysinfo();
        let memory = (all.totalram as u64).saturating_mul(u64::from(all.mem_unit));
        Self::with((memory / MAPPED_PART).max(MAPPED_BYTES_MIN), WINDOWS_MAX)
    }
    fn with(bytes_max: u64, windows_max: usize) -> Self {
        let (there, order) = (BTreeMap::new(), VecDeque::new());
        Self { bytes_max, windows_max, there, order, bytes: 0 }
    }
    /// Copies bytes in; EFAULT if they do not lie inside, or not all pages are there any more. (One that goes in the same moment the daemon does make.)
    pub fn write(&mut self, memory: &LentMemory, offset: u64, bytes: &[u8]) -> io::Result<()> {
        memory.check(offset, bytes.len())?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let window = self.window(memory, at / WINDOW_BYTES)?;
            let within = (at % WINDOW_BYTES) as usize;
            let n = (bytes.len() - done).min(window.len - within);
            window.write(within, &bytes[done..done + n])?;
            done += n;
        }
        Ok(())
    }
    /// Unmaps all of a buffer. Else its pages stay, whoever has closed it.
    pub fn forget(&mut self, memory: &LentMemory) {
        let number = memory.number();
        let mut gone = 0;
        for (_, window) in self.there.extract_if((number, 0)..=(number, u64::MAX), |_, _| true) {
            gone += window.len as u64;
        }
        if gone > 0 {
            self.bytes -= gone;
            self.order.retain(|(n, _)| *n != number);
        }
    }

    fn window(&mut self, memory: &LentMemory, index: u64) -> io::Result<&mut Window> {
        let key = (memory.number(), index);
        if !self.there.contains_key(&key) {
            let begin = index * WINDOW_BYTES;
            let len = WINDOW_BYTES.min(memory.len() - begin);
            while self.bytes + len > self.bytes_max || self.there.len() >= self.windows_max {
                let first = self.order.pop_front().and_then(|k| self.there.remove(&k));
                self.bytes -= first.map_or(self.bytes, |w| w.len as u64);
            }
            self.there.insert(key, Window::map(memory, begin, len as usize)?);
            self.order.push_back(key);
            self.bytes += len;
        }
        self.there.get_mut(&key).ok_or_else(missing)
    }
}

impl Window {
    fn map(memory: &LentMemory, begin: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at a place of the kernel's choice, which nothing in this process ever reads or writes itself.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                memory.fd(),
                begin,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or_else(missing)?;
        Ok(Self { base, len, around: 0, process: std::process::id() as libc::pid_t })
    }
    /// Copies to `within`; the bytes fit.
    fn write(&mut self, within: usize, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(within + bytes.len() <= self.len);
        if bytes.len() > AROUND_BYTES {
            self.map_around(within, bytes.len());
        }
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let from =
                libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            let to = libc::iovec {
                iov_base: self.base.as_ptr().wrapping_add(within + done).cast(),
                iov_len: rest.len(),
            };
            // SAFETY: the kernel reads `rest`, and writes to the mapping, inside it, where nothing of Rust's lies.
            match unsafe {
                libc::process_vm_writev(self.process, &raw const from, 1, &raw const to, 1, 0)
            } {
                n if n > 0 => done += n as usize,
                0 => return Err(missing()),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }
    /// Has many pages mapped at once, by reading one byte of each group of which that was not done: much cheaper for what is long. Without it they are mapped one by one.
    fn map_around(&mut self, within: usize, len: usize) {
        const GROUPS: usize = WINDOW_BYTES as usize / AROUND_BYTES;
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut from, mut n) = ([nothing; GROUPS], 0);
        for group in within / AROUND_BYTES..(within + len).div_ceil(AROUND_BYTES) {
            if self.around & (1 << group) == 0 {
                self.around |= 1 << group;
                let base = self.base.as_ptr().wrapping_add(group * AROUND_BYTES);
                from[n] = libc::iovec { iov_base: base.cast(), iov_len: 1 };
                n += 1;
            }
        }
        if n == 0 {
            return;
        }
        let mut bytes = [0u8; GROUPS];
        let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: n };
        // SAFETY: the kernel reads the mapping, a byte of each of `n` groups, and writes them to `bytes`, which has room for all. An error says itself when it is written to.
        let _ = unsafe {
            libc::process_vm_readv(
                self.process,
                &raw const to,
                1,
                from.as_ptr(),
                n as libc::c_ulong,
                0,
            )
        };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; nobody but the kernel uses it, in the calls above.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedMemory;
    use rustix::fs::FallocateFlags;
    use std::os::fd::AsFd;

    fn lend(own: &SharedMemory, len: usize) -> LentMemory {
        LentMemory::adopt(own.as_fd().try_clone_to_owned().unwrap(), len as u64).unwrap()
    }

    #[test]
    fn what_is_written_is_there_wherever_it_lies() {
        const LEN: usize = (5 << 20) + 12_345;
        let own = SharedMemory::new("t", LEN).unwrap();
        let lent = lend(&own, LEN);
        let mut windows = Windows::new();
        let mut expected = vec![0; LEN];
        let long = WINDOW_BYTES as usize;
        for (i, (at, n)) in
            [(0, LEN), (4090, 100), (long - 1, 2), (1, 2 * long), (LEN - 1, 1), (70_000, 130_000)]
                .into_iter()
                .enumerate()
        {
            let bytes: Vec<u8> = (0..n).map(|b| (b * 7 + i) as u8).collect();
            windows.write(&lent, at as u64, &bytes).unwrap();
            expected[at..at + n].copy_from_slice(&bytes);
        }
        let mut there = vec![0; LEN];
        lent.read(0, &mut there).unwrap();
        assert!(there == expected);
        assert_eq!((windows.there.len(), windows.bytes), (3, LEN as u64));
        for (at, n) in [(LEN as u64, 1), (LEN as u64 - 1, 2), (u64::MAX, 1)] {
            let e = windows.write(&lent, at, &vec![0; n]).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::EFAULT));
        }
        windows.forget(&lent);
        assert_eq!((windows.there.len(), windows.order.len(), windows.bytes), (0, 0, 0));
    }

    #[test]
    fn pages_that_are_not_there_are_not_made() {
        const LEN: usize = 64 << 10;
        let own = SharedMemory::new("t", LEN).unwrap();
        let lent = lend(&own, LEN);
        let mut windows = Windows::new();
        windows.write(&lent, 0, &[7; LEN]).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&own, punch, 0, LEN as u64).unwrap();
        let e = windows.write(&lent, 0, &[7; 10]).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(rustix::fs::fstat(&own).unwrap().st_blocks, 0, "no page was made");
    }

    /// However many buffers and however large.
    #[test]
    fn little_is_mapped_at_a_time() {
        let (large, small) =
            (SharedMemory::new("t", 4 << 20).unwrap(), SharedMemory::new("t", 4096).unwrap());
        let mut windows = Windows::with(5 * WINDOW_BYTES, 16);
        let lent: Vec<_> = (0..8).map(|_| lend(&large, 4 << 20)).collect();
        for memory in &lent {
            windows.write(memory, 0, &[1]).unwrap();
            windows.write(memory, WINDOW_BYTES, &[1]).unwrap();
            assert!(windows.bytes <= 5 * WINDOW_BYTES);
        }
        assert_eq!((windows.bytes, windows.there.len()), (5 * WINDOW_BYTES, 5), "and not less");
        lent.iter().for_each(|memory| windows.forget(memory));
        assert_eq!(windows.bytes, 0);
        let lent: Vec<_> = (0..40).map(|_| lend(&small, 4096)).collect();
        for memory in lent.iter().chain(&lent) {
            windows.write(memory, 0, &[1]).unwrap();
            assert!(windows.there.len() <= 16);
        }
        assert_eq!((windows.bytes, windows.order.len()), (16 * 4096, 16));
    }
}
