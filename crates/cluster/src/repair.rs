//! The next change of a chain's members, so that it has as many replicas as it should, on disks where they may stay.
//!
//! One move at a time, each on a chain that serves under an active version, so redundancy never falls on purpose: a newcomer
//! joins and is brought up to date first, and only when as many as wanted serve without those who leave, they are retired.

use crate::Chain;
use glowfs_types::TargetId;
use glowfs_types::routing::PublicState;
use std::collections::BTreeSet;

/// A change of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// One more member is needed.
    Join,
    /// This one is to be retired.
    Retire(TargetId),
    /// This retired one is to be taken off the list.
    Dismiss(TargetId),
}

/// What to do next with a chain that should have `wanted` replicas, of which none is to be one of `leaving`.
pub fn next_move(chain: &Chain, wanted: usize, leaving: &BTreeSet<TargetId>) -> Option<Move> {
    if !chain.settled() {
        return None;
    }
    let members = &chain.info.members;
    if let Some(m) = members.iter().find(|m| chain.retired(m.target)) {
        return Some(Move::Dismiss(m.target));
    }
    let serves = |s: PublicState| s == PublicState::Serving;
    let stay = || members.iter().filter(|m| !leaving.contains(&m.target));
    if stay().count() < wanted {
        return Some(Move::Join);
    }
    let serving = stay().filter(|m| serves(m.state)).count();
    if serving >= wanted {
        // Those first that are of no use to anybody.
        let mut gone: Vec<_> = members.iter().filter(|m| leaving.contains(&m.target)).collect();
        gone.sort_by_key(|m| serves(m.state));
        if let Some(m) = gone.first() {
            return Some(Move::Retire(m.target));
        }
    }
    let present = stay().filter(|m| m.state != PublicState::Offline).count();
    // One that is offline may not come back: who knows only that it is away now (a fresh mgmtd) gives up nothing for it.
    if present > wanted {
        // One came back after its replacement had joined, or a drain was called off: the newest one goes, best before it serves.
        let idle = stay().filter(|m| !serves(m.state)).map(|m| m.target).max();
        let newest = || stay().map(|m| m.target).max();
        return idle.or_else(newest).map(Move::Retire);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemberRecord, Proof};
    use PublicState::{Offline, Serving, Syncing, Waiting};
    use glowfs_types::routing::ChainMember;
    use glowfs_types::{ChainId, ChainVersion, Incarnation, NodeId};

    fn chain(states: &[PublicState]) -> Chain {
        let ids: Vec<_> = (1..=states.len() as u64).map(|i| (TargetId(i), NodeId(i))).collect();
        let mut c = Chain::new(ChainId(1), &ids);
        (c.info.version, c.info.activated) = (ChainVersion(5), ChainVersion(5));
        c.info.members = ids
            .iter()
            .zip(states)
            .map(|(&(target, node), &state)| ChainMember { target, node, state })
            .collect();
        for (id, _) in ids {
            let proof = Proof::None;
            let record =
                MemberRecord { incarnation: Incarnation(1), proof, ..MemberRecord::default() };
            c.records.insert(id, record);
        }
        c
    }
    fn next(states: &[PublicState], leaving: &[u64]) -> Option<Move> {
        next_move(&chain(states), 3, &leaving.iter().map(|&t| TargetId(t)).collect())
    }

    #[test]
    fn a_drain_joins_waits_and_retires() {
        assert_eq!(next(&[Serving; 3], &[]), None);
        assert_eq!(next(&[Serving; 3], &[2]), Some(Move::Join));
        assert_eq!(next(&[Serving, Serving, Serving, Syncing], &[2]), None, "not ready yet");
        assert_eq!(next(&[Serving; 4], &[2]), Some(Move::Retire(TargetId(2))));
        // Called off: the newcomer goes, at once if it does not serve yet.
        assert_eq!(next(&[Serving; 4], &[]), Some(Move::Retire(TargetId(4))));
        assert_eq!(
            next(&[Serving, Serving, Serving, Waiting], &[]),
            Some(Move::Retire(TargetId(4)))
        );
    }

    #[test]
    fn a_replaced_one_that_returns_is_preferred_to_its_replacement() {
        assert_eq!(next(&[Serving, Serving, Offline, Syncing], &[3]), None);
        // Nor is the replacement given up by who does not know yet for how long the other one has been away.
        assert_eq!(next(&[Serving, Serving, Offline, Syncing], &[]), None);
        assert_eq!(next(&[Serving, Serving, Serving, Offline], &[]), None);
        assert_eq!(
            next(&[Serving, Serving, Waiting, Syncing], &[]),
            Some(Move::Retire(TargetId(4)))
        );
        assert_eq!(
            next(&[Serving, Serving, Serving, Offline], &[4]),
            Some(Move::Retire(TargetId(4)))
        );
    }

    #[test]
    fn a_chain_that_changes_is_left_alone() {
        let mut c = chain(&[Serving; 3]);
        c.info.version = ChainVersion(6);
        assert_eq!(next_move(&c, 4, &BTreeSet::new()), None);
        let c = chain(&[Offline; 3]);
        assert_eq!(next_move(&c, 4, &BTreeSet::new()), None);
    }

    #[test]
    fn retired_ones_are_dismissed_first() {
        let (mut c, _) = chain(&[Serving; 4]).retire(TargetId(2)).expect("retired");
        assert_eq!(next_move(&c, 3, &BTreeSet::new()), None, "not active yet");
        assert!(c.dismiss(TargetId(2)).is_err());
        c.info.activated = c.info.version;
        assert_eq!(next_move(&c, 3, &BTreeSet::new()), Some(Move::Dismiss(TargetId(2))));
        let c = c.dismiss(TargetId(2)).expect("active");
        let left: Vec<u64> = c.info.members.iter().map(|m| m.target.0).collect();
        assert_eq!(left, [1, 3, 4], "in the order of before");
    }
}
