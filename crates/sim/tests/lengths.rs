//! What a writer that died had been told is stored lies behind a length that leads to it; and a length changes only if that can be carried through.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::Client;
use glowfs_kv::{Transaction, run_transaction};
use glowfs_meta::Tuning;
use glowfs_net::{Bulk, Connector, NoCalls, Request};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, CLUSTER, Cluster, DISK, ROOT_TOKEN, Shape};
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_sim::cluster::{orphans, records};
use glowfs_sim::world::{DiskFaults, Link};
use glowfs_types::checksum::piece_checksums;
use glowfs_types::routing::Role;
use glowfs_types::wire::data::{Update, UpdateHead, update};
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::meta::{Lookup, ROOT_INODE, SetAttr};
use glowfs_types::wire::method;
use glowfs_types::wire::orphans::search;
use glowfs_types::{Capability, ChunkId, InodeId, NodeId, RequestId, Result, Status, TenantId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::FromBytes;

const SHAPE: Shape = Shape { clients: 2, ..Shape::SINGLE };
const LIMIT: Duration = Duration::from_secs(600);

/// Looks for dead clients all the time.
fn hasty() -> Tuning {
    Tuning { session_scan_ms: 1, session_grace_ms: 1000, ..Tuning::default() }
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

async fn len_of(client: &Client, file: &str) -> u64 {
    let name = file.as_bytes().to_vec().into();
    let query = Lookup { caller: caller(client), parent: ROOT_INODE, name };
    client.lookup(query).await.expect("there").attr.len
}

/// All replicas and the writer die with updates acknowledged of which not every replica knows that they are committed.
#[test]
fn what_is_not_committed_yet_counts_if_it_was_acknowledged() {
    for seed in 52..55 {
        let shape = Shape { storages: 3, replicas: 3, ..SHAPE };
        let cluster = Cluster::start_tuned(seed, shape, hasty());
        cluster.bootstrap().expect("a cluster");
        let node = cluster.clients[1].clone();
        // An acknowledgement is there before the head has noted anything more.
        for storage in &cluster.storages {
            let link = cluster.world.link(&storage.node, &node);
            let quick = Link { latency_ns_min: 1, latency_ns_max: 2, ..link };
            cluster.world.set_link(&storage.node, &node, quick);
        }
        let (rt, config) = (node.rt(), cluster.client_config());
        let acknowledged: Rc<RefCell<u64>> = Rc::default();
        let (noted, begun) = (acknowledged.clone(), Rc::new(Cell::new(false)));
        let go = begun.clone();
        node.rt().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("a client");
            let (file, _) = open_or_make(&client, "f").await.expect("made");
            go.set(true);
            for chunk in 0.. {
                let at = chunk * u64::from(CHUNK_BYTES);
                file.write(at, Buf::from_vec(vec![7; 4096])).await.expect("written");
                *noted.borrow_mut() = at + 4096;
            }
        });
        assert!(cluster.run_until(LIMIT, || begun.get()));
        cluster.run_for(Duration::from_micros(40_000 + 611 * (seed - 50)));
        let before = *acknowledged.borrow();
        assert!(cluster.run_until(LIMIT, || *acknowledged.borrow() > before), "one more");
        let end = *acknowledged.borrow();
        node.crash();
        for storage in &cluster.storages {
            cluster.crash(storage, false);
        }
        cluster.run_for(secs(40));
        for storage in &cluster.storages {
            cluster.restart(storage);
        }
        cluster.run_for(secs(60));
        let len = cluster
            .with_client(&cluster.clients[0].clone(), LIMIT, |_, client| async move {
                Ok(len_of(&client, "f").await)
            })
            .expect("a length");
        assert!(len >= end, "seed {seed}: {len} of {end} acknowledged bytes");
    }
}

/// The length of a closed file is changed while one of its chains has nobody who serves: nothing happens to it, and it can be written to where it can be.
#[test]
fn a_truncate_that_could_not_be_finished_is_not_begun() {
    let shape = Shape { storages: 2, chains: 2, stripe: 2, ..SHAPE };
    let cluster = Cluster::start_tuned(57, shape, Tuning::default());
    cluster.bootstrap().expect("a cluster");
    let node = cluster.clients[0].clone();
    let chunk = u64::from(CHUNK_BYTES);
    let made = cluster.with_client(&node, LIMIT, move |_, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        file.write(0, Buf::from_vec(vec![7; 4 * chunk as usize])).await?;
        client.close_session(report(&client, &file, true)).await?;
        Ok(file.inode())
    });
    let inode = made.expect("a file");
    let cut = async move |client: &Client, len: u64| {
        let (caller, request) = (caller(client), RequestId(client.rt().random_u128()));
        client
            .setattr(SetAttr { caller, request, inode, len: Some(len), ..SetAttr::default() })
            .await
    };
    cluster.crash(&cluster.storages[0], false);
    cluster.run_for(secs(10));
    let mut hasty = cluster.client_config();
    (hasty.meta_attempt, hasty.meta_total) = (secs(5), secs(30));
    let tried = cluster.with_config(&node, LIMIT, hasty, move |_, client| async move {
        for len in [9 * chunk, chunk + 5] {
            cut(&client, len).await.expect_err("a chain is away");
            assert_eq!(len_of(&client, "f").await, 4 * chunk);
        }
        let (file, _) = open_or_make(&client, "f").await?;
        client.close_session(report(&client, &file, false)).await?;
        Ok(())
    });
    tried.expect("it can be opened for writing");
    cluster.restart(&cluster.storages[0]);
    cluster.run_for(secs(30));
    let done = cluster.with_client(&node, LIMIT, move |_, client| async move {
        cut(&client, 9 * chunk).await?;
        Ok(len_of(&client, "f").await)
    });
    assert_eq!(done.expect("made longer"), 9 * chunk);
}

/// A closed file with so many chunks.
async fn file_of(client: &Rc<Client>, chunks: u64) -> Result<InodeId> {
    let (file, _) = open_or_make(client, "f").await?;
    for chunk in 0..chunks {
        file.write(chunk * u64::from(CHUNK_BYTES), Buf::from_vec(vec![7])).await?;
    }
    client.close_session(report(client, &file, true)).await?;
    Ok(file.inode())
}

async fn cut_to(client: &Client, inode: InodeId, len: u64) -> Result<()> {
    let (caller, request) = (caller(client), RequestId(client.rt().random_u128()));
    let cut = SetAttr { caller, request, inode, len: Some(len), ..SetAttr::default() };
    client.setattr(cut).await.map(|_| ())
}

async fn chunks_on(client: &Client, storage: NodeId) -> Result<u64> {
    let targets = client.storage_info(storage).await?.targets;
    Ok(targets.iter().map(|(_, chunks)| *chunks).sum())
}

/// A truncate took longer than the capability lives that it cuts with: it was an error, and left half done.
#[test]
fn a_truncate_that_takes_long_is_carried_through() {
    let tuning = Tuning { capability_ms: 1000, ..Tuning::default() };
    let cluster = Cluster::start_tuned(58, SHAPE, tuning);
    cluster.bootstrap().expect("a cluster");
    let storage = cluster.storages[0].id();
    let nodes = cluster.clients.clone();
    let made = cluster.with_client(&nodes[0], LIMIT, |_, c| async move { file_of(&c, 3000).await });
    let inode = made.expect("a file");
    let (meta, far) = (&cluster.metas[0].node, &cluster.storages[0].node);
    let (link, late) = (cluster.world.link(meta, far), 600_000_000);
    cluster.world.set_link(meta, far, Link { latency_ns_min: late, latency_ns_max: late, ..link });
    // Who wants to write meanwhile waits for the same.
    let (rt, config, opened) = (nodes[1].rt(), cluster.client_config(), Rc::new(Cell::new(false)));
    let go = opened.clone();
    nodes[1].rt().spawn_detached(async move {
        let client = Client::connect(&rt, config).await.expect("a client");
        while len_of(&client, "f").await != 1 {
            rt.sleep(Duration::from_millis(10)).await;
        }
        open_or_make(&client, "f").await.expect("opened");
        go.set(true);
    });
    let left = cluster.with_client(&nodes[0], LIMIT, move |_, client| async move {
        cut_to(&client, inode, 1).await?;
        chunks_on(&client, storage).await
    });
    assert_eq!(left.expect("cut"), 1);
    assert!(cluster.run_until(secs(10), || opened.get()), "opened for writing");
}

/// The client and the metadata service die when a truncate is committed and nothing is cut yet, and nobody comes to write: the chunks behind the end stayed
/// for good. Also where a release began it that leaves no key for that.
#[test]
fn a_truncate_that_was_left_behind_is_finished() {
    for older in [false, true] {
        let tuning = Tuning { orphan_scan_s: 0, ..Tuning::default() };
        let cluster = Cluster::start_tuned(59, SHAPE, tuning);
        cluster.bootstrap().expect("a cluster");
        let (storage, meta) = (cluster.storages[0].id(), cluster.metas[0].clone());
        let nodes = cluster.clients.clone();
        let made =
            cluster.with_client(&nodes[1], LIMIT, |_, c| async move { file_of(&c, 8).await });
        let inode = made.expect("a file");
        cluster.world.cut(&meta.node, &cluster.storages[0].node);
        let (rt, config) = (nodes[1].rt(), cluster.client_config());
        nodes[1].rt().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("a client");
            let _ = cut_to(&client, inode, 1).await;
        });
        cluster.run_for(Duration::from_millis(500));
        nodes[1].crash();
        cluster.crash(&meta, false);
        cluster.world.heal();
        cluster.run_for(secs(10));
        cluster.restart(&meta);
        let address = Cluster::address(&meta);
        let left = cluster.with_client(&nodes[0], LIMIT, move |rt, client| async move {
            assert_eq!(len_of(&client, "f").await, 1, "committed");
            assert_eq!(chunks_on(&client, storage).await?, 8, "not cut yet");
            if older {
                let engine = records::engine(&rt, address)?;
                run_transaction(&rt, &engine, async |tx: &Transaction| {
                    let (begin, end) = (records::key(b'P', &[]), records::key(b'P' + 1, &[]));
                    assert_eq!(tx.get_range(&begin, &end, 9, false).await?.entries.len(), 1);
                    tx.clear_range(&begin, &end)
                })
                .await?;
                rt.sleep(secs(60)).await;
                assert_eq!(chunks_on(&client, storage).await?, 8, "nothing leads to it");
                orphans::pass(&rt, &client, NodeId(10), search::LOOK).await?;
            }
            rt.sleep(secs(60)).await;
            chunks_on(&client, storage).await
        });
        assert_eq!(left.expect("chunks"), 1, "older: {older}");
    }
}

/// A writer died with a write on its way to a disk so slow that it gets there after the file was cut: what was cut off does not come back.
#[test]
fn what_gets_to_a_slow_disk_after_a_cut_brings_nothing_back() {
    let tuning = Tuning { capability_ms: 2000, ..Tuning::default() };
    let cluster = Cluster::start_tuned(58, SHAPE, tuning);
    cluster.bootstrap().expect("a cluster");
    let (node, writer) = (cluster.clients[0].clone(), cluster.clients[1].clone());
    let (storage, chunk) = (&cluster.storages[0], u64::from(CHUNK_BYTES));
    let id = storage.id();
    let made = cluster.with_client(&node, LIMIT, move |_, client| async move {
        let inode = file_of(&client, 1).await?;
        cut_to(&client, inode, 3 * chunk).await?;
        Ok((inode, client.storage_info(id).await?.writes))
    });
    let (inode, before) = made.expect("a file");
    let (rt, config, opened) = (writer.rt(), cluster.client_config(), Rc::new(Cell::new(false)));
    let open = opened.clone();
    writer.rt().spawn_detached(async move {
        let client = Client::connect(&rt, config).await.expect("a client");
        let (file, _) = open_or_make(&client, "f").await.expect("opened");
        open.set(true);
        rt.sleep(Duration::from_millis(100)).await;
        let _never_answered = file.write(chunk, Buf::from_vec(vec![7; 4096])).await;
    });
    assert!(cluster.run_until(LIMIT, || opened.get()));
    // What it is asked in this half second takes longer than the dead writer is waited for.
    let slow = 8_000_000_000;
    let faults =
        DiskFaults { slower_least_ns: slow, slower_most_ns: slow, ..DiskFaults::default() };
    storage.node.disk(DISK).set_faults(faults);
    cluster.run_for(Duration::from_millis(500));
    storage.node.disk(DISK).set_faults(DiskFaults::default());
    writer.crash();
    let cut = cluster.with_client(&node, LIMIT, move |_, client| async move {
        cut_to(&client, inode, chunk).await
    });
    cut.expect("cut");
    cluster.run_for(secs(30));
    let left = cluster.with_client(&node, LIMIT, move |rt, client| async move {
        assert_eq!(client.storage_info(id).await?.writes, before + 1, "it got there");
        let left = chunks_on(&client, id).await?;
        cut_to(&client, inode, 3 * chunk).await?;
        let (file, _) = open_or_make(&client, "f").await?;
        let (read, bytes) = file.read(chunk, rt.alloc(4096)).await;
        read?;
        assert!(bytes.iter().all(|b| *b == 0), "zeros behind the cut");
        Ok(left)
    });
    assert_eq!(left.expect("read"), 1);
}

/// A client that does not keep to the rules writes with what it was given before the file was cut, at a head that has not seen the truncate itself: it was a middle one, or the tail, then.
#[test]
fn what_was_given_before_a_cut_is_of_no_use_at_the_next_head() {
    let shape = Shape { storages: 2, replicas: 2, chains: 1, stripe: 1, ..SHAPE };
    let cluster = Cluster::start(60, shape);
    cluster.bootstrap().expect("a cluster");
    let nodes = cluster.clients.clone();
    let (rt, config) = (nodes[1].rt(), cluster.client_config());
    let addresses: Vec<_> =
        cluster.storages.iter().map(|s| (s.id(), Cluster::address(s))).collect();
    // Writes into the second chunk of the file, at the head.
    let opened = cluster.world.run(&nodes[1], LIMIT, async move {
        let client = Client::connect(&rt, config).await.expect("a client");
        let (file, open) = open_or_make(&client, "f").await.expect("made");
        file.write(0, Buf::from_vec(vec![7; 2 * CHUNK_BYTES as usize])).await.expect("written");
        client.sync(report(&client, &file, true)).await.expect("told");
        let capability = Capability::read_from_bytes(&open.capability[..]).expect("a capability");
        (client, file, capability)
    });
    let (client, file, capability) = opened.expect("in time");
    let inode = file.inode();
    let seq = Rc::new(Cell::new(0));
    let write = || {
        let (client, file, addresses) = (client.clone(), file.clone(), addresses.clone());
        seq.set(seq.get() + 1);
        let seq = seq.get();
        let written = cluster.world.run(&nodes[1], LIMIT, async move {
            let hello = Hello {
                cluster: CLUSTER.parse().expect("an id"),
                token: ROOT_TOKEN.into(),
                role: Some(Role::Client),
                client: client.id(),
                ..Hello::default()
            };
            let connector = Connector::new(client.rt(), hello, Rc::new(NoCalls));
            let routing = client.routing();
            let chain = routing.chains.values().next().expect("a chain");
            let at = *chain.serving().next().expect("a head");
            let address = addresses.iter().find(|a| a.0 == at.node).expect("its address");
            let conn =
                connector.connect(std::slice::from_ref(&address.1)).await.expect("connected");
            let head = UpdateHead {
                kind: update::WRITE,
                capability,
                chunk: ChunkId { volume: file.volume(), data: file.data(), index: 1 }.into(),
                chain: chain.id.0.into(),
                chain_version: chain.version.0.into(),
                target: at.target.0.into(),
                len: 4096.into(),
                client: client.id().0.into(),
                channel: 200.into(),
                seq: seq.into(),
                chunk_bytes: CHUNK_BYTES.into(),
                ..UpdateHead::default()
            };
            let payload = vec![1; 4096];
            let mut crcs = Vec::new();
            piece_checksums(0, &payload, &mut crcs);
            let request = Request {
                method: method::WRITE,
                body: Update::encode(&head, &crcs),
                bulk: Bulk::Send(vec![Buf::from_vec(payload)]),
                tenant: TenantId(0),
                deadline: secs(20),
            };
            conn.call(request).await.map(|_| at.node).map_err(|e| e.status)
        });
        written.expect("answered")
    };
    let head = write().expect("it may still");
    let cut = cluster.with_client(&nodes[0], LIMIT, move |_, client| async move {
        cut_to(&client, inode, 1).await
    });
    cut.expect("cut");
    assert_eq!(write(), Err(Status::BadCapability), "at the head of that time");
    cluster.crash(cluster.storages.iter().find(|s| s.id() == head).expect("it"), false);
    cluster.run_for(secs(10));
    assert_eq!(write(), Err(Status::BadCapability), "at the next one");
}
