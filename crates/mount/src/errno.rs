//! What an application sees of an error.

use glowfs_types::{Error, Status};

/// EPERM.
pub const EPERM: i32 = 1;
/// EINTR.
pub const EINTR: i32 = 4;
/// ENAMETOOLONG.
pub const ENAMETOOLONG: i32 = 36;
/// ENOLCK.
pub const ENOLCK: i32 = 37;
/// EIO.
pub const EIO: i32 = 5;
/// ENXIO: nothing there.
pub const ENXIO: i32 = 6;
/// EBADF.
pub const EBADF: i32 = 9;
/// EINVAL.
pub const EINVAL: i32 = 22;
/// EFBIG.
pub const EFBIG: i32 = 27;
/// EROFS.
pub const EROFS: i32 = 30;
/// ENOSYS: the kernel does it itself from now on.
pub const ENOSYS: i32 = 38;
/// ENOENT: no such name.
pub const ENOENT: i32 = 2;
/// ENODATA: no such attribute.
pub const ENODATA: i32 = 61;
/// EOPNOTSUPP.
pub const EOPNOTSUPP: i32 = 95;

/// POSIX outcomes keep their errno. The cluster's own are EIO (the client has retried what can be retried), but for a
/// time-out, which says so.
pub fn errno(e: &Error) -> i32 {
    match e.status {
        Status::TimedOut => e.errno(),
        Status::UnknownMethod => EOPNOTSUPP,
        s if s.code() < 100 => e.errno(),
        _ => EIO,
    }
}
