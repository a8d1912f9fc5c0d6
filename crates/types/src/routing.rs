//! Routing info: which nodes, targets, chains and tables exist and in which state.
//!
//! Owned by mgmtd, versioned, stored per item and shipped as deltas. Everything else holds a copy that it
//! drops when it is older than a node's stop time.

use crate::{
    ChainId, ChainTableId, ChainVersion, ClusterId, ConfigVersion, HostId, Incarnation, NodeId,
    Redundancy, RoutingVersion, StoreId, TargetId,
};
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// What a node does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum Role {
    /// Cluster manager.
    #[n(0)]
    Mgmtd,
    /// Metadata service.
    #[n(1)]
    Meta,
    /// Storage service.
    #[n(2)]
    Storage,
    /// Mount daemon.
    #[n(3)]
    Mount,
    /// Any other client (library, admin).
    #[n(4)]
    Client,
}

impl Role {
    /// The word used on the command line, in logs and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mgmtd => "mgmtd",
            Self::Meta => "meta",
            Self::Storage => "storage",
            Self::Mount => "mount",
            Self::Client => "client",
        }
    }
}

/// What mgmtd says of a target (architecture, section 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum PublicState {
    /// Serves reads and takes part in writes.
    #[n(0)]
    Serving,
    /// Is being brought up to date by its predecessor.
    #[n(1)]
    Syncing,
    /// Is up and waits for its turn to sync.
    #[n(2)]
    Waiting,
    /// Was the last one serving when it went away: holds the only complete copy.
    #[n(3)]
    LastSrv,
    /// Is away.
    #[n(4)]
    Offline,
}

/// What a node reports of a target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum LocalState {
    /// Equal to its predecessor, and flushed.
    #[n(0)]
    UpToDate,
    /// Up, but not proven equal.
    #[n(1)]
    Online,
    /// Not usable.
    #[n(2)]
    Offline,
}

/// Whether mgmtd hears from a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum NodeStatus {
    /// Registered, never heard.
    #[n(0)]
    Registered,
    /// Its lease is valid.
    #[n(1)]
    Active,
    /// Its lease ran out.
    #[n(2)]
    Failed,
    /// Taken out of service by an operator.
    #[n(3)]
    Disabled,
    /// Is the primary mgmtd.
    #[n(4)]
    Primary,
    /// Is a standby mgmtd.
    #[n(5)]
    Standby,
}

macro_rules! display_lower {
    ($($t:ty),*) => {$(
        impl std::fmt::Display for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&format!("{self:?}").to_lowercase())
            }
        }
    )*};
}
display_lower!(Role, PublicState, LocalState, NodeStatus);

/// A node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct NodeInfo {
    /// Its id.
    #[n(0)]
    pub id: NodeId,
    /// What it does.
    #[n(1)]
    pub role: Role,
    /// Where it listens, best first: `tcp://host:port`, `unix:///path`.
    #[n(2)]
    pub addresses: Vec<String>,
    /// The host it runs on; equal for processes that can share memory.
    #[n(3)]
    pub host: HostId,
    /// The host's name, for people.
    #[n(4)]
    pub hostname: String,
    /// Its process id, for people.
    #[n(5)]
    pub pid: u32,
    /// Free labels: rack, zone.
    #[n(6)]
    pub tags: BTreeMap<String, String>,
    /// Whether mgmtd hears from it.
    #[n(7)]
    pub status: NodeStatus,
    /// When mgmtd last counted a heartbeat: nanoseconds since the Unix epoch, 0 for never.
    #[n(8)]
    pub last_heartbeat_ns: u64,
    /// The configuration it runs.
    #[n(9)]
    pub config_version: ConfigVersion,
    /// The release it runs.
    #[n(10)]
    pub release: String,
    /// Where its metrics and health are served (`host:port`), if anywhere.
    #[n(11)]
    pub http: Option<String>,
    /// It is heard, and does not count as alive (or as one who hears) until it has been well for so long, in ms, since it fell again and again; 0: it is not kept out.
    #[cbor(n(12), default, skip_if = "is_no_time")]
    pub kept_out_ms: u64,
}

/// A target and its states.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TargetInfo {
    /// Its id.
    #[n(0)]
    pub id: TargetId,
    /// The chain it belongs to.
    #[n(1)]
    pub chain: ChainId,
    /// The node that hosts it.
    #[n(2)]
    pub node: NodeId,
    /// The store (disk) it lies on.
    #[n(3)]
    pub store: StoreId,
    /// The place of that disk in the node's configuration.
    #[n(4)]
    pub disk_index: u32,
    /// What the node last reported.
    #[n(5)]
    pub local: LocalState,
    /// The life of the store that reported it.
    #[n(6)]
    pub incarnation: Incarnation,
    /// Bytes its chunks use.
    #[n(7)]
    pub used_bytes: u64,
    /// The newest chain version it acknowledged to have adopted.
    #[n(8)]
    pub adopted: ChainVersion,
    /// What that life drew by lot; 0: not known (an older mgmtd, or an older storage).
    #[cbor(n(9), default, skip_if = "is_zero")]
    pub nonce: u32,
}

/// A member of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChainMember {
    /// The target.
    #[n(0)]
    pub target: TargetId,
    /// The node that hosts it.
    #[n(1)]
    pub node: NodeId,
    /// What mgmtd says of it.
    #[n(2)]
    pub state: PublicState,
}

/// A chain: head first. Serving members come before all others.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChainInfo {
    /// Its id.
    #[n(0)]
    pub id: ChainId,
    /// Bumped by every change.
    #[n(1)]
    pub version: ChainVersion,
    /// The newest version that every target of it acknowledged and mgmtd recorded as active.
    #[n(2)]
    pub activated: ChainVersion,
    /// The serving set of the version `activated`: any clean one of them holds every acknowledged write.
    #[n(3)]
    pub activated_serving: Vec<TargetId>,
    /// Members, head first.
    #[n(4)]
    pub members: Vec<ChainMember>,
    /// How its chunks are protected.
    #[n(5)]
    pub redundancy: Redundancy,
    /// The order that balances heads over nodes, for rotation back after failures.
    #[n(6)]
    pub preferred: Vec<TargetId>,
    /// The version with which it last began again from a member that may have lost what was acknowledged under older ones and not flushed; 0 if that never
    /// happened, or is not known (an older mgmtd).
    #[cbor(n(7), default)]
    pub lost: ChainVersion,
}

impl ChainInfo {
    /// The serving members, head first.
    pub fn serving(&self) -> impl Iterator<Item = &ChainMember> + Clone {
        self.members.iter().filter(|m| m.state == PublicState::Serving)
    }
    /// The members that writes travel through: the serving ones, then the syncing one.
    pub fn writers(&self) -> impl Iterator<Item = &ChainMember> + Clone {
        self.members
            .iter()
            .filter(|m| matches!(m.state, PublicState::Serving | PublicState::Syncing))
    }
    /// The head: where writes enter.
    pub fn head(&self) -> Option<&ChainMember> {
        self.serving().next()
    }
    /// The last serving member.
    pub fn tail(&self) -> Option<&ChainMember> {
        self.serving().last()
    }
}

/// One version of a chain table. Versions are never changed, only added.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChainTable {
    /// Its id.
    #[n(0)]
    pub id: ChainTableId,
    /// Its version.
    #[n(1)]
    pub version: u64,
    /// The chains, in order.
    #[n(2)]
    pub chains: Vec<ChainId>,
    /// What it is for.
    #[n(3)]
    pub description: String,
    /// How many replicas its chains are to have. One that moves has a member more for a while, and one that has lost one a member less. 0 where it is not told:
    /// by an older mgmtd, and in mgmtd's own records, where it stands beside the table.
    #[cbor(n(4), default, skip_if = "is_zero")]
    pub replicas: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}
fn is_no_time(ms: &u64) -> bool {
    *ms == 0
}

/// A whole copy of the routing info, or the items that changed since a version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct RoutingInfo {
    /// The cluster.
    #[n(0)]
    pub cluster: ClusterId,
    /// The version this brings a copy to.
    #[n(1)]
    pub version: RoutingVersion,
    /// Nodes by id.
    #[n(2)]
    pub nodes: BTreeMap<NodeId, NodeInfo>,
    /// Targets by id.
    #[n(3)]
    pub targets: BTreeMap<TargetId, TargetInfo>,
    /// Chains by id.
    #[n(4)]
    pub chains: BTreeMap<ChainId, ChainInfo>,
    /// Tables, every version of each.
    #[n(5)]
    pub tables: Vec<ChainTable>,
    /// In a delta: nodes that are gone.
    #[n(6)]
    pub removed_nodes: Vec<NodeId>,
    /// In a delta: targets that are gone.
    #[n(7)]
    pub removed_targets: Vec<TargetId>,
}

impl RoutingInfo {
    /// A version of a table.
    pub fn table(&self, id: ChainTableId, version: u64) -> Option<&ChainTable> {
        self.tables.iter().find(|t| t.id == id && t.version == version)
    }
    /// The newest version of a table.
    pub fn newest_table(&self, id: ChainTableId) -> Option<&ChainTable> {
        self.tables.iter().filter(|t| t.id == id).max_by_key(|t| t.version)
    }
    /// Applies a delta (items replace items). An older delta changes nothing.
    pub fn apply(&mut self, delta: RoutingInfo) {
        if delta.version < self.version {
            return;
        }
        self.cluster = delta.cluster;
        self.version = delta.version;
        self.nodes.extend(delta.nodes);
        self.targets.extend(delta.targets);
        for (id, chain) in delta.chains {
            // Chain versions never go back, whatever order deltas arrive in.
            match self.chains.get(&id) {
                Some(have) if have.version > chain.version => {}
                _ => {
                    self.chains.insert(id, chain);
                }
            }
        }
        for table in delta.tables {
            if self.table(table.id, table.version).is_none() {
                self.tables.push(table);
            }
        }
        for id in delta.removed_nodes {
            self.nodes.remove(&id);
        }
        for id in delta.removed_targets {
            self.targets.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    /// A chain as builds before `lost` wrote it.
    #[derive(Debug, PartialEq, Encode, Decode)]
    struct Before {
        #[n(0)]
        id: ChainId,
        #[n(1)]
        version: ChainVersion,
        #[n(2)]
        activated: ChainVersion,
        #[n(3)]
        activated_serving: Vec<TargetId>,
        #[n(4)]
        members: Vec<ChainMember>,
        #[n(5)]
        redundancy: Redundancy,
        #[n(6)]
        preferred: Vec<TargetId>,
    }

    #[test]
    fn chains_of_builds_that_know_of_no_losses_are_read_and_read_by_them() {
        let member =
            ChainMember { target: TargetId(9), node: NodeId(8), state: PublicState::LastSrv };
        let now = ChainInfo {
            id: ChainId(1),
            version: ChainVersion(5),
            activated: ChainVersion(4),
            activated_serving: vec![TargetId(9)],
            members: vec![member],
            redundancy: Redundancy::Replicated,
            preferred: vec![TargetId(9)],
            lost: ChainVersion(3),
        };
        // What the bytes are, once and for all.
        let bytes = encode(&now);
        assert_eq!(bytes, [0x88, 1, 5, 4, 0x81, 9, 0x81, 0x83, 9, 8, 3, 0, 0x81, 9, 3]);
        let before: Before = decode(&bytes).expect("an older build reads it");
        let again: ChainInfo = decode(&encode(&before)).expect("and is read");
        assert_eq!(again, ChainInfo { lost: ChainVersion(0), ..now });
    }

    /// A table as builds before `replicas` wrote it.
    #[derive(Debug, PartialEq, Encode, Decode)]
    struct TableBefore {
        #[n(0)]
        id: ChainTableId,
        #[n(1)]
        version: u64,
        #[n(2)]
        chains: Vec<ChainId>,
        #[n(3)]
        description: String,
    }

    #[test]
    fn tables_of_builds_that_do_not_tell_replicas_are_read_and_read_by_them() {
        let (id, version, chains) = (ChainTableId(1), 2, vec![ChainId(3), ChainId(4)]);
        let description = "d".to_owned();
        let now = ChainTable { id, version, chains, description, replicas: 3 };
        assert_eq!(encode(&now), [0x85, 1, 2, 0x82, 3, 4, 0x61, b'd', 3]);
        // As ever where it is not told: so stand tables in mgmtd's records.
        let untold = ChainTable { replicas: 0, ..now.clone() };
        assert_eq!(encode(&untold), [0x84, 1, 2, 0x82, 3, 4, 0x61, b'd']);
        let before: TableBefore = decode(&encode(&now)).expect("an older build reads it");
        assert_eq!(decode::<ChainTable>(&encode(&before)).expect("and is read"), untold);
    }
}
