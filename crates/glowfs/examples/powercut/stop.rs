//! Stops a file system dead, as the loss of power would: nothing that is in memory, neither data nor journal, reaches the disk any more.
//! What the tests of the kernel's own file systems use for the same purpose.

use rustix::ioctl::{self, Setter, opcode};
use std::error::Error;
use std::fs::File;
use std::path::Path;

/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN` are the same number.
const SHUTDOWN: ioctl::Opcode = opcode::read::<u32>(b'X', 125);
/// Without writing the journal first.
const NO_LOG_FLUSH: u32 = 2;

/// See the module.
pub fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let dir = File::open(dir)?;
    // SAFETY: the kernel reads one u32 through the pointer that `Setter` passes, and writes nothing.
    unsafe { ioctl::ioctl(&dir, Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH))? };
    Ok(())
}
