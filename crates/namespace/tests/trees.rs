//! Removal of whole trees: the name goes at once, everything else step by step, and what may not go stays.

use crate::checked::checked;
use crate::world::{V, World};
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context, TreeCheck, TreeRemoved};
use glowfs_rt::real;
use glowfs_rt::sync::join_all;
use glowfs_types::wire::listing::ReadDir;
use glowfs_types::wire::meta::inode_flags::IMMUTABLE;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::{RemoveTree, Tree};
use glowfs_types::*;

const ROOT: InodeId = InodeId(1);

fn who(uid: u32) -> Caller {
    Caller { uid, gid: uid, client: ClientId(1), volume: V, ..Caller::default() }
}

fn name(n: &str) -> Name {
    n.as_bytes().to_vec().into()
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

trait Ops {
    async fn make(&self, uid: u32, parent: InodeId, n: &str, dir: bool, mode: u32) -> Result<Attr>;
    async fn dir(&self, parent: InodeId, n: &str) -> InodeId;
    async fn file(&self, parent: InodeId, n: &str) -> InodeId;
    async fn rename(&self, from: (InodeId, &str), to: (InodeId, &str), flags: u32) -> Result<()>;
    async fn link(&self, inode: InodeId, parent: InodeId, n: &str) -> Result<Attr>;
    async fn remove(
        &self,
        uid: u32,
        parent: InodeId,
        n: &str,
        request: u128,
    ) -> Result<TreeRemoved>;
    async fn check(&self, uid: u32, dir: InodeId) -> Result<()>;
    async fn step(&self, limit: u32) -> bool;
    async fn empty_all(&self);
    async fn inodes(&self) -> u64;
    async fn names(&self, dir: InodeId) -> Vec<String>;
    async fn entry(&self, parent: InodeId, n: &str) -> InodeId;
    async fn attr(&self, inode: InodeId) -> Result<Attr>;
    async fn trees(&self) -> Vec<Tree>;
    async fn clean(&self, what: &str);
}

impl Ops for World {
    async fn make(&self, uid: u32, parent: InodeId, n: &str, dir: bool, mode: u32) -> Result<Attr> {
        let kind = if dir { InodeKind::Directory } else { InodeKind::File };
        let q = Make { caller: who(uid), parent, name: name(n), kind, mode, ..Make::default() };
        run!(self, q.caller, cx => ns::make(cx, &q).await).map(|m| m.attr)
    }
    async fn dir(&self, parent: InodeId, n: &str) -> InodeId {
        self.make(0, parent, n, true, 0o777).await.expect("a directory").inode
    }
    async fn file(&self, parent: InodeId, n: &str) -> InodeId {
        self.make(0, parent, n, false, 0o666).await.expect("a file").inode
    }
    async fn rename(&self, from: (InodeId, &str), to: (InodeId, &str), flags: u32) -> Result<()> {
        let (parent, new_parent) = (from.0, to.0);
        let (name, new_name) = (name(from.1), name(to.1));
        let request = RequestId(0);
        let q = Rename { caller: who(0), request, parent, name, new_parent, new_name, flags };
        run!(self, q.caller, cx => ns::rename(cx, &q).await).map(drop)
    }
    async fn link(&self, inode: InodeId, parent: InodeId, n: &str) -> Result<Attr> {
        let q = Link { caller: who(0), request: RequestId(0), inode, parent, name: name(n) };
        run!(self, q.caller, cx => ns::link(cx, &q).await)
    }
    async fn remove(
        &self,
        uid: u32,
        parent: InodeId,
        n: &str,
        request: u128,
    ) -> Result<TreeRemoved> {
        let (inode, request) = (InodeId(0), RequestId(request));
        let q =
            RemoveTree { caller: who(uid), request, parent, name: name(n), inode, check: false };
        run!(self, q.caller, cx => {
            let place = ns::tree_place(cx, &q).await?;
            ns::remove_tree(cx, &q, &place).await
        })
    }
    async fn check(&self, uid: u32, dir: InodeId) -> Result<()> {
        let mut open = vec![dir];
        while let Some(dir) = open.pop() {
            let mut from = None;
            loop {
                let TreeCheck { directories, next, .. } =
                    run!(self, who(uid), cx => ns::check_tree(cx, dir, from.as_ref(), 2).await)?;
                open.extend(directories);
                from = next;
                if from.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
    /// One transaction of the work; whether there is more.
    async fn step(&self, limit: u32) -> bool {
        let me = who(0);
        let queue = run!(self, me, cx => ns::leaving(cx.tx, V, None, 8).await).expect("queue");
        // Several at once take the same directory in part, and different ones.
        let turn = limit as usize % 2 * queue.len().saturating_sub(1);
        let Some(dir) = queue.get(turn).copied() else { return false };
        let page = run!(self, me, cx => ns::leaving_entries(cx.tx, V, dir, limit).await);
        let entries = page.expect("entries").found;
        if entries.is_empty() {
            run!(self, me, cx => {
                let done = ns::finish_leaving(cx, dir).await;
                self.rt.yield_now().await;
                done
            })
            .expect("finished");
        } else {
            let done = run!(self, me, cx => {
                let done = ns::empty(cx, dir, &entries).await;
                // Another one's transaction comes in between.
                self.rt.yield_now().await;
                done
            });
            done.expect("emptied");
        }
        true
    }
    async fn empty_all(&self) {
        while self.step(3).await {}
    }
    async fn inodes(&self) -> u64 {
        run!(self, who(0), cx => ns::statfs(cx.tx, V).await).expect("counted").inodes
    }
    async fn names(&self, inode: InodeId) -> Vec<String> {
        let atime = AtimeRule::default();
        let q = ReadDir { caller: who(0), inode, after: 0, limit: 99, attributes: false, atime };
        let page = run!(self, q.caller, cx => ns::readdir(cx, &q).await).expect("listed").0;
        page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect()
    }
    async fn entry(&self, parent: InodeId, n: &str) -> InodeId {
        let q = Lookup { caller: who(0), parent, name: name(n) };
        run!(self, q.caller, cx => ns::lookup(cx, &q).await).expect("there").inode
    }
    async fn attr(&self, inode: InodeId) -> Result<Attr> {
        let q = OfInode { caller: who(0), inode };
        run!(self, q.caller, cx => ns::getattr(cx, &q).await)
    }
    async fn trees(&self) -> Vec<Tree> {
        run!(self, who(0), cx => ns::trees(cx, None, None, 10).await).expect("listed").0
    }
    async fn clean(&self, what: &str) {
        checked(&self.rt, &self.engine, self, &who(0), what).await;
    }
}

/// `t` with files, a directory in it with more of them, and one in that.
async fn plant(w: &World) -> (InodeId, InodeId, InodeId) {
    let t = w.dir(ROOT, "t").await;
    let sub = w.dir(t, "sub").await;
    let deep = w.dir(sub, "deep").await;
    for (dir, n) in [(t, 5), (sub, 4), (deep, 7)] {
        for i in 0..n {
            w.file(dir, &format!("f{i}")).await;
        }
    }
    (t, sub, deep)
}

#[test]
fn a_tree_goes_at_once_and_then_step_by_step() {
    real::run(|rt| async move {
        for limit in [1, 2, 3, 64] {
            let w = World::new(&rt, 0).await;
            let (t, ..) = plant(&w).await;
            let before = w.inodes().await;
            assert_eq!(before, 1 + 3 + 16);
            let done = w.remove(0, ROOT, "t", 77).await.expect("removed");
            assert_eq!(done, TreeRemoved { tree: t, now: true });
            assert!(w.names(ROOT).await.is_empty());
            assert_eq!((w.attr(ROOT).await.expect("root").nlink, w.inodes().await), (2, before));
            // The same request again, also when another tree has that name.
            w.dir(ROOT, "t").await;
            let again = w.remove(0, ROOT, "t", 77).await.expect("done before");
            assert_eq!(again, TreeRemoved { tree: t, now: false });
            assert_eq!(w.names(ROOT).await, ["t"]);
            let shown = w.trees().await;
            assert_eq!(
                (shown.len(), shown[0].path.as_slice(), shown[0].waiting),
                (1, &b"/t"[..], 1)
            );
            w.clean("removed").await;
            while w.step(limit).await {
                w.clean("in between").await;
            }
            assert_eq!(w.inodes().await, 2, "root and the new one");
            assert!(w.trees().await.is_empty());
        }
    });
}

#[test]
fn a_removed_directory_takes_no_new_names() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let (t, sub, deep) = plant(&w).await;
        let (f, d) = (w.file(ROOT, "f").await, w.dir(ROOT, "d").await);
        w.remove(0, ROOT, "t", 1).await.expect("removed");
        assert_eq!(w.attr(t).await.expect("there yet").nlink, 0);
        for dir in [true, false] {
            let made = w.make(0, t, "new", dir, 0o777).await;
            assert_eq!(made.expect_err("refused").status, Status::NotFound);
        }
        assert_eq!(w.link(f, t, "l").await.expect_err("refused").status, Status::NotFound);
        for (n, flags) in [("f", 0), ("d", 0), ("f", 1)] {
            let moved = w.rename((ROOT, n), (t, "in"), flags).await;
            assert_eq!(moved.expect_err("refused").status, Status::NotFound);
        }
        let swapped = w.rename((ROOT, "f"), (t, "f0"), 2).await;
        assert_eq!(swapped.expect_err("refused").status, Status::NotFound);
        let flags = OpenFlags { write: true, session: SessionId(5), ..OpenFlags::default() };
        let unnamed = Make {
            caller: who(0),
            parent: t,
            kind: InodeKind::File,
            open: Some(flags),
            unnamed: true,
            ..Make::default()
        };
        let made = run!(&w, unnamed.caller, cx => ns::make(cx, &unnamed).await);
        assert_eq!(made.expect_err("refused").status, Status::NotFound);
        // What is moved out before its turn comes stays, with all that is in it.
        w.rename((t, "f0"), (ROOT, "f0"), 0).await.expect("moved out");
        w.rename((sub, "deep"), (d, "deep"), 0).await.expect("moved out");
        w.empty_all().await;
        w.clean("emptied").await;
        assert_eq!(w.names(ROOT).await, ["f", "d", "f0"]);
        assert_eq!(w.names(deep).await.len(), 7);
        w.make(0, deep, "new", false, 0o666).await.expect("it is a directory like others");
        assert!(w.attr(t).await.is_err() && w.attr(sub).await.is_err());
    });
}

#[test]
fn names_outside_and_open_files_are_as_after_an_unlink() {
    real::run(|rt| async move {
        let w = World { keeps_removed: true, ..World::new(&rt, 0).await };
        let (t, sub, _) = plant(&w).await;
        let (one, two) = (w.file(t, "one").await, w.file(sub, "two").await);
        w.link(one, ROOT, "outside").await.expect("linked");
        w.link(two, sub, "twice").await.expect("linked");
        w.remove(0, ROOT, "t", 1).await.expect("removed");
        w.empty_all().await;
        w.clean("emptied").await;
        assert_eq!(w.attr(one).await.expect("has a name").nlink, 1);
        assert_eq!(w.attr(two).await.expect("kept until nobody has it open").nlink, 0);
        let removed =
            run!(&w, who(0), cx => ns::removed(cx.tx, V, None, 99).await).expect("removed files");
        assert_eq!(removed.found.len(), 16 + 1);
    });
}

#[test]
fn services_side_by_side_do_it_once() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        for (round, turns) in [(0, 1..5), (1, 2..4), (2, 7..9), (3, 64..66), (4, 64..66)] {
            if round < 4 {
                plant(&w).await;
            } else {
                // The last two directories of the tree go at the same moment.
                let t = w.dir(ROOT, "t").await;
                w.dir(t, "sub").await;
            }
            w.remove(0, ROOT, "t", round + 1).await.expect("removed");
            join_all(turns.map(|limit| {
                let w = &w;
                async move { while w.step(limit).await {} }
            }))
            .await;
            assert_eq!((w.inodes().await, w.trees().await.len()), (1, 0));
            w.clean("emptied").await;
        }
    });
}

#[test]
fn what_its_remover_may_not_remove_is_refused_or_kept() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let t = w.make(5, ROOT, "t", true, 0o777).await.expect("made").inode;
        let own = w.make(5, t, "own", true, 0o700).await.expect("made").inode;
        w.make(5, own, "f", false, 0o600).await.expect("made");
        w.make(6, t, "empty", true, 0o700).await.expect("made");
        w.make(6, t, "readable", false, 0o600).await.expect("made");
        w.check(5, t).await.expect("all of it may go");
        let other = w.make(6, t, "other", true, 0o755).await.expect("made").inode;
        w.make(6, other, "f", false, 0o600).await.expect("made");
        assert_eq!(w.check(5, t).await.expect_err("6's").status, Status::AccessDenied);
        // A sticky directory of somebody else's.
        let shared = w.make(6, own, "shared", true, 0o1777).await;
        assert_eq!(shared.expect_err("5's own").status, Status::AccessDenied);
        let shared = w.make(6, t, "shared", true, 0o1777).await.expect("made").inode;
        w.make(5, shared, "mine", false, 0o600).await.expect("made");
        w.check(5, shared).await.expect("his own only");
        w.make(6, shared, "theirs", false, 0o600).await.expect("made");
        assert_eq!(w.check(5, shared).await.expect_err("6's").status, Status::NotPermitted);
        // Nobody may be robbed by a change between the look and the removal.
        assert_eq!(
            w.remove(6, ROOT, "t", 1).await.map(|_| ()),
            Ok(()),
            "the root is everybody's here"
        );
        w.empty_all().await;
        w.clean("emptied").await;
        assert_eq!(w.names(ROOT).await, ["lost+found"]);
        let found = w.entry(ROOT, "lost+found").await;
        assert_eq!(w.names(found).await, [format!("#{own}")]);
        assert_eq!(w.names(own).await, ["f"], "5's, and only 5 may empty it");
        assert!(w.attr(other).await.is_err(), "6's own is gone");
    });
}

#[test]
fn immutable_things_go_to_lost_found() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let (t, sub, deep) = plant(&w).await;
        let f = w.file(t, "f").await;
        for inode in [f, deep] {
            let q = SetAttr { caller: who(0), inode, flags: Some(IMMUTABLE), ..SetAttr::default() };
            run!(&w, q.caller, cx => ns::setattr(cx, &q).await).expect("flagged");
        }
        assert_eq!(w.check(0, t).await.expect_err("immutable").status, Status::NotPermitted);
        w.remove(0, ROOT, "t", 1).await.expect("removed");
        w.empty_all().await;
        w.clean("emptied").await;
        assert_eq!(w.attr(f).await.expect("kept").nlink, 1);
        let found = w.entry(ROOT, "lost+found").await;
        let mut kept = [format!("#{f}"), format!("#{deep}")];
        let mut there = w.names(found).await;
        kept.sort();
        there.sort();
        assert_eq!(there, kept);
        assert_eq!(w.names(deep).await.len(), 7);
        assert!(w.attr(sub).await.is_err());
        assert!(w.trees().await.is_empty());
    });
}

#[test]
fn what_has_a_trash_goes_there() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let t = w.dir(ROOT, "t").await;
        let (value, request) = (b"1h".to_vec(), RequestId(0));
        let n = name("glowfs.trash");
        let q = SetXattr { caller: who(0), request, inode: t, name: n, value, flags: 0 };
        run!(&w, q.caller, cx => ns::setxattr(cx, &q).await).expect("a trash");
        let sub = w.dir(t, "sub").await;
        w.file(t, "a").await;
        w.file(sub, "b").await;
        w.remove(0, ROOT, "t", 1).await.expect("removed");
        w.empty_all().await;
        w.clean("emptied").await;
        let trash = run!(&w, who(0), cx => ns::trash(cx, None, 9).await).expect("listed").0;
        let mut paths: Vec<_> = trash.iter().map(|e| e.path.as_slice()).collect();
        paths.sort();
        assert_eq!(paths, [&b"/t/a"[..], b"/t/sub/b"]);
        for e in trash {
            run!(&w, who(0), cx => ns::trash_restore(cx, e.id, None).await).expect("restored");
        }
        assert_eq!((w.names(ROOT).await, w.inodes().await), (vec!["t".to_owned()], 1 + 2 + 2));
        w.clean("restored").await;
    });
}

#[test]
fn only_a_directory_by_its_own_name() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let (t, sub, _) = plant(&w).await;
        let ask = async |n: &str, inode, check| {
            let (parent, request) = (InodeId(0), RequestId(9));
            let q = RemoveTree { caller: who(5), request, parent, name: name(n), inode, check };
            run!(&w, q.caller, cx => {
                let place = ns::tree_place(cx, &q).await?;
                Ok((ns::remove_tree(cx, &q, &place).await?, place))
            })
        };
        let status = |r: Result<(TreeRemoved, ns::TreePlace)>| r.map(|_| ()).map_err(|e| e.status);
        assert_eq!(status(ask("other", t, false).await), Err(Status::InvalidArgument));
        assert_eq!(status(ask("..", t, false).await), Err(Status::InvalidArgument));
        assert_eq!(status(ask("f0", sub, false).await), Err(Status::InvalidArgument));
        assert_eq!(status(ask("", ROOT, false).await), Err(Status::Busy));
        let (done, place) = ask("", sub, true).await.expect("it would");
        assert_eq!((done.now, place.name.as_slice(), place.parent), (false, &b"sub"[..], t));
        assert_eq!(w.remove(0, t, "f0", 8).await.expect_err("a file").status, Status::NotDirectory);
        assert_eq!(w.remove(0, t, "no", 8).await.expect_err("none").status, Status::NotFound);
        assert!(w.trees().await.is_empty());
        assert!(ask("sub", sub, false).await.expect("removed").0.now);
        assert!(!ask("sub", sub, false).await.expect("a retry").0.now);
    });
}
