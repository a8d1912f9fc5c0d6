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
