//! Sessions: what ends them and with which length, their client's death, closes one by one and together.

use super::lab::{Lab, SHAPE, look, name};
use glowfs_client::{Client, FileAccess, OpenFile};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::scenes::doomed;
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_types::wire::append::Append;
use glowfs_types::wire::lock::{Lock, LockHolder, LockWish};
use glowfs_types::wire::meta::{Open, OpenFlags, ROOT_INODE, Rename, Sync as SyncFile};
use glowfs_types::*;
use std::cell::RefCell;
use std::rc::Rc;

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

/// Nobody knows whether a client has a file open that cannot be asked for a while: what is removed, or replaced by a rename, stays until it can be, and then until it is closed.
#[test]
fn what_a_client_has_open_that_cannot_be_asked_stays() {
    for (seed, stopped) in [(26, false), (27, true)] {
        let lab = Lab::new(seed);
        lab.run(0, |c| async move {
            for (file, byte) in [("f", 7), ("g", 8), ("h", 9)] {
                let (file, _) = open_or_make(&c, file).await.expect("made");
                file.write(0, Buf::from_vec(vec![byte; 9000])).await.expect("written");
                c.close_session(report(&c, &file, true)).await.expect("closed");
            }
        });
        let open: Rc<RefCell<Vec<Rc<OpenFile>>>> = Rc::default();
        let keep = open.clone();
        lab.run(1, move |c| async move {
            for file in ["f", "g"] {
                let inode = look(&c, file).await.expect("there").inode;
                let flags = OpenFlags { read: true, ..OpenFlags::default() };
                let (caller, request) = (caller(&c), RequestId(0));
                let asked = Open { caller: caller.clone(), request, inode, flags };
                let opened = c.open(asked).await.expect("opened");
                let access = FileAccess { caller, read: true, write: false, exec: false };
                keep.borrow_mut().push(c.open_file(&opened, access).expect("open"));
            }
        });
        let (meta, reader) = (&lab.cluster.metas[0].node, &lab.cluster.clients[1]);
        let away = Duration::from_secs(5);
        if stopped {
            reader.freeze(away);
        } else {
            lab.cluster.world.cut(meta, reader);
        }
        let until = lab.cluster.world.now() + away;
        lab.run(0, |c| async move {
            unlink(&c, ROOT_INODE, "f", false).await.expect("removed");
            let rename = Rename {
                caller: caller(&c),
                request: RequestId(0),
                parent: ROOT_INODE,
                name: name("h"),
                new_parent: ROOT_INODE,
                new_name: name("g"),
                flags: 0,
            };
            c.rename(rename).await.expect("replaced");
        });
        let now = lab.cluster.world.now();
        assert!(now < until, "seed {seed}: it was away all the time");
        lab.cluster.run_for(until - now);
        lab.cluster.world.heal();
        lab.cluster.run_for(Duration::from_secs(15));
        let files = open.borrow().clone();
        lab.run(1, move |c| async move {
            for (file, byte) in files.iter().zip([7, 8]) {
                let (read, bytes) = file.read(0, c.rt().alloc(9000)).await;
                assert_eq!(read.expect("readable"), 9000, "seed {seed}: file of {byte}");
                assert!(bytes.iter().all(|b| *b == byte), "seed {seed}: file of {byte}");
            }
        });
        open.borrow_mut().clear();
        let storage = lab.cluster.storages[0].id();
        let left = || {
            lab.run(0, move |c| async move {
                let info = c.storage_info(storage).await.expect("told");
                info.targets.iter().map(|t| t.1).sum::<u64>()
            })
        };
        assert_eq!(left(), 3);
        lab.cluster.run_for(Duration::from_secs(30));
        assert_eq!(left(), 1, "seed {seed}: they go when they are closed");
    }
}

#[test]
fn what_is_opened_when_its_client_has_said_no_is_not_erased() {
    let opened = doomed::opened_late(37);
    assert!((1..doomed::FILES).contains(&opened), "{opened} of {} could be opened", doomed::FILES);
}

/// The metadata service does not reach one storage node, which mgmtd and the others do reach, and a client dies that had many files open there. A second one dies
/// meanwhile, with nothing on that node: its lock, and its file's length, waited until all of those had been tried, again and again.
#[test]
fn sessions_that_cannot_be_ended_keep_nothing_of_other_clients() {
    const FILES: usize = 120;
    let lab = Lab::with(36, Shape { storages: 2, chains: 2, clients: 3, ..SHAPE });
    let away = lab.cluster.storages[0].id();
    let open = |client: usize, count: usize, elsewhere: bool| {
        lab.run(client, move |c| async move {
            let (mut there, mut made) = (Vec::new(), 0);
            while there.len() < count {
                let name = format!("{client}-{made}");
                made += 1;
                let (file, open) = open_or_make(&c, &name).await.expect("made");
                let (info, layout) = (c.routing(), open.attr.layout.expect("of a file"));
                let table = info.newest_table(layout.table).expect("the table");
                let chain = &info.chains[&table.chains[layout.start as usize]];
                if (chain.members[0].node == away) == elsewhere {
                    c.close_session(report(&c, &file, false)).await.expect("closed");
                    continue;
                }
                file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("written");
                there.push((name, open.attr.inode));
            }
            there
        })
    };
    open(1, FILES, false);
    let mine = open(2, 1, true).remove(0);
    let lock = move |c: &Client, request| Lock {
        caller: caller(c),
        request: RequestId(request),
        inode: mine.1,
        owner: 1,
        wish: LockWish::Exclusive,
        end: u64::MAX,
        ..Lock::default()
    };
    lab.run(2, move |c| async move { c.lock(lock(&c, 77)).await.expect("locked") });
    let (world, meta) = (&lab.cluster.world, &lab.cluster.metas[0].node);
    let node = &lab.cluster.storages[0].node;
    world.cut(meta, node);
    world.cut(node, meta);
    lab.cluster.clients[1].crash();
    // Its sessions are being tried.
    lab.cluster.run_for(Duration::from_secs(40));
    lab.cluster.clients[2].crash();
    // mgmtd takes some seconds to see it, then its grace begins.
    lab.cluster.run_for(Duration::from_secs(55));
    lab.run(0, move |c| async move {
        let held = c.lock(lock(&c, 78)).await.expect("asked").holder;
        assert_eq!(held, None, "a dead client has its lock still");
        assert_eq!(look(&c, &mine.0).await.expect("there").len, 9000, "its session is there still");
    });
    lab.cluster.world.mend_links();
    lab.cluster.run_for(Duration::from_secs(60));
    lab.run(0, move |c| async move {
        let mut ended = 0;
        for n in 0..4 * FILES {
            ended += usize::from(look(&c, &format!("1-{n}")).await.is_ok_and(|a| a.len == 9000));
        }
        assert_eq!(ended, FILES, "all are ended when the node is back");
    });
}

/// A client dies that has appended to a file and has not said how long it is, and the metadata service does not reach the file's chunks, which everybody else does. Another
/// client got the right to append when the locks of the dead one were due, with the length from before, and wrote over what was acknowledged.
#[test]
fn nobody_appends_over_what_a_dead_client_has_appended() {
    let lab = Lab::with(37, Shape { storages: 2, chains: 2, clients: 3, ..SHAPE });
    let away = lab.cluster.storages[0].id();
    let append = |client: usize, inode: InodeId, grant: u128| {
        lab.run(client, move |c| async move {
            let (caller, grant) = (caller(&c), RequestId(grant));
            c.append(Append { caller, inode, grant, release: false }).await.expect("asked").attr
        })
    };
    // A file whose chunks are there.
    let (name, file) = lab.run(1, move |c| async move {
        let mut n = 0;
        loop {
            n += 1;
            let (file, open) = open_or_make(&c, &format!("log-{n}")).await.expect("made");
            let (info, layout) = (c.routing(), open.attr.layout.expect("of a file"));
            let table = info.newest_table(layout.table).expect("the table");
            let chain = &info.chains[&table.chains[layout.start as usize]];
            if chain.members[0].node == away {
                return (format!("log-{n}"), file);
            }
            c.close_session(report(&c, &file, false)).await.expect("closed");
        }
    });
    let inode = file.inode();
    async fn lock(c: Rc<Client>, request: u128) -> Option<LockHolder> {
        let (other, open) = open_or_make(&c, "other").await.expect("there");
        c.close_session(report(&c, &other, false)).await.expect("closed");
        let (inode, request, wish) = (open.attr.inode, RequestId(request), LockWish::Exclusive);
        let (caller, end) = (caller(&c), u64::MAX);
        let q = Lock { caller, request, inode, owner: 1, wish, end, ..Lock::default() };
        c.lock(q).await.expect("asked").holder
    }
    assert_eq!(append(1, inode, 11).map(|a| a.len), Some(0));
    let held = lab.run(1, move |c| async move {
        file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("appended");
        // Something else it has locked, and not open.
        lock(c, 12).await
    });
    assert_eq!(held, None);
    let kept = lab.run(2, move |c| async move { open_or_make(&c, &name).await.expect("open") });
    let (world, meta) = (&lab.cluster.world, &lab.cluster.metas[0].node);
    let node = &lab.cluster.storages[0].node;
    world.cut(meta, node);
    world.cut(node, meta);
    lab.cluster.clients[1].crash();
    // mgmtd takes some seconds to see it, then the grace of locks begins.
    for _ in 0..9 {
        lab.cluster.run_for(Duration::from_secs(10));
        let granted = append(2, inode, 21).map(|a| a.len);
        assert_eq!(granted, None, "it would begin where the dead client did");
    }
    let held = lab.run(2, move |c| lock(c, 22));
    assert_eq!(held, None, "what it had elsewhere is given back");
    lab.cluster.world.mend_links();
    lab.cluster.run_for(Duration::from_secs(60));
    assert_eq!(append(2, inode, 23).map(|a| a.len), Some(9000), "behind what was acknowledged");
    drop(kept);
}
