//! REMOVE_TREE: a directory with all that is in it loses its name in one transaction, and goes in the background ([`crate::emptying`]).
//!
//! The directory stays, without links, with the root as its parent (so that every walk upwards ends), and is queued. Directories without links take no new
//! entries. Those inside the tree keep theirs until their turn comes, so what is renamed out of one before that stays.
//!
//! What the caller may not remove is looked for before ([`check_tree`]), in steps of one directory. It is looked at once more when its turn comes, with the
//! rights of whoever asked: rights may change meanwhile, and nobody may lose by this call what he could not have lost by `rm -r`.

use crate::access::{self, EXEC, READ, STICKY, WRITE};
use crate::context::{Context, err};
use crate::flags;
use crate::keys::{self, Part};
use crate::name;
use crate::record::{Dentry, Inode, number, pack, unpack};
use crate::trash::{self, PATH_MAX, readable};
use glowfs_kv::{Key, key_after};
use glowfs_types::wire::meta::{Caller, InodeKind, Name, ROOT_INODE, Time};
use glowfs_types::wire::tree::{RemoveTree, Tree};
use glowfs_types::{Error, InodeId, Result, Status};
use minicbor::{Decode, Encode};

/// Sums of a tree.
pub(crate) mod sum {
    pub const WAITING: u8 = 0;
    pub const FILES: u8 = 1;
    pub const DIRECTORIES: u8 = 2;
    pub const BYTES: u8 = 3;
    pub const KEPT: u8 = 4;
    /// How many there are.
    pub const ALL: u8 = 5;
}

/// A tree on its way out.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) struct TreeRecord {
    /// Where it was, from the root, if that is known.
    #[n(0)]
    pub path: Option<minicbor::bytes::ByteVec>,
    #[n(1)]
    pub name: minicbor::bytes::ByteVec,
    /// The directory it was in.
    #[n(2)]
    pub parent: InodeId,
    /// Who removed it.
    #[n(3)]
    pub uid: u32,
    #[n(4)]
    pub gid: u32,
    #[n(5)]
    pub groups: Vec<u32>,
    #[n(6)]
    pub removed: Time,
}

impl TreeRecord {
    /// Stands for one that is damaged.
    fn unreadable() -> Self {
        Self {
            path: None,
            name: Vec::new().into(),
            parent: InodeId(0),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            removed: Time::default(),
        }
    }
    /// With whose rights it is emptied.
    pub(crate) fn caller(&self, cx: &Context<'_>) -> Caller {
        let (uid, gid, groups) = (self.uid, self.gid, self.groups.clone());
        Caller { uid, gid, groups, volume: cx.volume(), ..Caller::default() }
    }
}

/// A directory that waits to be emptied.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) struct LeavingRecord {
    /// What it goes with.
    #[n(0)]
    pub tree: InodeId,
    /// Where it was, from the root, if that is known.
    #[n(1)]
    pub path: Option<minicbor::bytes::ByteVec>,
}

/// What REMOVE_TREE did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeRemoved {
    /// The tree: the number of its directory.
    pub tree: InodeId,
    /// By this transaction, not by an earlier copy of the request; false also if it was only asked.
    pub now: bool,
}

/// Which directory a request is about, and where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreePlace {
    /// The directory; 0: there is none, or an earlier copy of the request has removed it.
    pub tree: InodeId,
    /// The one it is in.
    pub parent: InodeId,
    /// Its name there.
    pub name: Name,
}

/// Finds the place of the tree that a request is about; [`remove_tree`] says what is wrong with it.
pub async fn tree_place(cx: &Context<'_>, req: &RemoveTree) -> Result<TreePlace> {
    let (mut parent, mut name) = (req.parent, req.name.clone());
    if cx.done_before(req).await?.is_some() {
        return Ok(TreePlace { tree: InodeId(0), parent, name });
    }
    if parent == InodeId(0) {
        let inode = cx.inode(req.inode).await?;
        if !inode.is_dir() {
            return err(Status::NotDirectory);
        }
        if req.inode == ROOT_INODE {
            return err(Status::Busy);
        }
        parent = inode.parent;
        // Only who asks whether it would be done may leave the name to us.
        if name.is_empty() && req.check {
            name = inode.name.ok_or_else(|| {
                let e = "the directory's name is not known (an older release made it)";
                Error::new(Status::NotSupported, e)
            })?;
        }
    }
    let key = keys::dentry(cx.volume(), parent, &name);
    let entry: Option<Dentry> = cx.tx.get(&key).await?.map(|v| unpack("dentry", &v)).transpose()?;
    let tree = entry.filter(|d| d.kind == InodeKind::Directory).map_or(InodeId(0), |d| d.inode);
    Ok(TreePlace { tree, parent, name })
}

/// Takes the name away and queues the directory; with `check` in the request it only says whether it would.
pub async fn remove_tree(
    cx: &Context<'_>,
    req: &RemoveTree,
    place: &TreePlace,
) -> Result<TreeRemoved> {
    if let Some(done) = cx.done_before(req).await? {
        return Ok(TreeRemoved { tree: done.inode, now: false });
    }
    let (parent, name) = (place.parent, &place.name);
    name::check(name)?;
    if name::is_dots(name) {
        return err(Status::InvalidArgument);
    }
    let (dir, entry) = cx.dir_to_change(parent, name).await?;
    access::check(cx.caller, &dir, EXEC)?;
    let Some(entry) = entry.filter(|e| [InodeId(0), e.inode].contains(&req.inode)) else {
        return match req.inode {
            InodeId(0) => err(Status::NotFound),
            _ => Err(Error::new(
                Status::InvalidArgument,
                "a tree is removed by its own name: that is the value that is to be set",
            )),
        };
    };
    let mut inode = cx.inode(entry.inode).await?;
    if !inode.is_dir() {
        return err(Status::NotDirectory);
    }
    access::check_delete(cx.caller, &dir, &inode)?;
    if req.check {
        return Ok(TreeRemoved { tree: entry.inode, now: false });
    }
    let path = trash::path_of(cx, (parent, &dir), name).await?;
    let record = TreeRecord {
        path: path.clone().map(Into::into),
        name: name.to_vec().into(),
        parent,
        uid: cx.caller.uid,
        gid: cx.caller.gid,
        groups: cx.caller.groups.clone(),
        removed: cx.now,
    };
    cx.remove(parent, name, &entry)?;
    cx.tx.put(keys::tree(cx.volume(), entry.inode), pack(&record))?;
    queue(cx, (entry.inode, &mut inode), entry.inode, path)?;
    cx.remember(req, entry.inode)?;
    Ok(TreeRemoved { tree: entry.inode, now: true })
}

/// A directory that has just lost its name waits to be emptied.
pub(crate) fn queue(
    cx: &Context<'_>,
    (id, inode): (InodeId, &mut Inode),
    tree: InodeId,
    path: Option<Vec<u8>>,
) -> Result<()> {
    let v = cx.volume();
    inode.nlink = 0;
    inode.parent = ROOT_INODE;
    inode.name = None;
    inode.ctime = cx.now;
    cx.put_inode(id, inode)?;
    let path = path.filter(|p| p.len() <= PATH_MAX).map(Into::into);
    cx.tx.put(keys::leaving(v, id), pack(&LeavingRecord { tree, path }))?;
    cx.tx.add(keys::tree_sum(v, tree, sum::WAITING), 1)
}

/// One step of the look at what the caller may not remove.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeCheck {
    /// Directories in it that are to be looked at.
    pub directories: Vec<InodeId>,
    /// Names that were read.
    pub names: u64,
    /// Where the next step goes on, if it is not through.
    pub next: Option<Key>,
}

/// Whether the caller may remove what is in a directory, `limit` names of it from `from` on. The count of its sub-directories says where no listing is
/// needed; in sticky directories of others each name's owner counts.
pub async fn check_tree(
    cx: &Context<'_>,
    dir: InodeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<TreeCheck> {
    let (v, mut found) = (cx.volume(), TreeCheck::default());
    let Some(inode) = cx.find_inode(dir).await?.filter(Inode::is_dir) else { return Ok(found) };
    let own = flags::check_remove(&inode, &inode)
        .and_then(|()| access::check(cx.caller, &inode, READ | WRITE | EXEC));
    if let Err(e) = own {
        // An empty one is taken out of its parent: only its flags are in the way of that.
        let stays = e.status == Status::NotPermitted || !cx.is_empty_dir(dir).await?;
        let name = inode.name.as_ref().map_or(String::new(), |n| n.escape_ascii().to_string());
        let what = format!("directory {dir} «{name}» of user {} may not be emptied", inode.uid);
        return if stays { Err(Error::new(e.status, what)) } else { Ok(found) };
    }
    let sticky = inode.mode & STICKY != 0 && !access::owns(cx.caller, &inode);
    let subdirs = number(cx.tx.get_snapshot(&keys::dir_subdirs(v, dir)).await?);
    if subdirs <= 0 && !sticky {
        return Ok(found);
    }
    let (begin, end) = keys::dentries(v, dir);
    let page = cx.tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    for (key, value) in &page.entries {
        let (Some(Part::Dentry(_, n)), Ok(d)) =
            (keys::parse(key), unpack::<Dentry>("dentry", value))
        else {
            continue;
        };
        if d.kind == InodeKind::Directory {
            found.directories.push(d.inode);
        }
        let others = async || Ok::<_, Error>(cx.find_inode(d.inode).await?.map(|i| i.uid));
        if sticky && let Some(uid) = others().await?.filter(|uid| *uid != cx.caller.uid) {
            let what = format!("«{}» in directory {dir} is of user {uid}", n.escape_ascii());
            return Err(Error::new(Status::NotPermitted, what));
        }
    }
    found.names = page.entries.len() as u64;
    found.next = page.entries.last().filter(|_| page.more).map(|(k, _)| key_after(k));
    Ok(found)
}

/// Trees on their way out behind `after`, of `uid` or of all, and behind which one there may be more.
pub async fn trees(
    cx: &Context<'_>,
    after: Option<InodeId>,
    uid: Option<u32>,
    limit: u32,
) -> Result<(Vec<Tree>, Option<InodeId>)> {
    let v = cx.volume();
    let (mut begin, end) = keys::trees(v);
    if let Some(after) = after {
        begin = key_after(&keys::tree(v, after));
    }
    let page = cx.tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let (mut all, mut last) = (Vec::new(), None);
    for (key, value) in &page.entries {
        let Some(tree) = keys::leaving_of(key) else { continue };
        last = Some(tree);
        // One that cannot be read hides no other. Whose it is nobody knows, so it is shown to those who see all.
        let r = readable(unpack::<TreeRecord>("tree record", value))?;
        if uid.is_some_and(|uid| r.as_ref().is_none_or(|r| r.uid != uid)) {
            continue;
        }
        let r = r.unwrap_or_else(TreeRecord::unreadable);
        let sums: Vec<_> = (0..sum::ALL).map(|what| keys::tree_sum(v, tree, what)).collect();
        let mut sums = cx.tx.get_all_snapshot(&sums).await?.into_iter();
        let mut next = || u64::try_from(number(sums.next().flatten())).unwrap_or(0);
        all.push(Tree {
            tree,
            path: r.path.map_or(Vec::new(), Vec::from),
            name: r.name.into(),
            parent: r.parent,
            uid: r.uid,
            removed: r.removed,
            waiting: next(),
            files: next(),
            directories: next(),
            bytes: next(),
            kept: next(),
        });
    }
    Ok((all, last.filter(|_| page.more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let path = Some(b"/a".to_vec().into());
        let leaving = LeavingRecord { tree: InodeId(7), path: path.clone() };
        assert_eq!(pack(&leaving), b"\x82\x07\x42/a");
        let record = TreeRecord {
            path,
            name: b"a".to_vec().into(),
            parent: InodeId(1),
            uid: 5,
            gid: 6,
            groups: vec![8],
            removed: Time { secs: 2, nanos: 3 },
        };
        assert_eq!(pack(&record), b"\x87\x42/a\x41a\x01\x05\x06\x81\x08\x82\x02\x03");
    }
}
