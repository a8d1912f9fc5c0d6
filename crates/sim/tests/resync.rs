//! Resyncs that are interrupted, and resyncs whose settings are changed while they run, in the shipped services.

use crate::replicas::{CHUNK, Step, change, check, wait_serving, with};
use glowfs_client::{Client, ClientConfig, OpenFile};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{Cluster, Service, Shape};
use glowfs_sim::cluster::scenes::{forwards, retries, sources};
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_sim::world::Link;
use glowfs_storage::SYNC_PAGE_MAX;
use glowfs_types::routing::Role;
use glowfs_types::wire::data::{ChunkSummary, ListChunks, ResyncInfo, SyncListReply};
use glowfs_types::wire::meta::SetAttr;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::{ConfigVersion, NodeId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const PAIR: Shape = Shape {
    storages: 2,
    replicas: 2,
    chains: 1,
    stripe: 1,
    clients: 2,
    sync_page: Shape::SYNC_PAGE_SHIPPED,
    ..Shape::SINGLE
};
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

/// All that the only target of each node holds.
fn held(cluster: &Cluster) -> Vec<Vec<ChunkSummary>> {
    with(cluster, |_, client| async move {
        let info = client.routing();
        let mut all = Vec::new();
        for m in info.chains.values().flat_map(|c| &c.members) {
            let mut chunks = Vec::<ChunkSummary>::new();
            loop {
                let after = chunks.last().map(|c| c.chunk);
                let ask = ListChunks { target: m.target, after, limit: SYNC_PAGE_MAX };
                let page: SyncListReply =
                    client.node_call(m.node, method::LIST_CHUNKS, &ask).await?;
                chunks.extend(page.chunks);
                if !page.more {
                    break;
                }
            }
            all.push(chunks);
        }
        Ok(all)
    })
}

/// One byte at the beginning of each of these chunks.
async fn sprinkle(file: &OpenFile, chunks: impl Iterator<Item = u64>, byte: u8) -> Result<()> {
    let chunks: Vec<u64> = chunks.collect();
    for some in chunks.chunks(32) {
        let each = some.iter().map(|c| file.write(c * CHUNK, Buf::from_vec(vec![byte])));
        for done in join_all(each).await {
            done?;
        }
    }
    Ok(())
}

/// More chunks than one page of the comparison holds, as it is shipped: what lies behind the first page is brought up to date as well.
#[test]
fn what_lies_behind_the_first_page_is_brought_up_to_date() {
    const PAGE: u64 = SYNC_PAGE_MAX as u64;
    const CHUNKS: u64 = PAGE + 104;
    let cluster = Cluster::start(65, PAIR);
    cluster.bootstrap().expect("a cluster");
    let receiver = cluster.storages[1].clone();
    with(&cluster, |_, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        sprinkle(&file, 0..CHUNKS, 1).await?;
        client.close_session(report(&client, &file, true)).await.map(drop)
    });
    cluster.crash(&receiver, false);
    cluster.run_for(Duration::from_secs(3));
    // One chunk is only cut off, and the last one is new.
    let changed = [3, PAGE - 1, PAGE, PAGE + 1, CHUNKS - 1];
    with(&cluster, move |_, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        let (inode, session, len) = (file.inode(), file.session(), Some((CHUNKS - 2) * CHUNK));
        let cut = SetAttr { caller: caller(&client), inode, session, len, ..SetAttr::default() };
        file.update_attr(&client.setattr(cut).await?.attr);
        sprinkle(&file, changed.into_iter(), 2).await?;
        client.close_session(report(&client, &file, true)).await.map(drop)
    });
    cluster.restart(&receiver);
    wait_serving(&cluster);
    let held = held(&cluster);
    assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [CHUNKS as usize - 1; 2]);
    let differs = held[0].iter().zip(&held[1]).find(|(a, b)| a != b);
    assert!(differs.is_none(), "{differs:?}");
    let node = receiver.id();
    with(&cluster, move |rt, client| async move {
        let host = client.routing().nodes[&node].host;
        let config = ClientConfig { host, hedge: false, ..client.config().clone() };
        let near = Client::connect(&rt, config).await?;
        let (file, _) = open_or_make(&near, "f").await?;
        let looked_at = changed.into_iter().map(|c| (c, 2));
        for (chunk, byte) in looked_at.chain([(2, 1), (PAGE + 2, 1), (CHUNKS - 2, 0)]) {
            let (result, buf) = file.read(chunk * CHUNK, rt.alloc(1)).await;
            result?;
            assert_eq!(buf[0], byte, "chunk {chunk} near {node}");
        }
        near.close_session(report(&near, &file, false)).await?;
        near.close().await;
        Ok(())
    });
}

#[test]
fn a_retry_at_a_replica_that_was_brought_up_to_date_changes_nothing() {
    retries::at_one_that_was_brought_up_to_date(66);
}

#[test]
fn what_was_flushed_is_at_one_that_was_just_brought_up_to_date() {
    for seed in [1, 67] {
        sources::one_that_was_just_brought_up_to_date(seed);
    }
}

#[test]
fn what_was_sent_under_a_version_that_is_over_is_not_taken() {
    forwards::of_a_version_that_is_over(68);
}
