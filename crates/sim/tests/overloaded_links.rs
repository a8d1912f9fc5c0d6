//! Clients that ask for more than a link carries in the time that an attempt waits: what they asked for is on its way, and is not asked for again.

use glowfs_client::ClientConfig;
use glowfs_rt::sync::{join, join_all};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::Error;
use std::cell::Cell;

const SHAPE: Shape = Shape::SINGLE;
/// Bytes of a chunk, all of which is read and written at once,
const CHUNK: usize = CHUNK_BYTES as usize;
/// and so many of them at a time.
const CHUNKS: u64 = 192;
/// Bytes that the link carries in a second: 12 s for all.
const RATE: u64 = 1 << 20;
/// How long it takes if nothing goes over the link twice, with what is around it.
const ONCE: Duration = Duration::from_secs(18);
const LIMIT: Duration = Duration::from_secs(200);

fn place(chunk: u64) -> u64 {
    chunk * CHUNK as u64
}

/// As shipped, where the harness has longer times.
fn config(cluster: &Cluster) -> ClientConfig {
    let shipped = ClientConfig::default();
    ClientConfig { data_total: shipped.data_total, ..cluster.client_config() }
}

fn filled(seed: u64, shape: Shape) -> Cluster {
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    let client = cluster.clients[0].clone();
    let filled = cluster.with_client(&client, LIMIT, move |_, client| async move {
        let (file, _) = open_or_make(&client, "file").await?;
        for chunk in 0..CHUNKS {
            file.write(place(chunk), Buf::from_vec(vec![7; CHUNK])).await?;
        }
        Ok(())
    });
    filled.expect("written");
    cluster
}

#[test]
fn reads_of_more_than_the_link_carries_in_their_time_are_answered() {
    read_all(71, SHAPE);
}

fn read_all(seed: u64, shape: Shape) {
    let cluster = filled(seed, shape);
    let (client, storage) = (cluster.clients[0].clone(), cluster.storages[0].node.clone());
    cluster.world.set_rate(&storage, &client, RATE);
    let took =
        cluster.with_config(&client, LIMIT, config(&cluster), move |rt, client| async move {
            let (file, _) = open_or_make(&client, "file").await?;
            let began = rt.now();
            let reads = (0..CHUNKS).map(|chunk| file.read(place(chunk), rt.alloc(CHUNK)));
            for (read, buf) in join_all(reads).await {
                assert_eq!(read?, CHUNK);
                assert!(buf.iter().all(|b| *b == 7));
            }
            Ok(rt.now().since(began))
        });
    let took = took.expect("nothing is broken");
    assert!(took < ONCE, "it took {took:?}");
}

#[test]
fn writes_of_more_than_the_link_carries_in_their_time_are_answered() {
    let cluster = filled(72, SHAPE);
    let (client, storage) = (cluster.clients[0].clone(), cluster.storages[0].node.clone());
    cluster.world.set_rate(&client, &storage, RATE);
    let took =
        cluster.with_config(&client, LIMIT, config(&cluster), move |rt, client| async move {
            let (file, _) = open_or_make(&client, "file").await?;
            let (began, payload) = (rt.now(), Buf::from_vec(vec![8; CHUNK]));
            let writes = (0..CHUNKS).map(|chunk| file.write(place(chunk), payload.clone()));
            join_all(writes).await.into_iter().collect::<Result<(), _>>()?;
            Ok(rt.now().since(began))
        });
    let took = took.expect("nothing is broken");
    assert!(took < ONCE, "it took {took:?}");
}

/// A flush stands behind all that others write, and is asked once.
#[test]
fn a_flush_beside_more_writes_than_the_link_carries_in_its_time_is_answered() {
    const MIB: usize = 1 << 20;
    const WRITERS: u64 = 80;
    let shape = Shape { chunk_bytes: MIB as u32, ..SHAPE };
    let cluster = Cluster::start(73, shape);
    cluster.bootstrap().expect("a cluster");
    let (client, storage) = (cluster.clients[0].clone(), cluster.storages[0].node.clone());
    cluster.world.set_rate(&client, &storage, 8 * MIB as u64);
    let took =
        cluster.with_config(&client, LIMIT, config(&cluster), move |rt, client| async move {
            let (flushed, _) = open_or_make(&client, "flushed").await?;
            let (written, _) = open_or_make(&client, "written").await?;
            flushed.write(0, Buf::from_vec(vec![7; 4096])).await?;
            let done = Cell::new(false);
            let payload = Buf::from_vec(vec![8; MIB]);
            let places: Vec<u64> = (0..WRITERS).map(|chunk| chunk * MIB as u64).collect();
            let writers = join_all(places.iter().map(|place| async {
                while !done.get() {
                    written.write(*place, payload.clone()).await?;
                }
                Ok::<(), Error>(())
            }));
            let flush = async {
                rt.sleep(Duration::from_secs(2)).await;
                let began = rt.now();
                let result = flushed.flush().await;
                done.set(true);
                result.map(|()| rt.now().since(began))
            };
            let (took, writes) = join(flush, writers).await;
            writes.into_iter().collect::<Result<(), Error>>()?;
            took
        });
    let took = took.expect("nothing is broken");
    assert!(took > Duration::from_secs(5), "{took:?}: nothing stood before it");
    assert!(took < Duration::from_secs(15), "{took:?}");
}
