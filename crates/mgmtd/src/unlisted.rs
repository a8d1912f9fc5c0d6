//! Chains of a table that was never laid to its end.
//!
//! A table is more than one transaction takes, so its chains are there before it ([`Inner::write_table`]), with the routing version that was to come with it.
//! Whoever becomes primary and finds chains of a version that never was removes them before it does anything else: nobody has heard of them, and their ids and that
//! version are given again. Must never: remove a chain that a table lists, or that anybody may have been told of.

use crate::core::Inner;
use crate::keys;
use crate::store::{Loaded, Writes};
use crate::tables::CHAINS_PER_CHANGE;
use glowfs_types::{ChainId, Result};
use std::collections::BTreeSet;

/// Their ids.
fn unlisted(l: &Loaded) -> BTreeSet<ChainId> {
    let tables = l.tables.iter().map(|t| &t.value.table);
    let listed: BTreeSet<ChainId> = tables.flat_map(|t| &t.chains).copied().collect();
    let chains = l.chains.iter().filter(|c| c.changed > l.version).map(|c| c.value.info.id);
    chains.filter(|c| !listed.contains(c)).collect()
}

/// What removes them from the engine, one transaction after the other.
fn removals(l: &Loaded, unlisted: &BTreeSet<ChainId>) -> Vec<Writes> {
    let ids: Vec<ChainId> = unlisted.iter().copied().collect();
    let removal = |piece: &[ChainId]| {
        let chains = piece.iter().map(|c| keys::chain(*c));
        let of_them = l.targets.iter().filter(|t| piece.binary_search(&t.value.chain).is_ok());
        chains.chain(of_them.map(|t| keys::target(t.value.id))).map(|key| (key, None)).collect()
    };
    ids.chunks(CHAINS_PER_CHANGE).map(removal).collect()
}

impl Inner {
    /// Removes them, from the engine and from what was loaded.
    pub(crate) async fn remove_unlisted(&self, epoch: u64, loaded: &mut Loaded) -> Result<()> {
        if unlisted(loaded).is_empty() {
            return Ok(());
        }
        // If it was this very instance that has been laying them, before it lost its lease for a moment, it has ended that when the lock is free.
        let _held = self.lock.acquire(1).await;
        *loaded = self.store.load().await?;
        let chains = unlisted(loaded);
        for piece in removals(loaded, &chains) {
            self.write(epoch, None, &piece).await?;
        }
        loaded.chains.retain(|c| !chains.contains(&c.value.info.id));
        loaded.targets.retain(|t| !chains.contains(&t.value.chain));
        if !chains.is_empty() {
            tracing::warn!(
                chains = chains.len(),
                "the primary before did not lay a table to its end; its chains are removed: lay it again"
            );
        }
        Ok(())
    }
}
