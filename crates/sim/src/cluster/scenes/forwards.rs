//! Messages of one member of a chain to the next, made up here: such as a member that is gone, or does not know better, would send.

use super::common::{LIMIT, read_near, wait_serving, with};
use crate::cluster::harness::{Cluster, SERVICE_TOKEN, Shape};
use crate::cluster::workload::{open_or_make, report};
use glowfs_client::ClientConfig;
use glowfs_rt::{Buf, Duration};
use glowfs_types::routing::ChainInfo;
use glowfs_types::wire::data::{ChunkSummary, Update, UpdateHead, update};
use glowfs_types::wire::method;
use glowfs_types::{ChunkId, Result};

/// A message that is bytes already.
struct Raw(Vec<u8>);

impl minicbor::Encode<()> for Raw {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        _: &mut (),
    ) -> std::result::Result<(), minicbor::encode::Error<W::Error>> {
        e.writer_mut().write_all(&self.0).map_err(minicbor::encode::Error::write)
    }
}

/// An answer that nobody looks at.
struct Any;

impl<'b> minicbor::Decode<'b, ()> for Any {
    fn decode(
        _: &mut minicbor::Decoder<'b>,
        _: &mut (),
    ) -> std::result::Result<Self, minicbor::decode::Error> {
        Ok(Self)
    }
}

/// The only chain, as it is known now.
pub(super) fn the_chain(cluster: &Cluster) -> ChainInfo {
    with(cluster, |_, client| async move {
        Ok(client.routing().chains.values().next().expect("a chain").clone())
    })
}

/// What the tail of a chain holds of a chunk.
pub(super) fn at_the_tail(cluster: &Cluster, chain: &ChainInfo, chunk: ChunkId) -> ChunkSummary {
    let (id, tail) = (chain.id, chain.members.last().expect("a member").target);
    with(cluster, move |_, client| async move {
        Ok(client.chunk_io().query_chunk(id, tail, chunk).await?.expect("it is there"))
    })
}

/// A chunk is to be cut to `len`, at the tail only, on top of `has`: a message of that version of the chain. What became of it.
pub(super) fn cut_at_the_tail(
    cluster: &Cluster,
    chain: &ChainInfo,
    has: ChunkSummary,
    len: u32,
) -> Result<()> {
    let tail = *chain.members.last().expect("a member");
    let head = UpdateHead {
        kind: update::TRUNCATE,
        chunk: has.chunk.into(),
        chain: chain.id.0.into(),
        chain_version: chain.version.0.into(),
        target: tail.target.0.into(),
        len: len.into(),
        version: has.committed.next().0.into(),
        base: has.committed.0.into(),
        chunk_bytes: has.chunk_bytes.into(),
        ..UpdateHead::default()
    };
    let config = ClientConfig { token: SERVICE_TOKEN.into(), ..cluster.client_config() };
    cluster.with_config(&cluster.clients[0].clone(), LIMIT, config, move |_, c| async move {
        let body = Raw(Update::encode(&head, &[]));
        let _: Any = c.node_call(tail.node, method::FORWARD, &body).await?;
        Ok(())
    })
}

/// What was sent under a chain version that is over by now has been under way all the time, and comes at last: nobody takes it, and what is acknowledged after it is there on both.
pub fn of_a_version_that_is_over(seed: u64) {
    const BYTES: usize = 64;
    let cluster = Cluster::start(seed, Shape { storages: 2, replicas: 2, ..Shape::SINGLE });
    cluster.bootstrap().expect("a cluster");
    let write = |at: u64, bytes: Vec<u8>| {
        with(&cluster, move |_, client| async move {
            let (file, _) = open_or_make(&client, "f").await?;
            file.write(at, Buf::from_vec(bytes)).await?;
            client.close_session(report(&client, &file, true)).await?;
            Ok(ChunkId { volume: file.volume(), data: file.data(), index: 0 })
        })
    };
    let chunk = write(0, vec![1; BYTES]);
    let before = the_chain(&cluster);
    let has = at_the_tail(&cluster, &before, chunk);
    let tail = before.members.last().expect("a member").node;
    let tail = cluster.storages.iter().find(|s| s.id() == tail).expect("it is there");
    cluster.crash(tail, false);
    cluster.run_for(Duration::from_secs(3));
    cluster.restart(tail);
    wait_serving(&cluster);
    let after = the_chain(&cluster);
    assert!(after.version > before.version && after.members == before.members, "it is back");
    let taken = cut_at_the_tail(&cluster, &before, has, 0);
    write(0, vec![2; BYTES / 2]);
    // Time for who would put the other one right by it.
    cluster.run_for(Duration::from_secs(5));
    for storage in &cluster.storages {
        let (found, near) = (read_near(&cluster, storage.id(), "f", BYTES), storage.node.name());
        let whole = found == [[2; BYTES / 2], [1; BYTES / 2]].concat();
        assert!(whole, "an acknowledged byte is gone: near {near}, a late message: {taken:?}");
    }
    assert!(taken.is_err(), "a message of a chain version that is over is taken");
}
