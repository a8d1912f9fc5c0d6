//! A tree that is removed and emptied in one go, for tests that do not look in between.

use crate::world::{V, World};
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_types::Result;
use glowfs_types::wire::tree::RemoveTree;

/// Removes a tree, and empties it by so many names at a time.
pub async fn remove_tree(w: &World, q: &RemoveTree, limit: u32) -> Result<()> {
    run_transaction(&w.rt, &w.engine, async |tx| {
        let cx = &Context::new(tx, &q.caller, w);
        let place = ns::tree_place(cx, q).await?;
        ns::remove_tree(cx, q, &place).await
    })
    .await?;
    loop {
        let gone = run_transaction(&w.rt, &w.engine, async |tx| {
            let cx = &Context::new(tx, &q.caller, w);
            let Some(dir) = ns::leaving(tx, V, None, 1).await?.pop() else {
                return Ok(true);
            };
            let entries = ns::leaving_entries(tx, V, dir, limit).await?.found;
            if entries.is_empty() {
                assert!(ns::finish_leaving(cx, dir).await?);
            } else {
                ns::empty(cx, dir, &entries).await?;
            }
            Ok(false)
        });
        if gone.await? {
            return Ok(());
        }
    }
}
