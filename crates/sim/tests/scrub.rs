//! When disks are read through, and what services say of themselves, in the shipped services.

use glowfs_client::Client;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::scenes::repairs;
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply};
use glowfs_types::{NodeId, Result};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, scrub_interval_s: 60, ..Shape::SINGLE };
const LIMIT: Duration = Duration::from_secs(60);

fn ask<T: 'static, F: Future<Output = Result<T>> + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(Rc<Client>) -> F + 'static,
) -> T {
    cluster.with_client(&cluster.clients[0].clone(), LIMIT, |_, c| work(c)).expect("asked")
}

/// Whole passes over the targets of a node in this life of it.
fn passes(cluster: &Cluster, node: NodeId) -> u64 {
    let scrub = Scrub { now: false };
    let reply: ScrubReply =
        ask(cluster, move |c| async move { c.node_call(node, method::SCRUB, &scrub).await });
    reply.targets.iter().map(|t| t.passes).sum()
}

/// A node that is started anew more often than its disks are scrubbed scrubs them all the same, and not because it was started.
#[test]
fn a_scrub_is_due_by_the_last_one_whatever_was_restarted_since() {
    let cluster = Cluster::start(61, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let first = cluster.storages[0].clone();
    for _ in 0..2 {
        cluster.run_for(Duration::from_secs(40));
        cluster.crash(&first, false);
        cluster.restart(&first);
        cluster.run_for(Duration::from_secs(12));
        // Of 60 s the first life saw 40.
    }
    let (now, other) = (passes(&cluster, first.id()), passes(&cluster, cluster.storages[1].id()));
    assert!(other > 0, "one that was never restarted");
    assert!(now == 0, "its pass was in the life before: {now}");
    cluster.run_for(Duration::from_secs(30));
    let later = passes(&cluster, first.id());
    assert!(
        later == u64::from(SHAPE.chains),
        "once, when the last one ended a minute ago: {later}"
    );
}

/// A target that has failed does not serve, whatever its chain has said before.
#[test]
fn what_has_failed_is_not_counted_as_serving() {
    let cluster = Cluster::start(62, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let bytes = || Buf::from_vec(vec![1; 64 << 10]);
    ask(&cluster, move |c| async move {
        let (file, _) = open_or_make(&c, "file").await?;
        for chunk in 0..6 {
            file.write(chunk << 16, bytes()).await?;
        }
        file.flush().await
    });
    let head = cluster.storages[0].clone();
    assert!(head.damage_chunks() > 0);
    let node = head.id();
    let said = ask(&cluster, move |c| async move {
        let (file, _) = open_or_make(&c, "file").await?;
        let mut said = Vec::new();
        // A part of a damaged block cannot be written: the head fails, and comes back after a while.
        for chunk in 0..6 {
            file.write((chunk << 16) + 100, Buf::from_vec(vec![2; 100])).await?;
            said.push(c.status(node).await?.detail);
        }
        Ok(said)
    });
    let failed = said.iter().find(|s| s.contains("failed"));
    assert!(failed.is_some_and(|s| s.starts_with("2 of 3")), "{said:?}");
}

#[test]
fn a_write_beside_the_repair_of_its_chunk_is_not_undone() {
    // The first of them has its head on another node than the second one.
    for seed in [1, 63] {
        repairs::a_write_beside_a_repair(seed);
    }
}
