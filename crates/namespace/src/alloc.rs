//! Fresh ids in ranges, and the root directory.

use crate::context::Context;
use crate::keys;
use crate::record::{Inode, VolumeRecord, pack, unpack};
use glowfs_kv::Transaction;
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE};
use glowfs_types::{Error, Layout, Result, Status, VolumeId};

/// Numbers that belong to one service: `[next, end)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdRange {
    /// The next one.
    pub next: u64,
    /// The one after the last.
    pub end: u64,
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
    // 1 is the root.
    take(tx, volume, 0, count, 2).await
}

/// Takes a range of data ids. Use it only when the commit is on disk: chunks are stored under them.
pub async fn take_data_ids(tx: &Transaction, volume: VolumeId, count: u64) -> Result<IdRange> {
    take(tx, volume, 1, count, 1).await
}

/// The first data id that was not given to anybody yet.
pub async fn next_data_id(tx: &Transaction, volume: VolumeId) -> Result<u64> {
    next(tx, &keys::next_id(volume, 1), 1).await
}

async fn next(tx: &Transaction, key: &glowfs_kv::Key, first: u64) -> Result<u64> {
    match tx.get(key).await? {
        Some(v) => <[u8; 8]>::try_from(v.as_slice())
            .map(u64::from_le_bytes)
            .map_err(|_| Error::new(Status::Corrupt, "the next free id has a wrong form")),
        None => Ok(first),
    }
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
    let full = || Error::new(Status::NoSpace, "all 64-bit ids are used");
    let end = next.checked_add(count).ok_or_else(full)?;
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
    cx.count(ROOT_INODE, &root, 1, 0)?;
    Ok(true)
}
