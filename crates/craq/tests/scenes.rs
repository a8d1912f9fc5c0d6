//! Scenes: what readers of the protocol thought of, step by step. After each the troubles end, and everything must come about.

use crate::world::{Budget, Choice, Fault, Msg, World};
use glowfs_types::Status;
use glowfs_types::routing::PublicState;

/// Takes the first choice for which that holds.
fn go(w: &mut World, what: &str, fits: impl Fn(&Choice) -> bool) {
    let choices = w.choices();
    let choice = choices.iter().find(|c| fits(c));
    let choice = choice.unwrap_or_else(|| panic!("{what}: not among {choices:#?}")).clone();
    w.apply(&choice);
}
/// A message to that node arrives: the first that fits.
fn arrives(w: &mut World, node: u8, fits: impl Fn(&Msg) -> bool) {
    go(w, "a message arrives", |c| match c {
        Choice::Deliver(m) => m.to() == Some(node) && fits(m),
        _ => false,
    });
}
/// Lets things go their way, without troubles and clients, until that holds.
fn calm(w: &mut World, until: impl Fn(&World) -> bool) {
    calm_where(w, |_| true, until);
}
/// The same, where nothing happens at any other node.
fn calm_at(w: &mut World, nodes: &[u8], until: impl Fn(&World) -> bool) {
    let there = |c: &Choice| match c {
        Choice::Deliver(m) => m.to().is_some_and(|to| nodes.contains(&to)),
        Choice::Disk(i, _) | Choice::Timer(i) | Choice::Tell(i) => nodes.contains(i),
        Choice::StartSync(i) | Choice::Ask(i) | Choice::AskFor(i) => nodes.contains(i),
        _ => true,
    };
    calm_where(w, there, until);
}
fn calm_where(w: &mut World, fits: impl Fn(&Choice) -> bool, until: impl Fn(&World) -> bool) {
    for step in 0..2000_usize {
        if until(w) {
            return;
        }
        let mut choices = w.choices();
        choices.retain(|c| {
            use Choice::{Crash, Duplicate, Fence, Fill, Lose, Refuse, Repeat, Send};
            fits(c)
                && !matches!(
                    c,
                    Crash(..)
                        | Duplicate(_)
                        | Fence(_)
                        | Fill(_)
                        | Lose(_)
                        | Refuse(..)
                        | Repeat(_)
                        | Send(_)
                )
        });
        w.apply(&choices[step.wrapping_mul(7919) % choices.len()]);
    }
    panic!("it does not come about: {w:#?}");
}
fn request(w: &mut World, node: u8, client: u8) {
    w.apply(&Choice::Send(client));
    arrives(w, node, |m| matches!(m, Msg::Request { client: c, .. } if *c == client));
}
fn forward(w: &mut World, node: u8, version: u64) {
    arrives(w, node, |m| matches!(m, Msg::Forward { f, .. } if f.version.0 == version));
}

/// Two writes side by side into a chunk that was cut off. The middle one and the last one of three refuse the first of them at once, so the
/// second comes to a middle one that has the removal only: it must not make it a later one, or it would take the next writes for old ones.
#[test]
fn a_refused_write_does_not_make_the_one_behind_it_a_new_begin() {
    let budget = Budget { refusals: 2, ..Budget::default() };
    let mut w = World::new(3, &[(0, 1), (0, 1)], budget);
    w.remove(0, 3);
    request(&mut w, 0, 0);
    request(&mut w, 0, 1);
    forward(&mut w, 1, 4);
    w.apply(&Choice::Refuse(1, 0));
    forward(&mut w, 1, 5);
    w.apply(&Choice::Disk(1, 0));
    forward(&mut w, 2, 4);
    w.apply(&Choice::Refuse(2, 0));
    w.settle();
}

/// The first one of two has no room for what it has sent on; the last one shows it and dies. What somebody has read stays.
#[test]
fn what_was_read_from_a_successor_that_died_is_not_taken_back() {
    let budget = Budget { crashes: 1, refusals: 2, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1), (0, 1)], budget);
    request(&mut w, 0, 0);
    request(&mut w, 0, 1);
    w.apply(&Choice::Refuse(0, 0));
    w.apply(&Choice::Disk(0, 0));
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::Tell(0));
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Activate);
    w.apply(&Choice::Tell(0));
    // Still no room.
    if w.choices().contains(&Choice::Refuse(0, 0)) {
        w.apply(&Choice::Refuse(0, 0));
    }
    w.settle();
}

/// The last one of two committed a write that the first one never stored, and both die. The first one takes over and brings the other up to
/// date, without that write; then it dies too. A retry of the write must not be answered by what the other remembers.
#[test]
fn a_write_that_was_lost_with_its_chain_is_not_remembered() {
    let budget = Budget { crashes: 3, pauses: 200, syncs: 200, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1)], budget);
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Crash(0, false));
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::Restart(0));
    w.apply(&Choice::Declare(0));
    w.apply(&Choice::TakeOver(0));
    calm(&mut w, |w| w.serve_again());
    assert_eq!(w.chain.head(), Some(0));
    w.apply(&Choice::Crash(0, false));
    w.apply(&Choice::Declare(0));
    w.settle();
}

/// Two writes side by side, both refused behind us, the later one first: what is taken back while the store drops the other one is dropped, too.
#[test]
fn what_is_taken_back_beside_another_is_dropped_from_the_store() {
    let budget = Budget { refusals: 2, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1), (0, 1), (0, 1)], budget);
    request(&mut w, 0, 0);
    request(&mut w, 0, 1);
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Disk(0, 0));
    forward(&mut w, 1, 1);
    forward(&mut w, 1, 2);
    // The later one is refused first, and the store is slow to drop it.
    w.apply(&Choice::Refuse(1, 1));
    arrives(&mut w, 0, |m| matches!(m, Msg::Answer { result: Err(_), .. }));
    w.apply(&Choice::Refuse(1, 0));
    arrives(&mut w, 0, |m| matches!(m, Msg::Answer { result: Err(_), .. }));
    calm(&mut w, |w| w.nodes[0].ops.is_empty());
    assert!(w.nodes[0].store.chunks.values().all(|c| c.pending.is_empty()), "{w:#?}");
    w.settle();
}

/// The second of two dies, and the first one goes on alone.
fn the_last_of_two_dies(w: &mut World) {
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::Tell(0));
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Activate);
    w.apply(&Choice::Tell(0));
}

/// What the last one of three has stored is read there when both before it have stored it, too, and said so.
#[test]
fn what_not_all_have_stored_is_not_shown() {
    let mut w = World::new(3, &[(0, 1)], Budget::default());
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    forward(&mut w, 2, 1);
    w.apply(&Choice::Disk(2, 0));
    assert!(!w.shows(2, 0), "the others have it in memory");
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Ask(2));
    assert!(!w.shows(2, 0), "the first one has not stored it");
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Ask(2));
    assert!(!w.shows(2, 0), "the second one does not know yet that the first one has");
    w.apply(&Choice::Ask(1));
    assert!(!w.shows(2, 0));
    w.apply(&Choice::Ask(2));
    assert!(w.shows(2, 0));
    w.settle();
}

/// All are killed while the first one still stores what the last one has; and it is the first one that begins again.
#[test]
fn what_was_read_is_there_after_all_were_killed() {
    let budget = Budget { crashes: 2, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1)], budget);
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Crash(0, false));
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::Restart(0));
    w.apply(&Choice::Declare(0));
    w.apply(&Choice::TakeOver(0));
    w.settle();
}

/// The same where the last one was taken out just before. That it serves alone counts for the other only when that version is active.
#[test]
fn what_a_member_reads_out_alone_waits_until_it_may_be_alone() {
    let budget = Budget { crashes: 2, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1)], budget);
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Crash(0, false));
    w.apply(&Choice::Declare(0));
    w.apply(&Choice::Tell(1));
    w.apply(&Choice::Disk(1, 0));
    assert!(!w.shows(1, 0), "the other one may still be called on to take over");
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::Restart(0));
    w.apply(&Choice::Declare(0));
    w.apply(&Choice::TakeOver(0));
    w.settle();
}

/// The first one of two cannot build the write on what it has, and the last one, which could, dies.
#[test]
fn what_was_read_is_not_what_another_could_not_build() {
    let budget = Budget { crashes: 1, refusals: 1, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1)], budget);
    w.refusal = Status::Corrupt;
    request(&mut w, 0, 0);
    w.apply(&Choice::Refuse(0, 0));
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    the_last_of_two_dies(&mut w);
    w.settle();
}

/// The first one of two has no room for the write, the last one dies, and the first one is restarted before there is room.
#[test]
fn what_was_read_is_not_what_another_had_no_room_for() {
    let budget = Budget { crashes: 2, refusals: 1, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1)], budget);
    request(&mut w, 0, 0);
    w.apply(&Choice::Refuse(0, 0));
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    the_last_of_two_dies(&mut w);
    w.apply(&Choice::Crash(0, false));
    w.settle();
}

/// A successor that shows nothing early is gone: what it has had, and there is no room for here, is refused and not waited for.
#[test]
fn nobody_waits_for_room_for_what_nobody_can_have_seen() {
    let refused_after = |asks: bool| {
        let budget = Budget { crashes: 1, refusals: 1, ..Budget::default() };
        let mut w = World::new(2, &[(0, 1)], budget);
        request(&mut w, 0, 0);
        w.apply(&Choice::Refuse(0, 0));
        forward(&mut w, 1, 1);
        if asks {
            w.apply(&Choice::Ask(1));
        }
        w.apply(&Choice::Disk(1, 0));
        the_last_of_two_dies(&mut w);
        let refused = w
            .msgs
            .keys()
            .any(|m| matches!(m, Msg::Response { client: 0, result: Err(Status::NoSpace), .. }));
        w.settle();
        refused
    };
    assert!(refused_after(true));
    assert!(!refused_after(false), "it may be one of an older release");
}

/// The last one of two is restarted and begins the chain again, and with that has forgotten that the first one had not stored what it has. Until the version in which it serves alone is active, the first
/// one may be called on instead.
#[test]
fn who_begins_again_shows_nothing_before_it_is_certain_that_it_does() {
    let budget = Budget { crashes: 2, ..Budget::default() };
    let mut w = World::new(2, &[(0, 1)], budget);
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Crash(0, false));
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Restart(0));
    w.apply(&Choice::Restart(1));
    w.apply(&Choice::Declare(0));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::TakeOver(1));
    w.apply(&Choice::Tell(1));
    w.apply(&Choice::Disk(1, 0));
    assert!(!w.shows(1, 0));
    w.apply(&Choice::Activate);
    w.apply(&Choice::Tell(1));
    assert!(w.shows(1, 0));
    w.settle();
}

/// The last one of two has no room for a write that the first one vouches for, and the number of that write is given again. The word that was on its way all the time is not of the one
/// that has the number now.
#[test]
fn a_late_word_is_not_of_another_write_of_the_same_number() {
    let budget = Budget { refusals: 1, ..Budget::default() };
    let mut w = World::new(2, &[(0, 2)], budget);
    w.slow_words = true;
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Ask(1));
    arrives(&mut w, 0, |m| matches!(m, Msg::Ask { .. }));
    w.apply(&Choice::Refuse(1, 0));
    w.apply(&Choice::Disk(1, 0));
    arrives(&mut w, 0, |m| matches!(m, Msg::Answer { .. }));
    w.apply(&Choice::Disk(0, 0));
    go(&mut w, "the client is answered", |c| {
        matches!(c, Choice::Deliver(Msg::Response { result: Err(Status::NoSpace), .. }))
    });
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    arrives(&mut w, 1, |m| matches!(m, Msg::Word { vouched, .. } if !vouched.is_empty()));
    assert!(!w.shows(1, 0), "the first one has the other write in memory");
    w.settle();
}

/// The first one of two has taken a write back before it is asked about it: that nothing of it is on its way is not that it is stored.
#[test]
fn nobody_vouches_for_what_was_taken_back() {
    let budget = Budget { refusals: 1, ..Budget::default() };
    let mut w = World::new(2, &[(0, 2)], budget);
    w.slow_words = true;
    request(&mut w, 0, 0);
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Ask(1));
    w.apply(&Choice::Refuse(1, 0));
    w.apply(&Choice::Disk(1, 0));
    arrives(&mut w, 0, |m| matches!(m, Msg::Answer { .. }));
    arrives(&mut w, 0, |m| matches!(m, Msg::Ask { .. }));
    let said = |m: &Msg| matches!(m, Msg::Word { vouched, .. } if !vouched.is_empty());
    assert!(!w.msgs.keys().any(said), "{w:#?}");
    w.settle();
}

/// The second of three waits for the word, the last one is of an older release and is brought up to date. It serves, and shows what the first one refused, before that one has
/// heard that it does; then it and the second one are gone. That it showed nothing while it was brought up to date says nothing of that.
#[test]
fn what_was_read_from_one_that_was_just_brought_up_to_date_is_not_taken_back() {
    let budget = Budget { crashes: 3, refusals: 2, pauses: 200, syncs: 200, ..Budget::default() };
    let mut w = World::new(3, &[(0, 1)], budget);
    w.nodes[2].older = true;
    w.apply(&Choice::Crash(2, false));
    w.apply(&Choice::Declare(2));
    w.apply(&Choice::Restart(2));
    calm(&mut w, |w| {
        w.chain.state(2) == PublicState::Syncing
            && w.chain.activated == w.chain.version
            && w.nodes.iter().all(|n| n.told == (w.chain.version, w.chain.activated))
            && w.nodes.iter().all(|n| n.ops.is_empty())
    });
    request(&mut w, 0, 0);
    w.apply(&Choice::Refuse(0, 0));
    forward(&mut w, 1, 1);
    w.apply(&Choice::Disk(1, 0));
    w.apply(&Choice::Ask(1));
    calm_at(&mut w, &[1, 2], |w| w.shows(2, 0) && !w.observed[&0].0.is_empty());
    assert_eq!(w.chain.state(2), PublicState::Serving);
    w.apply(&Choice::Crash(1, false));
    w.apply(&Choice::Crash(2, false));
    w.apply(&Choice::Declare(1));
    w.apply(&Choice::Declare(2));
    w.apply(&Choice::Tell(0));
    w.apply(&Choice::Disk(0, 0));
    w.apply(&Choice::Activate);
    w.apply(&Choice::Tell(0));
    // Still no room.
    if w.choices().contains(&Choice::Refuse(0, 0)) {
        w.apply(&Choice::Refuse(0, 0));
    }
    w.settle();
}

/// Two writes side by side: the last one has committed the first of them, and its head all of both. Whoever reads the last one then, and is told later, would read what is over.
#[test]
#[should_panic(
    expected = "linearizable: node 1 lets others read [0.0 ] of chunk 0 after [0.0 1.0 ] was served"
)]
fn a_stale_read_is_found_where_it_waits_for_a_word() {
    let mut w = World::new(2, &[(0, 1), (0, 1)], Budget::default());
    w.fault = Some(Fault::StaleRead);
    request(&mut w, 0, 0);
    request(&mut w, 0, 1);
    forward(&mut w, 1, 1);
    forward(&mut w, 1, 2);
    for _ in 0..2 {
        w.apply(&Choice::Disk(1, 0));
        w.apply(&Choice::Disk(0, 0));
        arrives(&mut w, 0, |m| matches!(m, Msg::Answer { .. }));
        assert!(!w.shows(1, 0), "nobody has vouched for anything");
    }
    calm_at(&mut w, &[0], |w| w.nodes[0].ops.is_empty());
}
