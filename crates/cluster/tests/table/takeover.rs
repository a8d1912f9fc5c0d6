//! Who may take over from the last one that served, by itself or by an operator's force.

use super::{chain, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online};
use glowfs_types::routing::PublicState::{LastSrv, Offline, Serving, Syncing, Waiting};
use glowfs_types::*;

/// Version 10 {1, 2} is active; 1 dies, then 2, before version 11 was active.
fn both_gone_before_activation() -> Chain {
    let c = chain(&[Serving, Serving]);
    let (c, _) = c.step(&view(&[Off, Online])).expect("1 offline");
    let (c, _) = c.step(&view(&[Off, Off])).expect("2 lastsrv");
    assert_eq!(states(&c), [(2, LastSrv), (1, Offline)]);
    c
}

#[test]
fn a_member_of_the_active_version_may_take_over() {
    let c = both_gone_before_activation();
    let (c, changes) = c.step(&view(&[Online, Off])).expect("1 takes over");
    assert_eq!(states(&c), [(1, Serving), (2, Offline)]);
    assert!(changes.iter().any(|c| c.why == Evidence::Proven));
}

#[test]
fn nobody_takes_over_from_an_activated_last_one() {
    let c = chain(&[Serving, Serving]);
    let (c, _) = c.step(&view(&[Off, Online])).expect("1 offline");
    let mut v = view(&[Off, Online]);
    v.get_mut(&TargetId(2)).expect("seen").adopted = ChainVersion(11);
    let (c, changes) = c.step(&v).expect("activated");
    assert!(changes.is_empty() && c.info.activated == ChainVersion(11));
    assert_eq!(c.info.activated_serving, [TargetId(2)]);
    let (c, _) = c.step(&view(&[Off, Off])).expect("2 lastsrv");
    let (c, _) = c.settle(&view(&[Online, Off])).expect("1 waits");
    assert_eq!(states(&c), [(2, LastSrv), (1, Waiting)]);
    let said = explain_force(&c, TargetId(1)).expect("a member");
    assert!(said.contains("up to version 11) is lost; targets that have them: 2"), "{said}");
    assert!(explain_force(&c, TargetId(2)).expect("a member").contains("nothing is lost"));
    let forced = force(&c, TargetId(1)).expect("forced");
    assert_eq!(states(&forced), [(1, Serving), (2, Offline)]);
    // The other one is brought up to date from it when it returns, whatever it held.
    let (after, _) = forced.settle(&view(&[Online, Online])).expect("2 is back");
    assert_eq!(states(&after), [(1, Serving), (2, Syncing)]);
    assert!(force(&after, TargetId(2)).is_err(), "it serves");
}

#[test]
fn interrupted_ones_wait_until_all_who_may_know_more_are_there() {
    let c = both_gone_before_activation();
    let mut v = view(&[Online, Off]);
    v.get_mut(&TargetId(1)).expect("seen").incarnation = Incarnation(2);
    let (c, _) = c.settle(&v).expect("1 is back, suspect");
    assert_eq!(states(&c), [(2, LastSrv), (1, Waiting)]);
    let mut v = view(&[Online, Online]);
    for o in v.values_mut() {
        o.incarnation = Incarnation(2);
    }
    let (c, _) = c.settle(&v).expect("both are suspect");
    assert_eq!(states(&c), [(2, Serving), (1, Syncing)]);
}

/// All end at once, and the disk of the last one of them is gone for good: those who are there go on as soon as an operator has said so.
#[test]
fn whose_disk_was_replaced_is_not_waited_for() {
    let c = chain(&[Serving, Serving, Serving]);
    // The machines of 1 and 2 went on, or went down as well.
    for (machine_since, lost) in [(1, false), (2, true)] {
        let mut v = view(&[Online, Online, Off]);
        for target in [1, 2] {
            let o = v.get_mut(&TargetId(target)).expect("seen");
            (o.incarnation, o.machine_since) = (Incarnation(2), Incarnation(machine_since));
        }
        let (waits, _) = c.settle(&v).expect("new lives");
        assert!(waits.info.head().is_none(), "3 may know more: {:?}", states(&waits));
        v.get_mut(&TargetId(3)).expect("seen").replaced = true;
        let (goes_on, changes) = waits.settle(&v).expect("3 is gone for good");
        assert_eq!(states(&goes_on)[0].1, Serving);
        assert_ne!(states(&goes_on)[0].0, 3);
        assert!(changes.iter().any(|c| c.why == Evidence::NamedSource), "{changes:?}");
        assert_eq!(goes_on.info.lost > waits.info.lost, lost, "{:?}", goes_on.info);
    }
}

/// Nobody but the one whose disk was replaced has it all: that is for an operator to say.
#[test]
fn who_lacks_something_does_not_take_over_from_a_replaced_disk() {
    let c = chain(&[Serving, Serving]);
    let (c, _) = c.step(&view(&[Off, Online])).expect("1 offline");
    let mut v = view(&[Off, Online]);
    v.get_mut(&TargetId(2)).expect("seen").adopted = ChainVersion(11);
    let (c, _) = c.step(&v).expect("activated without 1");
    let mut v = view(&[Online, Off]);
    v.get_mut(&TargetId(2)).expect("seen").replaced = true;
    let (c, _) = c.settle(&v).expect("2 is gone");
    assert!(c.info.head().is_none(), "{:?}", states(&c));
}

/// A member that was to go is all that is left, and an operator calls on it: it stays.
#[test]
fn who_was_retired_and_then_forced_is_not_dismissed() {
    let c = chain(&[Serving, Serving]);
    let (c, _) = c.retire(TargetId(1)).expect("retired");
    let mut v = view(&[Off, Off]);
    let (c, _) = c.settle(&v).unwrap_or_else(|| (c.clone(), vec![]));
    let mut c = force(&c, TargetId(1)).expect("forced");
    let o = v.get_mut(&TargetId(1)).expect("seen");
    (o.local, o.adopted, o.known) = (Online, c.info.version, c.info.version);
    if let Some((next, _)) = c.settle(&v) {
        c = next;
    }
    let leaving = [TargetId(1)].into();
    assert_ne!(next_move(&c, 2, &leaving), Some(Move::Dismiss(TargetId(1))), "{c:?}");
}
