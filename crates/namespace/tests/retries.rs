//! Retries of requests, by services whose clocks differ; and what is refused with the right error.

use crate::world::{NEXT, V, World, layout};
use glowfs_kv::{Engine, Key, RangePage, Transaction, Value, Version, run_transaction};
use glowfs_namespace::{self as ns, Context, Env};
use glowfs_rt::{BoxFuture, Rt, real};
use glowfs_types::wire::kv::Commit;
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

const ROOT: InodeId = InodeId(1);
/// How long requests are remembered, as [`Env`] says if nobody else does, and how much clocks may differ.
const KEEP: i64 = 75;
const SKEW: i64 = 30;

fn who() -> Caller {
    Caller { client: ClientId(1), volume: V, ..Caller::default() }
}

fn name(n: &str) -> Name {
    n.as_bytes().to_vec().into()
}

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q) = (&$w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &q.caller, w), &q).await)
            .await
    }};
}

async fn world(rt: &Rt) -> World {
    let w = World::new(rt, 0).await;
    assert!(w.id.get() < NEXT && layout(0).stripe > 0 && w.request_keep_secs() == KEEP as u64);
    w
}

async fn sweep(w: &World, limit: u32) {
    let mut after = None;
    loop {
        let step = async |tx: &Transaction| {
            ns::sweep_requests(tx, V, (w.now().secs, KEEP as u64), after.as_ref(), limit).await
        };
        after = run_transaction(&w.rt, &w.engine, step).await.expect("swept");
        if after.is_none() {
            return;
        }
    }
}

/// The first copy was made by a service whose clock was behind, wherever in a bucket of time that was, and its answer was lost; the next one is
/// ahead, and a third one, still further ahead of the first, forgets what is old.
#[test]
fn a_retry_is_known_whatever_the_clocks_say() {
    real::run(|rt| async move {
        for at in 0..KEEP {
            for (skew, later) in [(0, 74), (SKEW, 46), (SKEW, 74), (-SKEW, 20), (-SKEW, 74)] {
                let w = world(&rt).await;
                let began = 1_000_000 * KEEP + at;
                w.clock.set(began);
                let make = || Make {
                    caller: who(),
                    request: RequestId(7),
                    parent: ROOT,
                    name: name("f"),
                    mode: 0o644,
                    exclusive: true,
                    ..Make::default()
                };
                let first = op!(w, ns::make, make()).expect("made").attr.inode;
                // Of the three clocks no two differ by more than they may.
                w.clock.set(began + later + skew.max(0));
                sweep(&w, 1).await;
                w.clock.set(began + later + skew);
                let again = op!(w, ns::make, make()).map(|m| m.attr.inode);
                assert_eq!(again.expect("the same again"), first, "{at} {skew} {later}");
            }
        }
    });
}

#[test]
fn old_requests_are_forgotten_in_steps() {
    real::run(|rt| async move {
        for limit in [1, 2, 3, 100] {
            let w = world(&rt).await;
            for n in 1..8u128 {
                let file = name(&format!("f{n}"));
                let request = RequestId(n);
                let make =
                    Make { caller: who(), request, parent: ROOT, name: file, ..Make::default() };
                op!(w, ns::make, make).expect("made");
            }
            w.clock.set(w.clock.get() + 4 * KEEP);
            sweep(&w, limit).await;
            let again = Make {
                caller: who(),
                request: RequestId(7),
                parent: ROOT,
                name: name("f7"),
                exclusive: true,
                ..Make::default()
            };
            assert_eq!(op!(w, ns::make, again).expect_err("not known").status, Status::Exists);
        }
    });
}

/// The refusal was remembered with one mark and compared with another: the retry got EPERM.
#[test]
fn a_refused_removal_of_an_attribute_is_refused_alike_again() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let q = OfXattr {
            caller: who(),
            request: RequestId(5),
            inode: ROOT,
            name: name("glowfs.trash"),
        };
        let refused = op!(w, ns::removexattr, q.clone()).expect_err("there is none");
        assert_eq!(refused.status, Status::NoAttribute);
        let remember = async |tx: &Transaction| {
            ns::refuse(&Context::new(tx, &q.caller, &w), &q, refused.status).await
        };
        assert!(run_transaction(&w.rt, &w.engine, remember).await.expect("remembered"));
        let again = op!(w, ns::removexattr, q.clone()).expect_err("as before");
        assert_eq!(again.status, Status::NoAttribute, "{again}");
        let set = SetXattr {
            caller: who(),
            request: RequestId(6),
            inode: ROOT,
            name: name("glowfs.trash"),
            value: b"7d".to_vec(),
            flags: 0,
        };
        op!(w, ns::setxattr, set).expect("set");
        let q = OfXattr { request: RequestId(8), ..q };
        for _ in 0..2 {
            op!(w, ns::removexattr, q.clone()).expect("removed, or known to be");
        }
    });
}

#[test]
fn times_that_are_none_are_refused() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let bad = Time { secs: 5, nanos: 1_000_000_000 };
        let none = || SetAttr { caller: who(), inode: ROOT, ..SetAttr::default() };
        for q in [
            SetAttr { atime: Some(SetTime::At(bad)), ..none() },
            SetAttr { mtime: Some(SetTime::At(bad)), ..none() },
            SetAttr { ctime: Some(bad), ..none() },
        ] {
            let e = op!(w, ns::setattr, q).expect_err("no time");
            assert_eq!(e.status, Status::InvalidArgument);
        }
    });
}

/// The record of the locks got too long for the engine before there were as many as are allowed: E2BIG, which no program expects.
#[test]
fn locks_beyond_what_fits_are_refused_as_such() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let caller = Caller { client: ClientId(u128::MAX), ..who() };
        let q = Make { caller: caller.clone(), parent: ROOT, name: name("f"), ..Make::default() };
        let inode = op!(w, ns::make, q).expect("made").attr.inode;
        let mut refused = None;
        for n in 0..3000u64 {
            let start = u64::MAX / 2 + n * 2;
            let wish = LockWish::Exclusive;
            let (owner, pid) = (u64::MAX, u32::MAX);
            let caller = caller.clone();
            let q = Lock { caller, inode, owner, pid, wish, start, end: start, ..Lock::default() };
            match op!(w, ns::lock, q) {
                Ok(locked) => assert!(locked.holder.is_none()),
                Err(e) => {
                    refused = Some((n, e));
                    break;
                }
            }
        }
        let (n, e) = refused.expect("there is a bound");
        assert!(n > 1000, "{n}");
        assert_eq!(e.status, Status::NoLocks, "{e}");
    });
}

/// The answer was lost, the client was given up, and its next life asked again: that was told of a lock which somebody else had by then, or nobody.
#[test]
fn a_lock_that_is_gone_is_not_granted_to_a_retry() {
    real::run(|rt| async move {
        for whole in [true, false] {
            let w = world(&rt).await;
            let q = Make { caller: who(), parent: ROOT, name: name("f"), ..Make::default() };
            let inode = op!(w, ns::make, q).expect("made").attr.inode;
            let ask = |client: u128, request: u128, wish| {
                let caller = Caller { client: ClientId(client), ..who() };
                let (request, owner) = (RequestId(request), 5);
                let (start, end) = if whole { (0, u64::MAX) } else { (3, 8) };
                Lock { caller, request, inode, owner, whole, wish, start, end, ..Lock::default() }
            };
            let refused = async |q: Lock| op!(w, ns::lock, q).expect("answered").holder.is_some();
            let ends = async |client: u128| {
                let caller = who();
                let end = async |tx: &Transaction| {
                    let (cx, none) = (&Context::new(tx, &caller, &w), BTreeSet::new());
                    ns::end_locks(cx, ClientId(client), &none, None, 9).await
                };
                run_transaction(&w.rt, &w.engine, end).await.expect("ended").files
            };
            let exclusive = LockWish::Exclusive;
            for _ in 0..2 {
                assert!(!refused(ask(1, 7, exclusive)).await, "its own, also to a retry");
            }
            assert_eq!(ends(1).await, [inode]);
            assert!(!refused(ask(3, 8, exclusive)).await);
            assert!(refused(ask(2, 7, exclusive)).await, "another one has it");
            assert_eq!(ends(3).await, [inode]);
            // A late copy leaves nothing behind that nobody would give back.
            assert!(refused(ask(2, 7, exclusive)).await);
            assert!(!refused(ask(2, 9, exclusive)).await, "asked anew");
            for _ in 0..2 {
                assert!(!refused(ask(2, 10, LockWish::Release)).await);
            }
            assert!(refused(ask(2, 9, exclusive)).await, "given back since");
            assert!(!refused(ask(4, 11, LockWish::Shared)).await, "nobody has it");
        }
    });
}

/// An engine that takes as many conditions in a commit as etcd does; and how many keys were read one by one.
struct Narrow(Rc<dyn Engine>, Rc<Cell<usize>>);

impl Engine for Narrow {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        self.0.begin()
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        self.1.set(self.1.get() + keys.len());
        self.0.get(version, keys)
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.0.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        if commit.read_conflicts.len() > 100 {
            let e = Error::new(Status::TooLarge, "more conditions than fit");
            return Box::pin(std::future::ready(Err(e)));
        }
        self.0.commit(commit)
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.0.flush_barrier()
    }
}

/// The search for a circle makes a condition of each owner that it looks at.
#[test]
fn a_lock_that_many_hold_can_be_waited_for() {
    real::run(|rt| async move {
        let mut w = world(&rt).await;
        w.engine = Rc::new(Narrow(w.engine.clone(), Rc::default()));
        let make = |n: &str| Make { caller: who(), parent: ROOT, name: name(n), ..Make::default() };
        let file = op!(w, ns::make, make("f")).expect("made").attr.inode;
        let other = op!(w, ns::make, make("g")).expect("made").attr.inode;
        let ask = |inode, owner: u64, wish, waits| {
            let caller = Caller { client: ClientId(u128::from(owner)), ..who() };
            Lock { caller, inode, owner, wish, waits, start: 0, end: 8, ..Lock::default() }
        };
        let (shared, exclusive) = (LockWish::Shared, LockWish::Exclusive);
        for owner in 1..=130 {
            assert!(
                op!(w, ns::lock, ask(file, owner, shared, false)).expect("locked").holder.is_none()
            );
        }
        assert!(
            op!(w, ns::lock, ask(other, 500, exclusive, false)).expect("locked").holder.is_none()
        );
        let waits = op!(w, ns::lock, ask(file, 500, exclusive, true)).expect("it waits");
        assert!(waits.holder.is_some() && !waits.deadlock);
        // And a circle is found, whoever of them closes it.
        for owner in [1, 70, 130] {
            let closes = op!(w, ns::lock, ask(other, owner, exclusive, true)).expect("answered");
            assert!(closes.deadlock, "{owner}");
        }
    });
}

/// Owners that wait for one another in one file: its table, which may be long, was read and unpacked again for each of them.
#[test]
fn a_search_for_a_circle_reads_each_table_once() {
    const OWNERS: u64 = 60;
    real::run(|rt| async move {
        let mut w = world(&rt).await;
        let read = Rc::new(Cell::new(0));
        w.engine = Rc::new(Narrow(w.engine.clone(), read.clone()));
        let make = Make { caller: who(), parent: ROOT, name: name("f"), ..Make::default() };
        let inode = op!(w, ns::make, make).expect("made").attr.inode;
        let ask = |owner: u64, byte: u64| {
            let caller = Caller { client: ClientId(u128::from(owner)), ..who() };
            let (wish, start, end) = (LockWish::Exclusive, byte, byte);
            Lock { caller, inode, owner, wish, waits: true, start, end, ..Lock::default() }
        };
        for owner in 0..=OWNERS {
            assert!(op!(w, ns::lock, ask(owner, owner)).expect("locked").holder.is_none());
        }
        for owner in (0..OWNERS).rev() {
            assert!(!op!(w, ns::lock, ask(owner, owner + 1)).expect("it waits").deadlock);
        }
        let before = read.get();
        assert!(!op!(w, ns::lock, ask(999, 0)).expect("it waits").deadlock);
        let most = OWNERS as usize * 3 / 2;
        assert!(read.get() - before < most, "{} keys", read.get() - before);
        assert!(op!(w, ns::lock, ask(OWNERS, 0)).expect("refused").deadlock);
    });
}

/// The copy of a request that would have closed a circle was told to wait: no record said so, nobody found the circle, and all of it waited for ever.
#[test]
fn who_would_wait_for_ever_is_told_so_again() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let make = |n: &str| Make { caller: who(), parent: ROOT, name: name(n), ..Make::default() };
        let x = op!(w, ns::make, make("x")).expect("made").attr.inode;
        let y = op!(w, ns::make, make("y")).expect("made").attr.inode;
        let ask = |inode, owner: u64, request: u128, waits| {
            let caller = Caller { client: ClientId(u128::from(owner)), ..who() };
            let (request, wish) = (RequestId(request), LockWish::Exclusive);
            Lock { caller, request, inode, owner, wish, waits, start: 0, end: 8, ..Lock::default() }
        };
        for q in [ask(x, 1, 1, false), ask(y, 2, 2, false)] {
            assert!(op!(w, ns::lock, q).expect("locked").holder.is_none());
        }
        assert!(!op!(w, ns::lock, ask(y, 1, 3, true)).expect("it waits").deadlock);
        for _ in 0..2 {
            let closes = op!(w, ns::lock, ask(x, 2, 4, true));
            assert!(closes.map_or_else(|e| e.status == Status::Deadlock, |l| l.deadlock));
        }
        // A new request is judged anew.
        assert!(op!(w, ns::lock, ask(y, 2, 5, false)).expect("its own").holder.is_none());
        let release = Lock { wish: LockWish::Release, ..ask(x, 1, 6, false) };
        op!(w, ns::lock, release).expect("given back");
        assert!(op!(w, ns::lock, ask(x, 2, 7, true)).expect("locked").holder.is_none());
    });
}

/// A lock was given back by a commit whose answer was lost, and the copy that found that done woke nobody.
#[test]
fn a_copy_that_finds_a_lock_given_back_says_so() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let q = Make { caller: who(), parent: ROOT, name: name("f"), ..Make::default() };
        let inode = op!(w, ns::make, q).expect("made").attr.inode;
        let ask = |request, wish| {
            let (caller, request) = (who(), RequestId(request));
            Lock { caller, request, inode, owner: 1, wish, end: u64::MAX, ..Lock::default() }
        };
        op!(w, ns::lock, ask(1, LockWish::Exclusive)).expect("locked");
        for wish in [LockWish::Shared, LockWish::Release] {
            let request = 2 + wish as u128;
            for copy in ["first", "second"] {
                let locked = op!(w, ns::lock, ask(request, wish)).expect("locked");
                assert!(locked.weaker && locked.holder.is_none(), "{wish:?}, {copy}");
            }
        }
    });
}

/// Others had removed what a request made or changed, before the answer, which was lost, was asked for again: «look the name up again», upon which a kernel
/// makes it once more.
#[test]
fn what_was_done_to_what_is_gone_was_done() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let remove = async |n: &str, directory| {
            let q = Unlink {
                caller: who(),
                parent: ROOT,
                name: name(n),
                directory,
                request: RequestId(0),
            };
            op!(w, ns::unlink, q).expect("removed");
        };
        let kinds = [InodeKind::File, InodeKind::Directory, InodeKind::Symlink, InodeKind::Fifo];
        for (n, kind) in kinds.into_iter().enumerate() {
            let request = |k: u128| RequestId(10 * (n as u128 + 1) + k);
            let make = || Make {
                caller: Caller { uid: 7, gid: 8, ..who() },
                request: request(0),
                parent: ROOT,
                name: name("a"),
                kind,
                mode: 0o777,
                umask: 0o027,
                symlink: if kind == InodeKind::Symlink { b"x".to_vec() } else { Vec::new() },
                exclusive: true,
                ..Make::default()
            };
            let first = op!(w, ns::make, make()).expect("made").attr;
            let inode = first.inode;
            let times = || SetAttr {
                caller: who(),
                request: request(1),
                inode,
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::Now),
                ..SetAttr::default()
            };
            op!(w, ns::setattr, times()).expect("set");
            let link = || Link {
                caller: who(),
                request: request(2),
                inode,
                parent: ROOT,
                name: name("b"),
            };
            let directory = kind == InodeKind::Directory;
            if !directory {
                op!(w, ns::link, link()).expect("linked");
                remove("b", false).await;
            }
            remove("a", directory).await;
            let of = |attr: &Attr| (attr.inode, attr.kind, attr.nlink, attr.generation);
            let gone = (inode, kind, 0, first.generation);
            for _ in 0..2 {
                let made = op!(w, ns::make, make()).expect("it was made");
                assert_eq!(of(&made.attr), gone);
                let shown = |a: &Attr| (a.mode, a.uid, a.gid, a.len, a.rdev);
                assert_eq!(shown(&made.attr), shown(&first), "{kind:?}");
                assert!(
                    made.opened.is_none() && !first.edition().is_older_than(&made.attr.edition())
                );
                let (set, cut) = op!(w, ns::setattr, times()).expect("it was set");
                assert!(of(&set) == gone && cut.is_none());
                if !directory {
                    assert_eq!(of(&op!(w, ns::link, link()).expect("it was linked")), gone);
                }
            }
            // And nothing is done anew: neither by a copy, nor by who asks for it for the first time.
            for n in ["a", "b"] {
                let q = Lookup { caller: who(), parent: ROOT, name: name(n) };
                assert_eq!(op!(w, ns::lookup, q).expect_err("gone").status, Status::NotFound);
            }
            let fresh = Link { request: request(3), ..link() };
            assert_eq!(op!(w, ns::link, fresh).expect_err("gone").status, Status::Stale);
            let fresh = SetAttr { request: request(4), ..times() };
            assert_eq!(op!(w, ns::setattr, fresh).expect_err("gone").status, Status::Stale);
        }
        crate::checked::checked(&w.rt, &w.engine, &w, &who(), "gone").await;
    });
}

/// What was opened as well nobody can go on with: its session has ended, or it would be there. A kernel does not ask once more.
#[test]
fn what_was_opened_and_is_gone_is_not_opened_anew() {
    real::run(|rt| async move {
        let w = world(&rt).await;
        let flags = OpenFlags { read: true, truncate: true, ..OpenFlags::default() };
        let make = |open| Make {
            caller: who(),
            request: RequestId(7),
            parent: ROOT,
            name: name("f"),
            mode: 0o600,
            open,
            ..Make::default()
        };
        let inode = op!(w, ns::make, make(Some(flags))).expect("made").attr.inode;
        let open = || Open { caller: who(), request: RequestId(8), inode, flags };
        op!(w, ns::open, open()).expect("opened");
        let (request, directory) = (RequestId(0), false);
        let q = Unlink { caller: who(), parent: ROOT, name: name("f"), directory, request };
        op!(w, ns::unlink, q).expect("removed");
        let ended = Status::SessionEnded;
        assert_eq!(op!(w, ns::make, make(Some(flags))).expect_err("gone").status, ended);
        assert_eq!(op!(w, ns::open, open()).expect_err("gone").status, ended);
    });
}
