//! Answers of mgmtd that reach a storage node late, in the shipped services: its heartbeats are heard all the while, so it is never dead.

use crate::writer::Writer;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::world::Link;
use glowfs_types::NodeId;
use glowfs_types::routing::RoutingInfo;

/// How long the answers are late.
const LATE_FOR: Duration = Duration::from_secs(60);
/// How long one write may take, at most, while mgmtd finds out that a node is deaf and its chains go on without it.
const STALL_MAX: Duration = Duration::from_secs(10);
/// Changes of the routing info while a node leaves its chains: its members go, and what is left becomes active.
const CHANGES_MAX: u64 = 10;

const TWO: Shape =
    Shape { storages: 2, replicas: 2, chains: 2, stripe: 2, clients: 2, ..Shape::SINGLE };

/// From now on what the managers say to a storage node takes so long (`None`: arrives as ever).
fn delay(cluster: &Cluster, storage: usize, late: Option<Duration>) {
    let node = &cluster.storages[storage].node;
    for m in &cluster.managers {
        let link = cluster.world.link(node, &m.node);
        let ns = late.map(|d| d.as_nanos() as u64);
        let link = Link {
            latency_ns_min: ns.unwrap_or(link.latency_ns_min),
            latency_ns_max: ns.map_or(link.latency_ns_max, |ns| ns + 20_000_000),
            ..link
        };
        cluster.world.set_link(&m.node, node, link);
    }
}

fn serves(info: &RoutingInfo, node: NodeId) -> bool {
    info.chains.values().any(|c| c.serving().any(|m| m.node == node))
}

/// Writes while the answers to a node are late, and after that. The longest write, how often the routing info changed meanwhile, and whether the node
/// served at its end.
fn run(seed: u64, shape: Shape, storage: usize, late: Duration) -> (Duration, u64, bool) {
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    let writer = Writer::start(&cluster);
    writer.warm(&cluster);
    let before = writer.version();
    delay(&cluster, storage, Some(late));
    cluster.run_for(LATE_FOR);
    let changes = writer.version() - before;
    let served = serves(&writer.routing(), cluster.storages[storage].id());
    let worst = writer.worst(&cluster);
    delay(&cluster, storage, None);
    writer.finish(&cluster);
    println!("seed {seed}, {late:?}: longest write {worst:?}, {changes} changes, served: {served}");
    (worst, changes, served)
}

/// As long as an answer comes before the lease that it grants is over, with time for the next one, nothing happens at all.
#[test]
fn a_slow_link_to_mgmtd_costs_no_lease() {
    for (seed, managers, ms) in [(1, 1, 650), (2, 1, 1100), (3, 3, 650), (4, 3, 1000)] {
        let shape = Shape { managers, ..TWO };
        let (worst, changes, served) = run(seed, shape, 0, Duration::from_millis(ms));
        assert!(served && worst < Duration::from_secs(3), "{ms} ms, {managers}: {worst:?}");
        assert!(changes == 0, "{ms} ms: {changes} changes");
    }
}

/// Answers come later than any lease lasts: writes stood still until they failed, with a good replica left.
#[test]
fn chains_go_on_without_a_node_that_hears_of_no_lease() {
    for (seed, managers, ms) in [(11, 1, 1400), (12, 1, 2500), (13, 1, 30_000), (14, 3, 2500)] {
        let shape = Shape { managers, ..TWO };
        let (worst, changes, served) = run(seed, shape, 0, Duration::from_millis(ms));
        assert!(worst < STALL_MAX, "{ms} ms, {managers}: {worst:?}");
        assert!(!served, "{ms} ms: it serves");
        // With three managers it was heard, found deaf, and heard again: 25 to 86 changes over 24 seeds.
        assert!(changes <= CHANGES_MAX, "{ms} ms: {changes} changes in {LATE_FOR:?}");
    }
}

/// Nobody else has what it holds: it goes on as long as it has a lease now and then.
#[test]
fn the_only_replica_goes_on_between_the_gaps() {
    let shape =
        Shape { storages: 1, replicas: 1, chains: 2, stripe: 2, clients: 2, ..Shape::SINGLE };
    for (seed, ms) in [(21, 1000), (22, 1300)] {
        let (worst, _, served) = run(seed, shape, 0, Duration::from_millis(ms));
        assert!(served && worst < STALL_MAX, "{ms} ms: {worst:?}");
    }
}

/// One of two replicas is away for a while, and no answer reaches the other one meanwhile, so it never hears that it is to serve alone: it keeps the chains
/// from the first only until that is back. (They stood still as long as the answers were late.)
#[test]
fn who_hears_nothing_gives_way_to_one_that_was_away_and_has_everything() {
    const AWAY: Duration = Duration::from_secs(8);
    for seed in 31..35 {
        let cluster = Cluster::start(seed, TWO);
        cluster.bootstrap().expect("a cluster");
        let writer = Writer::start(&cluster);
        writer.warm(&cluster);
        let (deaf, away) = if seed % 2 == 0 { (0, 1) } else { (1, 0) };
        cluster.storages[away].node.freeze(AWAY);
        delay(&cluster, deaf, Some(LATE_FOR));
        cluster.run_for(AWAY + STALL_MAX);
        let (info, done) = (writer.routing(), writer.done.get());
        let ids = [away, deaf].map(|s| cluster.storages[s].id());
        assert!(serves(&info, ids[0]) && !serves(&info, ids[1]), "seed {seed}: {:?}", info.chains);
        cluster.run_for(Duration::from_secs(5));
        assert!(writer.done.get() > done + 100, "seed {seed}: writes stand still");
        delay(&cluster, deaf, None);
        writer.finish(&cluster);
    }
}
