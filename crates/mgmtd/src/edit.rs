//! A change of the cluster's records: what it writes to the engine, and what becomes of the copy in memory once that is stored.

use crate::keys;
use crate::records::{ChainRecord, GoneRecord, Item, StoreRecord, TableRecord};
use crate::state::State;
use crate::store::Writes;
use glowfs_cluster::Chain;
use glowfs_types::routing::{NodeInfo, TargetInfo};
use glowfs_types::{ChainId, NodeId, RoutingVersion, StoreId, TargetId};

/// A change to make.
#[derive(Default)]
pub struct Edit {
    pub nodes: Vec<NodeInfo>,
    pub targets: Vec<TargetInfo>,
    pub chains: Vec<Chain>,
    pub tables: Vec<TableRecord>,
    pub stores: Vec<StoreRecord>,
    /// Targets to remove, with the chains that they were of.
    pub removed: Vec<(TargetId, ChainId)>,
    /// Nodes to forget, with the stores that are recorded for them.
    pub forgotten: Vec<(NodeId, Vec<StoreId>)>,
}

impl Edit {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.targets.is_empty()
            && self.chains.is_empty()
            && self.tables.is_empty()
            && self.stores.is_empty()
            && self.removed.is_empty()
            && self.forgotten.is_empty()
    }
    pub fn changes_routing(&self) -> bool {
        !(self.nodes.is_empty()
            && self.targets.is_empty()
            && self.chains.is_empty()
            && self.tables.is_empty()
            && self.removed.is_empty()
            && self.forgotten.is_empty())
    }
    pub fn writes(&self, changed: RoutingVersion) -> Writes {
        let mut w = Writes::new();
        for n in &self.nodes {
            w.insert(keys::node(n.id), Some(keys::encode(&Item { changed, value: n.clone() })));
            w.insert(keys::gone_node(n.id), None);
        }
        for (node, stores) in &self.forgotten {
            w.insert(keys::node(*node), None);
            w.insert(keys::config_override(*node), None);
            w.insert(keys::gone_node(*node), Some(keys::encode(&Item { changed, value: *node })));
            w.extend(stores.iter().map(|store| (keys::store(*store), None)));
        }
        for t in &self.targets {
            w.insert(keys::target(t.id), Some(keys::encode(&Item { changed, value: t.clone() })));
        }
        for (target, chain) in &self.removed {
            let gone = GoneRecord { changed, target: *target, chain: Some(*chain) };
            w.insert(keys::target(*target), None);
            w.insert(keys::gone(*target), Some(keys::encode(&gone)));
        }
        for c in &self.chains {
            let item = Item { changed, value: ChainRecord::of(c) };
            w.insert(keys::chain(c.info.id), Some(keys::encode(&item)));
        }
        for t in &self.tables {
            let item = Item { changed, value: t.clone() };
            w.insert(keys::table(t.table.id, t.table.version), Some(keys::encode(&item)));
        }
        for s in &self.stores {
            w.insert(keys::store(s.offer.store), Some(keys::encode(s)));
        }
        w
    }
    pub fn apply(self, s: &mut State, changed: RoutingVersion, now_ms: u64) {
        let over_ms = s.leases.over_ms(now_ms);
        for c in &self.chains {
            let before = s.chains.get(&c.info.id).map(|i| i.value.info.version);
            if before != Some(c.info.version) {
                s.fences.changed(c.info.id, over_ms);
            }
        }
        for n in &self.nodes {
            s.gone_nodes.remove(&n.id);
        }
        for (node, stores) in self.forgotten {
            s.nodes.remove(&node);
            s.said.remove(&node);
            s.registered.remove(&node);
            s.overrides.remove(&node);
            s.gone_nodes.insert(node, changed);
            s.stores.retain(|store, _| !stores.contains(store));
        }
        s.nodes.extend(self.nodes.into_iter().map(|n| (n.id, Item { changed, value: n })));
        s.targets.extend(self.targets.into_iter().map(|t| (t.id, Item { changed, value: t })));
        s.chains.extend(self.chains.into_iter().map(|c| (c.info.id, Item { changed, value: c })));
        s.tables.extend(self.tables.into_iter().map(|value| Item { changed, value }));
        s.stores.extend(self.stores.into_iter().map(|r| (r.offer.store, r)));
        for (target, chain) in self.removed {
            s.targets.remove(&target);
            s.heard.remove(&target);
            s.gone.insert(target, GoneRecord { changed, target, chain: Some(chain) });
        }
        s.version = changed;
        s.answers.clear();
    }
}
