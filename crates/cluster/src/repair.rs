//! The next change of a chain's members, so that it has as many replicas as it should, on disks where they may stay.
//!
//! One move at a time, each on a chain that serves under an active version, so redundancy never falls on purpose: a newcomer
//! joins and is brought up to date first, and only when as many as wanted serve without those who leave, they are retired. Nor is anything
//! given up that may be needed yet, be it whole or half a copy: a member goes for good only while as many as wanted serve without it.

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
    /// This retired one is needed after all.
    Reinstate(TargetId),
}

/// What to do next with a chain that should have `wanted` replicas, of which none is to be one of `leaving`.
pub fn next_move(chain: &Chain, wanted: usize, leaving: &BTreeSet<TargetId>) -> Option<Move> {
    if !chain.settled() {
        return None;
    }
    let members = &chain.info.members;
    let serves = |s: PublicState| s == PublicState::Serving;
    if let Some(m) = members.iter().find(|m| chain.retired(m.target)) {
        // Enough served without it when it was retired; those may have gone since.
        let enough = members.iter().filter(|m| serves(m.state)).count() >= wanted;
        return Some(if enough { Move::Dismiss(m.target) } else { Move::Reinstate(m.target) });
    }
    let stay = || members.iter().filter(|m| !leaving.contains(&m.target));
    if stay().count() < wanted {
        return Some(Move::Join);
    }
    if stay().filter(|m| serves(m.state)).count() < wanted {
        // Nor does one go of which there is one too many: the other one that does not serve yet may never do so. Whoever is the first stays.
        return None;
    }
    // Those first that are of no use to anybody.
    let mut gone: Vec<_> = members.iter().filter(|m| leaving.contains(&m.target)).collect();
    gone.sort_by_key(|m| serves(m.state));
    if let Some(m) = gone.first() {
        return Some(Move::Retire(m.target));
    }
    let present = stay().filter(|m| m.state != PublicState::Offline).count();
    // One that is offline may not come back: who knows only that it is away now (a fresh mgmtd) gives up nothing for it.
    if present > wanted {
        // One came back after its replacement had joined, or a drain was called off: the newest one goes, best one that does not serve.
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
    fn of_a_replaced_one_and_its_replacement_the_first_that_serves_stays() {
        assert_eq!(next(&[Serving, Serving, Offline, Syncing], &[3]), None);
        // Nor is the replacement given up by who does not know yet for how long the other one has been away.
        assert_eq!(next(&[Serving, Serving, Offline, Syncing], &[]), None);
        assert_eq!(next(&[Serving, Serving, Serving, Offline], &[]), None);
        // It is back, and perhaps only for a moment, or for want of room never to serve again: half a copy is not thrown away for it.
        assert_eq!(next(&[Serving, Serving, Waiting, Syncing], &[]), None);
        assert_eq!(next(&[Serving, Serving, Waiting, Waiting], &[]), None);
        for gone in [3, 4] {
            let mut states = [Serving; 4];
            states[gone - 1] = Waiting;
            assert_eq!(next(&states, &[]), Some(Move::Retire(TargetId(gone as u64))));
        }
        assert_eq!(
            next(&[Serving, Serving, Serving, Offline], &[4]),
            Some(Move::Retire(TargetId(4)))
        );
    }

    #[test]
    fn a_member_that_was_given_up_is_replaced_once_and_goes_when_enough_serve() {
        assert_eq!(next(&[Serving, Serving, Waiting], &[3]), Some(Move::Join));
        for state in [Offline, Waiting, Syncing] {
            assert_eq!(next(&[Serving, Serving, Waiting, state], &[3]), None, "{state}");
        }
        assert_eq!(
            next(&[Serving, Serving, Waiting, Serving], &[3]),
            Some(Move::Retire(TargetId(3)))
        );
        // The chain is drained as well: it waits for the one, and not for the other any more.
        assert_eq!(next(&[Serving, Serving, Waiting, Serving], &[1]), None);
        assert_eq!(next(&[Serving, Serving, Waiting, Serving], &[1, 3]), Some(Move::Join));
        let all = [Serving, Serving, Waiting, Serving, Serving];
        assert_eq!(next(&all, &[1, 3]), Some(Move::Retire(TargetId(3))));
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
    fn a_retired_one_is_kept_while_too_few_serve_without_it() {
        // Two that served when it was retired have died since.
        let (mut c, _) = chain(&[Serving; 4]).retire(TargetId(3)).expect("retired");
        for m in c.info.members.iter_mut().take(2) {
            m.state = Offline;
        }
        c.info.members.sort_by_key(|m| m.state == Offline);
        c.info.activated = c.info.version;
        let leaving = BTreeSet::from([TargetId(3)]);
        assert_eq!(next_move(&c, 3, &leaving), Some(Move::Reinstate(TargetId(3))));
        let c = c.reinstate(TargetId(3)).expect("it is active");
        assert!(!c.retired(TargetId(3)) && c.state(TargetId(3)) == Some(Offline));
        assert!(c.reinstate(TargetId(3)).is_err(), "it is not retired");
        assert_ne!(next_move(&c, 3, &leaving), Some(Move::Retire(TargetId(3))));
        // Where one replica is wanted, one that serves is enough.
        let (mut c, _) = chain(&[Serving; 2]).retire(TargetId(1)).expect("retired");
        c.info.activated = c.info.version;
        assert_eq!(next_move(&c, 1, &leaving), Some(Move::Dismiss(TargetId(1))));
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
