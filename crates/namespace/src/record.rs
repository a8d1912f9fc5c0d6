//! The records behind the keys: CBOR with numbered fields, so that later builds can add some.

use crate::acl::Acl;
use glowfs_types::wire::meta::{Attr, InodeKind, Name, Time};
use glowfs_types::wire::sparse::EXTENT_BLOCK_BYTES;
use glowfs_types::wire::{decode, encode};
use glowfs_types::{
    ClientId, DataId, Error, InodeId, Layout, NodeId, ProjectId, Result, SessionId, Status,
    TruncateEpoch,
};
use minicbor::{Decode, Encode};

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Inode {
    #[n(0)]
    pub kind: InodeKind,
    #[n(1)]
    pub mode: u32,
    #[n(2)]
    pub uid: u32,
    #[n(3)]
    pub gid: u32,
    /// Names of it. Of a directory 1 while it is in the tree; what stat shows is this plus one plus its sub-directories.
    #[n(4)]
    pub nlink: u32,
    #[n(5)]
    pub len: u64,
    #[n(6)]
    pub atime: Time,
    #[n(7)]
    pub mtime: Time,
    #[n(8)]
    pub ctime: Time,
    #[n(9)]
    pub btime: Time,
    #[n(10)]
    pub rdev: u32,
    #[n(11)]
    pub data: DataId,
    #[n(12)]
    pub layout: Option<Layout>,
    #[n(13)]
    pub epoch: TruncateEpoch,
    #[n(14)]
    pub project: ProjectId,
    #[n(15)]
    pub change: u64,
    /// Of a directory: the one it stands in (the root: itself).
    #[n(16)]
    pub parent: InodeId,
    /// Target of a symlink.
    #[n(17)]
    pub symlink: Option<minicbor::bytes::ByteVec>,
    /// Chunks may exist under `data`.
    #[n(18)]
    pub stored: bool,
    /// Chunks behind this length are being cut off; nobody may write until that is done.
    #[n(19)]
    pub cut: Option<u64>,
    /// When somebody set `mtime` by hand: writes before that do not move it.
    #[n(20)]
    pub mtime_set: Option<Time>,
    /// POSIX ACL, if it says more than the mode.
    #[n(21)]
    pub acl: Option<minicbor::bytes::ByteVec>,
    /// Of a directory: what new entries get.
    #[n(22)]
    pub default_acl: Option<minicbor::bytes::ByteVec>,
    /// Bytes of the blocks of a file that has holes, as last counted. None: it has none.
    #[n(23)]
    pub allocated: Option<u64>,
    /// [`glowfs_types::wire::meta::inode_flags`].
    #[cbor(n(24), default)]
    pub flags: u32,
    /// Of a directory: its layout was set, not inherited. (Older releases list the attribute by it.)
    #[cbor(n(25), default)]
    pub layout_set: bool,
    /// Of a directory: how long what is removed from it stays in the trash; 0: it has none.
    #[cbor(n(26), default)]
    pub trash_secs: u64,
    /// Of a directory: its name, where it is known (an older release did not note it).
    #[n(27)]
    pub name: Option<minicbor::bytes::ByteVec>,
    /// In the trash, until then (seconds since the Unix epoch).
    #[n(28)]
    pub trashed: Option<u64>,
    /// Where the contents of a file are.
    #[cbor(n(29), default, skip_if = "Contents::are_chunks")]
    pub contents: Contents,
    /// Its extended attributes together. None: they were not counted yet, or by a release that did not.
    #[n(30)]
    pub xattrs: Option<XattrSum>,
    /// How often the contents may have become others. Times do not tell: users set them, and clocks differ.
    #[cbor(n(31), default, skip_if = "is_zero")]
    pub contents_change: u64,
    /// The one session that ever could write under `data`, and it has told of no write: if it ends without one, nothing is there. None: there were others, it has
    /// written, or it is not known. Whoever does not know this field drops it.
    #[n(32)]
    pub only_writer: Option<SessionId>,
}

/// What the extended attributes of an inode come to ([`crate::xattr`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct XattrSum {
    /// How many there are.
    #[n(0)]
    pub count: u32,
    /// Bytes of their names, each with a zero behind it: as they are listed.
    #[n(1)]
    pub names: u32,
    /// Bytes of names and values.
    #[n(2)]
    pub bytes: u32,
}

impl XattrSum {
    /// With one more.
    pub fn and(self, name: &[u8], value: usize) -> Self {
        let (name, value) = (name.len() as u32, u32::try_from(value).unwrap_or(u32::MAX));
        Self {
            count: self.count.saturating_add(1),
            names: self.names.saturating_add(name + 1),
            bytes: self.bytes.saturating_add(name).saturating_add(value),
        }
    }
    /// Without one of them.
    pub fn without(self, name: &[u8], value: usize) -> Self {
        let (name, value) = (name.len() as u32, u32::try_from(value).unwrap_or(u32::MAX));
        Self {
            count: self.count.saturating_sub(1),
            names: self.names.saturating_sub(name + 1),
            bytes: self.bytes.saturating_sub(name).saturating_sub(value),
        }
    }
}

/// Where the contents of a file are ([`crate::inline`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Contents {
    /// In chunks, for good.
    #[default]
    #[n(0)]
    Chunks,
    /// Beside the inode record.
    #[n(1)]
    Inline,
    /// Beside the inode record, where they do not change any more, and on their way into chunks under `data`.
    #[n(2)]
    Spilling,
}

impl Contents {
    fn are_chunks(&self) -> bool {
        *self == Self::Chunks
    }
}

/// The time of something that happened at `t` when there is one already: never the same. One in the future ends, as a local write ends it; one of this second
/// is of a write just before.
fn moved(old: Time, t: Time, now: Time) -> Time {
    if t > old {
        t
    } else if old.secs > now.secs {
        now
    } else if old.nanos < 999_999_999 {
        Time { nanos: old.nanos + 1, ..old }
    } else {
        Time { secs: old.secs.saturating_add(1), nanos: 0 }
    }
}

impl Inode {
    /// Its contents are beside the record: no chunk says anything of them.
    pub fn is_inline(&self) -> bool {
        !self.contents.are_chunks()
    }
    pub fn is_dir(&self) -> bool {
        self.kind == InodeKind::Directory
    }
    /// It was written at `t`, by the clock of whoever wrote. Kernels that no recall reached tell by `mtime` that their pages are old, so it becomes another
    /// one, unless somebody has set it since.
    pub(crate) fn written(&mut self, t: Time, now: Time) {
        self.contents_change += 1;
        self.ctime = moved(self.ctime, t, now);
        if self.mtime_set.is_none_or(|set| t > set) {
            self.mtime = moved(self.mtime, t, now);
        }
    }
    /// It was written, and then its time was set: that stays.
    pub(crate) fn written_before_its_time(&mut self, now: Time) {
        self.contents_change += 1;
        self.ctime = moved(self.ctime, now, now);
    }
    /// A session gets the right to write chunks. Whether that changes the record.
    pub(crate) fn let_write(&mut self, session: Option<SessionId>) -> bool {
        if self.is_inline() {
            return false;
        }
        let (stored, before) = (self.stored, self.only_writer);
        self.only_writer = if stored { before.filter(|s| Some(*s) == session) } else { session };
        self.stored = true;
        !stored || self.only_writer != before
    }
    /// It was written here and now.
    pub(crate) fn written_now(&mut self, now: Time) {
        self.contents_change += 1;
        self.mtime = moved(self.mtime, now, now);
        self.ctime = moved(self.ctime, now, now);
    }
    /// What stat shows of anything but a directory, read in this life of the engine.
    pub fn attr(&self, id: InodeId, life: u64) -> Attr {
        Attr {
            inode: id,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            len: self.len,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            rdev: self.rdev,
            data: self.data,
            layout: self.layout,
            epoch: self.epoch,
            project: self.project,
            change: self.change,
            allocated: if self.kind == InodeKind::File {
                self.allocated.unwrap_or_else(|| whole_blocks(self.len))
            } else {
                0
            },
            generation: 1,
            has_acl: self.acl.is_some() || self.default_acl.is_some(),
            flags: self.flags,
            entries: None,
            inline: self.is_inline(),
            life,
            contents_change: self.contents_change,
        }
    }
    /// Its blocks were counted; only what is less than all is kept.
    pub fn set_allocated(&mut self, bytes: u64) {
        self.allocated = Some(bytes).filter(|b| *b < whole_blocks(self.len));
    }
    /// Its permission bits change, and its ACL with them.
    pub fn set_mode(&mut self, mode: u32) -> Result<()> {
        self.mode = mode;
        if let Some(bytes) = &self.acl {
            let mut acl = Acl::parse(bytes)?;
            acl.set_mode(mode);
            self.acl = Some(acl.to_bytes().into());
        }
        Ok(())
    }
}

/// What so many bytes take in whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(EXTENT_BLOCK_BYTES).unwrap_or(bytes)
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Dentry {
    #[n(0)]
    pub inode: InodeId,
    #[n(1)]
    pub kind: InodeKind,
    #[n(2)]
    pub cookie: u64,
}

/// The entry with a cookie.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CookieEntry {
    #[n(0)]
    pub inode: InodeId,
    #[n(1)]
    pub kind: InodeKind,
    #[n(2)]
    pub name: Name,
}

/// A client has a file open.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Session {
    #[n(0)]
    pub client: ClientId,
    #[n(1)]
    pub read: bool,
    #[n(2)]
    pub write: bool,
    /// When it was opened.
    #[n(3)]
    pub opened: Time,
    /// Writes to contents with the metadata that come with a smaller number are too late.
    #[cbor(n(4), default, skip_if = "is_zero")]
    pub fence: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A file without a name that may still be open. The first two fields are the time since when.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct OrphanRecord {
    #[n(0)]
    pub secs: i64,
    #[n(1)]
    pub nanos: u32,
    /// Set by the meta service that is about to erase it: nobody opens it any more.
    #[n(2)]
    pub doomed: Option<Doom>,
    /// It never had a name (O_TMPFILE) and may get one.
    #[cbor(n(3), default)]
    pub linkable: bool,
}

impl OrphanRecord {
    pub fn since(t: Time) -> Self {
        Self { secs: t.secs, nanos: t.nanos, ..Self::default() }
    }
}

/// Which service is about to erase an orphan, and in which attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Doom {
    /// The service's node.
    #[n(0)]
    pub node: NodeId,
    /// One life of that service.
    #[n(1)]
    pub life: u64,
}

/// Data that nobody can reach any more.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GarbageRecord {
    #[n(0)]
    pub data: DataId,
    #[n(1)]
    pub layout: Layout,
    /// How long it was, as far as known.
    #[n(2)]
    pub len: u64,
    /// Reserved: 0.
    #[n(3)]
    pub from: u64,
}

/// What a request did: enough to answer its retry.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RequestRecord {
    /// The inode it made or changed; 0 if it is gone.
    #[n(0)]
    pub inode: InodeId,
    /// What was asked, and for whom: a retry asks the same.
    #[n(1)]
    pub mark: Option<minicbor::bytes::ByteArray<16>>,
    /// It did nothing and was answered with this status.
    #[n(2)]
    pub refused: Option<u16>,
    /// Of what kind the inode is: a copy that comes when it is gone is answered all the same, and kernels look at the kind. MAKE says it itself.
    #[cbor(n(3), default, skip_if = "is_a_file")]
    pub kind: InodeKind,
}

fn is_a_file(kind: &InodeKind) -> bool {
    *kind == InodeKind::File
}

/// The volume's own record.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct VolumeRecord {
    #[n(0)]
    pub format: u64,
    #[n(1)]
    pub made: Time,
}

pub fn pack<T: Encode<()>>(record: &T) -> Vec<u8> {
    encode(record)
}

pub fn unpack<T: for<'b> Decode<'b, ()>>(what: &str, bytes: &[u8]) -> Result<T> {
    decode(bytes).map_err(|e| Error::new(Status::Corrupt, format!("{what}: {}", e.message)))
}

/// A sum of `Transaction::add`.
pub fn number(value: Option<Vec<u8>>) -> i64 {
    value.and_then(|v| <[u8; 8]>::try_from(v.as_slice()).ok()).map_or(0, i64::from_le_bytes)
}

pub fn pack_time(t: Time) -> Vec<u8> {
    pack(&t)
}
