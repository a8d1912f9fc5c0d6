//! The metadata service with several clients, and what must outlive its restarts: requests that take effect once, ids, sessions.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::{Client, OpenFile};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::small;
use glowfs_sim::cluster::workload::{caller, open_or_make, open_or_make_in, report};
use glowfs_types::layout::INLINE_BYTES_MAX;
use glowfs_types::wire::meta::{Sync as SyncFile, *};
use glowfs_types::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const SHAPE: Shape = Shape { clients: 2, ..Shape::SINGLE };
const LIMIT: Duration = Duration::from_secs(600);

struct Lab {
    cluster: Cluster,
    clients: Vec<Rc<Client>>,
}

impl Lab {
    fn new(seed: u64) -> Self {
        Self::with(seed, SHAPE)
    }
    fn with(seed: u64, shape: Shape) -> Self {
        let cluster = Cluster::start(seed, shape);
        cluster.bootstrap().expect("a cluster");
        let clients = cluster.clients.clone().into_iter().map(|node| {
            let (rt, config) = (node.rt(), cluster.client_config());
            let client = async move { Client::connect(&rt, config).await.expect("a client") };
            cluster.world.run(&node, LIMIT, client).expect("in time")
        });
        let clients = clients.collect();
        Self { cluster, clients }
    }
    /// Runs something with one of the clients.
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        client: usize,
        work: impl FnOnce(Rc<Client>) -> F,
    ) -> T {
        let work = work(self.clients[client].clone());
        self.cluster.world.run(&self.cluster.clients[client], LIMIT, work).expect("in time")
    }
    /// Ends the service as it stands (with its machine's power, or alone) and starts it again.
    fn restart(&self, power: bool) {
        self.cluster.crash(&self.cluster.metas[0], power);
        self.cluster.run_for(Duration::from_millis(300));
        self.cluster.restart(&self.cluster.metas[0]);
    }
    /// The second client writes behind the end of the file "f", which was cut to nothing: the first one reads that, and zeros before it.
    fn written_behind_a_cut_is_there(&self, file: Rc<OpenFile>, case: String) {
        self.run(1, move |c| async move {
            file.write(4096, Buf::from_vec(vec![9; 4096])).await.expect("written");
            file.flush().await.expect("flushed");
            c.sync(report(&c, &file, true)).await.expect("synced");
        });
        self.run(0, move |c| async move {
            let file = open_or_make(&c, "f").await.expect("open").0;
            let (result, buf) = file.read(0, c.rt().alloc(8192)).await;
            assert_eq!(result.expect("read"), 8192, "{case}");
            assert!(buf[..4096].iter().all(|b| *b == 0) && buf[4096..].iter().all(|b| *b == 9));
        });
    }
}

fn name(name: &str) -> Name {
    name.as_bytes().to_vec().into()
}

fn make(client: &Client, request: u128, file: &str) -> Make {
    Make {
        caller: caller(client),
        request: RequestId(request),
        parent: ROOT_INODE,
        name: name(file),
        kind: InodeKind::File,
        mode: 0o644,
        rdev: 0,
        symlink: Vec::new(),
        open: None,
        exclusive: true,
        ..Make::default()
    }
}

async fn look(client: &Client, file: &str) -> Result<Attr> {
    let query = Lookup { caller: caller(client), parent: ROOT_INODE, name: name(file) };
    client.lookup(query).await.map(|r| r.attr)
}

/// The same request, again and again, with restarts in between: one effect, and the same answer.
#[test]
fn a_request_takes_effect_once_whatever_happens_in_between() {
    let lab = Lab::new(21);
    let rename = |c: &Client| Rename {
        caller: caller(c),
        request: RequestId(12),
        parent: ROOT_INODE,
        name: name("a"),
        new_parent: ROOT_INODE,
        new_name: name("b"),
        flags: 0,
    };
    let unlink = |c: &Client| Unlink {
        caller: caller(c),
        request: RequestId(13),
        parent: ROOT_INODE,
        name: name("b"),
        directory: false,
    };
    let first = lab.run(0, |c| async move { c.make(make(&c, 11, "a")).await.expect("made").attr });
    for power in [false, true] {
        lab.restart(power);
        let again = lab.run(0, |c| async move { c.make(make(&c, 11, "a")).await.expect("again") });
        assert_eq!(again.attr.inode, first.inode, "the same file, though it has to be a new one");
    }
    let fresh = lab.run(0, |c| async move { c.make(make(&c, 99, "a")).await.expect_err("there") });
    assert_eq!(fresh.status, Status::Exists, "another request is another one");
    for power in [false, true, false] {
        lab.run(0, move |c| async move { c.rename(rename(&c)).await.expect("renamed") });
        lab.restart(power);
    }
    // Somebody makes the name anew: the old requests must not touch that.
    let second = lab.run(1, |c| async move { c.make(make(&c, 14, "a")).await.expect("made").attr });
    lab.run(0, move |c| async move { c.rename(rename(&c)).await.expect("answered") });
    lab.run(0, move |c| async move { c.unlink(unlink(&c)).await.expect("removed") });
    let third = lab.run(1, |c| async move { c.make(make(&c, 15, "b")).await.expect("made").attr });
    lab.restart(true);
    lab.run(0, move |c| async move { c.unlink(unlink(&c)).await.expect("answered") });
    let now = lab.run(1, |c| async move { (look(&c, "a").await, look(&c, "b").await) });
    assert_eq!(now.0.expect("a is there").inode, second.inode);
    assert_eq!(now.1.expect("b is there").inode, third.inode);
}

/// A service that has lost the engine keeps a request in work, while its client hears from another service that it is refused. When the
/// first one reaches the engine again, it must not remove what was made under this name since.
#[test]
fn a_late_copy_of_a_refused_request_has_no_effect() {
    let shape = Shape { metas: 2, clients: 6, ..SHAPE };
    let lab = Lab::with(24, shape);
    let (engine, other) = (&lab.cluster.metas[0].node, &lab.cluster.metas[1].node);
    let world = &lab.cluster.world;
    let unlink = |c: &Client, n: usize| Unlink {
        caller: caller(c),
        request: RequestId(0),
        parent: ROOT_INODE,
        name: name(&format!("f{n}")),
        directory: false,
    };
    world.cut(engine, other);
    world.cut(other, engine);
    // Each client prefers one of the services; the first that prefers the one that is cut off will do.
    let late = (0..shape.clients).find(|n| {
        let (n, began) = (*n, world.now());
        lab.run(n, move |c| async move {
            let e = c.unlink(unlink(&c, n)).await.expect_err("not there");
            assert_eq!(e.status, Status::NotFound);
            c.make(make(&c, 0, &format!("f{n}"))).await.expect("made");
        });
        world.now() - began >= lab.cluster.client_config().meta_attempt
    });
    let late = late.expect("a client that asked the service that is cut off");
    world.heal();
    lab.cluster.run_for(Duration::from_secs(20));
    let there = lab.run(late, move |c| async move { look(&c, &format!("f{late}")).await });
    there.expect("what was made after the refusal is there");
}

/// Whatever the engine has lost with its power, what a metadata service says afterwards is known to be newer than what any service said before:
/// the one that hosts the engine, and the others.
#[test]
fn what_is_said_after_a_loss_of_power_is_newer() {
    let lab = Lab::with(25, Shape { metas: 2, clients: 6, ..SHAPE });
    lab.run(0, |c| async move { c.make(make(&c, 0, "f")).await.expect("made") });
    let said = |client| lab.run(client, |c| async move { look(&c, "f").await.expect("there") });
    let mut last = Edition::default();
    for power in [true, true, false] {
        let all: Vec<_> = (0..6).map(|c| said(c).edition()).collect();
        assert!(all.iter().all(|e| *e == all[0] && e.life > last.life), "{all:?} after {last:?}");
        assert_eq!(all[0].change, 1, "it was not changed");
        last = all[0];
        lab.restart(power);
    }
}

/// Ids are taken in ranges; what a life of the service had left of one is never given out by another.
#[test]
fn no_id_is_given_out_twice() {
    let lab = Lab::new(22);
    let (mut inodes, mut data) = (BTreeSet::new(), BTreeSet::new());
    for life in 0..8u128 {
        for client in 0..2 {
            for i in 0..10 {
                let number = life * 100 + client as u128 * 10 + i + 1;
                let attr = lab.run(client, move |c| async move {
                    let query = make(&c, number, &format!("f{number}"));
                    c.make(query).await.expect("made").attr
                });
                assert!(inodes.insert(attr.inode), "{} twice", attr.inode);
                assert!(data.insert(attr.data), "data {} twice", attr.data);
            }
        }
        lab.restart(life % 2 == 0);
    }
    // They are all there.
    let list = lab.run(0, |c| async move {
        let (after, limit) = (0, 1000);
        let caller = caller(&c);
        let query = ReadDir {
            caller,
            inode: ROOT_INODE,
            after,
            limit,
            attributes: true,
            atime: AtimeRule::default(),
        };
        c.readdir(query).await.expect("listed").entries
    });
    let listed: BTreeSet<_> = list.iter().map(|e| e.inode).collect();
    assert_eq!(listed, inodes);
}

/// What is open stays open over a restart; what a client that died had open is closed for it, with the length that its chunks have.
#[test]
fn sessions_outlive_the_service_and_not_their_client() {
    let lab = Lab::new(23);
    let make = |which: &'static str| {
        move |c: Rc<Client>| async move {
            let (file, open) = open_or_make(&c, which).await.expect("made");
            file.write(0, Buf::from_vec(vec![7; 100_000])).await.expect("written");
            (file, open.attr.inode)
        }
    };
    let (kept, kept_inode) = lab.run(0, make("kept"));
    let (_, lost_inode) = lab.run(1, make("lost"));
    lab.restart(true);
    let (file, again) = (kept.clone(), lab.clients[0].clone());
    let attr = lab.run(0, move |c| async move {
        file.write(100_000, Buf::from_vec(vec![8; 1000])).await.expect("still open");
        c.sync(report(&again, &file, false)).await.expect("reported").attr
    });
    assert_eq!((attr.inode, attr.len), (kept_inode, 101_000));
    // The other client dies without a word, and then the service does.
    let before = lab.run(0, |c| async move { look(&c, "lost").await.expect("there") });
    assert_eq!((before.inode, before.len), (lost_inode, 0), "it never said how long it is");
    lab.cluster.clients[1].crash();
    lab.restart(true);
    lab.cluster.run_for(Duration::from_secs(60));
    let after = lab.run(0, |c| async move { look(&c, "lost").await.expect("there") });
    assert_eq!(after.len, 100_000, "what was acknowledged is behind a length that leads to it");
    // The one that lives has kept its session all the time.
    let file = kept.clone();
    let closed = lab.run(0, move |c| async move {
        file.write(101_000, Buf::from_vec(vec![9; 1000])).await.expect("still open");
        c.close_session(report(&c, &file, false)).await.expect("closed").attr
    });
    assert_eq!(closed.len, 102_000);
}

/// Whoever had a file open for writing is dead and cannot be told: cutting the file to nothing does not wait for the end of its capability.
#[test]
fn a_dead_writer_holds_up_no_truncate_to_nothing() {
    let lab = Lab::new(34);
    lab.run(1, |c| async move {
        let file = open_or_make(&c, "f").await.expect("made").0;
        file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("written");
        c.sync(report(&c, &file, true)).await.expect("told");
    });
    lab.cluster.clients[1].crash();
    lab.cluster.run_for(Duration::from_secs(1));
    lab.run(0, |c| async move {
        let inode = look(&c, "f").await.expect("there").inode;
        let began = c.rt().now();
        let cut = SetAttr { caller: caller(&c), inode, len: Some(0), ..SetAttr::default() };
        c.setattr(cut).await.expect("cut");
        assert!(c.rt().now().since(began) < Duration::from_secs(5));
    });
}

/// A chain is away when a client dies that wrote on it: its files elsewhere get their lengths all the same.
#[test]
fn a_chain_that_is_away_does_not_keep_the_sessions_of_others() {
    let lab = Lab::with(33, Shape { storages: 2, chains: 2, ..SHAPE });
    let files = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let nodes: Vec<NodeId> = lab.run(1, move |c| async move {
        let mut nodes = Vec::new();
        for name in files {
            let (file, open) = open_or_make(&c, name).await.expect("made");
            file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("written");
            let (info, layout) = (c.routing(), open.attr.layout.expect("of a file"));
            let table = info.newest_table(layout.table).expect("the table");
            let chain = &info.chains[&table.chains[layout.start as usize]];
            nodes.push(chain.members[0].node);
        }
        nodes
    });
    let away = lab.cluster.storages[0].id();
    assert!(nodes.contains(&away) && nodes.iter().any(|n| *n != away), "{nodes:?}");
    lab.cluster.clients[1].crash();
    lab.cluster.crash(&lab.cluster.storages[0], false);
    lab.cluster.run_for(Duration::from_secs(90));
    lab.run(0, move |c| async move {
        for (name, node) in files.iter().zip(nodes) {
            let len = look(&c, name).await.expect("there").len;
            assert_eq!(len, if node == away { 0 } else { 9000 }, "{name}");
        }
    });
}

/// Sessions that are closed together end together; one that is refused hinders no other.
#[test]
fn closes_that_are_gathered_each_have_their_effect() {
    let lab = Lab::new(24);
    let strange = lab.run(1, |c| async move {
        let (file, _) = open_or_make(&c, "strange").await.expect("made");
        report(&c, &file, false)
    });
    lab.run(0, move |c| async move {
        let mut files = Vec::new();
        for which in ["first", "second", "third"] {
            let (file, _) = open_or_make(&c, which).await.expect("made");
            file.write(0, Buf::from_vec(vec![7; 5000])).await.expect("written");
            files.push(file);
        }
        // In one message, with a session of another client in the middle.
        let mut closes: Vec<_> = files.iter().map(|f| report(&c, f, false)).collect();
        closes.insert(1, SyncFile { caller: caller(&c), ..strange });
        let closed = join_all(closes.into_iter().map(|q| c.close_later(q))).await;
        let ok: Vec<bool> = closed.iter().map(Result::is_ok).collect();
        assert_eq!(ok, [true, false, true, true]);
        for (file, which) in files.iter().zip(["first", "second", "third"]) {
            let error = c.sync(report(&c, file, false)).await.expect_err("closed");
            assert_eq!(error.status, Status::SessionEnded);
            assert_eq!(look(&c, which).await.expect("there").len, 5000);
        }
    });
}

/// A client that dies before it has sent its closes: its sessions end with it, at the lengths that the chunks have.
#[test]
fn closes_that_were_never_sent_end_with_their_client() {
    let lab = Lab::new(25);
    let mine = lab.run(1, |c| async move {
        let (file, _) = open_or_make(&c, "lost").await.expect("made");
        file.write(0, Buf::from_vec(vec![7; 100_000])).await.expect("written");
        let query = report(&c, &file, false);
        let (client, close) = (c.clone(), query.clone());
        c.rt().spawn_detached(async move {
            let _ = client.close_later(close).await;
        });
        c.rt().sleep(Duration::from_millis(1)).await;
        query
    });
    lab.cluster.clients[1].crash();
    let session_of = |q: &SyncFile| {
        let q = q.clone();
        lab.run(0, move |c| async move {
            let q = SyncFile { caller: caller(&c), len_at_least: None, ..q };
            c.sync(q).await.expect_err("not this client's").message
        })
    };
    let message = session_of(&mine);
    assert!(message.contains("another client"), "it was not closed: {message}");
    lab.cluster.run_for(Duration::from_secs(60));
    let message = session_of(&mine);
    assert!(message.contains("ended by the cluster"), "{message}");
    let after = lab.run(0, |c| async move { look(&c, "lost").await.expect("there") });
    assert_eq!(after.len, 100_000);
}

/// Whoever changes names learns what the directories are like afterwards, exactly as GETATTR shows them.
#[test]
fn a_change_of_names_brings_the_directories() {
    let lab = Lab::new(26);
    lab.cluster.run_for(Duration::from_secs(3));
    lab.run(0, |c| async move {
        let dir = |parent, called: &'static str| Make {
            parent,
            kind: InodeKind::Directory,
            ..make(&c, 0, called)
        };
        let seen = async |inode| {
            let q = OfInode { caller: caller(&c), inode };
            c.getattr(q).await.expect("there").attr
        };
        let d = c.make(dir(ROOT_INODE, "d")).await.expect("made").attr;
        let e = c.make(dir(ROOT_INODE, "e")).await.expect("made").attr;
        assert_eq!((d.entries, e.entries), (Some(0), Some(0)));
        let check = async |dirs: &[DirChanged], expected: &[(InodeId, u64, u64)]| {
            assert_eq!(dirs.len(), expected.len());
            for (dir, (inode, before, after)) in dirs.iter().zip(expected) {
                assert_eq!(dir.attr, seen(*inode).await);
                assert_eq!((dir.before, dir.attr.entries), (*before, Some(*after)));
                assert!(dir.lease_ms > 0, "nobody else changes it");
            }
        };
        let one = |dir: Option<Box<DirChanged>>| vec![*dir.expect("the directory")];
        let f = c.make(Make { parent: d.inode, ..make(&c, 0, "f") }).await.expect("made");
        check(&one(f.dir), &[(d.inode, 0, 1)]).await;
        let sub = c.make(dir(d.inode, "sub")).await.expect("made");
        check(&one(sub.dir), &[(d.inode, 1, 2)]).await;
        let link = Link {
            caller: caller(&c),
            request: RequestId(0),
            inode: f.attr.inode,
            parent: e.inode,
            name: name("g"),
        };
        check(&one(c.link(link).await.expect("linked").dir), &[(e.inode, 0, 1)]).await;
        let rename = |from: InodeId, old: &str, to: InodeId, new: &str| Rename {
            caller: caller(&c),
            request: RequestId(0),
            parent: from,
            name: name(old),
            new_parent: to,
            new_name: name(new),
            flags: 0,
        };
        let moved = c.rename(rename(d.inode, "sub", e.inode, "s")).await.expect("moved");
        assert_eq!(moved.moved, [sub.attr.inode]);
        check(&moved.dirs, &[(d.inode, 2, 3), (e.inode, 1, 2)]).await;
        let same = c.rename(rename(d.inode, "f", e.inode, "g")).await.expect("one file");
        assert!(same.moved.is_empty());
        check(&same.dirs, &[(d.inode, 3, 3), (e.inode, 2, 2)]).await;
        let within = c.rename(rename(d.inode, "f", d.inode, "h")).await.expect("moved");
        check(&within.dirs, &[(d.inode, 3, 5)]).await;
        let unlink = Unlink {
            caller: caller(&c),
            request: RequestId(0),
            parent: d.inode,
            name: name("h"),
            directory: false,
        };
        check(&one(c.unlink(unlink).await.expect("removed").dir), &[(d.inode, 5, 6)]).await;
    });
}

/// A service is slow to put a small file's contents into chunks, and another one does it in its place. What the first one stores late is
/// refused, for its place is given up; whoever asked the first one gets chunks all the same.
#[test]
fn contents_that_another_service_put_into_chunks_are_no_error() {
    let lab = Lab::with(31, Shape { metas: 2, ..SHAPE });
    let (cluster, world) = (&lab.cluster, &lab.cluster.world);
    cluster.run_for(Duration::from_secs(3));
    lab.run(0, |c| async move { small::prepare(&c).await.expect("a directory of small files") });
    let open = async |c: &Rc<Client>| {
        let dir = small::dir(c).await.expect("found");
        open_or_make_in(c, dir, "f").await.expect("open").0
    };
    lab.run(0, move |c| async move {
        let file = open(&c).await;
        file.write(0, Buf::from_vec(vec![7; 4096])).await.expect("written");
        c.close_session(report(&c, &file, true)).await.expect("closed");
    });
    // Each client has a service of its own, and what the first one sends to the storage node is on its way for longer than the other has patience.
    for (client, meta) in [(0, 1), (1, 0)] {
        world.cut(&cluster.clients[client], &cluster.metas[meta].node);
        world.drop_connections(&cluster.clients[client], &cluster.metas[meta].node);
    }
    let (slow, storage) = (&cluster.metas[0].node, &cluster.storages[0].node);
    let (link, late) = (world.link(slow, storage), 4_300_000_000);
    world.set_link(
        slow,
        storage,
        glowfs_sim::world::Link { latency_ns_min: late, latency_ns_max: late, ..link },
    );
    let written: Rc<RefCell<Vec<Result<()>>>> = Rc::default();
    for (i, client) in lab.clients.iter().enumerate() {
        let (client, written) = (client.clone(), written.clone());
        cluster.clients[i].rt().spawn_detached(async move {
            let file = open(&client).await;
            let behind = u64::from(INLINE_BYTES_MAX) + 4096 * (1 + i as u64);
            let result = file.write(behind, Buf::from_vec(vec![8; 4096])).await;
            written.borrow_mut().push(result);
        });
        cluster.run_for(Duration::from_millis(50));
    }
    assert!(cluster.run_until(LIMIT, || written.borrow().len() == 2), "both");
    written.take().into_iter().for_each(|w| w.expect("written"));
    world.heal();
    lab.run(1, move |c| async move {
        let file = open(&c).await;
        let (result, buf) = file.read(0, c.rt().alloc(4096)).await;
        assert_eq!(result.expect("read"), 4096);
        assert!(buf.iter().all(|b| *b == 7), "the first contents");
    });
}

/// A client that has a file open for writing, and has not asked for its attributes for long, writes on after another client cut the file
/// to nothing: into the file as it is now.
#[test]
fn what_is_written_after_a_truncate_to_nothing_by_another_client_is_there() {
    for by_open in [false, true] {
        let lab = Lab::with(32, Shape { metas: 2, ..SHAPE });
        lab.cluster.run_for(Duration::from_secs(3));
        let opened: Rc<RefCell<Option<Rc<OpenFile>>>> = Rc::default();
        let keep = opened.clone();
        lab.run(1, move |c| async move {
            let file = open_or_make(&c, "f").await.expect("open").0;
            file.write(0, Buf::from_vec(vec![7; 8192])).await.expect("written");
            *keep.borrow_mut() = Some(file);
        });
        lab.cluster.run_for(Duration::from_secs(3));
        lab.run(0, move |c| async move {
            let inode = look(&c, "f").await.expect("there").inode;
            if by_open {
                let flags = OpenFlags {
                    read: true,
                    write: true,
                    truncate: true,
                    session: SessionId(5),
                    ..Default::default()
                };
                let request = RequestId(0);
                c.open(Open { caller: caller(&c), request, inode, flags }).await.expect("opened");
            } else {
                let cut = SetAttr { caller: caller(&c), inode, len: Some(0), ..SetAttr::default() };
                c.setattr(cut).await.expect("cut");
            }
        });
        let file = opened.take().expect("open");
        lab.written_behind_a_cut_is_there(file, format!("by_open: {by_open}"));
    }
}

/// A client opens a file and cuts it to nothing, and another client cuts it again before the first one has its answer, which waits until
/// the other one has heard of it: what the first one writes then is in the file as it is now.
#[test]
fn what_is_written_after_a_truncate_that_overtook_the_open_is_there() {
    for by_make in [false, true] {
        let lab = Lab::new(34);
        lab.run(0, |c| async move {
            let file = open_or_make(&c, "f").await.expect("open").0;
            file.write(0, Buf::from_vec(vec![7; 8192])).await.expect("written");
            c.close_session(report(&c, &file, false)).await.expect("closed");
        });
        lab.cluster.run_for(Duration::from_secs(3));
        let inode = lab.run(0, |c| async move { look(&c, "f").await.expect("there").inode });
        // It has a lease now. What it is told is on its way for long, what it says is not.
        let (world, meta) = (&lab.cluster.world, &lab.cluster.metas[0].node);
        let (other, late) = (&lab.cluster.clients[0], 600_000_000);
        let link = world.link(meta, other);
        world.set_link(
            meta,
            other,
            glowfs_sim::world::Link { latency_ns_min: late, latency_ns_max: late, ..link },
        );

        let opened: Rc<RefCell<Option<Rc<OpenFile>>>> = Rc::default();
        let (keep, c) = (opened.clone(), lab.clients[1].clone());
        lab.cluster.clients[1].rt().spawn_detached(async move {
            let session = c.new_session();
            let flags = OpenFlags {
                read: true,
                write: true,
                truncate: true,
                session,
                ..Default::default()
            };
            let reply = if by_make {
                let again = Make { open: Some(flags), exclusive: false, ..make(&c, 0, "f") };
                c.make(again).await.expect("made").open.expect("open")
            } else {
                let (caller, request) = (caller(&c), RequestId(0));
                c.open(Open { caller, request, inode, flags }).await.expect("opened")
            };
            let access = glowfs_client::FileAccess {
                caller: caller(&c),
                read: true,
                write: true,
                exec: false,
            };
            *keep.borrow_mut() = Some(c.open_file(&reply, access).expect("a file"));
        });
        lab.cluster.run_for(Duration::from_millis(100));
        let c = lab.clients[0].clone();
        lab.cluster.clients[0].rt().spawn_detached(async move {
            let cut = SetAttr { caller: caller(&c), inode, len: Some(0), ..SetAttr::default() };
            c.setattr(cut).await.expect("cut");
        });
        lab.cluster.run_for(Duration::from_millis(300));
        assert!(opened.borrow().is_none(), "the first one waits for what the other one is told");
        assert!(lab.cluster.run_until(LIMIT, || opened.borrow().is_some()), "opened");
        let file = opened.take().expect("open");
        lab.written_behind_a_cut_is_there(file, format!("by_make: {by_make}"));
    }
}
