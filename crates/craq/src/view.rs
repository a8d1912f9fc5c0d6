//! A target's place in its chain under one chain version.

use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::routing::{ChainInfo, PublicState};
use glowfs_types::{ChainId, ChainVersion, NodeId, TargetId};

/// What one target makes of a [`ChainInfo`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct View {
    /// The chain.
    pub chain: ChainId,
    /// Its version.
    pub version: ChainVersion,
    /// Whether mgmtd recorded that all adopted it: only then may updates commit under it.
    pub active: bool,
    /// What we are.
    pub state: PublicState,
    /// Whether updates of clients enter here.
    pub head: bool,
    /// How many members an update has come by when it is here.
    pub rank: usize,
    /// Where updates go next, and whether that target is syncing.
    pub successor: Option<(TargetId, NodeId, bool)>,
    /// Where updates come from.
    pub predecessor: Option<(TargetId, NodeId)>,
}

impl View {
    /// The view of `me`. Who is not a member (any more) is offline.
    pub fn of(info: &ChainInfo, me: TargetId) -> View {
        let state =
            info.members.iter().find(|m| m.target == me).map_or(PublicState::Offline, |m| m.state);
        let writers: Vec<_> = info.writers().collect();
        let at = writers.iter().position(|m| m.target == me);
        let successor = at
            .and_then(|i| writers.get(i + 1))
            .map(|m| (m.target, m.node, m.state == PublicState::Syncing));
        let predecessor = at
            .and_then(|i| i.checked_sub(1))
            .and_then(|i| writers.get(i))
            .map(|m| (m.target, m.node));
        View {
            chain: info.id,
            version: info.version,
            active: info.activated >= info.version || planted(Mutant::ActivationIgnored),
            state,
            head: state == PublicState::Serving && at == Some(0),
            rank: at.unwrap_or(0),
            successor: if state == PublicState::Serving { successor } else { None },
            predecessor,
        }
    }

    /// Whether it serves.
    pub fn serving(&self) -> bool {
        self.state == PublicState::Serving
    }
    /// Whether it takes what brings it up to date.
    pub fn receiving(&self) -> bool {
        self.syncing() && self.active
    }
    /// Whether it is being brought up to date.
    pub fn syncing(&self) -> bool {
        self.state == PublicState::Syncing
    }
    /// Whether what is staged and answered may commit.
    pub fn may_commit(&self) -> bool {
        (self.syncing() || self.serving()) && self.active
    }
}
