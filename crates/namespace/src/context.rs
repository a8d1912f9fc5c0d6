//! What every operation is given, and the steps that many of them share.

use crate::keys;
use crate::record::{
    CookieEntry, Dentry, GarbageRecord, Inode, OrphanRecord, Session, number, pack, pack_time,
    unpack,
};
use glowfs_kv::Transaction;
use glowfs_types::wire::meta::{Attr, Caller, InodeKind, Time};
use glowfs_types::{DataId, Error, InodeId, Layout, Result, SessionId, Status, VolumeId};

/// What the namespace needs from outside its transaction.
pub trait Env {
    /// The time now.
    fn now(&self) -> Time;
    /// A number that was never given out: for an inode or a directory cookie. From a range taken with
    /// [`crate::take_ids`] in a commit that is on disk.
    fn new_id(&self) -> Result<u64>;
    /// A data id that was never given out.
    fn new_data(&self) -> Result<DataId>;
    /// The layout of a new file: what it inherits, with the newest version of the table and the place to begin.
    fn place(&self, inherited: &Layout, data: DataId) -> Result<Layout>;
    /// Whether new files can have this layout; with `stripe` also whether there are so many chains.
    fn check_layout(&self, layout: &Layout, stripe: bool) -> Result<()> {
        let _ = stripe;
        layout.validate()
    }
    /// Whether the table of a layout that is in use exists, and all its chains. Of a directory no table version is meant.
    fn knows_layout(&self, layout: &Layout, directory: bool) -> bool {
        let _ = (layout, directory);
        true
    }
    /// Whether a file that loses its last name is kept until the service has asked all clients whether they have it
    /// open, and calls [`crate::erase_removed`]. Otherwise it goes at once unless it has a session.
    fn keeps_removed(&self) -> bool {
        false
    }
    /// How long request ids are remembered at least, in seconds.
    fn request_keep_secs(&self) -> u64 {
        75
    }
}

/// One operation: its transaction, its caller, its surroundings.
pub struct Context<'a> {
    /// The transaction.
    pub tx: &'a Transaction,
    /// Who asks.
    pub caller: &'a Caller,
    /// Clock, ids, placement.
    pub env: &'a dyn Env,
    /// The time of the operation.
    pub now: Time,
}

/// Chunks to cut off before anybody may write: by the service, after the commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The inode.
    pub attr: Attr,
    /// The length that stays.
    pub len: u64,
}

/// What a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Inodes.
    pub inodes: u64,
    /// Bytes of files (their lengths).
    pub bytes: u64,
}

/// Whether an operation must wait for [`crate::finish_cut`] of its inode.
pub fn is_cut_pending(error: &Error) -> bool {
    error.status == Status::Pending
}

/// An inode that was there once.
pub(crate) fn gone(id: InodeId) -> Error {
    Error::new(Status::Stale, format!("inode {id} does not exist any more; look its name up again"))
}

pub(crate) fn err<T>(status: Status) -> Result<T> {
    Err(status.into())
}

impl<'a> Context<'a> {
    /// A context at the time of `env`.
    pub fn new(tx: &'a Transaction, caller: &'a Caller, env: &'a dyn Env) -> Self {
        Self { tx, caller, env, now: env.now() }
    }
    pub(crate) fn volume(&self) -> VolumeId {
        self.caller.volume
    }

    pub(crate) async fn find_inode(&self, id: InodeId) -> Result<Option<Inode>> {
        match self.tx.get(&keys::inode(self.volume(), id)).await? {
            Some(v) => unpack("inode", &v).map(Some),
            None => Ok(None),
        }
    }
    /// An inode that the caller knows from an earlier look-up. «Not found» would be no answer if it is gone: the name that led to it may have been
    /// there at all times, and lead to another file now. Kernels look such a name up again.
    pub(crate) async fn inode(&self, id: InodeId) -> Result<Inode> {
        match self.find_inode(id).await? {
            Some(i) => Ok(i),
            None => Err(gone(id)),
        }
    }
    pub(crate) async fn dir(&self, id: InodeId) -> Result<Inode> {
        match self.find_inode(id).await? {
            Some(inode) if inode.is_dir() => Ok(inode),
            Some(_) => err(Status::NotDirectory),
            None => Err(Error::new(Status::NotFound, format!("directory {id} does not exist"))),
        }
    }
    pub(crate) fn put_inode(&self, id: InodeId, inode: &mut Inode) -> Result<()> {
        inode.change += 1;
        self.tx.put(keys::inode(self.volume(), id), pack(inode))
    }

    /// A directory and one of its entries, read in one step.
    pub(crate) async fn dir_and_entry(
        &self,
        parent: InodeId,
        name: &[u8],
    ) -> Result<(Inode, Option<Dentry>)> {
        let v = self.volume();
        let mut found =
            self.tx.get_all(&[keys::inode(v, parent), keys::dentry(v, parent, name)]).await?;
        let dentry = found.pop().flatten();
        let Some(dir) = found.pop().flatten() else {
            return Err(Error::new(Status::NotFound, format!("directory {parent} does not exist")));
        };
        let dir: Inode = unpack("inode", &dir)?;
        if !dir.is_dir() {
            return err(Status::NotDirectory);
        }
        Ok((dir, dentry.map(|d| unpack("dentry", &d)).transpose()?))
    }

    /// Adds an entry; the caller has checked that there is none.
    pub(crate) fn insert(
        &self,
        parent: InodeId,
        name: &[u8],
        inode: InodeId,
        kind: InodeKind,
        cookie: u64,
    ) -> Result<()> {
        let v = self.volume();
        self.tx.put(keys::dentry(v, parent, name), pack(&Dentry { inode, kind, cookie }))?;
        let entry = CookieEntry { inode, kind, name: name.to_vec().into() };
        self.tx.put(keys::cookie(v, parent, cookie), pack(&entry))?;
        self.touch_dir(parent, kind, 1)
    }
    /// Takes an entry away.
    pub(crate) fn remove(&self, parent: InodeId, name: &[u8], entry: &Dentry) -> Result<()> {
        let v = self.volume();
        self.tx.clear(keys::dentry(v, parent, name))?;
        self.tx.clear(keys::cookie(v, parent, entry.cookie))?;
        self.touch_dir(parent, entry.kind, -1)
    }
    /// The entries of a directory changed: version, sub-directories and times. Without reading, so that many can do it at once.
    fn touch_dir(&self, dir: InodeId, kind: InodeKind, subdirs: i64) -> Result<()> {
        let v = self.volume();
        self.tx.add(keys::dir_version(v, dir), 1)?;
        if kind == InodeKind::Directory {
            self.tx.add(keys::dir_subdirs(v, dir), subdirs)?;
        }
        self.tx.put(keys::dir_time(v, dir), pack_time(self.now))
    }

    /// What stat shows of an inode.
    pub(crate) async fn attr_of(&self, id: InodeId, inode: &Inode) -> Result<Attr> {
        if !inode.is_dir() {
            return Ok(inode.attr(id));
        }
        let v = self.volume();
        let ask = [keys::dir_version(v, id), keys::dir_subdirs(v, id), keys::dir_time(v, id)];
        let mut side = self.tx.get_all(&ask).await?.into_iter();
        Ok(dir_attr(id, inode, side.next().flatten(), side.next().flatten(), side.next().flatten()))
    }

    /// Whether a directory has no entries; conflicts with every insertion.
    pub(crate) async fn is_empty_dir(&self, dir: InodeId) -> Result<bool> {
        let v = self.volume();
        self.tx.get(&keys::dir_version(v, dir)).await?;
        let (begin, end) = keys::dentries(v, dir);
        Ok(self.tx.get_range(&begin, &end, 1, false).await?.entries.is_empty())
    }

    /// Counts inodes and bytes.
    pub(crate) fn count(&self, id: InodeId, inode: &Inode, inodes: i64, bytes: i64) -> Result<()> {
        let shard = (id.0 % keys::USAGE_SHARDS) as u8;
        for (what, delta) in [(0, inodes), (1, bytes)] {
            if delta != 0 {
                self.tx.add(keys::usage(self.volume(), inode.project, what, shard), delta)?;
            }
        }
        Ok(())
    }

    /// The data of a file is out of reach.
    pub(crate) fn discard_data(&self, inode: &Inode) -> Result<()> {
        let Some(layout) = inode.layout.filter(|_| inode.stored) else { return Ok(()) };
        let record = GarbageRecord { data: inode.data, layout, len: inode.len, from: 0 };
        self.tx.put_versionstamped(keys::garbage(self.volume()), Vec::new(), pack(&record))
    }

    pub(crate) async fn has_sessions(&self, id: InodeId) -> Result<bool> {
        let (begin, end) = keys::sessions(self.volume(), id);
        Ok(!self.tx.get_range(&begin, &end, 1, false).await?.entries.is_empty())
    }

    pub(crate) async fn find_session(
        &self,
        id: InodeId,
        session: SessionId,
    ) -> Result<Option<Session>> {
        match self.tx.get(&keys::session(self.volume(), id, session)).await? {
            Some(v) => unpack("session", &v).map(Some),
            None => Ok(None),
        }
    }

    /// One name less. Without names the inode goes, unless it may be open: then it becomes an orphan.
    pub(crate) async fn drop_link(&self, id: InodeId, inode: &mut Inode) -> Result<Attr> {
        inode.nlink = inode.nlink.saturating_sub(1);
        inode.ctime = self.now;
        if inode.nlink > 0 {
            self.put_inode(id, inode)?;
        } else if inode.kind == InodeKind::File
            && (self.env.keeps_removed() || self.has_sessions(id).await?)
        {
            self.put_inode(id, inode)?;
            let since = OrphanRecord::since(self.now);
            self.tx.put(keys::orphan(self.volume(), id), pack(&since))?;
        } else {
            self.erase(id, inode)?;
        }
        Ok(inode.attr(id))
    }

    /// Removes an inode that nobody can reach any more, and all that belongs to it.
    pub(crate) fn erase(&self, id: InodeId, inode: &Inode) -> Result<()> {
        let v = self.volume();
        self.tx.clear(keys::inode(v, id))?;
        self.tx.clear(keys::locks(v, id))?;
        let (begin, end) = keys::xattrs(v, id);
        self.tx.clear_range(&begin, &end)?;
        if inode.is_dir() {
            let (begin, end) = keys::dir_side(v, id);
            self.tx.clear_range(&begin, &end)?;
        }
        self.discard_data(inode)?;
        self.count(id, inode, -1, -file_bytes(inode))
    }
}

/// Bytes a file counts in usage.
pub(crate) fn file_bytes(inode: &Inode) -> i64 {
    if inode.kind == InodeKind::File { i64::try_from(inode.len).unwrap_or(i64::MAX) } else { 0 }
}

/// What stat shows of a directory, with the keys beside its inode.
pub(crate) fn dir_attr(
    id: InodeId,
    inode: &Inode,
    version: Option<Vec<u8>>,
    subdirs: Option<Vec<u8>>,
    time: Option<Vec<u8>>,
) -> Attr {
    let mut attr = inode.attr(id);
    let subdirs = u32::try_from(number(subdirs).max(0)).unwrap_or(u32::MAX);
    attr.nlink = if inode.nlink == 0 { 0 } else { subdirs.saturating_add(2) };
    attr.change = attr.change.wrapping_add(number(version) as u64);
    attr.len = 4096;
    if let Some(time) = time.and_then(|t| unpack::<Time>("time", &t).ok()) {
        attr.mtime = time;
        attr.ctime = attr.ctime.max(time);
    }
    attr
}
