//! Exhaustive: every interleaving of small configurations, and from every state in which nothing more can happen, that
//! everything comes about once the troubles end.

use crate::world::{Budget, Choice, Fault, World};
use glowfs_types::Status;
use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// Every so many states one is settled, besides those in which nothing more can happen.
const SETTLE_EVERY: usize = 256;

/// One step of a path.
struct Link(Choice, Option<Rc<Link>>);

impl Link {
    fn show(path: &Option<Rc<Link>>) -> String {
        let (mut steps, mut at) = (Vec::new(), path.clone());
        while let Some(link) = at {
            steps.push(format!("  {:?}", link.0));
            at = link.1.clone();
        }
        steps.reverse();
        steps.join("\n")
    }
}

/// Walks everything reachable; returns the number of states.
fn explore(start: World, limit: usize) -> usize {
    let mut seen: HashSet<u64> = HashSet::new();
    // A path is kept as a list of shared links, so that a failed check can say how it came about.
    let mut stack = vec![(start, None)];
    let mut ends = 0;
    while let Some((w, path)) = stack.pop() {
        let mut h = DefaultHasher::new();
        w.hash(&mut h);
        if !seen.insert(h.finish()) {
            continue;
        }
        assert!(seen.len() <= limit, "more than {limit} states: make the configuration smaller");
        let choices = w.choices();
        let checked = |what: &dyn Fn()| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
            if let Err(e) = result {
                println!("the way there:\n{}", Link::show(&path));
                let said = e.downcast_ref::<String>().map_or("see above", String::as_str);
                std::panic::resume_unwind(Box::new(format!("a check failed: {said}")));
            }
        };
        if choices.is_empty() || seen.len().is_multiple_of(SETTLE_EVERY) {
            ends += 1;
            checked(&|| w.clone().settle());
        }
        for c in choices {
            let link = Some(Rc::new(Link(c.clone(), path.clone())));
            let next = RefCell::new(w.clone());
            checked(&|| {
                let mut n = next.borrow_mut();
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| n.apply(&c)));
                if let Err(e) = result {
                    println!("the last step: {c:?}");
                    std::panic::resume_unwind(e);
                }
            });
            stack.push((next.into_inner(), link));
        }
    }
    println!("{} states, {ends} settled", seen.len());
    seen.len()
}

fn world(replicas: u8, clients: &[(u8, u8)], budget: Budget, repeats: u8) -> World {
    let mut w = World::new(replicas, clients, budget);
    for c in &mut w.clients {
        c.repeats = repeats;
    }
    w
}

#[test]
fn two_replicas_two_clients_no_trouble() {
    let states = explore(world(2, &[(0, 1), (0, 1)], Budget::default(), 0), 100_000);
    assert!(states > 100, "it explores");
}

#[test]
fn three_replicas_two_clients_no_trouble() {
    let mut w = world(3, &[(0, 1), (0, 1)], Budget::default(), 0);
    w.serial_disks = true;
    explore(w, 300_000);
}

/// Two writes side by side into a chunk that was cut off; a store refuses one of them.
#[test]
fn two_replicas_refuse_a_write_into_a_removed_chunk() {
    let budget = Budget { refusals: 1, pauses: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1), (0, 1)], budget, 0);
    w.serial_disks = true;
    w.remove(0, 3);
    explore(w, 3_000_000);
}

/// Both of two writes side by side are refused, in any order: what is taken back while another one is being dropped from the store goes, too.
#[test]
fn two_replicas_refuse_two_writes_side_by_side() {
    let budget = Budget { refusals: 2, ..Budget::default() };
    let mut w = world(2, &[(0, 1), (0, 1)], budget, 0);
    w.serial_disks = true;
    explore(w, 3_000_000);
}

/// The queue of a store is full: that ends no target, and nothing is left pending for it.
#[test]
fn two_replicas_find_the_queue_of_a_store_full() {
    let budget = Budget { refusals: 2, pauses: 2, ..Budget::default() };
    let mut w = world(2, &[(0, 1), (0, 1)], budget, 0);
    w.refusal = Status::Overloaded;
    w.serial_disks = true;
    explore(w, 3_000_000);
}

/// The number of a write that was refused is given again, and a predecessor's word takes any time: it is not of the write that has the number now.
#[test]
fn two_replicas_refuse_a_write_and_words_are_slow() {
    let budget = Budget { refusals: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 2)], budget, 0);
    w.serial_disks = true;
    w.slow_words = true;
    explore(w, 1_000_000);
}

/// What a replica has read out stays, also if the one that sent it on cannot store it at once.
#[test]
fn two_replicas_refuse_a_write_and_one_crashes() {
    let budget = Budget { refusals: 1, crashes: 1, syncs: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1)], budget, 0);
    w.serial_disks = true;
    explore(w, 2_000_000);
}

#[test]
fn two_replicas_one_crash() {
    let budget = Budget { crashes: 1, syncs: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1)], budget, 0);
    w.serial_disks = true;
    explore(w, 1_000_000);
}

#[test]
fn two_replicas_a_loss_and_a_duplicate() {
    let budget = Budget { losses: 1, duplicates: 1, pauses: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1), (0, 1)], budget, 0);
    w.serial_disks = true;
    explore(w, 1_000_000);
}

#[test]
fn two_replicas_a_lost_lease() {
    let budget = Budget { fences: 1, syncs: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1)], budget, 0);
    w.serial_disks = true;
    explore(w, 1_000_000);
}

/// Channels are forgotten while writes go on and come again: nothing is applied twice.
fn ages_pass(budget: Budget, writes: u8, repeats: u8) -> World {
    let mut w = world(2, &[(0, writes)], budget, repeats);
    w.serial_disks = true;
    w
}

#[test]
fn two_replicas_forget_channels() {
    explore(ages_pass(Budget { ages: 3, duplicates: 1, ..Budget::default() }, 2, 0), 1_000_000);
}

#[test]
fn two_replicas_forget_the_channel_of_one_that_repeats() {
    explore(
        ages_pass(Budget { ages: 3, duplicates: 1, losses: 1, ..Budget::default() }, 1, 1),
        1_000_000,
    );
}

#[test]
#[ignore = "a minute"]
fn two_replicas_forget_the_channel_of_one_that_repeats_and_writes_again() {
    explore(
        ages_pass(Budget { ages: 3, duplicates: 1, losses: 1, ..Budget::default() }, 2, 1),
        3_000_000,
    );
}

#[test]
#[ignore = "a minute"]
fn two_replicas_forget_channels_and_one_crashes() {
    explore(
        ages_pass(Budget { ages: 2, crashes: 1, syncs: 1, ..Budget::default() }, 1, 0),
        2_000_000,
    );
}

/// The rule is needed: with ages that end while an update from before may still come, a write is applied twice.
#[test]
#[should_panic(expected = "a check failed")]
fn channels_that_are_forgotten_too_early_are_noticed() {
    let budget = Budget { ages: 2, duplicates: 1, ..Budget::default() };
    let mut w = world(1, &[(0, 1)], budget, 0);
    w.hasty = true;
    explore(w, 1_000_000);
}

/// Three, of which a store refuses the write, and so many are gone then: whoever is left goes on, and what was seen of the others stays.
fn a_refusal_and_gone(crashes: u8) -> World {
    let budget = Budget { refusals: 1, crashes, ..Budget::default() };
    let mut w = world(3, &[(0, 1)], budget, 0);
    w.serial_disks = true;
    w.stay_away = true;
    w
}

#[test]
fn three_replicas_refuse_a_write_and_one_is_gone() {
    explore(a_refusal_and_gone(1), 1_000_000);
}

#[test]
#[ignore = "a minute"]
fn three_replicas_refuse_a_write_and_two_are_gone() {
    explore(a_refusal_and_gone(2), 3_000_000);
}

/// The last of them is of an older release, and shows at once what it has.
#[test]
fn three_replicas_refuse_a_write_and_one_of_two_that_are_gone_was_older() {
    let mut w = a_refusal_and_gone(2);
    w.nodes[2].older = true;
    explore(w, 3_000_000);
}

/// The one before says that nothing is shown early behind it, though the last one has not said so.
#[test]
#[should_panic(expected = "a check failed: linearizable: node 0 serves [] of chunk 0 after [0.0 ]")]
fn who_says_for_others_that_they_wait_is_found() {
    let mut w = a_refusal_and_gone(2);
    w.nodes[2].older = true;
    w.fault = Some(Fault::WaitsForOthers);
    // From where the first one has refused it.
    w.apply(&Choice::Send(0));
    let request = w.msgs.keys().next().expect("it is sent").clone();
    w.apply(&Choice::Deliver(request));
    w.apply(&Choice::Refuse(0, 0));
    explore(w, 3_000_000);
}

/// What was read under one chain version is told under the next.
#[test]
fn two_replicas_are_read_and_one_crashes() {
    let budget = Budget { crashes: 1, reads: 1, syncs: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1)], budget, 0);
    w.serial_disks = true;
    w.stay_away = true;
    explore(w, 2_000_000);
}

/// Two readers of different versions, and words on the one and on the other.
#[test]
fn two_replicas_are_read_twice_and_words_are_slow() {
    let budget = Budget { reads: 2, ..Budget::default() };
    let mut w = world(2, &[(0, 2)], budget, 0);
    w.serial_disks = true;
    w.slow_words = true;
    explore(w, 1_000_000);
}

#[test]
#[should_panic(
    expected = "a check failed: linearizable: node 1 tells [0.0 ] of chunk 0, version 1, which node 0 has not stored"
)]
fn what_is_told_without_a_word_is_found() {
    let budget = Budget { reads: 1, ..Budget::default() };
    let mut w = world(2, &[(0, 1)], budget, 0);
    w.fault = Some(Fault::ToldUnvouched);
    explore(w, 1_000_000);
}

/// The last one shows that a chunk is gone, which is there still where the chain may begin again.
#[test]
#[should_panic(
    expected = "a check failed: linearizable: node 1 serves [] of chunk 0, version 2, which node 0 has not stored"
)]
fn a_removal_that_is_shown_at_once_is_found() {
    let mut w = world(2, &[(0, 1)], Budget::default(), 0);
    w.fill(0, &vec![(9, 0)], 1);
    w.clients[0].removals = vec![0];
    w.fault = Some(Fault::ShownAtOnce);
    explore(w, 1_000_000);
}

/// Larger ones: `cargo test -p glowfs-craq --test craq -- explore --ignored`.
#[test]
#[ignore = "minutes"]
fn two_replicas_a_crash_and_retries() {
    let budget = Budget { crashes: 1, pauses: 1, syncs: 2, ..Budget::default() };
    explore(world(2, &[(0, 1)], budget, 1), 50_000_000);
}
