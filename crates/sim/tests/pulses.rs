//! A storage node that is stopped and continued again and again (SIGSTOP, SIGCONT), as one that is starved of its processor: slow, and not dead.

use crate::replicas::with;
use crate::writer::Writer;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, Shape};

/// How long it goes on.
const FOR: Duration = Duration::from_secs(60);
/// What a write may take beyond the time that the node is stopped.
const STALL_MAX: Duration = Duration::from_secs(4);
/// Changes of the routing info by a node that leaves its chains, is brought up to date, serves again, and leaves for the second time.
const CHANGES_MAX: u64 = 16;

const TWO: Shape =
    Shape { storages: 2, replicas: 2, chains: 2, stripe: 2, clients: 2, ..Shape::SINGLE };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The longest write, how often the routing info changed, and whether an operator who asked now and then was told that the node is kept out.
fn run(seed: u64, shape: Shape, stopped: Duration, running: Duration) -> (Duration, u64, bool) {
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    let writer = Writer::start(&cluster);
    writer.warm(&cluster);
    let (before, end) = (writer.version(), cluster.world.now() + FOR);
    let mut kept_out = false;
    while cluster.world.now() < end {
        cluster.storages[0].node.freeze(stopped);
        cluster.run_for(stopped + running);
        kept_out |= is_kept_out(&cluster);
    }
    let (worst, changes) = (writer.worst(&cluster), writer.version() - before);
    println!("seed {seed}, {stopped:?}/{running:?}: longest write {worst:?}, {changes} changes");
    writer.finish(&cluster);
    (worst, changes, kept_out)
}

/// What a client that has just come is told of the node.
fn is_kept_out(cluster: &Cluster) -> bool {
    let node = cluster.storages[0].id();
    with(cluster, move |_, client| async move { Ok(client.routing().nodes[&node].kept_out_ms > 0) })
}

/// Each pulse ends before the node's lease does.
#[test]
fn pulses_shorter_than_a_lease_cost_no_chain_anything() {
    for (seed, managers, stopped, running) in
        [(31, 1, 300, 300), (32, 3, 300, 300), (33, 3, 900, 400), (34, 1, 1000, 700)]
    {
        let shape = Shape { managers, ..TWO };
        let (worst, changes, kept_out) = run(seed, shape, ms(stopped), ms(running));
        assert_eq!(changes, 0, "{stopped}/{running} ms: the routing info changed");
        assert!(!kept_out, "{stopped}/{running} ms: kept out");
        assert!(worst < ms(stopped) + STALL_MAX, "{stopped}/{running} ms: {worst:?}");
    }
}

/// Each pulse costs the lease: it was taken out and let in again each time.
#[test]
fn pulses_longer_than_a_lease_take_a_node_out_and_not_in_again_each_time() {
    for (seed, managers, stopped, running) in
        [(41, 1, 1900, 1900), (42, 3, 1900, 1900), (43, 3, 2000, 700), (44, 3, 2500, 4500)]
    {
        let shape = Shape { managers, ..TWO };
        let (worst, changes, kept_out) = run(seed, shape, ms(stopped), ms(running));
        assert!(changes <= CHANGES_MAX, "{stopped}/{running} ms: {changes} changes in {FOR:?}");
        assert!(kept_out, "{stopped}/{running} ms: nobody is told");
        assert!(worst < ms(stopped) + STALL_MAX, "{stopped}/{running} ms: {worst:?}");
    }
}

/// Nobody else has what it holds: it serves between any two pulses.
#[test]
fn the_only_replica_is_not_kept_out() {
    let shape =
        Shape { storages: 1, replicas: 1, chains: 2, stripe: 2, clients: 2, ..Shape::SINGLE };
    for (seed, stopped, running) in [(51, 1900, 1900), (52, 2500, 3000)] {
        let (worst, _, kept_out) = run(seed, shape, ms(stopped), ms(running));
        assert!(worst < ms(stopped) + STALL_MAX, "{stopped}/{running} ms: {worst:?}");
        assert!(!kept_out, "{stopped}/{running} ms: kept out");
    }
}
