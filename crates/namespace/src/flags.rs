//! Immutable and append-only inodes (chattr +i, +a), as Linux has them: they bind root as well.

use crate::context::err;
use crate::record::Inode;
use glowfs_types::wire::meta::inode_flags::{APPEND, IMMUTABLE};
use glowfs_types::{Result, Status};

fn refuse_if(refused: bool) -> Result<()> {
    if refused { err(Status::NotPermitted) } else { Ok(()) }
}

/// Whether a name may be made in a directory. One that has been removed takes none, as with a local file system; with it goes only what was in it
/// ([`crate::tree`]).
pub fn check_insert(dir: &Inode) -> Result<()> {
    if dir.nlink == 0 {
        return err(Status::NotFound);
    }
    refuse_if(dir.flags & IMMUTABLE != 0)
}

/// Whether the entry of an inode may be taken out of a directory.
pub fn check_remove(dir: &Inode, inode: &Inode) -> Result<()> {
    refuse_if((dir.flags | inode.flags) & (IMMUTABLE | APPEND) != 0)
}

/// Whether mode, owner, set times, extended attributes, links of an inode may change.
pub fn check_attributes(inode: &Inode) -> Result<()> {
    refuse_if(inode.flags & (IMMUTABLE | APPEND) != 0)
}

/// Whether an inode's times may move to now.
pub fn check_touch(inode: &Inode) -> Result<()> {
    refuse_if(inode.flags & IMMUTABLE != 0)
}

/// Whether a file may be opened for writing.
pub fn check_open(inode: &Inode, append: bool, truncate: bool) -> Result<()> {
    let append_only = inode.flags & APPEND != 0;
    refuse_if(inode.flags & IMMUTABLE != 0 || append_only && (truncate || !append))
}
