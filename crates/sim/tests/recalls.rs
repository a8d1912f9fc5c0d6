//! Who changes something is answered when nobody shows any more what was before, whoever's change took the leases.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::caller;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::RefCell;
use std::rc::Rc;

const SHAPE: Shape = Shape { clients: 3, ..Shape::SINGLE };
const LIMIT: Duration = Duration::from_secs(600);
/// What is sent to the client that has a lease is on its way for so long: not so long as a lease.
const LATE: Duration = Duration::from_millis(400);

fn name(name: &str) -> Name {
    name.as_bytes().to_vec().into()
}

async fn make(client: &Client, file: &str) -> Attr {
    let query = Make {
        caller: caller(client),
        parent: ROOT_INODE,
        name: name(file),
        mode: 0o644,
        exclusive: true,
        ..Make::default()
    };
    client.make(query).await.expect("made").attr
}

async fn unlink(client: &Client, file: &str) {
    let query = Unlink {
        caller: caller(client),
        request: RequestId(0),
        parent: ROOT_INODE,
        name: name(file),
        directory: false,
    };
    client.unlink(query).await.expect("removed");
}

/// The third client has a lease on an inode, and has looked up these names in the root directory, when the first two do something, one shortly after the
/// other; `inode` is made by one of them long before. How long did each of them wait?
fn waits<A, B>(
    (maker, inode): (usize, impl AsyncFn(&Client) -> InodeId + 'static),
    names: &'static [&str],
    changes: (impl FnOnce(Rc<Client>) -> A, impl FnOnce(Rc<Client>) -> B),
    between: Duration,
) -> Vec<Duration>
where
    A: Future<Output = ()> + 'static,
    B: Future<Output = ()> + 'static,
{
    let cluster = Cluster::start(71, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let clients: Vec<_> = (cluster.clients.iter())
        .map(|node| {
            let (rt, config) = (node.rt(), cluster.client_config());
            let client = async move { Client::connect(&rt, config).await.expect("a client") };
            cluster.world.run(node, LIMIT, client).expect("in time")
        })
        .collect();
    cluster.run_for(Duration::from_secs(3));
    let (maker_node, third) = (&cluster.clients[maker], clients[2].clone());
    let first = clients[maker].clone();
    let work = async move { inode(&first).await };
    let inode = cluster.world.run(maker_node, LIMIT, work).expect("in time");
    cluster.run_for(Duration::from_secs(3));
    let work = async move {
        for n in names {
            let query = Lookup { caller: caller(&third), parent: ROOT_INODE, name: name(n) };
            third.lookup(query).await.expect("there");
        }
        let query = OfInode { caller: caller(&third), inode };
        third.getattr(query).await.expect("there").lease_ms
    };
    let lease = cluster.world.run(&cluster.clients[2], LIMIT, work).expect("in time");
    assert!(lease > 900, "{lease} ms");
    let (meta, holder) = (&cluster.metas[0].node, &cluster.clients[2]);
    let (link, late) = (cluster.world.link(meta, holder), LATE.as_nanos() as u64);
    let slow = glowfs_sim::world::Link { latency_ns_min: late, latency_ns_max: late, ..link };
    cluster.world.set_link(meta, holder, slow);
    let waited: Rc<RefCell<Vec<Duration>>> = Rc::default();
    let note = |client: &Rc<Client>, work: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let (rt, waited) = (client.rt().clone(), waited.clone());
        async move {
            let began = rt.now();
            work.await;
            waited.borrow_mut().push(rt.now().since(began));
        }
    };
    let one = note(&clients[0], Box::pin(changes.0(clients[0].clone())));
    let two = note(&clients[1], Box::pin(changes.1(clients[1].clone())));
    cluster.clients[0].rt().spawn_detached(one);
    cluster.run_for(between);
    cluster.clients[1].rt().spawn_detached(two);
    assert!(cluster.run_until(LIMIT, || waited.borrow().len() == 2), "both");
    waited.take()
}

#[test]
fn a_change_waits_for_the_recall_of_another_change() {
    let one = |c: Rc<Client>| async move {
        make(&c, "x").await;
    };
    let two = |c: Rc<Client>| async move {
        make(&c, "y").await;
    };
    let waited = waits((0, async |_| ROOT_INODE), &[], (one, two), Duration::from_millis(20));
    let least = LATE - Duration::from_millis(50);
    assert!(waited.iter().all(|w| *w > least), "{waited:?}");
}

#[test]
fn each_name_of_a_file_is_recalled() {
    let linked = async |c: &Client| {
        let inode = make(c, "a").await.inode;
        let link = Link {
            caller: caller(c),
            request: RequestId(0),
            inode,
            parent: ROOT_INODE,
            name: name("b"),
        };
        c.link(link).await.expect("linked");
        inode
    };
    let one = |c: Rc<Client>| async move { unlink(&c, "a").await };
    let two = |c: Rc<Client>| async move { unlink(&c, "b").await };
    // When the first has been answered.
    let waited = waits((0, linked), &["a", "b"], (one, two), LATE + Duration::from_millis(50));
    assert!(waited.iter().all(|w| *w > LATE - Duration::from_millis(50)), "{waited:?}");
}

/// The first client has no lease on the name that it renames: it made it long ago.
#[test]
fn what_others_find_of_a_rename_nobody_shows_otherwise() {
    let file = async |c: &Client| make(c, "a").await.inode;
    let rename = |c: Rc<Client>| async move {
        let query = Rename {
            caller: caller(&c),
            request: RequestId(0),
            parent: ROOT_INODE,
            name: name("a"),
            new_parent: ROOT_INODE,
            new_name: name("b"),
            flags: 0,
        };
        c.rename(query).await.expect("renamed");
    };
    for look in ["a", "b"] {
        let found = move |c: Rc<Client>| async move {
            let query = Lookup { caller: caller(&c), parent: ROOT_INODE, name: name(look) };
            let found = c.lookup(query).await;
            assert_eq!(found.is_ok(), look == "b");
        };
        let waited = waits((0, file), &["a"], (rename, found), Duration::from_millis(20));
        assert!(waited.iter().all(|w| *w > LATE - Duration::from_millis(50)), "{look}: {waited:?}");
    }
}

/// The third client may say of the root directory what is missing in it, until it has been told.
#[test]
fn what_others_find_of_a_creation_nobody_takes_for_missing() {
    let creation = |c: Rc<Client>| async move {
        make(&c, "n").await;
    };
    let found = |c: Rc<Client>| async move {
        let query = Lookup { caller: caller(&c), parent: ROOT_INODE, name: name("n") };
        c.lookup(query).await.expect("it was made before");
    };
    let waited =
        waits((0, async |_| ROOT_INODE), &[], (creation, found), Duration::from_millis(20));
    assert!(waited.iter().all(|w| *w > LATE - Duration::from_millis(50)), "{waited:?}");
}
