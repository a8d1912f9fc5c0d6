//! When disks are read through, and what services say of themselves, in the shipped services.

use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, DISK, SERVICE_TOKEN, Shape};
use glowfs_sim::cluster::workload::{open_or_make, report};
use glowfs_sim::world::DiskFaults;
use glowfs_types::wire::data::{Update, UpdateHead, update};
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply};
use glowfs_types::{ChunkId, NodeId, Result};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, scrub_interval_s: 60, ..Shape::SINGLE };
const LIMIT: Duration = Duration::from_secs(60);

fn ask<T: 'static, F: Future<Output = Result<T>> + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(Rc<Client>) -> F + 'static,
) -> T {
    cluster.with_client(&cluster.clients[0].clone(), LIMIT, |_, c| work(c)).expect("asked")
}

/// Whole passes over the targets of a node in this life of it.
fn passes(cluster: &Cluster, node: NodeId) -> u64 {
    let scrub = Scrub { now: false };
    let reply: ScrubReply =
        ask(cluster, move |c| async move { c.node_call(node, method::SCRUB, &scrub).await });
    reply.targets.iter().map(|t| t.passes).sum()
}

/// A node that is started anew more often than its disks are scrubbed scrubs them all the same, and not because it was started.
#[test]
fn a_scrub_is_due_by_the_last_one_whatever_was_restarted_since() {
    let cluster = Cluster::start(61, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let first = cluster.storages[0].clone();
    for _ in 0..2 {
        cluster.run_for(Duration::from_secs(40));
        cluster.crash(&first, false);
        cluster.restart(&first);
        cluster.run_for(Duration::from_secs(12));
        // Of 60 s the first life saw 40.
    }
    let (now, other) = (passes(&cluster, first.id()), passes(&cluster, cluster.storages[1].id()));
    assert!(other > 0, "one that was never restarted");
    assert!(now == 0, "its pass was in the life before: {now}");
    cluster.run_for(Duration::from_secs(30));
    let later = passes(&cluster, first.id());
    assert!(
        later == u64::from(SHAPE.chains),
        "once, when the last one ended a minute ago: {later}"
    );
}

/// A target that has failed does not serve, whatever its chain has said before.
#[test]
fn what_has_failed_is_not_counted_as_serving() {
    let cluster = Cluster::start(62, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let bytes = || Buf::from_vec(vec![1; 64 << 10]);
    ask(&cluster, move |c| async move {
        let (file, _) = open_or_make(&c, "file").await?;
        for chunk in 0..6 {
            file.write(chunk << 16, bytes()).await?;
        }
        file.flush().await
    });
    let head = cluster.storages[0].clone();
    assert!(head.damage_chunks() > 0);
    let node = head.id();
    let said = ask(&cluster, move |c| async move {
        let (file, _) = open_or_make(&c, "file").await?;
        let mut said = Vec::new();
        // A part of a damaged block cannot be written: the head fails, and comes back after a while.
        for chunk in 0..6 {
            file.write((chunk << 16) + 100, Buf::from_vec(vec![2; 100])).await?;
            said.push(c.status(node).await?.detail);
        }
        Ok(said)
    });
    let failed = said.iter().find(|s| s.contains("failed"));
    assert!(failed.is_some_and(|s| s.starts_with("2 of 3")), "{said:?}");
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

/// A replica differs from the tail and is put right as a whole, while a client writes that very chunk all the time: what is acknowledged meanwhile is there, on both.
#[test]
fn a_write_beside_the_repair_of_its_chunk_is_not_undone() {
    const ROUNDS: u64 = 12;
    const WRITTEN_FOR: Duration = Duration::from_millis(300);
    const CHUNK_BYTES: u32 = 256 << 10;
    let shape =
        Shape { storages: 2, replicas: 2, chains: 1, stripe: 1, chunk_bytes: CHUNK_BYTES, ..SHAPE };
    let cluster = Cluster::start(63, shape);
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
            assert_eq!(found, last, "round {round}: what was acknowledged last, near {node}");
        }
    }
    let node = cluster.storages[0].id();
    let reply: ScrubReply = ask(&cluster, move |c| async move {
        c.node_call(node, method::SCRUB, &Scrub { now: false }).await
    });
    let repaired: u64 = reply.targets.iter().map(|t| t.repaired).sum();
    println!("{repaired} repairs in {ROUNDS} rounds");
    assert!(repaired >= ROUNDS / 2, "{repaired} repairs");
}
