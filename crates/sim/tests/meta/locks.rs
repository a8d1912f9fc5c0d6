//! Locks, and rights to append, when the machine of the metadata engine loses its power: what was answered stays so.

use super::lab::{Lab, SHAPE, make};
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::workload::caller;
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::wire::append::Append;
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::*;

/// Losses of power of each kind: the simulated disk keeps a random part of what was not flushed.
const ROUNDS: u128 = 12;

fn ask(client: &Client, inode: InodeId, request: u128, wish: LockWish) -> Lock {
    Lock {
        caller: caller(client),
        request: RequestId(request),
        inode,
        owner: 1,
        wish,
        end: u64::MAX,
        ..Lock::default()
    }
}

/// A file that was made long ago.
fn file(lab: &Lab, number: u128) -> InodeId {
    let made = move |c: std::rc::Rc<Client>| async move {
        c.make(make(&c, number, &format!("f{number}"))).await.expect("made").attr.inode
    };
    let inode = lab.run(0, made);
    lab.cluster.run_for(Duration::from_millis(500));
    inode
}

/// What the client with this number is told when it asks for, or gives back, the lock of the whole file.
fn lock(lab: &Lab, client: usize, inode: InodeId, request: u128, wish: LockWish) -> bool {
    let answer =
        lab.run(client, move |c| async move { c.lock(ask(&c, inode, request, wish)).await });
    answer.expect("answered").holder.is_none()
}

/// Who was told that he has a lock has it still when the engine is back: nobody else gets it.
#[test]
fn a_granted_lock_outlives_a_loss_of_power() {
    for metas in [1, 2] {
        let lab = Lab::as_shipped(41, Shape { metas, ..SHAPE });
        for n in (1..=ROUNDS).map(|n| n * 100) {
            let inode = file(&lab, n);
            assert!(lock(&lab, 0, inode, n + 1, LockWish::Exclusive), "it is free");
            lab.restart(true);
            let twice = lock(&lab, 1, inode, n + 2, LockWish::Exclusive);
            assert!(!twice, "{metas} services, round {n}: two clients have one lock");
        }
    }
}

/// Who was told that he gave a lock back does not have it again when the engine is back, for he would never give it back.
#[test]
fn a_lock_that_was_given_back_stays_so_after_a_loss_of_power() {
    let lab = Lab::as_shipped(42, SHAPE);
    for n in (1..=ROUNDS).map(|n| n * 100) {
        let inode = file(&lab, n);
        assert!(lock(&lab, 0, inode, n + 1, LockWish::Exclusive), "it is free");
        lab.cluster.run_for(Duration::from_millis(500));
        assert!(lock(&lab, 0, inode, n + 2, LockWish::Release), "given back");
        lab.restart(true);
        assert!(lock(&lab, 1, inode, n + 3, LockWish::Exclusive), "round {n}: nobody has it");
    }
}

/// Whether the client with this number gets the right to append to a file.
fn may_append(lab: &Lab, client: usize, inode: InodeId, grant: u128) -> bool {
    let asked = lab.run(client, move |c| async move {
        let (caller, grant) = (caller(&c), RequestId(grant));
        c.append(Append { caller, inode, grant, release: false }).await
    });
    asked.expect("answered").attr.is_some()
}

/// Who was told that the ends of a file are his has them still when the engine is back: appends of two clients would overlap.
#[test]
fn a_right_to_append_that_was_given_outlives_a_loss_of_power() {
    for metas in [1, 2] {
        let lab = Lab::as_shipped(43, Shape { metas, ..SHAPE });
        for n in (1..=ROUNDS).map(|n| n * 100) {
            let open = |client| {
                lab.run(client, move |c| async move {
                    open_or_make(&c, &format!("a{n}")).await.expect("open").0
                })
            };
            let files = [open(0), open(1)];
            // That they have it open is on disk.
            lab.cluster.run_for(Duration::from_millis(500));
            let inode = files[0].inode();
            assert!(may_append(&lab, 0, inode, n + 1), "nobody has it");
            lab.restart(true);
            let twice = may_append(&lab, 1, inode, n + 2);
            assert!(!twice, "{metas} services, round {n}: two clients may append");
        }
    }
}
