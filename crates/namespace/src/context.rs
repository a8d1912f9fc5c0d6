//! What every operation is given, and the steps that many of them share.

use crate::keys;
use crate::record::{
    CookieEntry, Dentry, GarbageRecord, Inode, OrphanRecord, Session, number, pack, pack_time,
    unpack,
};
use glowfs_kv::Transaction;
use glowfs_types::wire::meta::{Attr, Caller, DirChanged, InodeKind, Time};
use glowfs_types::{DataId, Error, InodeId, Layout, Result, SessionId, Status, VolumeId};
use std::cell::RefCell;

/// What the namespace needs from outside its transaction.
pub trait Env {
    /// The time now.
    fn now(&self) -> Time;
    /// The time by which requests are remembered, in seconds: one clock for all services, which nobody sets. `None`: that of [`Env::now`].
    fn memory_secs(&self) -> Option<i64> {
        None
    }
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
    /// Whether every chain of a layout that is in use has somebody who serves, as far as is known: whoever is to cut chunks needs them all.
    fn can_cut(&self, layout: &Layout) -> bool {
        let _ = layout;
        true
    }
    /// Whether a file that loses its last name is kept until the service has asked all clients whether they have it
    /// open, and calls [`crate::erase_removed`]. Otherwise it goes at once unless it has a session.
    fn keeps_removed(&self) -> bool {
        false
    }
    /// Whether more contents of small files may be kept with the metadata ([`Usage::contents`]).
    fn room_for_contents(&self) -> bool {
        true
    }
    /// Whether more extended attributes may be kept ([`Usage::xattrs`]).
    fn room_for_xattrs(&self) -> bool {
        true
    }
    /// Which of the counters of usage this service adds to: one of its own, so that services do not change the same ones.
    fn usage_shard(&self) -> u8 {
        0
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
    /// The time by which requests are remembered, in seconds.
    pub(crate) memory_secs: i64,
    /// The directories whose entries it changes.
    dirs: RefCell<Vec<DirBefore>>,
    /// Directories that got another name.
    moved: RefCell<Vec<InodeId>>,
}

/// A directory as it was before an operation, and what the operation did to its entries.
struct DirBefore {
    id: InodeId,
    inode: Inode,
    side: DirSide,
    changes: u64,
    subdirs: i64,
}

/// What stands beside the inode of a directory.
#[derive(Clone, Copy, Default)]
pub(crate) struct DirSide {
    /// How often its entries have changed.
    version: i64,
    subdirs: i64,
    /// When they last did.
    time: Option<Time>,
}

impl DirSide {
    pub(crate) fn new(
        version: Option<Vec<u8>>,
        subdirs: Option<Vec<u8>>,
        time: Option<Vec<u8>>,
    ) -> Self {
        let time = time.and_then(|t| unpack::<Time>("time", &t).ok());
        Self { version: number(version), subdirs: number(subdirs), time }
    }
    fn of(values: Vec<Option<Vec<u8>>>) -> Self {
        let mut side = values.into_iter();
        Self::new(side.next().flatten(), side.next().flatten(), side.next().flatten())
    }
}

/// Of the usage counters, the one of contents that are kept with the metadata; 0 counts inodes, and 1 bytes of files.
const USAGE_CONTENTS: u8 = 2;
/// The usage counter of extended attributes.
const USAGE_XATTRS: u8 = 3;

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
    /// Bytes of contents that are kept with the metadata, of these.
    pub contents: u64,
    /// Bytes of names and values of extended attributes.
    pub xattrs: u64,
}

/// Whether something of the inode is in the way of an operation that the service can finish: a truncate ([`crate::finish_cut`]), or the move of contents
/// into chunks.
pub fn is_in_the_way(error: &Error) -> bool {
    error.status == Status::Pending
}
/// The error of an operation that has to wait for an earlier truncate. The service finishes that and tries again.
pub(crate) fn cut_in_the_way(id: InodeId) -> Error {
    let e = format!("an earlier truncate of inode {id} is not finished; try again");
    Error::new(Status::Pending, e)
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
        let (dirs, moved) = (RefCell::default(), RefCell::default());
        let now = env.now();
        let memory_secs = env.memory_secs().unwrap_or(now.secs);
        Self { tx, caller, env, now, memory_secs, dirs, moved }
    }
    /// The directories whose entries the operation has changed, or would have if that had been needed; without leases. What other transactions
    /// change at the same moment may be missing.
    pub fn dirs_changed(&self) -> Vec<DirChanged> {
        let dirs = self.dirs.take();
        let changed = dirs.into_iter().map(|d| {
            let DirSide { version, subdirs, time } = d.side;
            let side = DirSide {
                version: version.wrapping_add(d.changes as i64),
                subdirs: subdirs.wrapping_add(d.subdirs),
                time: if d.changes > 0 { Some(self.now) } else { time },
            };
            let attr = dir_attr(d.id, &d.inode, side, self.tx.life());
            DirChanged { attr, lease_ms: 0, before: version as u64 }
        });
        changed.collect()
    }
    /// Directories that have another name now.
    pub fn dirs_moved(&self) -> Vec<InodeId> {
        self.moved.take()
    }
    pub(crate) fn note_moved(&self, dir: InodeId) {
        self.moved.borrow_mut().push(dir);
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
        // Its attributes are not what they were when it was read.
        self.dirs.borrow_mut().retain(|d| d.id != id);
        self.tx.put(keys::inode(self.volume(), id), pack(inode))
    }

    /// A directory and one of its entries, read in one step.
    pub(crate) async fn dir_and_entry(
        &self,
        parent: InodeId,
        name: &[u8],
    ) -> Result<(Inode, Option<Dentry>)> {
        let v = self.volume();
        let ask = [keys::inode(v, parent), keys::dentry(v, parent, name)];
        parse_entry(parent, self.tx.get_all(&ask).await?)
    }

    /// The same, for an operation that changes the directory's entries: see [`Context::dirs_changed`].
    pub(crate) async fn dir_to_change(
        &self,
        parent: InodeId,
        name: &[u8],
    ) -> Result<(Inode, Option<Dentry>)> {
        let v = self.volume();
        let ask = [keys::inode(v, parent), keys::dentry(v, parent, name)];
        let (found, side) = self.tx.get_mixed(&ask, &side_keys(v, parent)).await?;
        let (dir, entry) = parse_entry(parent, found)?;
        let mut dirs = self.dirs.borrow_mut();
        if !dirs.iter().any(|d| d.id == parent) {
            let (inode, side) = (dir.clone(), DirSide::of(side));
            dirs.push(DirBefore { id: parent, inode, side, changes: 0, subdirs: 0 });
        }
        Ok((dir, entry))
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
        let mut dirs = self.dirs.borrow_mut();
        let before = dirs.iter_mut().find(|d| d.id == dir);
        if kind == InodeKind::Directory {
            self.tx.add(keys::dir_subdirs(v, dir), subdirs)?;
        }
        if let Some(d) = before {
            d.changes += 1;
            d.subdirs += if kind == InodeKind::Directory { subdirs } else { 0 };
        }
        self.tx.put(keys::dir_time(v, dir), pack_time(self.now))
    }

    /// What stat shows of an inode. Of a directory what stands beside its inode is read without a conflict: every change of its entries changes that, and
    /// whoever changes the directory's own attributes would never get between them. What others change at the same moment may be missing.
    pub(crate) async fn attr_of(&self, id: InodeId, inode: &Inode) -> Result<Attr> {
        if !inode.is_dir() {
            return Ok(self.attr_here(id, inode));
        }
        let v = self.volume();
        let side = DirSide::of(self.tx.get_all_snapshot(&side_keys(v, id)).await?);
        Ok(dir_attr(id, inode, side, self.tx.life()))
    }

    /// The same of anything but a directory.
    pub(crate) fn attr_here(&self, id: InodeId, inode: &Inode) -> Attr {
        inode.attr(id, self.tx.life())
    }

    /// What stat would show of an inode that is there no more, as far as it is known: without links, and older than all that anybody has heard of it.
    pub(crate) fn attr_of_gone(&self, id: InodeId, inode: &Inode) -> Attr {
        let inode = Inode { nlink: 0, change: 0, ..inode.clone() };
        match inode.is_dir() {
            true => dir_attr(id, &inode, DirSide::default(), self.tx.life()),
            false => self.attr_here(id, &inode),
        }
    }

    /// Whether a directory has no entries; conflicts with every insertion.
    pub(crate) async fn is_empty_dir(&self, dir: InodeId) -> Result<bool> {
        let v = self.volume();
        self.tx.get(&keys::dir_version(v, dir)).await?;
        let (begin, end) = keys::dentries(v, dir);
        Ok(self.tx.get_range(&begin, &end, 1, false).await?.entries.is_empty())
    }

    /// Counts inodes and bytes.
    pub(crate) fn count(&self, inode: &Inode, inodes: i64, bytes: i64) -> Result<()> {
        let shard = self.env.usage_shard();
        for (what, delta) in [(0, inodes), (1, bytes)] {
            if delta != 0 {
                self.tx.add(keys::usage(self.volume(), inode.project, what, shard), delta)?;
            }
        }
        Ok(())
    }

    /// Counts bytes of contents that are kept with the metadata.
    pub(crate) fn count_contents(&self, inode: &Inode, bytes: i64) -> Result<()> {
        self.count_kept(inode, USAGE_CONTENTS, bytes)
    }
    /// Counts bytes of extended attributes.
    pub(crate) fn count_xattrs(&self, inode: &Inode, bytes: i64) -> Result<()> {
        self.count_kept(inode, USAGE_XATTRS, bytes)
    }
    fn count_kept(&self, inode: &Inode, what: u8, bytes: i64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let shard = self.env.usage_shard();
        self.tx.add(keys::usage(self.volume(), inode.project, what, shard), bytes)
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
            self.erase(id, inode).await?;
        }
        Ok(self.attr_here(id, inode))
    }

    /// Removes an inode that nobody can reach any more, and all that belongs to it.
    pub(crate) async fn erase(&self, id: InodeId, inode: &Inode) -> Result<()> {
        let v = self.volume();
        self.tx.clear(keys::inode(v, id))?;
        if inode.kind == InodeKind::File {
            crate::locking::end_all(self, id).await?;
        }
        let (begin, end) = keys::xattrs(v, id);
        self.tx.clear_range(&begin, &end)?;
        let xattrs = inode.xattrs.map_or(0, |x| i64::from(x.bytes));
        self.count_xattrs(inode, -xattrs)?;
        if inode.is_inline() {
            self.tx.clear(keys::content(v, id))?;
            self.count_contents(inode, -file_bytes(inode))?;
        }
        if inode.is_dir() {
            let (begin, end) = keys::dir_side(v, id);
            self.tx.clear_range(&begin, &end)?;
        }
        crate::cuts::gone(self, id, inode)?;
        self.discard_data(inode)?;
        self.count(inode, -1, -file_bytes(inode))
    }
}

/// Bytes a file counts in usage.
pub(crate) fn file_bytes(inode: &Inode) -> i64 {
    if inode.kind == InodeKind::File { i64::try_from(inode.len).unwrap_or(i64::MAX) } else { 0 }
}

/// The keys beside a directory's inode.
fn side_keys(v: VolumeId, dir: InodeId) -> [Vec<u8>; 3] {
    [keys::dir_version(v, dir), keys::dir_subdirs(v, dir), keys::dir_time(v, dir)]
}

/// A directory and one of its entries, as they were read.
fn parse_entry(
    parent: InodeId,
    mut found: Vec<Option<Vec<u8>>>,
) -> Result<(Inode, Option<Dentry>)> {
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

/// What stat shows of a directory, with what stands beside its inode.
pub(crate) fn dir_attr(id: InodeId, inode: &Inode, side: DirSide, life: u64) -> Attr {
    let mut attr = inode.attr(id, life);
    let subdirs = u32::try_from(side.subdirs.max(0)).unwrap_or(u32::MAX);
    attr.nlink = if inode.nlink == 0 { 0 } else { subdirs.saturating_add(2) };
    attr.entries = Some(side.version as u64);
    attr.change = attr.change.wrapping_add(side.version as u64);
    attr.len = 4096;
    if let Some(time) = side.time {
        attr.mtime = time;
        attr.ctime = attr.ctime.max(time);
    }
    attr
}
