//! Has the kernel stop a file system for good, as the tests of its own file systems do: from then on everything that is asked of it ends with EIO.

use rustix::ioctl::{self, Setter, opcode};
use std::fs::File;
use std::io;
use std::path::Path;

/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN` are the same number.
const SHUTDOWN: ioctl::Opcode = opcode::read::<u32>(b'X', 125);

/// What becomes of what is only in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All of it is written first (`EXT4_GOING_FLAGS_DEFAULT`).
    Written,
    /// Neither data nor journal is, as when the power goes (`EXT4_GOING_FLAGS_NOLOGFLUSH`).
    Lost,
}

/// Stops the file system that this directory is on.
pub fn stop(dir: &Path, memory: Memory) -> io::Result<()> {
    let flags = match memory {
        Memory::Written => 0,
        Memory::Lost => 2,
    };
    let dir = File::open(dir)?;
    // SAFETY: the kernel reads one u32 through the pointer that `Setter` passes, and writes nothing.
    unsafe { ioctl::ioctl(&dir, Setter::<SHUTDOWN, u32>::new(flags)) }?;
    Ok(())
}
