//! [`View`]: the records of one transaction as the checks see them, fetched together where it is known what they will ask for.

use crate::context::Context;
use crate::keys::{self, Part};
use crate::locking::Waiting;
use crate::locks::LockTable;
use crate::record::{CookieEntry, Dentry, Inode, Session, unpack};
use glowfs_kv::{Key, Value};
use glowfs_types::{InodeId, Result, VolumeId};
use minicbor::Decode;
use std::collections::{BTreeMap, BTreeSet};

/// Keys fetched in one step.
const FETCH_KEYS: usize = 512;

/// A record that was looked for.
pub enum Found<T> {
    /// It is not there.
    Absent,
    /// It is there, and cannot be read: nothing is concluded from it.
    Unreadable,
    /// It is there.
    There(T),
}

impl<T> Found<T> {
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
    pub fn there(self) -> Option<T> {
        match self {
            Self::There(t) => Some(t),
            _ => None,
        }
    }
}

/// See the module.
pub struct View<'a> {
    /// The transaction, and everything around it.
    pub cx: &'a Context<'a>,
    known: BTreeMap<Key, Option<Value>>,
    conflicts: bool,
}

impl<'a> View<'a> {
    /// For looking.
    pub fn snapshot(cx: &'a Context<'a>) -> Self {
        Self { cx, known: BTreeMap::new(), conflicts: false }
    }
    /// For changing: what is read must not change before the commit.
    pub fn for_change(cx: &'a Context<'a>) -> Self {
        Self { cx, known: BTreeMap::new(), conflicts: true }
    }
    pub fn volume(&self) -> VolumeId {
        self.cx.caller.volume
    }

    /// A value.
    pub async fn get(&self, key: &Key) -> Result<Option<Value>> {
        if let Some(known) = self.known.get(key) {
            return Ok(known.clone());
        }
        if self.conflicts { self.cx.tx.get(key).await } else { self.cx.tx.get_snapshot(key).await }
    }
    /// A record.
    pub async fn record<T: for<'b> Decode<'b, ()>>(&self, key: &Key) -> Result<Found<T>> {
        Ok(match self.get(key).await? {
            None => Found::Absent,
            Some(v) => unpack("record", &v).map_or(Found::Unreadable, Found::There),
        })
    }
    /// An inode.
    pub async fn inode(&self, id: InodeId) -> Result<Found<Inode>> {
        self.record(&keys::inode(self.volume(), id)).await
    }
    /// The next free id, of inodes and cookies (0) or data (1).
    pub async fn next_id(&self, which: u8) -> Result<Option<u64>> {
        let value = self.get(&keys::next_id(self.volume(), which)).await?;
        let first = if which == 0 { 2 } else { 1 };
        // One that does not decode is found where it stands.
        Ok(value.map_or(Some(first), |v| v.try_into().ok().map(u64::from_le_bytes)))
    }

    /// Fetches what the checks of these records are going to ask for.
    pub async fn prefetch(&mut self, entries: &[(Key, Value)]) -> Result<()> {
        let v = self.volume();
        let mut wanted = BTreeSet::from([keys::next_id(v, 0), keys::next_id(v, 1)]);
        for (key, value) in entries {
            needs(v, key, value, &mut wanted);
        }
        let wanted: Vec<Key> = wanted.into_iter().collect();
        for some in wanted.chunks(FETCH_KEYS) {
            let found = self.cx.tx.get_all_snapshot(some).await?;
            self.known.extend(some.iter().cloned().zip(found));
        }
        Ok(())
    }
}

/// What the check of a record reads besides. What is missing here is read one by one.
fn needs(v: VolumeId, key: &[u8], value: &[u8], wanted: &mut BTreeSet<Key>) {
    let Some(part) = keys::parse(key) else { return };
    match part {
        Part::Inode(id) => {
            wanted.insert(keys::orphan(v, id));
            if let Ok(inode) = unpack::<Inode>("", value) {
                wanted.extend(inode.trashed.map(|until| keys::trash(v, until, id)));
                wanted.extend(inode.is_inline().then(|| keys::content(v, id)));
            }
        }
        Part::Dentry(parent, _) => {
            wanted.insert(keys::inode(v, parent));
            if let Ok(d) = unpack::<Dentry>("", value) {
                wanted.extend([keys::inode(v, d.inode), keys::cookie(v, parent, d.cookie)]);
            }
        }
        Part::Cookie(parent, _) => {
            if let Ok(c) = unpack::<CookieEntry>("", value) {
                wanted.insert(keys::dentry(v, parent, &c.name));
            }
        }
        Part::Side(id, _) | Part::Xattr(id) | Part::Orphan(id) | Part::Content(id) => {
            wanted.insert(keys::inode(v, id));
        }
        Part::Session(id, session) => {
            wanted.insert(keys::inode(v, id));
            if let Ok(s) = unpack::<Session>("", value) {
                wanted.insert(keys::client_session(v, s.client, session));
            }
        }
        Part::Client(_, session) => {
            if let Ok(id) = value.try_into().map(u64::from_be_bytes) {
                wanted.insert(keys::session(v, InodeId(id), session));
            }
        }
        Part::Leaving(id) | Part::Cut(id, _) => {
            wanted.insert(keys::inode(v, id));
        }
        Part::TreeSum(tree) => {
            wanted.insert(keys::tree(v, tree));
        }
        Part::Trash(id) => {
            wanted.insert(keys::inode(v, id.inode));
        }
        Part::Locks(id) => {
            wanted.insert(keys::inode(v, id));
            if let Ok(t) = unpack::<LockTable>("", value) {
                wanted.extend(t.clients().into_iter().map(|c| keys::client_lock(v, c, id)));
            }
        }
        Part::ClientLock(_, id) => {
            wanted.insert(keys::locks(v, id));
        }
        Part::LockWait => {
            if let Ok(w) = unpack::<Waiting>("", value) {
                wanted.insert(keys::inode(v, w.inode));
            }
        }
        _ => {}
    }
}
