//! How many targets each disk should carry.

use crate::Place;
use glowfs_types::NodeId;
use std::collections::BTreeMap;

/// Shares of `chains * replicas` targets by capacity, no node above `chains` (members of a chain lie on distinct nodes).
/// The sum is exact if there are at least `replicas` nodes.
pub fn quotas(places: &[Place], chains: u32, replicas: u32) -> Vec<u32> {
    let nodes = node_quotas(places, chains, replicas);
    let mut out = vec![0; places.len()];
    for (node, total) in nodes {
        let mine: Vec<usize> = (0..places.len()).filter(|&i| places[i].node == node).collect();
        let weights: Vec<u64> = mine.iter().map(|&i| places[i].capacity_bytes.max(1)).collect();
        for (&i, share) in mine.iter().zip(apportion(u64::from(total), &weights)) {
            out[i] = share as u32;
        }
    }
    out
}

/// Shares of nodes: proportional, and what a node cannot take goes to the others.
fn node_quotas(places: &[Place], chains: u32, replicas: u32) -> BTreeMap<NodeId, u32> {
    let mut weight: BTreeMap<NodeId, u64> = BTreeMap::new();
    for p in places {
        let w = weight.entry(p.node).or_default();
        *w = w.saturating_add(p.capacity_bytes.max(1));
    }
    let mut out = BTreeMap::new();
    let mut left = u64::from(chains) * u64::from(replicas);
    loop {
        let ids: Vec<NodeId> = weight.keys().copied().collect();
        let shares = apportion(left, &weight.values().copied().collect::<Vec<_>>());
        let full: Vec<NodeId> = ids
            .iter()
            .zip(&shares)
            .filter(|&(_, &s)| s > u64::from(chains))
            .map(|(&id, _)| id)
            .collect();
        if full.is_empty() {
            out.extend(ids.into_iter().zip(shares.into_iter().map(|s| s as u32)));
            return out;
        }
        for id in full {
            weight.remove(&id);
            out.insert(id, chains);
            left = left.saturating_sub(u64::from(chains));
        }
    }
}

/// Splits `total` by `weights` with the method of largest remainders (ties: the first).
fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|&w| u128::from(w)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let exact = |w: u64| u128::from(total) * u128::from(w);
    let mut out: Vec<u64> = weights.iter().map(|&w| (exact(w) / sum) as u64).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(exact(weights[i]) % sum));
    let missing = total - out.iter().sum::<u64>();
    for &i in order.iter().take(missing as usize) {
        out[i] += 1;
    }
    out
}
