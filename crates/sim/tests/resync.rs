//! Resyncs that are interrupted, and resyncs whose settings are changed while they run, in the shipped services.

use crate::replicas::{CHUNK, Step, change, check, wait_serving, with};
use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_sim::cluster::harness::{Cluster, Service, Shape};
use glowfs_sim::world::Link;
use glowfs_types::routing::Role;
use glowfs_types::wire::data::ResyncInfo;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::{ConfigVersion, NodeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const PAIR: Shape =
    Shape { storages: 2, replicas: 2, chains: 1, stripe: 1, clients: 2, ..Shape::SINGLE };
/// How often the sources are asked how far they are, and how long for an answer.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const ANSWERED: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(60);

/// What the resyncs of one node have moved, as far as it was looked at.
#[derive(Default)]
struct Moved {
    /// By those that are over, and now.
    before: Cell<u64>,
    now: RefCell<Vec<ResyncInfo>>,
}

impl Moved {
    fn bytes_now(&self) -> u64 {
        self.now.borrow().iter().map(|r| r.sent_bytes).sum()
    }
    fn bytes(&self) -> u64 {
        self.before.get() + self.bytes_now()
    }
    fn chunks(&self) -> u64 {
        self.now.borrow().iter().map(|r| r.sent_chunks).sum()
    }
    fn running(&self) -> usize {
        self.now.borrow().iter().filter(|r| r.running).count()
    }
    fn take(&self, new: Vec<ResyncInfo>) {
        let was = self.bytes_now();
        *self.now.borrow_mut() = new;
        if self.bytes_now() < was {
            self.before.set(self.before.get() + was);
        }
    }
    /// Looks at it all the time.
    async fn watch(self: Rc<Self>, rt: Rt, client: Rc<Client>, node: NodeId) {
        loop {
            let info = rt.timeout(ANSWERED, client.storage_info(node)).await;
            if let Ok(Ok(info)) = info {
                self.take(info.resyncs);
            }
            rt.sleep(LOOK_EVERY).await;
        }
    }
}

/// Looks at all storage nodes, with a client of its own.
fn watch(cluster: &Cluster) -> Vec<Rc<Moved>> {
    let nodes: Vec<NodeId> = cluster.storages.iter().map(Service::id).collect();
    let all: Vec<Rc<Moved>> = nodes.iter().map(|_| Rc::default()).collect();
    let (rt, config, of) = (cluster.clients[1].rt(), cluster.client_config(), all.clone());
    rt.clone().spawn_detached(async move {
        let client = Client::connect(&rt, config).await.expect("a client");
        for (moved, node) in of.into_iter().zip(nodes) {
            rt.spawn_detached(moved.watch(rt.clone(), client.clone(), node));
        }
    });
    all
}

/// Settings of the storage nodes, changed for the `nth` time.
fn set(cluster: &Cluster, nth: u64, toml: &'static str) {
    with(cluster, move |_, client| async move {
        let (version, role) = (ConfigVersion(nth), Role::Storage);
        let items = vec![ConfigItem { version, role, toml: toml.to_owned() }];
        let new = ClusterConfig { items, ..ClusterConfig::default() };
        let _: ClusterConfig = client.mgmtd_once(method::SET_CONFIG, &new).await?;
        Ok(())
    });
}

/// All chunks of a file are changed while one node is away, which then comes back.
fn left_behind(cluster: &Cluster, away: &Service, chunks: u64) {
    change(cluster, "f", vec![Step::Fill(0..chunks, 1)]);
    cluster.crash(away, false);
    cluster.run_for(Duration::from_secs(3));
    change(cluster, "f", vec![Step::Fill(0..chunks, 2)]);
}

/// The receiver is killed in the middle, and then the source: what was sent is not sent again.
#[test]
fn an_interrupted_resync_sends_only_the_rest() {
    const CHUNKS: u64 = 120;
    // What is under way at each interruption is sent again, and what was sent just then was not seen.
    const AGAIN: u64 = 2 * 8 * CHUNK;
    for (seed, replicas) in [(61, 2), (62, 3)] {
        let shape = Shape { storages: replicas as usize, replicas, ..PAIR };
        let cluster = Cluster::start(seed, shape);
        cluster.bootstrap().expect("a cluster");
        let (receiver, sources) = cluster.storages.split_last().expect("some");
        left_behind(&cluster, receiver, CHUNKS);
        set(&cluster, 0, "sync_bytes_per_s = 1048576");
        cluster.run_for(Duration::from_secs(3));
        let moved = watch(&cluster);
        let all = || moved.iter().map(|m| m.bytes()).sum::<u64>();
        cluster.restart(receiver);
        let third = CHUNKS * CHUNK / 3;
        assert!(cluster.run_until(SOON, || all() >= third), "{} bytes", all());
        cluster.crash(receiver, false);
        cluster.run_for(Duration::from_secs(3));
        cluster.restart(receiver);
        assert!(cluster.run_until(SOON, || all() >= 2 * third), "{} bytes", all());
        let (source, _) = sources.iter().zip(&moved).find(|(_, m)| m.running() > 0).expect("one");
        cluster.crash(source, false);
        cluster.run_for(Duration::from_secs(3));
        cluster.restart(source);
        wait_serving(&cluster);
        cluster.run_for(ANSWERED * 2);
        let (all, least) = (all(), CHUNKS * CHUNK);
        println!("{replicas} replicas: {all} bytes for {least}");
        // (The source, where others serve, has nothing to be sent.)
        assert!(all <= least + AGAIN, "{all} bytes, where {least} are to be sent");
        assert!(all + AGAIN >= least, "{all} bytes were seen of {least}");
        check(&cluster, "f", &[2; CHUNKS as usize]);
    }
}

/// Each chunk takes as long as the way there and back: so many at once are so many times as fast.
#[test]
fn how_many_chunks_are_sent_at_once_can_be_changed_while_it_runs() {
    const CHUNKS: u64 = 600;
    const LOOKED_FOR: Duration = Duration::from_secs(3);
    let cluster = Cluster::start(63, PAIR);
    cluster.bootstrap().expect("a cluster");
    let (source, receiver) = (&cluster.storages[0], &cluster.storages[1]);
    left_behind(&cluster, receiver, CHUNKS);
    set(&cluster, 0, "sync_chunks = 1");
    cluster.run_for(Duration::from_secs(3));
    for (a, b) in [(source, receiver), (receiver, source)] {
        let (latency_ns_min, latency_ns_max) = (50_000_000, 50_000_000);
        let link = cluster.world.link(&a.node, &b.node);
        cluster.world.set_link(&a.node, &b.node, Link { latency_ns_min, latency_ns_max, ..link });
    }
    let moved = watch(&cluster);
    let sent = || moved[0].chunks();
    cluster.restart(receiver);
    assert!(cluster.run_until(SOON, || sent() > 0), "it begins");
    let in_a_while = || {
        let before = sent();
        cluster.run_for(LOOKED_FOR);
        sent() - before
    };
    let one = in_a_while();
    set(&cluster, 1, "sync_chunks = 8");
    cluster.run_for(Duration::from_secs(1));
    let eight = in_a_while();
    set(&cluster, 2, "sync_chunks = 1");
    cluster.run_for(Duration::from_secs(1));
    let again = in_a_while();
    println!("chunks in {LOOKED_FOR:?}: {one} one by one, {eight} of eight at once, {again} after");
    assert!(moved[0].running() == 1, "it runs still");
    assert!(one >= 10 && again >= 10, "{one}, {again}");
    assert!(eight >= 5 * one && eight >= 5 * again, "{one}, {eight}, {again}");
    cluster.world.mend_links();
    set(&cluster, 3, "sync_chunks = 8");
    wait_serving(&cluster);
    check(&cluster, "f", &[2; CHUNKS as usize]);
}

/// How many targets of a node send at once.
#[test]
fn how_many_targets_send_at_once_can_be_changed_while_they_do() {
    const CHUNKS: u64 = 240;
    let cluster = Cluster::start(64, Shape { chains: 4, stripe: 4, ..PAIR });
    cluster.bootstrap().expect("a cluster");
    left_behind(&cluster, &cluster.storages[1], CHUNKS);
    // Slow enough to be looked at.
    set(&cluster, 0, "sync_targets = 1\nsync_bytes_per_s = 1048576");
    cluster.run_for(Duration::from_secs(3));
    let moved = watch(&cluster);
    cluster.restart(&cluster.storages[1]);
    let wait = || moved[0].now.borrow().len() == 4;
    assert!(cluster.run_until(SOON, wait), "four are wanted");
    for _ in 0..20 {
        cluster.run_for(Duration::from_millis(100));
        assert_eq!(moved[0].running(), 1);
    }
    set(&cluster, 1, "sync_targets = 3\nsync_bytes_per_s = 1048576");
    assert!(cluster.run_until(Duration::from_secs(5), || moved[0].running() == 3), "at once");
    set(&cluster, 2, "sync_targets = 1");
    cluster.run_for(Duration::from_secs(1));
    wait_serving(&cluster);
    check(&cluster, "f", &[2; CHUNKS as usize]);
}
