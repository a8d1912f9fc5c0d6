//! Leases of nodes, step by step.

use super::*;

const CONFIG: LeaseConfig = LeaseConfig {
    lease_ms: 1500,
    margin_ms: 200,
    stall_ms: 200,
    return_beats: 2,
    pauses: FallPauses { first_ms: 5_000, longest_ms: 60_000 },
};

/// The heartbeat of a storage node that hears its answers, and without which chains can do.
fn beat(sequence: u64) -> Beat {
    Beat {
        node: NodeId(1),
        incarnation: Incarnation(7),
        sequence,
        leaving: false,
        unanswered_ms: 0,
        storage: true,
        needed: false,
    }
}

/// Numbers of lives come from the wall clock. One that is set back further than a restart took must not keep the node out (it
/// did, for ever; simulator); a straggler of a life that is still there must count for nothing.
#[test]
fn a_life_with_a_lesser_number_counts_once_the_former_is_dead() {
    let config = LeaseConfig { stall_ms: 10_000, ..CONFIG };
    let beat = |life, sequence| Beat { incarnation: Incarnation(life), ..beat(sequence) };
    let mut book = NodeLeases::new(config, [], 0, 0);
    assert_eq!(book.beat(beat(9, 1), 2000), Verdict::Joined);
    assert_eq!(book.beat(beat(5, 1), 2100), Verdict::Stale);
    assert_eq!(book.tick(3800), [NodeId(1)]);
    assert_eq!(book.beat(beat(5, 1), 3900), Verdict::Joined);
    assert!(book.alive(NodeId(1)));
    book.settled();
    assert_eq!(book.beat(beat(5, 2), 4000), Verdict::Alive);
}

/// A primary that comes late to every look takes each silence for its own; it declared nobody dead, ever.
#[test]
fn a_primary_that_is_always_late_finds_the_dead_all_the_same() {
    const LATE_MS: u64 = 400;
    let config = CONFIG;
    let mut book = NodeLeases::new(config, [NodeId(1), NodeId(2)], 0, 0);
    let mut died = None;
    for look in 1..100 {
        book.beat(Beat { node: NodeId(2), ..beat(look) }, look * LATE_MS - 1);
        let dead = book.tick(look * LATE_MS);
        assert!(!dead.contains(&NodeId(2)), "it is heard before every look");
        if dead.contains(&NodeId(1)) {
            died = Some(look * LATE_MS);
        }
    }
    let limit = u64::from(LATE_LOOKS_MAX + 1) * LATE_MS + config.lease_ms + config.margin_ms;
    assert!(died.is_some_and(|at| at <= limit), "{died:?}, and not within {limit} ms");
}

/// While the engine was away, the second heartbeat of a node that was back got the lease that the first one waited for; the next
/// primary took the node for dead (simulator).
#[test]
fn who_is_back_gets_no_lease_before_that_is_settled() {
    let config = LeaseConfig { stall_ms: 10_000, ..CONFIG };
    let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
    assert_eq!(book.beat(beat(1), 100), Verdict::Alive, "known to the primary before");
    assert_eq!(book.tick(1900), [NodeId(1)]);
    assert_eq!(book.beat(beat(2), 2000), Verdict::Probation);
    assert_eq!(book.beat(beat(3), 2100), Verdict::Joined);
    assert_eq!(book.beat(beat(4), 2200), Verdict::Joined);
    book.settled();
    assert_eq!(book.beat(beat(5), 2300), Verdict::Alive);
}

/// A node that hears no answer stays alive for mgmtd by its heartbeats, and kept its chains for ever, without a lease.
#[test]
fn who_is_granted_leases_and_hears_of_none_is_deaf() {
    let config = CONFIG;
    let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
    let mut sequence = 0;
    let mut say = |now_ms: u64, unanswered_ms: u64, granted: bool| {
        sequence += 1;
        assert_ne!(book.beat(Beat { unanswered_ms, ..beat(sequence) }, now_ms), Verdict::Stale);
        if granted {
            book.granted(NodeId(1), now_ms);
        }
        book.deaf(NodeId(1))
    };
    // It was not answered for long, since nobody was there who could have.
    assert!(!say(100, 60_000, true));
    assert!(!say(1000, 60_900, true));
    assert!(!say(2000, 1600, true), "late answers are no reason");
    assert!(!say(3000, 2900, true));
    assert!(say(3300, 3200, true), "it hears nothing");
    assert!(say(3600, 1501, true), "a single answer on the edge does not make it well");
    assert!(!say(3900, 300, true));
    assert!(!say(5500, 3100, true), "granted for long, and silent itself for more than a lease");
    assert!(!say(6900, 4500, true), "after a gap all begins anew");
    assert!(!say(8300, 5900, true));
    assert!(say(8600, 6200, true));
}

/// Where the primary's own answers are late, each node that became deaf left its chains, until every chain had one replica.
#[test]
fn nobody_is_deaf_where_half_of_all_lack_answers() {
    let config = CONFIG;
    let mut book = NodeLeases::new(config, (1..=4).map(NodeId), 0, 0);
    let mut now_ms = 0;
    let mut deaf_of = |lacking: u64| {
        let mut deaf = 0;
        for step in 1..=50 {
            now_ms += 300;
            for node in (1..=4).map(NodeId) {
                let unanswered_ms = if node.0 <= lacking { step * 300 } else { 0 };
                let beat = Beat { node, unanswered_ms, ..beat(now_ms) };
                assert_ne!(book.beat(beat, now_ms), Verdict::Stale);
                book.granted(node, now_ms);
                deaf = deaf.max((1..=4).filter(|n| book.deaf(NodeId(*n))).count());
            }
        }
        deaf
    };
    assert_eq!((deaf_of(4), deaf_of(2), deaf_of(0), deaf_of(1)), (0, 0, 0, 1));
}

/// A primary that answered nothing for long, for the engine was away, took who waited for deaf.
#[test]
fn who_was_granted_nothing_is_not_deaf() {
    let config = CONFIG;
    let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
    for step in 1..40 {
        let unanswered_ms = if step > 20 { (step - 20) * 300 } else { 0 };
        let node = NodeId(1);
        book.beat(Beat { unanswered_ms, ..beat(step) }, step * 300);
        if step <= 20 {
            book.granted(node, step * 300)
        } else {
            book.withheld(node)
        }
        assert!(!book.deaf(node), "{step}");
    }
}

/// A node that hears its answers in `heard` and is silent in between, as one that is stopped and continued: how often it came back.
fn returns(heard: impl Fn(u64) -> bool, needed: bool, until_ms: u64) -> u32 {
    let mut book = NodeLeases::new(CONFIG, [NodeId(1)], 0, 0);
    let (mut sequence, mut sent_ms, mut back) = (0, 0, 0);
    for now_ms in (0..until_ms).step_by(50) {
        if heard(now_ms) && now_ms >= sent_ms + 300 {
            let unanswered_ms = now_ms - sent_ms;
            (sequence, sent_ms) = (sequence + 1, now_ms);
            let node = NodeId(1);
            let was = book.alive(node);
            book.beat(Beat { unanswered_ms, needed, ..beat(sequence) }, now_ms);
            book.settled();
            book.granted(node, now_ms);
            back += u32::from(!was && book.alive(node));
        }
        book.tick(now_ms);
    }
    back
}

/// A node that is stopped and continued again and again, for longer than a lease: it left its chains and was let in again each time.
#[test]
fn who_falls_again_and_again_must_be_well_for_longer_each_time() {
    let pulses = |now_ms: u64| now_ms % 4000 < 2000;
    assert_eq!(returns(pulses, false, 300_000), 1, "never well for long enough again");
    assert!(returns(pulses, true, 300_000) > 70, "nobody else is left");
    let short = |now_ms: u64| now_ms % 600 < 300;
    assert_eq!(returns(short, false, 300_000), 0, "it never fell");
    // Well for ten seconds each time: it is back at first, then not any more.
    let long = |now_ms: u64| now_ms % 12_000 < 10_000;
    assert_eq!(returns(long, false, 300_000), 2);
    let well = |now_ms: u64| now_ms % 64_000 < 62_000;
    assert_eq!(returns(well, false, 640_000), 9, "each time was long ago when the next came");
}

/// A cable that all storage nodes share blinked again and again: who came back first was needed, and the others were kept out, so that each chain had one replica.
#[test]
fn nobody_is_kept_out_for_what_all_have_in_common() {
    let nodes = || (1..=4).map(NodeId);
    let mut book = NodeLeases::new(CONFIG, nodes(), 0, 0);
    let mut sequence = 0;
    for now_ms in (0..200_000).step_by(50) {
        let cut = now_ms % 10_000 < 2_500;
        for node in nodes().filter(|_| !cut && now_ms % 300 == 0) {
            sequence += 1;
            book.beat(Beat { node, ..beat(sequence) }, now_ms);
            book.settled();
            book.granted(node, now_ms);
        }
        book.tick(now_ms);
        // Two heartbeats after it is over.
        let back = now_ms % 10_000 > 3_300;
        assert!(!back || nodes().all(|n| book.alive(n)), "at {now_ms} ms");
    }
}

/// The last of a chain that did not hear for the second time, and hears again, was left out for its pause: it lost the chain to the next one that came back.
#[test]
fn who_is_needed_is_not_deaf_for_longer_than_it_does_not_hear() {
    for needed in [false, true] {
        let mut book = NodeLeases::new(CONFIG, [NodeId(1)], 0, 0);
        let (mut sequence, mut late, mut times) = (0, None, 0);
        for now_ms in (0..40_000).step_by(300) {
            sequence += 1;
            let node = NodeId(1);
            // Twice it hears nothing for five seconds.
            let unanswered_ms = match now_ms % 12_000 {
                since @ 6_000..11_000 => since - 6_000,
                _ => 0,
            };
            let was = book.deaf(node);
            book.beat(Beat { unanswered_ms, needed, ..beat(sequence) }, now_ms);
            book.settled();
            book.granted(node, now_ms);
            times += u32::from(!was && book.deaf(node));
            if book.deaf(node) && unanswered_ms == 0 {
                late = Some(now_ms);
            }
        }
        assert!(times >= 2, "it was deaf {times} times");
        assert_eq!(late.is_some(), !needed, "deaf while it hears: {late:?}");
    }
}

/// A copy with the id of a node that is kept out, though it lives, is refused as ever.
#[test]
fn who_is_kept_out_is_heard_all_the_same() {
    let mut book = NodeLeases::new(CONFIG, [NodeId(1)], 0, 0);
    let mut sequence = 0;
    let mut heard = |book: &mut NodeLeases, now_ms: u64| {
        sequence += 1;
        book.beat(beat(sequence), now_ms);
    };
    let mut now_ms = 0;
    let mut passes = |book: &mut NodeLeases, ms: u64, beats: bool| {
        for step in 0..ms / 50 {
            if beats && step % 6 == 0 {
                heard(book, now_ms);
            }
            now_ms += 50;
            book.tick(now_ms);
        }
    };
    for _ in 0..3 {
        passes(&mut book, 1000, true);
        passes(&mut book, 4000, false);
        assert!(!book.is_heard(NodeId(1)));
    }
    passes(&mut book, 1000, true);
    assert!(!book.alive(NodeId(1)) && book.is_heard(NodeId(1)));
    assert_eq!(book.kept_out_ms(NodeId(1)), book.pause_ms(NodeId(1)));
    assert!(book.pause_ms(NodeId(1)) > 1000);
    passes(&mut book, 4000, false);
    assert!(!book.is_heard(NodeId(1)), "it has ended");
    assert_eq!(book.kept_out_ms(NodeId(1)), 0);
}

/// A node that was declared dead came back while no answer reached it in time, and was out again soon.
#[test]
fn who_died_and_hears_no_answers_does_not_come_back() {
    let config = LeaseConfig { stall_ms: 100_000, ..CONFIG };
    let mut book = NodeLeases::new(config, [NodeId(1)], 0, 0);
    let mut beat = |sequence: u64, now_ms: u64, unanswered_ms: u64, needed: bool| {
        book.tick(now_ms);
        book.beat(Beat { unanswered_ms, needed, ..beat(sequence) }, now_ms)
    };
    assert_eq!(beat(1, 100, 0, false), Verdict::Alive);
    for n in 0..50 {
        assert_eq!(beat(2 + n, 4000 + n * 300, 4000 + n * 300, false), Verdict::Probation);
    }
    assert_eq!(beat(90, 19_000, 19_000, true), Verdict::Joined, "nobody else is left");
    assert_eq!(beat(91, 30_000, 30_000, false), Verdict::Probation, "dead again");
    assert_eq!(beat(92, 30_300, 300, false), Verdict::Probation, "the second time");
    assert_eq!(beat(93, 35_200, 300, false), Verdict::Probation, "after a gap it begins anew");
    for n in 0..16 {
        assert_eq!(beat(94 + n, 35_500 + n * 300, 300, false), Verdict::Probation);
    }
    assert_eq!(beat(120, 40_300, 300, false), Verdict::Joined);
}

/// Of two books one forgets in each step what is long ago, as model checkers have it: nobody can tell them apart.
#[test]
fn what_is_long_ago_makes_no_difference() {
    let pauses = FallPauses { first_ms: 1, longest_ms: 4 };
    let config = LeaseConfig { lease_ms: 2, margin_ms: 1, stall_ms: 2, return_beats: 2, pauses };
    let nodes = [NodeId(1), NodeId(2)];
    let (mut deaf, mut dead, mut kept_out) = (0, 0, 0);
    for seed in 1..=300_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.wrapping_mul(0x2545_F491_4F6C_DD1D) % n
        };
        let mut books = [(); 2].map(|()| NodeLeases::new(config, nodes, 0, 0));
        // Silent, heard, or heard and answered, each for a while.
        let (mut ways, mut in_time) = ([2, 2], [0, 0]);
        for now_ms in 0..300 {
            books[1].forget_long_ago(u32::MAX, now_ms);
            for (i, node) in nodes.into_iter().enumerate() {
                if below(5) == 0 {
                    ways[i] = below(3);
                }
                if ways[i] == 0 {
                    continue;
                }
                let unanswered_ms = now_ms - in_time[i];
                let beat = Beat { node, unanswered_ms, needed: below(4) == 0, ..beat(now_ms + 1) };
                let [one, other] = books.each_mut().map(|b| {
                    let verdict = b.beat(beat, now_ms);
                    if b.alive(node) {
                        b.settled();
                        b.granted(node, now_ms);
                    }
                    (verdict, b.alive(node), b.deaf(node), b.is_heard(node), b.pause_ms(node))
                });
                assert_eq!(one, other, "seed {seed}, {node} at {now_ms} ms");
                deaf += u32::from(one.2);
                kept_out += u32::from(one.0 == Verdict::Probation && one.3);
                if ways[i] == 2 {
                    in_time[i] = now_ms;
                }
            }
            let [one, other] = books.each_mut().map(|b| b.tick(now_ms));
            assert_eq!(one, other, "seed {seed} at {now_ms} ms");
            dead += one.len();
        }
    }
    assert!(deaf > 100 && dead > 100 && kept_out > 100, "{deaf} {dead} {kept_out}");
}
