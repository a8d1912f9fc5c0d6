//! Every key of the file system (docs/formats/namespace-keys.md). All begin with the volume id.
//!
//! Inodes are spread over the key space by the reversed bits of their id; the entries of a directory are contiguous.

use glowfs_kv::{Key, STAMP_BYTES, prefix_end};
use glowfs_types::wire::trash::TrashId;
use glowfs_types::{ClientId, InodeId, ProjectId, RequestId, SessionId, TruncateEpoch, VolumeId};

/// The newest format of keys and records that this build reads.
pub const FORMAT: u64 = 2;
/// The format of a volume in which no file ever had its contents with the metadata: older builds read it.
pub(crate) const FORMAT_PLAIN: u64 = 1;

/// The second part of every key, after the volume.
mod kind {
    pub const VOLUME: u8 = b'M';
    pub const NEXT_ID: u8 = b'N';
    pub const INODE: u8 = b'I';
    pub const DENTRY: u8 = b'D';
    pub const COOKIE: u8 = b'C';
    pub const SIDE: u8 = b'V';
    pub const XATTR: u8 = b'X';
    pub const SESSION: u8 = b'S';
    pub const CLIENT: u8 = b'T';
    pub const ORPHAN: u8 = b'O';
    pub const GARBAGE: u8 = b'G';
    pub const REQUEST: u8 = b'R';
    pub const USAGE: u8 = b'U';
    pub const LOCKS: u8 = b'L';
    pub const CLIENT_LOCK: u8 = b'K';
    pub const LOCK_WAIT: u8 = b'W';
    pub const TRASH: u8 = b'Z';
    pub const CONTENT: u8 = b'B';
    pub const LEAVING: u8 = b'E';
    pub const CUT: u8 = b'P';
}

/// What the keys of trees on their way out are about.
mod leaving {
    pub const TREE: u8 = 0;
    pub const DIRECTORY: u8 = 1;
    pub const SUM: u8 = 2;
}

fn key(volume: VolumeId, kind: u8, parts: &[&[u8]]) -> Key {
    let mut k = Vec::with_capacity(9 + parts.iter().map(|p| p.len()).sum::<usize>());
    k.extend_from_slice(&volume.0.to_be_bytes());
    k.push(kind);
    for part in parts {
        k.extend_from_slice(part);
    }
    k
}

fn spread(inode: InodeId) -> [u8; 8] {
    inode.0.reverse_bits().to_be_bytes()
}

fn range(prefix: Key) -> (Key, Key) {
    let end = prefix_end(&prefix);
    (prefix, end)
}

/// Format and birth of the volume.
pub fn volume(v: VolumeId) -> Key {
    key(v, kind::VOLUME, &[])
}
/// The next free number: 0 for inode ids and cookies, 1 for data ids. 2: which data ids were skipped.
pub fn next_id(v: VolumeId, which: u8) -> Key {
    key(v, kind::NEXT_ID, &[&[which]])
}
/// An inode record.
pub fn inode(v: VolumeId, i: InodeId) -> Key {
    key(v, kind::INODE, &[&spread(i)])
}
/// The inode in such a key.
pub fn inode_of(key: &[u8]) -> Option<InodeId> {
    let spread: [u8; 8] = key.get(9..17)?.try_into().ok()?;
    Some(InodeId(u64::from_be_bytes(spread).reverse_bits()))
}
/// All inode records.
pub fn inodes(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::INODE, &[]))
}
/// An entry of a directory.
pub fn dentry(v: VolumeId, parent: InodeId, name: &[u8]) -> Key {
    key(v, kind::DENTRY, &[&spread(parent), name])
}
/// All entries of a directory.
pub fn dentries(v: VolumeId, parent: InodeId) -> (Key, Key) {
    range(key(v, kind::DENTRY, &[&spread(parent)]))
}
/// The entry with a cookie.
pub fn cookie(v: VolumeId, parent: InodeId, cookie: u64) -> Key {
    key(v, kind::COOKIE, &[&spread(parent), &cookie.to_be_bytes()])
}
/// The entries with cookies after one.
pub fn cookies_after(v: VolumeId, parent: InodeId, after: u64) -> (Key, Key) {
    let (_, end) = range(key(v, kind::COOKIE, &[&spread(parent)]));
    match after.checked_add(1) {
        Some(next) => (cookie(v, parent, next), end),
        None => (end.clone(), end),
    }
}
/// The cookie in such a key.
pub fn cookie_of(key: &[u8]) -> Option<u64> {
    let tail: [u8; 8] = key.get(17..25)?.try_into().ok()?;
    Some(u64::from_be_bytes(tail))
}
/// How often a directory's entries have changed (a sum).
pub fn dir_version(v: VolumeId, dir: InodeId) -> Key {
    key(v, kind::SIDE, &[&spread(dir), &[0]])
}
/// How many sub-directories it has (a sum).
pub fn dir_subdirs(v: VolumeId, dir: InodeId) -> Key {
    key(v, kind::SIDE, &[&spread(dir), &[1]])
}
/// When its entries last changed.
pub fn dir_time(v: VolumeId, dir: InodeId) -> Key {
    key(v, kind::SIDE, &[&spread(dir), &[2]])
}
/// The three keys beside a directory's inode.
pub fn dir_side(v: VolumeId, dir: InodeId) -> (Key, Key) {
    range(key(v, kind::SIDE, &[&spread(dir)]))
}
/// An extended attribute.
pub fn xattr(v: VolumeId, i: InodeId, name: &[u8]) -> Key {
    key(v, kind::XATTR, &[&spread(i), name])
}
/// All of an inode.
pub fn xattrs(v: VolumeId, i: InodeId) -> (Key, Key) {
    range(key(v, kind::XATTR, &[&spread(i)]))
}
/// The name in such a key.
pub fn xattr_name(key: &[u8]) -> &[u8] {
    key.get(17..).unwrap_or_default()
}
/// A session of an inode.
pub fn session(v: VolumeId, i: InodeId, s: SessionId) -> Key {
    key(v, kind::SESSION, &[&spread(i), &s.0.to_be_bytes()])
}
/// All sessions of an inode.
pub fn sessions(v: VolumeId, i: InodeId) -> (Key, Key) {
    range(key(v, kind::SESSION, &[&spread(i)]))
}
/// A session of a client.
pub fn client_session(v: VolumeId, c: ClientId, s: SessionId) -> Key {
    key(v, kind::CLIENT, &[&c.0.to_be_bytes(), &s.0.to_be_bytes()])
}
/// All sessions of a client.
pub fn client_sessions(v: VolumeId, c: ClientId) -> (Key, Key) {
    range(key(v, kind::CLIENT, &[&c.0.to_be_bytes()]))
}
/// The sessions of all clients.
pub fn all_client_sessions(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::CLIENT, &[]))
}
/// Client and session in such a key.
pub fn client_session_of(key: &[u8]) -> Option<(ClientId, SessionId)> {
    let client: [u8; 16] = key.get(9..25)?.try_into().ok()?;
    let session: [u8; 16] = key.get(25..41)?.try_into().ok()?;
    Some((ClientId(u128::from_be_bytes(client)), SessionId(u128::from_be_bytes(session))))
}
/// An inode without a name that somebody has open.
pub fn orphan(v: VolumeId, i: InodeId) -> Key {
    key(v, kind::ORPHAN, &[&i.0.to_be_bytes()])
}
/// All of them.
pub fn orphans(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::ORPHAN, &[]))
}
/// The inode in such a key.
pub fn orphan_of(key: &[u8]) -> Option<InodeId> {
    let tail: [u8; 8] = key.get(9..17)?.try_into().ok()?;
    Some(InodeId(u64::from_be_bytes(tail)))
}
/// The prefix of the garbage queue; a versionstamp follows.
pub fn garbage(v: VolumeId) -> Key {
    key(v, kind::GARBAGE, &[])
}
/// The whole queue.
pub fn all_garbage(v: VolumeId) -> (Key, Key) {
    range(garbage(v))
}
/// What a request did; `bucket` is its time in units of the time that requests are remembered.
pub fn request(v: VolumeId, bucket: u32, r: RequestId) -> Key {
    key(v, kind::REQUEST, &[&bucket.to_be_bytes(), &r.0.to_be_bytes()])
}
/// The requests of all buckets before one.
pub fn requests_before(v: VolumeId, bucket: u32) -> (Key, Key) {
    (key(v, kind::REQUEST, &[]), key(v, kind::REQUEST, &[&bucket.to_be_bytes()]))
}
/// A shard of a usage counter: `what` 0 is inodes, 1 is bytes, 2 is bytes of contents with the metadata, 3 is bytes of extended attributes.
pub fn usage(v: VolumeId, project: ProjectId, what: u8, shard: u8) -> Key {
    key(v, kind::USAGE, &[&project.0.to_be_bytes(), &[what, shard]])
}
/// All usage counters.
pub fn all_usage(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::USAGE, &[]))
}
/// What such a key counts.
pub fn usage_what(key: &[u8]) -> Option<u8> {
    key.get(17).copied()
}

/// The contents of a file that are kept with the metadata.
pub fn content(v: VolumeId, i: InodeId) -> Key {
    key(v, kind::CONTENT, &[&spread(i)])
}
/// The locks of a file.
pub fn locks(v: VolumeId, i: InodeId) -> Key {
    key(v, kind::LOCKS, &[&spread(i)])
}
/// A client has locks of a file.
pub fn client_lock(v: VolumeId, c: ClientId, i: InodeId) -> Key {
    key(v, kind::CLIENT_LOCK, &[&c.0.to_be_bytes(), &i.0.to_be_bytes()])
}
/// All files that a client has locks of.
pub fn client_locks(v: VolumeId, c: ClientId) -> (Key, Key) {
    range(key(v, kind::CLIENT_LOCK, &[&c.0.to_be_bytes()]))
}
/// The client of such a key, or of what an owner waits for.
pub fn client_of_lock(key: &[u8]) -> Option<ClientId> {
    key.get(9..25)?.try_into().ok().map(|c| ClientId(u128::from_be_bytes(c)))
}
/// Client and file in such a key.
pub fn client_lock_of(key: &[u8]) -> Option<(ClientId, InodeId)> {
    let client: [u8; 16] = key.get(9..25)?.try_into().ok()?;
    let inode: [u8; 8] = key.get(25..33)?.try_into().ok()?;
    Some((ClientId(u128::from_be_bytes(client)), InodeId(u64::from_be_bytes(inode))))
}
/// What an owner of a client waits for.
pub fn lock_wait(v: VolumeId, c: ClientId, owner: u64) -> Key {
    key(v, kind::LOCK_WAIT, &[&c.0.to_be_bytes(), &owner.to_be_bytes()])
}
/// Where the keys of all clients that hold, and that wait for, locks begin and end.
pub fn all_lockers(v: VolumeId) -> [(Key, Key); 2] {
    [kind::CLIENT_LOCK, kind::LOCK_WAIT].map(|kind| range(key(v, kind, &[])))
}
/// What the owners of a client wait for.
pub fn lock_waits(v: VolumeId, c: ClientId) -> (Key, Key) {
    range(key(v, kind::LOCK_WAIT, &[&c.0.to_be_bytes()]))
}

/// A file in the trash, under the time when it goes.
pub fn trash(v: VolumeId, until: u64, i: InodeId) -> Key {
    key(v, kind::TRASH, &[&until.to_be_bytes(), &i.0.to_be_bytes()])
}
/// The same by its id.
pub fn trash_key(v: VolumeId, id: TrashId) -> Key {
    trash(v, id.until, id.inode)
}
/// The whole trash.
pub fn all_trash(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::TRASH, &[]))
}
/// The id in such a key.
pub fn trash_of(key: &[u8]) -> Option<TrashId> {
    let until: [u8; 8] = key.get(9..17)?.try_into().ok()?;
    let inode: [u8; 8] = key.get(17..25)?.try_into().ok()?;
    Some(TrashId { until: u64::from_be_bytes(until), inode: InodeId(u64::from_be_bytes(inode)) })
}

/// A truncate whose chunks are not cut off yet, by the epoch that it gave the file.
pub fn cut(v: VolumeId, i: InodeId, epoch: TruncateEpoch) -> Key {
    key(v, kind::CUT, &[&i.0.to_be_bytes(), &epoch.0.to_be_bytes()])
}
/// All of them.
pub fn cuts(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::CUT, &[]))
}
/// File and epoch in such a key.
pub fn cut_of(key: &[u8]) -> Option<(InodeId, TruncateEpoch)> {
    match parse(key)? {
        Part::Cut(inode, epoch) => Some((inode, epoch)),
        _ => None,
    }
}

/// A tree that was removed and is being emptied.
pub fn tree(v: VolumeId, tree: InodeId) -> Key {
    key(v, kind::LEAVING, &[&[leaving::TREE], &tree.0.to_be_bytes()])
}
/// All of them.
pub fn trees(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::LEAVING, &[&[leaving::TREE]]))
}
/// A directory of such a tree that waits to be emptied.
pub fn leaving(v: VolumeId, dir: InodeId) -> Key {
    key(v, kind::LEAVING, &[&[leaving::DIRECTORY], &dir.0.to_be_bytes()])
}
/// All of them.
pub fn all_leaving(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::LEAVING, &[&[leaving::DIRECTORY]]))
}
/// The tree or directory in such a key.
pub fn leaving_of(key: &[u8]) -> Option<InodeId> {
    let tail: [u8; 8] = key.get(10..18)?.try_into().ok()?;
    Some(InodeId(u64::from_be_bytes(tail)))
}
/// How far a tree is (a sum): directories that wait (0); names of other things (1) and directories (2) removed, bytes of them (3), things kept (4).
pub fn tree_sum(v: VolumeId, tree: InodeId, what: u8) -> Key {
    key(v, kind::LEAVING, &[&[leaving::SUM], &tree.0.to_be_bytes(), &[what]])
}
/// All sums of a tree.
pub fn tree_sums(v: VolumeId, tree: InodeId) -> (Key, Key) {
    range(key(v, kind::LEAVING, &[&[leaving::SUM], &tree.0.to_be_bytes()]))
}
/// The sums of all trees.
pub fn all_tree_sums(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::LEAVING, &[&[leaving::SUM]]))
}

/// A key, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part<'a> {
    Volume,
    NextId(u8),
    Inode(InodeId),
    Dentry(InodeId, &'a [u8]),
    Cookie(InodeId, u64),
    Side(InodeId, u8),
    Xattr(InodeId),
    Session(InodeId, SessionId),
    Client(ClientId, SessionId),
    Orphan(InodeId),
    Garbage,
    Request,
    Usage,
    Locks(InodeId),
    ClientLock(ClientId, InodeId),
    LockWait,
    Trash(TrashId),
    Content(InodeId),
    Tree(InodeId),
    Leaving(InodeId),
    TreeSum(InodeId),
    Cut(InodeId, TruncateEpoch),
}

/// Whether some key of a volume is of a kind that this build knows.
pub(crate) fn is_known(key: &[u8]) -> bool {
    key.get(8).is_some_and(|k| b"MNIDCVXSTOGRULKWZBEP".contains(k))
}

/// Takes a key of a volume apart. None: it has no form that this build makes.
pub(crate) fn parse(key: &[u8]) -> Option<Part<'_>> {
    let rest = key.get(9..)?;
    let u64_at = |at: usize| Some(u64::from_be_bytes(rest.get(at..at + 8)?.try_into().ok()?));
    let u128_at = |at: usize| Some(u128::from_be_bytes(rest.get(at..at + 16)?.try_into().ok()?));
    let spread_id = || Some(InodeId(u64_at(0)?.reverse_bits()));
    let exact = |len: usize| (rest.len() == len).then_some(());
    Some(match *key.get(8)? {
        kind::VOLUME => exact(0).map(|()| Part::Volume)?,
        kind::NEXT_ID => exact(1).map(|()| Part::NextId(rest[0]))?,
        kind::INODE => exact(8).and_then(|()| Some(Part::Inode(spread_id()?)))?,
        kind::DENTRY => Part::Dentry(spread_id()?, rest.get(8..)?),
        kind::COOKIE => exact(16).and_then(|()| Some(Part::Cookie(spread_id()?, u64_at(8)?)))?,
        kind::SIDE => exact(9).and_then(|()| Some(Part::Side(spread_id()?, rest[8])))?,
        kind::XATTR => Part::Xattr(spread_id()?),
        kind::SESSION => {
            exact(24).and_then(|()| Some(Part::Session(spread_id()?, SessionId(u128_at(8)?))))?
        }
        kind::CLIENT => exact(32)
            .and_then(|()| Some(Part::Client(ClientId(u128_at(0)?), SessionId(u128_at(16)?))))?,
        kind::ORPHAN => exact(8).and_then(|()| Some(Part::Orphan(InodeId(u64_at(0)?))))?,
        // Engines have short stamps or long ones, nothing between.
        kind::GARBAGE => [*STAMP_BYTES.start(), *STAMP_BYTES.end()]
            .contains(&rest.len())
            .then_some(Part::Garbage)?,
        kind::REQUEST => exact(20).map(|()| Part::Request)?,
        kind::USAGE => exact(10).map(|()| Part::Usage)?,
        kind::CONTENT => exact(8).and_then(|()| Some(Part::Content(spread_id()?)))?,
        kind::LOCKS => exact(8).and_then(|()| Some(Part::Locks(spread_id()?)))?,
        kind::CLIENT_LOCK => exact(24)
            .and_then(|()| Some(Part::ClientLock(ClientId(u128_at(0)?), InodeId(u64_at(16)?))))?,
        kind::LOCK_WAIT => exact(24).map(|()| Part::LockWait)?,
        kind::TRASH => exact(16).and_then(|()| {
            Some(Part::Trash(TrashId { until: u64_at(0)?, inode: InodeId(u64_at(8)?) }))
        })?,
        kind::CUT => exact(16)
            .and_then(|()| Some(Part::Cut(InodeId(u64_at(0)?), TruncateEpoch(u64_at(8)?))))?,
        kind::LEAVING => {
            let id = || Some(InodeId(u64_at(1)?));
            match *rest.first()? {
                leaving::TREE => exact(9).and_then(|()| Some(Part::Tree(id()?)))?,
                leaving::DIRECTORY => exact(9).and_then(|()| Some(Part::Leaving(id()?)))?,
                leaving::SUM => exact(10).and_then(|()| Some(Part::TreeSum(id()?)))?,
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Every key of a volume.
pub(crate) fn all(v: VolumeId) -> (Key, Key) {
    range(v.0.to_be_bytes().to_vec())
}
/// The entries of all directories.
pub(crate) fn all_dentries(v: VolumeId) -> (Key, Key) {
    range(key(v, kind::DENTRY, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_keys() {
        let v = VolumeId(1);
        assert_eq!(inode(v, InodeId(1)), b"\0\0\0\0\0\0\0\x01I\x80\0\0\0\0\0\0\0");
        assert_eq!(inode_of(&inode(v, InodeId(258))), Some(InodeId(258)));
        assert_eq!(dentry(v, InodeId(3), b"a"), b"\0\0\0\0\0\0\0\x01D\xc0\0\0\0\0\0\0\0a");
        assert_eq!(
            cookie(v, InodeId(1), 258),
            b"\0\0\0\0\0\0\0\x01C\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02"
        );
        assert_eq!(cookie_of(&cookie(v, InodeId(9), 77)), Some(77));
        let (c, s) = (ClientId(5), SessionId(6));
        assert_eq!(client_session_of(&client_session(v, c, s)), Some((c, s)));
        assert_eq!(client_lock_of(&client_lock(v, c, InodeId(7))), Some((c, InodeId(7))));
        assert_eq!(locks(v, InodeId(1)), b"\0\0\0\0\0\0\0\x01L\x80\0\0\0\0\0\0\0");
        assert_eq!(
            lock_wait(v, c, 258)[8..],
            *b"W\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\x01\x02"
        );
        assert_eq!(content(v, InodeId(1)), b"\0\0\0\0\0\0\0\x01B\x80\0\0\0\0\0\0\0");
        let id = TrashId { until: 258, inode: InodeId(7) };
        assert_eq!(trash_key(v, id)[8..], *b"Z\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\x07");
        assert_eq!(trash_of(&trash_key(v, id)), Some(id));
        assert_eq!(tree(v, InodeId(258))[8..], *b"E\0\0\0\0\0\0\0\x01\x02");
        assert_eq!(leaving(v, InodeId(258))[8..], *b"E\x01\0\0\0\0\0\0\x01\x02");
        assert_eq!(tree_sum(v, InodeId(258), 3)[8..], *b"E\x02\0\0\0\0\0\0\x01\x02\x03");
        assert_eq!(leaving_of(&leaving(v, InodeId(258))), Some(InodeId(258)));
        let cut_at = cut(v, InodeId(258), TruncateEpoch(3));
        assert_eq!(cut_at[8..], *b"P\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\x03");
        assert_eq!(cut_of(&cut_at), Some((InodeId(258), TruncateEpoch(3))));
        assert_eq!(usage_what(&usage(v, ProjectId(0), 1, 3)), Some(1));
        assert_eq!(xattr_name(&xattr(v, InodeId(2), b"user.x")), b"user.x");
        assert_eq!(request(v, 2, RequestId(1))[8..13], *b"R\0\0\0\x02");
    }

    #[test]
    fn keys_come_apart_as_they_were_made() {
        let (v, i, c, s) = (VolumeId(1), InodeId(77), ClientId(5), SessionId(6));
        let id = TrashId { until: 258, inode: i };
        for (made, part) in [
            (volume(v), Part::Volume),
            (next_id(v, 1), Part::NextId(1)),
            (inode(v, i), Part::Inode(i)),
            (dentry(v, i, b"ab"), Part::Dentry(i, b"ab")),
            (cookie(v, i, 9), Part::Cookie(i, 9)),
            (dir_time(v, i), Part::Side(i, 2)),
            (xattr(v, i, b"user.x"), Part::Xattr(i)),
            (session(v, i, s), Part::Session(i, s)),
            (client_session(v, c, s), Part::Client(c, s)),
            (orphan(v, i), Part::Orphan(i)),
            ([garbage(v), vec![0; 10]].concat(), Part::Garbage),
            ([garbage(v), vec![0; 12]].concat(), Part::Garbage),
            (request(v, 2, RequestId(1)), Part::Request),
            (usage(v, ProjectId(0), 1, 3), Part::Usage),
            (locks(v, i), Part::Locks(i)),
            (client_lock(v, c, i), Part::ClientLock(c, i)),
            (lock_wait(v, c, 258), Part::LockWait),
            (trash_key(v, id), Part::Trash(id)),
            (tree(v, i), Part::Tree(i)),
            (leaving(v, i), Part::Leaving(i)),
            (tree_sum(v, i, 4), Part::TreeSum(i)),
            (content(v, i), Part::Content(i)),
            (cut(v, i, TruncateEpoch(3)), Part::Cut(i, TruncateEpoch(3))),
        ] {
            assert_eq!(parse(&made), Some(part));
            assert!(is_known(&made));
            let cut = &made[..made.len() - 1];
            let names = matches!(part, Part::Dentry(..) | Part::Xattr(_));
            assert!(names || parse(cut).is_none(), "{part:?}");
        }
        assert!(!is_known(b"\0\0\0\0\0\0\0\x01Y") && parse(b"\0\0\0\0\0\0\0\x01Y").is_none());
    }

    #[test]
    fn a_directory_contains_its_entries_only() {
        let v = VolumeId(1);
        for i in [1, 2, 3, 255, u64::MAX] {
            let (begin, end) = dentries(v, InodeId(i));
            for name in [&b"a"[..], &[0xff; 255], b"\x01"] {
                let k = dentry(v, InodeId(i), name);
                assert!(begin < k && k < end);
                for other in [1, 2, 3, 255, u64::MAX] {
                    let k = dentry(v, InodeId(other), name);
                    assert_eq!(begin < k && k < end, other == i);
                }
            }
        }
    }
}
