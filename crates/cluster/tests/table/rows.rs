//! The rows of the table one by one, chains that begin, and whose turn it is to be brought up to date.

use super::{chain, seen, states, view};
use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{self, Offline as Off, Online, UpToDate};
use glowfs_types::routing::PublicState::{self, LastSrv, Offline, Serving, Syncing, Waiting};
use glowfs_types::*;

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
