//! Messages of the metadata service.
//!
//! Every request carries the caller's identity ([`Caller`]), which the service checks against the connection's
//! token, and changing requests carry a [`crate::RequestId`] so that a retry takes effect once.

pub use super::atime::{AtimeRule, ReadLink};
pub use super::edition::Edition;
pub use super::listing::{DirEntry, ReadDir, ReadDirReply};
pub use super::recall::{IN_USE_MAX, InUse, InUseReply, Recall};
use crate::{
    ClientId, DataId, InodeId, Layout, ProjectId, RequestId, SessionId, TruncateEpoch, VolumeId,
};
use minicbor::{Decode, Encode};

/// A name in a directory: any bytes but `/` and NUL, 1 to 255 of them.
pub type Name = minicbor::bytes::ByteVec;

/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest symlink target in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// The root directory's inode of every volume.
pub const ROOT_INODE: InodeId = InodeId(1);

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Caller {
    /// uid.
    #[n(0)]
    pub uid: u32,
    /// Primary gid.
    #[n(1)]
    pub gid: u32,
    /// Supplementary groups, where known.
    #[n(2)]
    pub groups: Vec<u32>,
    /// The client it comes through.
    #[n(3)]
    pub client: ClientId,
    /// The volume.
    #[n(4)]
    pub volume: VolumeId,
    /// An earlier copy of the request may be on its way, or in work at another service. (Left out if not, as by older releases.)
    #[cbor(n(5), skip_if = "first")]
    pub again: bool,
}

fn first(again: &bool) -> bool {
    !again
}

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
    /// Its contents are kept with the metadata ([`super::inline`]): no chunk of it may be read or written. Once that is over, it is for good.
    #[cbor(n(22), default, skip_if = "is_false")]
    pub inline: bool,
    /// The life of the metadata engine that they were read in: see [`super::edition`]. 0: it loses nothing, or it is not known (older releases).
    #[cbor(n(23), default, skip_if = "is_zero")]
    pub life: u64,
    /// Grows whenever its contents may have become others, also if times and length are set to what they were. 0: never since a release that counts it.
    #[cbor(n(24), default, skip_if = "is_zero")]
    pub contents_change: u64,
}

pub(super) fn is_false(flag: &bool) -> bool {
    !flag
}
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
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

/// LOOKUP. The names `.` and `..` are understood: `.` of whatever has a name, also of what is no directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Lookup {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The directory.
    #[n(1)]
    pub parent: InodeId,
    /// The name.
    #[n(2)]
    pub name: Name,
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

/// MAKE.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Make {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The directory.
    #[n(2)]
    pub parent: InodeId,
    /// The name.
    #[n(3)]
    pub name: Name,
    /// What to make.
    #[n(4)]
    pub kind: InodeKind,
    /// Permission bits, before the umask.
    #[n(5)]
    pub mode: u32,
    /// Device number of a special file.
    #[n(6)]
    pub rdev: u32,
    /// Target of a symlink.
    #[cbor(n(7), with = "minicbor::bytes")]
    pub symlink: Vec<u8>,
    /// Open it as well (create).
    #[n(8)]
    pub open: Option<OpenFlags>,
    /// With `open`: fail if it exists (O_EXCL). With `unnamed`: it may never get a name.
    #[n(9)]
    pub exclusive: bool,
    /// A file without a name (O_TMPFILE), which has to be opened with a session; `name` is empty. LINK may give it one.
    #[cbor(n(10), default)]
    pub unnamed: bool,
    /// Bits that the mode loses unless the directory has a default ACL.
    #[cbor(n(11), default)]
    pub umask: u32,
}

impl Default for Make {
    fn default() -> Self {
        Self {
            caller: Caller::default(),
            request: RequestId::default(),
            parent: InodeId::default(),
            name: Vec::new().into(),
            kind: InodeKind::File,
            mode: 0,
            rdev: 0,
            symlink: Vec::new(),
            open: None,
            exclusive: false,
            unnamed: false,
            umask: 0,
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct OpenFlags {
    /// For reading.
    #[n(0)]
    pub read: bool,
    /// For writing.
    #[n(1)]
    pub write: bool,
    /// Cut to length 0.
    #[n(2)]
    pub truncate: bool,
    /// The session to use: chosen by the client, so that a retry finds it.
    #[n(3)]
    pub session: SessionId,
    /// Only to append.
    #[cbor(n(4), default)]
    pub append: bool,
    /// The client knows of contents that are kept with the metadata. For one that does not, they are put into chunks first.
    #[cbor(n(5), default, skip_if = "is_false")]
    pub inline: bool,
    /// With `read`: to run it, so who may run it need not be allowed to read it. (Left out if not, as by older releases.)
    #[cbor(n(6), default, skip_if = "is_false")]
    pub exec: bool,
}

/// OPEN.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Open {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// How.
    #[n(3)]
    pub flags: OpenFlags,
}

/// OPEN's answer, and RENEW's.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OpenReply {
    /// Attributes after the open.
    #[n(0)]
    pub attr: Attr,
    /// The session, if it was opened for writing.
    #[n(1)]
    pub session: Option<SessionId>,
    /// A [`crate::Capability`], as bytes.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub capability: Vec<u8>,
    /// How long the capability lasts, in ms, counted from when the client asked.
    #[n(3)]
    pub capability_ms: u64,
    /// How long the client may keep the attributes, in ms, counted from when it asked.
    #[cbor(n(4), default)]
    pub lease_ms: u64,
    /// All bytes of a file whose contents are kept with the metadata, if it was opened for reading. They are those of `attr`.
    #[n(5)]
    pub content: Option<minicbor::bytes::ByteVec>,
}

/// RENEW: a fresh capability for an open file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Renew {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The file.
    #[n(1)]
    pub inode: InodeId,
    /// Its session, if any.
    #[n(2)]
    pub session: Option<SessionId>,
    /// For reading.
    #[n(3)]
    pub read: bool,
    /// For writing.
    #[n(4)]
    pub write: bool,
    /// Contents that are kept with the metadata are to be put into chunks first.
    #[cbor(n(5), default, skip_if = "is_false")]
    pub spill: bool,
    /// As in [`OpenFlags::exec`].
    #[cbor(n(6), default, skip_if = "is_false")]
    pub exec: bool,
}

/// SYNC and CLOSE: what a session has done to a file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Sync {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// The session; none for a file that was open for reading.
    #[n(3)]
    pub session: Option<SessionId>,
    /// The file is at least this long (the greatest end of its writes), if it wrote.
    #[n(4)]
    pub len_at_least: Option<u64>,
    /// The truncate epoch that the writes were made under; the length is ignored if the file was cut since.
    #[n(5)]
    pub epoch: TruncateEpoch,
    /// When it last wrote.
    #[n(6)]
    pub mtime: Option<Time>,
    /// When it last read.
    #[n(7)]
    pub atime: Option<Time>,
    /// Must be on disk before the answer.
    #[n(8)]
    pub durable: bool,
    /// Bytes of the blocks that exist, if the session made holes or found some and has counted.
    #[n(9)]
    pub allocated: Option<u64>,
    /// SYNC: writes to contents with the metadata that this session has sent with a smaller number, and that took no effect yet, never will.
    #[cbor(n(10), default, skip_if = "is_zero")]
    pub fence: u64,
}

/// LINK.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Link {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The inode.
    #[n(2)]
    pub inode: InodeId,
    /// The directory of the new name.
    #[n(3)]
    pub parent: InodeId,
    /// The new name.
    #[n(4)]
    pub name: Name,
}

/// UNLINK.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Unlink {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The directory.
    #[n(2)]
    pub parent: InodeId,
    /// The name.
    #[n(3)]
    pub name: Name,
    /// It must be a directory, and empty (rmdir); otherwise it must not be one.
    #[n(4)]
    pub directory: bool,
}

/// UNLINK's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UnlinkReply {
    /// What was removed, with its links after it.
    #[n(0)]
    pub attr: Option<Attr>,
    /// The directory, as in [`AttrReply::dir`].
    #[n(1)]
    pub dir: Option<Box<DirChanged>>,
}

/// RENAME.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Rename {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// From this directory.
    #[n(2)]
    pub parent: InodeId,
    /// This name.
    #[n(3)]
    pub name: Name,
    /// To this directory.
    #[n(4)]
    pub new_parent: InodeId,
    /// As this name.
    #[n(5)]
    pub new_name: Name,
    /// Linux flags: RENAME_NOREPLACE 1, RENAME_EXCHANGE 2, RENAME_WHITEOUT 4 (refused as EINVAL by older releases).
    #[n(6)]
    pub flags: u32,
}

/// RENAME's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct RenameReply {
    /// What was replaced and lost a link, if anything.
    #[n(0)]
    pub replaced: Option<Attr>,
    /// The directories, one if they are the same; as in [`AttrReply::dir`]. Empty: not known, and neither is `moved`.
    #[cbor(n(1), default)]
    pub dirs: Vec<DirChanged>,
    /// The directories that have another name now.
    #[cbor(n(2), default)]
    pub moved: Vec<InodeId>,
}

/// READLINK's answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadLinkReply {
    /// The target.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub target: Vec<u8>,
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

/// GETXATTR, REMOVEXATTR.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OfXattr {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once (REMOVEXATTR).
    #[n(1)]
    pub request: RequestId,
    /// The inode.
    #[n(2)]
    pub inode: InodeId,
    /// The attribute's name.
    #[n(3)]
    pub name: Name,
}

/// GETXATTR's answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct XattrReply {
    /// The value.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub value: Vec<u8>,
}

/// SETXATTR.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetXattr {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The inode.
    #[n(2)]
    pub inode: InodeId,
    /// The attribute's name.
    #[n(3)]
    pub name: Name,
    /// The value.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub value: Vec<u8>,
    /// Linux flags: XATTR_CREATE 1, XATTR_REPLACE 2.
    #[n(5)]
    pub flags: u32,
}

/// LISTXATTR's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct XattrList {
    /// The names.
    #[n(0)]
    pub names: Vec<Name>,
}
