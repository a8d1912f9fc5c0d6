//! The records of the metadata as a service sees them, for tests that damage or lose some.

use crate::cluster::harness::{CLUSTER, SERVICE_TOKEN};
use glowfs_kv::{Engine, Key, Remote, prefix_end};
use glowfs_net::{Connector, NoCalls};
use glowfs_rt::Rt;
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::Hello;
use glowfs_types::{Error, InodeId, NodeId, Result, Status};
use std::rc::Rc;

/// The node that the tests are for the engine's host.
const NODE: NodeId = NodeId(99);
/// Keys of a page.
const PAGE: u32 = 100;

/// The engine that the metadata service at `address` hosts.
pub fn engine(rt: &Rt, address: String) -> Result<Rc<dyn Engine>> {
    let hello = Hello {
        cluster: CLUSTER.parse().map_err(|_| Error::from(Status::InvalidArgument))?,
        token: SERVICE_TOKEN.into(),
        role: Some(Role::Meta),
        node: NODE,
        ..Hello::default()
    };
    let connector = Connector::new(rt, hello, Rc::new(NoCalls));
    Ok(Rc::new(Remote::new(rt, connector, vec![address])))
}

/// A key of the first volume (docs/formats/namespace-keys.md).
pub fn key(kind: u8, rest: &[&[u8]]) -> Vec<u8> {
    [&1u64.to_be_bytes()[..], &[kind], &rest.concat()].concat()
}

/// The first keys that begin so, a page at most.
pub async fn keys(engine: &Rc<dyn Engine>, prefix: &[u8]) -> Result<Vec<Key>> {
    let version = engine.begin().await?;
    let end = prefix_end(prefix);
    let page = engine.get_range(version, prefix.to_vec(), end, PAGE, false).await?;
    Ok(page.entries.into_iter().map(|(key, _)| key).collect())
}

/// The key of an inode record.
pub fn inode(id: InodeId) -> Vec<u8> {
    key(b'I', &[&id.0.reverse_bits().to_be_bytes()])
}
