//! Members that are taken out alive, since messages do not arrive: they may still answer reads, so nothing is acknowledged past them.

use super::{chain, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{self, Offline as Off, Online, UpToDate};
use glowfs_types::routing::PublicState::{Offline, Serving, Waiting};
use glowfs_types::*;

/// A view in which these members are blamed for messages that do not arrive.
fn blamed(locals: &[LocalState], who: &[u64]) -> View {
    let mut v = view(locals);
    who.iter().for_each(|t| v.get_mut(&TargetId(*t)).expect("seen").unreachable = true);
    v
}

#[test]
fn a_blamed_member_leaves_only_while_another_one_serves() {
    let on = [UpToDate, UpToDate, UpToDate];
    let c = chain(&[Serving, Serving, Serving]);
    let (next, changes) = c.step(&blamed(&on, &[2])).expect("a change");
    assert_eq!(states(&next), [(1, Serving), (3, Serving), (2, Waiting)]);
    assert_eq!(changes[0].why, Evidence::Unreachable);
    let (next, _) = c.step(&blamed(&on, &[1, 2])).expect("a change");
    assert_eq!(states(&next), [(3, Serving), (1, Waiting), (2, Waiting)]);
    assert_eq!(c.step(&blamed(&on, &[1, 2, 3])), None, "somebody must stay");
    assert_eq!(chain(&[Serving]).step(&blamed(&[UpToDate], &[1])), None, "the last one");
    assert_eq!(
        chain(&[Serving, Waiting]).step(&blamed(&[Online, Off], &[1])).map(|c| states(&c.0)),
        Some(vec![(1, Serving), (2, Offline)])
    );
    // The other one is gone, or was not heard since this instance is primary: nobody knows that it can go on.
    let (next, _) =
        chain(&[Serving, Serving]).step(&blamed(&[Off, UpToDate], &[2])).expect("1 is gone");
    assert_eq!(states(&next), [(2, Serving), (1, Offline)]);
    let mut v = blamed(&[UpToDate, UpToDate], &[2]);
    v.remove(&TargetId(1));
    assert_eq!(chain(&[Serving, Serving]).step(&v), None);
}

#[test]
fn nothing_is_acknowledged_past_a_live_member_that_may_still_answer() {
    let on = [UpToDate, UpToDate];
    let mut c = chain(&[Serving, Serving]);
    c.records.values_mut().for_each(|r| r.served = ChainVersion(10));
    let (c, _) = c.step(&blamed(&on, &[2])).expect("a change");
    let mut v = view(&on);
    v.get_mut(&TargetId(2)).expect("seen").may_sync = false;
    v.get_mut(&TargetId(1)).expect("seen").adopted = ChainVersion(11);
    assert_eq!(c.step(&v), None, "2 may not know version 11 yet, and answers reads under 10");
    let mut nobody_heard = v.clone();
    nobody_heard.remove(&TargetId(2));
    assert_eq!(c.step(&nobody_heard), None, "it may live");
    v.get_mut(&TargetId(2)).expect("seen").known = ChainVersion(11);
    assert_eq!(c.step(&v).expect("active").0.info.activated, ChainVersion(11));
    v.get_mut(&TargetId(2)).expect("seen").known = ChainVersion(10);
    v.get_mut(&TargetId(2)).expect("seen").local = Off;
    let (next, _) = c.settle(&v).expect("its lease ran out");
    assert_eq!(states(&next), [(1, Serving), (2, Offline)]);
}

/// With each change of members who serves does so under a newer version, and may answer under that one.
#[test]
fn after_members_came_and_went_nothing_is_acknowledged_past_one_that_may_still_answer() {
    let changes: [fn(&Chain) -> Chain; 2] = [
        |c| c.join(TargetId(4), NodeId(4)).expect("joins"),
        |c| c.retire(TargetId(3)).expect("retires").0,
    ];
    // As a record of today is, and as older builds left it behind.
    for (change, behind) in changes.into_iter().flat_map(|c| [(c, 10), (c, 9)]) {
        let mut c = chain(&[Serving, Serving, Serving]);
        c.records.values_mut().for_each(|r| r.served = ChainVersion(behind));
        let mut c = change(&c);
        let on = [UpToDate, UpToDate, Off];
        let (mut c, now) = {
            c.info.activated = c.info.version;
            let now = c.info.version;
            (c, now)
        };
        let knows = |v: &mut View, t: u64, version: ChainVersion| {
            let o = v.get_mut(&TargetId(t)).expect("seen");
            (o.adopted, o.known) = (version, version);
        };
        let mut v = view(&on);
        [1, 2].into_iter().for_each(|t| knows(&mut v, t, now));
        c = c.settle(&v).map_or(c, |(next, _)| next);
        let now = c.info.version;
        [1, 2].into_iter().for_each(|t| knows(&mut v, t, now));
        c = c.settle(&v).map_or(c, |(next, _)| next);
        assert_eq!((c.info.activated, c.info.version), (now, now), "{c:?}");
        if let Some(r) = c.records.get_mut(&TargetId(2)).filter(|_| behind == 9) {
            r.served = ChainVersion(9);
        }
        let o = v.get_mut(&TargetId(2)).expect("seen");
        (o.unreachable, o.may_sync) = (true, false);
        let (mut c, _) = c.step(&v).expect("2 is blamed");
        assert_eq!(c.state(TargetId(2)), Some(Waiting), "{c:?}");
        let newer = c.info.version;
        knows(&mut v, 1, newer);
        v.get_mut(&TargetId(2)).expect("seen").unreachable = false;
        c = c.settle(&v).map_or(c, |(next, _)| next);
        assert_eq!(c.info.activated, now, "2 may not know {newer}, and answers under {now}: {c:?}");
        v.get_mut(&TargetId(2)).expect("seen").known = newer;
        c = c.settle(&v).map_or(c, |(next, _)| next);
        assert_eq!(c.info.activated, newer, "{c:?}");
    }
}

/// One that is taken out alive and never says that it knows, for it hears nothing of mgmtd, kept its chain from going on without it.
#[test]
fn who_hears_nothing_is_waited_for_until_its_lease_is_over() {
    for drained in [false, true] {
        let mut c = chain(&[Serving, Serving, Serving]);
        c.records.values_mut().for_each(|r| r.served = ChainVersion(10));
        let mut v = view(&[Online, Online, Online]);
        let deaf = v.get_mut(&TargetId(1)).expect("1");
        (deaf.unreachable, deaf.may_sync) = (true, false);
        let (mut c, _) = c.settle(&v).expect("it leaves");
        assert_eq!(states(&c), [(2, Serving), (3, Serving), (1, Waiting)]);
        // An operator has it leave, too.
        c.records.entry(TargetId(1)).or_default().retired = drained;
        for t in [2, 3] {
            let o = v.get_mut(&TargetId(t)).expect("a member");
            (o.adopted, o.known) = (c.info.version, c.info.version);
        }
        c = c.settle(&v).map_or(c, |(next, _)| next);
        assert_ne!(c.info.activated, c.info.version, "it may answer yet");
        v.values_mut().for_each(|o| o.fenced = true);
        c = c.settle(&v).map_or(c, |(next, _)| next);
        assert_eq!(c.info.activated, c.info.version);
    }
}
