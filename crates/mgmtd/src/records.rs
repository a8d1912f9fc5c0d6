//! What is stored under the keys, apart from the wire's own types.

use glowfs_cluster::{Chain, LeaseRecord, MemberRecord, Proof};
use glowfs_types::routing::{ChainInfo, ChainTable};
use glowfs_types::wire::mgmtd::{StoreOffer, UserInfo};
use glowfs_types::{
    ChainId, ChainVersion, ClientId, ClusterId, Incarnation, NodeId, RoutingVersion, TargetId,
};
use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

/// The cluster record, written once.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ClusterRecord {
    #[n(0)]
    pub cluster: ClusterId,
    /// Nanoseconds since the Unix epoch.
    #[n(1)]
    pub created_ns: u64,
    #[n(2)]
    pub service_hash: ByteArray<32>,
    /// Keys that sign capabilities, by id.
    #[n(3)]
    pub capability_keys: Vec<(u32, ByteArray<32>)>,
}

/// Who is primary.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EpochRecord {
    #[n(0)]
    pub holder: NodeId,
    #[n(1)]
    pub life: u64,
    #[n(2)]
    pub epoch: u64,
    #[n(3)]
    pub lease_ms: u64,
    #[n(4)]
    pub addresses: Vec<String>,
    /// The longest lease that a node may have (builds of before did not note it).
    #[n(5)]
    pub node_lease_ms: Option<u64>,
}

impl EpochRecord {
    pub fn of(r: &LeaseRecord) -> Self {
        Self {
            holder: r.holder,
            life: r.life,
            epoch: r.epoch,
            lease_ms: r.lease_ms,
            addresses: r.addresses.clone(),
            node_lease_ms: (r.node_lease_ms > 0).then_some(r.node_lease_ms),
        }
    }
    pub fn with_renewal(self, renewal: u64) -> LeaseRecord {
        LeaseRecord {
            holder: self.holder,
            life: self.life,
            epoch: self.epoch,
            renewal,
            lease_ms: self.lease_ms,
            addresses: self.addresses,
            node_lease_ms: self.node_lease_ms.unwrap_or(0),
        }
    }
}

/// An item of the routing info with the version that last changed it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Item<T> {
    #[n(0)]
    pub changed: RoutingVersion,
    #[n(1)]
    pub value: T,
}

/// A target that was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GoneRecord {
    /// By the routing info of this version.
    #[n(0)]
    pub changed: RoutingVersion,
    #[n(1)]
    pub target: TargetId,
    /// The chain that it was of (builds of before did not note it).
    #[n(2)]
    pub chain: Option<ChainId>,
}

/// What is to become of a store.
pub mod standing {
    /// It takes targets.
    pub const STAYS: u8 = 0;
    /// It is drained.
    pub const DRAINED: u8 = 1;
    /// It was replaced by another one.
    pub const REPLACED: u8 = 2;
    /// It came in the place of another one, and nobody has said yet that it replaces that: it may as well be the mount point of a disk that is
    /// not mounted. It takes nothing.
    pub const UNVOUCHED: u8 = 3;
}

/// A registered store.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StoreRecord {
    #[n(0)]
    pub node: NodeId,
    #[n(1)]
    pub offer: StoreOffer,
    /// See [`standing`].
    #[cbor(n(2), default)]
    pub away: u8,
    /// The node registered another store in its place.
    #[cbor(n(3), default)]
    pub superseded: bool,
    /// The node did not name it when it registered its stores last: its disk has failed, or was taken out.
    #[cbor(n(4), default)]
    pub absent: bool,
}

/// A table with the arguments that made it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TableRecord {
    #[n(0)]
    pub table: ChainTable,
    #[n(1)]
    pub replicas: u32,
    #[n(2)]
    pub chains: u32,
}

impl TableRecord {
    /// The table as routing info tells it.
    pub fn told(&self) -> ChainTable {
        ChainTable { replicas: self.replicas, ..self.table.clone() }
    }
}

/// A user with the hash of the token.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserRecord {
    #[n(0)]
    pub info: UserInfo,
    #[n(1)]
    pub hash: ByteArray<32>,
}

/// A client whose session has ended.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DeadRecord {
    #[n(0)]
    pub client: ClientId,
    /// Nanoseconds since the Unix epoch; the oldest are forgotten first.
    #[n(1)]
    pub ended_ns: u64,
}

/// What is remembered of a chain member.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MemberRow {
    #[n(0)]
    pub target: TargetId,
    #[n(1)]
    pub incarnation: Incarnation,
    /// 0 none, 1 holds, 2 suspect.
    #[n(2)]
    pub proof: u8,
    #[n(3)]
    pub served: ChainVersion,
    #[cbor(n(4), default)]
    pub retired: bool,
    /// With proof 2: only its process was interrupted. (Builds that do not know this take it for any interruption.)
    #[cbor(n(5), default)]
    pub only_killed: bool,
    /// While the record is known to be older than the stores: what it had adopted when it was first heard then.
    #[n(6)]
    pub brought: Option<ChainVersion>,
    /// What the life that is accounted for drew by lot. (Builds that do not know this write none: not known.)
    #[cbor(n(7), default)]
    pub nonce: u32,
    /// Its store was put back as it was before. With proof 0.
    #[cbor(n(8), default)]
    pub put_back: bool,
}

/// A chain.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChainRecord {
    #[n(0)]
    pub info: ChainInfo,
    #[n(1)]
    pub members: Vec<MemberRow>,
}

impl ChainRecord {
    pub fn of(chain: &Chain) -> Self {
        let row = |(target, r): (&TargetId, &MemberRecord)| MemberRow {
            target: *target,
            incarnation: r.incarnation,
            proof: match r.proof {
                Proof::None => 0,
                Proof::Holds => 1,
                Proof::Killed | Proof::Suspect => 2,
            },
            served: r.served,
            retired: r.retired,
            only_killed: r.proof == Proof::Killed,
            brought: r.brought,
            nonce: r.nonce,
            put_back: r.put_back,
        };
        Self { info: chain.info.clone(), members: chain.records.iter().map(row).collect() }
    }
    pub fn into_chain(self) -> Chain {
        let record = |m: &MemberRow| MemberRecord {
            incarnation: m.incarnation,
            proof: match m.proof {
                1 => Proof::Holds,
                2 if m.only_killed => Proof::Killed,
                2 => Proof::Suspect,
                // An unknown proof proves nothing.
                _ => Proof::None,
            },
            served: m.served,
            retired: m.retired,
            brought: m.brought,
            nonce: m.nonce,
            put_back: m.put_back,
        };
        Chain {
            records: self.members.iter().map(|m| (m.target, record(m))).collect(),
            info: self.info,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{decode, encode};

    /// As builds of before wrote and read it.
    #[derive(PartialEq, Debug, Encode, Decode)]
    struct OldEpoch {
        #[n(0)]
        holder: NodeId,
        #[n(1)]
        life: u64,
        #[n(2)]
        epoch: u64,
        #[n(3)]
        lease_ms: u64,
        #[n(4)]
        addresses: Vec<String>,
    }

    /// A member's row, the same.
    #[derive(PartialEq, Debug, Encode, Decode)]
    struct OldRow {
        #[n(0)]
        target: TargetId,
        #[n(1)]
        incarnation: Incarnation,
        #[n(2)]
        proof: u8,
        #[n(3)]
        served: ChainVersion,
        #[cbor(n(4), default)]
        retired: bool,
        #[cbor(n(5), default)]
        only_killed: bool,
        #[n(6)]
        brought: Option<ChainVersion>,
    }

    #[test]
    fn older_builds_and_this_one_read_what_the_other_wrote() {
        let (holder, life, epoch, lease_ms) = (NodeId(1), 2, 3, 700);
        let addresses = vec!["tcp://h:1".to_owned()];
        let old = OldEpoch { holder, life, epoch, lease_ms, addresses: addresses.clone() };
        let new =
            EpochRecord { holder, life, epoch, lease_ms, addresses, node_lease_ms: Some(1500) };
        let read: EpochRecord = decode(b"epoch", &encode(&old)).expect("of before");
        assert_eq!(read, EpochRecord { node_lease_ms: None, ..new.clone() });
        assert_eq!(encode(&EpochRecord::of(&read.clone().with_renewal(7))), encode(&read));
        assert_eq!(decode::<OldEpoch>(b"epoch", &encode(&new)).expect("by one of before"), old);

        let (changed, target) = (RoutingVersion(4), TargetId(5));
        let old = Item { changed, value: target };
        let new = GoneRecord { changed, target, chain: Some(ChainId(6)) };
        let read: GoneRecord = decode(b"gone", &encode(&old)).expect("of before");
        assert_eq!(read, GoneRecord { chain: None, ..new });
        let read: Item<TargetId> = decode(b"gone", &encode(&new)).expect("by one of before");
        assert_eq!(read, old);

        let (incarnation, served, brought) = (Incarnation(6), ChainVersion(7), None);
        let (proof, retired, only_killed) = (1, false, false);
        let old = OldRow { target, incarnation, proof, served, retired, only_killed, brought };
        let read: MemberRow = decode(b"chain", &encode(&old)).expect("of before");
        assert_eq!((read.incarnation, read.nonce, read.put_back), (incarnation, 0, false));
        let new = MemberRow { nonce: 8, put_back: true, ..read };
        let read: OldRow = decode(b"chain", &encode(&new)).expect("by one of before");
        assert_eq!(read, old);
    }
}
