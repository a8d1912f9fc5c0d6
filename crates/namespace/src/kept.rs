//! Every kind of what the namespace keeps in the engine ([`glowfs_kv::kept`]): its keys, its records, its sums.
//!
//! Not here, for nothing takes them apart: contents of small files and extended attributes (raw; lists of access rights are of [`Acl`]), and the inode of a
//! client's session (eight bytes).

use crate::acl::Acl;
use crate::alloc::{IdRange, pack_ranges, unpack_next, unpack_ranges};
use crate::keys::{self, Part};
use crate::locking::Waiting;
use crate::locks::{AppendRight, LockTable};
use crate::record::{
    Contents, CookieEntry, Dentry, Doom, GarbageRecord, Inode, OrphanRecord, RequestRecord,
    Session, VolumeRecord, XattrSum, number, pack, unpack,
};
use crate::trash::TrashRecord;
use crate::tree::{LeavingRecord, TreeRecord};
use glowfs_kv::Key;
use glowfs_kv::kept::{Kind, Kinds};
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::{Caller, InodeKind, Time};
use glowfs_types::wire::trash::TrashId;
use glowfs_types::{
    ChainTableId, ClientId, DataId, Durability, Error, InodeId, Layout, NodeId, ProjectId,
    Redundancy, RequestId, Result, SessionId, Status, TruncateEpoch, VolumeId,
};
use std::fmt::Debug;

/// Shows all of them.
pub fn kinds(to: &mut impl Kinds) {
    record(to, "inode", inodes);
    record(to, "dentry", dentries);
    record(to, "cookie", cookies);
    record(to, "session", sessions);
    record(to, "orphan", orphans);
    record(to, "garbage", || {
        vec![GarbageRecord { data: DataId(7), layout: LAYOUT, len: 9, from: 0 }]
    });
    record(to, "request", requests);
    record(to, "volume", || vec![VolumeRecord { format: keys::FORMAT_PLAIN, made: TIME }]);
    record(to, "locks", lock_tables);
    record(to, "waiting", || {
        vec![Waiting { inode: InodeId(7), exclusive: true, start: 1, end: 9 }]
    });
    record(to, "trash", trashed);
    record(to, "tree", trees);
    record(to, "leaving", || vec![LeavingRecord { tree: InodeId(7), path: bytes(b"/a") }]);
    record(to, "time", || vec![TIME, Time { secs: -1, nanos: 999_999_999 }]);
    to.kind(Kind {
        name: "acl",
        read: Acl::parse,
        write: Acl::to_bytes,
        one_form: false,
        samples: || vec![acl()],
    });
    to.kind(Kind {
        name: "sum",
        read: |b| Ok(number(Some(b.to_vec()))),
        write: |n| n.to_le_bytes().to_vec(),
        one_form: false,
        samples: || vec![-2],
    });
    to.kind(Kind {
        name: "next id",
        read: unpack_next,
        write: |n| n.to_le_bytes().to_vec(),
        one_form: true,
        samples: || vec![258],
    });
    to.kind(Kind {
        name: "skipped ids",
        read: unpack_ranges,
        write: |r| pack_ranges(r),
        one_form: true,
        samples: || vec![vec![IdRange { next: 1, end: 5 }, IdRange { next: 7, end: 258 }]],
    });
    to.kind(Kind { name: "key", read: key, write: Key::clone, one_form: true, samples: all_keys });
}

fn record<T>(to: &mut impl Kinds, name: &'static str, samples: fn() -> Vec<T>)
where
    T: for<'b> minicbor::Decode<'b, ()> + minicbor::Encode<()> + PartialEq + Debug,
{
    let read = |bytes: &[u8]| unpack("record", bytes);
    to.kind(Kind { name, read, write: pack, one_form: false, samples });
}

/// Takes a key apart, by all that does that, and makes it again.
fn key(key: &[u8]) -> Result<Key> {
    let wrong = || Error::new(Status::Corrupt, "a key has no form that this release makes");
    let part = keys::parse(key).ok_or_else(wrong)?;
    let (volume, rest) = key.split_first_chunk::<8>().ok_or_else(wrong)?;
    let v = VolumeId(u64::from_be_bytes(*volume));
    let again = match part {
        Part::Volume => Some(keys::volume(v)),
        Part::NextId(which) => Some(keys::next_id(v, which)),
        Part::Inode(_) => keys::inode_of(key).map(|i| keys::inode(v, i)),
        Part::Dentry(parent, name) => Some(keys::dentry(v, parent, name)),
        Part::Cookie(parent, _) => keys::cookie_of(key).map(|c| keys::cookie(v, parent, c)),
        // The three of a directory differ in their last byte, which a newer release may have more of.
        Part::Side(dir, which) => {
            let made = keys::dir_version(v, dir);
            Some([&made[..made.len() - 1], &[which]].concat())
        }
        Part::Xattr(i) => Some(keys::xattr(v, i, keys::xattr_name(key))),
        Part::Session(i, s) => Some(keys::session(v, i, s)),
        Part::Client(..) => {
            keys::client_session_of(key).map(|(c, s)| keys::client_session(v, c, s))
        }
        Part::Orphan(_) => keys::orphan_of(key).map(|i| keys::orphan(v, i)),
        Part::Locks(i) => Some(keys::locks(v, i)),
        Part::ClientLock(..) => keys::client_lock_of(key).map(|(c, i)| keys::client_lock(v, c, i)),
        Part::Trash(_) => keys::trash_of(key).map(|id| keys::trash_key(v, id)),
        Part::Content(i) => Some(keys::content(v, i)),
        Part::Tree(_) => keys::leaving_of(key).map(|i| keys::tree(v, i)),
        Part::Leaving(_) => keys::leaving_of(key).map(|i| keys::leaving(v, i)),
        Part::TreeSum(tree) => key.last().map(|what| keys::tree_sum(v, tree, *what)),
        Part::Cut(..) => keys::cut_of(key).map(|(i, epoch)| keys::cut(v, i, epoch)),
        // Nothing takes these further apart than to their kind.
        Part::Garbage | Part::Request | Part::Usage | Part::LockWait => {
            Some([&volume[..], rest].concat())
        }
    };
    // What one of them says has a form, all must be able to read.
    Ok(again.filter(|_| keys::is_known(key)).unwrap_or_default())
}

const TIME: Time = Time { secs: 2, nanos: 3 };

const LAYOUT: Layout = Layout {
    table: ChainTableId(1),
    table_version: 2,
    chunk_bytes: 1 << 16,
    stripe: 4,
    start: 3,
    redundancy: Redundancy::Replicated,
    durability: Durability::Disk,
    inline_bytes: 4096,
};

fn bytes(of: &[u8]) -> Option<minicbor::bytes::ByteVec> {
    Some(of.to_vec().into())
}

/// A list with all six kinds of entries, the users and groups by name.
fn acl() -> Acl {
    let entries: [(u16, u16, u32); 7] = [
        (1, 7, u32::MAX),
        (2, 6, 5),
        (2, 0, 6),
        (4, 5, u32::MAX),
        (8, 6, 50),
        (16, 4, u32::MAX),
        (32, 1, u32::MAX),
    ];
    let entry = |(tag, perm, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    Acl::parse(&[&2_u32.to_le_bytes()[..], &entries].concat()).expect("a list like any other")
}

/// One as little as may be, and one of each sort that has fields of its own.
fn inodes() -> Vec<Inode> {
    let file = Inode {
        mode: 0o640,
        uid: 5,
        gid: 6,
        nlink: 2,
        len: 70_000,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
        data: DataId(7),
        layout: Some(LAYOUT),
        epoch: TruncateEpoch(3),
        project: ProjectId(4),
        change: 300,
        stored: true,
        cut: Some(69_000),
        mtime_set: Some(TIME),
        acl: bytes(&acl().to_bytes()),
        allocated: Some(65_536),
        flags: 1,
        trashed: Some(8),
        xattrs: Some(XattrSum { count: 1, names: 7, bytes: 9 }),
        contents_change: 2,
        ..Inode::default()
    };
    let directory = Inode {
        kind: InodeKind::Directory,
        nlink: 1,
        layout: Some(LAYOUT),
        parent: InodeId(1),
        default_acl: bytes(&acl().to_bytes()),
        layout_set: true,
        trash_secs: 60,
        name: bytes(b"d"),
        ..Inode::default()
    };
    let symlink =
        Inode { kind: InodeKind::Symlink, len: 2, symlink: bytes(b"/a"), ..Inode::default() };
    let device = Inode { kind: InodeKind::CharDevice, rdev: 259, ..Inode::default() };
    let opened = Inode { stored: true, only_writer: Some(SessionId(258)), ..Inode::default() };
    let spilling = Inode { len: 3, contents: Contents::Spilling, ..Inode::default() };
    vec![Inode::default(), file, directory, symlink, device, spilling, opened]
}

fn dentries() -> Vec<Dentry> {
    vec![Dentry { inode: InodeId(7), kind: InodeKind::Directory, cookie: 258 }]
}

fn cookies() -> Vec<CookieEntry> {
    vec![CookieEntry { inode: InodeId(7), kind: InodeKind::File, name: b"a".to_vec().into() }]
}

fn sessions() -> Vec<Session> {
    let s = Session { client: ClientId(5), read: true, write: false, opened: TIME, fence: 0 };
    vec![Session { write: true, fence: 9, ..s.clone() }, s]
}

fn orphans() -> Vec<OrphanRecord> {
    let since = OrphanRecord::since(TIME);
    let doomed = Some(Doom { node: NodeId(1), life: 2 });
    vec![OrphanRecord { doomed, linkable: true, ..since.clone() }, since]
}

fn requests() -> Vec<RequestRecord> {
    let mark = Some([9; 16].into());
    vec![
        RequestRecord { inode: InodeId(7), mark, refused: None, kind: InodeKind::File },
        RequestRecord { inode: InodeId(0), mark: None, refused: Some(17), kind: InodeKind::File },
        RequestRecord { inode: InodeId(7), mark, refused: None, kind: InodeKind::Directory },
    ]
}

fn lock_tables() -> Vec<LockTable> {
    let caller = Caller { client: ClientId(5), ..Caller::default() };
    let wish = LockWish::Exclusive;
    let range = Lock { caller, owner: 1, wish, start: 1, end: 9, pid: 77, ..Lock::default() };
    let whole =
        Lock { whole: true, wish: LockWish::Shared, start: 0, end: u64::MAX, ..range.clone() };
    let mut table = LockTable::default();
    for lock in [range, whole] {
        table.apply(&lock).expect("there is room for two");
    }
    table.append = Some(AppendRight { client: ClientId(6), grant: RequestId(8) });
    vec![LockTable::default(), table]
}

fn trashed() -> Vec<TrashRecord> {
    let (name, parent) = (b"a".to_vec().into(), InodeId(1));
    vec![TrashRecord { path: bytes(b"/a"), name, parent, uid: 5, removed: TIME }]
}

fn trees() -> Vec<TreeRecord> {
    let (name, parent, groups) = (b"a".to_vec().into(), InodeId(1), vec![8]);
    vec![TreeRecord { path: bytes(b"/a"), name, parent, uid: 5, gid: 6, groups, removed: TIME }]
}

/// One of each form.
fn all_keys() -> Vec<Key> {
    let (v, i, c, s) = (VolumeId(1), InodeId(258), ClientId(5), SessionId(6));
    let stamped = |stamp: &[u8]| [&keys::garbage(v)[..], stamp].concat();
    vec![
        keys::volume(v),
        keys::next_id(v, 2),
        keys::inode(v, i),
        keys::dentry(v, i, b"ab"),
        keys::cookie(v, i, 9),
        keys::dir_version(v, i),
        keys::dir_subdirs(v, i),
        keys::dir_time(v, i),
        keys::xattr(v, i, b"user.x"),
        keys::session(v, i, s),
        keys::client_session(v, c, s),
        keys::orphan(v, i),
        stamped(&[3; 10]),
        stamped(&[3; 12]),
        keys::request(v, 2, RequestId(1)),
        keys::usage(v, ProjectId(0), 1, 3),
        keys::locks(v, i),
        keys::client_lock(v, c, i),
        keys::lock_wait(v, c, 258),
        keys::trash_key(v, TrashId { until: 258, inode: i }),
        keys::content(v, i),
        keys::tree(v, i),
        keys::leaving(v, i),
        keys::tree_sum(v, i, 3),
        keys::cut(v, i, TruncateEpoch(3)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::kept::Samples;

    /// What stands in engines that are in use is written like this. New kinds and samples are added; no line is changed.
    const GOLDEN: &str = include_str!("kept.golden");

    #[test]
    fn golden_bytes_of_every_kind() {
        let mut samples = Samples::default();
        kinds(&mut samples);
        assert_eq!(samples.listed(), GOLDEN, "now:\n{}", samples.listed());
    }
}
