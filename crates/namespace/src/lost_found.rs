//! `/lost+found`: where things go that have no other place, but must not be lost.

use crate::context::Context;
use crate::keys;
use crate::record::{Dentry, Inode};
use glowfs_types::wire::meta::{InodeKind, Name, ROOT_INODE};
use glowfs_types::{Error, InodeId, Result, Status};

/// Its name.
const LOST_FOUND: &[u8] = b"lost+found";
/// Permissions of that directory, and of one that is made anew: nobody knows who might look.
const OWNER_ONLY: u32 = 0o700;
/// Names that are tried for one inode in it.
const NAMES_MAX: u32 = 100;

/// Gives an inode that has none a name there. Returns the directories that changed.
pub(crate) async fn put(
    cx: &Context<'_>,
    (id, inode): (InodeId, &mut Inode),
) -> Result<Vec<InodeId>> {
    inode.nlink = 1;
    take_in(cx, (id, inode)).await
}

/// Takes an entry out of a directory and puts what it leads to there. Returns the directories that changed.
pub(crate) async fn move_to(
    cx: &Context<'_>,
    (parent, name, entry): (InodeId, &[u8], &Dentry),
    inode: &mut Inode,
) -> Result<Vec<InodeId>> {
    cx.remove(parent, name, entry)?;
    take_in(cx, (entry.inode, inode)).await
}

async fn take_in(cx: &Context<'_>, (id, inode): (InodeId, &mut Inode)) -> Result<Vec<InodeId>> {
    let (parent, touched) = directory(cx).await?;
    let name = free_name(cx, parent, id).await?;
    inode.ctime = cx.now;
    if inode.is_dir() {
        inode.parent = parent;
        inode.name = Some(name.clone());
    }
    let cookie = cx.env.new_id()?;
    cx.insert(parent, &name, id, inode.kind, cookie)?;
    cx.put_inode(id, inode)?;
    Ok(touched)
}

async fn free_name(cx: &Context<'_>, parent: InodeId, id: InodeId) -> Result<Name> {
    for n in 0..NAMES_MAX {
        let name = if n == 0 { format!("#{}", id.0) } else { format!("#{}-{n}", id.0) };
        let key = keys::dentry(cx.volume(), parent, name.as_bytes());
        if cx.tx.get(&key).await?.is_none() {
            return Ok(name.into_bytes().into());
        }
    }
    Err(Error::new(Status::Exists, format!("/lost+found has too many names for inode {id}")))
}

/// The directory, and what changes with it; made if it is not there.
async fn directory(cx: &Context<'_>) -> Result<(InodeId, Vec<InodeId>)> {
    let (root, entry) = cx.dir_and_entry(ROOT_INODE, LOST_FOUND).await?;
    match entry {
        Some(e) if e.kind == InodeKind::Directory => {
            cx.dir(e.inode).await?;
            return Ok((e.inode, vec![e.inode]));
        }
        Some(_) => {
            let e = "/lost+found is not a directory: rename it, then try again";
            return Err(Error::new(Status::Exists, e));
        }
        None => {}
    }
    let id = InodeId(cx.env.new_id()?);
    let name: Name = LOST_FOUND.to_vec().into();
    let mut inode = new_dir(cx, &root, ROOT_INODE, Some(name));
    cx.insert(ROOT_INODE, LOST_FOUND, id, InodeKind::Directory, id.0)?;
    cx.count(&inode, 1, 0)?;
    cx.put_inode(id, &mut inode)?;
    Ok((id, vec![ROOT_INODE, id]))
}

/// A directory that is root's alone, with the layout that everything inherits.
pub(crate) fn new_dir(
    cx: &Context<'_>,
    root: &Inode,
    parent: InodeId,
    name: Option<Name>,
) -> Inode {
    Inode {
        kind: InodeKind::Directory,
        mode: OWNER_ONLY,
        nlink: 1,
        atime: cx.now,
        mtime: cx.now,
        ctime: cx.now,
        btime: cx.now,
        project: root.project,
        layout: root.layout,
        parent,
        name,
        ..Inode::default()
    }
}
