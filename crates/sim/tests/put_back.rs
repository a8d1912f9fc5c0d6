//! A storage whose disk is put back as it was before (a snapshot, a clone), in the shipped services: what was acknowledged since then is not forgotten with it.

use crate::replicas::{CHUNK, Step, change, check, restart_one_by_one, wait_serving, with};
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, DISK, Shape};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::TargetId;
use glowfs_types::wire::method;
use glowfs_types::wire::operate::{ForceChain, ForceChainReply};

const THREE: Shape = Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, ..Shape::SINGLE };
/// Longer than it takes to hear of a node, and to make a chain of it.
const HEARD: Duration = Duration::from_secs(20);
/// How long a read is tried that nobody may answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What becomes of the only chain, and its only member, if an operator looks, or forces it.
fn operate(cluster: &Cluster, force: bool) -> ForceChainReply {
    with(cluster, move |_, client| async move {
        let info = client.routing();
        let chain = info.chains.values().next().expect("a chain");
        let target: TargetId = chain.members[0].target;
        let ask = ForceChain { chain: chain.id, target: Some(target), dry_run: !force };
        client.mgmtd(method::FORCE_CHAIN, &ask).await
    })
}

/// What the first byte of the file is, if anybody says so.
fn read(cluster: &Cluster) -> Option<u8> {
    let config = glowfs_client::ClientConfig { data_total: PATIENCE, ..cluster.client_config() };
    let node = cluster.clients[0].clone();
    let read = cluster.with_config(&node, PATIENCE * 6, config, |rt, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        let (result, buf) = file.read(0, rt.alloc(CHUNK as usize)).await;
        result.map(|_| buf[0])
    });
    read.ok()
}

/// Nobody else has what was acknowledged since: the chain waits, an operator is told why, and can force it. Whatever the number of the life is by which mgmtd
/// hears of the store: `later` lives were accounted for after the copy, `unheard` ones nobody heard of after it was put back.
#[test]
fn the_only_replica_that_was_put_back_serves_nothing_until_it_is_forced() {
    for (seed, (later, unheard)) in (31..).zip([(1, 0), (2, 0), (1, 1), (1, 2)]) {
        let what = format!("{later} lives after the copy, {unheard} unheard");
        let cluster = Cluster::start(seed, Shape::SINGLE);
        cluster.bootstrap().expect("a cluster");
        let (storage, disk) = (&cluster.storages[0], cluster.storages[0].node.disk(DISK));
        change(&cluster, "f", vec![Step::Fill(0..4, 1)]);
        cluster.crash(storage, false);
        let old = disk.image();
        for life in 0..later {
            cluster.restart(storage);
            wait_serving(&cluster);
            change(&cluster, "f", vec![Step::Fill(0..4, 2 + life)]);
            cluster.crash(storage, false);
        }
        let newest = disk.image();
        disk.put_back(&old);
        cluster.world.isolate(&storage.node);
        for _ in 0..unheard {
            cluster.restart(storage);
            cluster.run_for(Duration::from_secs(3));
            cluster.crash(storage, false);
        }
        cluster.world.heal();
        cluster.restart(storage);
        cluster.run_for(HEARD);
        assert_eq!(read(&cluster), None, "{what}: old bytes");
        let told = operate(&cluster, false);
        assert!(told.waits, "{what}: {}", told.explanation);
        assert!(told.explanation.contains("older state of its disk"), "{}", told.explanation);
        // The disk with everything is found again: the operator says so.
        cluster.crash(storage, false);
        disk.put_back(&newest);
        cluster.restart(storage);
        cluster.run_for(HEARD);
        operate(&cluster, true);
        wait_serving(&cluster);
        check(&cluster, "f", &[1 + later; 4]);
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
}

/// Others serve: it is brought up to date, whatever it has. Its chunks are of older versions, of files that are gone, and some of the very version
/// that the chain has by now, with other bytes: chunks that were removed and made anew begin at 1 where nobody remembers the removal.
#[test]
fn a_replica_that_was_put_back_is_brought_up_to_date_before_it_serves() {
    for (seed, noticed) in [(41, true), (42, false)] {
        let cluster = Cluster::start(seed, THREE);
        cluster.bootstrap().expect("a cluster");
        let (storage, disk) = (&cluster.storages[0], cluster.storages[0].node.disk(DISK));
        for name in ["kept", "cut", "gone"] {
            change(&cluster, name, vec![Step::Fill(0..12, 1)]);
        }
        cluster.crash(storage, false);
        let old = disk.image();
        cluster.run_for(Duration::from_secs(3));
        cluster.restart(storage);
        wait_serving(&cluster);
        change(&cluster, "kept", vec![Step::Fill(0..6, 2)]);
        change(&cluster, "cut", vec![Step::Cut(1)]);
        change(&cluster, "gone", vec![Step::Remove, Step::Fill(0..3, 4)]);
        // All forget the removals.
        restart_one_by_one(&cluster, &cluster.storages);
        change(&cluster, "cut", vec![Step::Fill(6..12, 3)]);
        cluster.crash(storage, false);
        disk.put_back(&old);
        if noticed {
            cluster.run_for(Duration::from_secs(5));
        }
        cluster.restart(storage);
        cluster.run_for(Duration::from_secs(1));
        wait_serving(&cluster);
        check(&cluster, "kept", &[2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
        check(&cluster, "cut", &[1, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 3]);
        check(&cluster, "gone", &[4; 3]);
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
}
