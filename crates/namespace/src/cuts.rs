//! Truncates that are committed and whose chunks are not cut off yet.
//!
//! The inode says so itself (the mark `cut`): by that everybody who comes to write finishes it first. A key of its own leads to it if nobody comes: it is put
//! with the mark, goes with it, and whoever looks through these keys finds what a service and its client left behind when they died. Releases that know no
//! such keys leave marks without one ([`note_cut`] makes up for that), and keys without a mark ([`forget_cut`]). Must never: take a key away whose mark stands.

use crate::context::{Context, Cut};
use crate::keys;
use crate::record::{Inode, pack, unpack};
use glowfs_kv::{Key, Transaction, key_after};
use glowfs_types::{InodeId, Result, TruncateEpoch, VolumeId};

/// A cut has begun.
pub(crate) fn note(cx: &Context<'_>, id: InodeId, epoch: TruncateEpoch) -> Result<()> {
    cx.tx.put(keys::cut(cx.volume(), id, epoch), Vec::new())
}

/// The file goes with all its chunks.
pub(crate) fn gone(cx: &Context<'_>, id: InodeId, inode: &Inode) -> Result<()> {
    if inode.cut.is_none() {
        return Ok(());
    }
    cx.tx.clear(keys::cut(cx.volume(), id, inode.epoch))
}

/// A page of truncates that may be unfinished, and where the next one begins, if there may be one.
pub async fn cuts_begun(
    tx: &Transaction,
    volume: VolumeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<(InodeId, TruncateEpoch)>, Option<Key>)> {
    let (begin, end) = keys::cuts(volume);
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    Ok((page.entries.iter().filter_map(|(key, _)| keys::cut_of(key)).collect(), next))
}

/// Takes away the key of a cut that somebody finished who does not know such keys.
pub async fn forget_cut(cx: &Context<'_>, id: InodeId, epoch: TruncateEpoch) -> Result<()> {
    let inode = cx.find_inode(id).await?;
    if inode.is_some_and(|i| i.cut.is_some() && i.epoch == epoch) {
        return Ok(());
    }
    cx.tx.clear(keys::cut(cx.volume(), id, epoch))
}

/// Puts the key of a cut that somebody began who does not know such keys.
pub async fn note_cut(cx: &Context<'_>, id: InodeId) -> Result<()> {
    match cx.find_inode(id).await? {
        Some(inode) if inode.cut.is_some() => note(cx, id, inode.epoch),
        _ => Ok(()),
    }
}

/// The chunks behind the length are gone: others may write again, under an epoch of their own, so that no other service that is still at this cut can
/// cut off what they write. Without effect if the file was cut anew since. `allocated`: what is left, if it was counted. Returns the epoch of the file.
pub async fn finish_cut(
    tx: &Transaction,
    volume: VolumeId,
    id: InodeId,
    epoch: TruncateEpoch,
    allocated: Option<u64>,
) -> Result<TruncateEpoch> {
    tx.clear(keys::cut(volume, id, epoch))?;
    let key = keys::inode(volume, id);
    let Some(value) = tx.get(&key).await? else { return Ok(epoch) };
    let mut inode: Inode = unpack("inode", &value)?;
    if inode.cut.is_some() && inode.epoch == epoch {
        inode.cut = None;
        inode.epoch = inode.epoch.next();
        inode.change += 1;
        if let Some(bytes) = allocated {
            inode.set_allocated(bytes);
        }
        tx.put(key, pack(&inode))?;
    }
    Ok(inode.epoch)
}

/// The truncate of an inode that is not finished, if there is one.
pub async fn pending_cut(cx: &Context<'_>, id: InodeId) -> Result<Option<Cut>> {
    let Some(inode) = cx.find_inode(id).await? else { return Ok(None) };
    Ok(inode.cut.map(|len| Cut { attr: cx.attr_here(id, &inode), len }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsck::tests::world::World;
    use glowfs_kv::run_transaction;
    use glowfs_rt::real;
    use glowfs_types::wire::meta::{Caller, InodeKind};

    const V: VolumeId = VolumeId(1);
    const FILE: InodeId = InodeId(7);

    macro_rules! run {
        ($w:expr, $cx:ident => $work:expr) => {{
            let caller = Caller { volume: V, ..Caller::default() };
            run_transaction(&$w.rt, &$w.engine, async |tx| {
                let $cx = &Context::new(tx, &caller, &$w);
                $work
            })
            .await
            .expect("done")
        }};
    }

    /// Services of a release that knows no such keys begin and finish truncates beside ours.
    #[test]
    fn keys_and_marks_come_together_again() {
        real::run(|rt| async move {
            let w = World::new(&rt, 0).await;
            let (old, epoch) = (TruncateEpoch(3), TruncateEpoch(4));
            let marked = |cut| Inode { kind: InodeKind::File, cut, epoch, ..Inode::default() };
            let begun = async || run!(w, cx => cuts_begun(cx.tx, V, None, 9).await);
            let set = async |cut| {
                run!(w, cx => cx.tx.put(keys::inode(V, FILE), pack(&marked(cut))));
            };
            // Begun by one of those.
            set(Some(5)).await;
            assert_eq!(begun().await, (vec![], None));
            run!(w, cx => note_cut(cx, FILE).await);
            assert_eq!(begun().await, (vec![(FILE, epoch)], None));
            // One before it was finished by one of those; this one stands.
            run!(w, cx => note(cx, FILE, old));
            assert_eq!(begun().await.0, [(FILE, old), (FILE, epoch)]);
            for e in [old, epoch] {
                run!(w, cx => forget_cut(cx, FILE, e).await);
            }
            assert_eq!(begun().await.0, [(FILE, epoch)]);
            // Finished by one of those.
            set(None).await;
            run!(w, cx => note_cut(cx, FILE).await);
            run!(w, cx => forget_cut(cx, FILE, epoch).await);
            assert_eq!(begun().await.0, []);
            // Ours go together, also with the file.
            set(Some(5)).await;
            run!(w, cx => note_cut(cx, FILE).await);
            assert_eq!(run!(w, cx => finish_cut(cx.tx, V, FILE, epoch, None).await), epoch.next());
            assert_eq!(begun().await.0, []);
            set(Some(5)).await;
            run!(w, cx => note_cut(cx, FILE).await);
            run!(w, cx => cx.erase(FILE, &marked(Some(5))).await);
            assert_eq!(begun().await.0, []);
        });
    }
}
