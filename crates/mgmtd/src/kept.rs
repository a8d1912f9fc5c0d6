//! Every kind of what mgmtd keeps in the engine ([`glowfs_kv::kept`]). Keys are not here: nothing takes them apart.

use crate::keys::{decode, encode};
use crate::records::{
    ChainRecord, ClusterRecord, DeadRecord, EpochRecord, GoneRecord, Item, MemberRow, StoreRecord,
    TableRecord, UserRecord, standing,
};
use glowfs_cluster::{Chain, LeaseRecord};
use glowfs_kv::kept::{Kind, Kinds};
use glowfs_types::routing::{
    ChainInfo, ChainMember, ChainTable, LocalState, NodeInfo, NodeStatus, PublicState, Role,
    TargetInfo,
};
use glowfs_types::wire::mgmtd::{ClientSession, ConfigItem, StoreOffer, UserInfo};
use glowfs_types::{
    ChainId, ChainTableId, ChainVersion, ClientId, ClusterId, ConfigVersion, HostId, Incarnation,
    NodeId, Redundancy, RoutingVersion, StoreId, TargetId, UserId,
};
use std::fmt::Debug;

/// Shows all of them.
pub fn kinds(to: &mut impl Kinds) {
    record(to, "cluster", clusters);
    record(to, "epoch", epochs);
    record(to, "renewal, time", || vec![258_u64]);
    record(to, "routing", || vec![RoutingVersion(258)]);
    record(to, "node", nodes);
    record(to, "target", targets);
    record(to, "chain", chains);
    record(to, "table", tables);
    record(to, "gone", gone);
    record(to, "gone node", || vec![item(NodeId(3))]);
    record(to, "store", stores);
    record(to, "user", users);
    record(to, "token", || vec![UserId(5)]);
    record(to, "config", configs);
    record(to, "override", || vec![(NodeId(3), "a = 1".to_owned())]);
    record(to, "client", clients);
    record(to, "dead", || vec![DeadRecord { client: ClientId(5), ended_ns: 6 }]);
    // Two as the cores have them: what they forget of a record must not be what it says.
    to.kind(Kind {
        name: "lease",
        read: |b| decode(b"", b).map(|e: EpochRecord| e.with_renewal(0)),
        write: |lease: &LeaseRecord| encode(&EpochRecord::of(lease)),
        one_form: false,
        samples: || epochs().into_iter().map(|e| e.with_renewal(0)).collect(),
    });
    to.kind(Kind {
        name: "chain of the core",
        read: |b| decode(b"", b).map(|c: ChainRecord| c.into_chain()),
        write: |chain: &Chain| encode(&ChainRecord::of(chain)),
        one_form: false,
        samples: || chains().into_iter().map(|c| c.value.into_chain()).collect(),
    });
}

fn record<T>(to: &mut impl Kinds, name: &'static str, samples: fn() -> Vec<T>)
where
    T: for<'b> minicbor::Decode<'b, ()> + minicbor::Encode<()> + PartialEq + Debug,
{
    let read = |bytes: &[u8]| decode(b"mgmtd/record", bytes);
    to.kind(Kind { name, read, write: encode, one_form: false, samples });
}

fn item<T>(value: T) -> Item<T> {
    Item { changed: RoutingVersion(4), value }
}

fn clusters() -> Vec<ClusterRecord> {
    let (cluster, created_ns, service_hash) = (ClusterId(7), 8, [9; 32].into());
    let capability_keys = vec![(1, [2; 32].into())];
    vec![ClusterRecord { cluster, created_ns, service_hash, capability_keys }]
}

fn epochs() -> Vec<EpochRecord> {
    let (holder, life, epoch, lease_ms) = (NodeId(1), 2, 3, 700);
    let addresses = vec!["tcp://h:1".to_owned()];
    let old = EpochRecord { holder, life, epoch, lease_ms, addresses, node_lease_ms: None };
    vec![EpochRecord { node_lease_ms: Some(1500), ..old.clone() }, old]
}

fn nodes() -> Vec<Item<NodeInfo>> {
    let tags = [("rack".to_owned(), "r1".to_owned())].into();
    vec![item(NodeInfo {
        id: NodeId(3),
        role: Role::Storage,
        addresses: vec!["tcp://h:1".to_owned()],
        host: HostId(6),
        hostname: "h".to_owned(),
        pid: 77,
        tags,
        status: NodeStatus::Active,
        last_heartbeat_ns: 8,
        config_version: ConfigVersion(9),
        release: "1.0".to_owned(),
        http: Some("h:2".to_owned()),
        kept_out_ms: 0,
    })]
}

fn targets() -> Vec<Item<TargetInfo>> {
    let target = TargetInfo {
        id: TargetId(5),
        chain: ChainId(6),
        node: NodeId(3),
        store: StoreId(7),
        disk_index: 1,
        local: LocalState::UpToDate,
        incarnation: Incarnation(8),
        used_bytes: 65_536,
        adopted: ChainVersion(9),
        nonce: 0,
    };
    vec![item(TargetInfo { nonce: 10, ..target.clone() }), item(target)]
}

fn chains() -> Vec<Item<ChainRecord>> {
    let ids = [TargetId(5), TargetId(8), TargetId(9)];
    let member = |target, state| ChainMember { target, node: NodeId(3), state };
    let info = ChainInfo {
        id: ChainId(6),
        version: ChainVersion(7),
        activated: ChainVersion(6),
        activated_serving: vec![ids[0]],
        members: vec![
            member(ids[0], PublicState::Serving),
            member(ids[1], PublicState::Syncing),
            member(ids[2], PublicState::Offline),
        ],
        redundancy: Redundancy::Replicated,
        preferred: ids.to_vec(),
        lost: ChainVersion(2),
    };
    let holds = MemberRow {
        target: ids[0],
        incarnation: Incarnation(8),
        proof: 1,
        served: ChainVersion(7),
        retired: false,
        only_killed: false,
        brought: None,
        nonce: 10,
        put_back: false,
    };
    let killed =
        MemberRow { target: ids[1], proof: 2, only_killed: true, nonce: 0, ..holds.clone() };
    let brought = Some(ChainVersion(5));
    let away = MemberRow {
        target: ids[2],
        proof: 0,
        retired: true,
        brought,
        put_back: true,
        ..holds.clone()
    };
    vec![item(ChainRecord { info, members: vec![holds, killed, away] })]
}

fn tables() -> Vec<Item<TableRecord>> {
    let (id, version, chains) = (ChainTableId(1), 2, vec![ChainId(6), ChainId(7)]);
    let table = ChainTable { id, version, chains, description: "d".to_owned(), replicas: 0 };
    vec![item(TableRecord { table, replicas: 3, chains: 2 })]
}

fn gone() -> Vec<GoneRecord> {
    let old = GoneRecord { changed: RoutingVersion(4), target: TargetId(5), chain: None };
    vec![GoneRecord { chain: Some(ChainId(6)), ..old }, old]
}

fn stores() -> Vec<StoreRecord> {
    let offer = StoreOffer { store: StoreId(7), disk_index: 1, capacity_bytes: 1 << 40 };
    let node = NodeId(3);
    let plain =
        StoreRecord { node, offer, away: standing::STAYS, superseded: false, absent: false };
    let away = standing::UNVOUCHED;
    vec![StoreRecord { away, superseded: true, absent: true, ..plain.clone() }, plain]
}

fn users() -> Vec<UserRecord> {
    let (name, groups) = ("u".to_owned(), vec![5, 6]);
    let info = UserInfo { user: UserId(5), name, groups, root: true, admin: false, service: true };
    vec![UserRecord { info, hash: [9; 32].into() }]
}

fn configs() -> Vec<ConfigItem> {
    let (version, toml) = (ConfigVersion(9), "a = 1".to_owned());
    vec![ConfigItem { version, role: Role::Meta, toml }]
}

fn clients() -> Vec<ClientSession> {
    vec![ClientSession {
        client: ClientId(5),
        role: Some(Role::Mount),
        hostname: "h".to_owned(),
        host: HostId(6),
        pid: 77,
        description: "/m".to_owned(),
        release: "1.0".to_owned(),
        started_ns: 8,
        user: UserId(5),
        last_seen_ns: 9,
        extends: false,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::kept::Samples;

    /// What stands in engines that are in use is written like this. New kinds and samples are added; no line is changed.
    const GOLDEN: &str = include_str!("kept.golden");

    #[test]
    fn golden_bytes_of_every_kind() {
        let mut samples = Samples::default();
        kinds(&mut samples);
        assert_eq!(samples.listed(), GOLDEN, "now:\n{}", samples.listed());
    }
}
