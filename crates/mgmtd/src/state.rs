//! The primary's copy of what is in the engine, and what it heard since.

use crate::deaf::Fences;
use crate::records::{
    ClusterRecord, GoneRecord, Item, StoreRecord, TableRecord, UserRecord, standing,
};
use crate::routing::Answers;
use glowfs_cluster::{BrokenLinks, Chain, Idle, NodeLeases, Observation, Pauses, Reach};
use glowfs_rt::Instant;
use glowfs_types::routing::{
    LocalState, NodeInfo, NodeStatus, PublicState, Role, RoutingInfo, TargetInfo,
};
use glowfs_types::wire::mgmtd::{ClientSession, ConfigItem, TargetReport};
use glowfs_types::{
    ChainId, ChainVersion, ClientId, HostId, Incarnation, NodeId, RoutingVersion, StoreId,
    TargetId, UserId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many dead clients are remembered.
pub const DEAD_CLIENTS_MAX: usize = 4096;

/// A live client session.
pub struct Client {
    pub session: ClientSession,
    pub heard: Instant,
    /// Its end is being stored: it is not told that it lives before that has failed.
    pub ending: bool,
}

/// What was heard of a target.
pub struct Heard {
    pub report: TargetReport,
    /// Its node knew the routing info that says which life of the target is accounted for.
    pub informed: bool,
}

/// Everything a primary knows. Fields of the first block equal the engine; those of the second are only in memory.
pub struct State {
    pub epoch: u64,
    pub cluster: ClusterRecord,
    pub version: RoutingVersion,
    pub nodes: BTreeMap<NodeId, Item<NodeInfo>>,
    pub targets: BTreeMap<TargetId, Item<TargetInfo>>,
    /// Targets that were removed.
    pub gone: BTreeMap<TargetId, GoneRecord>,
    /// Nodes that were forgotten, and when. One that comes back is no more among them.
    pub gone_nodes: BTreeMap<NodeId, RoutingVersion>,
    pub chains: BTreeMap<ChainId, Item<Chain>>,
    pub tables: Vec<Item<TableRecord>>,
    pub stores: BTreeMap<StoreId, StoreRecord>,
    pub users: BTreeMap<UserId, UserRecord>,
    pub tokens: BTreeMap<[u8; 32], UserId>,
    pub configs: Vec<ConfigItem>,
    pub overrides: BTreeMap<NodeId, String>,
    pub clients: BTreeMap<ClientId, Client>,
    /// How many of them each user has.
    pub counts: BTreeMap<UserId, usize>,

    pub leases: NodeLeases,
    pub heard: BTreeMap<TargetId, Heard>,
    /// The greatest id of a target that a storage named, if that is beyond all in the records.
    pub held: TargetId,
    /// Which nodes do not answer which.
    pub reach: Reach,
    /// Which nodes did not answer which just now, where that matters to members that wait.
    pub broken: BrokenLinks,
    /// Which targets were slow and wait.
    pub pauses: Pauses,
    /// The member of a chain version that is to blame for messages that do not arrive.
    pub unreachable: BTreeMap<ChainId, (ChainVersion, TargetId)>,
    /// When what leaves a chain alive has left it for certain.
    pub fences: Fences,
    /// What nodes last said of themselves.
    pub said: BTreeMap<NodeId, NodeInfo>,
    /// Of each node's id, the last place in which somebody else used it as well and was refused.
    pub second: BTreeMap<NodeId, (HostId, Role)>,
    /// How long members have stood idle, as far as this primary knows.
    pub idle: Idle,
    /// The life in which each node registered its stores last, as far as this primary knows.
    pub registered: BTreeMap<NodeId, Incarnation>,
    pub dirty_nodes: BTreeSet<NodeId>,
    pub dirty_chains: BTreeSet<ChainId>,
    pub dead_clients: VecDeque<ClientId>,
    /// What GET_ROUTING was answered in the present version.
    pub answers: Answers,
}

impl State {
    /// What the chain core is told of a target.
    pub fn observation(&self, target: TargetId, now_ms: u64) -> Option<Observation> {
        let info = &self.targets.get(&target)?.value;
        let heard = self.heard.get(&target);
        let alive = self.leases.alive(info.node);
        let deaf = self.leases.deaf(info.node);
        let report = heard.map(|h| &h.report);
        let local = match (alive, report) {
            (false, _) => LocalState::Offline,
            (true, Some(r)) => r.local,
            // A node that is taken for alive and was not heard yet, or that does not name this target.
            (true, None) if self.said.contains_key(&info.node) => LocalState::Offline,
            (true, None) => return None,
        };
        Some(Observation {
            local,
            incarnation: report.map_or(info.incarnation, |r| r.incarnation),
            nonce: report.map_or(info.nonce, |r| r.nonce),
            former: report.map_or(0, |r| r.former),
            informed: heard.is_some_and(|h| h.informed),
            clean: report.is_some_and(|r| r.clean),
            machine_since: report.map_or(Incarnation(0), |r| r.machine_since),
            adopted: report.map_or(info.adopted, |r| r.adopted),
            served: report.map_or(ChainVersion(0), |r| r.served.unwrap_or(r.adopted)),
            empty: report.is_none_or(|r| r.used_bytes == 0),
            may_sync: !deaf
                && self.pauses.may_sync(target, now_ms)
                && !self.is_cut_off(info.chain, target, now_ms),
            known: report.map_or(ChainVersion(0), |r| r.known),
            unreachable: deaf || self.is_unreachable(info.chain, target),
            fenced: self.fences.over(info.chain, now_ms),
            // One that was replaced and has come back is there.
            replaced: self
                .stores
                .get(&info.store)
                .is_some_and(|r| r.superseded && r.away == standing::REPLACED),
        })
    }
    /// Whether a member that waits would not be reached by the one that would bring it up to date. (Of one that is syncing the source
    /// says by itself how it gets on.)
    fn is_cut_off(&self, chain: ChainId, target: TargetId, now_ms: u64) -> bool {
        let Some(chain) = self.chains.get(&chain) else { return false };
        let mut members = chain.value.info.members.iter();
        let waits = members.find(|m| m.target == target && m.state == PublicState::Waiting);
        let source = chain.value.info.serving().last();
        waits.zip(source).is_some_and(|(w, s)| self.broken.between(s.node, w.node, now_ms))
    }
    fn is_unreachable(&self, chain: ChainId, target: TargetId) -> bool {
        let version = self.chains.get(&chain).map(|c| c.value.info.version);
        let blamed = self.unreachable.get(&chain);
        blamed.is_some_and(|b| Some(b.0) == version && b.1 == target)
    }
    /// What a node's entry should say now.
    pub fn wanted_node(&self, id: NodeId) -> Option<NodeInfo> {
        let old = self.nodes.get(&id).map(|i| &i.value);
        let mut node = self.said.get(&id).or(old)?.clone();
        (node.last_heartbeat_ns, node.kept_out_ms) = (0, 0);
        node.status = match (node.status, self.leases.alive(id)) {
            (kept @ (NodeStatus::Primary | NodeStatus::Disabled), _) => kept,
            (NodeStatus::Standby, true) => NodeStatus::Standby,
            (_, true) => NodeStatus::Active,
            (_, false) => NodeStatus::Failed,
        };
        Some(node)
    }
    /// Whether there is a chain with a member on a node that nobody serves who is alive and hears: then the node is not kept out, however often it has
    /// fallen.
    pub fn is_needed(&self, node: NodeId) -> bool {
        let mine = self.targets.values().filter(|t| t.value.node == node);
        let serves = |n: NodeId| self.leases.alive(n) && !self.leases.deaf(n);
        mine.filter_map(|t| self.chains.get(&t.value.chain))
            .any(|c| !c.value.info.serving().any(|m| serves(m.node)))
    }
    /// Everything that changed after `have`.
    pub fn delta(&self, have: RoutingVersion) -> RoutingInfo {
        let mut out = RoutingInfo {
            cluster: self.cluster.cluster,
            version: self.version,
            ..RoutingInfo::default()
        };
        if have >= self.version {
            return out;
        }
        for (id, item) in self.nodes.iter().filter(|(_, i)| i.changed > have) {
            let mut node = item.value.clone();
            if let Some(said) = self.said.get(id) {
                node.last_heartbeat_ns = said.last_heartbeat_ns;
            }
            node.kept_out_ms = self.leases.kept_out_ms(*id);
            out.nodes.insert(*id, node);
        }
        for (id, item) in self.targets.iter().filter(|(_, i)| i.changed > have) {
            let mut target = item.value.clone();
            if let Some(heard) = self.heard.get(id) {
                target.used_bytes = heard.report.used_bytes;
            }
            out.targets.insert(*id, target);
        }
        for (id, item) in self.chains.iter().filter(|(_, i)| i.changed > have) {
            out.chains.insert(*id, item.value.info.clone());
        }
        if have > RoutingVersion(0) {
            let gone = self.gone.iter().filter(|(_, gone)| gone.changed > have);
            out.removed_targets = gone.map(|(id, _)| *id).collect();
            let gone = self.gone_nodes.iter().filter(|(_, changed)| **changed > have);
            out.removed_nodes = gone.map(|(id, _)| *id).collect();
        }
        out.tables =
            self.tables.iter().filter(|i| i.changed > have).map(|i| i.value.told()).collect();
        out
    }
    /// An id that no target ever had, as far as the records and the storages that were heard know.
    pub fn next_target(&self) -> TargetId {
        let live = self.targets.last_key_value().map(|(id, _)| *id);
        let gone = self.gone.last_key_value().map(|(id, _)| *id);
        live.max(gone).max(Some(self.held)).unwrap_or(TargetId(0)).next()
    }
    /// A node holds a target of this id, be it known or not: the records may be older than its stores.
    pub fn hold(&mut self, node: NodeId, target: TargetId) {
        if target < self.next_target() {
            return;
        }
        tracing::warn!(
            %node, target_id = %target,
            "a store holds a target of which the records do not know: older metadata was put back, or its disk is of a former file system; new targets get ids behind it"
        );
        self.held = target;
    }
    /// A node came, went or changed: look at it and at its chains.
    pub fn touch_node(&mut self, node: NodeId) {
        self.dirty_nodes.insert(node);
        let mine = self.targets.values().filter(|t| t.value.node == node).map(|t| t.value.chain);
        self.dirty_chains.extend(mine);
    }
    /// The newest configuration of a role.
    pub fn config_of(&self, role: glowfs_types::routing::Role) -> Option<&ConfigItem> {
        self.configs.iter().find(|c| c.role == role)
    }
    /// How many live clients a user has.
    pub fn clients_of(&self, user: UserId) -> usize {
        self.counts.get(&user).copied().unwrap_or(0)
    }
    /// Takes a client for alive.
    pub fn meet(&mut self, client: Client) {
        let (id, user) = (client.session.client, client.session.user);
        self.part(id);
        self.clients.insert(id, client);
        *self.counts.entry(user).or_default() += 1;
    }
    fn part(&mut self, client: ClientId) {
        let Some(old) = self.clients.remove(&client) else { return };
        if let Some(count) = self.counts.get_mut(&old.session.user) {
            *count -= 1;
        }
    }
    /// Notes whether the ends of clients are being stored.
    pub fn set_ending(&mut self, ids: &[ClientId], ending: bool) {
        for id in ids {
            if let Some(c) = self.clients.get_mut(id) {
                c.ending = ending;
            }
        }
    }
    /// Remembers a client as dead.
    pub fn bury(&mut self, client: ClientId) {
        self.part(client);
        self.dead_clients.push_back(client);
    }
}
