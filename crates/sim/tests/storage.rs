//! The shipped services with one thing broken for good: a link, a disk, bytes at rest. What is acknowledged stays, the chain goes on
//! without the broken part, and takes it back when it is mended.

use glowfs_client::Client;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape, all_serve};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_sim::world::DiskFaults;
use glowfs_types::routing::{PublicState, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply, ScrubState};
use glowfs_types::{NodeId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of one write of the tests' writer.
const WRITE: usize = 4096;
/// Writes to one file, one behind the other, again and again.
const PLACES: u64 = 256;

/// A client that writes all the time, and remembers what was acknowledged and how long that took.
struct Writer {
    stop: Cell<bool>,
    ended: Cell<bool>,
    /// What each place holds.
    held: RefCell<Vec<Option<u8>>>,
    done: Cell<u64>,
    /// The longest write.
    worst: Cell<Duration>,
    problem: RefCell<Option<String>>,
    client: RefCell<Option<Rc<Client>>>,
    /// It asks for durability after each write.
    flushes: Cell<bool>,
}

impl Writer {
    fn start(cluster: &Cluster, name: &'static str) -> Rc<Self> {
        let w = Rc::new(Self {
            stop: Cell::new(false),
            ended: Cell::new(false),
            held: RefCell::new(vec![None; PLACES as usize]),
            done: Cell::new(0),
            worst: Cell::new(Duration::ZERO),
            problem: RefCell::default(),
            client: RefCell::default(),
            flushes: Cell::new(false),
        });
        let node = &cluster.clients[1];
        let (me, rt, config) = (w.clone(), node.rt(), cluster.client_config());
        node.rt().spawn_detached(async move {
            if let Err(e) = me.write(&rt, config, name).await {
                *me.problem.borrow_mut() = Some(e.to_string());
            }
            me.ended.set(true);
        });
        w
    }
    async fn write(&self, rt: &Rt, config: glowfs_client::ClientConfig, name: &str) -> Result<()> {
        let client = Client::connect(rt, config).await?;
        *self.client.borrow_mut() = Some(client.clone());
        let (file, _) = open_or_make(&client, name).await?;
        let mut n = 0u64;
        while !self.stop.get() {
            // Steps through all chunks of the file.
            let place = n * 37 % PLACES;
            let fill = (n % 251) as u8;
            let began = rt.now();
            file.write(place * STRIDE, Buf::from_vec(vec![fill; WRITE])).await?;
            if self.flushes.get() {
                file.flush().await?;
            }
            self.worst.set(self.worst.get().max(rt.now().since(began)));
            self.held.borrow_mut()[place as usize] = Some(fill);
            n += 1;
            self.done.set(n);
            rt.sleep(Duration::from_millis(2)).await;
        }
        let all = self.held.borrow().clone();
        for (place, held) in all.iter().enumerate() {
            let Some(fill) = held else { continue };
            let (result, buf) = file.read(place as u64 * STRIDE, rt.alloc(WRITE)).await;
            result?;
            if buf.iter().any(|b| b != fill) {
                return Err(glowfs_types::Error::new(
                    glowfs_types::Status::Corrupt,
                    format!("place {place} does not hold what was acknowledged"),
                ));
            }
        }
        client.close().await;
        Ok(())
    }
    fn routing(&self) -> Rc<RoutingInfo> {
        self.client.borrow().as_ref().map(|c| c.routing()).unwrap_or_default()
    }
    /// Lets it end: it reads everything back.
    fn finish(&self, cluster: &Cluster) {
        self.stop.set(true);
        assert!(cluster.world.run_until(Duration::from_secs(300), || self.ended.get()), "it ends");
        assert_eq!(*self.problem.borrow(), None);
    }
}

/// A small cluster, for one broken thing at a time.
const SMALL: Shape =
    Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, clients: 2, ..Shape::SINGLE };

/// So that the file has some chunks (of 64 KiB) on every chain.
const STRIDE: u64 = 16 << 10;

fn start(seed: u64, shape: Shape) -> (Cluster, Rc<Writer>) {
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    let writer = Writer::start(&cluster, "written");
    assert!(cluster.world.run_until(Duration::from_secs(60), || writer.done.get() > 100));
    (cluster, writer)
}

/// Waits until all serve again.
fn heal(cluster: &Cluster, writer: &Writer, limit: Duration) {
    let healthy = || all_serve(&writer.routing(), cluster.shape());
    assert!(cluster.world.run_until(limit, healthy), "{:?}", writer.routing().chains);
}

fn serving_on(info: &RoutingInfo, node: NodeId) -> usize {
    info.chains.values().filter(|c| c.serving().any(|m| m.node == node)).count()
}

/// All nodes are full of updates that clients brought, each of which needs the next two of a ring: what is forwarded finds room all the same.
#[test]
fn nodes_that_are_full_of_updates_take_those_of_each_other() {
    const WRITERS: u64 = 96;
    const WRITES: u64 = 20;
    for seed in [41, 42] {
        let cluster = Cluster::start(seed, Shape { inflight_ops: 6, ..SMALL });
        cluster.bootstrap().expect("a cluster");
        let node = cluster.clients[0].clone();
        let (rt, config) = (node.rt(), cluster.client_config());
        let work = async move {
            let client = Client::connect(&rt, config).await?;
            let (file, _) = open_or_make(&client, "full").await?;
            // Each to a chunk of its own, which the chains have in turn.
            let writer = async |i: u64| {
                for n in 0..WRITES {
                    let at = i * u64::from(CHUNK_BYTES) + n * 4096 % u64::from(CHUNK_BYTES);
                    file.write(at, Buf::from_vec(vec![i as u8; 4096])).await?;
                }
                Ok(())
            };
            join_all((0..WRITERS).map(writer)).await.into_iter().collect::<Result<()>>()
        };
        let done = cluster.world.run(&node, Duration::from_secs(120), work);
        assert!(matches!(done, Some(Ok(()))), "seed {seed}: {done:?}");
    }
}

/// A successor that talks to mgmtd, but not with its predecessor: one of the two leaves the chains in which they are neighbours, and
/// writes go on within seconds. It returns when the link is mended.
#[test]
fn a_serving_successor_that_is_not_reached_leaves_the_chain() {
    let (cluster, writer) = start(11, SMALL);
    let (a, b) = (&cluster.storages[0], &cluster.storages[1]);
    cluster.world.cut(&a.node, &b.node);
    let before = writer.done.get();
    // Everything that is neighbours over this link is parted.
    let parted = |info: &RoutingInfo| {
        info.chains.values().all(|c| {
            let w: Vec<NodeId> = c.writers().map(|m| m.node).collect();
            c.activated == c.version && !w.windows(2).any(|p| p == [a.id(), b.id()])
        })
    };
    assert!(
        cluster.world.run_until(Duration::from_secs(60), || parted(&writer.routing())),
        "the neighbours were not parted"
    );
    assert!(cluster.world.run_until(Duration::from_secs(60), || writer.done.get() > before + 500));
    let worst = writer.worst.get();
    assert!(worst < Duration::from_secs(10), "a write took {worst:?}");
    assert!(writer.routing().chains.values().all(|c| c.serving().count() >= 2), "nobody else left");
    cluster.world.heal();
    heal(&cluster, &writer, Duration::from_secs(600));
    writer.finish(&cluster);
}

/// Two replicas: whoever is left goes on alone, however long the cut lasts, and never less than one is left.
#[test]
fn the_last_serving_member_is_never_reported_away() {
    let shape = Shape { storages: 2, replicas: 2, chains: 2, stripe: 2, ..SMALL };
    let (cluster, writer) = start(12, shape);
    let (a, b) = (&cluster.storages[0], &cluster.storages[1]);
    cluster.world.cut(&a.node, &b.node);
    cluster.world.cut(&b.node, &a.node);
    let mut worst = 0;
    for _ in 0..300 {
        let before = writer.done.get();
        cluster.world.run_for(Duration::from_millis(200));
        worst = if writer.done.get() > before { 0 } else { worst + 1 };
        let info = writer.routing();
        assert!(info.chains.values().all(|c| c.serving().count() >= 1), "{:?}", info.chains);
        assert!(worst < 75, "nothing was written for 15 s");
    }
    assert!(writer.routing().chains.values().all(|c| c.serving().count() == 1));
    cluster.world.heal();
    heal(&cluster, &writer, Duration::from_secs(900));
    writer.finish(&cluster);
}

/// Two replicas that do not reach each other: the one that is left is not stalled again and again by attempts to bring the other one back;
/// mended, the other one returns.
#[test]
fn a_replica_that_is_not_reached_is_not_let_in_to_stall_the_chain() {
    let shape = Shape { storages: 2, replicas: 2, chains: 2, stripe: 2, ..SMALL };
    let (cluster, writer) = start(14, shape);
    let (a, b) = (&cluster.storages[0], &cluster.storages[1]);
    for both_ways in [true, false] {
        cluster.world.cut(&a.node, &b.node);
        if both_ways {
            cluster.world.cut(&b.node, &a.node);
        }
        let alone = || writer.routing().chains.values().all(|c| c.serving().count() == 1);
        assert!(cluster.world.run_until(Duration::from_secs(60), alone), "one is left");
        cluster.run_for(Duration::from_secs(2));
        let before = writer.done.get();
        writer.worst.set(Duration::ZERO);
        // Long enough for attempts after 5, 10, 20, 40 s and one of each minute.
        cluster.run_for(Duration::from_secs(140));
        let worst = writer.worst.get();
        assert!(
            worst < Duration::from_millis(500),
            "a write took {worst:?} (both ways: {both_ways})"
        );
        assert!(writer.done.get() > before + 4_000, "writes go on");
        cluster.world.heal();
        heal(&cluster, &writer, Duration::from_secs(120));
    }
    writer.finish(&cluster);
}

/// A target that is being brought up to date but is not reached holds the writes of its chain only until it is reported.
#[test]
fn a_syncing_target_that_is_not_reached_does_not_hold_writes() {
    let (cluster, writer) = start(13, SMALL);
    let b = cluster.storages[1].clone();
    cluster.crash(&b, true);
    assert!(
        cluster
            .world
            .run_until(Duration::from_secs(30), || serving_on(&writer.routing(), b.id()) == 0)
    );
    for other in [&cluster.storages[0], &cluster.storages[2]] {
        cluster.world.cut(&other.node, &b.node);
    }
    cluster.restart(&b);
    for state in [PublicState::Syncing, PublicState::Waiting] {
        let is = |info: &RoutingInfo| {
            let mut chains = info.chains.values();
            chains.all(|c| c.members.iter().any(|m| m.node == b.id() && m.state == state))
        };
        assert!(
            cluster.world.run_until(Duration::from_secs(120), || is(&writer.routing())),
            "never {state}: {:?}",
            writer.routing().chains
        );
    }
    let before = writer.done.get();
    let on = || writer.done.get() > before + 200;
    assert!(cluster.world.run_until(Duration::from_secs(60), on), "writes go on while it waits");
    assert!(writer.worst.get() < Duration::from_secs(10), "a write took {:?}", writer.worst.get());
    cluster.world.heal();
    heal(&cluster, &writer, Duration::from_secs(900));
    writer.finish(&cluster);
}

/// What breaks a disk.
#[derive(Clone, Copy, Debug)]
enum Break {
    Writes,
    Syncs,
    Deleted,
}

/// Two disks on each node; one of them breaks: its targets go offline, and no others.
#[test]
fn a_broken_disk_takes_out_its_own_targets_only() {
    let shape = Shape { disks: 2, replicas: 2, chains: 6, stripe: 6, ..SMALL };
    for (seed, how) in [(21, Break::Writes), (22, Break::Syncs), (23, Break::Deleted)] {
        let (cluster, writer) = start(seed, shape);
        let b = &cluster.storages[1];
        let disk = b.node.disk("/disk0");
        let faults = DiskFaults::default();
        match how {
            Break::Writes => {
                disk.set_faults(DiskFaults { write_errors_per_million: 1_000_000, ..faults })
            }
            Break::Syncs => {
                disk.set_faults(DiskFaults { sync_errors_per_million: 1_000_000, ..faults })
            }
            Break::Deleted => disk.wipe(),
        }
        if let Break::Syncs = how {
            writer.flushes.set(true);
        }
        // Targets of that disk: offline; of the other one: serving.
        let apart = |info: &RoutingInfo| {
            let on = |index| {
                let mine = info
                    .targets
                    .values()
                    .filter(move |t| t.node == b.id() && t.disk_index == index);
                mine.map(|t| {
                    let members = info.chains[&t.chain].members.iter();
                    let m = members.filter(|m| m.target == t.id).map(|m| m.state).next();
                    m == Some(PublicState::Serving)
                })
            };
            on(0).count() > 0 && on(0).all(|s| !s) && on(1).count() > 0 && on(1).all(|s| s)
        };
        assert!(
            cluster.world.run_until(Duration::from_secs(60), || apart(&writer.routing())),
            "{how:?}: {:?}",
            writer.routing().chains
        );
        let before = writer.done.get();
        assert!(
            cluster.world.run_until(Duration::from_secs(60), || writer.done.get() > before + 200),
            "{how:?}: the rest goes on"
        );
        assert!(apart(&writer.routing()));
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
        writer.finish(&cluster);
    }
}

/// The scrub states of one node, after a pass that is started now if `passes` is none, or when all targets had so many.
async fn scrubbed(rt: &Rt, client: &Client, node: NodeId) -> Result<Vec<ScrubState>> {
    let before: ScrubReply = client.node_call(node, method::SCRUB, &Scrub { now: true }).await?;
    loop {
        rt.sleep(Duration::from_millis(100)).await;
        let now: ScrubReply = client.node_call(node, method::SCRUB, &Scrub { now: false }).await?;
        let mut both = before.targets.iter().zip(&now.targets);
        if both.all(|(a, b)| b.passes > a.passes) {
            return Ok(now.targets);
        }
    }
}

/// Everything on one disk is damaged: readers never see it, and what they touch is repaired; the scrub repairs the rest.
#[test]
fn damage_at_rest_is_read_around_and_repaired() {
    let (cluster, writer) = start(31, SMALL);
    assert!(cluster.world.run_until(Duration::from_secs(60), || writer.done.get() > 800));
    writer.stop.set(true);
    assert!(cluster.world.run_until(Duration::from_secs(60), || writer.ended.get()));
    assert!(cluster.storages[1].damage_chunks() > 100);
    let held = writer.held.borrow().clone();
    let node = cluster.storages[1].id();
    let limit = Duration::from_secs(600);
    let states =
        cluster.with_client(&cluster.clients[0].clone(), limit, move |rt, client| async move {
            let (file, _) = open_or_make(&client, "written").await?;
            for round in 0..3 {
                for (place, fill) in held.iter().enumerate() {
                    let Some(fill) = fill else { continue };
                    let (result, buf) = file.read(place as u64 * STRIDE, rt.alloc(WRITE)).await;
                    result?;
                    assert!(buf.iter().all(|b| b == fill), "round {round}, place {place}");
                }
            }
            rt.sleep(Duration::from_secs(10)).await;
            let by_reads: ScrubReply =
                client.node_call(node, method::SCRUB, &Scrub::default()).await?;
            let first = scrubbed(&rt, &client, node).await?;
            let second = scrubbed(&rt, &client, node).await?;
            Ok((by_reads.targets, first, second))
        });
    let (by_reads, first, second) = states.expect("all was read");
    let sum = |list: &[ScrubState], f: fn(&ScrubState) -> u64| list.iter().map(f).sum::<u64>();
    assert!(sum(&by_reads, |s| s.repaired) > 0, "reads repair: {by_reads:?}");
    assert!(sum(&first, |s| s.found) > 0, "the scrub finds what was not read: {first:?}");
    assert_eq!(sum(&first, |s| s.failed), 0, "{first:?}");
    assert_eq!(sum(&second, |s| s.found), sum(&first, |s| s.found), "nothing is left: {second:?}");
    assert!(sum(&second, |s| s.repaired) >= 32, "every chunk of the disk: {second:?}");
}

/// The only replica that serves reads wrong bits, while others are brought up to date and writes go on: what cannot be read is not
/// forwarded as something else.
#[test]
fn a_source_that_reads_wrongly_hands_on_nothing_old() {
    for seed in 41..45 {
        let (cluster, writer) = start(seed, SMALL);
        let [source, b, c] = [0, 1, 2].map(|i| cluster.storages[i].clone());
        cluster.crash(&b, false);
        cluster.crash(&c, false);
        let alone = || {
            let info = writer.routing();
            serving_on(&info, b.id()) + serving_on(&info, c.id()) == 0
        };
        assert!(cluster.world.run_until(Duration::from_secs(30), alone));
        let before = writer.done.get();
        assert!(
            cluster.world.run_until(Duration::from_secs(30), || writer.done.get() > before + 300)
        );
        let wrong = DiskFaults { read_flips_per_million: 400_000, ..DiskFaults::default() };
        source.node.disk("/disk0").set_faults(wrong);
        cluster.restart(&b);
        cluster.restart(&c);
        cluster.world.run_until(Duration::from_secs(8), || false);
        source.node.disk("/disk0").set_faults(DiskFaults::default());
        // Its store may have been taken out meanwhile.
        cluster.crash(&source, false);
        cluster.restart(&source);
        heal(&cluster, &writer, Duration::from_secs(300));
        writer.finish(&cluster);
    }
}
