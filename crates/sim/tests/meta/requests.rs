//! Requests that change names take effect once, whatever happens in between.

use super::lab::{Lab, SHAPE, look, make, name};
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::workload::caller;
use glowfs_types::wire::meta::*;
use glowfs_types::*;

/// The same request, again and again, with restarts in between: one effect, and the same answer.
#[test]
fn a_request_takes_effect_once_whatever_happens_in_between() {
    let lab = Lab::new(21);
    let rename = |c: &Client| Rename {
        caller: caller(c),
        request: RequestId(12),
        parent: ROOT_INODE,
        name: name("a"),
        new_parent: ROOT_INODE,
        new_name: name("b"),
        flags: 0,
    };
    let unlink = |c: &Client| Unlink {
        caller: caller(c),
        request: RequestId(13),
        parent: ROOT_INODE,
        name: name("b"),
        directory: false,
    };
    let first = lab.run(0, |c| async move { c.make(make(&c, 11, "a")).await.expect("made").attr });
    for power in [false, true] {
        lab.restart(power);
        let again = lab.run(0, |c| async move { c.make(make(&c, 11, "a")).await.expect("again") });
        assert_eq!(again.attr.inode, first.inode, "the same file, though it has to be a new one");
    }
    let fresh = lab.run(0, |c| async move { c.make(make(&c, 99, "a")).await.expect_err("there") });
    assert_eq!(fresh.status, Status::Exists, "another request is another one");
    for power in [false, true, false] {
        lab.run(0, move |c| async move { c.rename(rename(&c)).await.expect("renamed") });
        lab.restart(power);
    }
    // Somebody makes the name anew: the old requests must not touch that.
    let second = lab.run(1, |c| async move { c.make(make(&c, 14, "a")).await.expect("made").attr });
    lab.run(0, move |c| async move { c.rename(rename(&c)).await.expect("answered") });
    lab.run(0, move |c| async move { c.unlink(unlink(&c)).await.expect("removed") });
    let third = lab.run(1, |c| async move { c.make(make(&c, 15, "b")).await.expect("made").attr });
    lab.restart(true);
    lab.run(0, move |c| async move { c.unlink(unlink(&c)).await.expect("answered") });
    let now = lab.run(1, |c| async move { (look(&c, "a").await, look(&c, "b").await) });
    assert_eq!(now.0.expect("a is there").inode, second.inode);
    assert_eq!(now.1.expect("b is there").inode, third.inode);
}

/// A service that has lost the engine keeps a request in work, while its client hears from another service that it is refused. When the
/// first one reaches the engine again, it must not remove what was made under this name since.
#[test]
fn a_late_copy_of_a_refused_request_has_no_effect() {
    let shape = Shape { metas: 2, clients: 6, ..SHAPE };
    let lab = Lab::with(24, shape);
    let (engine, other) = (&lab.cluster.metas[0].node, &lab.cluster.metas[1].node);
    let world = &lab.cluster.world;
    let unlink = |c: &Client, dir| Unlink {
        caller: caller(c),
        request: RequestId(0),
        parent: dir,
        name: name("f"),
        directory: false,
    };
    let dirs = lab.run(0, move |c| async move {
        let mut dirs = Vec::new();
        for n in 0..shape.clients {
            let dir = Make { kind: InodeKind::Directory, ..make(&c, 0, &format!("d{n}")) };
            dirs.push(c.make(dir).await.expect("a directory").attr.inode);
        }
        dirs
    });
    world.cut(engine, other);
    world.cut(other, engine);
    // Each directory belongs to one of the services; the first that belongs to the one that is cut off will do.
    let late = (0..shape.clients).find(|n| {
        let (dir, began) = (dirs[*n], world.now());
        lab.run(*n, move |c| async move {
            let e = c.unlink(unlink(&c, dir)).await.expect_err("not there");
            assert_eq!(e.status, Status::NotFound);
            c.make(Make { parent: dir, ..make(&c, 0, "f") }).await.expect("made");
        });
        world.now() - began >= lab.cluster.client_config().meta_attempt
    });
    let late = late.expect("a client that asked the service that is cut off");
    world.heal();
    lab.cluster.run_for(Duration::from_secs(20));
    let dir = dirs[late];
    let there = lab.run(late, move |c| async move {
        let query = Lookup { caller: caller(&c), parent: dir, name: name("f") };
        c.lookup(query).await
    });
    there.expect("what was made after the refusal is there");
}

/// The answer was lost, and another client removed what was made before it was asked for again: its kernel was told to look the name up again, and made it
/// once more.
#[test]
fn what_was_made_and_is_removed_since_was_made() {
    let lab = Lab::new(25);
    for (request, kind) in [(21, InodeKind::File), (22, InodeKind::Directory)] {
        let q = move |c: &Client| Make { kind, ..make(c, request, "x") };
        let first = lab.run(0, move |c| async move { c.make(q(&c)).await.expect("made").attr });
        lab.run(1, move |c| async move {
            let directory = kind == InodeKind::Directory;
            let (parent, request) = (ROOT_INODE, RequestId(0));
            let gone = Unlink { caller: caller(&c), request, parent, name: name("x"), directory };
            c.unlink(gone).await.expect("removed");
        });
        // A file is erased when all clients have said that they do not have it open.
        lab.cluster.run_for(Duration::from_secs(5));
        let gone = lab.run(1, move |c| async move {
            c.getattr(OfInode { caller: caller(&c), inode: first.inode }).await.expect_err("erased")
        });
        assert_eq!(gone.status, Status::Stale);
        for restart in [false, true] {
            if restart {
                lab.restart(false);
            }
            let again = lab.run(0, move |c| async move { c.make(q(&c)).await });
            let again = again.expect("it was made");
            let said = (again.attr.inode, again.attr.kind, again.attr.nlink, again.lease_ms);
            assert_eq!(said, (first.inode, kind, 0, 0));
            let found = lab.run(0, |c| async move { look(&c, "x").await });
            assert_eq!(found.expect_err("and not once more").status, Status::NotFound);
        }
    }
}

/// The answer was lost, and another client renamed what was made before it was asked for again: the copy's answer leased the name, where nothing is any more.
#[test]
fn a_copy_leases_no_name_that_nobody_has_looked_at() {
    let lab = Lab::as_shipped(26, SHAPE);
    let q = |c: &Client| make(c, 31, "a");
    let first = lab.run(0, move |c| async move { c.make(q(&c)).await.expect("made") });
    assert!(first.lease_ms > 0, "who made it may keep it");
    lab.run(1, |c| async move {
        let (parent, new_parent, request) = (ROOT_INODE, ROOT_INODE, RequestId(0));
        let (name, new_name) = (name("a"), name("b"));
        let q =
            Rename { caller: caller(&c), request, parent, name, new_parent, new_name, flags: 0 };
        c.rename(q).await.expect("renamed");
    });
    // So long that nothing is known of the rename any more.
    lab.cluster.run_for(Duration::from_secs(30));
    let again = lab.run(0, move |c| async move { c.make(q(&c)).await.expect("again") });
    assert_eq!((again.attr.inode, again.lease_ms), (first.attr.inode, 0));
}
