//! What is walked, and which planted faults each walk finds.

use super::{Budget, Fault, Setting, World};
use crate::walk::{all_is_well, is_found};
use glowfs_cluster::{FallPauses, LeaseConfig};

/// More states than any walk has: one that comes to this is no walk to the end, and fails.
const STATES_MAX: usize = 40_000_000;

const LEASES: LeaseConfig = LeaseConfig {
    lease_ms: 2,
    margin_ms: 1,
    stall_ms: 2,
    return_beats: 2,
    pauses: FallPauses { first_ms: 1, longest_ms: 4 },
};
const PLAIN: Setting = Setting {
    leases: LEASES,
    longer: 0,
    storage: false,
    overtaken: false,
    slow: false,
    fast: false,
    prompt: false,
    rounds: false,
    falls: u32::MAX,
    fault: None,
};
const SHORT: Setting = Setting { leases: LeaseConfig { lease_ms: 1, ..LEASES }, ..PLAIN };
const ROUNDS: Setting = Setting { storage: true, rounds: true, prompt: true, ..PLAIN };
/// A second fall makes a pause, which is longer than the time in which who is needed must be back.
const TWO_STORAGES: Setting = Setting {
    leases: LeaseConfig { pauses: FallPauses { first_ms: 4, longest_ms: 4 }, ..LEASES },
    falls: 2,
    ..ROUNDS
};
const CALM: Budget = Budget { crashes: 0, changes: 0, errs: 0 };

fn walk(nodes: usize, setting: Setting, left: Budget) {
    all_is_well(
        &format!("{nodes} nodes, {setting:?}, {left:?}"),
        World::new(nodes, setting, left),
        STATES_MAX,
    );
}

fn finds(fault: Fault, nodes: usize, setting: Setting, left: Budget, reason: &str) {
    let setting = Setting { fault: Some(fault), ..setting };
    is_found(World::new(nodes, setting, left), STATES_MAX, reason);
}

#[test]
fn one_node_and_a_new_primary() {
    walk(1, SHORT, Budget { changes: 1, ..CALM });
}

#[test]
fn one_node_that_crashes() {
    walk(1, SHORT, Budget { crashes: 1, ..CALM });
}

#[test]
fn one_node_in_rounds() {
    walk(1, ROUNDS, Budget { changes: 1, ..CALM });
}

#[test]
fn two_storage_nodes_in_rounds() {
    walk(2, TWO_STORAGES, CALM);
}

#[test]
#[ignore = "minutes"]
fn two_storage_nodes_in_rounds_that_fall_more_often() {
    walk(2, Setting { falls: 3, ..TWO_STORAGES }, CALM);
    walk(2, Setting { falls: u32::MAX, ..TWO_STORAGES }, CALM);
}

#[test]
#[ignore = "a minute"]
fn two_storage_nodes_in_rounds_and_a_new_primary() {
    walk(2, TWO_STORAGES, Budget { changes: 1, ..CALM });
    walk(2, Setting { falls: 3, ..TWO_STORAGES }, Budget { changes: 1, ..CALM });
}

#[test]
#[ignore = "seconds"]
fn one_node_and_clocks_that_err() {
    walk(1, Setting { fast: true, ..PLAIN }, Budget { errs: 1, ..CALM });
    walk(1, Setting { slow: true, ..PLAIN }, Budget { errs: 1, ..CALM });
}

#[test]
#[ignore = "seconds"]
fn one_node_and_primaries_with_other_leases() {
    walk(1, Setting { prompt: true, ..PLAIN }, CALM);
    walk(1, PLAIN, Budget { changes: 1, ..CALM });
    walk(1, Setting { longer: 1, ..SHORT }, Budget { changes: 1, ..CALM });
}

#[test]
#[ignore = "a minute"]
fn one_node_and_a_primary_that_is_overtaken() {
    walk(1, Setting { overtaken: true, ..SHORT }, Budget { changes: 1, ..CALM });
}

const GIVEN_AWAY: &str = "is given away, and serves";

/// The test of the tests.
#[test]
fn planted_faults_are_found() {
    finds(Fault::LeaseFromAnswer, 1, SHORT, CALM, GIVEN_AWAY);
    finds(Fault::NoQuiet, 1, SHORT, Budget { changes: 1, ..CALM }, GIVEN_AWAY);
}

#[test]
fn who_is_kept_out_though_it_is_needed_is_found() {
    let finds = |fault, reason| finds(fault, 2, TWO_STORAGES, CALM, reason);
    finds(Fault::NeededUntold, "nobody serves after");
    finds(Fault::NeededDeafUntold, "nobody serves after");
    finds(Fault::NeededByLivingOnly, "nobody serves after");
}

#[test]
fn a_deaf_node_that_keeps_its_chains_is_found() {
    finds(Fault::DeafUnseen, 2, TWO_STORAGES, CALM, "who is silent or deaf is in the chain");
}

#[test]
fn a_deaf_node_that_keeps_its_chain_from_one_that_has_everything_is_found() {
    finds(Fault::NoHeir, 2, TWO_STORAGES, CALM, "nobody serves after");
    finds(Fault::HeirUnproven, 2, TWO_STORAGES, CALM, "who begins to serve lacks writes");
}

#[test]
fn a_missing_margin_is_found() {
    finds(
        Fault::NoMargin,
        1,
        Setting { fast: true, ..PLAIN },
        Budget { errs: 1, ..CALM },
        GIVEN_AWAY,
    );
}

#[test]
fn leases_of_the_primary_before_that_are_forgotten_are_found() {
    let change = Budget { changes: 1, ..CALM };
    finds(Fault::OverlapForgotten, 1, Setting { longer: 2, ..SHORT }, change, GIVEN_AWAY);
    finds(Fault::OverlapForgotten, 1, Setting { overtaken: true, ..SHORT }, change, GIVEN_AWAY);
}
