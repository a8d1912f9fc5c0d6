//! Random operations against the naive file system: results, errors and the whole tree must be equal after each. And random
//! renames side by side.

use super::naive::Model;
use super::tree::tree;
use super::{make_q, name, op, who};
use crate::checked::checked;
use crate::emptied::remove_tree;
use crate::world::World;
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::RemoveTree;
use glowfs_types::*;
use std::collections::BTreeMap;
use std::rc::Rc;

fn status<T>(r: Result<T>) -> Result<(), Status> {
    r.map(|_| ()).map_err(|e| e.status)
}

async fn random_run(rt: &Rt, seed: u64, steps: u32) {
    let w = World::new(rt, 0).await;
    let mut m = Model::default();
    m.dirs.insert(1, BTreeMap::new());
    m.parents.insert(1, 1);
    let mut state = seed;
    let mut below = |n: u64| {
        state = state.wrapping_add(1);
        layout::splitmix64(state) % n
    };
    let mut ids = vec![1u64];
    let names = ["a", "b", "c", "d"];
    for step in 0..steps {
        w.clock.set(w.clock.get() + 1);
        let pick = |r: u64| InodeId(ids[r as usize % ids.len()]);
        let (p, p2, i) = (pick(below(99)), pick(below(99)), pick(below(99)));
        let (n, n2) = (names[below(4) as usize], names[below(4) as usize]);
        let request = RequestId(u128::from(step) + 1);
        let (got, want, what);
        match [0, 1, 2, 3, 4, 5, 0, 1, 4, 5, 0, 6][below(12) as usize] {
            k @ 0..=1 => {
                let kind = if k == 0 { InodeKind::Directory } else { InodeKind::File };
                let r = op!(w, ns::make, Make { request, ..make_q(who(0), p, n, kind) });
                want = m
                    .dir(p.0)
                    .and_then(|d| if d.contains_key(n) { Err(Status::Exists) } else { Ok(()) });
                if let Ok(made) = &r {
                    let id = made.attr.inode.0;
                    ids.push(id);
                    m.dir(p.0).expect("dir").insert(n.into(), id);
                    if kind == InodeKind::Directory {
                        m.dirs.insert(id, BTreeMap::new());
                        m.parents.insert(id, p.0);
                    } else {
                        m.links.insert(id, 1);
                    }
                    // The same request again changes nothing.
                    let again = op!(w, ns::make, Make { request, ..make_q(who(0), p, n, kind) });
                    assert_eq!(again.expect("retry").attr.inode.0, id);
                }
                (got, what) = (status(r), format!("make {kind:?} {p}/{n}"));
            }
            k @ 2..=3 => {
                let q =
                    Unlink { caller: who(0), request, parent: p, name: name(n), directory: k == 2 };
                let r = op!(w, ns::unlink, q.clone());
                if r.is_ok() {
                    assert_eq!(op!(w, ns::unlink, q.clone()).expect("retry"), None);
                }
                (got, want) = (status(r), m.unlink(p.0, n, k == 2));
                what = format!("unlink {p}/{n} dir {}", k == 2);
            }
            4 => {
                let q = Link { caller: who(0), request, inode: i, parent: p, name: name(n) };
                (got, want) = (status(op!(w, ns::link, q.clone())), m.link(i.0, p.0, n));
                what = format!("link {i} {p}/{n}");
            }
            6 => {
                let (inode, name) = (InodeId(0), name(n));
                let q =
                    RemoveTree { caller: who(0), request, parent: p, name, inode, check: false };
                got = status(remove_tree(&w, &q, below(3) as u32 + 1).await);
                (want, what) = (m.remove_tree(p.0, n), format!("remove tree {p}/{n}"));
            }
            _ => {
                let flags = below(3) as u32;
                let q = Rename {
                    caller: who(0),
                    request,
                    parent: p,
                    name: name(n),
                    new_parent: p2,
                    new_name: name(n2),
                    flags,
                };
                (got, want) =
                    (status(op!(w, ns::rename, q.clone())), m.rename(p.0, n, p2.0, n2, flags));
                what = format!("rename {p}/{n} {p2}/{n2} flags {flags}");
            }
        }
        assert_eq!(got, want, "seed {seed} step {step}: {what}");
        if step % 10 == 0 || step + 1 == steps {
            let t = tree(&w).await;
            assert_eq!(t.dirs, m.dirs, "seed {seed} step {step}: {what}");
            assert_eq!(t.links, m.links, "seed {seed} step {step}: {what}");
        }
    }
    checked(&w.rt, &w.engine, &w, &who(0), &format!("seed {seed}")).await;
}

#[test]
fn random_operations_equal_the_model() {
    real::run(|rt| async move {
        for seed in 0..20 {
            random_run(&rt, seed * 1_000_003, 300).await;
        }
    });
}

#[test]
fn concurrent_renames_make_no_cycle() {
    real::run(|rt| async move {
        let w = Rc::new(World::new(&rt, 0).await);
        let mut dirs = vec![InodeId(1)];
        for n in ["a", "b", "c", "d", "e"] {
            dirs.push(
                op!(*w, ns::make, make_q(who(0), InodeId(1), n, InodeKind::Directory))
                    .expect("mkdir")
                    .attr
                    .inode,
            );
        }
        let mut tasks = vec![];
        for worker in 0..4u64 {
            let (w, dirs, rt2) = (w.clone(), dirs.clone(), rt.clone());
            tasks.push(rt.spawn(async move {
                let mut done = 0;
                for i in 0..200u64 {
                    let r = layout::splitmix64(worker * 1000 + i);
                    let names = ["a", "b", "c", "d", "e"];
                    let (n, from, to) = (
                        names[(r % 5) as usize],
                        dirs[(r >> 8) as usize % 6],
                        dirs[(r >> 16) as usize % 6],
                    );
                    let q = Rename {
                        caller: who(0),
                        request: RequestId(0),
                        parent: from,
                        name: name(n),
                        new_parent: to,
                        new_name: name(n),
                        flags: 0,
                    };
                    // Yield between the reads, so that others come in between.
                    let moved = run_transaction(&w.rt, &w.engine, async |tx| {
                        let r = ns::rename(&Context::new(tx, &q.caller, &*w), &q).await;
                        rt2.yield_now().await;
                        r
                    })
                    .await;
                    done += u32::from(moved.is_ok());
                }
                done
            }));
        }
        let mut done = 0;
        for t in tasks {
            done += t.await;
        }
        assert!(done > 20, "only {done} renames succeeded");
        let t = tree(&w).await;
        assert_eq!(t.dirs.len(), 6, "a directory is out of reach: {t:?}");
        checked(&w.rt, &w.engine, &*w, &who(0), "concurrent renames").await;
    });
}
