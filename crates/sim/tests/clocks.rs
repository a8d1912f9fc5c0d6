//! Wall clocks that are wrong, in the shipped services: what ends or is remembered for a time goes by the cluster's.

use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, Service, Shape};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::workload::{caller, open_or_make};
use glowfs_types::RequestId;
use glowfs_types::wire::meta::{Make, ROOT_INODE, SetXattr};
use glowfs_types::wire::trash::{Trash, TrashWish};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 2, replicas: 2, chains: 2, stripe: 2, clients: 1, ..Shape::SINGLE };
const LIMIT: Duration = Duration::from_secs(300);
/// How long the clients try: long enough for what passes, and much less than clocks are off.
const TRIED: Duration = Duration::from_secs(20);
const CHUNKS: u64 = 8;

fn config(cluster: &Cluster) -> ClientConfig {
    ClientConfig { meta_total: TRIED, data_total: TRIED, ..cluster.client_config() }
}

/// Writes, flushes and reads a file of its own that has chunks on all chains.
fn works(cluster: &Cluster, name: &'static str, what: &str) {
    let node = cluster.clients[0].clone();
    let done = cluster.with_config(&node, LIMIT, config(cluster), move |rt, client| async move {
        let (file, _) = open_or_make(&client, name).await?;
        for chunk in 0..CHUNKS {
            let at = chunk * u64::from(glowfs_sim::cluster::harness::CHUNK_BYTES);
            file.write(at, Buf::from_vec(vec![chunk as u8; 4096])).await?;
            file.flush().await?;
            let (result, buf) = file.read(at, rt.alloc(4096)).await;
            result?;
            assert!(buf.iter().all(|b| *b == chunk as u8));
        }
        Ok(())
    });
    done.unwrap_or_else(|e| panic!("{what}: {e}"));
}

fn jump(services: &[Service], seconds: i64) {
    for s in services {
        s.node.jump_wall_ns(seconds * 1_000_000_000);
    }
}

/// Capabilities end by the clock of the metadata service and were judged by that of the storage node: 30 s between them failed every write.
#[test]
fn writes_go_on_with_clocks_that_are_wrong() {
    for (seed, seconds) in [(1, 40), (2, -40), (3, 3600), (4, -3600)] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        works(&cluster, "before", "before");
        jump(&cluster.storages[..1], seconds);
        works(&cluster, "one", &format!("a storage node is off by {seconds} s"));
        jump(&cluster.storages[..1], -seconds);
        jump(&cluster.metas, seconds);
        works(&cluster, "two", &format!("the metadata service is off by {seconds} s"));
        // Also services that have just begun.
        for s in [&cluster.metas[0], &cluster.storages[1]] {
            cluster.crash(s, false);
            cluster.run_for(Duration::from_millis(500));
            cluster.restart(s);
        }
        works(&cluster, "three", &format!("it is started again, off by {seconds} s"));
        jump(&cluster.managers, 2 * seconds);
        cluster.crash(&cluster.managers[0], false);
        cluster.run_for(Duration::from_secs(3));
        cluster.restart(&cluster.managers[0]);
        works(&cluster, "four", &format!("mgmtd is started again, off by {} s", 2 * seconds));
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
}

/// Who operates the cluster hears which clock is wrong.
#[test]
fn the_status_of_a_service_names_a_clock_that_is_wrong() {
    let cluster = Cluster::start(5, SHAPE);
    cluster.bootstrap().expect("a cluster");
    jump(&cluster.storages[..1], 40);
    jump(&cluster.metas, -40);
    cluster.run_for(Duration::from_secs(1));
    let (one, other) = (cluster.storages[0].id(), cluster.storages[1].id());
    let meta = cluster.metas[0].id();
    let node = cluster.clients[0].clone();
    let said = cluster.with_config(&node, LIMIT, config(&cluster), move |_, c| async move {
        let mut said = Vec::new();
        for id in [one, other, meta] {
            said.push(c.status(id).await?.detail);
        }
        Ok(said)
    });
    let said = said.expect("answers");
    assert!(said[0].contains("40.0 s ahead of"), "{said:?}");
    assert!(!said[1].contains("clock"), "{said:?}");
    assert!(said[2].contains(" s behind that of"), "{said:?}");
}

/// A primary hands the time on to the next one, however wrong that one's clock is.
#[test]
fn writes_go_on_when_the_next_primary_has_another_clock() {
    for (seed, seconds) in [(11, 7200), (12, -7200)] {
        let cluster = Cluster::start(seed, Shape { managers: 3, ..SHAPE });
        cluster.bootstrap().expect("a cluster");
        for round in 0..3 {
            let primary = cluster.primary().expect("a primary");
            for m in cluster.managers.iter().filter(|m| m.id() != primary.id()) {
                m.node.jump_wall_ns(seconds * 1_000_000_000);
            }
            cluster.crash(&primary, round == 1);
            works(&cluster, "file", &format!("round {round}, off by {seconds} s"));
            cluster.restart(&primary);
            cluster.run_for(Duration::from_secs(2));
        }
    }
}

fn make(client: &Client, request: u128) -> Make {
    Make {
        caller: caller(client),
        request: RequestId(request),
        parent: ROOT_INODE,
        name: b"once".to_vec().into(),
        exclusive: true,
        mode: 0o644,
        ..Make::default()
    }
}

/// Requests are remembered for a time, by the clock of the metadata service: one that was set forgot them, and did what was repeated a second time.
#[test]
fn a_request_takes_effect_once_though_the_clock_is_set() {
    for (seed, seconds) in [(21, 7200), (22, -7200)] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let node = cluster.clients[0].clone();
        let client = {
            let (rt, config) = (node.rt(), config(&cluster));
            let connect = async move { Client::connect(&rt, config).await.expect("a client") };
            cluster.world.run(&node, LIMIT, connect).expect("in time")
        };
        let once = |client: Rc<Client>| {
            let work = async move { client.make(make(&client, 12)).await };
            cluster.world.run(&node, LIMIT, work).expect("in time")
        };
        let made = once(client.clone()).expect("made");
        jump(&cluster.metas, seconds);
        // Old ones are looked for now and then.
        cluster.run_for(Duration::from_secs(90));
        let again = once(client.clone()).unwrap_or_else(|e| panic!("off by {seconds} s: {e}"));
        assert_eq!(again.attr.inode, made.attr.inode, "off by {seconds} s");
        cluster.crash(&cluster.metas[0], false);
        cluster.run_for(Duration::from_secs(1));
        cluster.restart(&cluster.metas[0]);
        let again = once(client).unwrap_or_else(|e| panic!("started again, {seconds} s: {e}"));
        assert_eq!(again.attr.inode, made.attr.inode, "started again, {seconds} s");
    }
}

/// One metadata service whose clock was ahead emptied the whole trash, for good; what was removed through one whose clock was behind went at once.
#[test]
fn a_wrong_clock_does_not_empty_the_trash() {
    for (seed, removed_by, looked_at_by) in [(31, 0, 7200), (32, -7200, 0)] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        jump(&cluster.metas, removed_by);
        let node = cluster.clients[0].clone();
        let removed = cluster.with_config(&node, LIMIT, config(&cluster), |_, c| async move {
            let (caller, name) = (caller(&c), b"glowfs.trash".to_vec().into());
            let (request, inode, value) = (RequestId(5), ROOT_INODE, b"10m".to_vec());
            c.setxattr(SetXattr { caller, request, inode, name, value, flags: 0 }).await?;
            open_or_make(&c, "f").await?;
            unlink(&c, ROOT_INODE, "f", false).await
        });
        removed.expect("removed");
        jump(&cluster.metas, looked_at_by - removed_by);
        cluster.run_for(Duration::from_secs(10));
        let list = || {
            let listed = cluster.with_config(&node, LIMIT, config(&cluster), |_, c| async move {
                Ok(c.trash(Trash::default()).await?.entries)
            });
            listed.expect("listed")
        };
        let (kept, what) = (list(), format!("off by {removed_by} s, then by {looked_at_by} s"));
        assert_eq!(kept.len(), 1, "{what}");
        // With clocks that are right again it goes when its time has come.
        jump(&cluster.metas, -looked_at_by);
        cluster.run_for(Duration::from_secs(540));
        assert_eq!(list().len(), 1, "{what}: not yet");
        cluster.run_for(Duration::from_secs(120));
        assert_eq!(list(), [], "{what}");
        let restore = Trash { wish: TrashWish::Restore, id: Some(kept[0].id), to: None };
        let gone = cluster.with_config(&node, LIMIT, config(&cluster), |_, c| async move {
            c.trash(restore).await.map(|_| ())
        });
        gone.expect_err("gone");
    }
}
