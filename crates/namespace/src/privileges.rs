//! What programs get by being run, when their contents change by the hand of somebody who has no privilege: set-user-id and set-group-id go.
//!
//! Decided by the mode of the moment, never by one that a client remembers: the owner may have changed it since.

use crate::access::{self, WRITE};
use crate::context::Context;
use crate::open::own_session;
use crate::record::Inode;
use glowfs_types::wire::meta::{Caller, SetAttr};
use glowfs_types::{Result, mode};

/// The mode after such a write by somebody with the caller's groups. That a mount asks as root does not count.
pub fn after_write(caller: &Caller, inode: &Inode) -> u32 {
    if inode.is_dir() {
        return inode.mode;
    }
    mode::without_privileges(inode.mode, access::in_group(caller, inode.gid))
}

/// Whether the caller may say that it was written so: who may write it, or has it open for that.
pub async fn check(cx: &Context<'_>, req: &SetAttr, inode: &Inode) -> Result<()> {
    if !req.unprivileged_write || access::owns(cx.caller, inode) {
        return Ok(());
    }
    if let Some(session) = req.session
        && own_session(cx, req.inode, session).await?.is_some_and(|s| s.write)
    {
        return Ok(());
    }
    access::check_named(cx.caller, inode, WRITE)
}
