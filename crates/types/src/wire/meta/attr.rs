//! Attributes of inodes: what they are, asking for them, setting them; and what there is of all inodes together.

use super::{Caller, OpenReply, is_false, is_zero};
use crate::{DataId, InodeId, Layout, ProjectId, RequestId, SessionId, TruncateEpoch};
use minicbor::{Decode, Encode};

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum InodeKind {
    /// Regular file.
    #[default]
    #[n(0)]
    File,
    /// Directory.
    #[n(1)]
    Directory,
    /// Symbolic link.
    #[n(2)]
    Symlink,
    /// Named pipe.
    #[n(3)]
    Fifo,
    /// Socket.
    #[n(4)]
    Socket,
    /// Character device.
    #[n(5)]
    CharDevice,
    /// Block device.
    #[n(6)]
    BlockDevice,
}

/// A time: seconds and nanoseconds since the Unix epoch; seconds may be negative (before 1970).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Encode, Decode)]
pub struct Time {
    /// Seconds.
    #[n(0)]
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    #[n(1)]
    pub nanos: u32,
}

/// What stat shows, and what a client needs to do I/O.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Attr {
    /// Inode id.
    #[n(0)]
    pub inode: InodeId,
    /// Kind.
    #[n(1)]
    pub kind: InodeKind,
    /// Permission bits (07777).
    #[n(2)]
    pub mode: u32,
    /// Owner.
    #[n(3)]
    pub uid: u32,
    /// Group.
    #[n(4)]
    pub gid: u32,
    /// Links.
    #[n(5)]
    pub nlink: u32,
    /// Length in bytes.
    #[n(6)]
    pub len: u64,
    /// Last access.
    #[n(7)]
    pub atime: Time,
    /// Last change of contents.
    #[n(8)]
    pub mtime: Time,
    /// Last change of the inode.
    #[n(9)]
    pub ctime: Time,
    /// Birth.
    #[n(10)]
    pub btime: Time,
    /// Device number of a special file (Linux `dev_t`, 32-bit encoding).
    #[n(11)]
    pub rdev: u32,
    /// Data id of a regular file.
    #[n(12)]
    pub data: DataId,
    /// Layout of a regular file; what new children of a directory inherit.
    #[n(13)]
    pub layout: Option<Layout>,
    /// Truncate epoch.
    #[n(14)]
    pub epoch: TruncateEpoch,
    /// Project.
    #[n(15)]
    pub project: ProjectId,
    /// Grows with every change of the inode record.
    #[n(16)]
    pub change: u64,
    /// Bytes allocated, where known (st_blocks * 512).
    #[n(17)]
    pub allocated: u64,
    /// The inode was made for this name only and has not been reused (FUSE generation); always 1 today.
    #[n(18)]
    pub generation: u64,
    /// It has a POSIX ACL.
    #[cbor(n(19), default)]
    pub has_acl: bool,
    /// What chattr(1) sets: [`inode_flags`].
    #[cbor(n(20), default)]
    pub flags: u32,
    /// How often the entries of a directory have changed: 0 if it never had one. None: not a directory, or not known (older releases).
    #[n(21)]
    pub entries: Option<u64>,
    /// Its contents are kept with the metadata ([`crate::wire::inline`]): no chunk of it may be read or written. Once that is over, it is for good.
    #[cbor(n(22), default, skip_if = "is_false")]
    pub inline: bool,
    /// The life of the metadata engine that they were read in: see [`crate::wire::edition`]. 0: it loses nothing, or it is not known (older releases).
    #[cbor(n(23), default, skip_if = "is_zero")]
    pub life: u64,
    /// Grows whenever its contents may have become others, also if times and length are set to what they were. 0: never since a release that counts it.
    #[cbor(n(24), default, skip_if = "is_zero")]
    pub contents_change: u64,
}

/// Flags of an inode, with the numbers of Linux' FS_*_FL.
pub mod inode_flags {
    /// It cannot be changed, renamed or removed, and gets no further name.
    pub const IMMUTABLE: u32 = 0x10;
    /// A file can only grow by appends, entries of a directory can only be added.
    pub const APPEND: u32 = 0x20;
    /// All of them.
    pub const KNOWN: u32 = IMMUTABLE | APPEND;
}

/// An answer that is an inode: LOOKUP, GETATTR, SETATTR, MAKE, LINK.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AttrReply {
    /// Its attributes.
    #[n(0)]
    pub attr: Attr,
    /// How long the client may keep them, in ms, counted from when it asked.
    #[n(1)]
    pub lease_ms: u64,
    /// MAKE with `open`: as from OPEN.
    #[n(2)]
    pub open: Option<OpenReply>,
    /// MAKE, LINK: the directory. None: not known (the answer to a copy of a request, or of an older release).
    #[n(3)]
    pub dir: Option<Box<DirChanged>>,
    /// LOOKUP: how long the client may keep that the name leads there, in ms, counted likewise. None: as long as the attributes (another call, or an
    /// older release).
    #[n(4)]
    pub name_lease_ms: Option<u64>,
}

/// A directory after a change of its entries, as the client that made it may keep it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct DirChanged {
    /// Its attributes. Changes by others at the same moment may be missing; then there is no lease, or it is recalled.
    #[n(0)]
    pub attr: Attr,
    /// How long the client may keep them, in ms, counted from when it asked.
    #[n(1)]
    pub lease_ms: u64,
    /// What [`Attr::entries`] was before.
    #[n(2)]
    pub before: u64,
}

/// GETATTR, LISTXATTR: of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OfInode {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The inode.
    #[n(1)]
    pub inode: InodeId,
}

/// SETATTR: what is `Some` is changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct SetAttr {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The inode.
    #[n(2)]
    pub inode: InodeId,
    /// Permission bits.
    #[n(3)]
    pub mode: Option<u32>,
    /// Owner.
    #[n(4)]
    pub uid: Option<u32>,
    /// Group.
    #[n(5)]
    pub gid: Option<u32>,
    /// Length: a truncate. Longer chunks are cut by the service before it answers.
    #[n(6)]
    pub len: Option<u64>,
    /// Last access.
    #[n(7)]
    pub atime: Option<SetTime>,
    /// Last change.
    #[n(8)]
    pub mtime: Option<SetTime>,
    /// The open session it is done through, if any (ftruncate).
    #[n(9)]
    pub session: Option<SessionId>,
    /// Change of inode, if the caller insists (FUSE write-back).
    #[n(10)]
    pub ctime: Option<Time>,
    /// Flags ([`inode_flags`]).
    #[n(11)]
    pub flags: Option<u32>,
    /// Its contents change by the hand of somebody with the caller's groups who is not privileged: set-user-id and set-group-id go, as they are when this
    /// takes effect. Whoever may write the file, or has it open for that, may say so.
    #[cbor(n(12), default, skip_if = "is_false")]
    pub unprivileged_write: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum SetTime {
    /// The service's clock.
    #[n(0)]
    Now,
    /// This time.
    #[n(1)]
    At(#[n(0)] Time),
}

/// STATFS' answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct StatFsReply {
    /// Bytes users can store at the layout's redundancy.
    #[n(0)]
    pub total_bytes: u64,
    /// Bytes free for users.
    #[n(1)]
    pub free_bytes: u64,
    /// Inodes in use.
    #[n(2)]
    pub inodes: u64,
}
