//! Names of entries.

use crate::context::err;
use glowfs_types::wire::meta::NAME_BYTES_MAX;
use glowfs_types::{Error, Result, Status};

/// Checks the form of a name.
pub fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return err(Status::NameTooLong);
    }
    if name.is_empty() {
        return err(Status::NotFound);
    }
    if name.iter().any(|b| *b == b'/' || *b == 0) {
        return Err(Error::new(Status::InvalidArgument, "a name holds a slash or a NUL"));
    }
    Ok(())
}

/// `.` or `..`.
pub fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}
