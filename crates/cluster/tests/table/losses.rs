//! What a chain tells of writes that may be gone.

use super::{chain, goes_on, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online};
use glowfs_types::routing::PublicState::Serving;
use glowfs_types::*;

/// Since when what was acknowledged and not flushed may be gone.
#[test]
fn a_chain_tells_when_it_begins_again_from_one_that_lost_its_power() {
    // The life of 2 ends with the power of its machine, alone, or cleanly.
    for (since, clean, loses) in
        [(2, false, true), (1, false, false), (0, false, true), (2, true, false)]
    {
        let c = chain(&[Serving, Serving]);
        let (c, _) = c.settle(&view(&[Off, Online])).expect("1 is gone");
        assert_eq!(c.info.lost, ChainVersion(0), "2 has everything");
        let (c, _) = c.settle(&view(&[Off, Off])).expect("2 is gone");
        let mut v = view(&[Online, Online]);
        for o in v.values_mut() {
            (o.incarnation, o.clean) = (Incarnation(2), clean);
            o.machine_since = Incarnation(since);
        }
        let (c, _) = c.settle(&v).expect("both are back");
        assert_eq!(states(&c)[0].1, Serving, "{c:?}");
        assert_eq!(c.info.lost > ChainVersion(10), loses, "{c:?}");
        let began = if loses { c.info.lost } else { ChainVersion(0) };
        assert!(c.info.lost <= c.info.version, "{c:?}");
        // It is remembered whatever becomes of the chain.
        let mut next = c.clone();
        goes_on(&mut next, &mut v);
        assert_eq!((next.info.activated, next.info.lost), (next.info.version, began), "{next:?}");
    }
}

#[test]
fn a_chain_tells_when_an_operator_forced_one_that_lacks_writes() {
    let mut c = chain(&[Serving, Serving]);
    c.records.entry(TargetId(1)).or_default().proof = Proof::None;
    let (c, _) = c.settle(&view(&[Off, Off])).expect("both are gone");
    let forced = |t| force(&c, TargetId(t)).expect("nobody serves").info;
    assert_eq!(forced(1).lost, forced(1).version);
    assert_eq!(forced(2).lost, ChainVersion(0), "it holds everything");
    // By a record that was put back nobody holds everything for certain.
    let mut restored = c.clone();
    restored.info.activated_serving.clear();
    let forced = force(&restored, TargetId(2)).expect("nobody serves").info;
    assert_eq!(forced.lost, forced.version);
    let said = explain_force(&restored, TargetId(2)).expect("a member");
    assert!(!said.contains("nothing is lost") && said.contains("put back"), "{said}");
}
