//! Flushing the targets of a node.

use crate::{DataId, VolumeId};
use minicbor::{Decode, Encode};

/// The most targets that one FLUSH_TARGETS may name.
pub const FLUSH_TARGETS_MAX: usize = 4096;

/// The most files that one FLUSH_TARGETS may name.
pub const FLUSH_FILES_MAX: usize = 1024;

/// One target to flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct FlushTarget {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// The chain version under which the sender takes the target for a serving one.
    #[n(1)]
    pub chain_version: crate::ChainVersion,
    /// The target.
    #[n(2)]
    pub target: crate::TargetId,
}

/// FLUSH_TARGETS: make everything that these targets of the node have durable, if each still serves under its chain
/// version. Whoever asks every serving target of a chain version, and is told so by each, has flushed the chain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct FlushTargets {
    /// The targets, at most [`FLUSH_TARGETS_MAX`].
    #[n(0)]
    pub targets: Vec<FlushTarget>,
    /// Only of these files, at most [`FLUSH_FILES_MAX`]; `None`: of all. Storages of releases before 2026-11-28 flush all.
    #[n(1)]
    pub files: Option<Vec<(VolumeId, DataId)>>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct FlushTargetsReply {
    /// A status code for each target, in the order of the question.
    #[n(0)]
    pub statuses: Vec<u16>,
}
