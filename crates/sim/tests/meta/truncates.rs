//! Truncates to nothing of files that others have open for writing.

use super::lab::{LIMIT, Lab, SHAPE, look, make, name, written_behind_a_cut_is_there};
use glowfs_client::OpenFile;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::workload::{caller, open_or_make, open_or_make_in, report};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::RefCell;
use std::rc::Rc;

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
        written_behind_a_cut_is_there(&lab, file, format!("by_open: {by_open}"));
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
        written_behind_a_cut_is_there(&lab, file, format!("by_make: {by_make}"));
    }
}

/// An open that cuts to nothing waited for another truncate, and its client died meanwhile: half a minute later it was done all the same, when others had long
/// gone on with the file.
#[test]
fn an_open_that_nobody_waits_for_any_more_cuts_nothing() {
    let lab = Lab::with(35, Shape { clients: 3, ..SHAPE });
    lab.run(1, |c| async move {
        let file = open_or_make(&c, "f").await.expect("made").0;
        file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("written");
        c.sync(report(&c, &file, true)).await.expect("told");
    });
    lab.cluster.clients[1].crash();
    lab.cluster.run_for(Duration::from_secs(1));
    let inode = lab.run(0, |c| async move { look(&c, "f").await.expect("there").inode });
    // This one waits until what the dead writer may has ended.
    let (c, cut) = (lab.clients[0].clone(), Rc::new(RefCell::new(false)));
    let done = cut.clone();
    lab.cluster.clients[0].rt().spawn_detached(async move {
        let cut = SetAttr { caller: caller(&c), inode, len: Some(5000), ..SetAttr::default() };
        c.setattr(cut).await.expect("cut");
        *done.borrow_mut() = true;
    });
    lab.cluster.run_for(Duration::from_secs(1));
    let c = lab.clients[2].clone();
    lab.cluster.clients[2].rt().spawn_detached(async move {
        let (session, request) = (SessionId(5), RequestId(0));
        let flags = OpenFlags { write: true, truncate: true, session, ..Default::default() };
        let _ = c.open(Open { caller: caller(&c), request, inode, flags }).await;
    });
    lab.cluster.run_for(Duration::from_secs(1));
    lab.cluster.clients[2].crash();
    assert!(!*cut.borrow(), "it waits");
    assert!(lab.cluster.run_until(LIMIT, || *cut.borrow()), "cut");
    lab.cluster.run_for(Duration::from_secs(5));
    lab.run(0, |c| async move {
        assert_eq!(look(&c, "f").await.expect("there").len, 5000);
    });
}

/// An open that may create finds the file while it is being cut, and the name is gone when it looks whose it is: it was told that there is no such file.
#[test]
fn an_open_that_may_create_makes_what_is_removed_under_it() {
    const DIRS: u64 = 24;
    let lab = Lab::with(37, Shape { clients: 3, metas: 2, ..SHAPE });
    let dirs: Vec<InodeId> = lab.run(1, |c| async move {
        let mut dirs = Vec::new();
        for n in 0..DIRS {
            let dir =
                Make { kind: InodeKind::Directory, mode: 0o777, ..make(&c, 0, &format!("d{n}")) };
            let dir = c.make(dir).await.expect("made").attr.inode;
            let file = open_or_make_in(&c, dir, "f").await.expect("made").0;
            file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("written");
            c.sync(report(&c, &file, true)).await.expect("told");
            dirs.push(dir);
        }
        dirs
    });
    lab.cluster.clients[1].crash();
    lab.cluster.run_for(Duration::from_secs(1));
    let in_dir =
        |c: &glowfs_client::Client, parent| Lookup { caller: caller(c), parent, name: name("f") };
    // These wait until what the dead writer may has ended.
    for dir in dirs.clone() {
        let c = lab.clients[0].clone();
        lab.cluster.clients[0].rt().spawn_detached(async move {
            let inode = c.lookup(in_dir(&c, dir)).await.expect("there").attr.inode;
            let cut = SetAttr { caller: caller(&c), inode, len: Some(5000), ..SetAttr::default() };
            let _ = c.setattr(cut).await;
        });
    }
    lab.cluster.run_for(Duration::from_secs(2));
    // One of the services has the engine far away: its transactions take long.
    let (world, metas) = (&lab.cluster.world, &lab.cluster.metas);
    for (a, b) in [(0, 1), (1, 0)] {
        let (a, b) = (&metas[a].node, &metas[b].node);
        let far = glowfs_sim::world::Link {
            latency_ns_min: 100_000_000,
            latency_ns_max: 100_000_000,
            ..world.link(a, b)
        };
        world.set_link(a, b, far);
    }
    let answers: Rc<RefCell<Vec<Result<Attr>>>> = Rc::default();
    for (n, dir) in dirs.into_iter().enumerate() {
        let (c, answers) = (lab.clients[2].clone(), answers.clone());
        lab.cluster.clients[2].rt().spawn_detached(async move {
            let flags = OpenFlags {
                read: true,
                write: true,
                session: c.new_session(),
                ..Default::default()
            };
            let q = Make { parent: dir, open: Some(flags), exclusive: false, ..make(&c, 0, "f") };
            let made = c.make(q).await.map(|r| r.attr);
            answers.borrow_mut().push(made);
        });
        let c = lab.clients[0].clone();
        lab.cluster.clients[0].rt().spawn_detached(async move {
            c.rt().sleep(Duration::from_millis(60) * n as u32).await;
            let Lookup { caller, parent, name } = in_dir(&c, dir);
            let q = Unlink { caller, request: RequestId(0), parent, name, directory: false };
            c.unlink(q).await.expect("removed");
        });
    }
    assert!(lab.cluster.run_until(LIMIT, || answers.borrow().len() == DIRS as usize), "answered");
    for answer in answers.take() {
        answer.expect("it is there, or is made");
    }
}

/// Counts what a client is told of a file that was cut.
struct Told(std::cell::Cell<u32>);

impl glowfs_client::RecallHandler for Told {
    fn recall(&self, recall: Recall) -> glowfs_rt::BoxFuture<()> {
        self.0.set(self.0.get() + u32::from(recall.epoch.is_some()));
        Box::pin(std::future::ready(()))
    }
}

/// Who only changes the mode of a file that another client has begun to cut was taken for the one that cuts it, and was not told of the cut.
#[test]
fn who_changes_something_else_of_a_file_that_is_cut_is_told_of_the_cut() {
    let lab = Lab::new(38);
    let told = Rc::new(Told(std::cell::Cell::new(0)));
    let handler = told.clone();
    let inode = lab.run(0, |c| async move {
        c.on_recall(handler);
        let file = open_or_make(&c, "f").await.expect("made").0;
        file.write(0, Buf::from_vec(vec![7; 9000])).await.expect("written");
        c.sync(report(&c, &file, true)).await.expect("told");
        let inode = file.inode();
        let rt = c.rt().clone();
        rt.spawn_detached(async move {
            c.rt().sleep(Duration::from_secs(3600)).await;
            drop(file);
        });
        inode
    });
    lab.cluster.run_for(Duration::from_secs(3));
    // The other one's truncate is committed, and what it is to tell is on its way when the service dies, and then the client.
    let (world, meta) = (&lab.cluster.world, &lab.cluster.metas[0].node);
    let link = world.link(meta, &lab.cluster.clients[0]);
    let late = 3_000_000_000;
    world.set_link(
        meta,
        &lab.cluster.clients[0],
        glowfs_sim::world::Link { latency_ns_min: late, latency_ns_max: late, ..link },
    );
    let c = lab.clients[1].clone();
    lab.cluster.clients[1].rt().spawn_detached(async move {
        let cut = SetAttr { caller: caller(&c), inode, len: Some(5000), ..SetAttr::default() };
        let _ = c.setattr(cut).await;
    });
    lab.cluster.run_for(Duration::from_millis(600));
    lab.cluster.clients[1].crash();
    lab.restart(false);
    lab.cluster.world.mend_links();
    assert_eq!(told.0.get(), 0, "not yet");
    lab.run(0, move |c| async move {
        let mode = SetAttr { caller: caller(&c), inode, mode: Some(0o600), ..SetAttr::default() };
        let attr = c.setattr(mode).await.expect("changed").attr;
        assert_eq!(attr.len, 5000, "the other one's truncate was committed");
    });
    assert!(told.0.get() > 0, "nobody told it");
}
