//! Reads go to another replica as soon as ever, also where the connections of the one that is stuck, or of others, carry less than is asked of them and bring answers all the time.

use glowfs_client::ClientConfig;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_sim::world::DiskFaults;

const SHAPE: Shape = Shape { storages: 3, disks: 2, chains: 6, stripe: 6, ..Shape::SINGLE };
/// Bytes of a chunk, all of which is read at once,
const CHUNK: usize = CHUNK_BYTES as usize;
/// and so many of them at a time: 12 MiB, a third of which each node is asked for first.
const CHUNKS: u64 = 192;
/// Bytes that a slow link carries in a second: 13 s for a third, and enough that it delivers.
const RATE: u64 = 320 << 10;
const LIMIT: Duration = Duration::from_secs(300);
const HANGS: DiskFaults = DiskFaults { hangs: true, ..DiskFaults::SECONDS };

fn filled(seed: u64, replicas: u32) -> Cluster {
    let cluster = Cluster::start(seed, Shape { replicas, ..SHAPE });
    cluster.bootstrap().expect("a cluster");
    let filled =
        cluster.with_client(&cluster.clients[0].clone(), LIMIT, move |_, client| async move {
            let (file, _) = open_or_make(&client, "file").await?;
            for chunk in 0..CHUNKS {
                file.write(chunk * CHUNK as u64, Buf::from_vec(vec![7; CHUNK])).await?;
            }
            file.flush().await
        });
    filled.expect("written");
    cluster
}

/// Nothing that one node brings is slow but the link of these to the client.
fn slow(cluster: &Cluster, storages: &[usize]) {
    for storage in storages {
        cluster.world.set_rate(&cluster.storages[*storage].node, &cluster.clients[0], RATE);
    }
}

/// How long it takes to read all chunks at once, as shipped but without hedges. Something breaks before.
fn read_all(cluster: &Cluster, breaks: impl FnOnce() + 'static) -> Duration {
    let shipped = ClientConfig::default();
    let config =
        ClientConfig { data_total: shipped.data_total, hedge: false, ..cluster.client_config() };
    let client = cluster.clients[0].clone();
    let took = cluster.with_config(&client, LIMIT, config, move |rt, client| async move {
        let (file, _) = open_or_make(&client, "file").await?;
        // Connections are there.
        for chunk in 0..6 {
            file.read(chunk * CHUNK as u64, rt.alloc(4096)).await.0?;
        }
        breaks();
        let began = rt.now();
        let reads = (0..CHUNKS).map(|chunk| file.read(chunk * CHUNK as u64, rt.alloc(CHUNK)));
        for (read, buf) in join_all(reads).await {
            assert_eq!(read?, CHUNK);
            assert!(buf.iter().all(|b| *b == 7));
        }
        Ok(rt.now().since(began))
    });
    took.expect("each chunk has a replica that is whole")
}

/// The second one that was asked was the first one again, since it was suspect and the order had turned.
#[test]
fn where_a_disk_hangs_the_next_replica_is_asked_at_once() {
    let cluster = filled(81, 2);
    let disk = cluster.storages[0].node.disk("/disk0");
    let took = read_all(&cluster, move || disk.set_faults(HANGS));
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn where_a_disk_hangs_and_its_node_brings_others_the_next_replica_is_asked_at_once() {
    let cluster = filled(82, 3);
    slow(&cluster, &[0]);
    let disk = cluster.storages[0].node.disk("/disk0");
    let took = read_all(&cluster, move || disk.set_faults(HANGS));
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
}

/// Two nodes are of no use, each for another reason.
#[test]
fn where_a_node_stands_still_and_another_one_is_slow_the_third_is_asked() {
    let cluster = filled(83, 3);
    slow(&cluster, &[1]);
    let node = cluster.storages[0].node.clone();
    let took = read_all(&cluster, move || node.freeze(LIMIT));
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
}

/// There is nobody who answers in time: in the end those are waited for that bring something.
#[test]
fn where_all_are_slow_and_a_disk_hangs_everything_is_read() {
    let cluster = filled(84, 3);
    slow(&cluster, &[0, 1, 2]);
    let disk = cluster.storages[0].node.disk("/disk0");
    let took = read_all(&cluster, move || disk.set_faults(HANGS));
    assert!(took < Duration::from_secs(60), "{took:?}");
}
