//! The disk of the embedded metadata engine is full: applications hear ENOSPC for what needs room there, everything else goes on, and so does that when there
//! is room again, by itself.

use glowfs_client::Client;
use glowfs_meta::{CommitMode, Tuning};
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, Shape, all_serve};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::workload::caller;
use glowfs_sim::world::DISK_BYTES;
use glowfs_types::wire::meta::*;
use glowfs_types::{RequestId, Result, Status};
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(600);
/// Symlinks that are made, at most, until the disk is full.
const MOST: u32 = 60_000;
/// How long the cluster is left alone with a full disk: leases are renewed all the time.
const FULL: Duration = Duration::from_secs(60);
/// How long it may take until there is room again.
const AGAIN: Duration = Duration::from_secs(30);

struct Lab {
    cluster: Cluster,
    client: Rc<Client>,
}

impl Lab {
    fn new(seed: u64) -> Self {
        let shape = Shape { storages: 3, replicas: 3, ..Shape::SINGLE };
        let tuning = Tuning { commit: CommitMode::Flush, ..Tuning::default() };
        let cluster = Cluster::start_as_told(seed, shape, tuning);
        cluster.bootstrap().expect("a cluster");
        let (rt, config) = (cluster.clients[0].rt(), cluster.client_config());
        let client = async move { Client::connect(&rt, config).await.expect("a client") };
        let client = cluster.world.run(&cluster.clients[0], LIMIT, client).expect("in time");
        Self { cluster, client }
    }
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Rc<Client>) -> F,
    ) -> T {
        let work = work(self.client.clone());
        self.cluster.world.run(&self.cluster.clients[0], LIMIT, work).expect("in time")
    }
    fn make(&self, n: u32) -> Result<()> {
        self.run(move |c| async move { make(&c, n).await })
    }
    fn remove(&self, from: u32, to: u32) {
        self.run(move |c| async move {
            for n in from..to {
                unlink(&c, ROOT_INODE, &format!("l{n}"), false).await.expect("a removal");
            }
        });
    }
    /// From `from` on until one is refused: which.
    fn fill(&self, from: u32) -> u32 {
        self.run(move |c| async move {
            for n in from..from + MOST {
                if let Err(e) = make(&c, n).await {
                    assert_eq!(e.status, Status::NoSpace, "{e}");
                    return n;
                }
            }
            panic!("never refused");
        })
    }
    /// Until one is made.
    fn make_again(&self, n: u32) {
        let until = self.cluster.world.now() + AGAIN;
        while let Err(e) = self.make(n) {
            assert_eq!(e.status, Status::NoSpace, "{e}");
            assert!(self.cluster.world.now() < until, "refused for ever: {e}");
            self.cluster.run_for(Duration::from_millis(200));
        }
    }
    /// These are there, and no more.
    fn are_there(&self, from: u32, to: u32) {
        let names = self.run(|c| async move {
            let (mut after, mut names) = (0, Vec::new());
            loop {
                let q = ReadDir {
                    caller: caller(&c),
                    inode: ROOT_INODE,
                    after,
                    limit: 1000,
                    attributes: false,
                    atime: AtimeRule::default(),
                };
                let page = c.readdir(q).await.expect("listed");
                names.extend(page.entries.iter().map(|e| e.name.to_vec()));
                match page.entries.last() {
                    Some(last) if !page.end => after = last.cookie,
                    _ => return names,
                }
            }
        });
        let mut there: Vec<u32> = names
            .iter()
            .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix('l')?.parse().ok())
            .collect();
        there.sort_unstable();
        assert_eq!(there, (from..to).collect::<Vec<_>>());
    }
}

async fn make(client: &Client, n: u32) -> Result<()> {
    let make = Make {
        caller: caller(client),
        request: RequestId(client.rt().random_u128()),
        parent: ROOT_INODE,
        name: format!("l{n}").into_bytes().into(),
        kind: InodeKind::Symlink,
        symlink: vec![b'x'; SYMLINK_BYTES_MAX],
        exclusive: true,
        ..Make::default()
    };
    client.make(make).await.map(|_| ())
}

#[test]
fn a_full_disk_of_the_engine_refuses_growth_only_and_recovers() {
    let lab = Lab::new(71);
    let engine = lab.cluster.metas[0].clone();
    let disk = engine.node.disk("/engine");
    // Others take all the rest.
    disk.set_bytes(disk.used_bytes());
    let end = lab.fill(0);
    assert!(end > 500, "refused at once: {end}");
    lab.are_there(0, end);
    // Everything else goes on, also for long.
    lab.cluster.run_for(FULL);
    assert!(all_serve(&lab.client.routing(), lab.cluster.shape()));
    assert_eq!(lab.make(end).expect_err("still full").status, Status::NoSpace);
    lab.remove(0, 10);
    lab.run(move |c| async move {
        let name = |n: u32| format!("l{n}").into_bytes().into();
        let caller = caller(&c);
        let q = Lookup { caller: caller.clone(), parent: ROOT_INODE, name: name(10) };
        let inode = c.lookup(q).await.expect("found").attr.inode;
        let times = SetAttr { caller: caller.clone(), inode, uid: Some(7), ..SetAttr::default() };
        c.setattr(times).await.expect("changed");
        let request = RequestId(c.rt().random_u128());
        let rename = Rename {
            caller,
            request,
            parent: ROOT_INODE,
            name: name(10),
            new_parent: ROOT_INODE,
            new_name: b"m10".to_vec().into(),
            flags: 0,
        };
        c.rename(rename).await.expect("renamed");
    });
    lab.are_there(11, end);
    // The power goes, and comes.
    lab.cluster.crash(&engine, true);
    lab.cluster.run_for(Duration::from_secs(1));
    lab.cluster.restart(&engine);
    lab.are_there(11, end);
    // Removals make room.
    lab.remove(11, end);
    lab.make_again(end);
    let again = lab.fill(end + 1);
    assert!(again > end + 500, "{end}, {again}");
    // So does somebody else on that disk.
    disk.set_bytes(DISK_BYTES);
    lab.make_again(again);
    lab.are_there(end, again + 1);
    assert!(lab.cluster.failures.borrow().is_empty(), "{:?}", lab.cluster.failures.borrow());
}
