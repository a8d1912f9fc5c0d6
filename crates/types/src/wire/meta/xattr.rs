//! Extended attributes.

use super::{Caller, Name};
use crate::{InodeId, RequestId};
use minicbor::{Decode, Encode};

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
