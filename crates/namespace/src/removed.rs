//! Files that lost their last name and may still be open somewhere (orphans).
//!
//! Reading clients have no session, so only they know what they have open. The service that wants to erase an orphan first
//! [`doom`]s it, after which nobody opens it any more, then asks every live client, then [`erase_removed`]s it. Because of the doom, a
//! client's «not open» is final. An attempt is known by its [`Doom`]; whoever finds another one in the record leaves it alone.

use crate::context::{Context, err};
use crate::keys;
use crate::record::{Doom, Inode, OrphanRecord, pack, unpack};
use glowfs_kv::{Key, Transaction, key_after};
use glowfs_types::{InodeId, Result, Status, VolumeId};

/// An orphan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file.
    pub inode: InodeId,
    /// Who is about to erase it, if anybody is.
    pub doomed: Option<Doom>,
}

/// A page of orphans.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemovedPage {
    /// Those of it.
    pub found: Vec<Removed>,
    /// Those whose record cannot be read. They stay as they are: who is at them is not known.
    pub damaged: Vec<InodeId>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Key>,
}

/// Orphans from `from` on, at most `limit`.
pub async fn removed(
    tx: &Transaction,
    volume: VolumeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<RemovedPage> {
    let (begin, end) = keys::orphans(volume);
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    let mut out = RemovedPage { next, ..RemovedPage::default() };
    for (key, value) in page.entries {
        let Some(inode) = keys::orphan_of(&key) else { continue };
        match unpack::<OrphanRecord>("orphan record", &value) {
            Ok(record) => out.found.push(Removed { inode, doomed: record.doomed }),
            Err(e) if e.status == Status::Corrupt => out.damaged.push(inode),
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

pub(crate) async fn is_doomed(cx: &Context<'_>, id: InodeId) -> Result<bool> {
    Ok(find(cx.tx, cx.volume(), id).await?.is_some_and(|r| r.doomed.is_some()))
}

/// Takes a file that never had a name out of the orphans, if it may have one.
pub(crate) async fn takes_name(cx: &Context<'_>, id: InodeId) -> Result<bool> {
    let found = find(cx.tx, cx.volume(), id).await?;
    let may = found.is_some_and(|r| r.linkable && r.doomed.is_none());
    if may {
        cx.tx.clear(keys::orphan(cx.volume(), id))?;
    }
    Ok(may)
}

async fn find(tx: &Transaction, volume: VolumeId, id: InodeId) -> Result<Option<OrphanRecord>> {
    let record = tx.get(&keys::orphan(volume, id)).await?;
    record.map(|v| unpack("orphan record", &v)).transpose()
}

/// From the commit on nobody opens it. False if it is no orphan any more, if it has sessions, or if its doom is not the one that the
/// caller saw.
pub async fn doom(cx: &Context<'_>, seen: &Removed, by: Doom) -> Result<bool> {
    let Some(mut record) = find(cx.tx, cx.volume(), seen.inode).await? else { return Ok(false) };
    if record.doomed != seen.doomed || cx.has_sessions(seen.inode).await? {
        return Ok(false);
    }
    record.doomed = Some(by);
    cx.tx.put(keys::orphan(cx.volume(), seen.inode), pack(&record))?;
    Ok(true)
}

/// Somebody has it open: it may be opened again (through a link in /proc, say).
pub async fn undoom(cx: &Context<'_>, id: InodeId, by: Doom) -> Result<()> {
    match find(cx.tx, cx.volume(), id).await? {
        Some(mut record) if record.doomed == Some(by) => {
            record.doomed = None;
            cx.tx.put(keys::orphan(cx.volume(), id), pack(&record))
        }
        _ => Ok(()),
    }
}

/// Erases an orphan that no live client has open. False if somebody else is at it, or if it has a session after all.
pub async fn erase_removed(cx: &Context<'_>, id: InodeId, by: Doom) -> Result<bool> {
    let ours = find(cx.tx, cx.volume(), id).await?.is_some_and(|r| r.doomed == Some(by));
    if !ours || cx.has_sessions(id).await? {
        return Ok(false);
    }
    cx.tx.clear(keys::orphan(cx.volume(), id))?;
    let inode: Option<Inode> = cx.find_inode(id).await?;
    match inode {
        Some(inode) if inode.nlink > 0 => err(Status::Corrupt),
        Some(inode) => cx.erase(id, &inode).await.map(|()| true),
        None => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One record that could not be read ended the look at all of them, for good.
    #[test]
    fn what_is_damaged_does_not_hide_the_others() {
        use glowfs_kv::{Memory, run_transaction};
        glowfs_rt::real::run(|rt| async move {
            let (engine, v) = (Memory::engine(), VolumeId(1));
            let bad = |n| n % 3 == 1 || (4..9).contains(&n);
            run_transaction(&rt, &engine, async |tx| {
                (1..=16).try_for_each(|n| {
                    let record = pack(&OrphanRecord::default());
                    let record = if bad(n) { b"damaged".to_vec() } else { record };
                    tx.put(keys::orphan(v, InodeId(n)), record)
                })
            })
            .await
            .expect("put");
            let (mut found, mut damaged, mut from) = (vec![], vec![], None);
            loop {
                let look = async |tx: &Transaction| removed(tx, v, from.as_ref(), 3).await;
                let page = run_transaction(&rt, &engine, look).await.expect("a page");
                found.extend(page.found.iter().map(|r| r.inode.0));
                damaged.extend(page.damaged.iter().map(|i| i.0));
                from = page.next;
                if from.is_none() {
                    break;
                }
            }
            assert_eq!(found, (1..=16).filter(|n| !bad(*n)).collect::<Vec<_>>());
            assert_eq!(damaged, (1..=16).filter(|n| bad(*n)).collect::<Vec<_>>());
        });
    }
}
