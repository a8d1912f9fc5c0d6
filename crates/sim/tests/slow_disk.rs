//! A disk that takes seconds for every operation, and is not dead: it holds writes up, as it must, and nothing else.

use crate::writer::{CHUNKS, FILE, WRITE, Writer};
use glowfs_client::Client;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, DISK, Shape};
use glowfs_sim::cluster::workload::{open_or_make, report};
use glowfs_sim::world::DiskFaults;
use glowfs_types::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, clients: 3, ..Shape::SINGLE };
/// How long it is slow: longer than a disk may be stuck (30 s).
const FOR: Duration = Duration::from_secs(90);
/// What a read may take: others have it as well.
const READ_MAX: Duration = Duration::from_secs(1);
/// What a write may take: some operations of a slow disk one after the other.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// Changes of the routing info: it stays, or it leaves once and comes back.
const CHANGES_MAX: u64 = 8;
/// Bytes of a read.
const READ: usize = 16 << 10;
/// The file that is only read.
const STILL: &str = "still";

/// A client that reads what nobody writes.
#[derive(Default)]
struct Reader {
    stop: Cell<bool>,
    outcome: RefCell<Option<Result<()>>>,
    done: Cell<u64>,
    worst: Cell<Duration>,
}

impl Reader {
    fn start(cluster: &Cluster) -> Rc<Self> {
        let r = Rc::<Self>::default();
        let node = &cluster.clients[2];
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
        let (file, _) = open_or_make(client, STILL).await?;
        for chunk in 0..CHUNKS {
            file.write(chunk * u64::from(CHUNK_BYTES), Buf::from_vec(vec![7; READ])).await?;
        }
        while !self.stop.get() {
            let (at, began) = (rt.random_below(CHUNKS) * u64::from(CHUNK_BYTES), rt.now());
            let (read, buf) = file.read(at, rt.alloc(READ)).await;
            assert_eq!(read?, READ);
            assert!(buf.iter().all(|b| *b == 7), "other bytes at {at}");
            self.worst.set(self.worst.get().max(rt.now().since(began)));
            self.done.set(self.done.get() + 1);
            rt.sleep(Duration::from_millis(5)).await;
        }
        client.close_session(report(client, &file, false)).await.map(drop)
    }
}

#[test]
fn a_disk_that_takes_seconds_holds_up_writes_and_nothing_else() {
    for seed in [61, 62, 63] {
        let cluster =
            Cluster::start(seed, Shape { managers: 1 + 2 * (seed as usize % 2), ..SHAPE });
        cluster.bootstrap().expect("a cluster");
        let (writer, reader) = (Writer::start(&cluster), Reader::start(&cluster));
        writer.warm(&cluster);
        assert!(cluster.run_until(Duration::from_secs(60), || reader.done.get() > 100));
        reader.worst.take();
        let (before, written, read) = (writer.version(), writer.done.get(), reader.done.get());
        let slow = cluster.storages[seed as usize % SHAPE.storages].node.disk(DISK);
        slow.set_faults(DiskFaults::SECONDS);
        cluster.run_for(FOR);
        let (changes, worst) = (writer.version() - before, writer.worst(&cluster));
        let (written, read) = (writer.done.get() - written, reader.done.get() - read);
        slow.set_faults(DiskFaults::default());
        println!(
            "seed {seed}: {written} writes, longest {worst:?}; {read} reads, longest {:?}; {changes} changes",
            reader.worst.get()
        );
        assert!(worst < WRITE_MAX && written > 3, "{written} writes, one of {worst:?}");
        assert!(reader.worst.get() < READ_MAX && read > 1000, "{read}: {:?}", reader.worst.get());
        assert!(changes <= CHANGES_MAX, "{changes} changes");
        let last = writer.done.get();
        assert!(cluster.run_until(Duration::from_secs(60), || writer.done.get() > last + CHUNKS));
        reader.stop.set(true);
        writer.finish(&cluster);
        assert!(cluster.run_until(Duration::from_secs(60), || reader.outcome.borrow().is_some()));
        reader.outcome.take().expect("it has ended").expect("no read fails");
        let done = writer.done.get();
        all_is_there(&cluster, done);
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
}

/// The last of `done` writes to each chunk.
fn all_is_there(cluster: &Cluster, done: u64) {
    let limit = Duration::from_secs(60);
    let read = cluster.with_client(&cluster.clients[0].clone(), limit, move |rt, c| async move {
        let (file, _) = open_or_make(&c, FILE).await?;
        for n in done - CHUNKS..done {
            let at = n % CHUNKS * u64::from(CHUNK_BYTES);
            let (read, buf) = file.read(at, rt.alloc(WRITE)).await;
            assert_eq!(read?, WRITE);
            assert!(buf.iter().all(|b| *b == n as u8), "write {n} is not there");
        }
        Ok(())
    });
    read.expect("read");
}
