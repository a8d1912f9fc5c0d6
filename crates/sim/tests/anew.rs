//! A chunk that was cut off begins anew with several writes at once: each of them is there.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_rt::sync::join;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::workload::{caller, open, open_or_make, report};
use glowfs_types::wire::meta::SetAttr;

const SHAPE: Shape = Shape { storages: 3, replicas: 3, chains: 2, stripe: 2, ..Shape::SINGLE };
const CHUNK: usize = CHUNK_BYTES as usize;
/// Bytes of the two writes: one lies in slots, one in the log.
const WRITES: [usize; 2] = [20_000, 3_000];
const ROUNDS: u8 = 40;

#[test]
fn writes_side_by_side_into_a_chunk_that_was_cut_off_are_all_there() {
    for seed in 1..6 {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let node = cluster.clients[0].clone();
        let limit = Duration::from_secs(300);
        let work = cluster.with_client(&node, limit, move |rt, client| async move {
            let (file, made) = open_or_make(&client, "cut").await?;
            let inode = made.attr.inode;
            client.close_session(report(&client, &file, false)).await?;
            for round in 0..ROUNDS {
                let (file, _) = open(&client, inode).await?;
                file.write(0, Buf::from_vec(vec![1; 2 * CHUNK])).await?;
                client.close_session(report(&client, &file, false)).await?;
                // The second chunk goes, and leaves its version behind.
                let len = Some(CHUNK as u64);
                let cut = SetAttr { caller: caller(&client), inode, len, ..SetAttr::default() };
                client.setattr(cut).await?;
                let (file, _) = open(&client, inode).await?;
                let places = [CHUNK, CHUNK + 40_000];
                let write = |i: usize| {
                    file.write(places[i] as u64, Buf::from_vec(vec![round + 2; WRITES[i]]))
                };
                let (a, b) = join(write(0), write(1)).await;
                a.and(b)?;
                for (at, len) in places.into_iter().zip(WRITES) {
                    let (n, buf) = file.read(at as u64, rt.alloc(len)).await;
                    assert_eq!(n?, len);
                    let right = buf.iter().all(|b| *b == round + 2);
                    assert!(right, "seed {seed}, round {round}: what was written at {at} is gone");
                }
                client.close_session(report(&client, &file, false)).await?;
            }
            Ok(())
        });
        work.expect("done");
    }
}
