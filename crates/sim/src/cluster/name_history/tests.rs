use super::*;
use proptest::prelude::*;

/// Names in these histories.
const NAMES: usize = 3;

fn found(inode: u64) -> Answer {
    Answer::Found(vec![(inode != 0).then_some(inode)])
}

/// Histories in words: what was asked, from when to when, and what was answered.
fn history(ops: &[(u64, u64, Asked, Option<Answer>)]) -> NameHistory {
    let mut h = NameHistory::new(NAMES);
    for (begin, end, asked, answer) in ops {
        let op = h.begin(asked.clone(), *begin);
        if let Some(answer) = answer {
            h.end(op, answer.clone(), *end);
        }
    }
    h
}

fn judge(ops: &[(u64, u64, Asked, Option<Answer>)]) -> bool {
    history(ops).check().is_ok()
}

use Answer::{Done, Made, Refused};
use Asked::{List, Lookup, Make, Rename, Unlink};

#[test]
fn what_one_client_does_after_the_other() {
    let good = [
        (1, 2, Make(0), Some(Made(7))),
        (3, 4, Rename(0, 1), Some(Done)),
        (5, 6, Lookup(0), Some(found(0))),
        (7, 8, List(vec![0, 1]), Some(Answer::Found(vec![None, Some(7)]))),
        (9, 10, Unlink(0), Some(Refused)),
        (11, 12, Make(1), Some(Refused)),
        (13, 14, Unlink(1), Some(Done)),
    ];
    assert!(judge(&good));
    let wrong = |at: usize, answer: Answer| {
        let mut ops = good.clone();
        ops[at].3 = Some(answer);
        assert!(!judge(&ops), "{ops:?}");
    };
    wrong(1, Refused);
    wrong(2, found(7));
    wrong(3, Answer::Found(vec![Some(7), Some(7)]));
    wrong(3, Answer::Found(vec![None, None]));
    wrong(4, Done);
    wrong(5, Made(8));
    wrong(6, Refused);
}

#[test]
fn of_two_at_once_one_wins() {
    let both = |first: Answer, second: Answer| {
        judge(&[(1, 10, Make(0), Some(first)), (2, 9, Make(0), Some(second))])
    };
    assert!(both(Made(1), Refused) && both(Refused, Made(1)));
    assert!(!both(Made(1), Made(2)) && !both(Refused, Refused));
    // A rename is one step: nobody sees both names, or none.
    let seen = |all: Vec<Option<u64>>| {
        judge(&[
            (1, 2, Make(0), Some(Made(1))),
            (3, 10, Rename(0, 1), Some(Done)),
            (4, 9, List(vec![0, 1]), Some(Answer::Found(all))),
        ])
    };
    assert!(seen(vec![Some(1), None]) && seen(vec![None, Some(1)]));
    assert!(!seen(vec![Some(1), Some(1)]) && !seen(vec![None, None]));
}

#[test]
fn nobody_sees_what_was_before_after_somebody_has_seen_what_is() {
    let reads = |first: u64, second: u64| {
        judge(&[
            (1, 2, Make(0), Some(Made(1))),
            (3, 20, Unlink(0), Some(Done)),
            (4, 5, Lookup(0), Some(found(first))),
            (6, 7, Lookup(0), Some(found(second))),
        ])
    };
    assert!(reads(1, 1) && reads(1, 0) && reads(0, 0));
    assert!(!reads(0, 1));
}

#[test]
fn what_was_never_answered_may_have_been_done_once() {
    let made = |seen: &[u64]| {
        let mut ops = vec![(1, NEVER, Make(0), None)];
        ops.extend(
            seen.iter().zip(1u64..).map(|(s, i)| (10 * i, 10 * i + 1, Lookup(0), Some(found(*s)))),
        );
        judge(&ops)
    };
    assert!(made(&[0, 0]) && made(&[0, 5, 5]) && made(&[5]));
    assert!(!made(&[5, 0]) && !made(&[5, 6]));
    // Also where nobody has seen it: a name is there, or is not, and can be removed.
    assert!(judge(&[(1, NEVER, Make(0), None), (5, 6, Make(0), Some(Refused))]));
    assert!(judge(&[(1, NEVER, Make(0), None), (5, 6, Unlink(0), Some(Done))]));
    let twice = [(5, 6, Unlink(0), Some(Done)), (7, 8, Unlink(0), Some(Done))];
    assert!(!judge(&[&[(1, NEVER, Make(0), None)][..], &twice[..]].concat()));
    // Not before it was asked for.
    assert!(!judge(&[(5, 6, Unlink(0), Some(Done)), (7, NEVER, Make(0), None)]));
}

/// What was seen before it was on the disk of the engine's host is gone with its power, and comes again.
#[test]
fn what_was_seen_unacknowledged_may_go_and_come_again() {
    let run = |acknowledged: bool, loses: bool| {
        let mut h = history(&[(1, 2, Make(0), Some(Made(1)))]);
        let unlink = h.begin(Unlink(0), 3);
        let look = h.begin(Lookup(0), 4);
        h.end(look, found(0), 5);
        let spans = h.begin(Lookup(0), 6);
        if acknowledged {
            h.end(unlink, Done, 7);
        }
        if loses {
            h.lose_unacknowledged(10).expect("well until now");
        }
        h.end(spans, found(0), 11);
        let again = h.begin(Lookup(0), 12);
        h.end(again, found(1), 13);
        if !acknowledged {
            h.end(unlink, Done, 20);
        }
        h.check()
    };
    run(false, true).expect("linearizable");
    run(false, false).expect_err("nothing was lost");
    run(true, true).expect_err("it was acknowledged");
}

/// Tries every order of a few operations, as a reader would.
fn search(ops: &[Op], done: u32, state: &[u64]) -> bool {
    let left = || (0..ops.len()).filter(|i| done & 1 << i == 0);
    if left().all(|i| ops[i].end == NEVER) {
        return true;
    }
    let first_end = left().map(|i| ops[i].end).min().unwrap_or(NEVER);
    left().any(|i| {
        let o = &ops[i];
        if o.begin > first_end {
            return false;
        }
        let mut next = state.to_vec();
        let fits = match (&o.asked, &o.answer) {
            (Make(n), Some(Made(inode))) => std::mem::replace(&mut next[*n], *inode) == 0,
            (Make(n), Some(_)) => state[*n] != 0,
            (Unlink(n), Some(Done) | None) => std::mem::take(&mut next[*n]) != 0,
            (Rename(from, to), Some(Done) | None) => {
                let inode = std::mem::take(&mut next[*from]);
                next[*to] = inode;
                inode != 0
            }
            (Unlink(n) | Rename(n, _), Some(_)) => state[*n] == 0,
            (Lookup(n), Some(Answer::Found(f))) => f[0].unwrap_or(0) == state[*n],
            _ => false,
        };
        fits && search(ops, done | 1 << i, &next)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn agrees_with_the_search_of_all_orders(
        spans in prop::collection::vec((0u64..12, 1u64..6, 0usize..5, 0..NAMES, 0..NAMES, any::<bool>(), 0u64..4), 1..7),
    ) {
        let mut h = NameHistory::new(NAMES);
        for (i, (begin, len, kind, name, other, well, which)) in spans.iter().enumerate() {
            let begin = 1 + begin * 40 + i as u64 * 2;
            let asked = match kind {
                0 => Make(*name),
                1 => Unlink(*name),
                2 => Rename(*name, *other),
                _ => Lookup(*name),
            };
            let answer = match (kind, *well) {
                (0, true) => Made(i as u64 + 1),
                (1 | 2, true) => Done,
                (0..3, false) => Refused,
                _ => found(*which),
            };
            let op = h.begin(asked, begin);
            // Of makes without an answer the inode would be anybody's guess.
            if *kind != 2 || *which != 3 {
                h.end(op, answer, begin + len * 40 + 1);
            }
        }
        // Inodes that nobody has made are seen in vain.
        let want = search(&h.ops, 0, &[0; NAMES]);
        prop_assert_eq!(h.check().is_ok(), want, "{:?}", h);
    }
}
