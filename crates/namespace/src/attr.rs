//! LOOKUP, GETATTR, SETATTR (with truncate), READLINK, STATFS.
//!
//! Truncate to 0 replaces the data id and leaves the old one to garbage collection. Truncate to n > 0 where chunks may reach past
//! n commits the new length with a new epoch and the mark «cut to n»; then the service cuts the chunks, and [`crate::finish_cut`] takes the
//! mark away before the caller is answered. A file that nobody has open for writing and that gets longer is cut to its old length. While the mark stands nobody is let in to write or extend (they finish the cut first), so
//! the cut can be repeated after a crash without harm to later data; and what lies behind the length is never shown, because the length
//! was committed first.

use crate::access::{self, EXEC, WRITE};
use crate::context::{Context, Cut, Usage, cut_in_the_way, err, file_bytes, gone};
use crate::cuts;
use crate::flags;
use crate::inline;
use crate::keys;
use crate::name;
use crate::open::{ended, own_session};
use crate::privileges;
use crate::record::{Inode, number, whole_blocks};
use glowfs_kv::Transaction;
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::wire::meta::{
    Attr, InodeKind, Lookup, OfInode, ReadLink, SetAttr, SetTime, inode_flags,
};
use glowfs_types::wire::sparse::EXTENT_BLOCK_BYTES;
use glowfs_types::{Error, InodeId, Result, SessionId, Status, VolumeId};

/// Looks a name up.
pub async fn lookup(cx: &Context<'_>, req: &Lookup) -> Result<Attr> {
    name::check(&req.name)?;
    if req.name.as_slice() == b"." {
        // So a kernel asks for an inode of which it has nothing but a handle, whatever it is; like GETATTR.
        let inode = cx.inode(req.parent).await?;
        return if inode.nlink > 0 {
            cx.attr_of(req.parent, &inode).await
        } else {
            err(Status::NotFound)
        };
    }
    if req.name.as_slice() == b".." {
        let dir = cx.dir(req.parent).await?;
        access::check_named(cx.caller, &dir, EXEC)?;
        let inode = cx.inode(dir.parent).await?;
        return cx.attr_of(dir.parent, &inode).await;
    }
    let (dir, entry) = cx.dir_and_entry(req.parent, &req.name).await?;
    access::check_named(cx.caller, &dir, EXEC)?;
    let Some(entry) = entry else { return err(Status::NotFound) };
    let inode = cx.inode(entry.inode).await?;
    cx.attr_of(entry.inode, &inode).await
}

/// Attributes of an inode.
pub async fn getattr(cx: &Context<'_>, req: &OfInode) -> Result<Attr> {
    let inode = cx.inode(req.inode).await?;
    cx.attr_of(req.inode, &inode).await
}

/// The target of a symlink, and whether [`crate::touch`] is to be called.
pub async fn readlink(cx: &Context<'_>, req: &ReadLink) -> Result<(Vec<u8>, bool)> {
    let inode = cx.inode(req.inode).await?;
    let accessed = cx.attr_here(req.inode, &inode).wants_atime(req.atime, cx.now);
    match inode.symlink {
        Some(target) if inode.kind == InodeKind::Symlink => Ok((target.into(), accessed)),
        _ => err(Status::InvalidArgument),
    }
}

/// Changes attributes. `Some(cut)`: the service must cut the chunks and call [`crate::finish_cut`] before it answers.
pub async fn setattr(cx: &Context<'_>, req: &SetAttr) -> Result<(Attr, Option<Cut>)> {
    let done = cx.done_before(req).await?;
    let mut inode = match (cx.find_inode(req.inode).await?, &done) {
        (Some(inode), _) => inode,
        (None, Some(done)) => return Ok((cx.done_to_gone(req.inode, done), None)),
        (None, None) => return Err(gone(req.inode)),
    };
    if done.is_none() && changes_something(cx, req, &inode) {
        let before = file_bytes(&inode);
        check_flags(cx, req, &inode)?;
        check_owner(cx, req, &inode)?;
        privileges::check(cx, req, &inode).await?;
        check_times(cx, req, &inode)?;
        check_len(cx, req, &inode).await?;
        change_owner_and_mode(cx, req, &mut inode)?;
        if let Some(len) = req.len {
            truncate(cx, req.inode, &mut inode, len).await?;
        }
        change_times(cx, req, &mut inode).await?;
        inode.flags = req.flags.unwrap_or(inode.flags);
        inode.ctime = req.ctime.filter(|_| access::owns(cx.caller, &inode)).unwrap_or(cx.now);
        cx.put_inode(req.inode, &mut inode)?;
        cx.count(&inode, 0, file_bytes(&inode) - before)?;
        cx.remember_of(req, req.inode, &inode)?;
    }
    let attr = cx.attr_of(req.inode, &inode).await?;
    let cut = inode.cut.map(|len| Cut { attr: attr.clone(), len });
    Ok((attr, cut))
}

/// A kernel asks for nothing at all before a write that it leaves to us to take privileges away for.
fn changes_something(cx: &Context<'_>, req: &SetAttr, inode: &Inode) -> bool {
    let owner_or_mode = req.mode.is_some() || req.uid.is_some() || req.gid.is_some();
    let times = req.atime.is_some() || req.mtime.is_some() || req.ctime.is_some();
    owner_or_mode
        || times
        || req.len.is_some()
        || req.flags.is_some()
        || (req.unprivileged_write && privileges::after_write(cx.caller, inode) != inode.mode)
}

/// Whether times are set as their owner alone may do it: to something else than now, or, as Linux sees it, one of them without the other.
fn chooses_times(req: &SetAttr) -> bool {
    let set = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    let one = req.len.is_none() && req.atime.is_some() != req.mtime.is_some();
    one || set(req.atime) || set(req.mtime)
}

/// What immutable and append-only inodes refuse, and who may make them so.
fn check_flags(cx: &Context<'_>, req: &SetAttr, inode: &Inode) -> Result<()> {
    let attributes = req.mode.is_some() || req.uid.is_some() || req.gid.is_some();
    if attributes || req.len.is_some() || chooses_times(req) {
        flags::check_attributes(inode)?;
    }
    if req.atime.is_some() || req.mtime.is_some() {
        flags::check_touch(inode)?;
    }
    let Some(new) = req.flags.filter(|new| *new != inode.flags) else { return Ok(()) };
    if new & !inode_flags::KNOWN != 0
        || !matches!(inode.kind, InodeKind::File | InodeKind::Directory)
    {
        return err(Status::NotSupported);
    }
    if access::is_root(cx.caller) { Ok(()) } else { err(Status::NotPermitted) }
}

fn check_owner(cx: &Context<'_>, req: &SetAttr, inode: &Inode) -> Result<()> {
    let caller = cx.caller;
    let root = access::may_all(caller);
    let owner = access::owns_named(caller, inode);
    let uid_ok = req.uid.is_none_or(|u| root || (owner && u == inode.uid));
    let gid_ok =
        req.gid.is_none_or(|g| root || (owner && (g == inode.gid || access::in_group(caller, g))));
    if !uid_ok || !gid_ok || (req.mode.is_some() && !owner) {
        return err(Status::NotPermitted);
    }
    Ok(())
}

fn check_times(cx: &Context<'_>, req: &SetAttr, inode: &Inode) -> Result<()> {
    let at = |t: Option<SetTime>| match t {
        Some(SetTime::At(t)) => Some(t),
        _ => None,
    };
    let given = [at(req.atime), at(req.mtime), req.ctime];
    if let Some(t) = given.into_iter().flatten().find(|t| t.nanos > 999_999_999) {
        return Err(Error::new(Status::InvalidArgument, format!("{} nanoseconds", t.nanos)));
    }
    if access::owns_named(cx.caller, inode) {
        return Ok(());
    }
    if chooses_times(req) {
        return err(Status::NotPermitted);
    }
    // A truncate brings its times along; its own check comes later.
    if req.len.is_none() && (req.atime.is_some() || req.mtime.is_some()) {
        return access::check_named(cx.caller, inode, WRITE);
    }
    Ok(())
}

async fn check_len(cx: &Context<'_>, req: &SetAttr, inode: &Inode) -> Result<()> {
    let Some(len) = req.len else { return Ok(()) };
    match inode.kind {
        InodeKind::File => {}
        InodeKind::Directory => return err(Status::IsDirectory),
        _ => return err(Status::InvalidArgument),
    }
    // Through a session that has ended nothing is written any more, and nothing is cut: others may have gone on with the file since.
    let session = match req.session.filter(|s| *s != SessionId(0)) {
        Some(s) => Some(own_session(cx, req.inode, s).await?.ok_or_else(ended)?),
        None => None,
    };
    if !session.is_some_and(|s| s.write) {
        access::check_named(cx.caller, inode, WRITE)?;
    }
    if len > FILE_BYTES_MAX {
        return err(Status::FileTooBig);
    }
    if inode.cut.is_some() {
        return Err(cut_in_the_way(req.inode));
    }
    Ok(())
}

fn change_owner_and_mode(cx: &Context<'_>, req: &SetAttr, inode: &mut Inode) -> Result<()> {
    if req.uid.is_some() || req.gid.is_some() {
        if !inode.is_dir() {
            inode.mode = access::without_privileges(cx.caller, inode);
        }
        inode.uid = req.uid.unwrap_or(inode.uid);
        inode.gid = req.gid.unwrap_or(inode.gid);
    }
    if req.unprivileged_write {
        inode.mode = privileges::after_write(cx.caller, inode);
    }
    if let Some(mode) = req.mode {
        let mut mode = mode & 0o7777;
        if !access::is_root(cx.caller) && !access::in_group(cx.caller, inode.gid) {
            mode &= !access::SETGID;
        }
        inode.set_mode(mode)?;
    }
    Ok(())
}

/// Sets the length of a file. The caller has checked that no cut is pending.
pub(crate) async fn truncate(
    cx: &Context<'_>,
    id: InodeId,
    inode: &mut Inode,
    len: u64,
) -> Result<()> {
    if inode.is_inline() {
        inline::resize(cx, id, inode, len).await?;
    } else if len == 0 && inode.stored {
        cx.discard_data(inode)?;
        let inherited = inode.layout.ok_or_else(|| Error::from(Status::Internal))?;
        inode.data = cx.env.new_data()?;
        inode.layout = Some(cx.env.place(&inherited, inode.data)?);
        inode.epoch = inode.epoch.next();
        inode.stored = cx.has_sessions(id).await?;
        inode.only_writer = None;
    } else if inode.stored && (len < inode.len || cx.has_sessions(id).await?) {
        // A session may have written past a length that it has not reported yet.
        begin_cut(cx, id, inode, len)?;
    } else if inode.stored && len > inode.len {
        // All that was acknowledged lies before the length; behind it may be what a write left that failed.
        let end = inode.len;
        begin_cut(cx, id, inode, end)?;
    }
    if !access::is_root(cx.caller) {
        inode.mode = access::without_privileges(cx.caller, inode);
    }
    // What is added has no blocks. What is left of a file with holes is counted when the rest is cut off: until then it is one with holes.
    let blocks = match inode.allocated {
        _ if inode.is_inline() => whole_blocks(len),
        Some(b) if len < inode.len => b.min(whole_blocks(len).saturating_sub(EXTENT_BLOCK_BYTES)),
        Some(b) => b,
        None => whole_blocks(inode.len.min(len)),
    };
    inode.len = len;
    inode.set_allocated(blocks);
    inode.written_now(cx.now);
    // No user has set it: a write by a clock that is behind moves it again.
    inode.mtime_set = None;
    Ok(())
}

/// From here on nobody is let in to write until what lies behind `len` is cut. So it is not begun where it could not be finished.
fn begin_cut(cx: &Context<'_>, id: InodeId, inode: &mut Inode, len: u64) -> Result<()> {
    if inode.layout.is_some_and(|layout| !cx.env.can_cut(&layout)) {
        let e = format!("a chain of inode {id} has nobody who serves, and a truncate needs all");
        return Err(Error::new(Status::ChainUnavailable, e));
    }
    inode.epoch = inode.epoch.next();
    inode.cut = Some(len);
    cuts::note(cx, id, inode.epoch)
}

async fn change_times(cx: &Context<'_>, req: &SetAttr, inode: &mut Inode) -> Result<()> {
    let at = |t: SetTime| match t {
        SetTime::Now => cx.now,
        SetTime::At(t) => t,
    };
    if let Some(t) = req.atime {
        inode.atime = at(t);
    }
    // A kernel asks for the time of a truncate, which that has set by itself.
    let of_truncate = |t: &SetTime| req.len.is_some() && *t == SetTime::Now;
    if let Some(t) = req.mtime.filter(|t| !of_truncate(t)) {
        inode.mtime = at(t);
        inode.mtime_set = Some(cx.now);
        if inode.is_dir() {
            // From here on the record says it, until the entries change again.
            cx.tx.clear(keys::dir_time(cx.volume(), req.inode))?;
        }
    }
    Ok(())
}

/// What the volume holds.
pub async fn statfs(tx: &Transaction, volume: VolumeId) -> Result<Usage> {
    let (mut begin, end) = keys::all_usage(volume);
    let mut sums = [0i64; 4];
    loop {
        let page = tx.get_range_snapshot(&begin, &end, 4096, false).await?;
        for (key, value) in &page.entries {
            if let Some(sum) = keys::usage_what(key).and_then(|w| sums.get_mut(usize::from(w))) {
                *sum = sum.saturating_add(number(Some(value.clone())));
            }
        }
        match page.entries.last() {
            Some((last, _)) if page.more => begin = glowfs_kv::key_after(last),
            _ => break,
        }
    }
    let [inodes, bytes, contents, xattrs] = sums.map(|sum| sum.max(0) as u64);
    Ok(Usage { inodes, bytes, contents, xattrs })
}
