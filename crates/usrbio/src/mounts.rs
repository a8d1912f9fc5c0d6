//! Which mount a path is on.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mount point that a path lies under, if it is a GlowFS mount: the highest directory above it on the same file system that answers
/// for GlowFS.
pub fn mount_point_of(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    let device = path.metadata()?.dev();
    let mut top = path.as_path();
    while let Some(parent) = top.parent()
        && parent.metadata().is_ok_and(|m| m.dev() == device)
    {
        top = parent;
    }
    if crate::connection::is_ours(&File::open(top)?) {
        return Ok(top.to_owned());
    }
    let what = format!("{} is not on a GlowFS mount", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
