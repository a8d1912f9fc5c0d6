//! What a plan promises, over many clusters.

use glowfs_placement::{Place, Plan, Request, plan};
use glowfs_types::{NodeId, StoreId};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn cluster(nodes: u64, disks: u32, racks: u64) -> Vec<Place> {
    (0..nodes)
        .flat_map(|n| {
            (0..disks).map(move |d| Place {
                node: NodeId(n + 1),
                store: StoreId(u128::from(n) << 32 | u128::from(d)),
                disk_index: d,
                capacity_bytes: 1 << 40,
                rack: if racks == 0 { String::new() } else { format!("r{}", n % racks) },
            })
        })
        .collect()
}

fn spread(v: &[u32]) -> u32 {
    v.iter().max().unwrap_or(&0) - v.iter().min().unwrap_or(&0)
}

fn distinct_nodes(p: &Plan) -> bool {
    p.chains.iter().all(|c| {
        let nodes: BTreeSet<_> = c.iter().map(|&i| p.places[i].node).collect();
        nodes.len() == c.len()
    })
}

#[test]
fn one_node_one_replica() {
    let p = plan(&cluster(1, 1, 0), Request { replicas: 1, chains: 4 }).expect("a plan");
    assert_eq!(p.chains, vec![vec![0]; 4]);
    assert!(p.explain().contains("4 chains of 1 over 1 disks on 1 nodes"));
}

#[test]
fn too_few_nodes_says_the_way_out() {
    let e = plan(&cluster(2, 4, 0), Request { replicas: 3, chains: 4 }).expect_err("two nodes");
    assert!(e.message.contains("fewer replicas"), "{e}");
}

#[test]
fn three_nodes_two_disks() {
    let p = plan(&cluster(3, 2, 0), Request { replicas: 3, chains: 12 }).expect("a plan");
    assert_eq!(p.loads(), vec![6; 6]);
    assert_eq!(p.heads(), vec![2; 6]);
    assert_eq!(p.pair_range(), (3, 3), "{}", p.explain());
    // A perfect order need not exist; all but a few neighbours have nothing in common.
    let meet = p.chains.windows(2).filter(|w| w[0].iter().any(|i| w[1].contains(i))).count();
    assert!(meet <= 3, "{meet} neighbours share disks");
}

#[test]
fn pairs_are_even_in_a_larger_cluster() {
    let p = plan(&cluster(6, 4, 0), Request { replicas: 3, chains: 240 }).expect("a plan");
    assert_eq!(spread(&p.loads()), 0);
    assert!(spread(&p.heads()) <= 1, "{}", p.explain());
    let (min, max) = p.pair_range();
    assert!(max - min <= 2, "{}", p.explain());
}

#[test]
fn capacity_counts() {
    let mut places = cluster(4, 2, 0);
    for p in places.iter_mut().filter(|p| p.disk_index == 1) {
        p.capacity_bytes *= 3;
    }
    let p = plan(&places, Request { replicas: 2, chains: 80 }).expect("a plan");
    for (place, load) in p.places.iter().zip(p.loads()) {
        assert_eq!(load, if place.disk_index == 1 { 30 } else { 10 });
    }
}

#[test]
fn a_big_node_carries_at_most_one_member_of_a_chain() {
    let mut places = cluster(3, 1, 0);
    places[0].capacity_bytes *= 100;
    let p = plan(&places, Request { replicas: 2, chains: 10 }).expect("a plan");
    assert!(distinct_nodes(&p));
    assert_eq!(p.loads(), vec![10, 5, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn bounds(nodes in 1u64..9, disks in 1u32..5, replicas in 1u32..5, chains in 1u32..60, racks in 0u64..5) {
        prop_assume!(u64::from(replicas) <= nodes);
        let mut places = cluster(nodes, disks, racks);
        let request = Request { replicas, chains };
        let p = plan(&places, request).expect("a plan");
        prop_assert_eq!(p.chains.len() as u32, chains);
        prop_assert!(p.chains.iter().all(|c| c.len() as u32 == replicas));
        prop_assert!(distinct_nodes(&p));
        prop_assert!(spread(&p.heads()) <= 2, "{}", p.explain());
        // Distinct racks come first: 8 nodes with 2 disks in 4 racks have 4 to 7 targets a disk with 31 chains of 3.
        if racks == 0 || nodes % racks == 0 && u64::from(replicas) <= racks {
            prop_assert!(spread(&p.loads()) <= if racks == 0 { 2 } else { 3 }, "{}", p.explain());
        }
        if racks >= u64::from(replicas) && nodes >= racks {
            for c in &p.chains {
                let racks: BTreeSet<_> = c.iter().map(|&i| &p.places[i].rack).collect();
                prop_assert_eq!(racks.len(), c.len());
            }
        }
        places.reverse();
        prop_assert_eq!(plan(&places, request).expect("a plan"), p, "order of arguments");
    }
}
