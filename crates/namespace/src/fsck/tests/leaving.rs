//! Damage to trees that were removed as a whole and are being emptied.

use super::*;
use crate::record::{CookieEntry, pack};
use glowfs_rt::real;
use glowfs_types::wire::tree::RemoveTree;

/// Takes `d` away as REMOVE_TREE does; nothing of it is emptied yet.
async fn remove_d(w: &World, t: &Tree) {
    let (inode, request, name) = (t.d, RequestId(0), name("d"));
    let q = RemoveTree { caller: who(), request, parent: ROOT_INODE, name, inode, check: false };
    let removed = run_transaction(&w.rt, &w.engine, async |tx| {
        let cx = &Context::new(tx, &q.caller, w);
        let place = ns::tree_place(cx, &q).await?;
        ns::remove_tree(cx, &q, &place).await
    });
    assert!(removed.await.expect("removed").now);
    let clean = w.check().await;
    assert!(clean.findings.is_empty(), "a tree on its way out is no damage: {:?}", clean.findings);
}

#[test]
fn trees_on_their_way_out() {
    use Problem::*;
    real::run(|rt| async move {
        // Nobody knows any more that it was to go, or for whom: it is kept.
        for (what, sums) in [("the queue", false), ("the tree", true)] {
            let damage = async |w: &World, t: &Tree| {
                remove_d(w, t).await;
                match sums {
                    true => w.clear(keys::tree(V, t.d)).await,
                    false => w.clear(keys::leaving(V, t.d)).await,
                }
            };
            let expected = if sums { &[Unnamed, Stray][..] } else { &[Unnamed] };
            let (w, t) = clean_after(&rt, what, expected, damage).await;
            lost_found(&w, t.d).await;
            assert_eq!(w.inode(t.d).await.nlink, 1);
            assert!(w.entry(t.d, "f").await.is_some());
            assert!(w.get(&keys::leaving(V, t.d)).await.is_none());
        }
        // A directory that has its name is not emptied, whatever the queue says, and does not stay in it.
        let (w, t) = clean_after(&rt, "a name", &[Stray], async |w, t| {
            remove_d(w, t).await;
            let cookie = w.id.get() + 1;
            w.id.set(cookie);
            let entry = Dentry { inode: t.d, kind: InodeKind::Directory, cookie };
            w.put(keys::dentry(V, ROOT_INODE, b"d"), pack(&entry)).await;
            let listed = CookieEntry { inode: t.d, kind: InodeKind::Directory, name: name("d") };
            w.put(keys::cookie(V, ROOT_INODE, cookie), pack(&listed)).await;
            w.change(async |tx| tx.add(keys::dir_subdirs(V, ROOT_INODE), 1)).await;
            w.edit(t.d, |i| (i.nlink, i.name) = (1, Some(name("d")))).await;
        })
        .await;
        assert!(w.entry(t.d, "f").await.is_some());
        assert!(w.get(&keys::tree(V, t.d)).await.is_none());
        // Records of nothing.
        clean_after(&rt, "strays", &[Stray], async |w, _| {
            w.put(keys::tree_sum(V, InodeId(5000), 1), vec![0; 8]).await;
        })
        .await;
        clean_after(&rt, "a directory that is gone", &[Stray], async |w, t| {
            remove_d(w, t).await;
            let lost = crate::tree::LeavingRecord { tree: t.d, path: None };
            w.put(keys::leaving(V, InodeId(5000)), pack(&lost)).await;
            w.change(async |tx| tx.add(keys::tree_sum(V, t.d, 0), 1)).await;
        })
        .await;
    });
}
