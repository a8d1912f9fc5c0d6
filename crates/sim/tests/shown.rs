//! What not all replicas have stored, in the shipped services: nobody reads it from those that have, and it is read as soon as they all do.

use glowfs_client::Client;
use glowfs_rt::{Buf, Duration, Instant, Rt};
use glowfs_sim::cluster::harness::{Cluster, DISK, Shape};
use glowfs_sim::cluster::workload::{open_or_make, report};
use glowfs_sim::world::DiskFaults;
use glowfs_types::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 1, stripe: 1, clients: 2, ..Shape::SINGLE };
/// Bytes of the file.
const BYTES: usize = 20_000;
/// What the head's disk takes for an operation, at least.
const SLOW_S: u64 = 4;
/// When what was acknowledged is read, at the latest: the members behind ask each other, and the reader was told to come again.
const SOON: Duration = Duration::from_secs(1);

/// A client that reads the file all the time.
#[derive(Default)]
struct Reader {
    stop: Cell<bool>,
    outcome: RefCell<Option<Result<()>>>,
    /// When a read ended, and what it read.
    reads: RefCell<Vec<(Instant, u8)>>,
}

impl Reader {
    fn start(cluster: &Cluster) -> Rc<Self> {
        let r = Rc::<Self>::default();
        let node = &cluster.clients[1];
        let (me, rt, config) = (r.clone(), node.rt(), cluster.client_config());
        node.rt().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("a client");
            let outcome = me.read(&rt, &client).await;
            client.close().await;
            *me.outcome.borrow_mut() = Some(outcome);
        });
        r
    }
    async fn read(&self, rt: &Rt, client: &Rc<Client>) -> Result<()> {
        let (file, _) = open_or_make(client, "file").await?;
        while !self.stop.get() {
            let (read, buf) = file.read(0, rt.alloc(BYTES)).await;
            assert_eq!(read?, BYTES);
            assert!(buf.iter().all(|b| *b == buf[0]), "a part of a write");
            self.reads.borrow_mut().push((rt.now(), buf[0]));
            rt.sleep(Duration::from_millis(5)).await;
        }
        client.close_session(report(client, &file, false)).await.map(drop)
    }
}

/// Writes that byte over the whole file, and says which node has the head.
async fn write(client: Rc<Client>, byte: u8) -> Result<glowfs_types::NodeId> {
    let (file, _) = open_or_make(&client, "file").await?;
    file.write(0, Buf::from_vec(vec![byte; BYTES])).await?;
    client.close_session(report(&client, &file, false)).await?;
    let info = client.routing();
    let chain = info.chains.values().next().expect("a chain");
    Ok(chain.members[0].node)
}

#[test]
fn what_a_slow_disk_has_not_stored_is_not_read_from_the_others() {
    for seed in [71, 72, 73] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let limit = Duration::from_secs(60);
        let writer = cluster.clients[0].clone();
        let head = cluster.with_client(&writer, limit, |_, c| write(c, 1)).expect("written");
        let reader = Reader::start(&cluster);
        assert!(cluster.run_until(limit, || reader.reads.borrow().len() > 20));
        let slow = cluster.storages.iter().find(|s| s.id() == head).expect("a storage");
        let disk = slow.node.disk(DISK);
        disk.set_faults(DiskFaults {
            slower_least_ns: SLOW_S * 1_000_000_000,
            slower_most_ns: SLOW_S * 1_100_000_000,
            ..DiskFaults::default()
        });
        // Each machine has its own clock: that of the reader.
        let clock = cluster.clients[1].rt();
        let began = clock.now();
        cluster.with_client(&writer, limit, |_, c| write(c, 2)).expect("written");
        let ended = clock.now();
        disk.set_faults(DiskFaults::default());
        cluster.run_for(2 * SOON);
        reader.stop.set(true);
        assert!(cluster.run_until(limit, || reader.outcome.borrow().is_some()));
        assert_eq!(*reader.outcome.borrow(), Some(Ok(())));
        let reads = reader.reads.borrow();
        let first = reads.iter().find(|(_, byte)| *byte == 2).expect("it is read").0;
        println!(
            "seed {seed}: written in {:?}, read after {:?}",
            ended.since(began),
            first.since(began)
        );
        let not_before = Duration::from_secs(SLOW_S);
        assert!(first.since(began) >= not_before, "seed {seed}: read before the head had it");
        assert!(first < ended + SOON, "seed {seed}: read {:?} late", first.since(ended));
        let back = reads.iter().any(|(at, byte)| *at > first && *byte != 2);
        assert!(!back, "seed {seed}: it is read no more");
        let after = reads.iter().filter(|(at, _)| *at > ended + SOON).count();
        assert!(after > 20, "seed {seed}: {after} reads in the last second");
    }
}
