//! What is walked, and which planted faults each walk finds.

use super::{Budget, Fault, Setting, World};
use crate::walk::{all_is_well, is_found};

/// More states than any walk has: one that comes to this is no walk to the end, and fails.
const STATES_MAX: usize = 40_000_000;

const PLAIN: Setting = Setting {
    lease: 2,
    margin: 1,
    slow: false,
    fast: false,
    prompt: false,
    reads_later: false,
    elsewhere: false,
    fault: None,
};
const SHORT: Setting = Setting { lease: 1, ..PLAIN };
const CALM: Budget = Budget { crashes: 0, stops: 0, losses: 0, errs: 0 };

fn walk(candidates: usize, setting: Setting, left: Budget) {
    all_is_well(
        &format!("{candidates} candidates, {setting:?}, {left:?}"),
        World::new(candidates, setting, left),
        STATES_MAX,
    );
}

fn finds(fault: Fault, setting: Setting, left: Budget, reason: &str) {
    let setting = Setting { fault: Some(fault), ..setting };
    is_found(World::new(2, setting, left), STATES_MAX, reason);
}

#[test]
fn two_candidates_at_any_pace() {
    walk(2, Setting { prompt: true, ..PLAIN }, CALM);
}

#[test]
fn two_candidates_and_a_crash() {
    walk(2, SHORT, Budget { crashes: 1, ..CALM });
}

/// Found that who had given the lease up was primary again when it heard of a renewal from before.
#[test]
fn two_candidates_of_which_one_gives_the_lease_up() {
    walk(2, SHORT, Budget { stops: 1, ..CALM });
}

#[test]
fn two_candidates_and_a_write_of_which_nobody_hears() {
    walk(2, SHORT, Budget { losses: 1, ..CALM });
}

#[test]
#[ignore = "seconds"]
fn two_candidates_and_clocks_that_err() {
    walk(2, Setting { fast: true, ..PLAIN }, Budget { errs: 1, ..CALM });
    walk(2, Setting { slow: true, ..PLAIN }, Budget { errs: 1, ..CALM });
    walk(2, Setting { elsewhere: true, ..PLAIN }, Budget { crashes: 1, ..CALM });
    walk(2, PLAIN, Budget { losses: 1, ..CALM });
}

#[test]
fn two_candidates_and_what_is_read_later() {
    walk(2, Setting { reads_later: true, ..PLAIN }, CALM);
}

#[test]
#[ignore = "a minute"]
fn two_candidates_and_two_failures() {
    walk(2, SHORT, Budget { crashes: 2, ..CALM });
    walk(2, SHORT, Budget { crashes: 1, losses: 1, ..CALM });
    walk(2, SHORT, Budget { crashes: 1, stops: 1, ..CALM });
}

#[test]
#[ignore = "minutes"]
fn three_candidates() {
    walk(3, SHORT, CALM);
}

/// The test of the tests.
#[test]
fn planted_faults_are_found() {
    finds(Fault::LeaseFromAnswer, PLAIN, CALM, "who acts is not who is recorded");
    finds(
        Fault::NoMargin,
        Setting { fast: true, ..PLAIN },
        Budget { errs: 1, ..CALM },
        "who acts is not who is recorded",
    );
    finds(
        Fault::UnknownIsWon,
        PLAIN,
        Budget { losses: 1, ..CALM },
        "who acts is not who is recorded",
    );
    finds(Fault::NothingCompared, PLAIN, CALM, "epochs: ");
    finds(Fault::NeverClaims, Setting { prompt: true, ..PLAIN }, CALM, "no primary");
}
