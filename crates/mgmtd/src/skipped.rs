//! Target ids that newer records may have given out than these know of: after older metadata was put back.
//!
//! A store keeps what it holds under a target's id, and the id alone says whose that is. So one that is given out again, for another chain, would find the
//! contents of the former one in its place. Ids are skipped when older metadata is put back ([`skip_targets`]); and while mgmtd runs, new ones lie behind all
//! that storages name ([`crate::state::State::hold`]), for those steps may have been forgotten, or a disk be one of a former file system.

use crate::keys;
use crate::records::{GoneRecord, Item};
use crate::store::one;
use glowfs_kv::{Transaction, prefix_end};
use glowfs_types::routing::TargetInfo;
use glowfs_types::{Error, Result, RoutingVersion, Status, TargetId};

/// So many target ids are left out when older metadata is put back: more than were given out since it was copied.
const SKIPPED: u64 = 1 << 20;

/// What a storage says of targets beyond this id counts for nothing here: one that is out of its mind must not use up all ids.
pub(crate) const HELD_MAX: TargetId = TargetId(1 << 62);

/// Leaves out, in a cluster's records, the target ids that may have been given out since they were copied: the one before the next counts as removed. Use it only
/// while no mgmtd runs. Where there is no cluster, it does nothing.
pub async fn skip_targets(tx: &Transaction) -> Result<()> {
    if tx.get(&keys::cluster()).await?.is_none() {
        return Ok(());
    }
    let changed: RoutingVersion = one(tx, &keys::routing()).await?.unwrap_or_default();
    let live = last::<Item<TargetInfo>>(tx, "target").await?.map(|t| t.value.id);
    let gone = last::<GoneRecord>(tx, "gone").await?.map(|g| g.target);
    let newest = live.max(gone).unwrap_or(TargetId(0));
    let all_used = || Error::new(Status::NoSpace, "all ids of targets are used");
    let target = TargetId(newest.0.checked_add(SKIPPED).ok_or_else(all_used)?);
    let record = GoneRecord { changed, target, chain: None };
    tx.put(keys::gone(target), keys::encode(&record))
}

/// The record of a kind with the greatest key.
async fn last<T: for<'b> minicbor::Decode<'b, ()>>(
    tx: &Transaction,
    kind: &str,
) -> Result<Option<T>> {
    let begin = keys::kind(kind);
    let page = tx.get_range(&begin, &prefix_end(&begin), 1, true).await?;
    page.entries.first().map(|(key, value)| keys::decode(key, value)).transpose()
}
