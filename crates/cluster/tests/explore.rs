//! Walks chains of two and three replicas through every order of events to the end of all states, and far from
//! the start at random; checks in every state that is reached:
//!
//! - a target that serves (reads or acknowledges) holds every acknowledged write; so two serving sets that could both
//!   acknowledge always overlap in what they hold, and replicas converge;
//! - versions never go back;
//! - if nothing fails any more, every write completes and all members serve again;
//! - if those that hear nothing never hear again, the chain goes on without them, where another one lives that holds everything
//!   (and what they say last does not leave it to them: docs/status.md, G246).
//!
//! Failures are crashes (clean or not, before and after a restart), cuts from mgmtd, one way or both, and targets that mgmtd blames; leases also end by
//! time alone. The walks of every day take seconds; those
//! with more failures run with `cargo test --release -p glowfs-cluster --test cluster -- explore --ignored --nocapture`.
#![allow(missing_docs)]

use crate::world::{ANY, Bounds, Fault, World};
use std::collections::HashSet;

const NONE: Bounds = Bounds { crashes: 0, cuts: 0, retires: 0, spares: 0, blames: 0 };

/// Every state that can be reached; returns how many there are.
fn explore(replicas: u64, bounds: Bounds) -> usize {
    let states = walk(World::new(replicas, bounds));
    println!("{replicas} replicas, {bounds:?}: {states} states");
    states
}

fn walk(start: World) -> usize {
    let mut known = HashSet::new();
    known.insert(start.fold());
    let mut stack = vec![start];
    while let Some(w) = stack.pop() {
        w.check();
        w.heal();
        w.goes_on_without_the_deaf();
        for next in w.next() {
            if known.insert(next.fold()) {
                stack.push(next);
            }
        }
    }
    known.len()
}

#[test]
fn two_replicas_every_order_of_events() {
    let states = explore(2, Bounds { crashes: 2, cuts: ANY, ..NONE });
    assert!(states > 3000, "{states}");
}

#[test]
fn three_replicas_every_order_of_events() {
    let states = explore(3, Bounds { crashes: 2, cuts: 1, ..NONE });
    assert!(states > 10_000, "{states}");
}

/// A member is replaced: another target joins, it is retired and dismissed, in every order with failures between.
#[test]
fn a_member_is_replaced_in_every_order_of_events() {
    let replace = Bounds { retires: 1, spares: 1, ..NONE };
    assert!(explore(2, Bounds { cuts: 1, ..replace }) > 10_000);
    assert!(explore(2, Bounds { crashes: 1, ..replace }) > 10_000);
    assert!(explore(1, Bounds { crashes: 1, cuts: 1, ..replace }) > 1000);
}

/// mgmtd blames targets, rightly or not, for what does not arrive, and hears some that hear nothing.
#[test]
fn targets_are_blamed_in_every_order_of_events() {
    assert!(explore(2, Bounds { crashes: 1, cuts: 1, blames: 1, ..NONE }) > 10_000);
    // Who was silent in the same life is back, and is given way to; and gives way in its turn.
    assert!(explore(2, Bounds { cuts: 2, blames: 2, ..NONE }) > 10_000);
    assert!(explore(3, Bounds { cuts: 1, blames: 1, ..NONE }) > 10_000);
    assert!(explore(2, Bounds { retires: 1, spares: 1, blames: 1, ..NONE }) > 10_000);
}

/// The test of the test.
#[test]
fn whom_the_blamed_give_way_to_matters() {
    let finds = |fault, bounds, reason: &str| {
        let start = World { fault: Some(fault), ..World::new(2, bounds) };
        let found = std::panic::catch_unwind(move || walk(start)).expect_err("not found");
        let found = found.downcast_ref::<String>().expect("a text");
        assert!(found.contains(reason), "{found}");
    };
    let crashes = Bounds { crashes: 1, cuts: 1, blames: 1, ..NONE };
    finds(Fault::HeirUnproven, crashes, "serves and misses writes");
    finds(Fault::NoHeir, crashes, "does not go on without");
    let silent = Bounds { cuts: 2, blames: 1, ..NONE };
    finds(Fault::NoHeir, silent, "does not go on without");
}

#[test]
#[ignore = "takes minutes: run it in release mode, see the head of this file"]
fn everything_with_more_failures() {
    explore(2, Bounds { crashes: 4, cuts: ANY, ..NONE });
    explore(3, Bounds { crashes: 1, cuts: ANY, ..NONE });
    explore(3, Bounds { crashes: 3, cuts: 1, ..NONE });
    explore(3, Bounds { crashes: 2, cuts: 2, ..NONE });
    explore(2, Bounds { crashes: 1, cuts: 1, retires: 1, spares: 1, ..NONE });
    explore(2, Bounds { crashes: 2, retires: 2, spares: 1, ..NONE });
    explore(3, Bounds { crashes: 1, retires: 1, spares: 1, ..NONE });
}

#[test]
#[ignore = "takes minutes: run it in release mode, see the head of this file"]
fn targets_are_blamed_with_more_failures() {
    explore(2, Bounds { crashes: 2, cuts: 2, blames: 2, ..NONE });
    explore(3, Bounds { crashes: 1, cuts: 2, blames: 1, ..NONE });
}

/// Far from the start, at random.
#[test]
fn three_replicas_long_random_walks() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    for _ in 0..150 {
        let mut w =
            World::new(3, Bounds { crashes: 8, cuts: ANY, retires: 3, spares: 3, blames: 3 });
        for _ in 0..120 {
            let mut next = w.next();
            w = next.swap_remove(random(next.len()));
            w.check();
        }
        w.heal();
        w.goes_on_without_the_deaf();
    }
}
