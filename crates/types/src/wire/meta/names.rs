//! Names in directories: looking them up, making, linking, removing and renaming what they lead to, and where symlinks lead.

use super::{Attr, Caller, DirChanged, InodeKind, OpenFlags};
use crate::{InodeId, RequestId};
use minicbor::{Decode, Encode};

/// A name in a directory: any bytes but `/` and NUL, 1 to 255 of them.
pub type Name = minicbor::bytes::ByteVec;

/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest symlink target in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;

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
    /// The directory, as in [`super::AttrReply::dir`].
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
    /// The directories, one if they are the same; as in [`super::AttrReply::dir`]. Empty: not known, and neither is `moved`.
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
