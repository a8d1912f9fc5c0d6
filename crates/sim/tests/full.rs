//! Disks without room, in the shipped services: what the rest of a chain took and one replica cannot hold puts that replica offline,
//! and it comes back by itself when there is room again.

use glowfs_client::Client;
use glowfs_rt::{BoxFuture, Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, DISK, Shape, all_serve};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::workload::{open_or_make, write_patiently};
use glowfs_sim::world::DISK_BYTES;
use glowfs_types::routing::{LocalState, Role, RoutingInfo};
use glowfs_types::wire::meta::ROOT_INODE;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::wire::repair::{Scrub, ScrubReply};
use glowfs_types::{ConfigVersion, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of one write.
const WRITE: usize = 16 << 10;
/// Writes to one file, one behind the other, again and again.
const PLACES: u64 = 64;
/// Times that a disk is filled, at most, until a target went offline.
const ROUNDS: u64 = 30;
/// Clusters that are tried, at most.
const SEEDS: u64 = 6;
/// How long a disk has no room.
const FULL: Duration = Duration::from_millis(900);
/// How long the chains may take to be whole again.
const WHOLE: Duration = Duration::from_secs(60);

fn offline(info: &RoutingInfo) -> usize {
    info.targets.values().filter(|t| t.local == LocalState::Offline).count()
}

#[test]
fn a_target_that_a_full_disk_put_offline_comes_back() {
    one_comes_back(41, false);
}

/// A pass of the scrub takes days where much is stored.
#[test]
fn a_target_that_a_full_disk_put_offline_comes_back_while_its_node_is_scrubbed() {
    one_comes_back(42, true);
}

/// Whether a full disk meets an update that the others have taken is chance: with some seeds none does.
fn one_comes_back(first: u64, scrub: bool) {
    let seen = (first..first + SEEDS).any(|seed| comes_back(seed, scrub));
    assert!(seen, "no target ever went offline: the test proves nothing");
}

/// Begins a pass on every disk that takes longer than the test.
async fn scrub_slowly(client: Rc<Client>) -> Result<()> {
    let toml = "scrub_bytes_per_s = 1".to_owned();
    let items = vec![ConfigItem { version: ConfigVersion(0), role: Role::Storage, toml }];
    let slow = ClusterConfig { items, ..ClusterConfig::default() };
    let _: ClusterConfig = client.mgmtd_once(method::SET_CONFIG, &slow).await?;
    // Until all have heard of it.
    client.rt().sleep(Duration::from_secs(5)).await;
    let info = client.routing();
    for node in info.nodes.values().filter(|n| n.role == Role::Storage) {
        let _: ScrubReply = client.node_call(node.id, method::SCRUB, &Scrub { now: true }).await?;
    }
    client.rt().sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// How many targets a pass is at.
async fn scrubbed_now(client: Rc<Client>) -> Result<usize> {
    let (info, mut running) = (client.routing(), 0);
    for node in info.nodes.values().filter(|n| n.role == Role::Storage) {
        let reply: ScrubReply =
            client.node_call(node.id, method::SCRUB, &Scrub { now: false }).await?;
        running += reply.targets.iter().filter(|t| t.running).count();
    }
    Ok(running)
}

/// Whether a target went offline at all.
fn comes_back(seed: u64, scrub: bool) -> bool {
    let shape = Shape {
        managers: 1,
        metas: 1,
        storages: 3,
        chains: 3,
        stripe: 3,
        clients: 3,
        ..Shape::default()
    };
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    let (stop, problem) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
    let places = Rc::new(Cell::new(PLACES));
    let known: Rc<RefCell<Option<Rc<Client>>>> = Rc::default();
    for (i, node) in cluster.clients.iter().enumerate() {
        let (rt, config) = (node.rt(), cluster.client_config());
        let (stop, problem, known) = (stop.clone(), problem.clone(), known.clone());
        let places = places.clone();
        node.rt().spawn_detached(async move {
            let work = async {
                let client = Client::connect(&rt, config).await?;
                *known.borrow_mut() = Some(client.clone());
                let (file, _) = open_or_make(&client, &format!("file{i}")).await?;
                while !stop.get() {
                    let place = rt.random_below(places.get());
                    let buf = Buf::from_vec(vec![i as u8 + 1; WRITE]);
                    write_patiently(&rt, &file, place * WRITE as u64, buf).await?;
                    rt.sleep(Duration::from_micros(500)).await;
                }
                Ok::<(), glowfs_types::Error>(())
            };
            if let Err(e) = work.await {
                *problem.borrow_mut() = Some(e.to_string());
            }
        });
    }
    let routing = || known.borrow().as_ref().map(|c| c.routing()).unwrap_or_default();
    assert!(cluster.run_until(WHOLE, || all_serve(&routing(), shape)));
    let me = cluster.clients[0].clone();
    let ask = |work: fn(Rc<Client>) -> BoxFuture<Result<usize>>| {
        cluster.with_client(&me, WHOLE, move |_, client| work(client)).expect("asked")
    };
    if scrub {
        ask(|c| Box::pin(async { scrub_slowly(c).await.map(|()| 0) }));
        assert_eq!(ask(|c| Box::pin(scrubbed_now(c))), 3, "one at each disk");
    }
    let mut seen = 0;
    for round in 0..ROUNDS {
        let disk = cluster.storages[(round % 3) as usize].node.disk(DISK);
        disk.set_bytes(disk.used_bytes() + round * 4099 % (128 << 10));
        if scrub {
            // What is written by now needs no more room.
            places.set(places.get() + PLACES);
        }
        let mut most = 0;
        cluster.run_until(FULL, || {
            most = most.max(offline(&routing()));
            false
        });
        disk.set_bytes(DISK_BYTES);
        seen += most;
        let whole = || all_serve(&routing(), shape) && offline(&routing()) == 0;
        assert!(cluster.run_until(WHOLE, whole), "round {round}: {:?}", routing().chains);
        if seen > 0 {
            break;
        }
    }
    stop.set(true);
    cluster.run_for(Duration::from_secs(5));
    if scrub {
        assert!(ask(|c| Box::pin(scrubbed_now(c))) > 0, "a pass goes on");
    }
    assert_eq!(*problem.borrow(), None);
    seen > 0
}

/// More refused writes than a client may have channels on a replica.
const REFUSED: usize = 17_000;

/// A program that writes on to a full disk does not use up what its client may have on others: each refused write had cost a channel, of which the heads
/// of chains with room kept the record.
#[test]
fn writes_to_a_full_chain_leave_the_others_alone() {
    let shape = Shape { storages: 2, chains: 2, stripe: 2, ..Shape::SINGLE };
    let cluster = Cluster::start(43, shape);
    cluster.bootstrap().expect("a cluster");
    let filled = cluster.storages[1].node.disk(DISK);
    let me = cluster.clients[0].clone();
    let refused = cluster.with_client(&me, Duration::from_secs(3600), async move |_, client| {
        let (file, opened) = open_or_make(&client, "f").await?;
        let chunk = u64::from(opened.attr.layout.map_or(0, |l| l.chunk_bytes));
        let write = async |at: u64| file.write(at, Buf::from_vec(vec![7; 4096])).await;
        for at in [0, chunk] {
            write(at).await?;
        }
        filled.set_bytes(filled.used_bytes());
        let (mut refused, mut places) = (0, [0, chunk]);
        let is_full = |r: &Result<()>| r.as_ref().is_err_and(|e| e.status == Status::NoSpace);
        // The first one is that of the chain with room.
        for _ in 0..64 {
            if is_full(&write(chunk).await) {
                break;
            }
            if is_full(&write(0).await) {
                places = [chunk, 0];
                break;
            }
        }
        while refused < REFUSED {
            write(places[0]).await?;
            refused += usize::from(is_full(&write(places[1]).await));
        }
        Ok(refused)
    });
    assert_eq!(refused.map_err(|e| e.to_string()), Ok(REFUSED));
}

/// Chunks of the oldest file, which is always written to.
const KEPT: u64 = 16;
/// Files that fill a disk, at most.
const FILES: usize = 400;

/// Writes the oldest file.
async fn write_kept(client: &Rc<Client>, fill: u8) -> Result<()> {
    let (file, _) = open_or_make(client, "kept").await?;
    for n in 0..KEPT {
        let buf = Buf::from_vec(vec![fill; CHUNK_BYTES as usize]);
        file.write(n * u64::from(CHUNK_BYTES), buf).await?;
    }
    client.close_file(&file).await
}

/// A replica with a full disk was away while the oldest chunks were written to and the others removed. What it is to be brought up to date with finds
/// room only where it has removed those.
#[test]
fn a_full_replica_is_brought_up_to_date_with_removals_first() {
    let shape = Shape { storages: 2, replicas: 2, ..Shape::SINGLE };
    let cluster = Cluster::start(44, shape);
    cluster.bootstrap().expect("a cluster");
    let me = cluster.clients[0].clone();
    let [other, full] = [0, 1].map(|i| cluster.storages[i].clone());
    let disk = full.node.disk(DISK);
    let filled = cluster.with_client(&me, WHOLE, async move |rt, client| {
        write_kept(&client, 1).await?;
        disk.set_bytes(disk.used_bytes() + (6 << 20));
        let (mut made, mut refused) = (0, 0);
        while made < FILES && refused < 20 {
            let (file, _) = open_or_make(&client, &format!("f{made}")).await?;
            match file.write(0, Buf::from_vec(vec![2; CHUNK_BYTES as usize])).await {
                Ok(()) => made += 1,
                Err(e) if e.status == Status::NoSpace => {
                    refused += 1;
                    rt.sleep(Duration::from_millis(200)).await;
                }
                Err(e) => return Err(e),
            }
            client.close_file(&file).await?;
        }
        // Nothing more comes, and nothing goes.
        disk.set_bytes(disk.used_bytes());
        Ok(made)
    });
    let filled = filled.expect("filled");
    assert!((30..FILES).contains(&filled), "{filled} files");
    cluster.crash(&full, false);
    let changed = cluster.with_client(&me, WHOLE, async move |rt, client| {
        write_kept(&client, 3).await?;
        for n in 0..=filled {
            match unlink(&client, ROOT_INODE, &format!("f{n}"), false).await {
                Err(e) if e.status == Status::NotFound => {}
                other => other?,
            }
        }
        let chunks = async || -> Result<u64> {
            let targets = client.storage_info(other.id()).await?.targets;
            Ok(targets.iter().map(|(_, chunks)| *chunks).sum())
        };
        while chunks().await? > KEPT {
            rt.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    });
    changed.expect("changed");
    cluster.restart(&full);
    let whole = cluster.with_client(&me, WHOLE, async move |rt, client| {
        while !all_serve(&client.routing(), shape) {
            rt.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    });
    whole.expect("it serves again");
}
