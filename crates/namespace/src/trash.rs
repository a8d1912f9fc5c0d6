//! The trash: what is removed from a directory that has one is kept for a while, and can be put back.
//!
//! A directory has one if its attribute `glowfs.trash` says for how long; directories made in it inherit that. A file that loses its last name there
//! keeps its record, without a name and without being an orphan, and stands in the trash under the time when it goes. Replacing a file by a rename or
//! cutting it is not removing it. Must never: lose a file on its way in or out; each step is one transaction.

use crate::access;
use crate::context::{Context, err};
use crate::keys;
use crate::name;
use crate::record::{Inode, OrphanRecord, pack, unpack};
use glowfs_kv::{Key, key_after};
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE, SetXattr, Time};
use glowfs_types::wire::trash::{TrashEntry, TrashId};
use glowfs_types::{Error, InodeId, Result, Status};
use minicbor::{Decode, Encode};

/// The attribute.
pub const TRASH_XATTR: &[u8] = b"glowfs.trash";
/// The longest time that it may say: ten years.
const KEEP_MAX: u64 = 10 * 365 * 24 * 3600;
/// Directories above one another that a path is told of.
const DEPTH_MAX: usize = 256;
/// The longest path that is kept, in bytes.
pub(crate) const PATH_MAX: usize = 4096;
/// From this length on, in bytes, a path takes more than its file's name has: who removes files makes what is kept larger by it.
const LONG_PATH: usize = 1024;
/// Bytes of names and paths after which a page of the list ends: a message takes 4 MiB.
const PAGE_BYTES: usize = 1 << 20;
/// Records read in one step for that. Those of older releases may have paths of 64 KiB.
const PAGE_STEP: u32 = 64;
/// Permissions of directories that are made anew on the way back.
const MADE_MODE: u32 = 0o755;

/// A file in the trash.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) struct TrashRecord {
    /// Where it was, from the root, if the names of all directories on the way are known and it is no longer than [`PATH_MAX`].
    #[n(0)]
    pub(crate) path: Option<minicbor::bytes::ByteVec>,
    #[n(1)]
    pub(crate) name: minicbor::bytes::ByteVec,
    /// The directory it was in.
    #[n(2)]
    pub(crate) parent: InodeId,
    /// Who removed it.
    #[n(3)]
    pub(crate) uid: u32,
    #[n(4)]
    pub(crate) removed: Time,
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(Status::InvalidArgument, what)
}

/// `7d`, `12h`, `30m`, `90s`, `90`.
fn seconds(text: &[u8]) -> Result<u64> {
    let wrong = || bad("glowfs.trash is a time: 7d, 12h, 30m, 90s, at most ten years");
    let text = std::str::from_utf8(text).map_err(|_| wrong())?.trim_end_matches(['\0', '\n']);
    let units = [('d', 24 * 3600), ('h', 3600), ('m', 60), ('s', 1)];
    let found = units.iter().find_map(|(c, n)| text.strip_suffix(*c).map(|t| (t, *n)));
    let (number, unit) = found.unwrap_or((text, 1));
    let n = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    n.filter(|n| (1..=KEEP_MAX).contains(n)).ok_or_else(wrong)
}

/// The value that a directory shows.
pub(crate) fn show(inode: &Inode) -> Result<Vec<u8>> {
    match inode.trash_secs {
        0 => err(Status::NoAttribute),
        n => Ok(format!("{n}s").into_bytes()),
    }
}

/// Gives a directory a trash, or without a value takes it away. What is in it stays.
pub(crate) async fn set(cx: &Context<'_>, q: &SetXattr) -> Result<()> {
    if cx.done_before(q).await?.is_some() {
        return Ok(());
    }
    let mut inode = cx.inode(q.inode).await?;
    if !inode.is_dir() || !access::owns(cx.caller, &inode) {
        return err(Status::NotPermitted);
    }
    crate::flags::check_attributes(&inode)?;
    if q.value.is_empty() && inode.trash_secs == 0 {
        return err(Status::NoAttribute);
    }
    inode.trash_secs = if q.value.is_empty() { 0 } else { seconds(&q.value)? };
    inode.ctime = cx.now;
    cx.put_inode(q.inode, &mut inode)?;
    cx.remember(q, q.inode)
}

/// The path of an entry, if the names of all directories above are known and it is no longer than [`PATH_MAX`].
pub(crate) async fn path_of(
    cx: &Context<'_>,
    (parent, dir): (InodeId, &Inode),
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    let (mut names, mut bytes) = (vec![name.to_vec()], 1 + name.len());
    let (mut at, mut record) = (parent, dir.clone());
    while at != ROOT_INODE {
        let Some(own) = record.name.take().filter(|_| names.len() < DEPTH_MAX) else {
            return Ok(None);
        };
        bytes += 1 + own.len();
        if bytes > PATH_MAX {
            return Ok(None);
        }
        names.push(own.into());
        at = record.parent;
        record = cx.dir(at).await?;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Ok(Some(path))
}

/// Whether a file that is about to lose this name goes to the trash.
pub(crate) fn takes(dir: &Inode, inode: &Inode) -> bool {
    dir.trash_secs > 0 && inode.nlink == 1 && !inode.is_dir()
}

/// Puts a file that has just lost its last name into the trash.
pub(crate) async fn put(
    cx: &Context<'_>,
    (parent, dir): (InodeId, &Inode),
    name: &[u8],
    (id, inode): (InodeId, &mut Inode),
) -> Result<()> {
    let path = path_of(cx, (parent, dir), name).await?;
    if path.as_ref().is_some_and(|p| p.len() >= LONG_PATH) {
        cx.tx.grows();
    }
    put_from(cx, (parent, dir, name, path), cx.caller.uid, (id, inode))
}

/// The same where the path is known, and who removed it. Not counted as growth: what is removed as a tree would stand still for want of room.
pub(crate) fn put_from(
    cx: &Context<'_>,
    (parent, dir, name, path): (InodeId, &Inode, &[u8], Option<Vec<u8>>),
    uid: u32,
    (id, inode): (InodeId, &mut Inode),
) -> Result<()> {
    // By two clocks, as when its time has come: one that is wrong must not take it away early.
    let now = cx.now.secs.max(cx.memory_secs);
    let until = u64::try_from(now).unwrap_or(0).saturating_add(dir.trash_secs);
    let record = TrashRecord {
        path: path.filter(|p| p.len() <= PATH_MAX).map(Into::into),
        name: name.to_vec().into(),
        parent,
        uid,
        removed: cx.now,
    };
    inode.nlink = 0;
    inode.trashed = Some(until);
    inode.ctime = cx.now;
    cx.put_inode(id, inode)?;
    cx.tx.put(keys::trash(cx.volume(), until, id), pack(&record))
}

/// A page of the trash, in the order in which files go, and where the next one begins, if there may be one. It is short enough for a message, whatever paths it has.
pub async fn trash(
    cx: &Context<'_>,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<TrashEntry>, Option<Key>)> {
    let (begin, end) = keys::all_trash(cx.volume());
    let mut begin = from.cloned().unwrap_or(begin);
    let (mut out, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES && out.len() < limit as usize {
        let step = PAGE_STEP.min(limit - out.len() as u32);
        let page = cx.tx.get_range_snapshot(&begin, &end, step, false).await?;
        for (key, value) in &page.entries {
            if bytes >= PAGE_BYTES {
                break;
            }
            begin = key_after(key);
            let Some(id) = keys::trash_of(key) else { continue };
            let entry = shown(cx, id, value).await?;
            bytes += entry.path.len() + entry.name.len();
            out.push(entry);
        }
        if bytes < PAGE_BYTES && !page.more {
            return Ok((out, None));
        }
    }
    Ok((out, Some(begin)))
}

/// What is told of a file in the trash. One whose record cannot be read has neither path nor name: it must not hide the others, and can be put back to a path that is said.
async fn shown(cx: &Context<'_>, id: TrashId, record: &[u8]) -> Result<TrashEntry> {
    let inode = readable(cx.find_inode(id.inode).await)?.flatten();
    let entry = TrashEntry { id, len: inode.map_or(0, |i| i.len), ..TrashEntry::default() };
    let record = readable(unpack::<TrashRecord>("trash record", record))?;
    Ok(record.map_or(entry.clone(), |r| TrashEntry {
        path: r.path.map_or(Vec::new(), Vec::from),
        name: r.name.into(),
        removed: r.removed,
        uid: r.uid,
        parent: r.parent,
        ..entry
    }))
}

/// None: it is damaged.
pub(crate) fn readable<T>(record: Result<T>) -> Result<Option<T>> {
    match record {
        Err(e) if e.status == Status::Corrupt => Ok(None),
        other => other.map(Some),
    }
}

/// A page of those whose time has come, and where the next one begins, if there is one: what cannot be removed must not come again without end. It has come
/// when it has by the cluster's time as well as by the wall clock: services differ in the latter, and what is removed here does not come back. So a clock
/// that is wrong only keeps files for longer.
pub async fn trash_expired(
    cx: &Context<'_>,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<TrashId>, Option<Key>)> {
    let (begin, _) = keys::all_trash(cx.volume());
    let now = cx.now.secs.min(cx.memory_secs);
    let now = u64::try_from(now).unwrap_or(0).saturating_add(1);
    let end = keys::trash(cx.volume(), now, InodeId(0));
    let page = cx.tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    Ok((page.entries.iter().filter_map(|(key, _)| keys::trash_of(key)).collect(), next))
}

/// A file in the trash, and its record there, which need not be readable.
async fn find(cx: &Context<'_>, id: TrashId) -> Result<(Vec<u8>, Inode)> {
    let gone = || Error::new(Status::NotFound, format!("{id} is not in the trash"));
    let key = keys::trash(cx.volume(), id.until, id.inode);
    let record = cx.tx.get(&key).await?.ok_or_else(gone)?;
    let inode = cx.find_inode(id.inode).await?.filter(|i| i.trashed == Some(id.until));
    Ok((record, inode.ok_or_else(gone)?))
}

/// Removes a file of the trash for good: from now on it is an orphan like any other.
pub async fn trash_purge(cx: &Context<'_>, id: TrashId) -> Result<()> {
    let (_, mut inode) = find(cx, id).await?;
    let v = cx.volume();
    cx.tx.clear(keys::trash(v, id.until, id.inode))?;
    inode.trashed = None;
    let kept = inode.kind == InodeKind::File
        && (cx.env.keeps_removed() || cx.has_sessions(id.inode).await?);
    if !kept {
        return cx.erase(id.inode, &inode).await;
    }
    cx.put_inode(id.inode, &mut inode)?;
    cx.tx.put(keys::orphan(v, id.inode), pack(&OrphanRecord::since(cx.now)))
}

/// Puts a file back where it was, or at another path. Directories that are missing on the way are made anew, with the caller as owner. Returns the
/// path, and the directories that changed.
pub async fn trash_restore(
    cx: &Context<'_>,
    id: TrashId,
    to: Option<&[u8]>,
) -> Result<(Vec<u8>, Vec<InodeId>)> {
    let (record, mut inode) = find(cx, id).await?;
    let path = match to {
        Some(to) => to.to_vec(),
        None => {
            let record = readable(unpack::<TrashRecord>("trash record", &record))?;
            Vec::from(record.and_then(|r| r.path).ok_or_else(|| {
                bad(format!("where {id} was is not known; say where it is to go"))
            })?)
        }
    };
    let mut names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|n| !n.is_empty()).collect();
    let last = names.pop().ok_or_else(|| bad("a path with a name is needed"))?;
    let (mut parent, mut changed) = (ROOT_INODE, Vec::new());
    for name in names {
        name::check(name)?;
        let (dir, entry) = cx.dir_and_entry(parent, name).await?;
        parent = match entry {
            Some(entry) if entry.kind == InodeKind::Directory => entry.inode,
            Some(_) => return err(Status::NotDirectory),
            None => {
                changed.push(parent);
                make_dir(cx, (parent, &dir), name)?
            }
        };
    }
    name::check(last)?;
    if name::is_dots(last) {
        return err(Status::InvalidArgument);
    }
    let (dir, entry) = cx.dir_and_entry(parent, last).await?;
    crate::flags::check_insert(&dir)?;
    if entry.is_some() {
        let shown = String::from_utf8_lossy(&path).into_owned();
        return Err(Error::new(Status::Exists, format!("{shown} exists; say where it is to go")));
    }
    cx.tx.clear(keys::trash(cx.volume(), id.until, id.inode))?;
    inode.trashed = None;
    inode.nlink = 1;
    inode.ctime = cx.now;
    cx.insert(parent, last, id.inode, inode.kind, cx.env.new_id()?)?;
    cx.put_inode(id.inode, &mut inode)?;
    changed.extend([parent, id.inode]);
    Ok((path, changed))
}

fn make_dir(cx: &Context<'_>, (parent, dir): (InodeId, &Inode), name: &[u8]) -> Result<InodeId> {
    if name::is_dots(name) {
        return err(Status::InvalidArgument);
    }
    crate::flags::check_insert(dir)?;
    let id = InodeId(cx.env.new_id()?);
    let mut inode = Inode {
        kind: InodeKind::Directory,
        mode: MADE_MODE,
        uid: cx.caller.uid,
        gid: cx.caller.gid,
        nlink: 1,
        atime: cx.now,
        mtime: cx.now,
        ctime: cx.now,
        btime: cx.now,
        project: dir.project,
        layout: dir.layout,
        parent,
        trash_secs: dir.trash_secs,
        name: Some(name.to_vec().into()),
        ..Inode::default()
    };
    cx.insert(parent, name, id, InodeKind::Directory, id.0)?;
    cx.count(&inode, 1, 0)?;
    cx.put_inode(id, &mut inode)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::{Memory, Transaction, run_transaction};
    use glowfs_types::{DataId, Layout, VolumeId};

    #[test]
    fn times() {
        let good = [("7d", 604_800), ("12h", 43_200), ("30m", 1800), ("90s", 90), ("90\n", 90)];
        good.iter().for_each(|(t, n)| assert_eq!(seconds(t.as_bytes()), Ok(*n), "{t}"));
        for t in ["", "0", "d", "-1", "1y", "4000d", "99999999999999999999d", "1 d"] {
            assert!(seconds(t.as_bytes()).is_err(), "{t}");
        }
    }

    struct Clock;
    impl crate::Env for Clock {
        fn now(&self) -> Time {
            Time { secs: 1, nanos: 0 }
        }
        fn new_id(&self) -> Result<u64> {
            Ok(77)
        }
        fn new_data(&self) -> Result<DataId> {
            err(Status::Internal)
        }
        fn place(&self, inherited: &Layout, _: DataId) -> Result<Layout> {
            Ok(*inherited)
        }
    }

    /// One user's files with very long paths, or one damaged record, and nobody's file could be listed any more: the page did not fit a message, or was an error.
    #[test]
    fn neither_long_paths_nor_damaged_records_hide_others() {
        glowfs_rt::real::run(|rt| async move {
            let (engine, v) = (Memory::engine(), VolumeId(1));
            let who = glowfs_types::wire::meta::Caller { volume: v, ..Default::default() };
            let id = |n: u64| TrashId { until: n / 4, inode: InodeId(n) };
            // Of an older release: 64 KiB each.
            let record = |n: u64| match n {
                3 => b"damaged".to_vec(),
                n => pack(&TrashRecord {
                    path: Some(vec![b'x'; if n % 2 == 0 { 1 << 16 } else { 9 }].into()),
                    name: b"f".to_vec().into(),
                    parent: ROOT_INODE,
                    uid: 5,
                    removed: Time::default(),
                }),
            };
            for n in 2..=150 {
                let (until, inode) = (Some(id(n).until), InodeId(n));
                let file =
                    Inode { kind: InodeKind::File, len: 7, trashed: until, ..Inode::default() };
                let file = if n == 8 { b"damaged".to_vec() } else { pack(&file) };
                run_transaction(&rt, &engine, async |tx| {
                    tx.put(keys::trash_key(v, id(n)), record(n))?;
                    tx.put(keys::inode(v, inode), file.clone())
                })
                .await
                .expect("put");
            }
            let root = Inode { kind: InodeKind::Directory, nlink: 1, ..Inode::default() };
            let put = async |tx: &Transaction| tx.put(keys::inode(v, ROOT_INODE), pack(&root));
            run_transaction(&rt, &engine, put).await.expect("put");
            for limit in [1000, 10] {
                let (mut all, mut from) = (Vec::new(), None);
                loop {
                    let page = async |tx: &Transaction| {
                        trash(&Context::new(tx, &who, &Clock), from.as_ref(), limit).await
                    };
                    let (page, next) = run_transaction(&rt, &engine, page).await.expect("a page");
                    let bytes: usize = page.iter().map(|e| e.path.len() + 100).sum();
                    assert!(bytes < 2 << 20 && page.len() <= limit as usize, "{bytes}");
                    all.extend(page);
                    from = next;
                    if from.is_none() {
                        break;
                    }
                }
                assert!(all.iter().map(|e| e.id).eq((2..=150).map(id)), "each once");
                let of = |n: u64| all.iter().find(|e| e.id == id(n)).expect("listed");
                assert_eq!(
                    (of(3).path.as_slice(), of(3).name.as_slice(), of(3).len),
                    (&b""[..], &b""[..], 7)
                );
                assert_eq!((of(8).path.len(), of(8).len), (1 << 16, 0));
                assert_eq!((of(9).path.len(), of(9).len), (9, 7));
            }
            // The one whose record is damaged can be put back, where that is said.
            let restore = async |to: Option<&[u8]>| {
                let work = async |tx: &Transaction| {
                    trash_restore(&Context::new(tx, &who, &Clock), id(3), to).await
                };
                run_transaction(&rt, &engine, work).await
            };
            assert_eq!(restore(None).await.expect_err("where").status, Status::InvalidArgument);
            assert_eq!(restore(Some(b"/back")).await.expect("restored").0, b"/back");
        });
    }

    /// The same page came again without end where nothing of it could be removed.
    #[test]
    fn what_is_due_is_looked_at_once() {
        glowfs_rt::real::run(|rt| async move {
            let (engine, v) = (Memory::engine(), VolumeId(1));
            let who = glowfs_types::wire::meta::Caller { volume: v, ..Default::default() };
            run_transaction(&rt, &engine, async |tx| {
                (1..=9).try_for_each(|n| tx.put(keys::trash(v, n / 4, InodeId(n)), b"damaged"))
            })
            .await
            .expect("put");
            let (mut all, mut from) = (Vec::new(), None);
            loop {
                let page = async |tx: &Transaction| {
                    trash_expired(&Context::new(tx, &who, &Clock), from.as_ref(), 3).await
                };
                let (ids, next) = run_transaction(&rt, &engine, page).await.expect("a page");
                all.extend(ids.iter().map(|id| id.inode.0));
                from = next;
                if from.is_none() {
                    break;
                }
            }
            assert_eq!(all, [1, 2, 3, 4, 5, 6, 7]);
        });
    }
}
