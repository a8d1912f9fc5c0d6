//! Files that lost their last name and may still be open somewhere (orphans).
//!
//! Reading clients have no session, so only they know what they have open. The service that wants to erase an orphan first
//! [`doom`]s it, after which nobody opens it any more, then asks every live client, then [`erase_removed`]s it. Because of the doom, a
//! client's «not open» is final. An attempt is known by its [`Doom`]; whoever finds another one in the record leaves it alone.

use crate::context::{Context, err};
use crate::keys;
use crate::record::{Doom, Inode, OrphanRecord, pack, unpack};
use glowfs_kv::{Transaction, key_after};
use glowfs_types::{InodeId, Result, Status, VolumeId};

/// An orphan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file.
    pub inode: InodeId,
    /// Who is about to erase it, if anybody is.
    pub doomed: Option<Doom>,
}

/// Orphans after `after`, at most `limit`.
pub async fn removed(
    tx: &Transaction,
    volume: VolumeId,
    after: Option<InodeId>,
    limit: u32,
) -> Result<Vec<Removed>> {
    let (mut begin, end) = keys::orphans(volume);
    if let Some(inode) = after {
        begin = key_after(&keys::orphan(volume, inode));
    }
    let page = tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let mut out = Vec::with_capacity(page.entries.len());
    for (key, value) in page.entries {
        let Some(inode) = keys::orphan_of(&key) else { continue };
        let record: OrphanRecord = unpack("orphan record", &value)?;
        out.push(Removed { inode, doomed: record.doomed });
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
