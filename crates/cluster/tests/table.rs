//! Every row of the chain state table, and the rules beyond it.
#![allow(missing_docs)]

use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online, UpToDate};
use glowfs_types::routing::PublicState::{self, LastSrv, Offline, Serving, Syncing, Waiting};
use glowfs_types::routing::{ChainMember, LocalState};
use glowfs_types::*;

/// A chain at version 10, active, with members 1.. in these states; serving ones hold proof.
fn chain(states: &[PublicState]) -> Chain {
    let ids: Vec<_> = (1..=states.len() as u64).map(|i| (TargetId(i), NodeId(i))).collect();
    let mut c = Chain::new(ChainId(1), &ids);
    c.info.version = ChainVersion(10);
    c.info.activated = ChainVersion(10);
    c.info.members = ids
        .iter()
        .zip(states)
        .map(|(&(target, node), &state)| ChainMember { target, node, state })
        .collect();
    for m in &c.info.members {
        let proof = match m.state {
            Serving | LastSrv => Proof::Holds,
            _ => Proof::None,
        };
        let record = MemberRecord {
            incarnation: Incarnation(1),
            proof,
            served: ChainVersion(9),
            ..MemberRecord::default()
        };
        c.records.insert(m.target, record);
        if m.state == Serving {
            c.info.activated_serving.push(m.target);
        }
    }
    c
}

fn seen(local: LocalState) -> Observation {
    Observation {
        local,
        incarnation: Incarnation(1),
        clean: false,
        machine_since: Incarnation(0),
        adopted: ChainVersion(10),
        served: ChainVersion(10),
        empty: false,
        may_sync: true,
        known: ChainVersion(10),
        unreachable: false,
        fenced: false,
    }
}

fn view(locals: &[LocalState]) -> View {
    (1..).map(TargetId).zip(locals.iter().map(|l| seen(*l))).collect()
}

fn states(c: &Chain) -> Vec<(u64, PublicState)> {
    c.info.members.iter().map(|m| (m.target.0, m.state)).collect()
}

#[track_caller]
fn row(before: &[PublicState], locals: &[LocalState], after: &[(u64, PublicState)]) {
    let c = chain(before);
    let got = c.step(&view(locals)).map_or(c.clone(), |(next, changes)| {
        let version = if changes.is_empty() { 10 } else { 11 };
        assert_eq!(next.info.version, ChainVersion(version));
        next
    });
    assert_eq!(states(&got), after, "{before:?} with {locals:?}");
}

#[test]
fn every_row() {
    // up-to-date: serving, syncing, lastsrv -> serving
    row(&[Serving, Serving], &[UpToDate, UpToDate], &[(1, Serving), (2, Serving)]);
    row(&[Serving, Syncing], &[UpToDate, UpToDate], &[(1, Serving), (2, Serving)]);
    row(&[LastSrv, Offline], &[UpToDate, Off], &[(1, Serving), (2, Offline)]);
    // up-to-date: offline -> waiting; waiting waits for its turn
    row(&[Serving, Offline], &[UpToDate, UpToDate], &[(1, Serving), (2, Waiting)]);
    row(
        &[Serving, Syncing, Waiting],
        &[Online, Online, UpToDate],
        &[(1, Serving), (2, Syncing), (3, Waiting)],
    );
    // online: serving, lastsrv -> serving
    row(&[Serving, Serving], &[Online, Online], &[(1, Serving), (2, Serving)]);
    row(&[LastSrv], &[Online], &[(1, Serving)]);
    // online: syncing or waiting behind a serving one -> syncing, one at a time
    row(&[Serving, Syncing], &[Online, Online], &[(1, Serving), (2, Syncing)]);
    row(
        &[Serving, Waiting, Waiting],
        &[Online, Online, Online],
        &[(1, Serving), (2, Syncing), (3, Waiting)],
    );
    // online: syncing or waiting with nobody serving before it -> waiting
    row(&[LastSrv, Syncing], &[Off, Online], &[(1, LastSrv), (2, Waiting)]);
    row(&[LastSrv, Waiting], &[Off, Online], &[(1, LastSrv), (2, Waiting)]);
    // online: offline -> waiting
    row(&[Serving, Offline], &[Online, Online], &[(1, Serving), (2, Waiting)]);
    // offline: the last serving one -> lastsrv
    row(&[Serving, Offline], &[Off, Off], &[(1, LastSrv), (2, Offline)]);
    // offline: serving, others serve -> offline, at the tail
    row(
        &[Serving, Serving, Waiting],
        &[Off, Online, Off],
        &[(2, Serving), (1, Offline), (3, Offline)],
    );
    row(
        &[Serving, Serving, Offline],
        &[Off, Online, Off],
        &[(2, Serving), (3, Offline), (1, Offline)],
    );
    // offline: syncing, waiting, offline -> offline
    row(&[Serving, Syncing], &[Online, Off], &[(1, Serving), (2, Offline)]);
    row(&[Serving, Waiting], &[Online, Off], &[(1, Serving), (2, Offline)]);
    row(&[Serving, Offline], &[Online, Off], &[(1, Serving), (2, Offline)]);
    // offline: lastsrv stays
    row(&[LastSrv, Offline], &[Off, Off], &[(1, LastSrv), (2, Offline)]);
}

#[test]
fn nothing_known_changes_nothing() {
    for states in [[Serving, Syncing], [LastSrv, Offline], [Serving, Waiting]] {
        assert_eq!(chain(&states).step(&View::new()), None);
    }
}

#[test]
fn up_to_date_counts_only_under_the_active_version_it_was_reached_in() {
    let mut c = chain(&[Serving, Syncing]);
    let mut v = view(&[Online, UpToDate]);
    v.get_mut(&TargetId(2)).expect("seen").adopted = ChainVersion(9);
    assert_eq!(c.step(&v), None, "reached under an older version");
    c.info.activated = ChainVersion(9);
    let mut v = view(&[Online, UpToDate]);
    v.get_mut(&TargetId(1)).expect("seen").adopted = ChainVersion(9);
    assert_eq!(c.step(&v), None, "the version is not active");
}

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

/// All die at once: 3 with the power of its machine, the others alone. In whatever order they come back, the source is one of those.
#[test]
fn whoever_lost_power_is_not_the_source_where_another_was_only_killed() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2], [3, 1, 2], [2, 1, 3]] {
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
            o.machine_since = Incarnation(if i == 3 { 2 } else { 1 });
            c = c.settle(&v).map_or(c, |(next, _)| next);
        }
        let (first, state) = states(&c)[0];
        assert!(state == Serving && first != 3, "{order:?}: {:?}", states(&c));
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

#[test]
fn a_newborn_chain_serves_when_all_are_there_and_empty() {
    let c = Chain::new(ChainId(1), &[(TargetId(1), NodeId(1)), (TargetId(2), NodeId(2))]);
    let fresh = |empty| Observation { empty, adopted: ChainVersion(0), ..seen(Online) };
    let mut v: View = [(TargetId(1), fresh(true))].into();
    let (c, _) = c.settle(&v).expect("one waits");
    assert_eq!(states(&c), [(1, Waiting), (2, Offline)]);
    v.insert(TargetId(2), fresh(false));
    let (c, _) = c.settle(&v).expect("the other one is there too");
    assert_eq!(states(&c), [(1, Waiting), (2, Waiting)], "not empty: not newborn");
    v.insert(TargetId(2), fresh(true));
    let (c, _) = c.settle(&v).expect("newborn");
    assert_eq!(states(&c), [(1, Serving), (2, Serving)]);
    assert_eq!(c.info.activated, ChainVersion(0));
    for o in v.values_mut() {
        o.adopted = c.info.version;
    }
    let (c, _) = c.step(&v).expect("active");
    assert_eq!(c.info.activated, c.info.version);
}

#[test]
fn a_slow_one_is_demoted_and_pauses() {
    let c = chain(&[Serving, Syncing]);
    let mut v = view(&[Online, Online]);
    v.get_mut(&TargetId(2)).expect("seen").may_sync = false;
    let (c, changes) = c.settle(&v).expect("demoted");
    assert_eq!(states(&c), [(1, Serving), (2, Waiting)]);
    assert_eq!(changes[0].why, Evidence::TooSlow);
    assert_eq!(c.info.version, ChainVersion(11));
    let (c, _) = c.settle(&view(&[Online, Online])).expect("its turn again");
    assert_eq!(states(&c), [(1, Serving), (2, Syncing)]);
}

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
    }
    (c, v)
}

/// What a member that ended cleanly says in its next life.
fn came_back(adopted: ChainVersion, served: ChainVersion) -> Observation {
    let (incarnation, clean) = (Incarnation(2), true);
    Observation { adopted, served, known: adopted, incarnation, clean, ..seen(Online) }
}

/// What follows of itself: who is there adopts each version that is newer than all it knows, and reports it.
fn goes_on(c: &mut Chain, v: &mut View) {
    for _ in 0..4 {
        *c = c.settle(v).map_or(c.clone(), |(next, _)| next);
        for o in v.values_mut().filter(|o| o.local != Off && o.adopted < c.info.version) {
            (o.adopted, o.known) = (c.info.version, c.info.version);
        }
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

#[test]
fn of_a_restored_record_nobody_is_the_source_before_all_are_there_or_one_is_forced() {
    let (mut c, mut v) = restored([40, 40, 50], &[1, 2]);
    assert!(c.info.head().is_none(), "3 may know more: {c:?}");
    assert!(explain(&c).contains("older metadata was put back"), "{}", explain(&c));
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
        assert!(c.info.head().is_none(), "3 may know more: {c:?}");
    }
    v.insert(TargetId(3), came_back(ChainVersion(41), ChainVersion(41)));
    goes_on(&mut c, &mut v);
    assert_eq!(states(&c)[0], (3, Serving), "{c:?}");
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
