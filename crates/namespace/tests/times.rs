//! Writes that are reported with a time that is not later than the file's: the clocks of those who write differ, and users set times.

use crate::world::{V, World};
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context, Env};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::inline::InlineWrite;
use glowfs_types::wire::meta::*;
use glowfs_types::*;

const SESSION: SessionId = SessionId(9);

fn who() -> Caller {
    Caller { client: ClientId(1), volume: V, ..Caller::default() }
}

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q) = (&$w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &q.caller, w), &q).await)
            .await
            .expect("done")
    }};
}

/// A file that is open for writing; `later` seconds have passed since it was made.
async fn written_file(rt: &Rt, inline: bool, later: i64) -> (World, InodeId) {
    let w = World::new(rt, if inline { 100 } else { 0 }).await;
    let flags =
        OpenFlags { read: true, write: true, session: SESSION, inline, ..OpenFlags::default() };
    let q = Make {
        caller: who(),
        parent: InodeId(1),
        name: b"f".to_vec().into(),
        mode: 0o644,
        open: Some(flags),
        ..Make::default()
    };
    let inode = op!(w, ns::make, q).attr.inode;
    w.clock.set(w.clock.get() + later);
    (w, inode)
}

fn wrote(inode: InodeId, secs: i64) -> Sync {
    let mtime = Some(Time { secs, nanos: 0 });
    Sync { caller: who(), inode, session: Some(SESSION), mtime, ..Sync::default() }
}

fn utimes(inode: InodeId, secs: i64) -> SetAttr {
    let mtime = Some(SetTime::At(Time { secs, nanos: 0 }));
    SetAttr { caller: who(), inode, mtime, ..SetAttr::default() }
}

/// A second write of the same length by a clock that is behind left the time alone: kernels without a lease kept their old pages for good.
#[test]
fn a_write_by_a_clock_that_is_behind_moves_the_time() {
    real::run(|rt| async move {
        let (w, inode) = written_file(&rt, false, 10).await;
        let now = w.clock.get();
        let mut last = op!(w, ns::sync, wrote(inode, now));
        assert_eq!(last.mtime, w.now());
        for behind in [0, 5, 3, 0] {
            w.clock.set(w.clock.get() + 1);
            let attr = op!(w, ns::sync, wrote(inode, now - behind));
            assert!(attr.mtime > last.mtime && attr.ctime > last.ctime, "{behind}");
            assert!(attr.change > last.change && attr.mtime.secs == now, "{behind}");
            last = attr;
        }
        let attr = op!(w, ns::close, wrote(inode, now - 1));
        assert!(attr.mtime > last.mtime);
    });
}

/// As on a local disk, a write ends a time in the future.
#[test]
fn a_write_moves_a_time_in_the_future() {
    real::run(|rt| async move {
        for inline in [false, true] {
            let (w, inode) = written_file(&rt, inline, 10).await;
            let set = op!(w, ns::setattr, utimes(inode, w.clock.get() + 86400)).0;
            assert_eq!(set.mtime.secs, w.clock.get() + 86400);
            w.clock.set(w.clock.get() + 3);
            let attr = match inline {
                false => op!(w, ns::sync, wrote(inode, w.clock.get() - 1)),
                true => {
                    let (session, bytes) = (SESSION, b"x".to_vec().into());
                    let (caller, request) = (who(), RequestId(5));
                    let q = InlineWrite {
                        caller,
                        request,
                        inode,
                        session,
                        offset: 0,
                        bytes,
                        fence: 0,
                        under: None,
                    };
                    op!(w, ns::inline_write, q).0
                }
            };
            assert_eq!(attr.mtime, w.now(), "inline: {inline}");
            assert!(attr.ctime > set.ctime);
        }
    });
}

/// What was written before somebody set the time, and is reported later, leaves it; what is written after that moves it.
#[test]
fn a_time_that_was_set_stays_until_the_next_write() {
    real::run(|rt| async move {
        for at in [-5000, 5000] {
            let (w, inode) = written_file(&rt, false, 10).await;
            let set = op!(w, ns::setattr, utimes(inode, w.clock.get() + at)).0;
            let mut last = set.clone();
            for behind in [2, 0, 1] {
                let attr = op!(w, ns::sync, wrote(inode, w.clock.get() - behind));
                assert_eq!(attr.mtime, set.mtime);
                assert!(attr.ctime > last.ctime && attr.contents_change > last.contents_change);
                last = attr;
            }
            w.clock.set(w.clock.get() + 2);
            let attr = op!(w, ns::close, wrote(inode, w.clock.get()));
            assert_eq!(attr.mtime, w.now(), "{at}");
        }
    });
}

/// By time and length alone other kernels cannot tell that what they keep is old: a truncate sets the time by one clock, and who writes then reports one by
/// another; or somebody sets the time to what it was.
#[test]
fn what_may_have_been_written_is_counted_whatever_the_times_say() {
    real::run(|rt| async move {
        for inline in [false, true] {
            let (w, inode) = written_file(&rt, inline, 10).await;
            let before = op!(w, ns::setattr, utimes(inode, 7)).0;
            let cut = SetAttr { len: Some(0), ..utimes(inode, 7) };
            let cut = op!(w, ns::setattr, cut).0;
            assert!(cut.contents_change > before.contents_change, "inline: {inline}");
            let wrote = op!(w, ns::sync, wrote(inode, w.clock.get() - 3));
            assert!(wrote.contents_change > cut.contents_change && wrote.ctime > cut.ctime);
            let read = Sync { mtime: None, atime: Some(w.now()), ..wrote_nothing(inode) };
            let read = op!(w, ns::sync, read);
            assert_eq!(read.contents_change, wrote.contents_change, "a reader changes nothing");
        }
    });
}

fn wrote_nothing(inode: InodeId) -> Sync {
    Sync { mtime: None, ..wrote(inode, 0) }
}

/// Open with O_TRUNC sets the time by the clock of meta; what a writer whose clock is behind reported after that left it alone.
#[test]
fn writes_after_a_truncate_move_the_time_whatever_their_clock_says() {
    real::run(|rt| async move {
        for mtime in [None, Some(SetTime::Now)] {
            let (w, inode) = written_file(&rt, false, 10).await;
            let cut = SetAttr { caller: who(), inode, len: Some(0), mtime, ..SetAttr::default() };
            let mut last = op!(w, ns::setattr, cut).0;
            assert_eq!(last.mtime, w.now());
            for _ in 0..2 {
                let attr = op!(w, ns::sync, wrote(inode, w.clock.get() - 3));
                assert!(attr.mtime > last.mtime, "{mtime:?}");
                last = attr;
            }
        }
    });
}

/// What a client wrote inside of a file and did not tell of before it died: by the time, the length and the count other kernels kept their old pages.
#[test]
fn what_a_dead_client_may_have_written_counts() {
    real::run(|rt| async move {
        let (w, inode) = written_file(&rt, false, 10).await;
        let told = Sync { len_at_least: Some(5000), ..wrote(inode, w.clock.get()) };
        let before = op!(w, ns::sync, told);
        let ends = async |settled| {
            let caller = who();
            run_transaction(&w.rt, &w.engine, async |tx| {
                let cx = Context::new(tx, &caller, &w);
                ns::end_session(&cx, caller.client, inode, SESSION, settled, None).await
            })
            .await
            .expect("ended");
            op!(w, ns::getattr, OfInode { caller: who(), inode })
        };
        let open = |write| {
            let flags = OpenFlags { read: true, write, session: SESSION, ..OpenFlags::default() };
            Open { caller: who(), request: RequestId(0), inode, flags }
        };
        let other = TruncateEpoch(before.epoch.0 + 1);
        let mut last = before.clone();
        for settled in [Some((5000, before.epoch)), Some((9000, other)), None] {
            op!(w, ns::open, open(true));
            let after = ends(settled).await;
            assert!(after.contents_change > last.contents_change, "{settled:?}");
            assert_eq!((after.len, after.mtime), (5000, before.mtime), "{settled:?}");
            // Repeating it counts nothing.
            assert_eq!(ends(settled).await.contents_change, after.contents_change);
            last = after;
        }
        op!(w, ns::open, open(false));
        assert_eq!(ends(None).await.contents_change, last.contents_change, "a reader");
    });
}
