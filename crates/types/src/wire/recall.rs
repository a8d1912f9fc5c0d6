//! What meta calls clients for: to forget what others have changed, and to say what is open.

use super::meta::Name;
use crate::{InodeId, RequestId, TruncateEpoch, VolumeId};
use minicbor::{Decode, Encode};

/// RECALL, from meta to a client.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Recall {
    /// The volume.
    #[n(0)]
    pub volume: VolumeId,
    /// The inode whose attributes, data or capability must be dropped.
    #[n(1)]
    pub inode: InodeId,
    /// An entry of that directory that must be dropped.
    #[n(2)]
    pub name: Option<Name>,
    /// The file was cut or replaced: this is its epoch now; drop capabilities of older ones.
    #[n(3)]
    pub epoch: Option<TruncateEpoch>,
    /// Its contents changed, not only its attributes: drop cached pages, too.
    #[cbor(n(4), default)]
    pub data: bool,
    /// Another client wants the right to append that was granted under this id; answered when it was given back.
    #[n(5)]
    pub append: Option<RequestId>,
}

/// The greatest number of inodes in one [`InUse`].
pub const IN_USE_MAX: usize = 1024;

/// IN_USE, from meta to a client, of files that have lost their last name. Nobody opens them any more.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct InUse {
    /// The volume.
    #[n(0)]
    pub volume: VolumeId,
    /// The files, at most [`IN_USE_MAX`].
    #[n(1)]
    pub inodes: Vec<InodeId>,
}

/// IN_USE's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct InUseReply {
    /// Those that are open at this client, or are being opened.
    #[n(0)]
    pub open: Vec<InodeId>,
}
