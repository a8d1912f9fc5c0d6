//! What the test suites of other file systems demand of the rules.

use crate::checked::checked;
use crate::world::{V, World};
use glowfs_kv::{Transaction, run_transaction};
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::real;
use glowfs_types::wire::inline::InlineRead;
use glowfs_types::wire::listing::ReadDir;
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::*;
use glowfs_types::*;

const ROOT: InodeId = InodeId(1);

fn who(uid: u32) -> Caller {
    Caller { uid, gid: uid, client: ClientId(1), volume: V, ..Caller::default() }
}

macro_rules! run {
    ($w:expr, $who:expr, $cx:ident => $work:expr) => {{
        let (w, who) = ($w, &$who);
        run_transaction(&w.rt, &w.engine, async |tx| {
            let $cx = &Context::new(tx, who, w);
            $work
        })
        .await
    }};
}

async fn make(w: &World, name: &str, kind: InodeKind, mode: u32) -> Attr {
    let name = name.as_bytes().to_vec().into();
    let q = Make { caller: who(0), parent: ROOT, name, kind, mode, ..Make::default() };
    run!(w, q.caller, cx => ns::make(cx, &q).await).expect("made").attr
}

/// Opened to be run, a file needs no right to read it: nor when its capability is renewed, nor where its contents are with the metadata.
#[test]
fn to_run_a_file_is_not_to_read_it() {
    real::run(|rt| async move {
        let w = World::new(&rt, 100).await;
        for (mode, runs, reads) in [(0o711, true, false), (0o744, false, true)] {
            let inode = make(&w, &format!("{mode:o}"), InodeKind::File, mode).await.inode;
            for (exec, may) in [(true, runs), (false, reads)] {
                let flags = OpenFlags { read: true, inline: true, exec, ..OpenFlags::default() };
                let open = Open { caller: who(7), request: RequestId(0), inode, flags };
                let renew = Renew {
                    caller: who(7),
                    inode,
                    session: None,
                    read: true,
                    write: false,
                    spill: false,
                    exec,
                };
                let read = InlineRead { caller: who(7), inode, session: None, exec };
                let outcomes = [
                    run!(&w, open.caller, cx => ns::open(cx, &open).await).map(|_| ()),
                    run!(&w, renew.caller, cx => ns::renew(cx, &renew).await).map(|_| ()),
                    run!(&w, read.caller, cx => ns::inline_read(cx, &read).await).map(|_| ()),
                ];
                for outcome in outcomes {
                    let outcome = outcome.map_err(|e| e.status);
                    let expected = if may { Ok(()) } else { Err(Status::AccessDenied) };
                    assert_eq!(outcome, expected, "{mode:o}, exec: {exec}");
                }
            }
        }
        checked(&w.rt, &w.engine, &w, &who(0), "run").await;
    });
}

/// A listing is told where it has to end, so that who renames what he lists comes to an end.
#[test]
fn a_listing_knows_its_end_when_it_begins() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let list = async |after: u64, limit: u32| {
            let caller = who(0);
            let q = ReadDir {
                caller,
                inode: ROOT,
                after,
                limit,
                attributes: false,
                atime: Default::default(),
            };
            run!(&w, q.caller, cx => ns::readdir(cx, &q).await).expect("listed").0
        };
        assert_eq!(list(0, 10).await.last, None, "empty");
        for i in 0..10 {
            make(&w, &format!("{i}"), InodeKind::File, 0o600).await;
        }
        let all = list(0, 10).await;
        assert_eq!((all.last, all.end), (None, true), "all of it");
        let newest = all.entries.last().expect("entries").cookie;
        let page = list(0, 3).await;
        assert_eq!((page.last, page.end), (Some(newest), false));
        assert_eq!(list(page.entries[2].cookie, 3).await.last, None, "it has begun before");
        make(&w, "p_0", InodeKind::File, 0o600).await;
        assert!(list(0, 3).await.last.expect("many") > newest);
    });
}

async fn cookies(w: &World) -> Vec<(Vec<u8>, u64)> {
    let (caller, atime) = (who(0), AtimeRule::default());
    let q = ReadDir { caller, inode: ROOT, after: 0, limit: 100, attributes: false, atime };
    let (page, _) = run!(w, q.caller, cx => ns::readdir(cx, &q).await).expect("listed");
    page.entries.iter().map(|e| (e.name.to_vec(), e.cookie)).collect()
}

/// A name that is replaced, or exchanged with another one, is there at every moment: a listing that has come half way finds it where it was.
#[test]
fn a_name_keeps_its_place_when_it_is_replaced() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 100).await;
        for name in ["a", "b", "c"] {
            make(w, name, InodeKind::File, 0o644).await;
        }
        let place = |all: &[(Vec<u8>, u64)], name: &str| {
            all.iter().find(|e| e.0 == name.as_bytes()).map(|e| e.1)
        };
        let before = cookies(w).await;
        let rename = |from: &str, to: &str, flags| Rename {
            caller: who(0),
            request: RequestId(0),
            parent: ROOT,
            name: from.as_bytes().to_vec().into(),
            new_parent: ROOT,
            new_name: to.as_bytes().to_vec().into(),
            flags,
        };
        let q = rename("a", "b", 0);
        run!(w, q.caller, cx => ns::rename(cx, &q).await).expect("replaced");
        let after = cookies(w).await;
        assert_eq!(place(&after, "b"), place(&before, "b"));
        assert_eq!(after.len(), before.len() - 1);
        let q = rename("b", "c", 2);
        run!(w, q.caller, cx => ns::rename(cx, &q).await).expect("exchanged");
        assert_eq!(cookies(w).await, after, "names keep their places");
        let q = rename("c", "d", 0);
        run!(w, q.caller, cx => ns::rename(cx, &q).await).expect("renamed");
        let after = cookies(w).await;
        assert_eq!(place(&after, "d"), place(&before, "c"));
        // Of RENAME_WHITEOUT both names are there afterwards.
        let q = rename("d", "e", 4);
        run!(w, q.caller, cx => ns::rename(cx, &q).await).expect("renamed");
        let left = cookies(w).await;
        assert_eq!((left.len(), place(&left, "d")), (after.len() + 1, place(&after, "d")));
        let q = Lookup { caller: who(5), parent: ROOT, name: b"d".to_vec().into() };
        let attr = run!(w, q.caller, cx => ns::lookup(cx, &q).await).expect("there");
        assert_eq!((attr.kind, attr.rdev, attr.nlink), (InodeKind::CharDevice, 0, 1));
        for flags in [6, 8] {
            let q = rename("d", "e", flags);
            let e = run!(w, q.caller, cx => ns::rename(cx, &q).await).expect_err("refused");
            assert_eq!(e.status, Status::InvalidArgument, "{flags}");
        }
    });
}

/// As local file systems do: also where nothing is cut off.
#[test]
fn privileges_go_with_a_truncate_to_the_same_length() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 0).await;
        for (by, len, left) in [(7, 0, 0o755), (7, 5, 0o755), (0, 0, 0o6755), (0, 5, 0o6755)] {
            let inode = make(w, &format!("{by} {len}"), InodeKind::File, 0o6755).await.inode;
            let set = async |q: SetAttr| {
                let q = SetAttr { inode, ..q };
                run!(w, q.caller, cx => ns::setattr(cx, &q).await).expect("set").0
            };
            let to = |uid, len| SetAttr { caller: who(uid), len: Some(len), ..SetAttr::default() };
            set(to(0, len)).await;
            set(SetAttr { caller: who(0), uid: Some(7), ..SetAttr::default() }).await;
            set(SetAttr { caller: who(0), mode: Some(0o6755), ..SetAttr::default() }).await;
            assert_eq!(set(to(by, len)).await.mode & 0o7777, left, "to {len} by {by}");
        }
    });
}

/// Who had locks of it is not said to have some any more.
#[test]
fn the_locks_of_a_file_go_with_it() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 0).await;
        let inode = make(w, "f", InodeKind::File, 0o666).await.inode;
        for client in 1..4 {
            let caller = Caller { client: ClientId(client), ..who(0) };
            let (start, wish) = (client as u64, LockWish::Exclusive);
            let q = Lock { caller, inode, wish, start, end: start, ..Lock::default() };
            let locked = run!(w, q.caller, cx => ns::lock(cx, &q).await).expect("locked");
            assert_eq!(locked.holder, None);
        }
        let (caller, name) = (who(0), b"f".to_vec().into());
        let (request, parent, directory) = (RequestId(0), ROOT, false);
        let q = Unlink { caller, request, parent, name, directory };
        run!(w, q.caller, cx => ns::unlink(cx, &q).await).expect("removed");
        checked(&w.rt, &w.engine, w, &who(0), "locks").await;
    });
}

/// As little as it is written through it.
#[test]
fn nothing_is_cut_through_a_session_that_has_ended() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 0).await;
        let inode = make(w, "f", InodeKind::File, 0o666).await.inode;
        let open = async |client, session| {
            let flags =
                OpenFlags { write: true, session: SessionId(session), ..OpenFlags::default() };
            let caller = Caller { client: ClientId(client), ..who(0) };
            let q = Open { caller, request: RequestId(0), inode, flags };
            run!(w, q.caller, cx => ns::open(cx, &q).await).expect("opened");
        };
        open(1, 7).await;
        open(2, 8).await;
        let refused = Err(Status::SessionEnded);
        for (session, expected) in [(8, refused), (9, refused), (7, Ok(()))] {
            let session = Some(SessionId(session));
            let q = SetAttr { caller: who(0), inode, len: Some(5), session, ..SetAttr::default() };
            let cut = run!(w, q.caller, cx => ns::setattr(cx, &q).await);
            assert_eq!(cut.map(|_| ()).map_err(|e| e.status), expected, "{session:?}");
        }
    });
}

/// To set one time to now and leave the other alone is to set times, for Linux: what an append-only file refuses.
#[test]
fn one_time_of_an_append_only_file_is_not_set() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 0).await;
        let inode = make(w, "f", InodeKind::File, 0o666).await.inode;
        let set = async |q: SetAttr| {
            let q = SetAttr { caller: who(0), inode, ..q };
            run!(w, q.caller, cx => ns::setattr(cx, &q).await).map(|_| ()).map_err(|e| e.status)
        };
        let flags = Some(inode_flags::APPEND);
        assert_eq!(set(SetAttr { flags, ..SetAttr::default() }).await, Ok(()));
        let now = Some(SetTime::Now);
        let refused = Err(Status::NotPermitted);
        for (atime, mtime, expected) in
            [(now, now, Ok(())), (now, None, refused), (None, now, refused)]
        {
            let q = SetAttr { atime, mtime, ..SetAttr::default() };
            assert_eq!(set(q).await, expected, "{atime:?} {mtime:?}");
        }
    });
}

/// Files are made in it without end: each changes what stands beside the directory's record, and nobody who listed it, or changed its own attributes, ever got
/// between them where the engine compares all that was read (etcd).
#[test]
fn a_directory_in_use_is_listed_and_changed() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 0).await;
        let caller = who(0);
        let set = SetAttr { caller: who(0), inode: ROOT, mode: Some(0o755), ..SetAttr::default() };
        for round in 0..3 {
            w.clock.set(w.clock.get() + 1);
            let tx = Transaction::new(w.engine.clone());
            let cx = Context::new(&tx, &caller, w);
            match round {
                0 => ns::touch(&cx, ROOT, AtimeRule::Always).await.expect("noted"),
                1 => drop(ns::setattr(&cx, &set).await.expect("set")),
                _ => {
                    let times = SetAttr { mode: None, mtime: Some(SetTime::Now), ..set.clone() };
                    ns::setattr(&cx, &times).await.expect("set");
                }
            }
            for kind in [InodeKind::File, InodeKind::Directory] {
                make(w, &format!("{round} {kind:?}"), kind, 0o644).await;
            }
            tx.commit(false).await.unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        let of = OfInode { caller: who(0), inode: ROOT };
        let attr = run!(w, of.caller, cx => ns::getattr(cx, &of).await).expect("there");
        assert_eq!((attr.entries, attr.nlink, attr.mode & 0o777), (Some(6), 5, 0o755));
        checked(&w.rt, &w.engine, w, &who(0), "in use").await;
    });
}

/// The kernel of his client has looked at the inodes whose numbers he names, and at no other one.
#[test]
fn who_is_admitted_is_so_to_what_his_request_names_by_number() {
    real::run(|rt| async move {
        let w = &World::new(&rt, 0).await;
        let who_is = |uid, admitted| Caller { admitted, ..who(uid) };
        let made = async |parent, name: &str, kind, mode, uid, admitted| {
            let (caller, name) = (who_is(uid, admitted), name.as_bytes().to_vec().into());
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let open = (kind == InodeKind::File).then_some(flags);
            let q = Make { caller, parent, name, kind, mode, open, ..Make::default() };
            let made = run!(w, q.caller, cx => ns::make(cx, &q).await);
            made.map(|m| m.attr.inode).map_err(|e| e.status)
        };
        let (file, directory) = (InodeKind::File, InodeKind::Directory);
        let closed = made(ROOT, "closed", directory, 0o700, 0, false).await.expect("made");
        let secret = made(closed, "secret", file, 0o600, 0, false).await.expect("made");
        for (admitted, expected) in [(false, Err(Status::AccessDenied)), (true, Ok(()))] {
            let caller = who_is(7, admitted);
            let q = Lookup { caller, parent: closed, name: b"secret".to_vec().into() };
            let found = run!(w, q.caller, cx => ns::lookup(cx, &q).await);
            assert_eq!(found.map(|_| ()).map_err(|e| e.status), expected);
            let made = made(closed, "new", file, 0o600, 7, admitted).await;
            assert_eq!(made.map(|_| ()), expected);
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let q =
                Open { caller: who_is(7, admitted), request: RequestId(0), inode: secret, flags };
            let opened = run!(w, q.caller, cx => ns::open(cx, &q).await);
            assert_eq!(opened.map(|_| ()).map_err(|e| e.status), expected);
        }
        // It was not there when the kernel looked, or was another one.
        let there = made(closed, "secret", file, 0o600, 7, true).await;
        assert_eq!(there, Err(Status::AccessDenied));
        let sticky = made(ROOT, "sticky", directory, 0o1777, 0, false).await.expect("made");
        made(sticky, "x", file, 0o666, 0, false).await.expect("made");
        let (caller, name) = (who_is(7, true), b"x".to_vec().into());
        let q = Unlink { caller, request: RequestId(0), parent: sticky, name, directory: false };
        let removed = run!(w, q.caller, cx => ns::unlink(cx, &q).await);
        assert_eq!(removed.map(|_| ()).map_err(|e| e.status), Err(Status::NotPermitted));
    });
}
