//! Garbage collection, in the shipped services.

use glowfs_meta::Tuning;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_sim::world::DiskFaults;
use glowfs_types::Error;
use glowfs_types::wire::meta::ROOT_INODE;

/// Removed files, more than are collected side by side, and chunks of each.
const FILES: usize = 64;
const CHUNKS: usize = 2;
/// Chunks that may be collected in a second.
const RATE: u64 = 20;
const LIMIT: Duration = Duration::from_secs(120);

/// The rate is that of all entries together, however many are collected side by side.
#[test]
fn garbage_goes_no_faster_than_it_may() {
    let tuning = Tuning { gc_chunks_per_s: RATE, ..Tuning::default() };
    let cluster = Cluster::start_tuned(81, Shape::SINGLE, tuning);
    cluster.bootstrap().expect("a cluster");
    let node = cluster.storages[0].id();
    let took = cluster.with_client(&cluster.clients[0].clone(), LIMIT, move |rt, c| async move {
        for n in 0..FILES {
            let (file, _) = open_or_make(&c, &format!("f{n}")).await?;
            file.write(0, Buf::from_vec(vec![1; CHUNKS * CHUNK_BYTES as usize])).await?;
            c.close_file(&file).await?;
        }
        for n in 0..FILES {
            unlink(&c, ROOT_INODE, &format!("f{n}"), false).await?;
        }
        let (mut began, mut left) = (rt.now(), FILES * CHUNKS);
        while left > 0 {
            let targets = c.storage_info(node).await?.targets;
            left = targets.iter().map(|(_, chunks)| *chunks as usize).sum();
            if left == FILES * CHUNKS {
                began = rt.now();
            }
            rt.sleep(Duration::from_millis(50)).await;
        }
        Ok(rt.now().since(began))
    });
    let took = took.expect("collected");
    // All but the last ones were waited for.
    let least = Duration::from_secs((FILES * CHUNKS / 2) as u64 / RATE);
    assert!(took >= least, "{FILES} files in {took:?}, at least {least:?}");
}

/// Two chains of one replica, each on a node of its own.
const APART: Shape = Shape { storages: 2, chains: 2, ..Shape::SINGLE };

/// What is on chains that answer goes, whatever is to be removed of one that does not.
#[test]
fn a_disk_that_hangs_keeps_only_its_own_garbage() {
    let cluster = Cluster::start(82, APART);
    cluster.bootstrap().expect("a cluster");
    let client = cluster.clients[0].clone();
    let disk = cluster.storages[0].node.disk("/disk0");
    let (hangs, well) = (cluster.storages[0].id(), cluster.storages[1].id());
    let left = cluster.with_client(&client, LIMIT, move |rt, c| async move {
        let chunks = async |node| {
            let targets = c.storage_info(node).await?.targets;
            Ok::<_, Error>(targets.iter().map(|(_, chunks)| *chunks as usize).sum::<usize>())
        };
        for n in 0..FILES {
            let (file, _) = open_or_make(&c, &format!("f{n}")).await?;
            file.write(0, Buf::from_vec(vec![1; CHUNK_BYTES as usize])).await?;
            c.close_file(&file).await?;
        }
        let (here, there) = (chunks(hangs).await?, chunks(well).await?);
        assert!(here > 16 && there > 16, "{here} and {there} chunks: the test proves nothing");
        disk.set_faults(DiskFaults { hangs: true, ..DiskFaults::default() });
        for n in 0..FILES {
            unlink(&c, ROOT_INODE, &format!("f{n}"), false).await?;
        }
        rt.sleep(Duration::from_secs(20)).await;
        chunks(well).await
    });
    assert_eq!(left.expect("counted"), 0);
}
