//! Errors as Python knows them: `OSError` with its number, which also picks the subclass (`FileNotFoundError`, ...).

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::io;

/// The number of an error; those that are not the system's get the nearest one.
pub fn number(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(match e.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        _ => libc::EIO,
    })
}

/// What the daemon means by a number, where the system's own words mislead.
fn hint(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::ENOTCONN => "the mount has ended",
        libc::EPROTO => "the ring was written over",
        libc::ENOTTY => "not on a GlowFS mount",
        _ => return None,
    })
}

/// `OSError` with this number; `what` says what was wanted.
pub fn os_error(errno: i32, what: &str) -> PyErr {
    let system = io::Error::from_raw_os_error(errno).to_string();
    // Rust appends «(os error N)»; Python shows the number itself.
    let system = system.split(" (os error").next().unwrap_or_default().to_owned();
    let meaning = hint(errno).map_or(system, str::to_owned);
    PyOSError::new_err((errno, format!("{what}: {meaning}")))
}

/// The same of an error of the rings' library; `what` says what was wanted.
pub fn from_io(e: &io::Error, what: &str) -> PyErr {
    match e.raw_os_error() {
        Some(errno) => os_error(errno, what),
        None => PyOSError::new_err((number(e), format!("{what}: {e}"))),
    }
}
