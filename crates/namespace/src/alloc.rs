//! Fresh ids in ranges, and the root directory.

use crate::context::Context;
use crate::keys;
use crate::record::{Inode, VolumeRecord, pack, unpack};
use glowfs_kv::Transaction;
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE};
use glowfs_types::{Error, Layout, Result, Status, VolumeId};

/// The first inode id that is given out: 1 is the root.
const FIRST_INODE: u64 = 2;
/// The first data id.
const FIRST_DATA: u64 = 1;

/// Numbers that belong to one service: `[next, end)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdRange {
    /// The next one.
    pub next: u64,
    /// The one after the last.
    pub end: u64,
}

impl IdRange {
    /// Whether it has this one.
    pub fn holds(&self, id: u64) -> bool {
        (self.next..self.end).contains(&id)
    }
}

/// The root directory of a new volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootSpec {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// What everything inherits.
    pub layout: Layout,
}

/// Takes a range of inode ids and cookies. Use it only when the commit is on disk.
pub async fn take_ids(tx: &Transaction, volume: VolumeId, count: u64) -> Result<IdRange> {
    take(tx, volume, 0, count, FIRST_INODE).await
}

/// Takes a range of data ids. Use it only when the commit is on disk: chunks are stored under them.
pub async fn take_data_ids(tx: &Transaction, volume: VolumeId, count: u64) -> Result<IdRange> {
    take(tx, volume, 1, count, FIRST_DATA).await
}

/// So many ids are left out when older metadata was put back: more than were given out since it was copied.
const SKIPPED: u64 = 1 << 40;

/// So many data ids before the next one count as left out as well: services had taken them when the metadata was copied, and gave them out later. Sixteen ranges
/// of those that a service takes at a time.
const HELD: u64 = 1 << 18;

/// Leaves out, of both kinds, the ids that were given out since this metadata was copied: chunks are stored under them; and those data ids that services may
/// have held then, or have taken and not given out now (`unused`). With `seen` only if that data id, which has chunks, could still be given out. Returns whether it did anything. Use it only when the commit
/// is on disk.
pub async fn skip_ids(
    tx: &Transaction,
    volume: VolumeId,
    unused: &[IdRange],
    seen: Option<u64>,
) -> Result<bool> {
    let next_data = next(tx, &keys::next_id(volume, 1), FIRST_DATA).await?;
    let mut skipped = skipped_data_ids(tx, volume).await?;
    let within = |ranges: &[IdRange], id| ranges.iter().any(|r| r.holds(id));
    if seen.is_some_and(|id| within(&skipped, id) || id < next_data && !within(unused, id)) {
        return Ok(false);
    }
    let last = seen.unwrap_or(0).max(next_data);
    let end = last.checked_add(SKIPPED).ok_or_else(all_used)?;
    skipped.extend_from_slice(unused);
    // Some of these this metadata knows: whoever looks for chunks without an owner takes such out first.
    let held = next_data.saturating_sub(HELD).max(FIRST_DATA);
    skipped.push(IdRange { next: held, end });
    tx.put(keys::next_id(volume, 2), pack_ranges(&skipped))?;
    tx.put(keys::next_id(volume, 1), end.to_le_bytes().to_vec())?;
    take(tx, volume, 0, SKIPPED, FIRST_INODE).await?;
    Ok(true)
}

/// Which data ids may have been given out by newer metadata, though they are smaller than the next one: what has chunks under them and no owner is left alone.
pub async fn skipped_data_ids(tx: &Transaction, volume: VolumeId) -> Result<Vec<IdRange>> {
    unpack_ranges(&tx.get(&keys::next_id(volume, 2)).await?.unwrap_or_default())
}

/// Ranges of ids as they are stored.
pub(crate) fn pack_ranges(ranges: &[IdRange]) -> Vec<u8> {
    ranges.iter().flat_map(|r| [r.next, r.end]).flat_map(u64::to_le_bytes).collect()
}

/// The same, read.
pub(crate) fn unpack_ranges(list: &[u8]) -> Result<Vec<IdRange>> {
    let wrong = || Error::new(Status::Corrupt, "the list of skipped ids has a wrong form");
    let (ids, rest) = list.as_chunks::<8>();
    let (pairs, odd) = ids.as_chunks::<2>();
    if !rest.is_empty() || !odd.is_empty() {
        return Err(wrong());
    }
    let range = |[next, end]: &[[u8; 8]; 2]| IdRange {
        next: u64::from_le_bytes(*next),
        end: u64::from_le_bytes(*end),
    };
    Ok(pairs.iter().map(range).collect())
}

/// The first data id that was not given to anybody yet.
pub async fn next_data_id(tx: &Transaction, volume: VolumeId) -> Result<u64> {
    next(tx, &keys::next_id(volume, 1), FIRST_DATA).await
}

async fn next(tx: &Transaction, key: &glowfs_kv::Key, first: u64) -> Result<u64> {
    tx.get(key).await?.map_or(Ok(first), |v| unpack_next(&v))
}

/// The next free id as it is stored.
pub(crate) fn unpack_next(value: &[u8]) -> Result<u64> {
    <[u8; 8]>::try_from(value)
        .map(u64::from_le_bytes)
        .map_err(|_| Error::new(Status::Corrupt, "the next free id has a wrong form"))
}

fn all_used() -> Error {
    Error::new(Status::NoSpace, "all 64-bit ids are used")
}

async fn take(
    tx: &Transaction,
    volume: VolumeId,
    which: u8,
    count: u64,
    first: u64,
) -> Result<IdRange> {
    let key = keys::next_id(volume, which);
    let next = next(tx, &key, first).await?;
    let end = next.checked_add(count).ok_or_else(all_used)?;
    tx.put(key, end.to_le_bytes().to_vec())?;
    Ok(IdRange { next, end })
}

/// Makes the root directory of the caller's volume if it is not there, and checks the format. Returns whether it was made.
pub async fn bootstrap(cx: &Context<'_>, spec: &RootSpec) -> Result<bool> {
    let key = keys::volume(cx.volume());
    if let Some(v) = cx.tx.get(&key).await? {
        let record: VolumeRecord = unpack("volume", &v)?;
        if record.format > keys::FORMAT {
            return Err(Error::new(
                Status::NewerFormat,
                format!(
                    "volume {} has metadata format {}, this build reads up to {}: start the newer release again",
                    cx.volume(),
                    record.format,
                    keys::FORMAT
                ),
            ));
        }
        return Ok(false);
    }
    spec.layout.validate()?;
    let format = if spec.layout.inline_bytes > 0 { keys::FORMAT } else { keys::FORMAT_PLAIN };
    cx.tx.put(key, pack(&VolumeRecord { format, made: cx.now }))?;
    let mut root = Inode {
        kind: InodeKind::Directory,
        mode: spec.mode & 0o7777,
        uid: spec.uid,
        gid: spec.gid,
        nlink: 1,
        atime: cx.now,
        mtime: cx.now,
        ctime: cx.now,
        btime: cx.now,
        layout: Some(spec.layout),
        parent: ROOT_INODE,
        ..Inode::default()
    };
    cx.put_inode(ROOT_INODE, &mut root)?;
    cx.count(&root, 1, 0)?;
    Ok(true)
}
