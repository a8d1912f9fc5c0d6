//! Messages of mgmtd: heartbeats, routing info and configuration; stores and tables; [clients] and [users].
//!
//! Guarantees: a field that came later is optional or has a default, and its comment says what an older release means that leaves it out. Must never:
//! give the number of a field another meaning, or carry a user's token but to who has just been given it (services ask by its hash).

mod clients;
#[cfg(test)]
mod tests;
mod users;

pub use clients::*;
pub use users::*;

use crate::routing::{LocalState, NodeInfo, Role, RoutingInfo};
use crate::{
    ChainId, ChainTableId, ChainVersion, ClusterId, ConfigVersion, Incarnation, NodeId,
    RoutingVersion, StoreId, TargetId,
};
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// What a node reports of one of its targets.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TargetReport {
    /// The target.
    #[n(0)]
    pub target: TargetId,
    /// Its state as the node sees it.
    #[n(1)]
    pub local: LocalState,
    /// The life of its store.
    #[n(2)]
    pub incarnation: Incarnation,
    /// Whether the life before ended with a clean shutdown.
    #[n(3)]
    pub clean: bool,
    /// The newest chain version it adopted.
    #[n(4)]
    pub adopted: ChainVersion,
    /// Bytes its chunks use. Of one that left its chain: 1 or more while it is removed from a disk that works, 0 on one that failed.
    #[n(5)]
    pub used_bytes: u64,
    /// The store it lies on.
    #[n(6)]
    pub store: StoreId,
    /// The newest chain version it knows: nothing is served under an older one any more.
    #[cbor(n(7), default)]
    pub known: ChainVersion,
    /// The first life of its store since which the machine was not started again, and no start of the store has cut off what had been acknowledged: what ended
    /// between was processes only. 0: not known.
    #[cbor(n(8), default)]
    pub machine_since: Incarnation,
    /// The newest chain version that it adopted as a serving member of it. None: not known, from an older build.
    #[n(9)]
    pub served: Option<ChainVersion>,
    /// What this life of its store drew by lot: another life may have the same `incarnation`, if the store was put back as it was before. 0: not
    /// known, from an older build.
    #[cbor(n(10), default)]
    pub nonce: u32,
    /// The same of the life before it. 0: there was none, or it was one of an older build.
    #[cbor(n(11), default)]
    pub former: u32,
}

/// HEARTBEAT. The node's lease counts from the moment it sent this, on its own CLOCK_BOOTTIME.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Heartbeat {
    /// Who it is. A node that mgmtd does not know is registered by its first heartbeat.
    #[n(0)]
    pub node: NodeInfo,
    /// One life of the process.
    #[n(1)]
    pub incarnation: Incarnation,
    /// Grows with every heartbeat of a life; an older one is ignored.
    #[n(2)]
    pub sequence: u64,
    /// Its targets.
    #[n(3)]
    pub targets: Vec<TargetReport>,
    /// The routing version it has.
    #[n(4)]
    pub routing_version: RoutingVersion,
    /// It is stopping: take it out at once.
    #[n(5)]
    pub leaving: bool,
    /// How long before this one the newest heartbeat was sent that was answered early enough for a lease without a gap, in ms (before there
    /// is one: the first that was sent). Older releases: 0.
    #[cbor(n(6), default)]
    pub unanswered_ms: u64,
    /// What the node takes for the cluster's time, in ns since the Unix epoch; 0: it was not told. Of older releases `None`: they go by their wall clock.
    #[n(7)]
    pub time_ns: Option<u64>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct HeartbeatReply {
    /// How long the node may serve, counted from the moment it sent the heartbeat, in ms.
    #[n(0)]
    pub lease_ms: u64,
    /// What changed in the routing info since the node's version (empty if nothing).
    #[n(1)]
    pub routing: Option<RoutingInfo>,
    /// The configuration to run, if newer than the node's.
    #[n(2)]
    pub config: Option<ConfigItem>,
    /// Keys that sign capabilities, by id (meta and storage only). The greatest id signs.
    #[n(3)]
    pub capability_keys: Vec<(u32, minicbor::bytes::ByteArray<32>)>,
    /// Of the targets that the heartbeat named, those that were removed: their chains go on without them, and their ids are not used again.
    #[cbor(n(4), default)]
    pub removed: Vec<TargetId>,
    /// The cluster's time when this was made, in ns since the Unix epoch: what ends or is remembered for a while goes by it. Older releases: 0.
    #[cbor(n(5), default)]
    pub time_ns: u64,
    /// What the primary's wall clock showed then. Older releases: 0.
    #[cbor(n(6), default)]
    pub wall_ns: u64,
}

/// One versioned configuration of a role.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ConfigItem {
    /// Its version.
    #[n(0)]
    pub version: ConfigVersion,
    /// Whose it is.
    #[n(1)]
    pub role: Role,
    /// TOML text.
    #[n(2)]
    pub toml: String,
}

/// GET_ROUTING: everything newer than `have`. Waits up to `wait_ms` for something newer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetRouting {
    /// The version the caller has; 0 for none.
    #[n(0)]
    pub have: RoutingVersion,
    /// How long to wait for news, in ms.
    #[n(1)]
    pub wait_ms: u64,
}

/// One formatted disk that a storage node offers.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StoreOffer {
    /// The store.
    #[n(0)]
    pub store: StoreId,
    /// Its place in the node's configuration.
    #[n(1)]
    pub disk_index: u32,
    /// Its size in bytes.
    #[n(2)]
    pub capacity_bytes: u64,
}

/// REGISTER_STORES.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RegisterStores {
    /// The node.
    #[n(0)]
    pub node: NodeId,
    /// Its stores.
    #[n(1)]
    pub stores: Vec<StoreOffer>,
    /// The life of its process, as in its heartbeats. Older builds: 0.
    #[cbor(n(2), default)]
    pub incarnation: Incarnation,
    /// Its host's name. Older builds: none.
    #[cbor(n(3), default)]
    pub hostname: String,
}

/// Its answer. (Builds that do not know it answer and read it as one without fields.)
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct RegisterStoresReply {
    /// Stores that are not this node's to offer; all others are registered.
    #[cbor(n(0), default)]
    pub refused: Vec<RefusedStore>,
}

/// A store that was not registered.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RefusedStore {
    /// The store.
    #[n(0)]
    pub store: StoreId,
    /// Why, and what to do, for people.
    #[n(1)]
    pub why: String,
}

/// CREATE_TABLE: lays chains over all registered stores and makes a table of them. Repeating it with the same
/// arguments changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CreateTable {
    /// The table.
    #[n(0)]
    pub table: ChainTableId,
    /// Replicas of a chain.
    #[n(1)]
    pub replicas: u32,
    /// Chains to make.
    #[n(2)]
    pub chains: u32,
    /// What it is for.
    #[n(3)]
    pub description: String,
    /// Only explain, change nothing.
    #[n(4)]
    pub dry_run: bool,
}

/// GROW_TABLE: a new version of a table has the chains of the newest one, and more of the same kind. The answer is a [`CreateTableReply`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GrowTable {
    /// The table.
    #[n(0)]
    pub table: ChainTableId,
    /// How many chains it shall have in all, so that a repetition adds none.
    #[n(1)]
    pub chains: u32,
    /// Only explain, change nothing.
    #[n(2)]
    pub dry_run: bool,
}

/// What was made of a table, or would be.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CreateTableReply {
    /// The table's version.
    #[n(0)]
    pub version: u64,
    /// What was or would be done, for people.
    #[n(1)]
    pub explanation: String,
}

/// GET_PRIMARY's answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PrimaryInfo {
    /// The cluster.
    #[n(0)]
    pub cluster: ClusterId,
    /// The primary, if known.
    #[n(1)]
    pub node: Option<NodeId>,
    /// Where it listens.
    #[n(2)]
    pub addresses: Vec<String>,
    /// How long ago the one who answers last saw a sign of life of that primary, in ms. A caller that had no answer from
    /// the primary itself need not ask it again while this grows.
    #[cbor(n(3), default)]
    pub silent_ms: u64,
}

/// GET_CONFIG's answer, SET_CONFIG's argument.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ClusterConfig {
    /// One item for each role that has one.
    #[n(0)]
    pub items: Vec<ConfigItem>,
    /// Per-node overrides, TOML text.
    #[n(1)]
    pub overrides: BTreeMap<NodeId, String>,
}

/// REPORT_SLOW: a predecessor says that its successor holds acknowledgements up beyond the bound: a syncing one (mgmtd demotes it to
/// waiting), or a serving one that it cannot reach (mgmtd decides which of the two leaves the chain). The last serving member also says of a
/// waiting one that it is not reached: it is not let in for a while. (Releases that know nothing of that ignore it.)
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReportSlow {
    /// The chain.
    #[n(0)]
    pub chain: ChainId,
    /// The version of it under which that was seen; a report on an older one is ignored.
    #[n(1)]
    pub version: ChainVersion,
    /// The successor.
    #[n(2)]
    pub target: TargetId,
    /// Who says it; 0 from builds that did not say.
    #[cbor(n(3), default)]
    pub reporter: TargetId,
    /// The successor's node answers nothing that the reporter sends.
    #[cbor(n(4), default)]
    pub unreachable: bool,
}
