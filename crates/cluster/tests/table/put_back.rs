//! Stores that are put back as they were before: a snapshot of a disk, a disk that was cloned. Whatever the number of their life is by then, they prove nothing.

use super::{chain, seen, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online};
use glowfs_types::routing::PublicState::{LastSrv, Offline, Serving, Waiting};
use glowfs_types::*;

/// What the lives that are accounted for have drawn, and another one.
const LOT: u32 = 7;
const OTHER: u32 = 8;

/// As [`chain`], with life 5 accounted for of each member, and its lot.
fn fifth_lives(members: &[routing::PublicState]) -> Chain {
    let mut c = chain(members);
    c.info.activated_serving = c.records.keys().copied().collect();
    for record in c.records.values_mut() {
        (record.incarnation, record.nonce) = (Incarnation(5), LOT);
    }
    c
}

/// A life of a store: its number, its lot and that of the one before; after a clean end, of a machine that went on.
fn life(incarnation: u64, nonce: u32, former: u32) -> Observation {
    let (clean, machine_since) = (true, Incarnation(1));
    let incarnation = Incarnation(incarnation);
    Observation { incarnation, nonce, former, clean, machine_since, ..seen(Online) }
}

/// The only member, seen so when it was away.
fn alone(o: Observation) -> Chain {
    let c = fifth_lives(&[LastSrv]);
    let v = View::from([(TargetId(1), o)]);
    c.settle(&v).map_or(c, |(next, _)| next)
}

fn serves(c: &Chain) -> bool {
    c.info.head().is_some()
}

/// The signs by which it is known, each alone: nobody else would notice, and old data would be served.
#[test]
fn a_store_that_was_put_back_serves_nothing_by_itself() {
    let informed = true;
    let behind = ChainVersion(9);
    let signs = [
        ("the same number, another lot", life(5, OTHER, LOT)),
        ("a lesser number", Observation { informed, ..life(3, OTHER, 1) }),
        ("the next one, of another life", life(6, OTHER, OTHER)),
        ("the next one, of a life without a lot", life(6, OTHER, 0)),
        (
            "a later one, behind the active version",
            Observation { adopted: behind, ..life(9, 3, 4) },
        ),
        ("the same of an older build", Observation { adopted: behind, ..life(9, 0, 0) }),
    ];
    for (what, o) in signs {
        let c = alone(o);
        assert_eq!(states(&c), [(1, LastSrv)], "{what}");
        let record = &c.records[&TargetId(1)];
        assert_eq!((record.proof, record.put_back), (Proof::None, true), "{what}");
        // That life takes part in the chain from now on: it can be forced, or brought up to date.
        assert!(record.accounts_for(o.incarnation, o.nonce), "{what}");
        assert!(explain(&c).contains("older state of its disk"), "{what}: {}", explain(&c));
        assert!(explain(&c).contains("when one is forced"), "{what}: {}", explain(&c));
        let told = explain_force(&c, TargetId(1)).expect("a member");
        assert!(told.contains("is lost; targets that have it: none"), "{what}: {told}");
        let forced = force(&c, TargetId(1)).expect("forced");
        assert!(serves(&forced) && !forced.records[&TargetId(1)].put_back);
        assert!(forced.info.lost == forced.info.version, "{what}: clients are told");
    }
}

/// What must not be taken for it.
#[test]
fn a_store_that_went_on_is_not_taken_for_one_that_was_put_back() {
    let killed = Observation { clean: false, ..life(6, OTHER, LOT) };
    let lives = [
        ("the same life", life(5, LOT, 1)),
        ("the same, of an older build or an older mgmtd", life(5, 0, 0)),
        ("the next one", life(6, OTHER, LOT)),
        ("the next one, after a kill", killed),
        ("the next one, of an older build", life(6, 0, 0)),
        ("lives that nobody heard of", life(9, OTHER, 3)),
    ];
    for (what, o) in lives {
        let c = alone(o);
        assert!(serves(&c), "{what}: {}", explain(&c));
        assert!(!c.records[&TargetId(1)].put_back, "{what}");
    }
    // Before there were lots, the number had to do.
    let mut c = chain(&[LastSrv]);
    let (next, _) = c.settle(&View::from([(TargetId(1), life(1, LOT, 0))])).expect("it serves");
    c = next;
    assert!(serves(&c) && c.records[&TargetId(1)].nonce == LOT, "it is known from now on");
}

/// A message of a former life comes late, to a primary that has just taken over: it was sent before the later life was accounted for.
#[test]
fn a_late_message_of_a_former_life_says_nothing() {
    let c = fifth_lives(&[Serving, Serving]);
    let mut v = View::from([1, 2].map(|i| (TargetId(i), life(5, LOT, 1))));
    v.insert(TargetId(1), life(4, 1, 2));
    assert!(c.step(&v).is_none());
}

/// Back before anybody noticed that it was gone: it does not go on serving what it has now.
#[test]
fn a_serving_member_that_was_put_back_leaves_and_is_brought_up_to_date() {
    let c = fifth_lives(&[Serving, Serving]);
    let mut v = View::from([1, 2].map(|i| (TargetId(i), life(5, LOT, 1))));
    v.insert(TargetId(1), life(5, OTHER, LOT));
    let (next, changes) = c.step(&v).expect("a change");
    assert_eq!(states(&next), [(2, Serving), (1, Offline)]);
    assert_eq!(changes[0].why, Evidence::PutBack);
    let (next, _) = next.step(&v).expect("back");
    assert_eq!(states(&next), [(2, Serving), (1, Waiting)]);
    // The other one dies: nobody may take over, though the one that was put back is there.
    v.insert(TargetId(2), Observation { local: Off, ..life(5, LOT, 1) });
    let (next, _) = next.settle(&v).expect("a change");
    assert!(!serves(&next), "{:?}", states(&next));
    // With it it goes on.
    v.insert(TargetId(2), life(6, OTHER, LOT));
    let (next, _) = next.settle(&v).expect("a change");
    assert_eq!(states(&next)[0], (2, Serving));
}

/// All lost their power, and one was put back then: it is not named the source, though it is the last that served.
#[test]
fn a_store_that_was_put_back_is_not_named_the_source() {
    let mut c = fifth_lives(&[LastSrv, Offline, Offline]);
    for (id, proof) in [(1, Proof::Suspect), (2, Proof::Suspect), (3, Proof::None)] {
        c.records.get_mut(&TargetId(id)).expect("a member").proof = proof;
    }
    let lost_power = Observation { machine_since: Incarnation(6), ..life(6, OTHER, LOT) };
    let mut v = view(&[Off, Off, Off]);
    v.insert(TargetId(1), life(5, OTHER, LOT));
    let (next, _) = c.settle(&v).expect("accounted for");
    assert!(!serves(&next));
    v.insert(TargetId(2), lost_power);
    let (next, _) = next.settle(&v).expect("it goes on");
    assert_eq!(states(&next)[0], (2, Serving));
    assert!(next.info.lost > next.info.activated, "what was not flushed may be gone, and is told");
}
