//! Random operations against a naive file system in memory: results, errors and the whole tree must be equal after each.

mod checked;
mod emptied;
mod world;

use checked::checked;
use emptied::remove_tree;
use glowfs_kv::{Transaction, run_transaction};
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::RemoveTree;
use glowfs_types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use world::World;

fn who(uid: u32) -> Caller {
    Caller { uid, gid: uid, client: ClientId(1), volume: VolumeId(1), ..Caller::default() }
}

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q) = (&$w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &q.caller, w), &q).await)
            .await
    }};
}

fn name(n: &str) -> Name {
    n.as_bytes().to_vec().into()
}

fn make_q(caller: Caller, parent: InodeId, n: &str, kind: InodeKind) -> Make {
    let symlink = if kind == InodeKind::Symlink { b"target".to_vec() } else { vec![] };
    Make {
        caller,
        request: RequestId(0),
        parent,
        name: name(n),
        kind,
        mode: 0o755,
        rdev: 0,
        symlink,
        open: None,
        exclusive: true,
        ..Make::default()
    }
}

/// The naive file system.
#[derive(Clone, Debug, Default)]
struct Model {
    dirs: BTreeMap<u64, BTreeMap<String, u64>>,
    parents: BTreeMap<u64, u64>,
    links: BTreeMap<u64, u32>,
}

impl Model {
    fn is_dir(&self, i: u64) -> bool {
        self.dirs.contains_key(&i)
    }
    fn inside(&self, mut dir: u64, ancestor: u64) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            if dir == 1 {
                return false;
            }
            dir = self.parents[&dir];
        }
    }
    fn dir(&mut self, i: u64) -> Result<&mut BTreeMap<String, u64>, Status> {
        if self.is_dir(i) {
            return Ok(self.dirs.get_mut(&i).expect("there"));
        }
        Err(if self.links.contains_key(&i) { Status::NotDirectory } else { Status::NotFound })
    }
    fn drop(&mut self, i: u64) {
        if self.is_dir(i) {
            self.dirs.remove(&i);
            self.parents.remove(&i);
            return;
        }
        let n = self.links.get_mut(&i).expect("linked");
        *n -= 1;
        if *n == 0 {
            self.links.remove(&i);
        }
    }
    fn unlink(&mut self, parent: u64, n: &str, rmdir: bool) -> Result<(), Status> {
        let i = *self.dir(parent)?.get(n).ok_or(Status::NotFound)?;
        match (rmdir, self.is_dir(i)) {
            (true, false) => return Err(Status::NotDirectory),
            (false, true) => return Err(Status::IsDirectory),
            (true, true) if !self.dirs[&i].is_empty() => return Err(Status::NotEmpty),
            _ => {}
        }
        self.dir(parent)?.remove(n);
        self.drop(i);
        Ok(())
    }
    fn remove_tree(&mut self, parent: u64, n: &str) -> Result<(), Status> {
        let i = *self.dir(parent)?.get(n).ok_or(Status::NotFound)?;
        if !self.is_dir(i) {
            return Err(Status::NotDirectory);
        }
        self.dir(parent)?.remove(n);
        let mut open = vec![i];
        while let Some(i) = open.pop() {
            open.extend(self.dirs.get(&i).into_iter().flatten().map(|(_, inode)| *inode));
            self.drop(i);
        }
        Ok(())
    }
    fn link(&mut self, i: u64, parent: u64, n: &str) -> Result<(), Status> {
        if !self.links.contains_key(&i) && !self.is_dir(i) {
            return Err(Status::Stale);
        }
        let is_dir = self.is_dir(i);
        let dir = self.dir(parent)?;
        if dir.contains_key(n) {
            return Err(Status::Exists);
        }
        if is_dir {
            return Err(Status::NotPermitted);
        }
        dir.insert(n.into(), i);
        *self.links.get_mut(&i).expect("file") += 1;
        Ok(())
    }
    fn rename(&mut self, p: u64, n: &str, p2: u64, n2: &str, flags: u32) -> Result<(), Status> {
        let source = self.dir(p)?.get(n).copied();
        let target = self.dir(p2)?.get(n2).copied();
        let source = source.ok_or(Status::NotFound)?;
        if flags == 1 && target.is_some() {
            return Err(Status::Exists);
        }
        if self.is_dir(source) && p != p2 && self.inside(p2, source) {
            return Err(Status::InvalidArgument);
        }
        if flags == 2 {
            let target = target.ok_or(Status::NotFound)?;
            if source == target {
                return Ok(());
            }
            if self.is_dir(target) && p != p2 && self.inside(p, target) {
                return Err(Status::InvalidArgument);
            }
            self.dir(p)?.insert(n.into(), target);
            self.dir(p2)?.insert(n2.into(), source);
            for (i, parent) in [(source, p2), (target, p)] {
                if self.is_dir(i) {
                    self.parents.insert(i, parent);
                }
            }
            return Ok(());
        }
        if let Some(t) = target {
            if t == source {
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(t)) {
                (true, false) => return Err(Status::NotDirectory),
                (false, true) => return Err(Status::IsDirectory),
                (_, true) if !self.dirs[&t].is_empty() => return Err(Status::NotEmpty),
                _ => {}
            }
            self.drop(t);
        }
        self.dir(p)?.remove(n);
        self.dir(p2)?.insert(n2.into(), source);
        if self.is_dir(source) {
            self.parents.insert(source, p2);
        }
        Ok(())
    }
}

/// The whole tree as the namespace shows it, in pages of two.
async fn tree(w: &World) -> Model {
    let mut m = Model::default();
    m.parents.insert(1, 1);
    let (mut todo, mut inodes) = (vec![1], BTreeSet::from([1]));
    while let Some(dir) = todo.pop() {
        let mut entries = BTreeMap::new();
        let mut after = 0;
        loop {
            let q = ReadDir {
                caller: who(0),
                inode: InodeId(dir),
                after,
                limit: 2,
                attributes: true,
                atime: AtimeRule::default(),
            };
            let (page, _) = op!(*w, ns::readdir, q.clone()).expect("readdir");
            assert_eq!(page.parent.0, m.parents[&dir]);
            for e in page.entries {
                assert!(e.cookie > after);
                after = e.cookie;
                let attr = e.attr.expect("attributes");
                let n = String::from_utf8(e.name.to_vec()).expect("ascii");
                let look = Lookup { caller: who(0), parent: InodeId(dir), name: e.name.clone() };
                assert_eq!(op!(*w, ns::lookup, look.clone()).expect("lookup"), attr);
                entries.insert(n, e.inode.0);
                inodes.insert(e.inode.0);
                if e.kind == InodeKind::Directory {
                    m.parents.insert(e.inode.0, dir);
                    todo.push(e.inode.0);
                } else {
                    m.links.insert(e.inode.0, attr.nlink);
                }
            }
            if page.end {
                break;
            }
        }
        let of = OfInode { caller: who(0), inode: InodeId(dir) };
        let attr = op!(*w, ns::getattr, of.clone()).expect("getattr");
        let subdirs = m.parents.iter().filter(|(i, p)| **p == dir && **i != 1).count() as u32;
        assert_eq!(attr.nlink, 2 + subdirs, "links of directory {dir}");
        m.dirs.insert(dir, entries);
    }
    let usage = run_transaction(&w.rt, &w.engine, async |tx| ns::statfs(tx, VolumeId(1)).await)
        .await
        .expect("statfs");
    assert_eq!(usage.inodes, inodes.len() as u64, "counted inodes");
    m
}

fn status<T>(r: Result<T>) -> Result<(), Status> {
    r.map(|_| ()).map_err(|e| e.status)
}

async fn random_run(rt: &Rt, seed: u64, steps: u32) {
    let w = World::new(rt, 0).await;
    let mut m = Model::default();
    m.dirs.insert(1, BTreeMap::new());
    m.parents.insert(1, 1);
    let mut state = seed;
    let mut below = |n: u64| {
        state = state.wrapping_add(1);
        layout::splitmix64(state) % n
    };
    let mut ids = vec![1u64];
    let names = ["a", "b", "c", "d"];
    for step in 0..steps {
        w.clock.set(w.clock.get() + 1);
        let pick = |r: u64| InodeId(ids[r as usize % ids.len()]);
        let (p, p2, i) = (pick(below(99)), pick(below(99)), pick(below(99)));
        let (n, n2) = (names[below(4) as usize], names[below(4) as usize]);
        let request = RequestId(u128::from(step) + 1);
        let (got, want, what);
        match [0, 1, 2, 3, 4, 5, 0, 1, 4, 5, 0, 6][below(12) as usize] {
            k @ 0..=1 => {
                let kind = if k == 0 { InodeKind::Directory } else { InodeKind::File };
                let r = op!(w, ns::make, Make { request, ..make_q(who(0), p, n, kind) });
                want = m
                    .dir(p.0)
                    .and_then(|d| if d.contains_key(n) { Err(Status::Exists) } else { Ok(()) });
                if let Ok(made) = &r {
                    let id = made.attr.inode.0;
                    ids.push(id);
                    m.dir(p.0).expect("dir").insert(n.into(), id);
                    if kind == InodeKind::Directory {
                        m.dirs.insert(id, BTreeMap::new());
                        m.parents.insert(id, p.0);
                    } else {
                        m.links.insert(id, 1);
                    }
                    // The same request again changes nothing.
                    let again = op!(w, ns::make, Make { request, ..make_q(who(0), p, n, kind) });
                    assert_eq!(again.expect("retry").attr.inode.0, id);
                }
                (got, what) = (status(r), format!("make {kind:?} {p}/{n}"));
            }
            k @ 2..=3 => {
                let q =
                    Unlink { caller: who(0), request, parent: p, name: name(n), directory: k == 2 };
                let r = op!(w, ns::unlink, q.clone());
                if r.is_ok() {
                    assert_eq!(op!(w, ns::unlink, q.clone()).expect("retry"), None);
                }
                (got, want) = (status(r), m.unlink(p.0, n, k == 2));
                what = format!("unlink {p}/{n} dir {}", k == 2);
            }
            4 => {
                let q = Link { caller: who(0), request, inode: i, parent: p, name: name(n) };
                (got, want) = (status(op!(w, ns::link, q.clone())), m.link(i.0, p.0, n));
                what = format!("link {i} {p}/{n}");
            }
            6 => {
                let (inode, name) = (InodeId(0), name(n));
                let q =
                    RemoveTree { caller: who(0), request, parent: p, name, inode, check: false };
                got = status(remove_tree(&w, &q, below(3) as u32 + 1).await);
                (want, what) = (m.remove_tree(p.0, n), format!("remove tree {p}/{n}"));
            }
            _ => {
                let flags = below(3) as u32;
                let q = Rename {
                    caller: who(0),
                    request,
                    parent: p,
                    name: name(n),
                    new_parent: p2,
                    new_name: name(n2),
                    flags,
                };
                (got, want) =
                    (status(op!(w, ns::rename, q.clone())), m.rename(p.0, n, p2.0, n2, flags));
                what = format!("rename {p}/{n} {p2}/{n2} flags {flags}");
            }
        }
        assert_eq!(got, want, "seed {seed} step {step}: {what}");
        if step % 10 == 0 || step + 1 == steps {
            let t = tree(&w).await;
            assert_eq!(t.dirs, m.dirs, "seed {seed} step {step}: {what}");
            assert_eq!(t.links, m.links, "seed {seed} step {step}: {what}");
        }
    }
    checked(&w.rt, &w.engine, &w, &who(0), &format!("seed {seed}")).await;
}

#[test]
fn random_operations_equal_the_model() {
    real::run(|rt| async move {
        for seed in 0..20 {
            random_run(&rt, seed * 1_000_003, 300).await;
        }
    });
}

#[test]
fn concurrent_renames_make_no_cycle() {
    real::run(|rt| async move {
        let w = Rc::new(World::new(&rt, 0).await);
        let mut dirs = vec![InodeId(1)];
        for n in ["a", "b", "c", "d", "e"] {
            dirs.push(
                op!(*w, ns::make, make_q(who(0), InodeId(1), n, InodeKind::Directory))
                    .expect("mkdir")
                    .attr
                    .inode,
            );
        }
        let mut tasks = vec![];
        for worker in 0..4u64 {
            let (w, dirs, rt2) = (w.clone(), dirs.clone(), rt.clone());
            tasks.push(rt.spawn(async move {
                let mut done = 0;
                for i in 0..200u64 {
                    let r = layout::splitmix64(worker * 1000 + i);
                    let names = ["a", "b", "c", "d", "e"];
                    let (n, from, to) = (
                        names[(r % 5) as usize],
                        dirs[(r >> 8) as usize % 6],
                        dirs[(r >> 16) as usize % 6],
                    );
                    let q = Rename {
                        caller: who(0),
                        request: RequestId(0),
                        parent: from,
                        name: name(n),
                        new_parent: to,
                        new_name: name(n),
                        flags: 0,
                    };
                    // Yield between the reads, so that others come in between.
                    let moved = run_transaction(&w.rt, &w.engine, async |tx| {
                        let r = ns::rename(&Context::new(tx, &q.caller, &*w), &q).await;
                        rt2.yield_now().await;
                        r
                    })
                    .await;
                    done += u32::from(moved.is_ok());
                }
                done
            }));
        }
        let mut done = 0;
        for t in tasks {
            done += t.await;
        }
        assert!(done > 20, "only {done} renames succeeded");
        let t = tree(&w).await;
        assert_eq!(t.dirs.len(), 6, "a directory is out of reach: {t:?}");
        checked(&w.rt, &w.engine, &*w, &who(0), "concurrent renames").await;
    });
}

fn open_q(inode: InodeId, uid: u32, write: bool, truncate: bool, session: u128) -> Open {
    let session = SessionId(session);
    let flags = OpenFlags { read: true, write, truncate, session, ..OpenFlags::default() };
    Open { caller: who(uid), request: RequestId(0), inode, flags }
}

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
    g.into_iter().map(|g| g.data).collect()
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
        let e = op!(w, ns::open, open_q(i, 0, true, false, 3)).expect_err("cut pending");
        assert!(ns::is_cut_pending(&e));
        run_transaction(&w.rt, &w.engine, async |tx| {
            ns::finish_cut(tx, VolumeId(1), i, attr.epoch, None).await
        })
        .await
        .expect("cut");
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
        assert!(ns::is_cut_pending(&op!(w, ns::setattr, longer(40)).expect_err("cut pending")));
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
            ns::sessions_of(tx, VolumeId(1), c, 10).await
        })
        .await
        .expect("sessions");
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

#[test]
fn permissions() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let root = InodeId(1);
        let denied = |r: Result<()>| r.expect_err("denied").errno();
        let d = op!(w, ns::make, make_q(who(5), root, "d", InodeKind::Directory))
            .expect("mkdir")
            .attr
            .inode;
        let f =
            op!(w, ns::make, make_q(who(5), d, "f", InodeKind::File)).expect("create").attr.inode;
        assert_eq!(
            denied(op!(w, ns::make, make_q(who(6), d, "x", InodeKind::File)).map(|_| ())),
            13
        );
        assert_eq!(denied(op!(w, ns::open, open_q(f, 6, true, false, 1)).map(|_| ())), 13);
        op!(w, ns::open, open_q(f, 6, false, false, 0)).expect("others may read");
        let set = |uid: u32, f: &dyn Fn(&mut SetAttr)| {
            let mut q = SetAttr { caller: who(uid), ..SetAttr::default() };
            f(&mut q);
            q
        };
        assert_eq!(
            denied(
                op!(w, ns::setattr, set(6, &|q| (q.inode, q.mode) = (f, Some(0o777)))).map(|_| ())
            ),
            1
        );
        assert_eq!(
            denied(op!(w, ns::setattr, set(5, &|q| (q.inode, q.uid) = (f, Some(6)))).map(|_| ())),
            1
        );
        assert_eq!(
            denied(
                op!(w, ns::setattr, set(6, &|q| (q.inode, q.atime) = (f, Some(SetTime::Now))))
                    .map(|_| ())
            ),
            13
        );
        let suid = op!(w, ns::setattr, set(5, &|q| (q.inode, q.mode) = (f, Some(0o6755))))
            .expect("chmod")
            .0;
        assert_eq!(suid.mode, 0o6755);
        let chowned =
            op!(w, ns::setattr, set(0, &|q| (q.inode, q.uid) = (f, Some(7)))).expect("chown").0;
        assert_eq!(chowned.mode, 0o755, "set-id bits go with a new owner");
        // Sticky: only owners remove.
        op!(w, ns::setattr, set(5, &|q| (q.inode, q.mode) = (d, Some(0o1777)))).expect("sticky");
        let rm = |uid| Unlink {
            caller: who(uid),
            request: RequestId(0),
            parent: d,
            name: name("f"),
            directory: false,
        };
        assert_eq!(denied(op!(w, ns::unlink, rm(6)).map(|_| ())), 1);
        op!(w, ns::unlink, rm(7)).expect("the file's owner");
        // Set-group-id directories hand their group on.
        op!(w, ns::setattr, set(0, &|q| (q.inode, q.gid, q.mode) = (d, Some(42), Some(0o2777))))
            .expect("setgid");
        let sub =
            op!(w, ns::make, make_q(who(6), d, "s", InodeKind::Directory)).expect("mkdir").attr;
        assert_eq!((sub.gid, sub.mode), (42, 0o2755));
    });
}

#[test]
fn acls_are_enforced_and_inherited() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let root = InodeId(1);
        // Version 2, then tag, permissions, id: user 5 may all, the mask leaves reading and searching.
        let acl = |entries: &[(u16, u16, u32)]| {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, perm, id) in entries {
                bytes.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let none = u32::MAX;
        let user5 = acl(&[(1, 7, none), (2, 7, 5), (4, 0, none), (16, 5, none), (32, 0, none)]);
        let set = |uid, inode, n: &str, value: &[u8]| SetXattr {
            caller: who(uid),
            request: RequestId(0),
            inode,
            name: name(n),
            value: value.to_vec(),
            flags: 0,
        };
        let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
        let d = op!(w, ns::make, make_q(who(1), root, "d", InodeKind::Directory))
            .expect("mkdir")
            .attr
            .inode;
        let refused = op!(w, ns::setxattr, set(5, d, access, &user5)).expect_err("not the owner");
        assert_eq!(refused.status, Status::NotPermitted);
        op!(w, ns::setxattr, set(1, d, access, &user5)).expect("access");
        op!(w, ns::setxattr, set(1, d, default, &user5)).expect("default");
        let of = |inode| OfInode { caller: who(0), inode };
        let attr = op!(w, ns::getattr, of(d)).expect("attr");
        assert_eq!((attr.mode, attr.has_acl), (0o750, true));
        let list = |uid| ReadDir {
            caller: who(uid),
            inode: d,
            after: 0,
            limit: 9,
            attributes: false,
            atime: AtimeRule::default(),
        };
        op!(w, ns::readdir, list(5)).expect("named");
        assert_eq!(op!(w, ns::readdir, list(6)).expect_err("others").status, Status::AccessDenied);
        let made = op!(w, ns::make, make_q(who(5), d, "no", InodeKind::File)).expect_err("masked");
        assert_eq!(made.status, Status::AccessDenied);
        // What is made inside gets the default, less what the maker did not ask for; the umask is not used.
        let f = Make { mode: 0o640, umask: 0o777, ..make_q(who(1), d, "f", InodeKind::File) };
        let f = op!(w, ns::make, f.clone()).expect("make").attr;
        assert_eq!((f.mode, f.has_acl), (0o640, true));
        op!(w, ns::open, open_q(f.inode, 5, false, false, 0)).expect("inherited");
        let sub = op!(w, ns::make, make_q(who(1), d, "s", InodeKind::Directory))
            .expect("mkdir")
            .attr
            .inode;
        let names = op!(w, ns::listxattr, of(sub)).expect("list");
        assert_eq!(names, [name(access), name(default)]);
        // chmod moves the mask; without ACLs the mode rules again.
        let chmod =
            SetAttr { caller: who(1), inode: f.inode, mode: Some(0o600), ..SetAttr::default() };
        op!(w, ns::setattr, chmod.clone()).expect("chmod");
        assert_eq!(
            op!(w, ns::open, open_q(f.inode, 5, false, false, 0)).expect_err("masked").status,
            Status::AccessDenied
        );
        op!(w, ns::setxattr, set(1, f.inode, access, &[])).expect("remove");
        assert!(!op!(w, ns::getattr, of(f.inode)).expect("attr").has_acl);
        let plain =
            Make { mode: 0o666, umask: 0o027, ..make_q(who(1), root, "p", InodeKind::File) };
        assert_eq!(op!(w, ns::make, plain.clone()).expect("make").attr.mode, 0o640);
    });
}
