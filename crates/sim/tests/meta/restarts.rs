//! What a later life of the service says and gives out, after one that may have lost something: editions, ids.

use super::lab::{Lab, SHAPE, look, make};
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::workload::caller;
use glowfs_types::wire::meta::*;
use std::collections::BTreeSet;

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
