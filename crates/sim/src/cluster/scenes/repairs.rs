//! A replica differs from the tail of its chain, and is put right as a whole.

use super::common::{read_near, with};
use super::forwards::{at_the_tail, cut_at_the_tail, the_chain};
use crate::cluster::harness::{Cluster, DISK, Shape};
use crate::cluster::workload::{open_or_make, report};
use crate::world::DiskFaults;
use glowfs_rt::{Buf, Duration};
use glowfs_types::ChunkId;
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply};

/// Files, one after the other.
const ROUNDS: u64 = 12;

/// What is left of it there: so much that it goes to the file of chunks, which takes its time.
const LEFT: u32 = 200 << 10;

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
    // It is the head that is put right, whichever node that is.
    let chain = the_chain(&cluster);
    let head = chain.members.first().expect("a member").node;
    let on_head = cluster.storages.iter().find(|s| s.id() == head).expect("it is there");
    on_head.node.disk(DISK).set_faults(slow);
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        let of = name.clone();
        let chunk = with(&cluster, move |_, c| async move {
            let (file, _) = open_or_make(&c, &of).await?;
            file.write(0, Buf::from_vec(vec![1; CHUNK_BYTES as usize])).await?;
            c.close_session(report(&c, &file, true)).await?;
            Ok(ChunkId { volume: file.volume(), data: file.data(), index: 0 })
        });
        let has = at_the_tail(&cluster, &chain, chunk);
        cut_at_the_tail(&cluster, &chain, has, LEFT).expect("taken");
        let of = name.clone();
        let last = with(&cluster, move |_, c| async move {
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
            let node = storage.id();
            let found = read_near(&cluster, node, &name, 8);
            let found = u64::from_le_bytes(found.try_into().expect("8 bytes"));
            assert_eq!(found, last, "an acknowledged write is gone: round {round}, near {node}");
        }
    }
    let reply: ScrubReply = with(&cluster, move |_, c| async move {
        c.node_call(head, method::SCRUB, &Scrub { now: false }).await
    });
    let repaired: u64 = reply.targets.iter().map(|t| t.repaired).sum();
    assert!(
        repaired >= ROUNDS / 2,
        "chunks that are written to are not put right: {repaired} of {ROUNDS}"
    );
}
