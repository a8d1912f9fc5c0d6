//! Messages of the metadata service.
//!
//! Every request carries the caller's identity ([`Caller`]), which the service checks against the connection's
//! token, and changing requests carry a [`crate::RequestId`] so that a retry takes effect once.

mod attr;
mod names;
mod open;
mod xattr;

pub use super::atime::{AtimeRule, ReadLink};
pub use super::edition::Edition;
pub use super::listing::{DirEntry, ReadDir, ReadDirReply};
pub use super::recall::{IN_USE_MAX, InUse, InUseReply, Recall};
pub use attr::{
    Attr, AttrReply, DirChanged, InodeKind, OfInode, SetAttr, SetTime, StatFsReply, Time,
    inode_flags,
};
pub use names::{
    Link, Lookup, Make, NAME_BYTES_MAX, Name, ReadLinkReply, Rename, RenameReply,
    SYMLINK_BYTES_MAX, Unlink, UnlinkReply,
};
pub use open::{Open, OpenFlags, OpenReply, Renew, Reopen, Sync};
pub use xattr::{OfXattr, SetXattr, XattrList, XattrReply};

use crate::{ClientId, InodeId, VolumeId};
use minicbor::{Decode, Encode};

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
    #[cbor(n(5), skip_if = "is_false")]
    pub again: bool,
    /// The kernel that he asks has let him do it, going by what the inodes are whose numbers the request names, though neither their modes nor their owners give
    /// him that: by a privilege, or a group, that nobody knows here. Believed of clients that may act as anybody. (Left out if not, as by older releases.)
    #[cbor(n(6), skip_if = "is_false")]
    pub admitted: bool,
}

pub(super) fn is_false(flag: &bool) -> bool {
    !flag
}
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
