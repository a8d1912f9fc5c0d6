//! Contents of small files that are kept beside their inode record, so that they need no chunks.
//!
//! A file begins so if its directory's layout says up to which length, and becomes one of chunks once and for good: when it would grow longer, or when
//! somebody needs chunks. Each read and write is one transaction. What was written fills the file: there are no holes.
//!
//! On the way into chunks the contents do not change any more: [`spill`] notes a fresh data id in the inode, the service stores the contents under it, makes them
//! durable and calls [`finish_spill`], which takes effect only if no other attempt began meanwhile, or [`abandon_spill`]. Each attempt has a data id of its own; that of a failed
//! one goes to the garbage. So what a late or dead attempt writes is never seen. Must never: let a data id be used by a file while chunks
//! under it may hold anything but its contents.

use crate::access;
use crate::context::{Context, err, file_bytes};
use crate::flags;
use crate::keys;
use crate::open::{ended, own_session};
use crate::record::{Contents, Inode, VolumeRecord, pack, unpack};
use glowfs_types::layout::INLINE_BYTES_MAX;
use glowfs_types::wire::inline::{InlineRead, InlineWrite};
use glowfs_types::wire::meta::{Attr, InodeKind, inode_flags};
use glowfs_types::{DataId, Error, InodeId, Result, Status};

/// What is to be done so that a file has chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spill {
    /// Nothing (any more); whether something was changed for that.
    Over(bool),
    /// Somebody else is at it, and stores the contents under this data id.
    Underway(DataId),
    /// These contents go into chunks, under the data id of these attributes. Then call [`finish_spill`].
    Store(Box<Attr>, Vec<u8>),
}

/// The error of an operation that needs chunks where there are none yet. The service spills the contents and tries again.
pub(crate) fn in_the_way(why: &str) -> Error {
    let e =
        format!("the contents are kept with the metadata and have to go into chunks first: {why}");
    Error::new(Status::Pending, e)
}

/// The contents of an inline file.
pub(crate) async fn content(cx: &Context<'_>, id: InodeId) -> Result<Vec<u8>> {
    Ok(cx.tx.get(&keys::content(cx.volume(), id)).await?.unwrap_or_default())
}

fn put_content(cx: &Context<'_>, id: InodeId, bytes: Vec<u8>) -> Result<()> {
    let key = keys::content(cx.volume(), id);
    if bytes.is_empty() { cx.tx.clear(key) } else { cx.tx.put(key, bytes) }
}

/// So long may they become. The layout is as it stands in the engine, where nobody has looked at it: it must not say how much memory is taken.
fn limit(inode: &Inode) -> u64 {
    inode.layout.map_or(0, |l| u64::from(l.inline_bytes.min(INLINE_BYTES_MAX)))
}

/// From now on there may be inline files, which older builds would take for holes.
pub(crate) async fn announce(cx: &Context<'_>) -> Result<()> {
    let key = keys::volume(cx.volume());
    let Some(v) = cx.tx.get(&key).await? else { return Ok(()) };
    let record: VolumeRecord = unpack("volume", &v)?;
    if record.format >= keys::FORMAT {
        return Ok(());
    }
    cx.tx.put(key, pack(&VolumeRecord { format: keys::FORMAT, ..record }))
}

/// Reads all of the contents; none if they are in chunks.
pub async fn inline_read(cx: &Context<'_>, q: &InlineRead) -> Result<(Attr, Option<Vec<u8>>)> {
    let inode = cx.inode(q.inode).await?;
    if inode.kind != InodeKind::File {
        return err(Status::InvalidArgument);
    }
    match q.session {
        Some(id) => {
            let session = own_session(cx, q.inode, id).await?.ok_or_else(ended)?;
            if !session.read {
                return err(Status::AccessDenied);
            }
        }
        None if access::owns_named(cx.caller, &inode) => {}
        None => access::check_named(cx.caller, &inode, access::to_read(q.exec))?,
    }
    let bytes = match inode.is_inline() {
        true => Some(content(cx, q.inode).await?),
        false => None,
    };
    Ok((cx.attr_here(q.inode, &inode), bytes))
}

/// Writes; false: it had no effect, because the contents are in chunks.
pub async fn inline_write(cx: &Context<'_>, q: &InlineWrite) -> Result<(Attr, bool)> {
    let done = cx.done_before(q).await?.is_some();
    let mut inode = cx.inode(q.inode).await?;
    if done {
        return Ok((cx.attr_here(q.inode, &inode), true));
    }
    if inode.kind != InodeKind::File {
        return err(Status::InvalidArgument);
    }
    let session = own_session(cx, q.inode, q.session).await?.ok_or_else(ended)?;
    if !session.write {
        return err(Status::AccessDenied);
    }
    if q.fence < session.fence {
        let e = "the client has given this write up and gone on without it";
        return Err(Error::new(Status::BadCapability, e));
    }
    if inode.is_inline() && q.under.is_some_and(|epoch| epoch != inode.epoch) {
        return Err(Error::new(Status::Stale, "the file was truncated meanwhile"));
    }
    flags::check_touch(&inode)?;
    if inode.flags & inode_flags::APPEND != 0 && q.offset < inode.len {
        return err(Status::NotPermitted);
    }
    match inode.contents {
        Contents::Chunks => return Ok((cx.attr_here(q.inode, &inode), false)),
        Contents::Spilling => return Err(in_the_way("they are on their way")),
        Contents::Inline if q.bytes.is_empty() => return Ok((cx.attr_here(q.inode, &inode), true)),
        Contents::Inline => {}
    }
    let end = q.offset.checked_add(q.bytes.len() as u64).filter(|end| *end <= limit(&inode));
    let Some(end) = end else { return Err(in_the_way("they would become too long")) };
    if end > inode.len && !cx.env.room_for_contents() {
        return Err(in_the_way("there are enough of such contents"));
    }
    let mut bytes = content(cx, q.inode).await?;
    if end > inode.len {
        cx.tx.grows();
    }
    // Both are at most `limit`.
    let (from, end) = (q.offset as usize, end as usize);
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[from..end].copy_from_slice(&q.bytes);
    let before = file_bytes(&inode);
    inode.len = bytes.len() as u64;
    inode.written_now(cx.now);
    put_content(cx, q.inode, bytes)?;
    cx.put_inode(q.inode, &mut inode)?;
    let grown = file_bytes(&inode) - before;
    cx.count(&inode, 0, grown)?;
    cx.count_contents(&inode, grown)?;
    cx.remember(q, q.inode)?;
    Ok((cx.attr_here(q.inode, &inode), true))
}

/// Truncate of an inline file: cuts its contents or adds zeros, under another epoch; the caller sets the length. Empty ones that are to become too long are chunks afterwards.
pub(crate) async fn resize(
    cx: &Context<'_>,
    id: InodeId,
    inode: &mut Inode,
    len: u64,
) -> Result<()> {
    if len > limit(inode) {
        if inode.len > 0 {
            return Err(in_the_way("they would become too long"));
        }
        return begin_chunks(cx, inode, Contents::Chunks);
    }
    if inode.contents == Contents::Spilling {
        // So a disk without room hinders nobody from cutting a file.
        take_back(cx, inode)?;
    }
    inode.epoch = inode.epoch.next();
    if len == inode.len {
        return Ok(());
    }
    if len > inode.len && !cx.env.room_for_contents() {
        return Err(in_the_way("there are enough of such contents"));
    }
    if len > inode.len {
        cx.tx.grows();
    }
    // Both are at most the limit.
    cx.count_contents(inode, len as i64 - inode.len as i64)?;
    let mut bytes = if len == 0 { Vec::new() } else { content(cx, id).await? };
    bytes.resize(len as usize, 0);
    put_content(cx, id, bytes)
}

/// The inode gets a data id that nobody ever wrote under, not even a client that was told of chunks by a commit that was lost.
fn begin_chunks(cx: &Context<'_>, inode: &mut Inode, contents: Contents) -> Result<()> {
    cx.discard_data(inode)?;
    let inherited = inode.layout.ok_or_else(|| Error::from(Status::Internal))?;
    inode.data = cx.env.new_data()?;
    inode.layout = Some(cx.env.place(&inherited, inode.data)?);
    inode.epoch = inode.epoch.next();
    inode.stored = true;
    inode.only_writer = None;
    inode.contents = contents;
    Ok(())
}

/// Begins to put the contents of a file into chunks. `given_up`: the attempt under this data id does not end, so another one begins.
pub async fn spill(cx: &Context<'_>, id: InodeId, given_up: Option<DataId>) -> Result<Spill> {
    let Some(mut inode) = cx.find_inode(id).await? else { return Ok(Spill::Over(false)) };
    match inode.contents {
        Contents::Chunks => return Ok(Spill::Over(false)),
        Contents::Spilling if given_up != Some(inode.data) => {
            return Ok(Spill::Underway(inode.data));
        }
        _ => {}
    }
    let empty = inode.len == 0;
    begin_chunks(cx, &mut inode, if empty { Contents::Chunks } else { Contents::Spilling })?;
    cx.put_inode(id, &mut inode)?;
    if empty {
        return Ok(Spill::Over(true));
    }
    let bytes = content(cx, id).await?;
    Ok(Spill::Store(Box::new(cx.attr_here(id, &inode)), bytes))
}

/// The data id under which the contents of a file are being stored, if they are.
pub async fn spilling(cx: &Context<'_>, id: InodeId) -> Result<Option<DataId>> {
    let inode = cx.find_inode(id).await?;
    Ok(inode.filter(|i| i.contents == Contents::Spilling).map(|i| i.data))
}

/// The attempt under `data` failed: the contents are with the metadata as before, and may be changed there again. Without effect if another attempt began
/// meanwhile, or the file is gone.
pub async fn abandon_spill(cx: &Context<'_>, id: InodeId, data: DataId) -> Result<bool> {
    let Some(mut inode) = cx.find_inode(id).await? else { return Ok(false) };
    if inode.data != data || inode.contents != Contents::Spilling {
        return Ok(false);
    }
    take_back(cx, &mut inode)?;
    cx.put_inode(id, &mut inode)?;
    Ok(true)
}

/// Contents that were on their way into chunks stay where they are. Whoever is at it finds that it was in vain: its data id goes to the garbage.
fn take_back(cx: &Context<'_>, inode: &mut Inode) -> Result<()> {
    begin_chunks(cx, inode, Contents::Inline)?;
    inode.stored = false;
    Ok(())
}

/// The contents are on the disks of the chains under `data`. False: another attempt began meanwhile, or the file is gone.
pub async fn finish_spill(cx: &Context<'_>, id: InodeId, data: DataId) -> Result<bool> {
    let Some(mut inode) = cx.find_inode(id).await? else { return Ok(false) };
    if inode.data != data || inode.contents != Contents::Spilling {
        // A repetition finds what it did.
        return Ok(inode.data == data && inode.contents == Contents::Chunks);
    }
    inode.contents = Contents::Chunks;
    cx.tx.clear(keys::content(cx.volume(), id))?;
    cx.count_contents(&inode, -file_bytes(&inode))?;
    cx.put_inode(id, &mut inode)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsck::tests::world::{V, World, layout};
    use glowfs_kv::run_transaction;
    use glowfs_rt::real;
    use glowfs_types::Layout;
    use glowfs_types::wire::meta::{Caller, SetAttr};

    /// More than may be kept, and as little as can be taken for a test.
    const LONG: u64 = INLINE_BYTES_MAX as u64 + 1;

    #[test]
    fn a_damaged_layout_does_not_say_how_long_contents_may_become() {
        real::run(|rt| async move {
            let w = World::new(&rt, 100).await;
            let (caller, id) = (Caller { volume: V, ..Caller::default() }, InodeId(7));
            let damaged = Layout { inline_bytes: u32::MAX, ..layout(100) };
            let inode = Inode {
                nlink: 1,
                len: 1,
                layout: Some(damaged),
                contents: Contents::Inline,
                ..Inode::default()
            };
            let cut = SetAttr {
                caller: caller.clone(),
                inode: id,
                len: Some(LONG),
                ..SetAttr::default()
            };
            let longer = run_transaction(&w.rt, &w.engine, async |tx| {
                tx.put(keys::inode(V, id), pack(&inode))?;
                tx.put(keys::content(V, id), vec![1])?;
                crate::setattr(&Context::new(tx, &caller, &w), &cut).await
            });
            let refused = longer.await.expect_err("longer than anybody keeps there");
            assert_eq!(refused.status, Status::Pending, "they go into chunks first");
        });
    }
}
