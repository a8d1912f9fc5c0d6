//! What an application sees of an error.

use glowfs_types::{Error, Status};
use libc::{EIO, EOPNOTSUPP};

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
