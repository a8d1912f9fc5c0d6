//! New lives of members: ended cleanly, killed, or with the power of their machine; and which of them is the source then.

use super::{chain, seen, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online, UpToDate};
use glowfs_types::routing::PublicState::{Offline, Serving, Syncing};
use glowfs_types::*;

/// A life takes part in no chain version of a former one: without a new version nobody would serve.
#[test]
fn every_new_life_is_offline_first_and_a_clean_one_holds_what_it_held() {
    let c = chain(&[Serving, Serving]);
    for (incarnation, clean, proof) in
        [(2, false, Proof::None), (2, true, Proof::Holds), (3, true, Proof::None)]
    {
        let mut v = view(&[Online, Online]);
        let o = v.get_mut(&TargetId(1)).expect("seen");
        (o.incarnation, o.clean) = (Incarnation(incarnation), clean);
        let (next, _) = c.step(&v).expect("a change");
        assert_eq!(states(&next), [(2, Serving), (1, Offline)]);
        assert!(next.info.version > c.info.version);
        let record = &next.records[&TargetId(1)];
        // (A life that was skipped: whether that one was clean, nobody knows.)
        assert_eq!(record.proof == Proof::Holds, proof == Proof::Holds, "{record:?}");
        assert_eq!(record.incarnation, Incarnation(incarnation));
    }
}

/// All were stopped cleanly while nobody heard of it.
#[test]
fn a_chain_whose_members_all_ended_cleanly_unheard_serves_again_under_a_new_version() {
    let c = chain(&[Serving, Serving]);
    let mut v = view(&[Online, Online]);
    for o in v.values_mut() {
        (o.incarnation, o.clean) = (Incarnation(2), true);
    }
    let (next, _) = c.settle(&v).expect("a change");
    assert!(next.info.version > c.info.version);
    assert!(states(&next).iter().any(|s| s.1 == Serving), "{:?}", states(&next));
}

#[test]
fn a_single_replica_serves_again_after_a_kill() {
    let c = chain(&[Serving]);
    let mut v = view(&[Online]);
    v.get_mut(&TargetId(1)).expect("seen").incarnation = Incarnation(7);
    let (next, changes) = c.settle(&v).expect("a change");
    assert_eq!(states(&next), [(1, Serving)]);
    assert_eq!(next.info.version, ChainVersion(12), "offline first");
    assert_eq!(changes.last().expect("two").why, Evidence::NamedSource);
}

/// 3 was brought up to date and made serving, but has not adopted that (which flushes what it got meanwhile) when all power goes: though it
/// is the last to be heard of, one of those is the source that served in the active version.
#[test]
fn after_a_loss_of_all_power_the_source_is_who_served_in_the_active_version() {
    let c = chain(&[Serving, Serving, Syncing]);
    let (mut c, _) = c.step(&view(&[UpToDate, UpToDate, UpToDate])).expect("3 serves");
    assert_eq!(states(&c), [(1, Serving), (2, Serving), (3, Serving)]);
    assert_eq!((c.info.version, c.info.activated), (ChainVersion(11), ChainVersion(10)));
    let mut v = view(&[UpToDate, UpToDate, UpToDate]);
    for i in 1..=3 {
        let o = v.get_mut(&TargetId(i)).expect("seen");
        (o.incarnation, o.local) = (Incarnation(2), Online);
        c = c.step(&v).map_or(c, |(next, _)| next);
    }
    let (c, _) = c.settle(&v).unwrap_or_else(|| (c.clone(), vec![]));
    let first = states(&c)[0];
    assert!(first.1 == Serving && first.0 != 3, "{:?}", states(&c));
}

/// All die at once, one of them with the power of its machine, or none. In whatever order they come back, the source is the last in the chain of those
/// that were only killed: what the tail has committed and shown the others may have had in memory only (simulator).
#[test]
fn the_source_is_the_last_one_that_was_only_killed() {
    let orders = [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2], [3, 1, 2], [2, 1, 3]];
    let cases = [(0, 3), (1, 3), (2, 3), (3, 2)];
    for (order, (unplugged, source)) in orders.iter().flat_map(|o| cases.map(|c| (*o, c))) {
        let mut c = chain(&[Serving, Serving, Serving]);
        let mut v = view(&[Off, Off, Off]);
        // mgmtd may notice in any order, too.
        for i in order {
            let seen = v.insert(TargetId(i), seen(Off));
            assert!(seen.is_some());
            c = c.step(&v).map_or(c, |(next, _)| next);
        }
        for i in order {
            let o = v.get_mut(&TargetId(i)).expect("seen");
            (o.incarnation, o.local) = (Incarnation(2), Online);
            o.machine_since = Incarnation(if i == unplugged { 2 } else { 1 });
            c = c.settle(&v).map_or(c, |(next, _)| next);
        }
        let (first, state) = states(&c)[0];
        assert_eq!((first, state), (source, Serving), "{order:?}: {:?}", states(&c));
        assert_eq!(c.records[&TargetId(first)].proof, Proof::Holds);
    }
}

/// What was killed and comes back loses nothing by what happens to it later, before it serves again; a life in between that
/// nobody heard of may have begun after a loss of power.
#[test]
fn a_skipped_life_is_trusted_only_under_one_boot_of_the_machine() {
    let proof = |lives: &[(u64, u64)]| {
        let mut c = chain(&[Serving, Serving]);
        // The other one is away, so that nobody can take over.
        let mut v = view(&[Off, Off]);
        c = c.settle(&v).map_or(c, |(next, _)| next);
        for (life, since) in lives {
            let o = v.get_mut(&TargetId(1)).expect("seen");
            (o.incarnation, o.machine_since, o.local) =
                (Incarnation(*life), Incarnation(*since), Online);
            c = c.settle(&v).map_or(c, |(next, _)| next);
        }
        c.records[&TargetId(1)].proof
    };
    assert_eq!(proof(&[(2, 1)]), Proof::Killed);
    assert_eq!(proof(&[(4, 1)]), Proof::Killed);
    assert_eq!(proof(&[(2, 1), (3, 3)]), Proof::Killed);
    assert_eq!(proof(&[(2, 2)]), Proof::Suspect);
    assert_eq!(proof(&[(4, 3)]), Proof::Suspect);
    assert_eq!(proof(&[(2, 0)]), Proof::Suspect, "an older build does not tell");
    assert_eq!(proof(&[(2, 2), (3, 2)]), Proof::Suspect);
}
