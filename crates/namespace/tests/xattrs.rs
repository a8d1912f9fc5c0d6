//! How much may be kept as extended attributes, and that it is counted.
#![allow(clippy::expect_used, missing_docs)]

use crate::world::{V, World};
use glowfs_kv::{Transaction, run_transaction};
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::meta::*;
use glowfs_types::*;

const ROOT: InodeId = InodeId(1);
/// Bytes of names, each with a zero, that Linux lists.
const LISTED_MAX: usize = 64 << 10;

fn who() -> Caller {
    Caller { client: ClientId(1), volume: V, ..Caller::default() }
}

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q): (&World, _) = ($w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &q.caller, w), &q).await)
            .await
    }};
}

async fn file(w: &World, name: &str) -> InodeId {
    let name = name.as_bytes().to_vec().into();
    let q = Make { caller: who(), parent: ROOT, name, ..Make::default() };
    op!(w, ns::make, q).expect("made").attr.inode
}

async fn set(w: &World, inode: InodeId, name: &str, value: usize) -> Result<()> {
    let name = name.as_bytes().to_vec().into();
    let (request, value) = (RequestId(0), vec![7; value]);
    let q = SetXattr { caller: who(), request, inode, name, value, flags: 0 };
    op!(w, ns::setxattr, q)
}

async fn remove(w: &World, inode: InodeId, name: &str) {
    let name = name.as_bytes().to_vec().into();
    let q = OfXattr { caller: who(), request: RequestId(0), inode, name };
    op!(w, ns::removexattr, q).expect("removed");
}

/// Bytes of the names as they are listed.
async fn listed(w: &World, inode: InodeId) -> (usize, usize) {
    let q = OfInode { caller: who(), inode };
    let names = op!(w, ns::listxattr, q).expect("listed");
    (names.len(), names.iter().map(|n| n.len() + 1).sum())
}

async fn kept(w: &World) -> u64 {
    let usage = run_transaction(&w.rt, &w.engine, async |tx: &Transaction| ns::statfs(tx, V).await);
    usage.await.expect("counted").xattrs
}

fn in_world(work: impl AsyncFnOnce(World) + 'static) {
    real::run(|rt: Rt| async move { work(World::new(&rt, 0).await).await });
}

#[test]
fn an_inode_has_a_bound_of_bytes() {
    in_world(async |w| {
        let f = file(&w, "f").await;
        let mut refused = None;
        for i in 0..1000 {
            if let Err(e) = set(&w, f, &format!("user.{i}"), 60_000).await {
                refused = Some((i, e));
                break;
            }
        }
        let (n, e) = refused.expect("there is a bound");
        assert_eq!((n, e.status), (4, Status::NoSpace), "{e}");
        // What is there may be set again, and removed; then there is room.
        set(&w, f, "user.0", 50_000).await.expect("smaller");
        let refused = set(&w, f, "user.4", 60_000).await.expect_err("still too much");
        assert_eq!(refused.status, Status::NoSpace);
        remove(&w, f, "user.1").await;
        set(&w, f, "user.4", 60_000).await.expect("there is room");
        assert_eq!(kept(&w).await, 230_000 + 4 * 6);
        assert_eq!(listed(&w, f).await.0, 4);
    });
}

/// Programs that copy all attributes would carry them elsewhere, and take them away here.
#[test]
fn settings_of_a_directory_are_not_listed() {
    in_world(async |w| {
        let q = Make { caller: who(), parent: ROOT, name: b"d".to_vec().into(), ..Make::default() };
        let q = Make { kind: InodeKind::Directory, ..q };
        let d = op!(&w, ns::make, q).expect("made").attr.inode;
        for (name, value) in [("glowfs.trash", "7d"), ("glowfs.layout", "stripe=1")] {
            let (request, name) = (RequestId(0), Name::from(name.as_bytes().to_vec()));
            let value = value.as_bytes().to_vec();
            let set =
                SetXattr { caller: who(), request, inode: d, name: name.clone(), value, flags: 0 };
            op!(&w, ns::setxattr, set).expect("set");
            assert_eq!(listed(&w, d).await, (0, 0), "{name:?}");
            let get = OfXattr { caller: who(), request, inode: d, name };
            assert!(!op!(&w, ns::getxattr, get).expect("shown by its name").is_empty());
        }
        set(&w, d, "user.a", 1).await.expect("set");
        assert_eq!(listed(&w, d).await, (1, 7));
    });
}

#[test]
fn names_are_never_more_than_linux_lists() {
    in_world(async |w| {
        let f = file(&w, "f").await;
        let name = |i: usize| format!("user.{i:0>240}");
        let mut refused = None;
        for i in 0..1000 {
            if let Err(e) = set(&w, f, &name(i), 1).await {
                refused = Some((i, e));
                break;
            }
        }
        let (n, e) = refused.expect("there is a bound");
        assert_eq!(e.status, Status::NoSpace, "{e}");
        let (count, bytes) = listed(&w, f).await;
        assert!(count == n && bytes < LISTED_MAX && bytes > LISTED_MAX - 1000, "{n}: {bytes}");
        // And no more than so many, however short.
        let f = file(&w, "g").await;
        for i in 0..1024 {
            set(&w, f, &format!("user.{i}"), 0).await.expect("short");
        }
        assert_eq!(set(&w, f, "user.x", 0).await.expect_err("many").status, Status::NoSpace);
    });
}

#[test]
fn all_files_have_a_bound_together_and_what_goes_is_not_counted_any_more() {
    in_world(async |w| {
        let (f, g) = (file(&w, "f").await, file(&w, "g").await);
        set(&w, f, "user.a", 1000).await.expect("set");
        w.room.set(false);
        let e = set(&w, g, "user.a", 1).await.expect_err("beyond the bound");
        assert_eq!(e.status, Status::NoSpace, "{e}");
        set(&w, f, "user.a", 500).await.expect("smaller");
        remove(&w, f, "user.a").await;
        assert_eq!(kept(&w).await, 0);
        w.room.set(true);
        set(&w, g, "user.a", 1000).await.expect("set");
        assert_eq!(kept(&w).await, 1006);
        let q = Unlink {
            caller: who(),
            request: RequestId(0),
            parent: ROOT,
            name: b"g".to_vec().into(),
            directory: false,
        };
        op!(&w, ns::unlink, q).expect("removed");
        assert_eq!(kept(&w).await, 0);
    });
}

/// An inode of a release that did not count them.
#[test]
fn attributes_of_former_releases_are_counted_with_the_next_change() {
    in_world(async |w| {
        let f = file(&w, "f").await;
        let work = async |tx: &Transaction| {
            for i in 0..100u8 {
                let name = format!("user.{i:0>3}");
                let key = [
                    &V.0.to_be_bytes()[..],
                    b"X",
                    &f.0.reverse_bits().to_be_bytes(),
                    name.as_bytes(),
                ];
                tx.put(key.concat(), vec![1; 10_000])?;
            }
            Ok(())
        };
        run_transaction(&w.rt, &w.engine, work).await.expect("put");
        assert_eq!((kept(&w).await, listed(&w, f).await.0), (0, 100));
        let e = set(&w, f, "user.more", 1).await.expect_err("it has too many already");
        assert_eq!(e.status, Status::NoSpace, "{e}");
        remove(&w, f, "user.000").await;
        assert_eq!(kept(&w).await, 99 * 10_008);
    });
}
