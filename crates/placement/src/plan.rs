//! The plan: chains of disks, and why they are so.

use crate::{improve, order, quota};
use glowfs_types::{Error, NodeId, Result, Status, StoreId};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The greatest number of chains of one plan.
pub const CHAINS_MAX: u32 = 100_000;
/// The greatest number of replicas of a chain.
pub const REPLICAS_MAX: u32 = 16;

/// A disk that can carry targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The node it belongs to.
    pub node: NodeId,
    /// The store on it.
    pub store: StoreId,
    /// Its place in the node's configuration.
    pub disk_index: u32,
    /// Its size in bytes.
    pub capacity_bytes: u64,
    /// The rack (or zone and rack) of its node; "" if unknown, which is a rack of its own for each node.
    pub rack: String,
}

/// What is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Replicas of each chain.
    pub replicas: u32,
    /// How many chains.
    pub chains: u32,
}

/// Chains over disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The disks, in a fixed order.
    pub places: Vec<Place>,
    /// For each chain, in the order of the table, indices into `places`, head first.
    pub chains: Vec<Vec<usize>>,
}

/// The working state of the greedy choice.
pub(crate) struct Work {
    pub places: Vec<Place>,
    pub racks: usize,
    /// For each two disks, how many chains they share; `[a * n + b]`.
    pub pairs: Vec<u32>,
}

impl Work {
    pub fn pair(&self, a: usize, b: usize) -> u32 {
        self.pairs[a * self.places.len() + b]
    }
    pub fn bump(&mut self, a: usize, b: usize, by: i32) {
        let n = self.places.len();
        for at in [a * n + b, b * n + a] {
            self.pairs[at] = self.pairs[at].saturating_add_signed(by);
        }
    }
    /// Whether `b` lies on a rack that `a` does not lie on.
    pub fn apart(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.places[a], &self.places[b]);
        if a.rack.is_empty() || b.rack.is_empty() { a.node != b.node } else { a.rack != b.rack }
    }
}

/// Makes a plan. The same arguments give the same plan, in whatever order the places come.
pub fn plan(places: &[Place], request: Request) -> Result<Plan> {
    let mut places = places.to_vec();
    places.sort_by_key(|p| (p.node, p.disk_index, p.store));
    check(&places, request)?;
    let quotas = quota::quotas(&places, request.chains, request.replicas);
    let racks = rack_count(&places);
    let n = places.len();
    let mut work = Work { places, racks, pairs: vec![0; n * n] };
    let mut chains = choose(&mut work, quotas, request);
    improve::even_out(&mut work, &mut chains);
    order::heads(&mut chains, n);
    let chains = order::neighbours(chains, &work.places);
    Ok(Plan { places: work.places, chains })
}

fn check(places: &[Place], request: Request) -> Result<()> {
    let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
    let nodes: BTreeSet<NodeId> = places.iter().map(|p| p.node).collect();
    let stores: BTreeSet<StoreId> = places.iter().map(|p| p.store).collect();
    if stores.len() != places.len() {
        return bad("a store is named twice; two disks cannot have the same store id".into());
    }
    if request.replicas == 0 || request.replicas > REPLICAS_MAX {
        return bad(format!("{} replicas: choose 1 to {REPLICAS_MAX}", request.replicas));
    }
    if request.chains == 0 || request.chains > CHAINS_MAX {
        return bad(format!("{} chains: choose 1 to {CHAINS_MAX}", request.chains));
    }
    if nodes.len() < request.replicas as usize {
        return bad(format!(
            "{} replicas need as many nodes with disks, but only {} registered; start more nodes or ask for fewer replicas",
            request.replicas,
            nodes.len()
        ));
    }
    Ok(())
}

fn rack_count(places: &[Place]) -> usize {
    let racks: BTreeSet<(&str, NodeId)> = places
        .iter()
        .map(|p| if p.rack.is_empty() { ("", p.node) } else { (p.rack.as_str(), NodeId(0)) })
        .collect();
    racks.len()
}

/// Chooses the members of each chain: among the allowed disks, one of the node with the most quota left (which keeps the
/// rest feasible), of those the one that met the members so far least often.
fn choose(work: &mut Work, quotas: Vec<u32>, request: Request) -> Vec<Vec<usize>> {
    let mut left = quotas;
    // Places of one node follow one another.
    let mut nodes: Vec<usize> = Vec::with_capacity(work.places.len());
    let mut node_left: Vec<u32> = Vec::new();
    for (i, (p, q)) in work.places.iter().zip(&left).enumerate() {
        if i == 0 || work.places[i - 1].node != p.node {
            node_left.push(0);
        }
        let node = node_left.len() - 1;
        node_left[node] += q;
        nodes.push(node);
    }
    let mut chains = Vec::with_capacity(request.chains as usize);
    for _ in 0..request.chains {
        let mut chain: Vec<usize> = Vec::with_capacity(request.replicas as usize);
        while chain.len() < request.replicas as usize {
            let best = (0..work.places.len())
                .filter(|&i| chain.iter().all(|&c| nodes[c] != nodes[i]))
                .min_by_key(|&i| {
                    let same_rack = chain.iter().filter(|&&c| !work.apart(c, i)).count();
                    let met: u32 = chain.iter().map(|&c| work.pair(c, i)).sum();
                    (
                        if work.racks > 1 { same_rack } else { 0 },
                        std::cmp::Reverse(node_left[nodes[i]]),
                        std::cmp::Reverse(left[i]),
                        met,
                        i,
                    )
                });
            // There are at least as many nodes as replicas, so there always is one.
            let Some(best) = best else { break };
            for &c in &chain {
                work.bump(c, best, 1);
            }
            left[best] = left[best].saturating_sub(1);
            let n = &mut node_left[nodes[best]];
            *n = n.saturating_sub(1);
            chain.push(best);
        }
        chains.push(chain);
    }
    chains
}

impl Plan {
    /// Targets of each disk.
    pub fn loads(&self) -> Vec<u32> {
        let mut out = vec![0; self.places.len()];
        for &i in self.chains.iter().flatten() {
            out[i] += 1;
        }
        out
    }
    /// Heads of each disk.
    pub fn heads(&self) -> Vec<u32> {
        let mut out = vec![0; self.places.len()];
        for &i in self.chains.iter().filter_map(|c| c.first()) {
            out[i] += 1;
        }
        out
    }
    /// How many chains each two disks of different nodes share: least and most.
    pub fn pair_range(&self) -> (u32, u32) {
        let n = self.places.len();
        let mut pairs = vec![0u32; n * n];
        for chain in &self.chains {
            for &a in chain {
                for &b in chain {
                    pairs[a * n + b] += 1;
                }
            }
        }
        let between = (0..n)
            .flat_map(|a| (0..a).map(move |b| (a, b)))
            .filter(|&(a, b)| self.places[a].node != self.places[b].node)
            .map(|(a, b)| pairs[a * n + b]);
        (between.clone().min().unwrap_or(0), between.max().unwrap_or(0))
    }
    /// What the plan means, for people.
    pub fn explain(&self) -> String {
        let range = |v: &[u32]| {
            let (min, max) = (v.iter().min().unwrap_or(&0), v.iter().max().unwrap_or(&0));
            if min == max { format!("{min}") } else { format!("{min} to {max}") }
        };
        let (loads, heads, pairs) = (self.loads(), self.heads(), self.pair_range());
        let nodes: BTreeSet<NodeId> = self.places.iter().map(|p| p.node).collect();
        let replicas = self.chains.first().map_or(0, Vec::len);
        let one_rack = self.chains.iter().filter(|c| self.shares_rack(c)).count();
        let mut out = format!(
            "{} chains of {replicas} over {} disks on {} nodes ({} racks)\n\
             targets on a disk: {}; heads on a disk: {}; chains that two disks of different nodes share: {} to {}\n",
            self.chains.len(),
            self.places.len(),
            nodes.len(),
            rack_count(&self.places),
            range(&loads),
            range(&heads),
            pairs.0,
            pairs.1
        );
        if one_rack > 0 && replicas > 1 {
            // Writing into a String cannot fail.
            let _ = writeln!(
                out,
                "{one_rack} chains have two members on one rack: there are too few racks"
            );
        }
        for (i, p) in self.places.iter().enumerate() {
            let _ = writeln!(
                out,
                "  node {} disk {}: {} targets, head of {}",
                p.node, p.disk_index, loads[i], heads[i]
            );
        }
        out
    }
    fn shares_rack(&self, chain: &[usize]) -> bool {
        let racks: BTreeSet<&str> = chain.iter().map(|&i| self.places[i].rack.as_str()).collect();
        !racks.contains("") && racks.len() < chain.len()
    }
}
