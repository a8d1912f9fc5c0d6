//! A disk that answers nothing any more, not even with an error, or not some of what it is asked, in the shipped services: it costs its node no more than itself.

use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Buf, Duration, Instant, Rt};
use glowfs_sim::cluster::harness::{Cluster, Shape, all_serve};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_sim::world::{DiskFaults, SimDisk};
use glowfs_types::routing::{ChainMember, PublicState, RoutingInfo, TargetInfo};
use glowfs_types::{NodeId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, disks: 2, replicas: 2, chains: 6, stripe: 6, clients: 2, ..Shape::SINGLE };
/// Chunks of the file: so many to a chain.
const CHUNKS_OF_A_CHAIN: usize = 2;
const CHUNKS: usize = SHAPE.chains as usize * CHUNKS_OF_A_CHAIN;
/// So many more, behind them, are only read: on a chunk with a pending write reads do not come to the disk.
const STILL: u64 = CHUNKS as u64;
/// Bytes of a chunk.
const CHUNK: usize = 64 << 10;
/// Bytes of a write.
const WRITE: usize = 4096;
/// Bytes of a read.
const READ: usize = 16 << 10;
/// Reads at once while the disk hangs. Those that it gets are tried elsewhere after 3 s, and a second later it is asked again: in the 30 s
/// that the node takes to notice, more come than it takes in (1024).
const READERS: usize = 800;
/// The pause of a reader.
const READ_PAUSE: Duration = Duration::from_millis(500);
/// What a write to a chain on other disks may take meanwhile.
const WITHIN: Duration = Duration::from_secs(5);
/// How long after the node has noticed everything goes on.
const AFTER: Duration = Duration::from_secs(30);

/// Clients that write to every chunk by itself, and read all of them.
#[derive(Default)]
struct Load {
    reading: Cell<bool>,
    stop: Cell<bool>,
    /// When the last write of each chunk ended, and how many there were.
    ended: RefCell<Vec<(Instant, u64)>>,
    reads: Cell<u64>,
    running: Cell<usize>,
    problems: RefCell<Vec<String>>,
    client: RefCell<Option<Rc<Client>>>,
}

impl Load {
    /// Starts it, and lets it run until all chains serve.
    fn start(cluster: &Cluster) -> Rc<Self> {
        let load = Self::begin(cluster);
        let running = load.goes_on(20);
        assert!(cluster.world.run_until(Duration::from_secs(60), running), "{:?}", load.problems);
        assert!(all_serve(&load.routing(), SHAPE));
        load
    }
    fn begin(cluster: &Cluster) -> Rc<Self> {
        let load = Rc::new(Self::default());
        *load.ended.borrow_mut() = vec![(Instant(0), 0); CHUNKS];
        for (i, node) in cluster.clients.iter().enumerate() {
            let (me, rt, mut config) = (load.clone(), node.rt(), cluster.client_config());
            // Readers that insist.
            config.hedge = false;
            let spawner = rt.clone();
            spawner.spawn_detached(async move {
                let work = async {
                    let client = Client::connect(&rt, config).await?;
                    let (file, _) = open_or_make(&client, "file").await?;
                    if i == 0 {
                        *me.client.borrow_mut() = Some(client);
                        for chunk in CHUNKS as u64..CHUNKS as u64 + STILL {
                            file.write(chunk * CHUNK as u64, Buf::from_vec(vec![7; READ])).await?;
                        }
                        (0..CHUNKS).for_each(|c| me.clone().spawn(&rt, Some(c), file.clone()));
                    } else {
                        (0..READERS).for_each(|_| me.clone().spawn(&rt, None, file.clone()));
                    }
                    Ok(())
                };
                me.note(work.await);
            });
        }
        load
    }
    fn note(&self, result: Result<()>) {
        if let Err(e) = result {
            self.problems.borrow_mut().push(e.to_string());
        }
    }
    /// A task that writes to one chunk, or reads any.
    fn spawn(self: Rc<Self>, rt: &Rt, chunk: Option<usize>, file: Rc<OpenFile>) {
        let (rt, spawner) = (rt.clone(), rt.clone());
        self.running.set(self.running.get() + 1);
        spawner.spawn_detached(async move {
            let result = match chunk {
                Some(c) => self.write(&rt, c, &file).await,
                None => self.read(&rt, &file).await,
            };
            self.note(result);
            self.running.set(self.running.get() - 1);
        });
    }
    async fn write(&self, rt: &Rt, chunk: usize, file: &OpenFile) -> Result<()> {
        while !self.stop.get() {
            let n = self.ended.borrow()[chunk].1;
            let at = (chunk * CHUNK) as u64 + n % (CHUNK / WRITE) as u64 * WRITE as u64;
            file.write(at, Buf::from_vec(vec![n as u8; WRITE])).await?;
            self.ended.borrow_mut()[chunk] = (rt.now(), n + 1);
            rt.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
    async fn read(&self, rt: &Rt, file: &OpenFile) -> Result<()> {
        while !self.reading.get() {
            rt.sleep(READ_PAUSE).await;
        }
        while !self.stop.get() {
            let chunk = CHUNKS as u64 + rt.random_below(STILL);
            let (result, _) = file.read(chunk * CHUNK as u64, rt.alloc(READ)).await;
            result?;
            self.reads.set(self.reads.get() + 1);
            rt.sleep(READ_PAUSE).await;
        }
        Ok(())
    }
    fn routing(&self) -> Rc<RoutingInfo> {
        self.client.borrow().as_ref().map(|c| c.routing()).unwrap_or_default()
    }
    fn written(&self) -> Vec<u64> {
        self.ended.borrow().iter().map(|e| e.1).collect()
    }
    /// Tells when every chunk was written so many times more.
    fn goes_on(self: &Rc<Self>, more: u64) -> impl Fn() -> bool + use<> {
        let (load, before) = (self.clone(), self.written());
        move || load.written().iter().zip(&before).all(|(now, b)| *now >= b + more)
    }
    /// Ends it; nothing of it has failed.
    fn end(&self, cluster: &Cluster) {
        self.stop.set(true);
        // Readers may not have begun.
        self.reading.set(true);
        assert!(cluster.world.run_until(Duration::from_secs(60), || self.running.get() == 0));
        assert_eq!(*self.problems.borrow(), Vec::<String>::new());
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
    /// Chunks of which no write ended for so long.
    fn stuck(&self, cluster: &Cluster, since: Duration) -> usize {
        let now = cluster.clients[0].rt().now();
        self.ended.borrow().iter().filter(|e| now.since(e.0) > since).count()
    }
}

/// The disk that hangs.
#[derive(Clone, Copy)]
struct Hung {
    /// Index of its storage service.
    storage: usize,
    node: NodeId,
    disk: u32,
}

impl Hung {
    /// One with members, whose node has the head of a chain that has no member on it: where the chains go is a matter of chance.
    fn choose(cluster: &Cluster, info: &RoutingInfo) -> Option<Self> {
        let nodes = cluster.storages.iter().enumerate();
        let mut all = nodes.flat_map(|(storage, s)| {
            let node = s.id();
            (0..SHAPE.disks as u32).map(move |disk| Self { storage, node, disk })
        });
        all.find(|hung| hung.members(info).0 > 0 && hung.has_a_head_beside(info))
    }
    fn disk(&self, cluster: &Cluster) -> SimDisk {
        cluster.storages[self.storage].node.disk(format!("/disk{}", self.disk))
    }
    fn has(&self, t: &TargetInfo) -> bool {
        t.node == self.node && t.disk_index == self.disk
    }
    fn has_a_head_beside(&self, info: &RoutingInfo) -> bool {
        info.chains.values().any(|c| {
            let target = |m: &ChainMember| &info.targets[&m.target];
            let none = !c.members.iter().any(|m| self.has(target(m)));
            none && c.members.first().is_some_and(|head| target(head).node == self.node)
        })
    }
    /// The members on it: how many, and how many of them serve.
    fn members(&self, info: &RoutingInfo) -> (usize, usize) {
        let members = info.chains.values().flat_map(|c| &c.members);
        let on_it = members.filter(|m| self.has(&info.targets[&m.target]));
        let states: Vec<_> = on_it.map(|m| m.state).collect();
        (states.len(), states.iter().filter(|s| **s == PublicState::Serving).count())
    }
}

/// One of a node's two disks hangs while clients read from it and write to it. The chains that have no member there go on all the time,
/// those on the node's other disk as well; the members on it are taken out, and their chains go on without them; and all that stays
/// so, although what hangs is never answered.
#[test]
fn a_disk_that_hangs_costs_its_node_only_that_disk() {
    let cluster = Cluster::start(51, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let load = Load::start(&cluster);
    let hung = Hung::choose(&cluster, &load.routing()).expect("a disk with a head beside it");
    let (members, serving) = hung.members(&load.routing());
    assert_eq!(serving, members);

    hung.disk(&cluster).set_faults(DiskFaults { hangs: true, ..DiskFaults::default() });
    load.reading.set(true);
    let (mut worst, mut out) = (0, false);
    for second in 0..60 {
        cluster.world.run_for(Duration::from_secs(1));
        worst = worst.max(load.stuck(&cluster, WITHIN));
        out = hung.members(&load.routing()).1 == 0;
        assert!(
            worst <= members * CHUNKS_OF_A_CHAIN,
            "after {second} s writes to {worst} chunks hang, of which {} on the disk",
            members * CHUNKS_OF_A_CHAIN
        );
        if out {
            break;
        }
    }
    assert!(out, "the members on the disk still serve: {:?}", load.routing().chains);
    assert!(worst > 0, "nothing hung: the test proves nothing");

    let on = load.goes_on(100);
    assert!(
        cluster.world.run_until(AFTER, on),
        "{} chunks are not written any more; {:?}",
        load.stuck(&cluster, WITHIN),
        load.problems
    );
    // Nothing piles up again.
    let (reads, on) = (load.reads.get(), load.goes_on(1000));
    cluster.world.run_for(Duration::from_secs(60));
    assert!(on(), "{:?}", load.written());
    assert!(load.reads.get() > reads + 10_000, "{} reads", load.reads.get() - reads);
    assert_eq!(load.stuck(&cluster, WITHIN), 0);
    load.end(&cluster);
}

/// One of a node's two disks gets faults of which the check of disks sees nothing, and others when writes hang for them. It is taken out before clients give up (a minute), and no other chain
/// feels it.
fn is_taken_out(seed: u64, faults: DiskFaults, then: DiskFaults) {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let load = Load::start(&cluster);
    let hung = Hung::choose(&cluster, &load.routing()).expect("a disk with a head beside it");
    let (members, _) = hung.members(&load.routing());
    // Its check has been made some times.
    cluster.world.run_for(Duration::from_secs(5));
    let disk = hung.disk(&cluster);
    disk.set_faults(faults);
    let mut worst = 0;
    let out = cluster.world.run_until(Duration::from_secs(55), || {
        worst = worst.max(load.stuck(&cluster, WITHIN));
        if worst > 0 {
            disk.set_faults(then);
        }
        hung.members(&load.routing()).1 == 0
    });
    assert!(out, "the members on the disk still serve: {:?}", load.routing().chains);
    assert!(worst > 0, "nothing hung: the test proves nothing");
    assert!(worst <= members * CHUNKS_OF_A_CHAIN, "{worst} chunks were stuck");
    assert!(cluster.world.run_until(AFTER, load.goes_on(100)), "{:?}", load.problems);
    load.end(&cluster);
}

/// It reads and writes, and no flush of it ends: its log fills up, and then nothing is written to the chains that have a member there.
#[test]
fn a_disk_that_ends_no_flush_is_taken_out() {
    let faults = DiskFaults { syncs_hang: true, ..DiskFaults::default() };
    is_taken_out(52, faults, faults);
}

/// The same, and then all else takes seconds, the check of the disk as well.
#[test]
fn a_slow_disk_that_ends_no_flush_is_taken_out_as_soon() {
    let slow = DiskFaults { syncs_hang: true, ..DiskFaults::SECONDS };
    is_taken_out(53, DiskFaults { syncs_hang: true, ..DiskFaults::default() }, slow);
}

/// Its check writes where something is already, and the flushes that were begun end.
#[test]
fn a_disk_that_writes_nothing_new_is_taken_out() {
    let faults = DiskFaults { new_writes_hang: true, ..DiskFaults::default() };
    is_taken_out(54, faults, faults);
}
