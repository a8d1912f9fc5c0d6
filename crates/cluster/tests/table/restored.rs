//! Older metadata was put back: the record of a chain is behind what its members know.

use super::{came_back, chain, goes_on, seen, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online};
use glowfs_types::routing::PublicState::Serving;
use glowfs_types::*;

/// A record of version 10, in which three served; since then they have adopted these versions, and ended cleanly. In which order mgmtd hears them; whoever was not
/// heard yet is away. What becomes of the chain, and of the view.
fn restored(adopted: [u64; 3], order: &[u64]) -> (Chain, View) {
    let mut c = chain(&[Serving, Serving, Serving]);
    c.records.values_mut().for_each(|r| r.served = ChainVersion(10));
    let mut v = View::new();
    for i in order {
        let version = ChainVersion(adopted[*i as usize - 1]);
        v.insert(TargetId(*i), came_back(version, version));
        goes_on(&mut c, &mut v);
        none_put_back(&c);
    }
    (c, v)
}

/// Nobody is told that an older state of a sound disk was put back: the metadata were.
fn none_put_back(c: &Chain) {
    let named: Vec<_> = c.records.iter().filter(|(_, r)| r.put_back).map(|(t, _)| t).collect();
    assert!(named.is_empty(), "{named:?}: {c:?}");
    for target in c.records.keys() {
        let told = [explain(c), explain_force(c, *target).unwrap_or_default()];
        assert!(!told.iter().any(|t| t.contains("older state of its disk")), "{told:?}");
    }
}

const ORDERS: [[u64; 3]; 6] = [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2], [3, 1, 2], [2, 1, 3]];

/// 2 was stopped, the others went on; then the metadata of before is put back: 2 has what is older, though the record says that it holds everything.
#[test]
fn of_a_restored_record_the_source_is_one_that_adopted_the_newest_version() {
    for (newest, order) in ORDERS.iter().flat_map(|o| [(11, o), (40, o)]) {
        let (c, _) = restored([newest, 10, newest], order);
        let (first, state) = states(&c)[0];
        assert!(state == Serving && first != 2, "{newest}, {order:?}: {c:?}");
        assert!(c.info.version > ChainVersion(newest), "{order:?}: {c:?}");
        assert_eq!(c.info.activated, c.info.version, "{order:?}: {c:?}");
    }
    // And one that went on alone, whoever comes before it, and however near the versions are that are counted on to meanwhile.
    for (adopted, order) in [[20, 10, 30], [40, 41, 42], [40, 40, 41], [11, 11, 12], [12, 13, 14]]
        .iter()
        .flat_map(|a| ORDERS.map(|o| (a, o)))
    {
        let (c, _) = restored(*adopted, &order);
        assert_eq!(states(&c)[0], (3, Serving), "{adopted:?}, {order:?}: {c:?}");
    }
}

/// 2 stopped, or was cut off, and took note of the version without it before it ended: it has adopted what the others have, and lacks what they wrote.
#[test]
fn of_a_restored_record_who_only_heard_of_the_newest_version_proves_nothing() {
    for order in ORDERS {
        let mut c = chain(&[Serving, Serving, Serving]);
        let mut v = View::new();
        for i in order {
            let served = ChainVersion(if i == 2 { 10 } else { 11 });
            v.insert(TargetId(i), came_back(ChainVersion(11), served));
            goes_on(&mut c, &mut v);
            none_put_back(&c);
        }
        let (first, state) = states(&c)[0];
        assert!(state == Serving && first != 2, "{order:?}: {c:?}");
    }
}

/// All went on, and the versions that a restored record counts up to are behind what they have adopted.
#[test]
fn a_restored_chain_serves_under_a_version_that_its_members_take() {
    for order in ORDERS {
        let (c, _) = restored([40, 40, 40], &order);
        assert_eq!(states(&c)[0].1, Serving, "{order:?}: {c:?}");
        assert!(c.info.version > ChainVersion(40) && c.info.activated == c.info.version, "{c:?}");
    }
}

/// It never does, where nobody proves anything: so it is with disks of a former file system under new metadata.
#[test]
fn of_a_restored_chain_in_which_nobody_proves_anything_nobody_says_that_it_goes_on_by_itself() {
    let (mut c, mut v) = restored([40, 40, 50], &[1, 2]);
    c.records.values_mut().for_each(|r| r.proof = Proof::None);
    v.insert(TargetId(3), came_back(ChainVersion(50), ChainVersion(50)));
    goes_on(&mut c, &mut v);
    assert!(c.restored() && c.info.head().is_none(), "{c:?}");
    let said = explain(&c);
    assert!(said.contains("when one is forced") && said.contains("a former file system"), "{said}");
    assert!(!said.contains("by itself"), "{said}");
}

#[test]
fn of_a_restored_record_nobody_is_the_source_before_all_are_there_or_one_is_forced() {
    let (mut c, mut v) = restored([40, 40, 50], &[1, 2]);
    assert!(c.info.head().is_none(), "3 may know more: {c:?}");
    assert!(explain(&c).contains("older metadata was put back"), "{}", explain(&c));
    assert!(explain(&c).contains("goes on by itself"), "{}", explain(&c));
    // Its node is dead, as far as the record tells: that says nothing of what it has.
    v.insert(TargetId(3), seen(Off));
    goes_on(&mut c, &mut v);
    assert!(c.info.head().is_none(), "{c:?}");
    let mut c = force(&c, TargetId(1)).expect("nobody serves");
    goes_on(&mut c, &mut v);
    assert_eq!((states(&c)[0], c.info.activated), ((1, Serving), c.info.version), "{c:?}");
    // What comes too late is brought up to date like any other; the chain goes on meanwhile.
    v.insert(TargetId(3), came_back(ChainVersion(50), ChainVersion(50)));
    goes_on(&mut c, &mut v);
    assert_eq!((states(&c)[0], c.info.activated), ((1, Serving), c.info.version), "{c:?}");
    assert!(c.info.version > ChainVersion(50), "or 3 would take nothing: {c:?}");
}

/// Who waits for the others is started again, with a version that was counted on to since: it brought no more than before.
#[test]
fn a_restart_while_a_restored_chain_waits_proves_nothing() {
    let (mut c, mut v) = restored([40, 40, 41], &[1, 2]);
    for life in 3..6 {
        for t in [1, 2] {
            let o = v.get_mut(&TargetId(t)).expect("seen");
            (o.incarnation, o.clean) = (Incarnation(life), true);
        }
        goes_on(&mut c, &mut v);
        none_put_back(&c);
        assert!(c.info.head().is_none(), "3 may know more: {c:?}");
    }
    v.insert(TargetId(3), came_back(ChainVersion(41), ChainVersion(41)));
    goes_on(&mut c, &mut v);
    assert_eq!(states(&c)[0], (3, Serving), "{c:?}");
}

/// A store is put back, for once, while a restored chain waits: what it brought before, it may lack by now.
#[test]
fn a_store_that_is_put_back_while_a_restored_chain_waits_proves_nothing() {
    let (mut c, mut v) = restored([40, 40, 30], &[1, 2]);
    let older = came_back(ChainVersion(12), ChainVersion(12));
    v.insert(TargetId(1), Observation { incarnation: Incarnation(9), ..older });
    goes_on(&mut c, &mut v);
    assert!(c.records[&TargetId(1)].put_back, "{c:?}");
    assert!(c.info.head().is_none(), "3 may know more: {c:?}");
    v.insert(TargetId(3), came_back(ChainVersion(30), ChainVersion(30)));
    goes_on(&mut c, &mut v);
    assert_eq!(states(&c)[0], (2, Serving), "{c:?}");
}

/// 3 left the chain, and its chunks were removed; then the metadata of before is put back, and its node makes it anew, empty, whether or not it was started
/// again. It proves nothing, whoever is heard first.
#[test]
fn of_a_restored_record_one_that_was_made_anew_is_not_the_source() {
    for (order, life) in ORDERS.iter().flat_map(|o| [(o, 1), (o, 2)]) {
        let mut c = chain(&[Serving, Serving, Serving]);
        c.records.values_mut().for_each(|r| r.served = ChainVersion(10));
        // As mgmtd takes them whose nodes it has not heard of for long enough.
        let mut v = view(&[Off, Off, Off]);
        for i in order {
            let mut o = came_back(ChainVersion(40), ChainVersion(40));
            if *i == 3 {
                let none = came_back(ChainVersion(0), ChainVersion(0));
                o = Observation { incarnation: Incarnation(life), empty: true, ..none };
            }
            v.insert(TargetId(*i), o);
            goes_on(&mut c, &mut v);
            none_put_back(&c);
            let head = c.info.head().map(|m| m.target);
            assert_ne!(head, Some(TargetId(3)), "{order:?}, life {life}: {c:?}");
        }
        assert_eq!(states(&c)[0].1, Serving, "{order:?}, life {life}: {c:?}");
    }
}

/// An operator calls on a member that holds nothing, since all others are gone for good: it serves.
#[test]
fn one_that_was_made_anew_serves_if_it_is_forced() {
    let c = chain(&[Serving, Serving]);
    let mut v = view(&[Off, Off]);
    let (mut c, _) = c.settle(&v).expect("both are gone");
    let mut o = Observation { incarnation: Incarnation(2), empty: true, ..seen(Online) };
    (o.adopted, o.known) = (ChainVersion(0), ChainVersion(0));
    v.insert(TargetId(2), o);
    goes_on(&mut c, &mut v);
    v.get_mut(&TargetId(2)).expect("seen").adopted = ChainVersion(0);
    assert!(c.info.head().is_none(), "{c:?}");
    let mut c = force(&c, TargetId(2)).expect("nobody serves");
    c = c.settle(&v).map_or(c, |(next, _)| next);
    assert_eq!(states(&c)[0], (2, Serving), "{c:?}");
    goes_on(&mut c, &mut v);
    assert_eq!(c.info.activated, c.info.version, "{c:?}");
}
