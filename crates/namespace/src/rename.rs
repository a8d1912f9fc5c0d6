//! RENAME, with NOREPLACE, EXCHANGE and WHITEOUT.
//!
//! A directory never becomes its own descendant: the transaction reads every directory from the new parent up to the root, and a
//! concurrent rename that would change one of them changes its record, so one of the two retries.

use crate::access::{self, EXEC, WRITE};
use crate::context::{Context, err};
use crate::flags;
use crate::link::remove_dir;
use crate::make::whiteout;
use crate::name;
use crate::record::{Dentry, Inode};
use glowfs_types::wire::meta::{Attr, ROOT_INODE, Rename};
use glowfs_types::{Error, InodeId, Result, Status};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;
/// Directories above one another, at most.
const DEPTH_MAX: usize = 65_536;

/// One end of a rename.
struct End<'a> {
    parent: InodeId,
    name: &'a [u8],
    dir: Inode,
}

/// What RENAME did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// What was replaced and lost a link.
    pub replaced: Option<Attr>,
    /// The inodes that the old and the new name led to before. None: a retry, so only what they lead to now can be known.
    pub led_to: Option<(InodeId, Option<InodeId>)>,
}

/// Renames.
pub async fn rename(cx: &Context<'_>, req: &Rename) -> Result<Renamed> {
    name::check(&req.name)?;
    name::check(&req.new_name)?;
    let known = req.flags & !(NOREPLACE | EXCHANGE | WHITEOUT) == 0;
    if !known || (req.flags & EXCHANGE != 0 && req.flags != EXCHANGE) {
        return err(Status::InvalidArgument);
    }
    if cx.done_before(req).await?.is_some() {
        return Ok(Renamed { replaced: None, led_to: None });
    }
    if name::is_dots(&req.name) || name::is_dots(&req.new_name) {
        return err(Status::Busy);
    }
    let (dir, source) = cx.dir_to_change(req.parent, &req.name).await?;
    let (new_dir, target) = cx.dir_to_change(req.new_parent, &req.new_name).await?;
    let from = End { parent: req.parent, name: &req.name, dir };
    let to = End { parent: req.new_parent, name: &req.new_name, dir: new_dir };
    access::check_named(cx.caller, &from.dir, EXEC)?;
    access::check_named(cx.caller, &to.dir, EXEC)?;
    let Some(source) = source else { return err(Status::NotFound) };
    if req.flags & NOREPLACE != 0 && target.is_some() {
        return err(Status::Exists);
    }
    let led_to = Some((source.inode, target.as_ref().map(|t| t.inode)));
    let mut moved = cx.inode(source.inode).await?;
    check_move(cx, &from, &to, source.inode, &moved).await?;
    let replaced = if req.flags & EXCHANGE != 0 {
        let Some(target) = target else { return err(Status::NotFound) };
        exchange(cx, &from, &to, &source, &mut moved, &target).await?;
        None
    } else {
        let whiteout = (req.flags & WHITEOUT != 0).then_some(req);
        replace(cx, &from, &to, &source, &mut moved, target.as_ref(), whiteout).await?
    };
    cx.remember(req, InodeId(0))?;
    Ok(Renamed { replaced, led_to })
}

/// Whether the inode may leave `from` for `to`.
async fn check_move(
    cx: &Context<'_>,
    from: &End<'_>,
    to: &End<'_>,
    id: InodeId,
    inode: &Inode,
) -> Result<()> {
    access::check_delete(cx.caller, &from.dir, inode)?;
    flags::check_insert(&to.dir)?;
    access::check_named(cx.caller, &to.dir, WRITE | EXEC)?;
    if inode.is_dir() && from.parent != to.parent {
        // Its `..` changes.
        access::check(cx.caller, inode, WRITE)?;
        // Last: it reads all directories on the way up, which nobody has to who may not move it anyway.
        if is_inside(cx, to.parent, &to.dir, id).await? {
            return err(Status::InvalidArgument);
        }
    }
    Ok(())
}

/// Whether `dir` is `ancestor` or lies below it.
async fn is_inside(
    cx: &Context<'_>,
    dir: InodeId,
    record: &Inode,
    ancestor: InodeId,
) -> Result<bool> {
    let (mut at, mut parent) = (dir, record.parent);
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == ROOT_INODE {
            return Ok(false);
        }
        at = parent;
        parent = cx.dir(at).await?.parent;
    }
    Err(Error::new(Status::Loop, format!("directory {dir} lies deeper than {DEPTH_MAX}")))
}

async fn replace(
    cx: &Context<'_>,
    from: &End<'_>,
    to: &End<'_>,
    source: &Dentry,
    moved: &mut Inode,
    target: Option<&Dentry>,
    leaves_whiteout: Option<&Rename>,
) -> Result<Option<Attr>> {
    let mut replaced = None;
    if let Some(target) = target {
        if target.inode == source.inode {
            return Ok(None);
        }
        let mut old = cx.inode(target.inode).await?;
        access::check_delete(cx.caller, &to.dir, &old)?;
        match (moved.is_dir(), old.is_dir()) {
            (true, false) => return err(Status::NotDirectory),
            (false, true) => return err(Status::IsDirectory),
            _ => {}
        }
        if old.is_dir() && !cx.is_empty_dir(target.inode).await? {
            return err(Status::NotEmpty);
        }
        cx.remove(to.parent, to.name, target)?;
        replaced = Some(if old.is_dir() {
            remove_dir(cx, target.inode, &mut old).await?
        } else {
            cx.drop_link(target.inode, &mut old).await?
        });
    }
    cx.remove(from.parent, from.name, source)?;
    // A name keeps its place in listings that are under way: one that is replaced is there at every moment, and must be found by all of them.
    let cookie = match target {
        Some(target) => target.cookie,
        None if from.parent == to.parent && leaves_whiteout.is_none() => source.cookie,
        None => cx.env.new_id()?,
    };
    if let Some(req) = leaves_whiteout {
        flags::check_insert(&from.dir)?;
        whiteout(cx, req, &from.dir, source.cookie)?;
    }
    cx.insert(to.parent, to.name, source.inode, source.kind, cookie)?;
    arrived(cx, source.inode, moved, to)?;
    Ok(replaced)
}

async fn exchange(
    cx: &Context<'_>,
    from: &End<'_>,
    to: &End<'_>,
    source: &Dentry,
    moved: &mut Inode,
    target: &Dentry,
) -> Result<()> {
    if target.inode == source.inode {
        return Ok(());
    }
    let mut other = cx.inode(target.inode).await?;
    check_move(cx, to, from, target.inode, &other).await?;
    cx.remove(from.parent, from.name, source)?;
    cx.remove(to.parent, to.name, target)?;
    cx.insert(to.parent, to.name, source.inode, source.kind, target.cookie)?;
    cx.insert(from.parent, from.name, target.inode, target.kind, source.cookie)?;
    arrived(cx, source.inode, moved, to)?;
    arrived(cx, target.inode, &mut other, from)
}

/// An inode has a new place.
fn arrived(cx: &Context<'_>, id: InodeId, inode: &mut Inode, at: &End<'_>) -> Result<()> {
    inode.ctime = cx.now;
    if inode.is_dir() {
        cx.note_moved(id);
        inode.parent = at.parent;
        inode.name = Some(at.name.to_vec().into());
    }
    cx.put_inode(id, inode)
}
