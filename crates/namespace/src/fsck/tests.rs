//! A healthy tree of every kind of thing is clean; each kind of damage, put into the records directly, is found, mended, and gone afterwards.

#[path = "../../tests/world/mod.rs"]
mod world;

use super::*;
use crate as ns;
use crate::record::{Contents, CookieEntry, OrphanRecord, Session, pack};
use glowfs_kv::{Key, Transaction, run_transaction};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::fsck::{Finding, Problem};
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::RemoveTree;
use glowfs_types::*;
use std::collections::BTreeSet;
use world::{NEXT, NO_TABLE, V, World};

fn who() -> Caller {
    Caller { client: ClientId(7), volume: V, ..Caller::default() }
}

fn name(n: &str) -> Name {
    n.as_bytes().to_vec().into()
}

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q) = ($w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &who(), w), &q).await)
            .await
            .expect(stringify!($f))
    }};
}

impl World {
    async fn change(&self, work: impl AsyncFn(&Transaction) -> Result<()>) {
        run_transaction(&self.rt, &self.engine, work).await.expect("planted");
    }
    async fn put(&self, key: Key, value: Vec<u8>) {
        self.change(async |tx| tx.put(key.clone(), value.clone())).await;
    }
    async fn clear(&self, key: Key) {
        self.change(async |tx| tx.clear(key.clone())).await;
    }
    async fn get(&self, key: &Key) -> Option<Vec<u8>> {
        run_transaction(&self.rt, &self.engine, async |tx| tx.get(key).await).await.expect("read")
    }
    async fn inode(&self, id: InodeId) -> Inode {
        unpack("inode", &self.get(&keys::inode(V, id)).await.expect("there")).expect("an inode")
    }
    async fn edit(&self, id: InodeId, edit: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(id).await;
        edit(&mut inode);
        self.put(keys::inode(V, id), pack(&inode)).await;
    }
    async fn entry(&self, parent: InodeId, n: &str) -> Option<Dentry> {
        let value = self.get(&keys::dentry(V, parent, n.as_bytes())).await?;
        Some(unpack("dentry", &value).expect("a dentry"))
    }
    async fn ask(&self, q: Fsck) -> Result<FsckReply> {
        run_transaction(&self.rt, &self.engine, async |tx| {
            answer(&Context::new(tx, &who(), self), &q).await
        })
        .await
    }
    async fn check(&self) -> Report {
        check(&self.rt, &async |q| self.ask(q).await, &mut |_| ()).await.expect("checked")
    }
    async fn mend(&self, findings: &[Finding]) -> Mended {
        let done = mend(&async |q| self.ask(q).await, findings, &mut |_| ()).await.expect("asked");
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        done
    }
    async fn make(&self, parent: InodeId, n: &str, kind: InodeKind) -> InodeId {
        let symlink = if kind == InodeKind::Symlink { b"target".to_vec() } else { vec![] };
        let request = RequestId(u128::from(self.id.get()) << 8);
        let q = Make {
            caller: who(),
            request,
            parent,
            name: name(n),
            kind,
            mode: 0o755,
            symlink,
            ..Make::default()
        };
        op!(self, ns::make, q).attr.inode
    }
    async fn mkdir(&self, parent: InodeId, n: &str) -> InodeId {
        self.make(parent, n, InodeKind::Directory).await
    }
    async fn file(&self, parent: InodeId, n: &str) -> InodeId {
        self.make(parent, n, InodeKind::File).await
    }
    async fn rm(&self, parent: InodeId, n: &str, directory: bool) {
        let q = Unlink { caller: who(), request: RequestId(0), parent, name: name(n), directory };
        op!(self, ns::unlink, q);
    }
    async fn open(&self, inode: InodeId, session: u128) {
        let flags = OpenFlags {
            read: true,
            write: true,
            session: SessionId(session),
            ..OpenFlags::default()
        };
        op!(self, ns::open, Open { caller: who(), request: RequestId(0), inode, flags });
    }
    async fn lock(&self, inode: InodeId, owner: u64, waits: bool) {
        let wish = LockWish::Exclusive;
        op!(
            self,
            ns::lock,
            Lock { caller: who(), inode, owner, wish, end: 9, waits, ..Lock::default() }
        );
    }
    async fn setxattr(&self, inode: InodeId, n: &str, value: &[u8]) {
        let (request, flags) = (RequestId(0), 0);
        op!(
            self,
            ns::setxattr,
            SetXattr { caller: who(), request, inode, name: name(n), value: value.to_vec(), flags }
        );
    }
}

/// The places of a healthy tree that has every kind of thing.
struct Tree {
    d: InodeId,
    sub: InodeId,
    f: InodeId,
    two: InodeId,
    link: InodeId,
    trashed: InodeId,
    removed: InodeId,
}

async fn tree(w: &World) -> Tree {
    let root = ROOT_INODE;
    let d = w.mkdir(root, "d").await;
    let sub = w.mkdir(d, "sub").await;
    w.mkdir(sub, "deep").await;
    let f = w.file(d, "f").await;
    let two = w.file(d, "two").await;
    op!(
        w,
        ns::link,
        Link {
            caller: who(),
            request: RequestId(0),
            inode: two,
            parent: sub,
            name: name("second")
        }
    );
    let link = w.make(root, "link", InodeKind::Symlink).await;
    w.make(root, "fifo", InodeKind::Fifo).await;
    w.make(root, "device", InodeKind::CharDevice).await;
    w.setxattr(f, "user.note", b"x").await;
    w.setxattr(d, "user.note", b"x").await;
    w.open(f, 50).await;
    w.lock(f, 1, false).await;
    w.lock(f, 2, true).await;
    // Removed while it is open; removed and kept by the service; never named.
    let removed = w.file(d, "removed").await;
    w.open(removed, 51).await;
    w.rm(d, "removed", false).await;
    w.file(d, "gone").await;
    w.rm(d, "gone", false).await;
    let flags =
        OpenFlags { read: true, write: true, session: SessionId(52), ..OpenFlags::default() };
    op!(
        w,
        ns::make,
        Make {
            caller: who(),
            parent: d,
            kind: InodeKind::File,
            open: Some(flags),
            unnamed: true,
            ..Make::default()
        }
    );
    // A trash.
    w.setxattr(sub, "glowfs.trash", b"7d").await;
    let trashed = w.file(sub, "kept").await;
    w.rm(sub, "kept", false).await;
    // Directories that were moved and removed.
    w.mkdir(d, "a").await;
    let b = w.mkdir(root, "b").await;
    let (old, new) = (name("a"), name("moved"));
    op!(
        w,
        ns::rename,
        Rename {
            caller: who(),
            request: RequestId(0),
            parent: d,
            name: old,
            new_parent: b,
            new_name: new,
            flags: 0
        }
    );
    w.mkdir(b, "short").await;
    w.rm(b, "short", true).await;
    Tree { d, sub, f, two, link, trashed, removed }
}

fn kinds(report: &Report) -> BTreeSet<Problem> {
    report.findings.iter().map(|f| f.problem).collect()
}

/// Damages a healthy tree, expects these problems, and that mending ends well: all is clean, or only what cannot be mended is left.
async fn damaged(
    rt: &Rt,
    what: &str,
    expected: &[Problem],
    damage: impl AsyncFn(&World, &Tree),
) -> (World, Tree) {
    let w = World { ticks: true, keeps_removed: true, ..World::new(rt, 0).await };
    let t = tree(&w).await;
    let clean = w.check().await;
    assert!(clean.findings.is_empty() && clean.undecided.is_empty(), "{:?}", clean.findings);
    damage(&w, &t).await;
    let mut report = w.check().await;
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    assert_eq!(kinds(&report), expected, "{what}: {:#?}", report.findings);
    for _ in 0..6 {
        if report.findings.iter().all(|f| f.cure.is_empty()) {
            break;
        }
        w.mend(&report.findings).await;
        report = w.check().await;
    }
    assert!(report.findings.iter().all(|f| f.cure.is_empty()), "{what}: {:#?}", report.findings);
    (w, t)
}

async fn clean_after(
    rt: &Rt,
    what: &str,
    expected: &[Problem],
    damage: impl AsyncFn(&World, &Tree),
) -> (World, Tree) {
    let (w, t) = damaged(rt, what, expected, damage).await;
    let report = w.check().await;
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    (w, t)
}

async fn lost_found(w: &World, id: InodeId) -> InodeId {
    let dir = w.entry(ROOT_INODE, "lost+found").await.expect("made").inode;
    let entry = w.entry(dir, &format!("#{}", id.0)).await.expect("in /lost+found");
    assert_eq!(entry.inode, id);
    dir
}

#[test]
fn entries() {
    use Problem::*;
    real::run(|rt| async move {
        let (w, t) = clean_after(&rt, "an inode is lost", &[Dangling, Stray], async |w, t| {
            w.clear(keys::inode(V, t.f)).await
        })
        .await;
        assert!(w.entry(t.d, "f").await.is_none());

        let (w, t) = clean_after(&rt, "an entry is lost", &[StrayCookie, Links], async |w, t| {
            w.clear(keys::dentry(V, t.d, b"two")).await
        })
        .await;
        assert_eq!(w.entry(t.d, "two").await.expect("it comes back").inode, t.two);

        let (w, t) = clean_after(&rt, "entry and cookie are lost", &[Unnamed], async |w, t| {
            let d = w.entry(t.d, "f").await.expect("there");
            w.clear(keys::dentry(V, t.d, b"f")).await;
            w.clear(keys::cookie(V, t.d, d.cookie)).await;
        })
        .await;
        lost_found(&w, t.f).await;
        assert_eq!(w.inode(t.f).await.nlink, 1);

        clean_after(&rt, "a cookie is lost", &[NoCookie], async |w, t| {
            let d = w.entry(t.d, "f").await.expect("there");
            w.clear(keys::cookie(V, t.d, d.cookie)).await;
        })
        .await;

        clean_after(&rt, "two entries have one cookie", &[NoCookie, StrayCookie], async |w, t| {
            let (f, mut two) =
                (w.entry(t.d, "f").await.expect("f"), w.entry(t.d, "two").await.expect("two"));
            two.cookie = f.cookie;
            w.put(keys::dentry(V, t.d, b"two"), pack(&two)).await;
        })
        .await;

        clean_after(&rt, "a cookie of nothing", &[StrayCookie], async |w, t| {
            let c =
                CookieEntry { inode: InodeId(4000), kind: InodeKind::File, name: name("never") };
            w.put(keys::cookie(V, t.d, 4001), pack(&c)).await;
        })
        .await;

        let wrong = [WrongKind, NoCookie, Subdirs];
        clean_after(&rt, "an entry says directory", &wrong, async |w, t| {
            let d = Dentry { kind: InodeKind::Directory, ..w.entry(t.d, "f").await.expect("f") };
            w.put(keys::dentry(V, t.d, b"f"), pack(&d)).await;
        })
        .await;

        let above = [Counter, NoCookie];
        clean_after(&rt, "an id above the counter", &above, async |w, t| {
            let d = Dentry { cookie: 2 * NEXT, ..w.entry(t.d, "f").await.expect("f") };
            let old = w.entry(t.d, "f").await.expect("f").cookie;
            w.clear(keys::cookie(V, t.d, old)).await;
            w.put(keys::dentry(V, t.d, b"f"), pack(&d)).await;
        })
        .await;
        clean_after(&rt, "the counters are lost", &[Counter], async |w, _| {
            w.clear(keys::next_id(V, 0)).await;
            w.clear(keys::next_id(V, 1)).await;
        })
        .await;
    });
}

#[test]
fn links_and_queues() {
    use Problem::*;
    real::run(|rt| async move {
        for n in [0, 1, 7] {
            let (w, t) = clean_after(&rt, "a wrong count", &[Links], async |w, t| {
                w.edit(t.two, |i| i.nlink = n).await
            })
            .await;
            assert_eq!(w.inode(t.two).await.nlink, 2);
        }
        let (w, t) = clean_after(&rt, "named and about to go", &[Links], async |w, t| {
            w.put(keys::orphan(V, t.two), pack(&OrphanRecord::default())).await
        })
        .await;
        assert!(w.get(&keys::orphan(V, t.two)).await.is_none());
        clean_after(&rt, "named and in the trash", &[Links], async |w, t| {
            w.edit(t.two, |i| i.trashed = Some(5)).await
        })
        .await;
        // Open: its session holds it. Closed: nothing does.
        let (w, t) = clean_after(&rt, "removed and open", &[], async |w, t| {
            w.clear(keys::orphan(V, t.removed)).await
        })
        .await;
        w.clear(keys::session(V, t.removed, SessionId(51))).await;
        w.clear(keys::client_session(V, ClientId(7), SessionId(51))).await;
        let report = w.check().await;
        assert_eq!(kinds(&report), BTreeSet::from([Unnamed]));
        w.mend(&report.findings).await;
        lost_found(&w, t.removed).await;
        // A repair that has been overtaken does nothing.
        let again = w.mend(&report.findings).await;
        assert_eq!((again.mended, again.changed), (0, 1));

        let trash = [Unnamed];
        clean_after(&rt, "the trash forgot it", &trash, async |w, t| {
            let until = w.inode(t.trashed).await.trashed.expect("in the trash");
            w.clear(keys::trash(V, until, t.trashed)).await;
        })
        .await;
        clean_after(&rt, "a record of the trash too many", &[Stray], async |w, t| {
            let until = w.inode(t.trashed).await.trashed.expect("in the trash");
            let record = w.get(&keys::trash(V, until, t.trashed)).await.expect("there");
            w.put(keys::trash(V, until + 1, t.trashed), record).await;
        })
        .await;
    });
}

#[test]
fn directories() {
    use Problem::*;
    real::run(|rt| async move {
        let lost = [LostDirectory, Dangling, Stray];
        let (w, t) = clean_after(&rt, "a directory is lost", &lost, async |w, t| {
            w.clear(keys::inode(V, t.d)).await
        })
        .await;
        assert_eq!(w.entry(ROOT_INODE, "d").await.expect("still there").inode, t.d);
        assert_eq!(w.entry(t.d, "f").await.expect("still there").inode, t.f);
        assert_eq!(w.inode(t.d).await.mode, 0o700);

        let (w, t) = clean_after(&rt, "a tree is cut off", &[Unnamed, Subdirs], async |w, _| {
            let d = w.entry(ROOT_INODE, "d").await.expect("there");
            w.clear(keys::dentry(V, ROOT_INODE, b"d")).await;
            w.clear(keys::cookie(V, ROOT_INODE, d.cookie)).await;
        })
        .await;
        let dir = lost_found(&w, t.d).await;
        assert_eq!(w.inode(t.d).await.parent, dir);
        assert_eq!(w.entry(t.d, "f").await.expect("with all that is in it").inode, t.f);

        let more = [ExtraNames, Subdirs];
        let (w, t) = clean_after(&rt, "a directory with two names", &more, async |w, t| {
            let d = Dentry { cookie: 5000, ..w.entry(t.d, "sub").await.expect("there") };
            let listed = CookieEntry { inode: d.inode, kind: d.kind, name: name("again") };
            w.put(keys::dentry(V, ROOT_INODE, b"again"), pack(&d)).await;
            w.put(keys::cookie(V, ROOT_INODE, 5000), pack(&listed)).await;
        })
        .await;
        assert!(
            w.entry(t.d, "sub").await.is_some() && w.entry(ROOT_INODE, "again").await.is_none()
        );

        for (what, edit) in [
            ("parent", (|i| i.parent = ROOT_INODE) as fn(&mut Inode)),
            ("name", |i| i.name = Some(name("other"))),
            ("count", |i| i.nlink = 3),
        ] {
            clean_after(&rt, what, &[Parent], async |w, t| w.edit(t.sub, edit).await).await;
        }
        clean_after(&rt, "the root's parent", &[Parent], async |w, t| {
            w.edit(ROOT_INODE, |i| i.parent = t.d).await
        })
        .await;

        // d moved into its own sub-directory.
        let circle = [Cycle, Subdirs];
        let (w, t) = clean_after(&rt, "a circle", &circle, async |w, t| {
            let d = w.entry(ROOT_INODE, "d").await.expect("there");
            w.clear(keys::dentry(V, ROOT_INODE, b"d")).await;
            w.clear(keys::cookie(V, ROOT_INODE, d.cookie)).await;
            let listed = CookieEntry { inode: d.inode, kind: d.kind, name: name("d") };
            w.put(keys::dentry(V, t.sub, b"d"), pack(&d)).await;
            w.put(keys::cookie(V, t.sub, d.cookie), pack(&listed)).await;
            w.edit(t.d, |i| i.parent = t.sub).await;
        })
        .await;
        let top = w.inode(t.d).await.parent;
        let lf = w.entry(ROOT_INODE, "lost+found").await.expect("made").inode;
        assert!(top == lf || w.inode(t.sub).await.parent == lf);

        for n in [0i64, 5, -1] {
            clean_after(&rt, "a wrong number of sub-directories", &[Subdirs], async |w, t| {
                w.put(keys::dir_subdirs(V, t.d), n.to_le_bytes().to_vec()).await
            })
            .await;
        }
        let not = [NotADirectory];
        clean_after(&rt, "an entry of a file", &not, async |w, t| {
            let d = Dentry { inode: t.two, kind: InodeKind::File, cookie: 6000 };
            let listed = CookieEntry { inode: t.two, kind: InodeKind::File, name: name("x") };
            w.put(keys::dentry(V, t.f, b"x"), pack(&d)).await;
            w.put(keys::cookie(V, t.f, 6000), pack(&listed)).await;
            w.edit(t.two, |i| i.nlink = 3).await;
        })
        .await;
    });
}

#[test]
fn records_of_what_is_gone() {
    use Problem::*;
    real::run(|rt| async move {
        const GONE: InodeId = InodeId(77_777);
        let c = ClientId(9);
        let session =
            Session { client: c, read: true, write: true, opened: Time::default(), fence: 0 };
        let plants: Vec<(&str, Key, Vec<u8>)> = vec![
            ("xattr", keys::xattr(V, GONE, b"user.a"), b"x".to_vec()),
            ("side", keys::dir_version(V, GONE), 1i64.to_le_bytes().to_vec()),
            ("orphan", keys::orphan(V, GONE), pack(&OrphanRecord::default())),
            ("contents", keys::content(V, GONE), b"abc".to_vec()),
            ("session", keys::session(V, GONE, SessionId(1)), pack(&session)),
        ];
        for (what, key, value) in plants {
            clean_after(&rt, what, &[Stray], async |w, _| w.put(key.clone(), value.clone()).await)
                .await;
        }
        clean_after(&rt, "locks", &[Stray], async |w, t| {
            let table = w.get(&keys::locks(V, t.f)).await.expect("locked");
            w.put(keys::locks(V, GONE), table).await;
        })
        .await;
        clean_after(&rt, "a session unknown to its client", &[NoIndex], async |w, _| {
            w.clear(keys::client_session(V, ClientId(7), SessionId(50))).await
        })
        .await;
        clean_after(&rt, "locks unknown to their client", &[NoIndex], async |w, t| {
            w.clear(keys::client_lock(V, ClientId(7), t.f)).await
        })
        .await;
        clean_after(&rt, "a symlink's length", &[BadLength], async |w, t| {
            w.edit(t.link, |i| i.len = 3).await
        })
        .await;
        clean_after(&rt, "contents of a file of chunks", &[Stray], async |w, t| {
            w.put(keys::content(V, t.f), b"abc".to_vec()).await
        })
        .await;
        clean_after(&rt, "contents that are longer than their file", &[BadLength], async |w, t| {
            w.put(keys::content(V, t.f), b"abc".to_vec()).await;
            w.edit(t.f, |i| i.contents = Contents::Inline).await
        })
        .await;
        // A dead client's leftovers get some time to go; here nobody takes them away.
        clean_after(&rt, "sessions, locks and waits of clients", &[Stray], async |w, t| {
            w.put(keys::client_session(V, c, SessionId(1)), t.f.0.to_be_bytes().to_vec()).await;
            w.put(keys::client_lock(V, c, t.two), vec![]).await;
            let waits = crate::locking::Waiting { inode: GONE, exclusive: true, start: 0, end: 1 };
            w.put(keys::lock_wait(V, c, 3), pack(&waits)).await;
        })
        .await;
    });
}

#[test]
fn what_cannot_be_mended_is_left_alone() {
    use Problem::*;
    real::run(|rt| async move {
        let strange = vec![0xff, 0, 0xff];
        for (what, key) in [
            ("an inode", keys::inode(V, InodeId(500))),
            ("an inode in use", keys::inode(V, InodeId(4))),
            ("a volume record", keys::volume(V)),
            ("a queued removal", keys::orphan(V, InodeId(500))),
            ("a session", keys::session(V, InodeId(2), SessionId(8))),
            ("a request", keys::request(V, 1, RequestId(8))),
        ] {
            let (w, _) = damaged(&rt, what, &[Unreadable], async |w, _| {
                w.put(key.clone(), strange.clone()).await
            })
            .await;
            assert_eq!(w.get(&key).await.as_ref(), Some(&strange), "{what}");
        }
        // While an entry cannot be read, what it may lead to is not moved.
        let (w, t) = damaged(&rt, "an entry", &[Unreadable, Unnamed], async |w, t| {
            w.put(keys::dentry(V, t.d, b"f"), strange.clone()).await
        })
        .await;
        assert!(w.entry(ROOT_INODE, "lost+found").await.is_none());
        assert_eq!(w.inode(t.f).await.nlink, 1);

        let unknown = [keys::volume(V)[..8].to_vec(), b"Qwhat".to_vec()].concat();
        let (w, _) = damaged(&rt, "an unknown kind", &[Unknown], async |w, _| {
            w.put(unknown.clone(), b"x".to_vec()).await
        })
        .await;
        assert!(w.get(&unknown).await.is_some());
        damaged(&rt, "a key too short", &[Unreadable], async |w, _| {
            w.put(keys::inode(V, InodeId(9))[..12].to_vec(), vec![]).await
        })
        .await;
        damaged(&rt, "a newer format", &[NewerFormat], async |w, _| {
            let record =
                crate::record::VolumeRecord { format: keys::FORMAT + 1, made: Time::default() };
            w.put(keys::volume(V), pack(&record)).await;
        })
        .await;
        damaged(&rt, "a table that is not there", &[UnknownLayout], async |w, t| {
            w.edit(t.f, |i| i.layout.as_mut().expect("a file").table = ChainTableId(NO_TABLE)).await
        })
        .await;
        damaged(&rt, "a length", &[BadLength], async |w, t| {
            w.edit(t.f, |i| i.len = u64::MAX).await
        })
        .await;
        damaged(&rt, "a list", &[BadAcl], async |w, t| {
            w.edit(t.f, |i| i.acl = Some(vec![1, 2, 3].into())).await
        })
        .await;
        damaged(&rt, "the root is lost", &[LostDirectory, Stray], async |w, _| {
            w.clear(keys::inode(V, ROOT_INODE)).await
        })
        .await;
    });
}

/// Takes `d` away as REMOVE_TREE does; nothing of it is emptied yet.
async fn remove_d(w: &World, t: &Tree) {
    let (inode, request, name) = (t.d, RequestId(0), name("d"));
    let q = RemoveTree { caller: who(), request, parent: ROOT_INODE, name, inode, check: false };
    let removed = run_transaction(&w.rt, &w.engine, async |tx| {
        let cx = &Context::new(tx, &q.caller, w);
        let place = ns::tree_place(cx, &q).await?;
        ns::remove_tree(cx, &q, &place).await
    });
    assert!(removed.await.expect("removed").now);
    let clean = w.check().await;
    assert!(clean.findings.is_empty(), "a tree on its way out is no damage: {:?}", clean.findings);
}

#[test]
fn trees_on_their_way_out() {
    use Problem::*;
    real::run(|rt| async move {
        // Nobody knows any more that it was to go, or for whom: it is kept.
        for (what, sums) in [("the queue", false), ("the tree", true)] {
            let damage = async |w: &World, t: &Tree| {
                remove_d(w, t).await;
                match sums {
                    true => w.clear(keys::tree(V, t.d)).await,
                    false => w.clear(keys::leaving(V, t.d)).await,
                }
            };
            let expected = if sums { &[Unnamed, Stray][..] } else { &[Unnamed] };
            let (w, t) = clean_after(&rt, what, expected, damage).await;
            lost_found(&w, t.d).await;
            assert_eq!(w.inode(t.d).await.nlink, 1);
            assert!(w.entry(t.d, "f").await.is_some());
            assert!(w.get(&keys::leaving(V, t.d)).await.is_none());
        }
        // A directory that has its name is not emptied, whatever the queue says, and does not stay in it.
        let (w, t) = clean_after(&rt, "a name", &[Stray], async |w, t| {
            remove_d(w, t).await;
            let cookie = w.id.get() + 1;
            w.id.set(cookie);
            let entry = Dentry { inode: t.d, kind: InodeKind::Directory, cookie };
            w.put(keys::dentry(V, ROOT_INODE, b"d"), pack(&entry)).await;
            let listed = CookieEntry { inode: t.d, kind: InodeKind::Directory, name: name("d") };
            w.put(keys::cookie(V, ROOT_INODE, cookie), pack(&listed)).await;
            w.change(async |tx| tx.add(keys::dir_subdirs(V, ROOT_INODE), 1)).await;
            w.edit(t.d, |i| (i.nlink, i.name) = (1, Some(name("d")))).await;
        })
        .await;
        assert!(w.entry(t.d, "f").await.is_some());
        assert!(w.get(&keys::tree(V, t.d)).await.is_none());
        // Records of nothing.
        clean_after(&rt, "strays", &[Stray], async |w, _| {
            w.put(keys::tree_sum(V, InodeId(5000), 1), vec![0; 8]).await;
        })
        .await;
        clean_after(&rt, "a directory that is gone", &[Stray], async |w, t| {
            remove_d(w, t).await;
            let lost = crate::tree::LeavingRecord { tree: t.d, path: None };
            w.put(keys::leaving(V, InodeId(5000)), pack(&lost)).await;
            w.change(async |tx| tx.add(keys::tree_sum(V, t.d, 0), 1)).await;
        })
        .await;
    });
}
