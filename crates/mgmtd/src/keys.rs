//! The keys of mgmtd in the key-value engine, and how values are written: docs/formats/mgmtd.md.

use glowfs_types::routing::Role;
use glowfs_types::{
    ChainId, ChainTableId, ClientId, Error, NodeId, Result, Status, StoreId, TargetId, UserId,
};

/// All keys of mgmtd begin with this. Keys of the namespace begin with a volume id, whose first byte is far below `m`.
pub const PREFIX: &[u8] = b"mgmtd/";
/// The version of the format of values.
pub const FORMAT: u8 = 1;

fn key(kind: &str, id: &[u8]) -> Vec<u8> {
    [PREFIX, kind.as_bytes(), b"/", id].concat()
}

/// The prefix of all items of a kind.
pub fn kind(kind: &str) -> Vec<u8> {
    key(kind, &[])
}
/// The cluster record.
pub fn cluster() -> Vec<u8> {
    key("cluster", &[])
}
/// Who is primary; compared by every change.
pub fn epoch() -> Vec<u8> {
    key("epoch", &[])
}
/// The renewal counter of the primary's lease.
pub fn renewal() -> Vec<u8> {
    key("renewal", &[])
}
/// The mark of the cluster's time.
pub fn time() -> Vec<u8> {
    key("time", &[])
}
/// The routing version; compared by every change.
pub fn routing() -> Vec<u8> {
    key("routing", &[])
}
/// A node.
pub fn node(id: NodeId) -> Vec<u8> {
    key("node", &id.0.to_be_bytes())
}
/// A store.
pub fn store(id: StoreId) -> Vec<u8> {
    key("store", &id.0.to_be_bytes())
}
/// A target.
pub fn target(id: TargetId) -> Vec<u8> {
    key("target", &id.0.to_be_bytes())
}
/// A target that was removed.
pub fn gone(id: TargetId) -> Vec<u8> {
    key("gone", &id.0.to_be_bytes())
}
/// A node that was forgotten.
pub fn gone_node(id: NodeId) -> Vec<u8> {
    key("gone-node", &id.0.to_be_bytes())
}
/// A chain.
pub fn chain(id: ChainId) -> Vec<u8> {
    key("chain", &id.0.to_be_bytes())
}
/// A version of a table.
pub fn table(id: ChainTableId, version: u64) -> Vec<u8> {
    key("table", &[id.0.to_be_bytes(), version.to_be_bytes()].concat())
}
/// A user.
pub fn user(id: UserId) -> Vec<u8> {
    key("user", &id.0.to_be_bytes())
}
/// Who a token belongs to, by its hash.
pub fn token(hash: &[u8; 32]) -> Vec<u8> {
    key("token", hash)
}
/// The configuration of a role.
pub fn config(role: Role) -> Vec<u8> {
    key("config", role.name().as_bytes())
}
/// The configuration override of a node.
pub fn config_override(node: NodeId) -> Vec<u8> {
    key("override", &node.0.to_be_bytes())
}
/// A client's session.
pub fn client(id: ClientId) -> Vec<u8> {
    key("client", &id.0.to_be_bytes())
}

/// A client that is dead.
pub fn dead(id: ClientId) -> Vec<u8> {
    key("dead", &id.0.to_be_bytes())
}

/// A value as it is stored.
pub fn encode<T: minicbor::Encode<()>>(value: &T) -> Vec<u8> {
    let mut out = vec![FORMAT];
    out.extend(glowfs_types::wire::encode(value));
    out
}

/// Reads a stored value.
pub fn decode<T: for<'b> minicbor::Decode<'b, ()>>(key: &[u8], bytes: &[u8]) -> Result<T> {
    let name = || String::from_utf8_lossy(key.get(..24).unwrap_or(key)).into_owned();
    match bytes.split_first() {
        Some((&FORMAT, rest)) => glowfs_types::wire::decode(rest).map_err(|e| {
            Error::new(Status::Corrupt, format!("cluster record {}: {}", name(), e.message))
        }),
        Some((&newer, _)) if newer > FORMAT => Err(Error::new(
            Status::NewerFormat,
            format!(
                "cluster record {} has format {newer}, this release reads {FORMAT}: run a newer release",
                name()
            ),
        )),
        _ => Err(Error::new(
            Status::Corrupt,
            format!("cluster record {} is empty or damaged", name()),
        )),
    }
}
