use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;
const LIFE: Duration = Duration::from_secs(1);
const D: InodeId = InodeId(7);
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
fn at(ms: u64) -> Instant {
    Instant(0) + MS(ms)
}
fn n() -> Name {
    Name::from(b"n".to_vec())
}
/// What somebody has seen of the name when the directory had been changed so often.
fn seen(name: &Name, version: impl Into<Option<u64>>) -> Seen<'_> {
    Seen { dir: D, name: Some(name), version: version.into() }
}
fn others(f: &Finishing<&'static str>, by: ClientId) -> Vec<Rc<Unfinished<&'static str>>> {
    f.others(&seen(&n(), None), by)
}
fn next(u: &Unfinished<&'static str>, version: impl Into<Option<u64>>, ms: u64) -> Next {
    u.next(&seen(&n(), version), at(ms))
}
fn begin(f: &Finishing<&'static str>, who: ClientId, request: u64, ms: u64) -> Begun<&'static str> {
    let begun = noted(f, who, request, ms);
    begun.sent(at(ms));
    begun
}
fn answered(f: &Finishing<&'static str>, who: ClientId, request: u64, ms: u64) {
    begin(f, who, request, ms).committed(|_| None, false);
}
fn noted(f: &Finishing<&'static str>, who: ClientId, request: u64, ms: u64) -> Begun<&'static str> {
    f.begin((who, &"conn"), RequestId(request.into()), (&[(D, &n())], true), (at(ms), LIFE))
}

/// One user's renames that nobody may do, each of them long in work, kept a name that all others looked up waiting.
#[test]
fn nobody_waits_for_what_cannot_have_been_committed() {
    let f = Finishing::default();
    let change = noted(&f, A, 1, 0);
    let u = others(&f, B).remove(0);
    assert_eq!(next(&u, None, 1), Next::Nothing, "no commit was sent");
    assert!(f.is_changing(D, A), "its client gets no name by which it would go after it");
    for round in 1..4 {
        change.sent(at(4000 * round));
        assert_eq!(next(&u, None, 4000 * round), Next::Wait);
        assert_eq!(u.look_again(at(4000 * round)), at(4000 * round) + LIFE, "leases since");
        let woken = u.news();
        change.came_to_nothing();
        assert!(is_over(woken), "who waits looks again");
        assert_eq!(next(&u, None, 4000 * round), Next::Nothing, "a conflict, say");
    }
    // One of which no answer came: whatever becomes of further ones, it may have been committed.
    change.sent(at(20_000));
    change.sent(at(21_000));
    change.came_to_nothing();
    assert_eq!(next(&u, None, 21_000), Next::Wait);
    assert_eq!(u.until(), at(20_000) + LIFE, "since the first one nobody gets any");
    drop(change);
    assert_eq!(next(&u, None, 20_999), Next::Wait, "nobody knows what it has done");
    f.went_on(D, A, RequestId(9));
    assert_eq!(next(&u, None, 20_999), Next::Wait, "nor who has kept what");
    assert_eq!(next(&u, None, 21_000), Next::Nothing);
    // Of one that came to nothing all is known.
    let change = noted(&f, A, 2, 22_000);
    change.sent(at(22_000));
    change.came_to_nothing();
    drop(change);
    assert!(others(&f, B).is_empty(), "and its client need not be told anything");
}
fn is_over(news: impl Future<Output = ()>) -> bool {
    let mut news = std::pin::pin!(news);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    news.as_mut().poll(&mut cx).is_ready()
}

#[test]
fn others_wait_until_it_is_answered_and_one_of_them_tells_its_client() {
    let f = Finishing::default();
    let begun = begin(&f, A, 1, 0);
    assert!(
        others(&f, A).is_empty()
            && f.others(&Seen { dir: InodeId(8), ..seen(&n(), None) }, B).is_empty()
    );
    let seen = others(&f, B);
    assert_eq!(seen.len(), 1);
    assert_eq!(next(&seen[0], None, 1), Next::Wait);
    begun.committed(|_| Some(5), false);
    assert_eq!(next(&seen[0], None, 2), Next::Wait);
    drop(begun);
    assert_eq!(next(&seen[0], None, 3), Next::Tell);
    assert_eq!(next(&seen[0], None, 3), Next::Wait, "once");
    seen[0].finish();
    assert_eq!(next(&seen[0], None, 4), Next::Nothing);
    assert!(others(&f, B).is_empty());
}

#[test]
fn nobody_waits_for_what_came_later() {
    let f = Finishing::default();
    let (a, b) = (begin(&f, A, 1, 0), begin(&f, B, 2, 1));
    let (of_a, of_b) = (&others(&f, B)[0], &others(&f, A)[0]);
    assert_eq!(next(of_b, 4, 2), Next::Wait, "it may have been before ours");
    a.committed(|_| Some(5), false);
    b.committed(|_| Some(6), false);
    assert_eq!(next(of_b, 4, 2), Next::Nothing, "it was not");
    assert_eq!(next(of_a, 5, 2), Next::Wait);
    // Two that did not see each other.
    assert_eq!(next(of_a, 4, 2), Next::Nothing);
}

#[test]
fn the_next_change_of_a_client_shows_that_the_last_one_is_finished() {
    let f = Finishing::default();
    answered(&f, A, 1, 0);
    let first = others(&f, B).remove(0);
    f.went_on(D, A, RequestId(1));
    assert_ne!(next(&first, None, 1), Next::Nothing, "the same request, again");
    f.went_on(D, A, RequestId(2));
    assert_eq!(next(&first, None, 1), Next::Nothing);
    let second = begin(&f, A, 2, 1);
    assert_eq!(others(&f, B).len(), 1);
    second.committed(|_| None, false);
    drop(second);
    f.went_on(D, A, RequestId(3));
    assert!(others(&f, B).is_empty());
}

#[test]
fn only_changes_of_what_was_seen_are_waited_for() {
    let f = Finishing::default();
    let begun = begin(&f, A, 1, 0);
    let (other, all) = (Name::from(b"m".to_vec()), Seen { name: None, ..seen(&n(), None) });
    assert!(f.others(&seen(&other, None), B).is_empty());
    let u = f.others(&all, B).remove(0);
    assert_eq!(u.next(&all, at(1)), Next::Wait, "who knows what the listing has seen");
    begun.committed(|_| Some(5), true);
    assert_eq!(u.next(&all, at(1)), Next::Nothing, "its kernel may be waited for");
    assert_eq!(u.next(&seen(&n(), None), at(1)), Next::Wait);
    drop(begun);
    assert_eq!(u.next(&all, at(1)), Next::Tell);
    let begun = begin(&f, A, 2, 0);
    begun.committed(|_| Some(6), false);
    assert_eq!(f.others(&all, B).remove(1).next(&all, at(1)), Next::Wait);
}

#[test]
fn those_who_fail_of_each_other_do_not_wait_for_each_other() {
    let f = Finishing::default();
    let (a, b) = (begin(&f, A, 1, 0), begin(&f, B, 2, 0));
    // One of them failed for good, of the other one it is not known.
    a.finish();
    drop(b);
    assert!(others(&f, B).is_empty());
    let of_b = others(&f, A).remove(0);
    assert_eq!(next(&of_b, None, 1), Next::Wait);
    assert_eq!(next(&of_b, None, 1000), Next::Nothing);
}

#[test]
fn what_is_in_work_stays_whatever_its_client_does_meanwhile() {
    let f = Finishing::default();
    let begun = begin(&f, A, 1, 0);
    f.went_on(D, A, RequestId(2));
    assert_eq!(next(&others(&f, B)[0], None, 1), Next::Wait);
    begun.committed(|_| None, false);
    f.went_on(D, A, RequestId(3));
    assert_eq!(next(&others(&f, B)[0], None, 1), Next::Wait);
    drop(begun);
    f.went_on(D, A, RequestId(4));
    assert!(others(&f, B).is_empty());
}

#[test]
fn without_leases_it_is_finished() {
    let f = Finishing::default();
    let begun = begin(&f, A, 1, 0);
    assert!(f.is_changing(D, A) && !f.is_changing(D, B));
    let seen = others(&f, B).remove(0);
    begun.committed(|_| None, false);
    assert!(!f.is_changing(D, A));
    begun.keeps_nothing();
    assert_eq!(next(&seen, None, 1), Next::Wait, "others may keep something");
    drop(begun);
    assert_eq!(next(&seen, None, 1), Next::Nothing);
    let long = begin(&f, A, 2, 2);
    let seen = others(&f, B).remove(0);
    assert_eq!(next(&seen, None, 2000), Next::Wait, "who knows what it has done");
    assert_eq!(seen.look_again(at(2000)), at(1002) + BEGUN_MAX);
    assert_eq!(next(&seen, None, 11_002), Next::Nothing, "not for ever");
    long.committed(|_| None, false);
    assert_eq!(next(&seen, None, 2000), Next::Nothing, "nothing from before it is leased");
}

#[test]
fn what_has_ended_is_forgotten_and_what_is_in_work_is_not() {
    let f = Finishing::default();
    let in_work = begin(&f, A, 1, 0);
    for i in 2..100 {
        f.went_on(D, B, RequestId(i.into()));
        answered(&f, B, i, 10 * i);
    }
    let sizes = || (f.table.borrow().dirs[&D].changes.len(), f.table.borrow().looks.len());
    assert_eq!(sizes(), (2, 1));
    f.went_on(D, B, RequestId(100));
    answered(&f, B, 100, 2500);
    assert_eq!(sizes(), (2, 1), "the one in work, and the last one");
    drop(in_work);
    answered(&f, B, 101, 5000);
    assert_eq!(sizes(), (1, 1));
}

#[test]
fn each_busy_directory_is_looked_at_once_in_the_time_of_a_lease() {
    const DIRS: u64 = 50;
    let f = Finishing::default();
    let name = n();
    for i in 0..20 * DIRS {
        let (dir, request) = (InodeId(i % DIRS), RequestId(u128::from(i)));
        // Each directory is changed some four times in the time of a lease.
        let now = at(5 * i);
        f.went_on(dir, A, request);
        let begun = f.begin((A, &"conn"), request, (&[(dir, &name)], true), (now, LIFE));
        begun.sent(now);
        begun.committed(|_| None, false);
        drop(begun);
        assert!(f.table.borrow().looks.len() as u64 <= DIRS, "after {i} changes");
    }
    answered(&f, A, 1, 1_000_000);
    answered(&f, A, 2, 1_002_000);
    let left = (f.table.borrow().dirs.len(), f.table.borrow().looks.len());
    assert_eq!(left, (1, 1), "those that rest are forgotten");
}
