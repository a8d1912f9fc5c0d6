//! The identifiers of GlowFS: one newtype per thing, so that two ids are never confused.
//!
//! Every id, version and epoch is 64-bit or wider and is never reused. An id that travels in
//! a control message is encoded as a plain CBOR integer (`#[cbor(transparent)]`), so the newtype
//! costs nothing on the wire.

use std::fmt;

macro_rules! id64 {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, minicbor::Encode,
            minicbor::Decode, minicbor::CborLen,
        )]
        #[cbor(transparent)]
        #[repr(transparent)]
        pub struct $name(#[n(0)] pub u64);
        impl $name {
            /// The id as an integer.
            pub const fn get(self) -> u64 {
                self.0
            }
            /// The one that follows.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl From<u64> for $name {
            fn from(v: u64) -> Self {
                Self(v)
            }
        }
        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

id64!(
    /// One volume: a file system tree with its own root. The first volume is 1.
    VolumeId, "vol"
);
id64!(
    /// A project, for quotas and accounting; 0 is «none».
    ProjectId, "proj"
);
id64!(
    /// A tenant, for fair queues; carried in every request header.
    TenantId, "tenant"
);
id64!(
    /// An inode; never reused. The root of a volume is 1.
    InodeId, "ino"
);
id64!(
    /// What a file's chunks are stored under. Stands in the inode and is not the inode id, so that
    /// truncate by replacement, clones and snapshots are metadata operations.
    DataId, "data"
);
id64!(
    /// A node: one process of a service with a fixed identity in the cluster.
    NodeId, "node"
);
id64!(
    /// One replica store on one disk of one storage node.
    TargetId, "tgt"
);
id64!(
    /// A chain: the ordered targets that replicate the same chunks.
    ChainId, "chain"
);
id64!(
    /// A chain table: an ordered list of chains that a file is striped over.
    ChainTableId, "table"
);
id64!(
    /// The version of a chain; bumped by every change of it.
    ChainVersion, "cv"
);
id64!(
    /// The version of the routing info; bumped by every change of anything in it.
    RoutingVersion, "rv"
);
id64!(
    /// The version of a chunk. 0 means «never written».
    ChunkVersion, "v"
);
id64!(
    /// One life of a storage process on one store. Grows with every start.
    Incarnation, "inc"
);
id64!(
    /// The version of the cluster configuration.
    ConfigVersion, "conf"
);
id64!(
    /// A lane of one client on which at most one write is outstanding.
    ChannelId, "ch"
);
id64!(
    /// The sequence number of a write on its channel; grows by one with every new write, and is kept
    /// by its retries.
    Seq, "seq"
);
id64!(
    /// Bumped by every truncate of an inode; a capability of an older epoch is refused.
    TruncateEpoch, "te"
);
id64!(
    /// A user of the cluster (the POSIX uid).
    UserId, "uid"
);

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u128);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:032x}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(s, 16).map(Self)
            }
        }
        impl<C> minicbor::Encode<C> for $name {
            fn encode<W: minicbor::encode::Write>(
                &self,
                e: &mut minicbor::Encoder<W>,
                _: &mut C,
            ) -> Result<(), minicbor::encode::Error<W::Error>> {
                e.bytes(&self.0.to_le_bytes())?.ok()
            }
        }
        impl<'b, C> minicbor::Decode<'b, C> for $name {
            fn decode(
                d: &mut minicbor::Decoder<'b>,
                _: &mut C,
            ) -> Result<Self, minicbor::decode::Error> {
                let bytes: [u8; 16] = d.bytes()?.try_into().map_err(|_| {
                    minicbor::decode::Error::message(concat!(stringify!($name), ": not 16 bytes"))
                })?;
                Ok(Self(u128::from_le_bytes(bytes)))
            }
        }
    };
}

id128!(
    /// The cluster. Every store, log and connection carries it; a foreign one is refused.
    ClusterId, "cluster-"
);
id128!(
    /// One store (one formatted data directory). A wiped disk gets a new one.
    StoreId, "store-"
);
id128!(
    /// One life of a client (mount daemon or library instance).
    ClientId, "client-"
);
id128!(
    /// A client's write-open of a file.
    SessionId, "session-"
);
id128!(
    /// A request that must take effect at most once although it may be sent again.
    RequestId, "req-"
);
id128!(
    /// The host a process runs on, the same for all processes on it (the kernel's boot id).
    HostId, "host-"
);

/// A fixed-size piece of a file: all three parts are 64-bit, on the wire, on disk and in keys.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, minicbor::Encode, minicbor::Decode,
)]
pub struct ChunkId {
    /// The volume the chunk belongs to.
    #[n(0)]
    pub volume: VolumeId,
    /// The data id of the file.
    #[n(1)]
    pub data: DataId,
    /// Which piece of the file: byte offset / chunk size.
    #[n(2)]
    pub index: u64,
}

impl ChunkId {
    /// Big-endian bytes, so that byte order is chunk order.
    pub fn to_key(self) -> [u8; 24] {
        let mut key = [0; 24];
        key[..8].copy_from_slice(&self.volume.0.to_be_bytes());
        key[8..16].copy_from_slice(&self.data.0.to_be_bytes());
        key[16..].copy_from_slice(&self.index.to_be_bytes());
        key
    }
    /// The inverse of [`ChunkId::to_key`].
    pub fn from_key(key: &[u8; 24]) -> Self {
        let word = |i: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&key[i..i + 8]);
            u64::from_be_bytes(w)
        };
        Self { volume: VolumeId(word(0)), data: DataId(word(8)), index: word(16) }
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.volume, self.data, self.index)
    }
}
impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunk_key_round_trips_and_keeps_order(a: (u64, u64, u64), b: (u64, u64, u64)) {
            let id = |t: (u64, u64, u64)| ChunkId {
                volume: VolumeId(t.0), data: DataId(t.1), index: t.2,
            };
            let (a, b) = (id(a), id(b));
            prop_assert_eq!(ChunkId::from_key(&a.to_key()), a);
            prop_assert_eq!(a.to_key().cmp(&b.to_key()), a.cmp(&b));
        }
    }
}
