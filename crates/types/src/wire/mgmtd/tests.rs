//! Messages of older and newer releases are understood.

use super::*;
use crate::routing::{NodeStatus, Role};
use crate::wire::{decode, encode};
use crate::{ClientId, ConfigVersion, HostId, UserId};

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
        kept_out_ms: 0,
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

/// USER_CHANGE as releases sent it in which mgmtd made every token.
#[derive(Encode, Decode)]
struct UserChangeBefore {
    #[n(0)]
    user: UserId,
    #[n(1)]
    name: Option<String>,
    #[n(2)]
    groups: Option<Vec<u32>>,
    #[n(3)]
    root: Option<bool>,
    #[n(4)]
    admin: Option<bool>,
    #[n(5)]
    new_token: bool,
}

#[test]
fn a_change_of_a_user_is_understood_with_and_without_a_token_of_the_caller() {
    let old = UserChangeBefore {
        user: UserId(7),
        name: None,
        groups: None,
        root: None,
        admin: None,
        new_token: true,
    };
    let read: UserChange = decode(&encode(&old)).expect("of an older release");
    assert_eq!(read, UserChange { user: UserId(7), new_token: true, ..UserChange::default() });
    let new = UserChange { token: Some("ab".into()), ..read };
    let read: UserChangeBefore = decode(&encode(&new)).expect("by an older release");
    assert!(read.new_token && read.user == UserId(7));
}
