//! LINK and UNLINK (with rmdir).

use crate::access::{self, EXEC, WRITE};
use crate::context::{Context, err};
use crate::flags;
use crate::name;
use glowfs_types::wire::meta::{Attr, Link, Unlink};
use glowfs_types::{InodeId, Result, Status};

/// Names that an inode can have.
const LINKS_MAX: u32 = 1_000_000;

/// Gives an inode a further name.
pub async fn link(cx: &Context<'_>, req: &Link) -> Result<Attr> {
    name::check(&req.name)?;
    if let Some(done) = cx.done_before(req).await? {
        return match cx.find_inode(req.inode).await? {
            Some(inode) => cx.attr_of(req.inode, &inode).await,
            None => Ok(cx.done_to_gone(req.inode, &done)),
        };
    }
    let mut inode = cx.inode(req.inode).await?;
    let (dir, entry) = cx.dir_to_change(req.parent, &req.name).await?;
    access::check_named(cx.caller, &dir, EXEC)?;
    if entry.is_some() || name::is_dots(&req.name) {
        return err(Status::Exists);
    }
    flags::check_insert(&dir)?;
    access::check_named(cx.caller, &dir, WRITE | EXEC)?;
    if inode.is_dir() {
        return err(Status::NotPermitted);
    }
    flags::check_attributes(&inode)?;
    if inode.nlink == 0 && !crate::removed::takes_name(cx, req.inode).await? {
        return err(Status::NotFound);
    }
    if inode.nlink >= LINKS_MAX {
        return err(Status::TooManyLinks);
    }
    cx.tx.grows();
    inode.nlink += 1;
    inode.ctime = cx.now;
    let cookie = cx.env.new_id()?;
    cx.insert(req.parent, &req.name, req.inode, inode.kind, cookie)?;
    cx.put_inode(req.inode, &mut inode)?;
    cx.remember_of(req, req.inode, &inode)?;
    Ok(cx.attr_here(req.inode, &inode))
}

/// Removes a name. Returns the inode as it is afterwards; `None` for a retry.
pub async fn unlink(cx: &Context<'_>, req: &Unlink) -> Result<Option<Attr>> {
    name::check(&req.name)?;
    if cx.done_before(req).await?.is_some() {
        return Ok(None);
    }
    if name::is_dots(&req.name) {
        let status = match req.name.as_slice() {
            b"." if req.directory => Status::InvalidArgument,
            b".." if req.directory => Status::NotEmpty,
            _ => Status::IsDirectory,
        };
        return err(status);
    }
    let (dir, entry) = cx.dir_to_change(req.parent, &req.name).await?;
    access::check_named(cx.caller, &dir, EXEC)?;
    let Some(entry) = entry else { return err(Status::NotFound) };
    let mut inode = cx.inode(entry.inode).await?;
    access::check_delete(cx.caller, &dir, &inode)?;
    match (req.directory, inode.is_dir()) {
        (true, false) => return err(Status::NotDirectory),
        (false, true) => return err(Status::IsDirectory),
        _ => {}
    }
    cx.remove(req.parent, &req.name, &entry)?;
    cx.remember(req, InodeId(0))?;
    if inode.is_dir() {
        if !cx.is_empty_dir(entry.inode).await? {
            return err(Status::NotEmpty);
        }
        return remove_dir(cx, entry.inode, &mut inode).await.map(Some);
    }
    if crate::trash::takes(&dir, &inode) {
        let place = (req.parent, &dir);
        crate::trash::put(cx, place, &req.name, (entry.inode, &mut inode)).await?;
        return Ok(Some(cx.attr_here(entry.inode, &inode)));
    }
    cx.drop_link(entry.inode, &mut inode).await.map(Some)
}

/// Removes an empty directory that has lost its name.
pub(crate) async fn remove_dir(
    cx: &Context<'_>,
    id: InodeId,
    inode: &mut crate::record::Inode,
) -> Result<Attr> {
    inode.nlink = 0;
    inode.ctime = cx.now;
    cx.erase(id, inode).await?;
    Ok(crate::context::dir_attr(id, inode, Default::default(), cx.tx.life()))
}
