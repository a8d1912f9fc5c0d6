//! Many clients in one directory and on one file, over several metadata services that are killed meanwhile: nothing is lost, and nothing is done twice.

use super::lab::{LIMIT, Lab, SHAPE, make, name};
use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_sim::cluster::fsck;
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::history::History;
use glowfs_sim::cluster::workload::caller;
use glowfs_telemetry::Registry;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const CLIENTS: usize = 6;
/// What each client does so often.
const ROUNDS: u32 = 60;
/// Hot files: with three services over one engine, some of them belong to a service that has the engine elsewhere.
const FILES: usize = 3;

/// What the clients work on together, and what they have seen.
struct Hot {
    dir: InodeId,
    files: Vec<InodeId>,
    /// What the name `x` leads to: 0, or an inode that somebody has moved there.
    x: RefCell<History>,
    ticks: Cell<u64>,
    at_work: Cell<usize>,
}

impl Hot {
    fn tick(&self) -> u64 {
        self.ticks.set(self.ticks.get() + 1);
        self.ticks.get()
    }
}

/// One client's work.
struct Hand {
    rt: Rt,
    client: Rc<Client>,
    number: usize,
    hot: Rc<Hot>,
}

impl Hand {
    async fn work(self) {
        for round in 0..ROUNDS {
            self.round(round).await;
        }
        self.hot.at_work.set(self.hot.at_work.get() - 1);
    }

    async fn round(&self, round: u32) {
        let (c, hot, me) = (&self.client, &self.hot, self.number);
        let (file, link) = (format!("c{me}-{round}"), format!("l{me}-{round}"));
        // Exclusive: done twice it would hear that it is there.
        let made = c.make(Make { parent: hot.dir, ..make(c, 0, &file) }).await.expect("made").attr;
        let of = hot.files[(me + round as usize) % FILES];
        let query = Link {
            caller: caller(c),
            request: RequestId(0),
            inode: of,
            parent: hot.dir,
            name: name(&link),
        };
        c.link(query).await.expect("linked");
        for of in &hot.files {
            let query = SetXattr {
                caller: caller(c),
                request: RequestId(0),
                inode: *of,
                name: self.xattr(),
                value: round.to_le_bytes().to_vec(),
                flags: 0,
            };
            c.setxattr(query).await.expect("set");
        }
        // Done twice the second time would not find it.
        hot.x.borrow_mut().begin_write(made.inode.0, hot.tick());
        let query = Rename {
            caller: caller(c),
            request: RequestId(0),
            parent: hot.dir,
            name: name(&file),
            new_parent: hot.dir,
            new_name: name("x"),
            flags: 0,
        };
        c.rename(query).await.expect("renamed");
        hot.x.borrow_mut().end_write(made.inode.0, hot.tick());
        self.look().await;
        let pause = self.rt.random_below(60_000);
        self.rt.sleep(Duration::from_micros(pause)).await;
        self.look().await;
        self.has_xattrs(round).await;
    }

    async fn look(&self) {
        let (c, hot, began) = (&self.client, &self.hot, self.hot.tick());
        let query = Lookup { caller: caller(c), parent: hot.dir, name: name("x") };
        let found = c.lookup(query).await.expect("somebody has moved something there");
        hot.x.borrow_mut().read(found.attr.inode.0, began, hot.tick()).expect("written");
    }

    fn xattr(&self) -> Name {
        name(&format!("user.of-{}", self.number))
    }
    async fn has_xattrs(&self, round: u32) {
        for inode in &self.hot.files {
            let (caller, name) = (caller(&self.client), self.xattr());
            let query = OfXattr { caller, request: RequestId(0), inode: *inode, name };
            let value = self.client.getxattr(query).await.expect("there").value;
            assert_eq!(value, round.to_le_bytes(), "what this client has set");
        }
    }
}

async fn prepare(c: Rc<Client>) -> Hot {
    let dir = Make { kind: InodeKind::Directory, mode: 0o755, ..make(&c, 0, "hot") };
    let dir = c.make(dir).await.expect("a directory").attr.inode;
    let mut files = Vec::new();
    for n in 0..FILES {
        let file = Make { parent: dir, ..make(&c, 0, &format!("f{n}")) };
        files.push(c.make(file).await.expect("a file").attr.inode);
    }
    let x = RefCell::new(History::new());
    Hot { dir, files, x, ticks: Cell::new(0), at_work: Cell::new(CLIENTS) }
}

/// What has to be there at the end.
async fn all_is_there(c: Rc<Client>, hot: Rc<Hot>) {
    let query = ReadDir {
        caller: caller(&c),
        inode: hot.dir,
        after: 0,
        limit: 1000,
        attributes: true,
        atime: AtimeRule::default(),
    };
    let entries = c.readdir(query).await.expect("listed").entries;
    let listed: BTreeSet<Vec<u8>> = entries.iter().map(|e| e.name.to_vec()).collect();
    let links = (0..CLIENTS).flat_map(|c| (0..ROUNDS).map(move |r| format!("l{c}-{r}")));
    let files = (0..FILES).map(|n| format!("f{n}"));
    let all = links.chain(files).chain(["x".to_owned()]).map(String::into_bytes);
    assert_eq!(listed, all.collect());
    let mut links = 0;
    for inode in &hot.files {
        let attr = c.getattr(OfInode { caller: caller(&c), inode: *inode }).await.expect("there");
        links += attr.attr.nlink as usize;
    }
    assert_eq!(links, FILES + CLIENTS * ROUNDS as usize, "each link was made once");
    fsck::clean(c.rt(), &c).await.expect("clean");
}

fn gathered() -> u64 {
    let text = Registry::global().text();
    let line = text.lines().find_map(|l| l.strip_prefix("glowfs_meta_gathered_total "));
    line.and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn services_that_are_killed_under_a_hot_directory_and_hot_files_lose_nothing() {
    let before = gathered();
    for seed in 80..84 {
        let lab = Lab::with(seed, Shape { metas: 3, clients: CLIENTS, ..SHAPE });
        let hot = Rc::new(lab.run(0, prepare));
        for number in 0..CLIENTS {
            let (client, hot) = (lab.clients[number].clone(), hot.clone());
            let rt = lab.cluster.clients[number].rt();
            let hand = Hand { rt: rt.clone(), client, number, hot };
            rt.spawn_detached(hand.work());
        }
        let (mut kills, began) = (0, lab.cluster.world.now());
        while hot.at_work.get() > 0 {
            let time = lab.cluster.world.now() - began;
            assert!(time < LIMIT, "seed {seed}: {} are at work", hot.at_work.get());
            // The one that has the engine only seldom: nothing goes on without it.
            let service = &lab.cluster.metas[[1, 2, 1, 2, 0][kills % 5]];
            kills += 1;
            let pause = Duration::from_millis(50 + 37 * (kills as u64 % 5));
            lab.cluster.run_until(pause, || hot.at_work.get() == 0);
            lab.cluster.crash(service, false);
            lab.cluster.run_for(Duration::from_millis(150));
            lab.cluster.restart(service);
            lab.cluster.run_until(Duration::from_millis(400), || hot.at_work.get() == 0);
        }
        assert!(kills >= 3, "seed {seed}: {kills} kills");
        let x = hot.x.borrow();
        x.check().unwrap_or_else(|e| panic!("seed {seed}: what x leads to: {e}"));
        assert!(x.contended() >= 20, "seed {seed}: they were not in each other's way");
        drop(x);
        lab.cluster.run_for(Duration::from_secs(5));
        lab.run(1, move |c| all_is_there(c, hot));
    }
    assert!(gathered() > before, "nothing was done together");
}
