//! APPEND: the right to append to a file, which one client has at a time. It stands beside the locks of the file and ends with its client as
//! they do, so it outlives a meta service, and any service grants it.

use crate::context::{Context, cut_in_the_way, err};
use crate::locking::{store, table};
use crate::locks::AppendRight;
use glowfs_types::wire::append::Append;
use glowfs_types::wire::meta::{Attr, InodeKind};
use glowfs_types::{Error, Result, Status};

/// What APPEND did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// The client has the right, and these are the attributes under it.
    Granted(Box<Attr>),
    /// Another one has it.
    Held(AppendRight),
    /// It was given back.
    Released,
}

/// Takes the right, or gives it back. May be repeated.
pub async fn append(cx: &Context<'_>, q: &Append) -> Result<AppendOutcome> {
    let mut table = table(cx.tx, cx.volume(), q.inode).await?;
    let mine = AppendRight { client: cx.caller.client, grant: q.grant };
    if q.release {
        if table.append == Some(mine) {
            table.append = None;
            store(cx, q.inode, &table)?;
        }
        return Ok(AppendOutcome::Released);
    }
    let inode = cx.inode(q.inode).await?;
    if inode.kind != InodeKind::File {
        return err(Status::InvalidArgument);
    }
    if inode.cut.is_some() {
        return Err(cut_in_the_way(q.inode));
    }
    // Nobody hinders others who could not write himself.
    if !crate::gc::writers(cx.tx, cx.volume(), q.inode).await?.contains(&mine.client) {
        let e = "this client does not have the file open for writing any more; open it again";
        return Err(Error::new(Status::SessionEnded, e));
    }
    if let Some(held) = table.append.filter(|held| held.client != mine.client) {
        return Ok(AppendOutcome::Held(held));
    }
    // A client that asks anew has lost track of an earlier grant: the right is still its own.
    if table.append != Some(mine) {
        table.append = Some(mine);
        store(cx, q.inode, &table)?;
    }
    Ok(AppendOutcome::Granted(Box::new(cx.attr_here(q.inode, &inode))))
}
