//! What the search for leaks sees, and that nothing of a client that died and of its files is left in the engine.

use glowfs_client::Client;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::workload::{caller, open_or_make};
use glowfs_sim::cluster::{leaks, records};
use glowfs_types::RequestId;
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::ROOT_INODE;
use std::cell::Cell;
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(300);
/// By then a client that has died is not given up yet.
const EARLY: Duration = Duration::from_secs(10);

#[test]
fn what_is_left_is_seen_and_nothing_is_left_of_a_client_that_died() {
    let cluster = Cluster::start(71, Shape { clients: 2, ..Shape::SINGLE });
    cluster.bootstrap().expect("a cluster");
    let (dies, done) = (cluster.clients[1].clone(), Rc::new(Cell::new(false)));
    let (rt, config, told) = (dies.rt(), cluster.client_config(), done.clone());
    dies.rt().spawn_detached(async move {
        let c = Client::connect(&rt, config).await.expect("a client");
        let (file, _) = open_or_make(&c, "file").await.expect("made");
        file.write(0, Buf::from_vec(vec![7; 100_000])).await.expect("written");
        let (owner, whole, wish) = (1, true, LockWish::Exclusive);
        let (caller, request, inode) = (caller(&c), RequestId(0), file.inode());
        let lock = Lock { caller, request, inode, owner, whole, wish, ..Lock::default() };
        c.lock(Lock { end: u64::MAX, ..lock }).await.expect("locked");
        told.set(true);
    });
    assert!(cluster.run_until(LIMIT, || done.get()));
    dies.kill();
    let meta = Cluster::address(&cluster.metas[0]);
    let node = cluster.clients[0].clone();
    let look = cluster.with_client(&node, LIMIT, move |rt, c| async move {
        let engine = records::engine(&rt, meta)?;
        let found = leaks::all(&engine, c.id()).await?;
        for what in ["sessions:", "sessions of", "names:", "locks:", "clients:", "inodes:"] {
            assert!(found.iter().any(|f| f.starts_with(what)), "{what} {found:?}");
        }
        let began = rt.now();
        leaks::wait_sessions(&rt, &engine).await?;
        let took = rt.now().since(began);
        assert!(took > EARLY, "its session ended after {took:?}");
        let found = leaks::all(&engine, c.id()).await?;
        assert!(!found.iter().any(|f| f.starts_with("sessions")), "{found:?}");
        assert!(found.iter().any(|f| f.starts_with("names")), "the file stays: {found:?}");
        unlink(&c, ROOT_INODE, "file", false).await?;
        leaks::wait_nothing(&rt, &engine, c.id()).await
    });
    look.expect("nothing is left");
}
