//! REOPEN: a session that the metadata engine has lost with its power is put back under its own number.
//!
//! Guarantees: it is put back only where it can have been lost so (the engine has begun another life since it last said that the session was there), once for each
//! request, and with no more rights than the session is proven to have had, or than an open would give. It changes of the file what the open had changed, and no more: by how
//! often a file has changed its clients know what was lost of it. Where the session is there this is RENEW. Must never: bring a session back that was closed, or
//! that the cluster has ended: the caller has made sure that its client lives.

use crate::access::{self, WRITE};
use crate::context::{Context, cut_in_the_way, err};
use crate::flags;
use crate::open::{Opened, check_free, ended, note_session, own_session, renew};
use crate::record::{Inode, Session};
use glowfs_types::wire::meta::{InodeKind, Renew, Reopen};
use glowfs_types::{Error, Result, SessionId, Status};

/// What a session is known to have been opened for, so that nobody has to be allowed it anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Proven {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
}

/// Puts the session back, if it is not there, and renews it.
pub async fn reopen(cx: &Context<'_>, q: &Reopen, proven: Proven) -> Result<Opened> {
    let there = own_session(cx, q.inode, q.session).await?.is_some();
    // A copy of a request that is done finds a session that is there, or was closed since.
    if cx.done_before(q).await?.is_none() && !there {
        put_back(cx, q, proven).await?;
    }
    let renewed = Renew {
        caller: q.caller.clone(),
        inode: q.inode,
        session: Some(q.session),
        read: q.read,
        write: q.write,
        spill: false,
        exec: q.exec,
    };
    renew(cx, &renewed).await
}

async fn put_back(cx: &Context<'_>, q: &Reopen, proven: Proven) -> Result<()> {
    let mut inode = cx.inode(q.inode).await?;
    // An engine that loses nothing has no lives.
    if q.life == 0 || cx.tx.life() <= q.life {
        return Err(ended());
    }
    let a_session = q.session != SessionId(0) && (q.read || q.write);
    if !a_session || inode.kind != InodeKind::File {
        return err(Status::InvalidArgument);
    }
    if q.write && inode.cut.is_some() {
        return Err(cut_in_the_way(q.inode));
    }
    if inode.nlink == 0 && crate::removed::is_doomed(cx, q.inode).await? {
        // Its clients are being asked, and this one has it open: it will say so. Only what nobody has open goes.
        let e = "it is being found out who has this removed file open; retry";
        return Err(Error::new(Status::Overloaded, e));
    }
    check_free(cx, q.inode, q.session).await?;
    check_rights(cx, q, proven, &inode)?;
    let record = Session {
        client: cx.caller.client,
        read: q.read,
        write: q.write,
        opened: cx.now,
        fence: q.fence,
    };
    note_session(cx, q.inode, q.session, &record)?;
    if q.write && inode.let_write(Some(q.session)) {
        cx.put_inode(q.inode, &mut inode)?;
    }
    cx.remember(q, q.inode)
}

/// What is not proven its owner may have, who could give it to himself, or who may open the file so.
fn check_rights(cx: &Context<'_>, q: &Reopen, proven: Proven, inode: &Inode) -> Result<()> {
    let read = if q.read && !proven.read { access::to_read(q.exec) } else { 0 };
    let write = if q.write && !proven.write { WRITE } else { 0 };
    if write != 0 {
        flags::check_open(inode, false, false)?;
    }
    if access::owns_named(cx.caller, inode) {
        return Ok(());
    }
    access::check(cx.caller, inode, read | write)
}
