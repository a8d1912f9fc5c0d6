//! Who may do what: mode bits, ACLs, ownership, the sticky bit.

use crate::acl::Acl;
use crate::context::err;
use crate::flags;
use crate::record::Inode;
use glowfs_types::mode;
pub use glowfs_types::mode::SETGID;
use glowfs_types::wire::meta::Caller;
use glowfs_types::{Result, Status};

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const EXEC: u32 = 1;

pub const STICKY: u32 = 0o1000;

pub fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

pub fn is_root(caller: &Caller) -> bool {
    caller.uid == 0
}

pub fn owns(caller: &Caller, inode: &Inode) -> bool {
    is_root(caller) || caller.uid == inode.uid
}

/// Whether he may do what only root may to an inode whose number the request names.
pub fn may_all(caller: &Caller) -> bool {
    is_root(caller) || caller.admitted
}

/// [`owns`], for an inode whose number the request names.
pub fn owns_named(caller: &Caller, inode: &Inode) -> bool {
    may_all(caller) || owns(caller, inode)
}

/// [`check`], for an inode whose number the request names: that one the client's kernel has looked at, if it has admitted him ([`Caller::admitted`]). What a name leads
/// to is not certain to be what it led to there.
pub fn check_named(caller: &Caller, inode: &Inode, want: u32) -> Result<()> {
    if may_all(caller) { Ok(()) } else { check(caller, inode, want) }
}

/// `AccessDenied` unless mode bits or ACL give the caller all of `want`. Root passes.
pub fn check(caller: &Caller, inode: &Inode, want: u32) -> Result<()> {
    if is_root(caller) {
        return Ok(());
    }
    if let Some(acl) = &inode.acl {
        let may = Acl::parse(acl)?.permits(caller, (inode.uid, inode.gid), want);
        return if may { Ok(()) } else { err(Status::AccessDenied) };
    }
    let bits = if caller.uid == inode.uid {
        inode.mode >> 6
    } else if in_group(caller, inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    if bits & want == want { Ok(()) } else { err(Status::AccessDenied) }
}

/// What who opens a file to read it needs: who opens it to run it does not need to be allowed to read it.
pub const fn to_read(exec: bool) -> u32 {
    if exec { EXEC } else { READ }
}

/// Whether the caller may take the entry of `inode` out of `dir`: flags, write and search permission, and the sticky bit.
pub fn check_delete(caller: &Caller, dir: &Inode, inode: &Inode) -> Result<()> {
    flags::check_remove(dir, inode)?;
    check_named(caller, dir, WRITE | EXEC)?;
    if dir.mode & STICKY != 0 && !owns(caller, dir) && !owns(caller, inode) {
        return err(Status::NotPermitted);
    }
    Ok(())
}

/// The mode after the caller changed the owner or the contents.
pub fn without_privileges(caller: &Caller, inode: &Inode) -> u32 {
    mode::without_privileges(inode.mode, is_root(caller) || in_group(caller, inode.gid))
}
