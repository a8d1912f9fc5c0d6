//! Small files whose contents are with the metadata, when something goes wrong: what was given up, and what could not be put into chunks.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, DISK, Shape};
use glowfs_sim::cluster::small;
use glowfs_sim::cluster::workload::{caller, open_or_make_in, report};
use glowfs_sim::world::{DISK_BYTES, DiskFaults};
use glowfs_types::layout::INLINE_BYTES_MAX;
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::lock::{Lock, LockReply, LockWish};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(600);

struct Lab {
    cluster: Cluster,
    client: Rc<Client>,
}

impl Lab {
    /// One client, which gives a call up sooner than others do.
    fn new(seed: u64, metas: usize) -> Self {
        Self::tuned(seed, metas, glowfs_meta::Tuning::default())
    }
    fn tuned(seed: u64, metas: usize, tuning: glowfs_meta::Tuning) -> Self {
        Self::shaped(seed, Shape { metas, ..Shape::SINGLE }, tuning)
    }
    fn shaped(seed: u64, shape: Shape, tuning: glowfs_meta::Tuning) -> Self {
        Self::of(Cluster::start_tuned(seed, shape, tuning))
    }
    fn of(cluster: Cluster) -> Self {
        cluster.bootstrap().expect("a cluster");
        let node = &cluster.clients[0];
        let (rt, mut config) = (node.rt(), cluster.client_config());
        (config.meta_attempt, config.meta_total) = (Duration::from_secs(1), Duration::from_secs(4));
        let client = async move { Client::connect(&rt, config).await.expect("a client") };
        let client = cluster.world.run(node, LIMIT, client).expect("in time");
        let lab = Self { cluster, client };
        lab.run(|c| async move { small::prepare(&c).await.expect("a directory of small files") });
        lab
    }
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Rc<Client>) -> F,
    ) -> T {
        let work = work(self.client.clone());
        self.cluster.world.run(&self.cluster.clients[0], LIMIT, work).expect("in time")
    }
    fn open(&self) -> Rc<OpenFile> {
        self.run(|c| async move {
            let dir = small::dir(&c).await.expect("found");
            open_or_make_in(&c, dir, "f").await.expect("open").0
        })
    }
    /// Another client, and the same file open there.
    fn second(&self) -> (Rc<Client>, Rc<OpenFile>) {
        let config = self.cluster.client_config();
        self.run(|c| async move {
            let second = Client::connect(c.rt(), config).await.expect("a second client");
            let dir = small::dir(&second).await.expect("found");
            let file = open_or_make_in(&second, dir, "f").await.expect("open").0;
            (second, file)
        })
    }
    fn write(&self, file: &Rc<OpenFile>, offset: u64, byte: u8) -> Result<()> {
        let file = file.clone();
        self.run(|_| async move { file.write(offset, Buf::from_vec(vec![byte; 512])).await })
    }
    fn first_byte(&self, file: &Rc<OpenFile>) -> u8 {
        let file = file.clone();
        self.run(|c| async move {
            let (result, buf) = file.read(0, c.rt().alloc(512)).await;
            assert_eq!(result.expect("read"), 512);
            assert!(buf.iter().all(|b| *b == buf[0]), "whole");
            buf[0]
        })
    }
}

/// What changes the file after a write of which nobody heard any more.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Next {
    /// Another write through the same open file.
    Write,
    /// One through another.
    WriteThroughAnother,
    /// A truncate.
    Cut,
    /// Another client, which gets the lock that this one gives back.
    Unlock,
    /// Another client, which gets the right to append that this one gives back.
    GiveRight,
}

/// What a client asks of the lock on a file.
async fn lock(client: &Client, inode: InodeId, wish: LockWish) -> Result<LockReply> {
    let request = RequestId(client.rt().random_u128());
    let (caller, end) = (caller(client), u64::MAX);
    client.lock(Lock { caller, request, inode, owner: 1, wish, end, ..Lock::default() }).await
}

/// What a client asks of the right to append to a file.
async fn append(client: &Client, inode: InodeId, release: bool) -> Result<AppendReply> {
    client.append(Append { caller: caller(client), inode, grant: RequestId(9), release }).await
}

/// A service that has lost the engine keeps a write in work, while its client gives it up and goes on with another service. When the first one
/// reaches the engine again, the write must not come over what was written since.
#[test]
fn a_write_that_was_given_up_does_not_take_effect_later() {
    for next in [Next::Write, Next::WriteThroughAnother, Next::Cut, Next::Unlock, Next::GiveRight] {
        let lab = Lab::new(61, 2);
        let (world, me) = (&lab.cluster.world, &lab.cluster.clients[0]);
        let (engine, other) = (&lab.cluster.metas[0].node, &lab.cluster.metas[1].node);
        let file = lab.open();
        lab.write(&file, 0, 1).expect("written");
        let another = lab.open();
        let (second, theirs) = lab.second();
        let inode = file.inode();
        lab.run(move |c| async move {
            match next {
                Next::Unlock => drop(lock(&c, inode, LockWish::Exclusive).await.expect("locked")),
                Next::GiveRight => drop(append(&c, inode, false).await.expect("granted")),
                _ => {}
            }
        });
        // The client reaches the one service only, and that one does not reach the engine.
        for (a, b) in [(me, engine), (engine, other)] {
            world.cut(a, b);
            world.cut(b, a);
            world.drop_connections(a, b);
        }
        let lost = lab.write(&file, 0, 2);
        assert!(lost.is_err(), "{next:?}: {lost:?}");
        // From here on it reaches the other one only.
        world.mend(me, engine);
        world.mend(engine, me);
        world.cut(me, other);
        world.cut(other, me);
        world.drop_connections(me, other);
        match next {
            Next::Write => lab.write(&file, 0, 3).expect("written"),
            Next::WriteThroughAnother => lab.write(&another, 0, 3).expect("written"),
            Next::Cut => {
                let inode = file.inode();
                lab.run(|c| async move {
                    let cut =
                        SetAttr { caller: caller(&c), inode, len: Some(0), ..SetAttr::default() };
                    c.setattr(cut).await.expect("cut");
                });
                lab.write(&another, 0, 3).expect("written");
            }
            Next::Unlock | Next::GiveRight => lab.run(move |c| async move {
                if next == Next::Unlock {
                    lock(&c, inode, LockWish::Release).await.expect("given back");
                    let got = lock(&second, inode, LockWish::Exclusive).await.expect("asked");
                    assert!(got.holder.is_none(), "{got:?}");
                } else {
                    append(&c, inode, true).await.expect("given back");
                    append(&second, inode, false).await.expect("granted").attr.expect("granted");
                }
                theirs.write(0, Buf::from_vec(vec![3; 512])).await.expect("written");
            }),
        }
        world.heal();
        lab.cluster.run_for(Duration::from_secs(30));
        assert_eq!(lab.first_byte(&another), 3, "{next:?}");
        // The file is as good as any other.
        lab.write(&file, 0, 4).expect("written");
        assert_eq!(lab.first_byte(&file), 4);
    }
}

/// A disk without room for the chunks of a file that has grown: what was there is changed where it is, as if nobody had tried.
#[test]
fn a_file_that_cannot_be_put_into_chunks_is_written_where_it_is() {
    let lab = Lab::new(62, 1);
    let file = lab.open();
    lab.write(&file, 0, 1).expect("written");
    let disk = lab.cluster.storages[0].node.disk(DISK);
    disk.set_bytes(disk.used_bytes());
    // What a disk has is known for a moment (200 ms) without a look.
    lab.cluster.run_for(Duration::from_secs(1));
    let behind = u64::from(INLINE_BYTES_MAX);
    let refused = lab.write(&file, behind, 2).expect_err("no room");
    assert_eq!(refused.status, Status::NoSpace, "{refused}");
    let began = lab.cluster.world.now();
    for byte in 3..6 {
        lab.write(&file, 0, byte).expect("written where it is");
        assert_eq!(lab.first_byte(&file), byte);
    }
    let took = lab.cluster.world.now() - began;
    assert!(took < Duration::from_secs(1), "nobody waits for who gave up: {took:?}");
    assert!(lab.write(&file, behind, 2).is_err(), "still no room");
    disk.set_bytes(DISK_BYTES);
    lab.cluster.run_for(Duration::from_secs(5));
    lab.write(&file, behind, 7).expect("there is room again");
    assert_eq!(lab.first_byte(&file), 5);
    assert!(!file.is_inline());
    lab.run(|c| async move { c.close_session(report(&c, &file, true)).await.expect("closed") });
}

/// Contents beyond what the engine is to hold go into chunks, those of new files and those that grow; and come back when others are removed.
#[test]
fn what_is_kept_with_the_metadata_has_a_bound() {
    const MOST: u64 = 64 << 10;
    const BYTES: usize = 8 << 10;
    let lab =
        Lab::tuned(63, 1, glowfs_meta::Tuning { contents_bytes_max: MOST, ..Default::default() });
    let write = |n: usize| {
        let inline = lab.run(move |c| async move {
            let dir = small::dir(&c).await.expect("found");
            let file = open_or_make_in(&c, dir, &format!("f{n}")).await.expect("open").0;
            file.write(0, Buf::from_vec(vec![n as u8; BYTES])).await.expect("written");
            c.close_session(report(&c, &file, false)).await.expect("closed");
            file.is_inline()
        });
        lab.cluster.run_for(Duration::from_secs(3));
        inline
    };
    let inline: Vec<bool> = (0..12).map(write).collect();
    assert_eq!(inline.iter().filter(|i| **i).count() as u64, MOST / BYTES as u64, "{inline:?}");
    assert!(inline.is_sorted_by(|a, b| a >= b), "the first ones: {inline:?}");
    // One that is there grows into chunks, which makes room for another.
    let grown = lab.run(|c| async move {
        let dir = small::dir(&c).await.expect("found");
        let file = open_or_make_in(&c, dir, "f0").await.expect("open").0;
        file.write(BYTES as u64, Buf::from_vec(vec![1; 10])).await.expect("written");
        c.close_session(report(&c, &file, false)).await.expect("closed");
        !file.is_inline()
    });
    assert!(grown, "with chunks");
    lab.cluster.run_for(Duration::from_secs(3));
    assert!(write(12) && !write(13));
}

/// Who may write to chunks from now on, and is told that each write is durable, must not lose them with what has put the file there.
#[test]
fn durable_writes_build_on_a_move_into_chunks_that_is_durable() {
    // What a disk has not flushed it keeps or loses as chance has it.
    (65..75).for_each(write_and_lose_power);
}

fn write_and_lose_power(seed: u64) {
    // Changes of metadata are flushed in the background.
    let lab = Lab::of(Cluster::start_as_told(seed, Shape::SINGLE, Default::default()));
    lab.run(|c| async move {
        let (caller, inode) = (caller(&c), small::dir(&c).await.expect("found"));
        let value = format!("durability=disk inline_bytes={INLINE_BYTES_MAX}").into_bytes();
        let name = b"glowfs.layout".to_vec().into();
        let request = RequestId(0);
        let set = SetXattr { caller, request, inode, name, value, flags: 0 };
        c.setxattr(set).await.expect("a layout");
    });
    let file = lab.open();
    // The file is on disk, and with the metadata.
    lab.cluster.run_for(Duration::from_secs(1));
    assert!(file.is_inline());
    let behind = u64::from(INLINE_BYTES_MAX);
    lab.write(&file, behind, 9).expect("written");
    let meta = &lab.cluster.metas[0];
    lab.cluster.crash(meta, true);
    lab.cluster.restart(meta);
    lab.cluster.run_for(Duration::from_secs(30));
    let (_second, theirs) = lab.second();
    let found = lab.run(move |c| async move {
        let (result, buf) = theirs.read(behind, c.rt().alloc(512)).await;
        result.expect("read");
        buf.to_vec()
    });
    assert!(found.iter().all(|b| *b == 9), "seed {seed}: acknowledged as durable, and gone");
}

/// A storage that meta does not reach, though mgmtd does: small files that are to grow there hold neither what those of another storage need, nor
/// calls that nobody waits for any more. (Where a file grows to is drawn anew with each attempt.)
#[test]
fn files_that_grow_where_nobody_answers_leave_room_for_others() {
    /// Half of them are more than meta has channels.
    const MANY: usize = 700;
    const MORE: usize = 16;
    let shape = Shape { storages: 2, chains: 2, ..Shape::SINGLE };
    let lab = Lab::shaped(64, shape, glowfs_meta::Tuning::default());
    let files = lab.run(move |c| async move {
        let (dir, mut files) = (small::dir(&c).await.expect("found"), Vec::new());
        for n in 0..MANY + MORE {
            let file = open_or_make_in(&c, dir, &format!("g{n}")).await.expect("open").0;
            file.write(0, Buf::from_vec(vec![1; 512])).await.expect("written");
            files.push(file);
        }
        files
    });
    let (meta, storage) = (&lab.cluster.metas[0].node, &lab.cluster.storages[0].node);
    lab.cluster.world.cut(meta, storage);
    lab.cluster.world.cut(storage, meta);
    lab.cluster.world.drop_connections(meta, storage);
    let behind = u64::from(INLINE_BYTES_MAX);
    let grow = |files: Vec<Rc<OpenFile>>| {
        let all = Rc::new(Cell::new(0));
        for file in files {
            let grown = all.clone();
            lab.client.rt().spawn_detached(async move {
                let done = file.write(behind, Buf::from_vec(vec![2; 512])).await;
                grown.set(grown.get() + usize::from(done.is_ok()));
            });
        }
        all
    };
    let grown = grow(files[..MANY].to_vec());
    lab.cluster.run_for(Duration::from_millis(500));
    assert!(grown.get() < MANY * 2 / 3, "{} of them wait", MANY - grown.get());
    let grown = grow(files[MANY..].to_vec());
    lab.cluster.run_for(Duration::from_millis(500));
    assert!(grown.get() > MORE / 4, "{} of {MORE} that come later", grown.get());
    lab.cluster.world.heal();
    lab.cluster.run_for(Duration::from_secs(30));
    for file in &files {
        lab.write(file, behind, 4).expect("grown");
        assert_eq!(lab.first_byte(file), 1);
    }
}

/// Contents that were given up on their way into a chunk, on a disk so slow that they get there when their data has been collected: they go, too.
#[test]
fn what_gets_to_a_slow_disk_after_its_data_was_collected_does_not_stay() {
    let lab = Lab::new(65, 1);
    let file = lab.open();
    lab.write(&file, 0, 1).expect("written");
    let disk = lab.cluster.storages[0].node.disk(DISK);
    // Longer than contents may take (4 s) and data stays (1 s), with the pauses between looks at it.
    let slow = 8_000_000_000;
    let faults =
        DiskFaults { slower_least_ns: slow, slower_most_ns: slow, ..DiskFaults::default() };
    disk.set_faults(faults);
    let behind = u64::from(INLINE_BYTES_MAX);
    lab.write(&file, behind, 2).expect_err("not in time");
    lab.cluster.run_for(Duration::from_secs(12));
    disk.set_faults(DiskFaults::default());
    lab.cluster.run_for(Duration::from_secs(60));
    assert!(file.is_inline());
    let node = lab.cluster.storages[0].id();
    let info = lab.run(move |c| async move { c.storage_info(node).await.expect("an answer") });
    assert!(info.writes > 0, "it got there");
    let chunks: u64 = info.targets.iter().map(|(_, chunks)| chunks).sum();
    assert_eq!(chunks, 0, "nobody owns them");
}
