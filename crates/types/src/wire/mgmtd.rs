//! Messages of mgmtd: heartbeats, routing info and configuration; sessions of clients; stores and tables; users and what their tokens stand for.
//!
//! Guarantees: a field that came later is optional or has a default, and its comment says what an older release means that leaves it out. Must never:
//! give the number of a field another meaning, or carry a user's token but to who has just been given it (services ask by its hash).

use super::meta::is_false;
use crate::routing::{LocalState, NodeInfo, Role, RoutingInfo};
use crate::{
    ChainId, ChainTableId, ChainVersion, ClientId, ClusterId, ConfigVersion, Error, HostId,
    Incarnation, NodeId, Result, RoutingVersion, Status, StoreId, TargetId, UserId,
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
    /// The first life of its store since which the machine was not started again: what ended between was processes only. 0: not known.
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

/// CLIENT_SESSION: opens or extends a client's session. A client that is silent for the session's time is dead:
/// its file sessions are closed for it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClientSession {
    /// The client.
    #[n(0)]
    pub client: ClientId,
    /// Mount or other.
    #[n(1)]
    pub role: Option<Role>,
    /// Its host's name.
    #[n(2)]
    pub hostname: String,
    /// Its host.
    #[n(3)]
    pub host: HostId,
    /// Its process.
    #[n(4)]
    pub pid: u32,
    /// What it is for (mount point).
    #[n(5)]
    pub description: String,
    /// Its release.
    #[n(6)]
    pub release: String,
    /// When it began: nanoseconds since the Unix epoch.
    #[n(7)]
    pub started_ns: u64,
    /// Its user (filled in by mgmtd from the connection's token).
    #[n(8)]
    pub user: UserId,
    /// When mgmtd last heard of it (filled in by mgmtd).
    #[n(9)]
    pub last_seen_ns: u64,
    /// mgmtd has taken it before: if nothing is known of it now, its session has ended, longer ago than is remembered. Not stored. (Older builds do
    /// not say it.)
    #[cbor(n(10), default, skip_if = "is_false")]
    pub extends: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClientSessionReply {
    /// How long the session lives without being extended, in ms.
    #[n(0)]
    pub session_ms: u64,
    /// Routing info is stale when it is older than this, in ms (a node's own stop time).
    #[n(1)]
    pub routing_stale_ms: u64,
}

/// CLIENT_GOODBYE.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClientGoodbye {
    /// The client.
    #[n(0)]
    pub client: ClientId,
}

/// LIST_CLIENTS. Older releases send no field and hear of all in one message, as far as they fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ListClients {
    /// Those behind this one, in the order of their ids.
    #[n(0)]
    pub after: Option<ClientId>,
    /// Whether they may come in pages.
    #[cbor(n(1), default)]
    pub pages: bool,
}

/// LIST_CLIENTS' answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ClientList {
    /// Live sessions.
    #[n(0)]
    pub clients: Vec<ClientSession>,
    /// Clients whose sessions ended or ran out not long ago. A client in neither list was never known, or is long dead.
    #[cbor(n(1), default)]
    pub dead: Vec<ClientId>,
    /// More follow behind the last live session.
    #[cbor(n(2), default)]
    pub more: bool,
}

impl ClientList {
    /// What to ask for next: until nothing is left, who is not listed may be alive all the same.
    pub fn next(&self, asked: ListClients) -> Result<Option<ListClients>> {
        if !self.more {
            return Ok(None);
        }
        let after = self.clients.last().map(|c| c.client);
        if after <= asked.after {
            let e = "mgmtd lists its clients in circles; restart its primary";
            return Err(Error::new(Status::Internal, e));
        }
        Ok(Some(ListClients { after, ..asked }))
    }
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

/// CHECK_TOKEN: what a service asks when a client says hello.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CheckToken {
    /// BLAKE3 of the token; the token itself is not passed on.
    #[n(0)]
    pub hash: minicbor::bytes::ByteArray<32>,
    /// The client that the caller says it is; 0 for none. Refused if it is another user's, or if its session has ended.
    #[cbor(n(1), default)]
    pub client: ClientId,
}

/// A user of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserInfo {
    /// The uid.
    #[n(0)]
    pub user: UserId,
    /// The name.
    #[n(1)]
    pub name: String,
    /// The groups; the first is the primary one.
    #[n(2)]
    pub groups: Vec<u32>,
    /// May act as any user.
    #[n(3)]
    pub root: bool,
    /// May administer the cluster.
    #[n(4)]
    pub admin: bool,
    /// Is a service of the cluster (may heartbeat and forward).
    #[n(5)]
    pub service: bool,
}

/// USER_ADD: adds a user; the answer carries the token, shown once.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserAdd {
    /// The user.
    #[n(0)]
    pub user: UserInfo,
    /// Who is there already is left as he is, and the request refused. (Older builds replace him, whether he should be or not.)
    #[cbor(n(1), default, skip_if = "is_false")]
    pub only_new: bool,
    /// The token that he is to have, so that a repetition is known as one: 64 lower-case hexadecimal digits. Without it mgmtd makes one, as older builds always do.
    #[n(2)]
    pub token: Option<String>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserAddReply {
    /// The token.
    #[n(0)]
    pub token: String,
}

/// USER_CHANGE: changes of a user what is named, and nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UserChange {
    /// The uid.
    #[n(0)]
    pub user: UserId,
    /// The name.
    #[n(1)]
    pub name: Option<String>,
    /// The groups, all of them; the first is the primary one.
    #[n(2)]
    pub groups: Option<Vec<u32>>,
    /// May act as any user.
    #[n(3)]
    pub root: Option<bool>,
    /// May administer the cluster.
    #[n(4)]
    pub admin: Option<bool>,
    /// A new token in the place of the one that is good until now.
    #[n(5)]
    pub new_token: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserChangeReply {
    /// The user as he is now.
    #[n(0)]
    pub user: UserInfo,
    /// The new token, if one was wanted; shown once.
    #[n(1)]
    pub token: Option<String>,
}

/// USER_REMOVE: the user and his token are no more.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserRemove {
    /// The uid.
    #[n(0)]
    pub user: UserId,
}

/// USER_LIST's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UserList {
    /// The users.
    #[n(0)]
    pub users: Vec<UserInfo>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::NodeStatus;
    use crate::wire::{decode, encode};

    /// HEARTBEAT as releases sent it that know neither late answers nor a time of the cluster.
    #[derive(Encode, Decode)]
    struct Before {
        #[n(0)]
        node: NodeInfo,
        #[n(1)]
        incarnation: Incarnation,
        #[n(2)]
        sequence: u64,
        #[n(3)]
        targets: Vec<TargetReport>,
        #[n(4)]
        routing_version: RoutingVersion,
        #[n(5)]
        leaving: bool,
    }

    /// What a node reported of a target, in releases whose stores draw no lots.
    #[derive(Encode, Decode)]
    struct ReportBefore {
        #[n(0)]
        target: TargetId,
        #[n(1)]
        local: LocalState,
        #[n(2)]
        incarnation: Incarnation,
        #[n(3)]
        clean: bool,
        #[n(4)]
        adopted: ChainVersion,
        #[n(5)]
        used_bytes: u64,
        #[n(6)]
        store: StoreId,
        #[cbor(n(7), default)]
        known: ChainVersion,
        #[cbor(n(8), default)]
        machine_since: Incarnation,
        #[n(9)]
        served: Option<ChainVersion>,
    }

    /// REGISTER_STORES as releases sent it that do not say which process it is.
    #[derive(Encode, Decode)]
    struct StoresBefore {
        #[n(0)]
        node: NodeId,
        #[n(1)]
        stores: Vec<StoreOffer>,
    }

    /// CLIENT_SESSION as releases sent it, and stored it, that do not say whether they extend one.
    #[derive(Encode, Decode)]
    struct SessionBefore {
        #[n(0)]
        client: ClientId,
        #[n(1)]
        role: Option<Role>,
        #[n(2)]
        hostname: String,
        #[n(3)]
        host: HostId,
        #[n(4)]
        pid: u32,
        #[n(5)]
        description: String,
        #[n(6)]
        release: String,
        #[n(7)]
        started_ns: u64,
        #[n(8)]
        user: UserId,
        #[n(9)]
        last_seen_ns: u64,
    }

    /// Its answer then.
    #[derive(Encode, Decode)]
    struct ReplyBefore {
        #[n(0)]
        lease_ms: u64,
        #[n(1)]
        routing: Option<RoutingInfo>,
        #[n(2)]
        config: Option<ConfigItem>,
        #[n(3)]
        capability_keys: Vec<(u32, minicbor::bytes::ByteArray<32>)>,
        #[cbor(n(4), default)]
        removed: Vec<TargetId>,
    }

    fn node() -> NodeInfo {
        NodeInfo {
            id: NodeId(7),
            role: Role::Storage,
            addresses: Vec::new(),
            host: HostId(1),
            hostname: String::new(),
            pid: 0,
            tags: BTreeMap::new(),
            status: NodeStatus::Active,
            last_heartbeat_ns: 0,
            config_version: ConfigVersion(0),
            release: String::new(),
            http: None,
        }
    }

    #[test]
    fn heartbeats_of_older_and_newer_releases_are_understood() {
        let (incarnation, routing_version) = (Incarnation(3), RoutingVersion(4));
        let (targets, leaving, sequence) = (Vec::new(), false, 5);
        let node = node();
        let old = Before { node, incarnation, sequence, targets, routing_version, leaving };
        let new: Heartbeat = decode(&encode(&old)).expect("of an older release");
        assert_eq!((new.sequence, new.unanswered_ms, new.time_ns), (5, 0, None));
        let (adopted, known, served) = (ChainVersion(3), ChainVersion(4), None);
        let before = ReportBefore {
            target: TargetId(1),
            local: LocalState::Online,
            incarnation,
            clean: true,
            adopted,
            used_bytes: 5,
            store: StoreId(6),
            known,
            machine_since: Incarnation(2),
            served,
        };
        let report: TargetReport = decode(&encode(&before)).expect("of an older release");
        assert_eq!((report.known, report.nonce, report.former), (known, 0, 0));
        let report = TargetReport { nonce: 7, former: 8, ..report };
        let before: ReportBefore = decode(&encode(&report)).expect("by an older release");
        assert_eq!((before.incarnation, before.served), (incarnation, None));
        let new = Heartbeat { unanswered_ms: 8, time_ns: Some(9), ..new };
        let old: Before = decode(&encode(&new)).expect("by an older release");
        assert_eq!(old.sequence, 5);
        let old = ReplyBefore {
            lease_ms: 1500,
            routing: None,
            config: None,
            capability_keys: Vec::new(),
            removed: vec![TargetId(1)],
        };
        let new: HeartbeatReply = decode(&encode(&old)).expect("of an older release");
        assert_eq!((new.lease_ms, new.time_ns, new.wall_ns), (1500, 0, 0));
        let new = HeartbeatReply { time_ns: 1, wall_ns: 2, ..new };
        let old: ReplyBefore = decode(&encode(&new)).expect("by an older release");
        assert_eq!((old.lease_ms, old.removed), (1500, vec![TargetId(1)]));
    }

    #[test]
    fn stores_and_sessions_of_older_and_newer_releases_are_understood() {
        let offer = StoreOffer { store: StoreId(1), disk_index: 2, capacity_bytes: 3 };
        let old = StoresBefore { node: NodeId(7), stores: vec![offer] };
        let new: RegisterStores = decode(&encode(&old)).expect("of an older release");
        assert_eq!((new.incarnation, new.hostname.as_str()), (Incarnation(0), ""));
        let new = RegisterStores { incarnation: Incarnation(4), hostname: "h".into(), ..new };
        let old: StoresBefore = decode(&encode(&new)).expect("by an older release");
        assert_eq!(old.stores, new.stores);
        let old = SessionBefore {
            client: ClientId(1),
            role: Some(Role::Mount),
            hostname: "h".into(),
            host: HostId(2),
            pid: 3,
            description: "d".into(),
            release: "r".into(),
            started_ns: 4,
            user: UserId(5),
            last_seen_ns: 6,
        };
        let new: ClientSession = decode(&encode(&old)).expect("of an older release");
        assert!(!new.extends && new.last_seen_ns == 6);
        assert_eq!(encode(&new), encode(&old), "as it is stored nothing has changed");
        let new = ClientSession { extends: true, ..new };
        let old: SessionBefore = decode(&encode(&new)).expect("by an older release");
        assert_eq!(old.client, ClientId(1));
    }
}
