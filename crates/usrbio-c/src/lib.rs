//! User-space I/O rings for C: [`own`] are our own names (`include/glowfs_usrbio.h`), [`hf3fs`] those of 3FS (`include/hf3fs_usrbio.h`), with
//! their meaning, so that a program written for 3FS is compiled unmodified. The headers say what each function does.
//!
//! Guarantees: no panic crosses into C; pointers are used as the headers say and no longer. Must never: keep a lock while it waits.

mod hf3fs;
mod own;
mod registry;

use std::io;

/// The errno of an error.
fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(match e.kind() {
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    })
}
