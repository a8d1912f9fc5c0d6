//! What is walked, and which planted faults each walk finds.

use super::{Budget, FallPauses, Fault, LeaseConfig, Setting, World};
use crate::walk::{all_is_well, is_found};

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
    fault: None,
};
const SHORT: Setting = Setting { leases: LeaseConfig { lease_ms: 1, ..LEASES }, ..PLAIN };
const ROUNDS: Setting = Setting { storage: true, rounds: true, prompt: true, ..PLAIN };
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
fn one_node_in_rounds() {
    walk(1, ROUNDS, Budget { changes: 1, ..CALM });
}

#[test]
#[ignore = "a minute"]
fn one_node_and_clocks_that_err() {
    walk(1, Setting { fast: true, ..PLAIN }, Budget { errs: 1, ..CALM });
    walk(1, Setting { slow: true, ..PLAIN }, Budget { errs: 1, ..CALM });
}

#[test]
#[ignore = "a minute"]
fn one_node_and_primaries_with_other_leases() {
    walk(1, Setting { prompt: true, ..PLAIN }, CALM);
    walk(1, PLAIN, Budget { changes: 1, ..CALM });
    walk(1, Setting { longer: 1, ..SHORT }, Budget { changes: 1, ..CALM });
}

#[test]
#[ignore = "many minutes"]
fn one_node_that_crashes_and_a_primary_that_is_overtaken() {
    walk(1, SHORT, Budget { crashes: 1, ..CALM });
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
#[ignore = "a minute"]
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
#[ignore = "a minute"]
fn leases_of_the_primary_before_that_are_forgotten_are_found() {
    let change = Budget { changes: 1, ..CALM };
    finds(Fault::OverlapForgotten, 1, Setting { longer: 2, ..SHORT }, change, GIVEN_AWAY);
    finds(Fault::OverlapForgotten, 1, Setting { overtaken: true, ..SHORT }, change, GIVEN_AWAY);
}
