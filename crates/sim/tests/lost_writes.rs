//! All replicas of a chain lose their power between a write that was acknowledged and its fsync, in the shipped services: the fsync says so, or the bytes are there.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::workload::{caller, is_told_of_loss, open_or_make};
use glowfs_types::wire::meta::{ROOT_INODE, SetAttr, SetXattr};
use glowfs_types::{RequestId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(600);
const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 2, stripe: 2, clients: 1, ..Shape::SINGLE };
const CHUNK: u64 = CHUNK_BYTES as u64;
/// Bytes of a write, and how many of them each chain gets.
const BYTES: usize = 4096;
const WRITES: u64 = 8;

/// How the storage nodes end between the writes and the fsync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Power,
    Kill,
    /// All but one are killed, and that one loses its power.
    Mixed,
    /// All but one lose their power one after the other, and the last one goes on.
    OneStays,
}

struct Open {
    rt: Rt,
    client: Rc<Client>,
    file: Rc<OpenFile>,
}

/// A cluster, and a client whose file lives through whatever happens to it.
struct Lab {
    cluster: Cluster,
    open: Rc<Open>,
}

impl Lab {
    fn start(seed: u64, durable: bool) -> Self {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let node = cluster.clients[0].clone();
        let (rt, config) = (node.rt(), cluster.client_config());
        let opened: Rc<RefCell<Option<Rc<Open>>>> = Rc::default();
        let out = opened.clone();
        node.rt().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("a client");
            if durable {
                let (name, value) = (b"glowfs.layout".to_vec().into(), b"durability=disk".to_vec());
                let (caller, request, inode) = (caller(&client), RequestId(0), ROOT_INODE);
                let q = SetXattr { caller, request, inode, name, value, flags: 0 };
                client.setxattr(q).await.expect("a layout");
            }
            let (file, _) = open_or_make(&client, "f").await.expect("made");
            *out.borrow_mut() = Some(Rc::new(Open { rt, client, file }));
        });
        assert!(cluster.run_until(LIMIT, || opened.borrow().is_some()), "no client");
        let open = opened.borrow().clone().expect("opened");
        Self { cluster, open }
    }
    /// Runs something with the open file.
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Rc<Open>) -> F,
    ) -> T {
        let (work, done) = (work(self.open.clone()), Rc::new(Cell::new(None)));
        let out = done.clone();
        self.open.rt.spawn_detached(async move { out.set(Some(work.await)) });
        let mut got = None;
        let ended = self.cluster.run_until(LIMIT, || {
            got = done.take();
            got.is_some()
        });
        assert!(ended, "it hangs");
        got.expect("ended")
    }
    fn write(&self, byte: u8) {
        self.run(move |open| async move { write(&open.file, byte).await }).expect("written");
    }
    fn flush(&self) -> bool {
        let flushed = self.run(|open| async move { open.file.flush().await });
        is_told_of_loss(flushed).expect("flushed")
    }
    /// How many of the writes of this byte are there.
    fn there(&self, byte: u8) -> u64 {
        self.run(move |open| async move { count(&open, byte).await }).expect("read")
    }
    fn end(&self, how: End) {
        let (cluster, all) = (&self.cluster, &self.cluster.storages);
        for (i, s) in all.iter().enumerate() {
            let last = i + 1 == all.len();
            match how {
                End::OneStays if last => continue,
                End::Mixed => cluster.crash(s, last),
                _ => cluster.crash(s, how != End::Kill),
            }
            if how == End::OneStays {
                cluster.run_for(Duration::from_secs(10));
            }
        }
        cluster.run_for(Duration::from_secs(1));
        all.iter().for_each(|s| cluster.restart(s));
        cluster.run_for(Duration::from_secs(30));
    }
}

fn places() -> impl Iterator<Item = u64> {
    (0..2 * WRITES).map(|i| i * CHUNK)
}

async fn write(file: &OpenFile, byte: u8) -> Result<()> {
    for at in places() {
        file.write(at, Buf::from_vec(vec![byte; BYTES])).await?;
    }
    Ok(())
}

async fn count(open: &Open, byte: u8) -> Result<u64> {
    let mut there = 0;
    for at in places() {
        let (read, buf) = open.file.read(at, open.rt.alloc(BYTES)).await;
        read?;
        there += u64::from(buf.iter().all(|b| *b == byte));
    }
    Ok(there)
}

#[test]
fn an_fsync_tells_that_writes_are_gone_or_they_are_there() {
    let (mut told, mut gone) = (0, 0);
    for seed in 70..76 {
        let lab = Lab::start(seed, false);
        lab.write(1);
        assert!(!lab.flush(), "seed {seed}: nothing is lost yet");
        lab.write(2);
        lab.end(End::Power);
        let (lost, there) = (lab.flush(), lab.there(2));
        assert!(lost || there == 2 * WRITES, "seed {seed}: {there} writes, and nothing is told");
        assert_eq!(there + lab.there(1), 2 * WRITES, "seed {seed}: flushed bytes are gone");
        told += u64::from(lost);
        gone += u64::from(there < 2 * WRITES);
        assert!(!lab.flush(), "seed {seed}: told once");
        lab.write(3);
        assert!(!lab.flush(), "seed {seed}: written since");
        assert_eq!(lab.there(3), 2 * WRITES);
        // What was flushed since the loss is not lost by it, nor by another one.
        lab.end(End::Power);
        assert!(!lab.flush(), "seed {seed}: it was flushed");
        assert_eq!(lab.there(3), 2 * WRITES);
    }
    assert!(told > 0 && gone > 0, "told {told} times, gone {gone} times: nothing is shown");
}

/// Where one replica keeps everything nobody is told of a loss.
#[test]
fn an_fsync_tells_of_no_loss_where_none_is() {
    for (seed, how) in (80..).zip([End::Kill, End::Mixed, End::OneStays]) {
        let lab = Lab::start(seed, false);
        lab.write(2);
        lab.end(how);
        assert!(!lab.flush(), "{how:?}");
        assert_eq!(lab.there(2), 2 * WRITES, "{how:?}");
    }
}

#[test]
fn what_is_durable_when_it_is_acknowledged_is_never_lost() {
    let lab = Lab::start(84, true);
    lab.write(2);
    lab.end(End::Power);
    assert!(!lab.flush());
    assert_eq!(lab.there(2), 2 * WRITES);
}

/// The file is cut and made longer again; what was cut off may come back with the loss of power, and an fsync does not hide that either.
#[test]
fn an_fsync_tells_of_a_truncate_that_is_gone() {
    let (mut told, mut back) = (0, 0);
    for seed in 90..94 {
        let lab = Lab::start(seed, false);
        lab.write(1);
        assert!(!lab.flush());
        lab.run(|open| async move {
            for len in [CHUNK + 100, 2 * WRITES * CHUNK] {
                let (caller, request) = (caller(&open.client), RequestId(0));
                let (inode, session) = (open.file.inode(), open.file.session());
                let len = Some(len);
                let q = SetAttr { caller, request, inode, len, session, ..SetAttr::default() };
                let attr = open.client.setattr(q).await.expect("cut").attr;
                open.file.update_attr(&attr);
            }
        });
        lab.end(End::Power);
        let (lost, there) = (lab.flush(), lab.there(1));
        assert!(there >= 1, "seed {seed}: flushed bytes are gone");
        assert!(lost || there == 1, "seed {seed}: {there} writes came back, and nothing is told");
        told += u64::from(lost);
        back += u64::from(there > 1);
    }
    assert!(told > 0 && back > 0, "told {told} times, back {back} times: nothing is shown");
}
