//! A replica differs from the tail of its chain, and is put right as a whole.

use crate::cluster::harness::{Cluster, DISK, SERVICE_TOKEN, Shape};
use crate::cluster::workload::{open_or_make, report};
use crate::world::DiskFaults;
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Buf, Duration};
use glowfs_types::wire::data::{Update, UpdateHead, update};
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply};
use glowfs_types::{ChunkId, Result};
use std::rc::Rc;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Files, one after the other.
const ROUNDS: u64 = 12;

fn ask<T: 'static, F: Future<Output = Result<T>> + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(Rc<Client>) -> F + 'static,
) -> T {
    cluster.with_client(&cluster.clients[0].clone(), LIMIT, |_, c| work(c)).expect("asked")
}

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

/// What is left of it there: so much that it goes to the file of chunks, which takes its time.
const LEFT: u32 = 200 << 10;

/// Cuts the only chunk of a file, at the tail of its chain only: as a predecessor that never had it done itself.
fn cut_at_the_tail(cluster: &Cluster, chunk: ChunkId) {
    let config = ClientConfig { token: SERVICE_TOKEN.into(), ..cluster.client_config() };
    let cut =
        cluster.with_config(&cluster.clients[0].clone(), LIMIT, config, move |_, c| async move {
            let info = c.routing();
            let chain = info.chains.values().next().expect("a chain");
            let tail = chain.members.last().expect("a member");
            let has =
                c.chunk_io().query_chunk(chain.id, tail.target, chunk).await?.expect("it is there");
            let head = UpdateHead {
                kind: update::TRUNCATE,
                chunk: chunk.into(),
                chain: chain.id.0.into(),
                chain_version: chain.version.0.into(),
                target: tail.target.0.into(),
                len: LEFT.into(),
                version: has.committed.next().0.into(),
                base: has.committed.0.into(),
                chunk_bytes: has.chunk_bytes.into(),
                ..UpdateHead::default()
            };
            let body = Raw(Update::encode(&head, &[]));
            let _: Any = c.node_call(tail.node, method::FORWARD, &body).await?;
            Ok(())
        });
    cut.expect("taken");
}

/// A replica differs from the tail and is put right as a whole, while a client writes that very chunk all the time: what is acknowledged meanwhile is there, on both, and the
/// repairs come to their end.
pub fn a_write_beside_a_repair(seed: u64) {
    const WRITTEN_FOR: Duration = Duration::from_millis(300);
    const CHUNK_BYTES: u32 = 256 << 10;
    let shape = Shape { storages: 2, replicas: 2, chunk_bytes: CHUNK_BYTES, ..Shape::SINGLE };
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    let (slower_least_ns, slower_most_ns) = (0, 2_000_000);
    let slow = DiskFaults { slower_least_ns, slower_most_ns, ..DiskFaults::default() };
    cluster.storages[0].node.disk(DISK).set_faults(slow);
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        let of = name.clone();
        let chunk = ask(&cluster, move |c| async move {
            let (file, _) = open_or_make(&c, &of).await?;
            file.write(0, Buf::from_vec(vec![1; CHUNK_BYTES as usize])).await?;
            c.close_session(report(&c, &file, true)).await?;
            Ok(ChunkId { volume: file.volume(), data: file.data(), index: 0 })
        });
        cut_at_the_tail(&cluster, chunk);
        let of = name.clone();
        let last = ask(&cluster, move |c| async move {
            let (file, _) = open_or_make(&c, &of).await?;
            // The first one has the number that the tail has given to the cut: it shows that they differ, and is gone itself.
            let first = file.clone();
            c.rt().spawn_detached(async move {
                first
                    .write(u64::from(LEFT) + 8000, Buf::from_vec(vec![2; 8]))
                    .await
                    .expect("answered");
            });
            let (mut last, until) = (0, c.rt().now() + WRITTEN_FOR);
            while c.rt().now() < until {
                c.rt().sleep(Duration::from_micros(c.rt().random_below(300))).await;
                file.write(0, Buf::from_vec((last + 1u64).to_le_bytes().into())).await?;
                last += 1;
            }
            c.close_session(report(&c, &file, true)).await?;
            Ok(last)
        });
        assert!(last > 10, "{last} writes");
        for storage in &cluster.storages {
            let (node, of) = (storage.id(), name.clone());
            let found = ask(&cluster, move |c| async move {
                let host = c.routing().nodes[&node].host;
                let config = ClientConfig { host, hedge: false, ..c.config().clone() };
                let near = Client::connect(c.rt(), config).await?;
                let (file, _) = open_or_make(&near, &of).await?;
                let (read, buf) = file.read(0, c.rt().alloc(8)).await;
                read?;
                near.close_session(report(&near, &file, false)).await?;
                near.close().await;
                Ok(u64::from_le_bytes(buf[..].try_into().expect("8 bytes")))
            });
            assert_eq!(found, last, "an acknowledged write is gone: round {round}, near {node}");
        }
    }
    let node = cluster.storages[0].id();
    let reply: ScrubReply = ask(&cluster, move |c| async move {
        c.node_call(node, method::SCRUB, &Scrub { now: false }).await
    });
    let repaired: u64 = reply.targets.iter().map(|t| t.repaired).sum();
    assert!(
        repaired >= ROUNDS / 2,
        "chunks that are written to are not put right: {repaired} of {ROUNDS}"
    );
}
