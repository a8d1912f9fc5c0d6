//! Flags of open(2) as the kernel passes them on: those of its architecture.

pub(super) const O_ACCMODE: u32 = libc::O_ACCMODE as u32;
pub(super) const O_WRONLY: u32 = libc::O_WRONLY as u32;
pub(super) const O_RDWR: u32 = libc::O_RDWR as u32;
pub(super) const O_EXCL: u32 = libc::O_EXCL as u32;
pub(super) const O_TRUNC: u32 = libc::O_TRUNC as u32;
pub(super) const O_APPEND: u32 = libc::O_APPEND as u32;
pub(super) const O_DIRECT: u32 = libc::O_DIRECT as u32;
pub(super) const O_NOATIME: u32 = libc::O_NOATIME as u32;
/// Also a part of O_SYNC; the kernel sets it for a write with RWF_DSYNC or RWF_SYNC, too.
pub(super) const O_DSYNC: u32 = libc::O_DSYNC as u32;
/// What O_SYNC has beyond O_DSYNC: times are to be durable as well.
pub(super) const O_SYNC_ONLY: u32 = (libc::O_SYNC & !libc::O_DSYNC) as u32;
/// Of Linux inside the kernel: it is opened to be run.
pub(super) const FMODE_EXEC: u32 = 0x20;
