//! Opens and ends of truncates that are answered, and that the machine of the metadata engine takes along when it loses its power: who has the file open goes on, and what he wrote is
//! found.

use super::lab::{LIMIT, Lab, SHAPE, look};
use glowfs_client::{Client, ClientConfig, FileAccess, OpenFile};
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Shape};
use glowfs_sim::cluster::workload::{caller, open, open_or_make, report};
use glowfs_sim::world::DiskFaults;
use glowfs_telemetry::Registry;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Losses of power of each kind: the simulated disk keeps a random part of what was not flushed.
const ROUNDS: u64 = 12;
/// Longer than the engine waits with a flush.
const FLUSHED_US: u64 = 60_000;
const LEN: usize = 5000;

fn some_us(lab: &Lab, below: u64) -> Duration {
    Duration::from_micros(lab.cluster.world.random(|r| r.below(below)))
}

/// A file that is on the disks.
fn made(lab: &Lab, client: usize, name: String, len: usize) -> InodeId {
    lab.run(client, move |c| async move {
        let (file, _) = open_or_make(&c, &name).await.expect("made");
        file.write(0, Buf::from_vec(vec![7; len])).await.expect("written");
        file.flush().await.expect("flushed");
        c.close_session(report(&c, &file, true)).await.expect("closed");
        file.inode()
    })
}

/// The client has it open, and has written to it.
fn written(lab: &Lab, client: usize, inode: InodeId, at: u64) -> Rc<OpenFile> {
    lab.run(client, move |c| async move {
        let (file, _) = open(&c, inode).await.expect("opened");
        file.write(at, Buf::from_vec(vec![8; LEN])).await.expect("written");
        file
    })
}

/// The client has cut it to nothing, and written so much.
fn emptied(lab: &Lab, client: usize, inode: InodeId, len: usize) -> Rc<OpenFile> {
    lab.run(client, move |c| async move {
        let (write, truncate, session) = (true, true, c.new_session());
        let flags = OpenFlags { write, truncate, session, ..OpenFlags::default() };
        let q = Open { caller: caller(&c), request: RequestId(0), inode, flags };
        let reply = c.open(q).await.expect("opened");
        let access = FileAccess { caller: caller(&c), read: false, write: true, exec: false };
        let file = c.open_file(&reply, access).expect("open");
        file.write(0, Buf::from_vec(vec![8; len])).await.expect("written");
        file
    })
}

/// What another client finds from there on.
fn found(lab: &Lab, name: String, at: u64) -> (u64, Vec<u8>) {
    lab.run(0, move |c| async move {
        let (file, opened) = open_or_make(&c, &name).await.expect("there");
        let (read, bytes) = file.read(at, c.rt().alloc(LEN)).await;
        read.expect("read");
        c.close_session(report(&c, &file, false)).await.expect("closed");
        (opened.attr.len, bytes.to_vec())
    })
}

/// Whether meta has the session of an open file.
fn is_there(lab: &Lab, client: usize, file: &OpenFile) -> bool {
    let (inode, session) = (file.inode(), file.session());
    lab.run(client, move |c| async move {
        let (caller, read, write) = (caller(&c), true, true);
        let q = Renew { caller, inode, session, read, write, spill: false, exec: false };
        c.renew(q).await.map_err(|e| assert_eq!(e.status, Status::SessionEnded)).is_ok()
    })
}

/// Its session was lost: the next fsync and the close have meta open it once more, and the length that they tell counts. So does one that meta had been told before, and has lost: a
/// mount does not tell it twice.
#[test]
fn what_was_opened_just_before_a_loss_of_power_is_open_still() {
    let lab = Lab::as_shipped(64, SHAPE);
    let mut lost = 0;
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        let inode = made(&lab, 1, name.clone(), 100);
        lab.cluster.run_for(Duration::from_secs(1));
        let file = written(&lab, 1, inode, 100);
        let end = 100 + LEN as u64;
        let told = round % 3 == 0;
        if told {
            let file = file.clone();
            lab.run(1, |c| async move { c.sync(report(&c, &file, false)).await.expect("told") });
        }
        lab.cluster.run_for(some_us(&lab, FLUSHED_US / 2));
        lab.restart(true);
        let gone = !is_there(&lab, 1, &file);
        lost += u64::from(gone);
        // (Where its session is there, a mount that told it is told that it is lost.)
        let told = told && gone;
        let attr = lab.run(1, move |c| async move {
            let q = report(&c, &file, true);
            let q = Sync { len_at_least: q.len_at_least.filter(|_| !told), ..q };
            match told || round % 2 == 0 {
                true => {
                    let synced = c.sync(q).await.expect("it is open still").attr;
                    c.close_session(report(&c, &file, false)).await.expect("closed");
                    synced
                }
                false => c.close_session(q).await.expect("it is open still").attr,
            }
        });
        assert_eq!(attr.len, end, "round {round}");
        let (len, bytes) = found(&lab, name, 100);
        assert!(len == end && bytes.iter().all(|b| *b == 8), "round {round}: {len}");
    }
    assert!(lost > 2, "{lost} sessions were lost, of {ROUNDS}");
}

/// Sessions that were put back, in all services of this process.
fn put_back() -> u64 {
    let text = Registry::global().text();
    let value = text.lines().find_map(|l| l.strip_prefix("glowfs_meta_sessions_reopened_total "));
    value.expect("the counter").parse().expect("a number")
}

/// The power goes once more when the session has just been put back, and before the call that needed it is made again: that one still comes to its end.
#[test]
fn a_call_outlives_a_second_loss_of_its_session() {
    let lab = Lab::as_shipped(70, SHAPE);
    let mut twice = 0;
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        let inode = made(&lab, 1, name.clone(), 100);
        lab.cluster.run_for(Duration::from_secs(1));
        let file = written(&lab, 1, inode, 100);
        lab.cluster.run_for(some_us(&lab, FLUSHED_US / 8));
        lab.cluster.crash(&lab.cluster.metas[0], true);
        let (c, done) = (lab.clients[1].clone(), Rc::new(RefCell::new(None)));
        let (cut, out) = (file.clone(), done.clone());
        lab.cluster.clients[1].rt().spawn_detached(async move {
            let (session, len) = (cut.session(), Some(50));
            let q = SetAttr { caller: caller(&c), inode, len, session, ..SetAttr::default() };
            *out.borrow_mut() = Some(c.setattr(q).await.map(|r| r.attr.len));
        });
        lab.cluster.run_for(Duration::from_millis(300));
        lab.cluster.restart(&lab.cluster.metas[0]);
        let before = put_back();
        let there = || put_back() > before || done.borrow().is_some();
        assert!(lab.cluster.run_until(LIMIT, there), "answered");
        let again = done.borrow().is_none();
        lab.restart(true);
        assert!(lab.cluster.run_until(LIMIT, || done.borrow().is_some()), "answered");
        let len = done.take().expect("some").expect("its file is open still");
        assert_eq!(len, 50, "round {round}");
        twice += u64::from(again);
        lab.run(1, |c| async move {
            c.close_session(report(&c, &file, true)).await.expect("closed");
        });
    }
    assert!(twice > 2, "{twice} calls had their session lost again, of {ROUNDS}");
}

/// The truncate was lost with the session, and another client's truncate has got its number since: what was written under the former is none of the new content, and does not make it longer.
#[test]
fn what_was_written_under_a_truncate_that_is_lost_does_not_make_what_came_after_it_longer() {
    let lab = Lab::as_shipped(66, SHAPE);
    let mut given_again = 0;
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        let inode = made(&lab, 1, name.clone(), 100);
        lab.cluster.run_for(Duration::from_secs(1));
        let file = emptied(&lab, 1, inode, LEN);
        lab.cluster.run_for(some_us(&lab, FLUSHED_US / 4));
        // It hears of nothing before the other one is done.
        let away = &lab.cluster.clients[1];
        lab.cluster.world.isolate(away);
        lab.restart(true);
        let other = emptied(&lab, 0, inode, 10);
        let (before, now) = ((file.epoch(), file.data()), (other.epoch(), other.data()));
        let again = before.0 == now.0 && before.1 != now.1;
        given_again += u64::from(again);
        lab.run(
            0,
            |c| async move { c.close_session(report(&c, &other, true)).await.expect("closed") },
        );
        lab.cluster.world.heal();
        let told = lab.run(1, move |c| async move {
            let synced = c.sync(report(&c, &file, true)).await;
            let closed = c.close_session(report(&c, &file, true)).await;
            (synced.map(|r| r.attr.len), closed.map(|r| r.attr.len))
        });
        let (len, bytes) = found(&lab, name, 0);
        if again {
            assert_eq!((len, &bytes[..10]), (10, &[8; 10][..]), "round {round}: {told:?}");
        }
    }
    assert!(given_again > 2, "{given_again} numbers of {ROUNDS} were given out again");
}

/// Nobody asks for anything: the client finds by itself that its metadata service was away. So meta has the sessions when the client dies, and asks for the lengths.
#[test]
fn what_was_lost_is_open_again_before_its_client_dies() {
    let clients = 1 + ROUNDS as usize;
    let lab = Lab::as_shipped(65, Shape { clients, ..SHAPE });
    let files: Vec<_> = (1..clients).map(|who| made(&lab, who, format!("f{who}"), 100)).collect();
    lab.cluster.run_for(Duration::from_secs(1));
    let open: Rc<RefCell<Vec<Rc<OpenFile>>>> = Rc::default();
    for (who, inode) in (1..clients).zip(files) {
        let (c, open) = (lab.clients[who].clone(), open.clone());
        lab.cluster.clients[who].rt().spawn_detached(async move {
            let (file, _) = self::open(&c, inode).await.expect("opened");
            file.write(100, Buf::from_vec(vec![8; LEN])).await.expect("written");
            open.borrow_mut().push(file);
        });
    }
    let all = || open.borrow().len() == clients - 1;
    assert!(lab.cluster.run_until(Duration::from_secs(1), all), "all are written");
    lab.restart(true);
    lab.cluster.run_for(Duration::from_secs(8));
    for who in &lab.cluster.clients[1..] {
        who.kill();
    }
    open.borrow_mut().clear();
    lab.cluster.run_for(Duration::from_secs(90));
    lab.run(0, move |c| async move {
        for who in 1..clients {
            let len = look(&c, &format!("f{who}")).await.expect("there").len;
            assert_eq!(len, 100 + LEN as u64, "file of client {who}");
        }
    });
}

/// Under the epoch that the end of a truncate gave out somebody has written, and then the end of it went with the power: the truncate was done over, and cut that off, or the length was
/// not taken any more.
#[test]
fn what_was_written_after_a_truncate_outlives_a_loss_of_power() {
    let lab = Lab::as_shipped(66, Shape { clients: 3, ..SHAPE });
    let at = 2 * CHUNK_BYTES as u64;
    for round in 0..2 * ROUNDS {
        let name = format!("f{round}");
        let inode = made(&lab, 1, name.clone(), 3 * CHUNK_BYTES as usize);
        // One has it open all the time, the other one comes just behind the truncate.
        let writer = (round % 2 == 0).then(|| written(&lab, 2, inode, 0));
        lab.cluster.run_for(Duration::from_secs(1));
        lab.run(1, move |c| async move {
            let cut = SetAttr { caller: caller(&c), inode, len: Some(100), ..SetAttr::default() };
            c.setattr(cut).await.expect("cut");
        });
        let file = match writer {
            Some(file) => {
                let same = file.clone();
                lab.run(2, move |_| async move {
                    file.write(at, Buf::from_vec(vec![8; LEN])).await.expect("written");
                });
                same
            }
            None => written(&lab, 2, inode, at),
        };
        lab.cluster.run_for(some_us(&lab, 3_000));
        lab.restart(true);
        let attr = lab.run(2, move |c| async move {
            let synced = c.sync(report(&c, &file, true)).await.expect("synced").attr;
            c.close_session(report(&c, &file, false)).await.expect("closed");
            synced
        });
        assert_eq!(attr.len, at + LEN as u64, "round {round}");
        let (len, bytes) = found(&lab, name, at);
        let right = bytes.iter().all(|b| *b == 8);
        assert!(len == at + LEN as u64 && right, "round {round}: {len}, right: {right}");
    }
}

/// A client that mgmtd does not list, as one that was silent for too long: the cluster has ended its session, and the engine has lost its power since. What others did meanwhile went by
/// that it has nothing open.
#[test]
fn what_the_cluster_has_ended_is_not_opened_anew() {
    let lab = Lab::as_shipped(67, SHAPE);
    let inode = made(&lab, 1, "f".into(), 100);
    let node = &lab.cluster.clients[1];
    let (rt, config) = (node.rt(), lab.cluster.client_config());
    let open = async move {
        let config = ClientConfig { session: false, ..config };
        let c = Client::connect(&rt, config).await.expect("a client");
        let (file, _) = self::open(&c, inode).await.expect("opened");
        file.write(100, Buf::from_vec(vec![8; LEN])).await.expect("written");
        file
    };
    let file = lab.cluster.world.run(node, LIMIT, open).expect("in time");
    lab.cluster.run_for(Duration::from_secs(60));
    let len = lab.run(0, |c| async move { look(&c, "f").await.expect("there").len });
    assert_eq!(len, 100 + LEN as u64, "its session has ended");
    lab.restart(true);
    lab.run(1, |_| async move {
        let refused = file.renew().await.expect_err("it was not lost");
        assert_eq!(refused.status, Status::SessionEnded);
    });
}

/// Only what was open comes back: the capability of another session, or of another client, shows nothing, and without one nobody is believed.
#[test]
fn nobody_opens_anew_what_was_not_open() {
    let lab = Lab::as_shipped(68, SHAPE);
    let inode = made(&lab, 1, "f".into(), 100);
    let opened = lab.run(1, move |c| async move {
        let (file, opened) = open(&c, inode).await.expect("opened");
        (file, opened)
    });
    lab.cluster.run_for(Duration::from_secs(1));
    lab.restart(true);
    for who in [0, 1] {
        let (session, life) = (opened.1.session.expect("one"), opened.1.attr.life);
        let shown = opened.1.capability.clone();
        lab.run(who, move |c| async move {
            let (caller, request, strange) = (caller(&c), RequestId(0), SessionId(99));
            let q = Reopen { caller, request, inode, write: true, life, ..Reopen::default() };
            let mut asked = vec![
                Reopen { session: strange, capability: shown.clone(), ..q.clone() },
                Reopen { session: strange, ..q.clone() },
            ];
            if who == 0 {
                asked.push(Reopen { session, capability: shown, ..q });
            }
            for q in asked {
                let refused = c.reopen(q).await.expect_err("it was not open");
                assert_eq!(refused.status, Status::SessionEnded);
            }
        });
    }
}

/// Each operation of the engine's disk takes long: who cuts a file that nobody has open waits for the flush before the cut, and for none behind it; an open that cuts to nothing waits
/// for none. Who writes behind the cut waits for its end.
#[test]
fn only_who_writes_waits_for_the_end_of_a_truncate() {
    const SLOW: Duration = Duration::from_millis(50);
    let lab = Lab::as_shipped(69, SHAPE);
    let files = [0, 1, 2, 3].map(|n| made(&lab, 1, format!("f{n}"), 3 * CHUNK_BYTES as usize));
    lab.cluster.run_for(Duration::from_secs(1));
    let slow = SLOW.as_nanos() as u64;
    let faults =
        DiskFaults { slower_least_ns: slow, slower_most_ns: slow, ..DiskFaults::default() };
    lab.cluster.metas[0].node.disk("/engine").set_faults(faults);
    let took = lab.run(1, move |c| async move {
        let mut took = Vec::new();
        for (n, inode) in files.into_iter().enumerate() {
            let began = c.rt().now();
            if n % 2 == 0 {
                let (caller, len) = (caller(&c), Some(100));
                c.setattr(SetAttr { caller, inode, len, ..SetAttr::default() }).await.expect("cut");
                took.push(c.rt().now().since(began));
            }
            let (write, truncate, session) = (true, n % 2 == 1, c.new_session());
            let flags = OpenFlags { write, truncate, session, ..OpenFlags::default() };
            let began = c.rt().now();
            let q = Open { caller: caller(&c), request: RequestId(0), inode, flags };
            c.open(q).await.expect("opened");
            took.push(c.rt().now().since(began));
            c.rt().sleep(SLOW * 20).await;
        }
        took
    });
    let [cut, opened, emptied, cut_again, ..] = took[..] else { panic!("{took:?}") };
    assert!(cut.min(cut_again) < SLOW * 4, "two writes and one flush: {took:?}");
    assert!(opened >= SLOW * 2, "a write and a flush: {took:?}");
    assert!(emptied < SLOW * 2, "a write: {took:?}");
}
