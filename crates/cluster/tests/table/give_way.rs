//! Who serves and hears nothing keeps its chain only from those who may lack something.

use super::{chain, goes_on, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{self, Offline as Off, Online};
use glowfs_types::routing::PublicState::{LastSrv, Offline, Serving, Syncing, Waiting};
use glowfs_types::*;

/// What mgmtd hears of two members, of which 2 hears nothing; it has adopted what it was told before.
fn deaf_2(first: LocalState, adopted_by_2: u64) -> View {
    let mut v = view(&[first, Online]);
    let deaf = v.get_mut(&TargetId(2)).expect("a member");
    (deaf.unreachable, deaf.may_sync) = (true, false);
    (deaf.adopted, deaf.known) = (ChainVersion(adopted_by_2), ChainVersion(adopted_by_2));
    v
}

/// Version 10 {1, 2} is active; 1 is away, and 2 is to serve alone, but it has not heard of it.
fn left_to_2() -> Chain {
    let mut c = chain(&[Serving, Serving]);
    c.records.values_mut().for_each(|r| r.served = ChainVersion(10));
    let (c, _) = c.settle(&view(&[Off, Online])).expect("1 is away");
    assert_eq!(states(&c), [(2, Serving), (1, Offline)]);
    assert_eq!((c.info.version, c.info.activated), (ChainVersion(11), ChainVersion(10)));
    c
}

/// Who is told of its turn, and of nothing before.
fn adopts(v: &mut View, target: u64, c: &Chain) {
    let o = v.get_mut(&TargetId(target)).expect("a member");
    (o.adopted, o.known) = (c.info.version, c.info.version);
}

#[test]
fn who_has_not_heard_that_it_serves_alone_gives_way_to_one_that_has_everything() {
    let c = left_to_2();
    let mut v = deaf_2(Online, 10);
    let (c, changes) = c.settle(&v).expect("1 is back");
    assert_eq!(states(&c), [(1, Serving), (2, Waiting)]);
    assert!(changes.iter().any(|c| c.why == Evidence::Proven));
    // 2 may answer reads under version 10 as long as it has a lease from before.
    adopts(&mut v, 1, &c);
    assert_eq!(c.settle(&v), None);
    v.values_mut().for_each(|o| o.fenced = true);
    let (c, _) = c.settle(&v).expect("active");
    assert_eq!((c.info.activated, c.info.version), (c.info.version, c.info.version));
    assert_eq!(c.records[&TargetId(2)].proof, Proof::None);
    // It hears again: it is brought up to date.
    let mut v = view(&[Online, Online]);
    v.values_mut().for_each(|o| o.fenced = true);
    (1..=2).for_each(|t| adopts(&mut v, t, &c));
    let (c, _) = c.settle(&v).expect("2 is back");
    assert_eq!(states(&c), [(1, Serving), (2, Syncing)]);
}

/// It may have adopted the version in which it was to serve alone, and answer reads under that one, though it was never active.
#[test]
fn reads_under_a_version_that_was_never_active_are_waited_for() {
    let c = left_to_2();
    let told = c.info.version;
    let mut v = deaf_2(Online, told.0);
    let (c, _) = c.settle(&v).expect("1 is back, before the version was recorded as active");
    assert_eq!(states(&c), [(1, Serving), (2, Waiting)]);
    assert_eq!(c.info.version, told.next());
    adopts(&mut v, 1, &c);
    assert_eq!(c.settle(&v), None, "2 may answer reads");
    let mut over = v.clone();
    over.values_mut().for_each(|o| o.fenced = true);
    let (fenced, _) = c.settle(&over).expect("no lease is left");
    assert_eq!(fenced.info.activated, c.info.version);
    v.get_mut(&TargetId(2)).expect("a member").known = c.info.version;
    let (knows, _) = c.settle(&v).expect("2 serves under no older one");
    assert_eq!(knows.info.activated, c.info.version);
}

/// Nor could they serve: mgmtd would make versions for nothing at each look.
#[test]
fn nobody_gives_way_to_one_that_is_not_there() {
    let c = left_to_2();
    assert_eq!(c.settle(&deaf_2(Off, 10)), None);
    let mut unheard = deaf_2(Off, 10);
    unheard.remove(&TargetId(1));
    assert_eq!(c.settle(&unheard), None);
}

#[test]
fn who_is_back_first_and_hears_nothing_gives_way() {
    let (c, _) = chain(&[Serving, Serving]).settle(&view(&[Off, Off])).expect("both are away");
    assert_eq!(c.info.head(), None);
    let mut v = view(&[Off, Online]);
    v.get_mut(&TargetId(2)).expect("a member").known = ChainVersion(10);
    let (c, _) = c.settle(&v).expect("2 begins");
    assert_eq!(states(&c), [(2, Serving), (1, Offline)]);
    let (c, _) = c.settle(&deaf_2(Online, 10)).expect("1 is back");
    assert_eq!(states(&c), [(1, Serving), (2, Waiting)]);
}

/// It gives way while the other one is being brought up to date already, and that one gives way in its turn.
#[test]
fn the_one_in_whose_favour_it_was_may_give_way_as_well() {
    let c = left_to_2();
    let (c, _) = c.settle(&view(&[Online, Online])).expect("1 is back, and nobody is deaf");
    assert_eq!(states(&c), [(2, Serving), (1, Syncing)]);
    let (c, _) = c.settle(&deaf_2(Online, 10)).expect("2 is deaf");
    assert_eq!(states(&c), [(1, Serving), (2, Waiting)]);
    let mut v = view(&[Online, Online]);
    let deaf = v.get_mut(&TargetId(1)).expect("a member");
    (deaf.unreachable, deaf.may_sync) = (true, false);
    let (c, _) = c.settle(&v).expect("1 is deaf, and 2 is not");
    assert_eq!(states(&c), [(2, Serving), (1, Waiting)]);
    // Both are: nobody is better.
    v.values_mut().for_each(|o| o.unreachable = true);
    assert_eq!(c.settle(&v), None);
}

#[test]
fn it_keeps_the_chain_from_those_who_may_lack_something() {
    let c = left_to_2();
    // 1 was interrupted meanwhile: what it had shown to readers in memory only is gone.
    let mut v = deaf_2(Online, 10);
    v.get_mut(&TargetId(1)).expect("a member").incarnation = Incarnation(2);
    let (interrupted, _) = c.settle(&v).expect("1 is back");
    assert_eq!(states(&interrupted), [(2, Serving), (1, Syncing)]);
    // It ended cleanly.
    v.get_mut(&TargetId(1)).expect("a member").clean = true;
    let (ended, _) = c.settle(&v).expect("1 is back");
    assert_eq!(states(&ended), [(1, Serving), (2, Waiting)]);
    // 2 has served alone: the version was active.
    let mut alone = c.clone();
    goes_on(&mut alone, &mut view(&[Off, Online]));
    assert_eq!(alone.info.activated, alone.info.version);
    let (alone, _) = alone.settle(&deaf_2(Online, 11)).expect("1 is back");
    assert_eq!(states(&alone)[0], (2, Serving));
    assert_ne!(alone.state(TargetId(1)), Some(Serving));
    // 2 is not heard yet by this primary.
    let mut v = view(&[Online]);
    v.get_mut(&TargetId(1)).expect("a member").may_sync = false;
    let (unheard, _) = c.settle(&v).expect("1 is back");
    assert_eq!(states(&unheard), [(2, Serving), (1, Waiting)]);
}

/// By a record that was put back nobody can prove anything before all are there that might.
#[test]
fn of_a_record_that_was_put_back_all_must_be_there() {
    let mut c = chain(&[Serving, Serving, Serving]);
    c.info.activated_serving.clear();
    c.info.version = ChainVersion(11);
    for (m, state) in c.info.members.iter_mut().zip([Waiting, Serving, Offline]) {
        m.state = state;
    }
    c.info.members.swap(0, 1);
    let mut v = deaf_2(Online, 10);
    v.insert(TargetId(3), super::seen(Off));
    let keeps = c.settle(&v).map_or(c.clone(), |(next, _)| next);
    assert_ne!(keeps.state(TargetId(1)), Some(Serving), "3 may know more: {keeps:?}");
    v.insert(TargetId(3), super::seen(Online));
    let (gives_way, _) = c.settle(&v).expect("all are there");
    assert_eq!(gives_way.state(TargetId(1)), Some(Serving));
    assert_ne!(gives_way.state(TargetId(2)), Some(LastSrv));
}
