//! Places for newcomers: the same as by a search of all chains for each of them, and found in time.

use super::*;
use crate::deaf::Fences;
use crate::records::{ClusterRecord, Item, StoreRecord, TableRecord, standing};
use glowfs_cluster::{BrokenLinks, Chain, FallPauses, LeaseConfig, NodeLeases, Pauses, Reach};
use glowfs_types::routing::{ChainTable, NodeInfo, NodeStatus, PublicState, Role};
use glowfs_types::wire::mgmtd::StoreOffer;
use glowfs_types::{
    ChainTableId, ChainVersion, ClusterId, ConfigVersion, HostId, Incarnation, RoutingVersion,
};
use proptest::prelude::*;

/// A disk: its node, its size, its rack.
type DiskOf = (u64, u64, u64);
/// A member: on which disk (by index), and the bytes that it takes.
type MemberOf = (usize, u64);

fn node(id: NodeId, rack: u64) -> NodeInfo {
    let tags = match rack {
        0 => BTreeMap::new(),
        _ => BTreeMap::from([("rack".to_owned(), format!("r{rack}"))]),
    };
    NodeInfo {
        id,
        role: Role::Storage,
        addresses: vec![],
        host: HostId(0),
        hostname: String::new(),
        pid: 0,
        tags,
        status: NodeStatus::Active,
        last_heartbeat_ns: 0,
        config_version: ConfigVersion(0),
        release: String::new(),
        http: None,
        kept_out_ms: 0,
    }
}

/// A cluster of these disks and chains, all of whose members serve. Target ids count up.
fn state(disks: &[DiskOf], chains: &[Vec<MemberOf>]) -> State {
    let item = |value| Item { changed: RoutingVersion(1), value };
    let mut s = empty(disks.iter().map(|d| NodeId(d.0)).collect());
    for (i, (n, capacity_bytes, rack)) in disks.iter().copied().enumerate() {
        let info = node(NodeId(n), rack);
        s.nodes.insert(info.id, Item { changed: RoutingVersion(1), value: info });
        let store = StoreId(i as u128 + 1);
        let offer = StoreOffer { store, disk_index: i as u32, capacity_bytes };
        let (away, superseded, absent) = (standing::STAYS, false, false);
        s.stores.insert(store, StoreRecord { node: NodeId(n), offer, away, superseded, absent });
    }
    let mut next = 1;
    for (i, members) in chains.iter().enumerate() {
        let id = ChainId(i as u64 + 1);
        let mut of_chain = Vec::new();
        for (disk, used_bytes) in members.iter().copied() {
            let target = TargetInfo {
                id: TargetId(next),
                chain: id,
                node: NodeId(disks[disk].0),
                store: StoreId(disk as u128 + 1),
                disk_index: disk as u32,
                local: LocalState::UpToDate,
                incarnation: Incarnation(1),
                used_bytes,
                adopted: ChainVersion(1),
                nonce: 0,
            };
            next += 1;
            of_chain.push((target.id, target.node));
            s.targets.insert(target.id, item(target));
        }
        let mut chain = Chain::new(id, &of_chain);
        chain.info.members.iter_mut().for_each(|m| m.state = PublicState::Serving);
        chain.info.activated = chain.info.version;
        s.chains.insert(id, Item { changed: RoutingVersion(1), value: chain });
    }
    s
}

fn empty(alive: BTreeSet<NodeId>) -> State {
    let pauses = FallPauses { first_ms: 1000, longest_ms: 1000 };
    let lease =
        LeaseConfig { lease_ms: 1000, margin_ms: 100, stall_ms: 100, return_beats: 1, pauses };
    State {
        epoch: 1,
        cluster: ClusterRecord {
            cluster: ClusterId(1),
            created_ns: 0,
            service_hash: [0; 32].into(),
            capability_keys: vec![],
        },
        version: RoutingVersion(1),
        nodes: BTreeMap::new(),
        targets: BTreeMap::new(),
        gone: BTreeMap::new(),
        gone_nodes: BTreeMap::new(),
        chains: BTreeMap::new(),
        tables: vec![],
        stores: BTreeMap::new(),
        users: BTreeMap::new(),
        tokens: BTreeMap::new(),
        configs: vec![],
        overrides: BTreeMap::new(),
        clients: BTreeMap::new(),
        counts: BTreeMap::new(),
        leases: NodeLeases::new(lease, alive, 0, 0),
        heard: BTreeMap::new(),
        held: TargetId(0),
        reach: Reach::new(1000),
        broken: BrokenLinks::new(1000),
        pauses: Pauses::new(1000, 1000),
        unreachable: BTreeMap::new(),
        fences: Fences::new(0),
        said: BTreeMap::new(),
        second: BTreeMap::new(),
        idle: Default::default(),
        registered: BTreeMap::new(),
        dirty_nodes: BTreeSet::new(),
        dirty_chains: BTreeSet::new(),
        dead_clients: Default::default(),
        answers: Default::default(),
    }
}

/// What a place was found by before: a search of all chains for each.
fn searched(g: &mut Ground<'_>, chain: ChainId) -> Option<Place> {
    let s = g.s;
    let info = &s.chains.get(&chain)?.value.info;
    let (members, bytes) = (&info.members, bytes_of(s, info));
    let stay: Vec<(NodeId, String)> = members
        .iter()
        .filter(|m| !g.leaving.contains(&m.target))
        .map(|m| (m.node, rack_of(s, m.node)))
        .collect();
    let nodes: BTreeSet<NodeId> = stay.iter().map(|m| m.0).collect();
    let mut met: BTreeMap<StoreId, u32> = BTreeMap::new();
    for c in s.chains.values() {
        let info = &c.value.info;
        if info.members.iter().any(|m| nodes.contains(&m.node)) {
            for t in info.members.iter().filter_map(|m| s.targets.get(&m.target)) {
                *met.entry(t.value.store).or_default() += 1;
            }
        }
    }
    for (p, b) in g.places.iter().zip(&mut g.burdens) {
        b.shared = met.get(&p.store).copied().unwrap_or(0);
    }
    let at = replacement(&g.places, &g.burdens, &stay, bytes)?;
    g.burdens.get_mut(at)?.take(bytes);
    g.places.get(at).cloned()
}

fn store_of(place: Option<Place>) -> Option<StoreId> {
    place.map(|p| p.store)
}

fn cluster() -> impl Strategy<Value = (Vec<DiskOf>, Vec<Vec<MemberOf>>)> {
    let disk = (1..7u64, prop_oneof![Just(64u64), Just(640), Just(1 << 40)], 0..3u64);
    proptest::collection::vec(disk, 2..14).prop_flat_map(|disks| {
        let member = (0..disks.len(), 0..20u64);
        let chain = proptest::collection::vec(member, 1..4);
        (Just(disks), proptest::collection::vec(chain, 1..40))
    })
}

proptest! {
    #[test]
    fn a_place_is_the_one_that_a_search_of_all_chains_finds(
        (disks, chains) in cluster(),
        gone in proptest::collection::vec(any::<bool>(), 120),
        dead in 0..9u64,
        unknown in proptest::collection::vec(0..200u64, 0..3),
        asked in proptest::collection::vec(0..41u64, 1..120),
    ) {
        let mut s = state(&disks, &chains);
        s.leases.forget(NodeId(dead));
        for id in unknown {
            s.targets.remove(&TargetId(id));
        }
        let leaving: BTreeSet<TargetId> =
            s.targets.keys().copied().filter(|t| gone[t.0 as usize % gone.len()]).collect();
        let mut ground = Ground::new(&s, leaving.clone());
        let mut before = Ground::new(&s, leaving);
        for chain in asked.into_iter().map(ChainId) {
            let (now, then) = (ground.take_place(chain), searched(&mut before, chain));
            prop_assert_eq!(store_of(now), store_of(then));
        }
    }
}

/// More sets of nodes than are remembered.
/// What `glowfs_mgmtd_chains` says: by the replicas that a chain should have, so one that moves lacks nothing.
#[test]
fn chains_are_counted_by_their_condition() {
    let disks: Vec<DiskOf> = (1..=4).map(|n| (n, 1 << 30, 0)).collect();
    let chain = |n: usize| (0..n).map(|i| (i, 1)).collect::<Vec<MemberOf>>();
    let mut s = state(&disks, &[chain(3), chain(4), chain(3), chain(3), chain(3)]);
    let states =
        [(2, 3, PublicState::Syncing), (3, 1, PublicState::Offline), (3, 2, PublicState::Waiting)];
    for (id, member, state) in states {
        s.chains.get_mut(&ChainId(id)).expect("laid").value.info.members[member].state = state;
    }
    let dead = &mut s.chains.get_mut(&ChainId(4)).expect("laid").value.info.members;
    dead.iter_mut().for_each(|m| m.state = PublicState::Offline);
    // The fifth is of no table.
    let table = ChainTable {
        id: ChainTableId(1),
        version: 1,
        chains: (1..=4).map(ChainId).collect(),
        description: String::new(),
        replicas: 0,
    };
    let value = TableRecord { table, replicas: 3, chains: 4 };
    s.tables.push(Item { changed: RoutingVersion(1), value });
    assert_eq!(conditions(&s), [2, 1, 1]);
}

#[test]
fn what_is_forgotten_is_counted_again() {
    // Each chain on three of 24 nodes, all of which stay: 2024 sets.
    let disks: Vec<DiskOf> = (0..48).map(|d| (1 + d % 24, 1 << 40, 0)).collect();
    let mut chains = Vec::new();
    for a in 0..24usize {
        for b in a + 1..24 {
            chains.extend((b + 1..24).map(|c| vec![(a, 1), (b + 24, 2), (c, 3)]));
        }
    }
    let s = state(&disks, &chains);
    let ids: Vec<ChainId> = s.chains.keys().copied().collect();
    let mut ground = Ground::new(&s, BTreeSet::new());
    let mut before = Ground::new(&s, BTreeSet::new());
    // From both ends, so that sets come again.
    for id in ids.iter().step_by(3).chain(ids.iter().rev().step_by(7)).step_by(2) {
        let now = ground.take_place(*id);
        assert_eq!(store_of(now), store_of(searched(&mut before, *id)), "{id}");
        assert!(ground.sharing.len() <= SETS_MAX);
    }
}

/// Nanoseconds of CPU that one answer may take, also where the compiler was not told to be fast: a lease of mgmtd's primary is renewed
/// on the same thread.
const CPU_MAX: u64 = 1_000_000_000;

/// Nanoseconds that this thread has run, as of the last time it was put aside.
fn cpu() -> u64 {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    stat.split(' ').next().expect("a number").parse().expect("a number")
}

/// Drains some nodes, and asks for a place for each target of theirs; how many have one.
fn drain(mut s: State, nodes: std::ops::RangeInclusive<u64>) -> usize {
    for r in s.stores.values_mut().filter(|r| nodes.contains(&r.node.0)) {
        r.away = standing::DRAINED;
    }
    let leaving = s.targets.values().filter(|t| nodes.contains(&t.value.node.0));
    let leaving: BTreeMap<TargetId, ChainId> =
        leaving.map(|t| (t.value.id, t.value.chain)).collect();
    let begin = cpu();
    let mut ground = Ground::new(&s, leaving.keys().copied().collect());
    let placed = leaving.values().filter(|c| ground.take_place(**c).is_some()).count();
    let took = cpu() - begin;
    println!("{} of {} placed, {} ms of CPU", placed, leaving.len(), took / 1_000_000);
    assert!(took < CPU_MAX, "{took} ns of CPU");
    placed
}

#[test]
fn three_of_thirty_nodes_are_drained_in_time() {
    let disks: Vec<DiskOf> = (0..300).map(|d| (1 + d / 10, 1 << 40, 1 + d / 10 % 6)).collect();
    let chain = |c: usize| {
        let (a, b) = (c % 30, (c + 1 + c / 30 % 14) % 30);
        let third = (b + 1 + c / 420 % 14) % 30;
        let third = if third == a { (third + 15) % 30 } else { third };
        [a, b, third].map(|n| (n * 10 + c / 7 % 10, 1 << 20)).to_vec()
    };
    let chains: Vec<_> = (0..10_000).map(chain).collect();
    let s = state(&disks, &chains);
    assert!(drain(s, 1..=3) > 2000);
}

#[test]
fn one_of_three_nodes_is_found_to_have_no_other_place_in_time() {
    let disks: Vec<DiskOf> = (0..3).map(|d| (1 + d, 1 << 40, 0)).collect();
    let chains: Vec<_> = (0..5000).map(|_| vec![(0, 9), (1, 9), (2, 9)]).collect();
    let s = state(&disks, &chains);
    assert_eq!(drain(s, 1..=1), 0);
}

/// A round of balancing in which nothing is moved, as there are two a second. With a table of these chains.
fn balance_once(mut s: State) -> bool {
    let chains = s.chains.keys().copied().collect();
    let (id, description) = (ChainTableId(1), String::new());
    let table = ChainTable { id, version: 1, chains, description, replicas: 0 };
    let value = TableRecord { table, replicas: 3, chains: s.chains.len() as u32 };
    s.tables.push(Item { changed: RoutingVersion(1), value });
    let begin = cpu();
    let mut ground = Ground::new(&s, BTreeSet::new());
    let made = cpu();
    assert!(crate::balance::at_leisure(&s, &ground));
    let looked = cpu();
    assert!(crate::balance::next(&s, &mut ground, &[]).is_none());
    let end = cpu();
    let (ground_ns, look_ns, next_ns) = (made - begin, looked - made, end - looked);
    println!(
        "us of CPU: ground {}, leisure {}, next {}",
        ground_ns / 1000,
        look_ns / 1000,
        next_ns / 1000
    );
    assert!(end - begin < CPU_MAX);
    ground.spread.is_some()
}

#[test]
fn where_all_is_even_no_chain_is_looked_at() {
    let disks: Vec<DiskOf> = (0..300).map(|d| (1 + d / 10, 1 << 40, 1 + d / 10 % 6)).collect();
    // One disk after the other; the members of a chain are a hundred disks apart.
    let chain = |c: usize| (0..3).map(|m| ((c + 100 * m) % 300, 1 << 20)).collect();
    let chains: Vec<Vec<MemberOf>> = (0..10_000).map(chain).collect();
    assert!(!balance_once(state(&disks, &chains)));
}

#[test]
fn where_no_chain_may_move_that_is_found_in_time() {
    // The third node has half as many disks; who leaves it has no node to go to.
    let disks: Vec<DiskOf> = (0..250).map(|d| (1 + d / 100, 1 << 40, 0)).collect();
    let chain = |c: usize| vec![(c % 100, 9), (100 + c / 7 % 100, 9), (200 + c % 50, 9)];
    let chains: Vec<_> = (0..10_000).map(chain).collect();
    assert!(balance_once(state(&disks, &chains)));
}
