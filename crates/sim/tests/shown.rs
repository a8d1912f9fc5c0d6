//! What not all replicas have stored, in the shipped services: nobody reads it from those that have, and it is read as soon as they all do.

use glowfs_client::Client;
use glowfs_net::{Connector, NoCalls};
use glowfs_rt::{Buf, Duration, Instant, Rt};
use glowfs_sim::cluster::harness::{
    CHUNK_BYTES, CLUSTER, Cluster, DISK, SERVICE_TOKEN, Service, Shape, all_serve,
};
use glowfs_sim::cluster::workload::{open_or_make, report};
use glowfs_sim::world::DiskFaults;
use glowfs_telemetry::Registry;
use glowfs_types::layout::splitmix64;
use glowfs_types::routing::{ChainInfo, Role};
use glowfs_types::wire::data::{QueryExtent, QueryExtentReply};
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::method;
use glowfs_types::{ChunkId, DataId, NodeId, Result, Status};
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
        let disk = storage(&cluster, head).node.disk(DISK);
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

/// A disk that takes that long for every operation, and a little more.
fn slower(least: Duration) -> DiskFaults {
    let least = least.as_nanos() as u64;
    DiskFaults {
        slower_least_ns: least,
        slower_most_ns: least + least / 10,
        ..DiskFaults::default()
    }
}

fn storage(cluster: &Cluster, id: NodeId) -> &Service {
    cluster.storages.iter().find(|s| s.id() == id).expect("a storage")
}

/// Writers of each chunk, each of a block of its own.
const WRITERS: usize = 2;
/// Readers of each chunk: one of them waits for what an earlier version was, one for a later one.
const READERS: usize = 2;
const BLOCK: usize = 4096;
/// Chunks that are written all the time: some of them are read at the head first, some at another member.
const CHUNKS: usize = 6;
/// One more is written once.
const STILL: usize = CHUNKS;
/// No read of them takes that long. (Now and then one takes as long as a question is kept, 500 ms: G245.)
const WORST: Duration = SOON;
/// How long they are written and read.
const FOR: Duration = Duration::from_secs(10);

fn offset(chunk: usize, writer: usize) -> u64 {
    chunk as u64 * u64::from(CHUNK_BYTES) + (writer * BLOCK) as u64
}
fn block(n: u64) -> Buf {
    Buf::from_vec(n.to_le_bytes().repeat(BLOCK / 8))
}

/// What one reader has read of a chunk.
#[derive(Default)]
struct Seen {
    took: RefCell<Vec<Duration>>,
    newest: RefCell<[u64; WRITERS]>,
    /// How often it was another content.
    changes: Cell<u64>,
    /// It is the head that it asks first.
    of_head: Cell<bool>,
}

impl Seen {
    fn begin(&self) {
        self.took.take();
        self.changes.set(0);
    }
    /// What stands in that chunk now.
    fn note(&self, chunk: usize, bytes: &[u8]) {
        let mut newest = self.newest.borrow_mut();
        let before = *newest;
        for (writer, newest) in newest.iter_mut().enumerate() {
            let word = bytes.get(writer * BLOCK..).and_then(|b| b.first_chunk());
            let n = word.map_or(0, |word| u64::from_le_bytes(*word));
            assert!(n >= *newest, "chunk {chunk}: {n} of writer {writer} after {newest}");
            *newest = n;
        }
        self.changes.set(self.changes.get() + u64::from(before != *newest));
    }
    /// The median and the worst read, and how many there were.
    fn times(&self) -> (Duration, Duration, usize) {
        let mut took = self.took.take();
        took.sort();
        let median = took.get(took.len() / 2).copied().unwrap_or_default();
        (median, took.last().copied().unwrap_or_default(), took.len())
    }
}

/// Writers and readers of all chunks.
struct Busy {
    stop: Cell<bool>,
    writes: Cell<u64>,
    seen: [[Seen; READERS]; CHUNKS + 1],
}

impl Busy {
    fn start(cluster: &Cluster) -> Rc<Self> {
        let (stop, writes) = Default::default();
        let b = Rc::new(Self { stop, writes, seen: Default::default() });
        for writer in 0..WRITERS {
            let (me, rt) = (b.clone(), cluster.clients[2 + writer].rt());
            let config = cluster.client_config();
            rt.clone().spawn_detached(async move {
                let client = Client::connect(&rt, config).await.expect("a client");
                for chunk in 0..=STILL {
                    rt.spawn_detached(me.clone().write(rt.clone(), client.clone(), chunk, writer));
                }
            });
        }
        let (me, rt, config) = (b.clone(), cluster.clients[1].rt(), cluster.client_config());
        rt.clone().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("a client");
            for place in (0..=STILL).flat_map(|chunk| (0..READERS).map(move |r| (chunk, r))) {
                rt.spawn_detached(me.clone().read(rt.clone(), client.clone(), place));
            }
        });
        b
    }
    async fn write(self: Rc<Self>, rt: Rt, client: Rc<Client>, chunk: usize, writer: usize) {
        let (file, _) = open_or_make(&client, "busy").await.expect("made");
        for n in 1.. {
            file.write(offset(chunk, writer), block(n)).await.expect("written");
            self.writes.set(self.writes.get() + 1);
            if self.stop.get() || chunk == STILL {
                return;
            }
            rt.sleep(Duration::from_millis(1)).await;
        }
    }
    async fn read(self: Rc<Self>, rt: Rt, client: Rc<Client>, (chunk, reader): (usize, usize)) {
        let (file, _) = open_or_make(&client, "busy").await.expect("made");
        let seen = &self.seen[chunk][reader];
        // As a client spreads its reads over the members (`client/routes.rs: readers`).
        let turn = splitmix64(file.data().0 ^ (chunk as u64).rotate_left(32));
        seen.of_head.set(turn.is_multiple_of(SHAPE.replicas as u64));
        while !self.stop.get() {
            let began = rt.now();
            let (read, buf) = file.read(offset(chunk, 0), rt.alloc(WRITERS * BLOCK)).await;
            let read = read.expect("no read fails");
            seen.took.borrow_mut().push(rt.now().since(began));
            seen.note(chunk, &buf[..read]);
            rt.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A counter of all storage services of this process, also of other tests.
fn count(name: &str) -> u64 {
    let text = Registry::global().text();
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).expect("it is counted")
}

/// A reader waits for the word on what it has read, whatever came since: behind a slower disk there may never be a moment in which nothing waits for one.
#[test]
fn chunks_that_are_written_all_the_time_are_read_behind_a_slower_disk() {
    for (seed, slow_ms) in [(81, 0), (82, 5), (83, 30)] {
        let cluster = Cluster::start(seed, Shape { clients: 4, ..SHAPE });
        cluster.bootstrap().expect("a cluster");
        let limit = Duration::from_secs(60);
        let writer = cluster.clients[0].clone();
        let head = cluster.with_client(&writer, limit, |_, c| write(c, 1)).expect("written");
        let busy = Busy::start(&cluster);
        let seen = || busy.seen.iter().flatten();
        let all_read = || seen().all(|s| s.newest.borrow().iter().all(|n| *n > 0));
        assert!(cluster.run_until(limit, all_read), "seed {seed}");
        let disk = storage(&cluster, head).node.disk(DISK);
        disk.set_faults(slower(Duration::from_millis(slow_ms)));
        cluster.run_for(Duration::from_secs(1));
        seen().for_each(Seen::begin);
        let (asked, waited) =
            ("glowfs_storage_vouches_total", "glowfs_storage_reads_unvouched_total");
        let (before, writes) = ((count(asked), count(waited)), busy.writes.get());
        cluster.run_for(FOR);
        busy.stop.set(true);
        let writes = busy.writes.get() - writes;
        println!("seed {seed}: a head that takes {slow_ms} ms longer, {writes} writes");
        let (asked, waited) = (count(asked) - before.0, count(waited) - before.1);
        println!("  (with other tests beside it:) {asked} questions, {waited} reads waited");
        assert!(waited > 0, "seed {seed}: no read had to wait for a word");
        for (n, seen) in seen().enumerate() {
            let (chunk, reader) = (n / READERS, n % READERS);
            let ((median, worst, reads), changes) = (seen.times(), seen.changes.get());
            let of_head = seen.of_head.get();
            println!(
                "  chunk {chunk} (head: {of_head}): {reads} reads of {reader}, {changes} of something new, {median:?}, at most {worst:?}"
            );
            assert!(chunk == STILL || changes >= 15, "seed {seed}: chunk {chunk} is hardly read");
            // Some operations of that disk: a chunk that is written by all has some under way. (At the head a read waits for a moment in which it has none, as ever.)
            let some = Duration::from_millis(5 + 3 * slow_ms);
            assert!(
                of_head || median < some,
                "seed {seed}: chunk {chunk}: half of the reads took {median:?}"
            );
            assert!(worst < WORST, "seed {seed}: chunk {chunk}: a read took {worst:?}");
        }
    }
}

/// Asks a storage service for the last chunk of a data id, whatever it is of the chain.
async fn extent(rt: &Rt, at: String, chain: &ChainInfo, data: DataId) -> Result<QueryExtentReply> {
    let hello = Hello {
        cluster: CLUSTER.parse().expect("an id"),
        token: SERVICE_TOKEN.into(),
        role: Some(Role::Meta),
        node: NodeId(99),
        ..Hello::default()
    };
    let connector = Connector::new(rt, hello, Rc::new(NoCalls));
    let conn = connector.connect(&[at]).await?;
    let chunk = ChunkId { volume: glowfs_types::VolumeId(1), data, index: 0 };
    let ask = QueryExtent { data: chunk, chain: chain.id, chain_version: chain.version };
    conn.call_msg(method::QUERY_EXTENT, &ask, Duration::from_secs(5)).await
}

/// A length is told as late as what is behind it: while it waits for the word on one chunk, the next one may come.
#[test]
fn a_length_holds_nothing_that_the_head_has_not_stored() {
    for seed in [91, 92, 93] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let limit = Duration::from_secs(60);
        let client = cluster.clients[0].clone();
        let head = cluster.with_client(&client, limit, |_, c| write(c, 1)).expect("written");
        let disk = storage(&cluster, head).node.disk(DISK);
        let places: Vec<_> =
            cluster.storages.iter().map(|s| (s.id(), Cluster::address(s))).collect();
        let answers = cluster.with_client(&client, limit, move |rt, client| async move {
            let (file, _) = open_or_make(&client, "grows").await?;
            disk.set_faults(slower(Duration::from_millis(150)));
            let chain = client.routing().chains.values().next().expect("a chain").clone();
            let tail = chain.members.last().expect("a tail").node;
            let at = places.iter().find(|p| p.0 == tail).expect("its node").1.clone();
            let acked: Rc<Cell<Option<Instant>>> = Rc::default();
            for chunk in 0..2 {
                let (file, rt, acked) = (file.clone(), rt.clone(), acked.clone());
                rt.clone().spawn_detached(async move {
                    rt.sleep(Duration::from_millis(75 * chunk)).await;
                    file.write(offset(chunk as usize, 0), block(1)).await.expect("written");
                    acked.set((chunk == 1).then(|| rt.now()));
                });
            }
            let mut answers = Vec::new();
            let end = rt.now() + Duration::from_secs(2);
            while rt.now() < end {
                let reply = extent(&rt, at.clone(), &chain, file.data()).await;
                match reply {
                    Ok(reply) => answers.push((rt.now(), reply.last.map(|(index, _)| index))),
                    Err(e) => assert_eq!(e.status, Status::Pending, "{e}"),
                }
                rt.sleep(Duration::from_millis(5)).await;
            }
            let acked = acked.get().expect("the second one is written");
            disk.set_faults(DiskFaults::default());
            client.close_session(report(&client, &file, false)).await?;
            Ok((acked, answers))
        });
        let (acked, answers) = answers.expect("written and asked");
        let first = answers.iter().find(|(_, last)| *last == Some(1)).expect("it is there").0;
        println!("seed {seed}: acknowledged at {acked:?}, in a length at {first:?}");
        // The acknowledgement and the word may be on their way for a little.
        assert!(first + Duration::from_millis(50) >= acked, "seed {seed}: {first:?}, {acked:?}");
    }
}

/// Waits until all members serve.
fn wait_for_all(cluster: &Cluster) {
    let all = |rt: Rt, client: Rc<Client>| async move {
        while !all_serve(&client.routing(), SHAPE) {
            rt.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    let client = cluster.clients[0].clone();
    cluster.with_client(&client, Duration::from_secs(120), all).expect("all are back");
}

/// The members behind one that is stopped in order may show what it acknowledged just before, while its stores are closed.
#[test]
fn what_was_written_before_a_head_is_stopped_is_read_at_once() {
    let cluster = Cluster::start(96, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let limit = Duration::from_secs(60);
    let client = cluster.clients[0].clone();
    let head = cluster.with_client(&client, limit, |_, c| write(c, 1)).expect("written");
    let first = storage(&cluster, head).clone();
    // Its process in our hands, that it can be stopped; who returns is the last of its chain, so the others have to go, too.
    cluster.crash(&first, false);
    let (go, done): (Rc<Cell<bool>>, Rc<Cell<bool>>) = Default::default();
    let (rt, config) = (first.node.restart(), cluster.storage_config(&first));
    let (own, node, stop, stopped) = (rt.clone(), first.node.clone(), go.clone(), done.clone());
    rt.spawn_detached(async move {
        let running = glowfs_storage::start(&own, config).await.expect("starts");
        while !stop.get() {
            own.sleep(Duration::from_millis(1)).await;
        }
        // Its stores are not closed before their bound.
        node.disk(DISK).set_faults(DiskFaults { hangs: true, ..DiskFaults::default() });
        running.stop().await.expect_err("a store was not closed");
        stopped.set(true);
    });
    wait_for_all(&cluster);
    let head_now = |cluster: &Cluster| {
        cluster.with_client(&client, limit, |_, c| write(c, 1)).expect("written")
    };
    while head_now(&cluster) != head {
        let other = storage(&cluster, head_now(&cluster)).clone();
        cluster.crash(&other, false);
        cluster.restart(&other);
        wait_for_all(&cluster);
    }
    let took = cluster.with_client(&client, limit, move |rt, client| async move {
        let (file, _) = open_or_make(&client, "stops").await?;
        let writes = (0..CHUNKS).map(|chunk| file.write(offset(chunk, 0), block(1)));
        for written in glowfs_rt::sync::join_all(writes).await {
            written?;
        }
        go.set(true);
        let began = rt.now();
        rt.sleep(Duration::from_millis(5)).await;
        let reads = (0..CHUNKS).map(|chunk| file.read(offset(chunk, 0), rt.alloc(BLOCK)));
        for (read, _) in glowfs_rt::sync::join_all(reads).await {
            read?;
        }
        Ok((rt.now().since(began), done.get()))
    });
    let (took, stopped) = took.expect("written and read");
    println!("read after {took:?}");
    assert!(!stopped && took < SOON, "read after {took:?}");
}
