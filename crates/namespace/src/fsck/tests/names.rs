//! Damage to names: entries and their cookies, counts of links, queues of what has no name, directories.

use super::*;
use crate::record::{CookieEntry, OrphanRecord, pack};
use glowfs_kv::Transaction;
use glowfs_rt::real;
use glowfs_types::wire::encode;
use glowfs_types::wire::frame::BODY_BYTES_MAX;
use world::NEXT;

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

/// Nobody can ask for such a name, so nobody could have made it: it is told, and left alone with what it leads to.
#[test]
fn names_that_cannot_be_asked_for() {
    use Problem::*;
    real::run(|rt| async move {
        let long = [b'x'; NAME_BYTES_MAX + 1];
        for bad in [b"".as_slice(), b".", b"..", b"a/b", b"/", b"nul\0", &long] {
            let what = format!("{:?}", String::from_utf8_lossy(bad));
            let (w, t) = damaged(&rt, &what, &[BadName], async |w, t| {
                let d = Dentry { inode: t.two, kind: InodeKind::File, cookie: 6000 };
                let listed =
                    CookieEntry { inode: t.two, kind: InodeKind::File, name: bad.to_vec().into() };
                w.put(keys::dentry(V, t.d, bad), pack(&d)).await;
                w.put(keys::cookie(V, t.d, 6000), pack(&listed)).await;
                w.edit(t.two, |i| i.nlink = 3).await;
            })
            .await;
            let report = w.check().await;
            let found = &report.findings;
            assert!(found.len() == 1 && found[0].inode == t.two, "{what}: {found:#?}");
            assert!(w.get(&keys::dentry(V, t.d, bad)).await.is_some(), "{what} stays");
        }
        // The longest that may be is none of them.
        clean_after(&rt, "a long name", &[], async |w, t| {
            let d = Dentry { inode: t.two, kind: InodeKind::File, cookie: 6000 };
            let n: Name = long[1..].to_vec().into();
            w.put(keys::dentry(V, t.d, &n), pack(&d)).await;
            let listed = CookieEntry { inode: t.two, kind: InodeKind::File, name: n };
            w.put(keys::cookie(V, t.d, 6000), pack(&listed)).await;
            w.edit(t.two, |i| i.nlink = 3).await;
        })
        .await;
    });
}

/// A file has more names than go into a message, and as many as its record says, or not: the whole check ended with that error, and nothing else was found or mended.
#[test]
fn a_file_of_very_many_names_ends_no_check() {
    real::run(|rt| async move {
        let w = World { ticks: true, keeps_removed: true, ..World::new(&rt, 0).await };
        let t = tree(&w).await;
        let links = async |inode: InodeId, from: u64, many: u64| {
            for some in (from..from + many).collect::<Vec<_>>().chunks(500) {
                let work = async |tx: &Transaction| {
                    let who = who();
                    let cx = Context::new(tx, &who, &w);
                    some.iter().try_for_each(|n| {
                        let (name, id) = (format!("{n:0>255}"), NEXT - 1 - n);
                        cx.insert(t.d, name.as_bytes(), inode, InodeKind::File, id)
                    })
                };
                run_transaction(&w.rt, &w.engine, work).await.expect("linked");
            }
        };
        links(t.f, 0, 20_000).await;
        links(t.two, 20_000, 3000).await;
        let ask = async |q: Fsck| {
            let fits = |bytes: usize| assert!(bytes <= BODY_BYTES_MAX as usize, "{bytes} bytes");
            fits(encode(&q).len());
            let reply = w.ask(q).await?;
            fits(encode(&reply).len());
            Ok(reply)
        };
        let check = async || check(&rt, &ask, &mut |_| ()).await.expect("checked");
        let report = check().await;
        assert_eq!(report.undecided, [t.f]);
        let found: Vec<_> = report.findings.iter().map(|f| (f.problem, f.inode)).collect();
        assert_eq!(found, [(Problem::Links, t.two)]);
        // With as many names as that the other one can be mended.
        w.mend(&report.findings).await;
        assert!(w.inode(t.two).await.nlink > 3000);
        let report = check().await;
        assert!(report.findings.is_empty() && report.undecided == [t.f]);
    });
}
