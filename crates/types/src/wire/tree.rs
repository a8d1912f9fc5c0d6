//! Messages about the removal of whole trees: REMOVE_TREE, for everybody who may, and TREES, which says how far such removals are.

use super::meta::{Caller, Name, Time};
use crate::{InodeId, RequestId};
use minicbor::{Decode, Encode};

/// The greatest page of TREES.
pub const TREES_PAGE_MAX: u32 = 100;

/// REMOVE_TREE: a directory with all that is in it loses its name, and goes in the background.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveTree {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The directory that has the name; 0: the one that `inode` is in.
    #[n(2)]
    pub parent: InodeId,
    /// The name.
    #[n(3)]
    pub name: Name,
    /// The directory that it must lead to; 0: whichever it is.
    #[n(4)]
    pub inode: InodeId,
    /// Only say whether it would be done.
    #[n(5)]
    pub check: bool,
}

/// REMOVE_TREE's answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveTreeReply {
    /// The tree: the number of its directory.
    #[n(0)]
    pub tree: InodeId,
    /// The directory that has, or had, the name.
    #[n(1)]
    pub parent: InodeId,
    /// Its name there.
    #[n(2)]
    pub name: Name,
}

/// TREES: trees on their way out.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Trees {
    /// Who asks: users see the trees that they have removed, operators all.
    #[n(0)]
    pub caller: Caller,
    /// Those behind this one.
    #[n(1)]
    pub after: Option<InodeId>,
}

/// TREES' answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct TreesReply {
    /// Some of them. One that is not here is gone, with all that was in it.
    #[n(0)]
    pub trees: Vec<Tree>,
    /// There may be more behind this one.
    #[n(1)]
    pub next: Option<InodeId>,
}

/// A tree on its way out.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Tree {
    /// The number of its directory.
    #[n(0)]
    pub tree: InodeId,
    /// Where it was; empty if that is not known.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Its name there.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub name: Vec<u8>,
    /// The directory it was in.
    #[n(3)]
    pub parent: InodeId,
    /// Who removed it.
    #[n(4)]
    pub uid: u32,
    /// When.
    #[n(5)]
    pub removed: Time,
    /// Directories that wait to be emptied; there may be more in them.
    #[n(6)]
    pub waiting: u64,
    /// Removed so far: names of files and whatever else is no directory.
    #[n(7)]
    pub files: u64,
    /// Removed so far: directories.
    #[n(8)]
    pub directories: u64,
    /// The lengths of the files that lost their last name.
    #[n(9)]
    pub bytes: u64,
    /// What whoever removed the tree may not remove, and so went to /lost+found.
    #[n(10)]
    pub kept: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn golden_bytes() {
        let request = RemoveTree {
            caller: Caller::default(),
            request: RequestId(1),
            parent: InodeId(2),
            name: b"t".to_vec().into(),
            inode: InodeId(3),
            check: true,
        };
        let bytes = encode(&request);
        assert_eq!(bytes[bytes.len() - 5..], [2, 0x41, b't', 3, 0xf5]);
        assert_eq!(decode::<RemoveTree>(&bytes), Ok(request));
        let reply =
            RemoveTreeReply { tree: InodeId(3), parent: InodeId(2), name: b"t".to_vec().into() };
        assert_eq!(encode(&reply), [0x83, 3, 2, 0x41, b't']);
        let tree = Tree { tree: InodeId(3), name: b"t".to_vec(), waiting: 9, ..Tree::default() };
        let bytes = encode(&TreesReply { trees: vec![tree], next: Some(InodeId(4)) });
        let expected = b"\x82\x81\x8b\x03\x40\x41t\x00\x00\x82\x00\x00\x09\x00\x00\x00\x00\x04";
        assert_eq!(bytes, expected);
    }
}
