//! Sessions, the lengths that they report, truncates, and what becomes garbage.

use super::{make_q, name, op, open_q, who};
use crate::world::World;
use glowfs_kv::{Transaction, run_transaction};
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::real;
use glowfs_types::wire::append::Append;
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::*;
use glowfs_types::*;

fn sync_q(inode: InodeId, session: u128, len: Option<u64>, epoch: TruncateEpoch) -> Sync {
    Sync {
        caller: who(0),
        request: RequestId(0),
        inode,
        session: Some(SessionId(session)),
        len_at_least: len,
        epoch,
        mtime: None,
        atime: None,
        durable: false,
        ..Sync::default()
    }
}

async fn garbage(w: &World) -> Vec<DataId> {
    let g = run_transaction(&w.rt, &w.engine, async |tx| ns::garbage(tx, VolumeId(1), 100).await)
        .await
        .expect("garbage");
    g.found.into_iter().map(|g| g.data).collect()
}

#[test]
fn sessions_lengths_truncates_and_garbage() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let root = InodeId(1);
        let file = op!(w, ns::make, make_q(who(0), root, "f", InodeKind::File)).expect("make").attr;
        let i = file.inode;
        let unlink = |n: &str| Unlink {
            caller: who(0),
            request: RequestId(0),
            parent: root,
            name: name(n),
            directory: false,
        };
        // Opened and closed without a write: nothing to collect.
        op!(w, ns::open, open_q(i, 0, true, false, 1)).expect("open");
        op!(w, ns::close, sync_q(i, 1, None, file.epoch)).expect("close");
        let cut = op!(
            w,
            ns::setattr,
            SetAttr { caller: who(0), inode: i, len: Some(100), ..SetAttr::default() }
        )
        .expect("extend");
        assert!(cut.1.is_none() && cut.0.len == 100 && cut.0.epoch == file.epoch);
        // Written: a shrink must be finished before the next write-open.
        op!(w, ns::open, open_q(i, 0, true, false, 2)).expect("open");
        op!(w, ns::sync, sync_q(i, 2, Some(5000), file.epoch)).expect("sync");
        let (attr, cut) = op!(
            w,
            ns::setattr,
            SetAttr { caller: who(0), inode: i, len: Some(10), ..SetAttr::default() }
        )
        .expect("shrink");
        assert_eq!((attr.len, cut.expect("a cut").len), (10, 10));
        let begun = async || {
            let look = async |tx: &Transaction| ns::cuts_begun(tx, VolumeId(1), None, 9).await;
            run_transaction(&w.rt, &w.engine, look).await.expect("cuts").0
        };
        assert_eq!(begun().await, [(i, attr.epoch)]);
        let e = op!(w, ns::open, open_q(i, 0, true, false, 3)).expect_err("cut pending");
        assert!(ns::is_in_the_way(&e));
        run_transaction(&w.rt, &w.engine, async |tx| {
            ns::finish_cut(tx, VolumeId(1), i, attr.epoch, None).await
        })
        .await
        .expect("cut");
        assert_eq!(begun().await, []);
        let of = OfInode { caller: who(0), inode: i };
        let after = op!(w, ns::getattr, of).expect("attributes");
        assert!(after.epoch > attr.epoch && after.change > attr.change, "each state has a number");
        // Longer, while somebody has it open who may have written more than is known: what he wrote before the new end stays.
        let longer =
            |len| SetAttr { caller: who(0), inode: i, len: Some(len), ..SetAttr::default() };
        let finish = async |epoch| {
            let work =
                async |tx: &Transaction| ns::finish_cut(tx, VolumeId(1), i, epoch, None).await;
            run_transaction(&w.rt, &w.engine, work).await.expect("cut")
        };
        let (attr, cut) = op!(w, ns::setattr, longer(20)).expect("longer");
        assert_eq!((attr.len, cut.expect("a cut").len), (20, 20));
        let epoch = finish(attr.epoch).await;
        op!(w, ns::close, sync_q(i, 2, Some(20), epoch)).expect("close");
        // Closed: behind its end may lie what a failed write has left.
        let (attr, cut) = op!(w, ns::setattr, longer(30)).expect("longer");
        assert_eq!((attr.len, cut.expect("a cut").len), (30, 20));
        assert!(ns::is_in_the_way(&op!(w, ns::setattr, longer(40)).expect_err("cut pending")));
        finish(attr.epoch).await;
        let (attr, cut) = op!(w, ns::setattr, longer(10)).expect("shorter");
        assert_eq!(cut.expect("a cut").len, 10);
        finish(attr.epoch).await;
        op!(w, ns::open, open_q(i, 0, true, false, 2)).expect("open");
        op!(w, ns::open, open_q(i, 0, true, false, 3)).expect("open");
        // A late report of the old epoch cannot revive the length.
        assert_eq!(op!(w, ns::sync, sync_q(i, 2, Some(9000), file.epoch)).expect("sync").len, 10);
        // To zero: new data id, the old one is garbage.
        let (zero, cut) = op!(
            w,
            ns::setattr,
            SetAttr { caller: who(0), inode: i, len: Some(0), ..SetAttr::default() }
        )
        .expect("zero");
        assert!(cut.is_none() && zero.data != file.data && zero.epoch > attr.epoch);
        assert_eq!(garbage(&w).await, [file.data]);
        // Unlinked while open: stays until the last session closes.
        let gone = op!(w, ns::unlink, unlink("f")).expect("unlink").expect("attr");
        assert_eq!(gone.nlink, 0);
        assert_eq!(garbage(&w).await.len(), 1);
        op!(w, ns::close, sync_q(i, 2, None, zero.epoch)).expect("close");
        assert_eq!(
            op!(w, ns::sync, sync_q(i, 3, Some(77), zero.epoch)).expect("still there").len,
            77
        );
        op!(w, ns::close, sync_q(i, 3, Some(78), zero.epoch)).expect("close");
        assert_eq!(garbage(&w).await, [file.data, zero.data]);
        let of = OfInode { caller: who(0), inode: i };
        // Not «not found»: its name may lead to another file, so kernels have to look again.
        assert_eq!(op!(w, ns::getattr, of.clone()).expect_err("gone").status, Status::Stale);
        let open = open_q(i, 0, true, false, 4);
        assert_eq!(op!(w, ns::open, open).expect_err("gone").status, Status::Stale);
        let usage = run_transaction(&w.rt, &w.engine, async |tx| ns::statfs(tx, VolumeId(1)).await)
            .await
            .expect("statfs");
        assert_eq!((usage.inodes, usage.bytes), (1, 0));
        // A dead client: its length is settled, then its session ends.
        let f = op!(w, ns::make, make_q(who(0), root, "g", InodeKind::File)).expect("make").attr;
        op!(w, ns::open, open_q(f.inode, 0, true, false, 9)).expect("open");
        let (c, caller) = (ClientId(1), who(0));
        let clients = run_transaction(&w.rt, &w.engine, async |tx| {
            ns::clients_with_sessions(tx, VolumeId(1), None, 10).await
        })
        .await;
        assert_eq!(clients.expect("clients"), [c]);
        let sessions = run_transaction(&w.rt, &w.engine, async |tx| {
            ns::sessions_of(tx, VolumeId(1), c, None, 10).await
        })
        .await
        .expect("sessions")
        .found;
        assert_eq!((sessions.len(), sessions[0].inode, sessions[0].write), (1, f.inode, true));
        run_transaction(&w.rt, &w.engine, async |tx| {
            ns::end_session(
                &Context::new(tx, &caller, &w),
                c,
                f.inode,
                SessionId(9),
                Some((4242, f.epoch)),
                None,
            )
            .await
        })
        .await
        .expect("end");
        let of = OfInode { caller: who(0), inode: f.inode };
        assert_eq!(op!(w, ns::getattr, of.clone()).expect("there").len, 4242);
    });
}

/// What a write left that failed came up as contents of a file that was made longer: somebody else had opened it and written nothing.
#[test]
fn one_session_does_not_say_that_no_other_ever_wrote() {
    real::run(|rt| async move {
        for case in ["closed", "died", "closed beside it", "only told"] {
            let w = World::new(&rt, 0).await;
            let (caller, root) = (who(0), InodeId(1));
            let f =
                op!(w, ns::make, make_q(who(0), root, "f", InodeKind::File)).expect("make").attr;
            let (i, epoch) = (f.inode, f.epoch);
            let open = async |s| op!(w, ns::open, open_q(i, 0, true, false, s)).expect("open");
            let close = async |s, len| op!(w, ns::close, sync_q(i, s, len, epoch)).expect("close");
            // The first one writes, and is told that it failed: some of it may be stored, and the file is empty.
            match case {
                "died" => {
                    open(1).await;
                    let (c, s) = (ClientId(1), SessionId(1));
                    let end = async |tx: &Transaction| {
                        let cx = Context::new(tx, &caller, &w);
                        ns::end_session(&cx, c, i, s, Some((0, epoch)), None).await
                    };
                    run_transaction(&w.rt, &w.engine, end).await.expect("ended");
                }
                "closed beside it" => {
                    open(2).await;
                    open(1).await;
                    close(1, Some(0)).await;
                    close(2, None).await;
                }
                "only told" => {
                    open(1).await;
                    op!(w, ns::sync, sync_q(i, 1, Some(0), epoch)).expect("sync");
                    close(1, None).await;
                }
                _ => {
                    open(1).await;
                    close(1, Some(0)).await;
                }
            }
            // `touch f`, and what is behind the end is cut before the file gets longer.
            open(3).await;
            close(3, None).await;
            let longer = SetAttr { caller: who(0), inode: i, len: Some(100), ..SetAttr::default() };
            let (_, cut) = op!(w, ns::setattr, longer).expect("longer");
            assert_eq!(cut.map(|c| c.len), Some(0), "{case}");
            let (request, directory) = (RequestId(0), false);
            let gone = Unlink { caller: who(0), request, parent: root, name: name("f"), directory };
            op!(w, ns::unlink, gone).expect("removed");
            assert_eq!(garbage(&w).await, [f.data], "{case}");
        }
    });
}

/// A client's session led to one file, and another one had it as well: that one nobody found when the client had died, and its space never came back.
#[test]
fn a_session_is_of_one_file() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let root = InodeId(1);
        let make = |n| make_q(who(0), root, n, InodeKind::File);
        let f = op!(w, ns::make, make("f")).expect("made").attr;
        let g = op!(w, ns::make, make("g")).expect("made").attr;
        let open =
            async |i, s| op!(w, ns::open, open_q(i, 0, false, false, s)).map_err(|e| e.status);
        assert!(open(f.inode, 7).await.is_ok() && open(f.inode, 7).await.is_ok());
        assert_eq!(open(g.inode, 7).await.expect_err("of f"), Status::InvalidArgument);
        let flags = OpenFlags { write: true, session: SessionId(7), ..OpenFlags::default() };
        for unnamed in [false, true] {
            let name = if unnamed { name("") } else { name("h") };
            let q = Make { open: Some(flags), unnamed, name, ..make("h") };
            let refused = op!(w, ns::make, q).expect_err("of f");
            assert_eq!(refused.status, Status::InvalidArgument);
        }
        // All that a client has is found by its sessions.
        let look =
            async |tx: &Transaction| ns::sessions_of(tx, VolumeId(1), ClientId(1), None, 9).await;
        let found = run_transaction(&w.rt, &w.engine, look).await.expect("sessions").found;
        assert_eq!(found.iter().map(|s| s.inode).collect::<Vec<_>>(), [f.inode]);
        op!(w, ns::close, sync_q(f.inode, 7, None, f.epoch)).expect("closed");
        assert!(open(g.inode, 7).await.is_ok(), "it is free again");
        crate::checked::checked(&w.rt, &w.engine, &w, &who(0), "sessions").await;
    });
}

/// Who still read a removed file lost what its writer, which died, had been told was written.
#[test]
fn a_removed_file_is_as_long_as_its_dead_writer_made_it() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let (caller, root) = (who(0), InodeId(1));
        let f = op!(w, ns::make, make_q(who(0), root, "f", InodeKind::File)).expect("made").attr;
        op!(w, ns::open, open_q(f.inode, 0, true, false, 1)).expect("opened");
        op!(w, ns::open, open_q(f.inode, 0, false, false, 2)).expect("opened");
        let (request, directory) = (RequestId(0), false);
        let gone = Unlink { caller: who(0), request, parent: root, name: name("f"), directory };
        op!(w, ns::unlink, gone).expect("removed");
        let end = async |tx: &Transaction| {
            let cx = Context::new(tx, &caller, &w);
            let settled = Some((4242, f.epoch));
            ns::end_session(&cx, ClientId(1), f.inode, SessionId(1), settled, None).await
        };
        run_transaction(&w.rt, &w.engine, end).await.expect("ended");
        let of = OfInode { caller: who(0), inode: f.inode };
        assert_eq!(op!(w, ns::getattr, of).expect("there").len, 4242);
        crate::checked::checked(&w.rt, &w.engine, &w, &who(0), "removed").await;
        op!(w, ns::close, sync_q(f.inode, 2, None, f.epoch)).expect("closed");
        assert_eq!(garbage(&w).await, [f.data]);
        let usage = async |tx: &Transaction| ns::statfs(tx, VolumeId(1)).await;
        let usage = run_transaction(&w.rt, &w.engine, usage).await.expect("usage");
        assert_eq!((usage.inodes, usage.bytes), (1, 0));
    });
}

/// A dead client's right to append went to another one while its session, and with it the length of what it had appended, was still being looked for: that one appended over it.
#[test]
fn who_may_have_appended_keeps_the_right_until_the_length_is_known() {
    real::run(|rt| async move {
        let (w, root) = (World::new(&rt, 0).await, InodeId(1));
        let make = async |n| op!(w, ns::make, make_q(who(0), root, n, InodeKind::File));
        let files = [make("f").await, make("g").await, make("h").await].map(|m| m.expect("made"));
        let [f, g, h] = files.map(|m| m.attr);
        let other = Caller { client: ClientId(2), ..who(0) };
        // The first one is open for writing, the second for reading, the third not at all.
        op!(w, ns::open, open_q(f.inode, 0, true, false, 1)).expect("open");
        op!(w, ns::open, open_q(g.inode, 0, false, false, 2)).expect("open");
        let of_other = Open { caller: other.clone(), ..open_q(f.inode, 0, true, false, 3) };
        op!(w, ns::open, of_other).expect("open");
        let ask = |caller: &Caller| {
            let (caller, grant) = (caller.clone(), RequestId(caller.client.0));
            Append { caller, inode: f.inode, grant, release: false }
        };
        let append = async |caller: &Caller| op!(w, ns::append, ask(caller)).expect("answered");
        assert!(matches!(append(&who(0)).await, ns::AppendOutcome::Granted(_)));
        for inode in [f.inode, g.inode, h.inode] {
            let (wish, end) = (LockWish::Exclusive, u64::MAX);
            let q = Lock { caller: who(0), inode, owner: 1, wish, end, ..Lock::default() };
            assert_eq!(op!(w, ns::lock, q).expect("locked").holder, None);
        }
        let dead = who(0).client;
        let ends = async || {
            let (mut from, mut files) = (None, Vec::new());
            loop {
                let end = async |tx: &Transaction| {
                    let (written, _) = ns::written_by(tx, VolumeId(1), dead, None, 9).await?;
                    let (caller, written) = (who(0), written.into_iter().collect());
                    let cx = &Context::new(tx, &caller, &w);
                    ns::end_locks(cx, dead, &written, from.as_ref(), 1).await
                };
                let ended = run_transaction(&w.rt, &w.engine, end).await.expect("ended");
                files.extend(ended.files);
                from = ended.next;
                if from.is_none() {
                    return files;
                }
            }
        };
        assert_eq!(ends().await, [g.inode, h.inode], "the first one is stepped over");
        let held = append(&other).await;
        assert!(matches!(held, ns::AppendOutcome::Held(r) if r.client == dead), "{held:?}");
        let end = async |tx: &Transaction| {
            let (caller, session) = (who(0), SessionId(1));
            let (cx, len) = (Context::new(tx, &caller, &w), Some((4242, f.epoch)));
            ns::end_session(&cx, dead, f.inode, session, len, None).await
        };
        run_transaction(&w.rt, &w.engine, end).await.expect("ended");
        assert_eq!(ends().await, [f.inode]);
        let granted = append(&other).await;
        assert!(matches!(granted, ns::AppendOutcome::Granted(a) if a.len == 4242));
        crate::checked::checked(&w.rt, &w.engine, &w, &who(0), "rights").await;
    });
}

/// An engine bounds the conditions of a transaction (etcd: 128, if it is not told otherwise), and everybody who may read a file may have sessions of it.
#[test]
fn an_append_has_as_few_conditions_however_many_have_the_file_open() {
    real::run(|rt| async move {
        let (w, root) = (World::new(&rt, 0).await, InodeId(1));
        let f = op!(w, ns::make, make_q(who(0), root, "f", InodeKind::File)).expect("made").attr;
        let mut conditions = Vec::new();
        for many in [1, 300] {
            for n in 1..=many {
                let caller = Caller { client: ClientId(n), ..who(0) };
                let open = Open { caller, ..open_q(f.inode, 0, true, false, n) };
                op!(w, ns::open, open).expect("open");
            }
            let caller = Caller { client: ClientId(many), ..who(0) };
            let (inode, grant) = (f.inode, RequestId(many));
            let q = Append { caller, inode, grant, release: false };
            let ask = async |tx: &Transaction| {
                ns::append(&Context::new(tx, &q.caller, &w), &q).await?;
                Ok(tx.conditions())
            };
            conditions.push(run_transaction(&w.rt, &w.engine, ask).await.expect("asked"));
        }
        assert!(conditions.iter().all(|c| *c < 8), "{conditions:?}");
    });
}
