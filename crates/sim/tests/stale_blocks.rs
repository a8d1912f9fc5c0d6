//! A disk that says of writes that they are done, and of its flushes, and has not done them: its chunks are older than the store's records of them. One replica of
//! three has such a disk; nobody sees old bytes, and reads and scrubs find and mend it.

use crate::replicas::{CHUNK, LIMIT, Step, change, check, check_near, with};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, DISK, Service, Shape};
use glowfs_sim::cluster::workload::{open_or_make, report};
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply};

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 1, stripe: 1, clients: 2, ..Shape::SINGLE };
const CHUNKS: u64 = 24;
/// Chunks of another file: more than the log holds, so that what was written before is folded into the files of chunks.
const OTHERS: u64 = 40;
/// Writes that the disk loses.
const LOST: u32 = 5;

/// What a node says of its scrubs: whole passes, chunks that it found, and chunks that it repaired.
fn scrubbed(cluster: &Cluster, of: &Service, now: bool) -> (u64, u64, u64) {
    let node = of.id();
    let reply: ScrubReply = with(cluster, move |_, client| async move {
        client.node_call(node, method::SCRUB, &Scrub { now }).await
    });
    let sum =
        |f: fn(&glowfs_types::wire::repair::ScrubState) -> u64| reply.targets.iter().map(f).sum();
    (sum(|t| t.passes), sum(|t| t.found), sum(|t| t.repaired))
}

/// A cluster with a file of which one replica's disk has lost some writes: they were acknowledged by all replicas, and flushed.
fn lying(seed: u64, nth: usize) -> (Cluster, Service) {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let liar = cluster.storages[nth].clone();
    let write = |byte| {
        change(&cluster, "f", vec![Step::Fill(0..CHUNKS, byte)]);
        change(&cluster, "others", vec![Step::Fill(0..OTHERS, byte)]);
    };
    write(1);
    liar.node.disk(DISK).lose_writes(LOST);
    write(2);
    assert_eq!(liar.node.disk(DISK).lost_writes(), LOST, "it lost them");
    (cluster, liar)
}

/// What is read near the lying disk is what was written, and its replica is mended by that.
#[test]
fn nobody_reads_what_was_there_before() {
    for (seed, nth, restarted) in [(95, 0, false), (96, 1, true), (97, 2, false)] {
        let (cluster, liar) = lying(seed, nth);
        if restarted {
            cluster.crash(&liar, true);
            cluster.run_for(Duration::from_secs(3));
            cluster.restart(&liar);
            crate::replicas::wait_serving(&cluster);
        }
        check_near(&cluster, &liar, "f", &[2; CHUNKS as usize]);
        check_near(&cluster, &liar, "others", &[2; OTHERS as usize]);
        cluster.run_for(Duration::from_secs(5));
        // Found by those reads, so there is nothing left to find.
        let (passes, ..) = scrubbed(&cluster, &liar, true);
        assert!(is_scrubbed(&cluster, &liar, passes + 1), "it is scrubbed");
        assert_eq!(scrubbed(&cluster, &liar, false).1, 0, "{nth}: reads had it mended");
        check(&cluster, "f", &[2; CHUNKS as usize]);
        check(&cluster, "others", &[2; OTHERS as usize]);
    }
}

/// Nobody reads it: the scrub finds it. Meanwhile others are written to, in part, on the same chain.
#[test]
fn a_scrub_finds_and_mends_what_a_disk_has_lost() {
    for (seed, nth) in [(98, 0), (99, 2)] {
        let (cluster, liar) = lying(seed, nth);
        let rt = cluster.clients[1].rt();
        let config = cluster.client_config();
        cluster.clients[1].rt().spawn_detached(async move {
            let client = glowfs_client::Client::connect(&rt, config).await.expect("a client");
            let (file, _) = open_or_make(&client, "g").await.expect("a file");
            for i in 0..400u64 {
                let at = i * 37 % CHUNKS * CHUNK + i % 16 * 4096;
                file.write(at, Buf::from_vec(vec![3; 4096])).await.expect("written");
            }
            client.close_session(report(&client, &file, true)).await.expect("closed");
        });
        let (passes, found, _) = scrubbed(&cluster, &liar, true);
        assert_eq!(found, 0);
        assert!(is_scrubbed(&cluster, &liar, passes + 1), "it is scrubbed");
        let (_, found, repaired) = scrubbed(&cluster, &liar, false);
        assert!(found >= 1 && found <= u64::from(LOST), "{found} chunks");
        assert_eq!(repaired, found, "all of them mended");
        check(&cluster, "f", &[2; CHUNKS as usize]);
        check(&cluster, "others", &[2; OTHERS as usize]);
        // And the other replicas never had anything to mend.
        for s in cluster.storages.iter().filter(|s| s.id() != liar.id()) {
            assert_eq!(scrubbed(&cluster, s, false).1, 0);
        }
    }
}

/// Waits until a node has made so many passes.
fn is_scrubbed(cluster: &Cluster, of: &Service, wanted: u64) -> bool {
    let until = cluster.world.now() + LIMIT;
    while cluster.world.now() < until {
        cluster.run_for(Duration::from_millis(500));
        if scrubbed(cluster, of, false).0 >= wanted {
            return true;
        }
    }
    false
}
