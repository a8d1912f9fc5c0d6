//! Messages of the operator's commands at mgmtd: moving data off disks and nodes, and chains that nobody serves.

use crate::{ChainId, NodeId, StoreId, TargetId};
use minicbor::{Decode, Encode};

/// What MOVE_AWAY is for. Unknown words are refused.
pub mod away {
    /// Data leaves the disk or node, which goes on serving until its replacement does.
    pub const DRAIN: u8 = 0;
    /// The drain is called off: what has not moved yet stays.
    pub const CANCEL: u8 = 1;
    /// The disk was replaced by a new one: what was on the old one is made anew elsewhere, best on the new one.
    pub const REPLACE: u8 = 2;
    /// One store that had the number of the disk before, and is not there any more, is given up: what was on it is made anew elsewhere. Nothing is said of any other.
    pub const GIVE_UP: u8 = 3;
}

/// MOVE_AWAY: a disk or node is to be emptied. A dry run of the same order shows what is left to do, and whether it is in force still.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MoveAway {
    /// The node.
    #[n(0)]
    pub node: NodeId,
    /// The disk's place in the node's configuration; none for the whole node.
    #[n(1)]
    pub disk: Option<u32>,
    /// See [`away`].
    #[n(2)]
    pub what: u8,
    /// Only explain, change nothing.
    #[n(3)]
    pub dry_run: bool,
    /// The store that is given up, and no other (builds that do not know of it do not know that word either).
    #[n(4)]
    pub store: Option<StoreId>,
}

/// A target that has to go.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Leaver {
    /// The target.
    #[n(0)]
    pub target: TargetId,
    /// Its chain.
    #[n(1)]
    pub chain: ChainId,
    /// The node it would go to, or is being copied to; 0 if there is no place for it.
    #[n(2)]
    pub to_node: NodeId,
    /// The disk there.
    #[n(3)]
    pub to_disk: u32,
    /// What is being done, for people.
    #[n(4)]
    pub doing: String,
    /// Bytes its chunks use.
    #[n(5)]
    pub bytes: u64,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MoveAwayReply {
    /// Targets that still have to go; empty when all is done.
    #[n(0)]
    pub left: Vec<Leaver>,
    /// What was or would be done, for people.
    #[n(1)]
    pub explanation: String,
    /// The disks were marked so before this request; if it is repeated as a dry run, then nobody has given another order since. (None from builds
    /// that do not say.)
    #[n(2)]
    pub in_force: Option<bool>,
}

/// REMOVE_NODE: a node that does not live and has no targets is forgotten. It is as if it had never been there: if it comes, it is a new one.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveNode {
    /// The node.
    #[n(0)]
    pub node: NodeId,
    /// Only explain, change nothing.
    #[n(1)]
    pub dry_run: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveNodeReply {
    /// What was or would be done, for people.
    #[n(0)]
    pub explanation: String,
}

/// FORCE_CHAIN: makes a target serve a chain that nobody serves, whatever is lost.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ForceChain {
    /// The chain.
    #[n(0)]
    pub chain: ChainId,
    /// Who shall serve; none: only explain the chain.
    #[n(1)]
    pub target: Option<TargetId>,
    /// Only explain, change nothing.
    #[n(2)]
    pub dry_run: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ForceChainReply {
    /// Whether the chain waits for somebody to serve it.
    #[n(0)]
    pub waits: bool,
    /// Why it is as it is, and what forcing means, for people.
    #[n(1)]
    pub explanation: String,
}

/// TAKE_DISK: a disk of a storage node has failed, and another one (or the same, repaired) is in its place now. An empty one is formatted
/// (administrators only). Of a disk that works it changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TakeDisk {
    /// The disk's place in the node's configuration.
    #[n(0)]
    pub disk: u32,
}

/// TAKE_DISK's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct TakeDiskReply {
    /// The store that is there now.
    #[n(0)]
    pub store: crate::StoreId,
    /// It was taken up by this call; else it worked already.
    #[n(1)]
    pub taken: bool,
}
