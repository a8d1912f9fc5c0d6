//! Where members of chains may go: the disks that take targets, what they carry, and where a newcomer is put.
//!
//! A large drain asks for thousands of places in one go, on the thread that renews the lease of mgmtd's primary. So what depends on all chains is
//! counted once for each set of nodes, from an index of the chains of each node, and what has no room is not looked for again.

use crate::state::State;
use crate::tables::{places, rack_of};
use glowfs_placement::{Burden, Place, replacement};
use glowfs_types::routing::{ChainInfo, ChainMember, LocalState, PublicState, TargetInfo};
use glowfs_types::wire::mgmtd::TargetReport;
use glowfs_types::{ChainId, NodeId, StoreId, TargetId};
use std::collections::{BTreeMap, BTreeSet};

/// This part of a disk is kept free of replicas that are made anew: full disks take no writes.
const KEPT_FREE_PART: u64 = 32;

/// Sets of nodes of which it is remembered what disks share with them, at most. Where there are more, there are many nodes, each with few
/// chains: then it is soon counted again.
const SETS_MAX: usize = 1024;

/// What a move needs to know of the cluster; made anew for every round.
pub(crate) struct Ground<'a> {
    s: &'a State,
    pub places: Vec<Place>,
    burdens: Vec<Burden>,
    /// Where in `places` a store is.
    at: BTreeMap<StoreId, usize>,
    /// Counted when the first place is asked for.
    spread: Option<Spread>,
    /// By the nodes of the members that stay.
    sharing: BTreeMap<BTreeSet<NodeId>, Sharing>,
    /// Replicas that each chain should have.
    pub wanted: BTreeMap<ChainId, usize>,
    /// Targets that are to go.
    pub leaving: BTreeSet<TargetId>,
    /// Stores that this round gives a target more, or one less, to make what they carry more even ([`crate::balance`]).
    pub moved: Vec<(StoreId, i32)>,
}

/// Replicas that each chain should have, of those that are of a table.
pub(crate) fn wanted(s: &State) -> BTreeMap<ChainId, usize> {
    let tables = s.tables.iter().map(|t| &t.value);
    tables.flat_map(|t| t.table.chains.iter().map(|c| (*c, t.replicas as usize))).collect()
}

/// How many chains of tables are complete, degraded and unavailable.
pub(crate) fn conditions(s: &State) -> [usize; 3] {
    let mut counts = [0; 3];
    for (id, wanted) in wanted(s) {
        let Some(chain) = s.chains.get(&id) else { continue };
        let [complete, degraded, unavailable] = &mut counts;
        *match chain.value.info.serving().count() {
            0 => unavailable,
            n if n < wanted => degraded,
            _ => complete,
        } += 1;
    }
    counts
}

/// How the places share chains with a set of nodes.
struct Sharing {
    /// Of each place: how many of its targets are of chains that have a member on one of the nodes.
    shared: Vec<u32>,
    /// The fewest bytes for which there was no room beside these nodes. Places only get fuller.
    no_room_for: Option<u64>,
}

impl<'a> Ground<'a> {
    pub fn new(s: &'a State, leaving: BTreeSet<TargetId>) -> Self {
        let places = usable(s);
        let at: BTreeMap<StoreId, usize> =
            places.iter().enumerate().map(|(i, p)| (p.store, i)).collect();
        let mut burdens: Vec<Burden> = places
            .iter()
            .map(|p| Burden {
                free_bytes: p.capacity_bytes - p.capacity_bytes / KEPT_FREE_PART,
                ..Burden::default()
            })
            .collect();
        for t in s.targets.values().map(|t| &t.value) {
            if let Some(b) = at.get(&t.store).and_then(|i| burdens.get_mut(*i)) {
                b.take(bytes_to_be(s, t));
            }
        }
        let (spread, sharing, wanted) = (None, BTreeMap::new(), wanted(s));
        Self { s, places, burdens, at, spread, sharing, wanted, leaving, moved: Vec::new() }
    }

    /// Where one more member of a chain goes; counts it there.
    pub fn take_place(&mut self, chain: ChainId) -> Option<Place> {
        let s = self.s;
        let info = &s.chains.get(&chain)?.value.info;
        let bytes = bytes_of(s, info);
        let stay = info.members.iter().filter(|m| !self.leaving.contains(&m.target) || stuck(s, m));
        let members: Vec<(NodeId, String)> = stay.map(|m| (m.node, rack_of(s, m.node))).collect();
        let nodes: BTreeSet<NodeId> = members.iter().map(|m| m.0).collect();
        if self.sharing.len() >= SETS_MAX && !self.sharing.contains_key(&nodes) {
            self.sharing.clear();
        }
        let spread = self.spread.get_or_insert_with(|| Spread::new(s, &self.at));
        let sharing = self.sharing.entry(nodes).or_insert_with_key(|nodes| Sharing {
            shared: spread.shared(nodes, self.places.len()),
            no_room_for: None,
        });
        if sharing.no_room_for.is_some_and(|least| bytes >= least) {
            return None;
        }
        for (b, shared) in self.burdens.iter_mut().zip(&sharing.shared) {
            b.shared = *shared;
        }
        let Some(at) = replacement(&self.places, &self.burdens, &members, bytes) else {
            sharing.no_room_for = Some(bytes);
            return None;
        };
        self.burdens.get_mut(at)?.take(bytes);
        self.places.get(at).cloned()
    }
}

impl Ground<'_> {
    /// A place that was taken for a chain is not used after all.
    pub fn give_back(&mut self, chain: ChainId, place: &Place) {
        let bytes = self.s.chains.get(&chain).map_or(0, |c| bytes_of(self.s, &c.value.info));
        if let Some(b) = self.at.get(&place.store).and_then(|at| self.burdens.get_mut(*at)) {
            b.targets = b.targets.saturating_sub(1);
            b.free_bytes = b.free_bytes.saturating_add(bytes);
        }
    }
}

/// Which chains have members where.
struct Spread {
    /// Of each chain, the places of its members.
    chains: Vec<Vec<usize>>,
    /// Of each node, the chains that have a member on it, by their index in `chains`; one with several may be named again.
    of_node: BTreeMap<NodeId, Vec<usize>>,
}

impl Spread {
    fn new(s: &State, at: &BTreeMap<StoreId, usize>) -> Self {
        let mut out = Self { chains: Vec::with_capacity(s.chains.len()), of_node: BTreeMap::new() };
        for chain in s.chains.values() {
            let members = &chain.value.info.members;
            for m in members {
                out.of_node.entry(m.node).or_default().push(out.chains.len());
            }
            let stores = members.iter().filter_map(|m| Some(s.targets.get(&m.target)?.value.store));
            out.chains.push(stores.filter_map(|store| at.get(&store).copied()).collect());
        }
        out
    }
    /// Of each of so many places: how many of its targets are of chains that have a member on one of the nodes.
    fn shared(&self, nodes: &BTreeSet<NodeId>, places: usize) -> Vec<u32> {
        let mut chains: Vec<usize> =
            nodes.iter().filter_map(|n| self.of_node.get(n)).flatten().copied().collect();
        chains.sort_unstable();
        chains.dedup();
        let mut shared = vec![0; places];
        for place in chains.iter().filter_map(|c| self.chains.get(*c)).flatten() {
            if let Some(count) = shared.get_mut(*place) {
                *count += 1;
            }
        }
        shared
    }
}

/// The bytes that a target takes, as far as it was heard.
fn bytes_now(s: &State, t: &TargetInfo) -> u64 {
    s.heard.get(&t.id).map_or(t.used_bytes, |h| h.report.used_bytes)
}

/// The bytes that a whole replica of a chain takes.
fn bytes_of(s: &State, chain: &ChainInfo) -> u64 {
    let members = chain.members.iter().filter_map(|m| s.targets.get(&m.target));
    members.map(|t| bytes_now(s, &t.value)).max().unwrap_or(0)
}

/// The bytes that a target will take: one that does not serve yet has those of its chain still to come.
fn bytes_to_be(s: &State, t: &TargetInfo) -> u64 {
    let chain = s.chains.get(&t.chain).map(|c| &c.value.info);
    let comes = chain
        .filter(|c| c.members.iter().any(|m| m.target == t.id && m.state != PublicState::Serving));
    comes.map_or(0, |c| bytes_of(s, c)).max(bytes_now(s, t))
}

/// Whether a member waits on a disk that works, of a node that lives: what ails it there would ail another one on that node as well.
fn stuck(s: &State, m: &ChainMember) -> bool {
    let store = s.targets.get(&m.target).and_then(|t| s.stores.get(&t.value.store));
    let there = store.is_some_and(|r| r.away == 0 && !r.superseded && !r.absent);
    let broken = s.heard.get(&m.target).is_some_and(|h| h.report.local == LocalState::Offline);
    m.state != PublicState::Serving && there && !broken && s.leases.alive(m.node)
}

/// Whether a target that left its chain is on a disk that failed: on one that works its chunks are being removed, and it takes bytes.
pub(crate) fn has_failed(report: &TargetReport) -> bool {
    report.local == LocalState::Offline && report.used_bytes == 0
}

/// Disks that may take new targets: of live nodes that hear of it, not on their way out, without a target that is out of order.
pub(crate) fn usable(s: &State) -> Vec<Place> {
    let offline = |t: &TargetInfo| {
        let heard = s.heard.get(&t.id).map(|h| &h.report);
        let listed = s.chains.get(&t.chain).is_some_and(|c| c.value.records.contains_key(&t.id));
        heard.is_some_and(|r| has_failed(r) || (listed && r.local == LocalState::Offline))
    };
    let broken: BTreeSet<StoreId> =
        s.targets.values().filter(|t| offline(&t.value)).map(|t| t.value.store).collect();
    let mut all = places(s);
    let hears = |node| s.leases.alive(node) && !s.leases.deaf(node);
    all.retain(|p| hears(p.node) && !broken.contains(&p.store));
    all.sort_by_key(|p| (p.node, p.disk_index, p.store));
    all
}

#[cfg(test)]
mod tests;
