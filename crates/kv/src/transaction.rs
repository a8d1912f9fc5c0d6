//! [`Transaction`]: buffered writes over a snapshot, with the conflict ranges that make it serializable.

use crate::{Engine, Key, RangePage, Value, Version, key_after};
use glowfs_types::wire::kv::{Commit, Mutation, RANGE_ENTRIES_MAX, TRANSACTION_BYTES_MAX};
use glowfs_types::{Error, Result, Status};
use minicbor::bytes::ByteVec;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::rc::Rc;

/// What this transaction did to one key.
#[derive(Clone)]
enum Local {
    Put(Value),
    Clear,
    Add(i64),
}

#[derive(Default)]
struct Buffer {
    keys: BTreeMap<Key, Local>,
    /// Cleared ranges; they come before what `keys` says.
    clears: Vec<(Key, Key)>,
    stamped: Vec<(Key, Key, Value)>,
    /// Single keys that were read, and whether they were there.
    read_keys: Vec<(Key, bool)>,
    /// Ranges that were read.
    read_ranges: Vec<(Key, Key)>,
    /// The keys of `read_ranges` that were there.
    present: Vec<Key>,
    /// A read conflict was added without a read, so `present` is not complete.
    unseen: bool,
    write_conflicts: Vec<(Key, Key)>,
    bytes: usize,
}

impl Buffer {
    fn cleared(&self, key: &[u8]) -> bool {
        self.clears.iter().any(|(b, e)| b.as_slice() <= key && key < e.as_slice())
    }
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
            && self.clears.is_empty()
            && self.stamped.is_empty()
            && self.write_conflicts.is_empty()
    }
    /// A key was read.
    fn note_key(&mut self, key: &[u8], there: bool) -> Result<()> {
        self.grow(2 * key.len() + 1)?;
        self.read_keys.push((key.to_vec(), there));
        Ok(())
    }
    fn note_range(&mut self, begin: Key, end: Key) -> Result<()> {
        self.grow(begin.len() + end.len())?;
        self.read_ranges.push((begin, end));
        Ok(())
    }
    /// What was read: as ranges, and which keys of them were there.
    fn take_reads(&mut self) -> (Vec<(Key, Key)>, Vec<Key>) {
        let (mut all, mut present) = (take(&mut self.read_ranges), take(&mut self.present));
        for (key, there) in take(&mut self.read_keys) {
            if there {
                present.push(key.clone());
            }
            let end = key_after(&key);
            all.push((key, end));
        }
        (all, present)
    }
    fn grow(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes;
        if self.bytes > TRANSACTION_BYTES_MAX {
            return Err(Error::new(
                Status::TooLarge,
                format!("a transaction over {TRANSACTION_BYTES_MAX} bytes: split it"),
            ));
        }
        Ok(())
    }
}

/// What a transaction was about to change at some moment: see [`Transaction::savepoint`].
pub struct Savepoint {
    keys: BTreeMap<Key, Local>,
    clears: Vec<(Key, Key)>,
    stamped: Vec<(Key, Key, Value)>,
    write_conflicts: Vec<(Key, Key)>,
    grows: bool,
}

/// A transaction. All reads are as of one version; writes are seen by its own reads and by others after the commit.
pub struct Transaction {
    engine: Rc<dyn Engine>,
    version: Cell<Option<Version>>,
    grows: Cell<bool>,
    buffer: RefCell<Buffer>,
}

impl Transaction {
    /// A new one; it reads as of the version that is newest at its first read.
    pub fn new(engine: Rc<dyn Engine>) -> Self {
        let (version, grows) = (Cell::new(None), Cell::new(false));
        Self { engine, version, grows, buffer: RefCell::default() }
    }

    /// The version it reads at.
    pub async fn read_version(&self) -> Result<Version> {
        if let Some(v) = self.version.get() {
            return Ok(v);
        }
        let v = self.engine.begin().await?;
        self.version.set(Some(v));
        Ok(v)
    }

    /// The life of the engine that it reads in ([`Engine::life`]); 0 before the first read.
    pub fn life(&self) -> u64 {
        self.version.get().map_or(0, |v| self.engine.life(v))
    }

    /// Reads a key.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.read(key, true).await
    }
    /// Reads a key without a conflict: another transaction may change it before this one commits.
    pub async fn get_snapshot(&self, key: &[u8]) -> Result<Option<Value>> {
        self.read(key, false).await
    }
    /// Reads several keys in one step of the engine.
    pub async fn get_all(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.read_all(keys, true).await
    }
    /// The same without a conflict.
    pub async fn get_all_snapshot(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.read_all(keys, false).await
    }

    /// Reads `keys`, and `loose` without a conflict, in one step of the engine.
    pub async fn get_mixed(
        &self,
        keys: &[Key],
        loose: &[Key],
    ) -> Result<(Vec<Option<Value>>, Vec<Option<Value>>)> {
        let version = self.read_version().await?;
        let found = self.engine.get(version, [keys, loose].concat()).await?;
        if found.len() != keys.len() + loose.len() {
            return Err(Error::new(Status::BadMessage, "engine: wrong number of values"));
        }
        let mut buffer = self.buffer.borrow_mut();
        let mut out = Vec::with_capacity(found.len());
        for (at, (key, base)) in keys.iter().chain(loose).zip(found).enumerate() {
            if at < keys.len() {
                buffer.note_key(key, base.is_some())?;
            }
            out.push(overlay(&buffer, key, base));
        }
        let loose = out.split_off(keys.len());
        Ok((out, loose))
    }

    async fn read_all(&self, keys: &[Key], conflict: bool) -> Result<Vec<Option<Value>>> {
        if conflict {
            return Ok(self.get_mixed(keys, &[]).await?.0);
        }
        Ok(self.get_mixed(&[], keys).await?.1)
    }

    async fn read(&self, key: &[u8], conflict: bool) -> Result<Option<Value>> {
        {
            let buffer = self.buffer.borrow();
            match buffer.keys.get(key) {
                Some(Local::Put(v)) => return Ok(Some(v.clone())),
                Some(Local::Clear) => return Ok(None),
                None if buffer.cleared(key) => return Ok(None),
                Some(Local::Add(_)) | None => {}
            }
        }
        let version = self.read_version().await?;
        let base = self.engine.get(version, vec![key.to_vec()]).await?.pop().flatten();
        let mut buffer = self.buffer.borrow_mut();
        if conflict {
            buffer.note_key(key, base.is_some())?;
        }
        Ok(overlay(&buffer, key, base))
    }

    /// Reads up to `limit` entries of `[begin, end)`. Conflicts with changes of the part that was looked at,
    /// insertions included.
    pub async fn get_range(
        &self,
        begin: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
    ) -> Result<RangePage> {
        self.range(begin, end, limit, reverse, true).await
    }
    /// The same without a conflict.
    pub async fn get_range_snapshot(
        &self,
        begin: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
    ) -> Result<RangePage> {
        self.range(begin, end, limit, reverse, false).await
    }

    async fn range(
        &self,
        begin: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
        conflict: bool,
    ) -> Result<RangePage> {
        let version = self.read_version().await?;
        let limit = limit.min(RANGE_ENTRIES_MAX);
        let mut out = RangePage::default();
        let mut present = Vec::new();
        let (mut lo, mut hi) = (begin.to_vec(), end.to_vec());
        while lo < hi && out.entries.len() < limit as usize {
            let want = limit - out.entries.len() as u32;
            let page =
                self.engine.get_range(version, lo.clone(), hi.clone(), want, reverse).await?;
            // What part of [lo, hi) this page covers.
            let (from, to) = match page.entries.last() {
                Some((last, _)) if page.more && reverse => (last.clone(), hi.clone()),
                Some((last, _)) if page.more => (lo.clone(), key_after(last)),
                None if page.more => {
                    return Err(Error::new(Status::BadMessage, "engine: an empty page with more"));
                }
                _ => (lo.clone(), hi.clone()),
            };
            if conflict {
                present.extend(page.entries.iter().map(|(k, _)| k.clone()));
            }
            let mut merged = self.merge(page.entries, &from, &to);
            if reverse {
                merged.reverse();
            }
            let room = limit as usize - out.entries.len();
            let cut = merged.len() > room;
            merged.truncate(room);
            out.entries.extend(merged);
            if reverse {
                hi = from
            } else {
                lo = to
            }
            out.more = cut || page.more;
            if !page.more || cut {
                break;
            }
        }
        if conflict {
            let mut buffer = self.buffer.borrow_mut();
            let seen = match out.entries.last() {
                Some((last, _)) if out.more && reverse => (last.clone(), end.to_vec()),
                Some((last, _)) if out.more => (begin.to_vec(), key_after(last)),
                _ => (begin.to_vec(), end.to_vec()),
            };
            present.retain(|k| seen.0 <= *k && *k < seen.1);
            buffer.present.extend(present);
            buffer.note_range(seen.0, seen.1)?;
        }
        Ok(out)
    }

    /// `entries` of `[from, to)` with this transaction's own writes laid over, ascending.
    fn merge(&self, entries: Vec<(Key, Value)>, from: &[u8], to: &[u8]) -> Vec<(Key, Value)> {
        let buffer = self.buffer.borrow();
        let mut all: BTreeMap<Key, Value> = BTreeMap::new();
        for (key, value) in entries {
            if let Some(value) = overlay(&buffer, &key, Some(value)) {
                all.insert(key, value);
            }
        }
        let own = buffer
            .keys
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)));
        for (key, local) in own {
            match local {
                Local::Put(v) => {
                    all.insert(key.clone(), v.clone());
                }
                Local::Add(d) => {
                    all.entry(key.clone()).or_insert_with(|| d.to_le_bytes().to_vec());
                }
                Local::Clear => {}
            }
        }
        all.into_iter().collect()
    }

    /// Sets a key.
    pub fn put(&self, key: impl Into<Key>, value: impl Into<Value>) -> Result<()> {
        let (key, value) = (key.into(), value.into());
        let mut buffer = self.buffer.borrow_mut();
        buffer.grow(key.len() + value.len())?;
        buffer.keys.insert(key, Local::Put(value));
        Ok(())
    }
    /// Removes a key.
    pub fn clear(&self, key: impl Into<Key>) -> Result<()> {
        let key = key.into();
        let mut buffer = self.buffer.borrow_mut();
        buffer.grow(2 * key.len() + 1)?;
        buffer.keys.insert(key, Local::Clear);
        Ok(())
    }
    /// Removes `[begin, end)`. (Versionstamped puts of the same transaction stay.)
    pub fn clear_range(&self, begin: &[u8], end: &[u8]) -> Result<()> {
        if begin >= end {
            return Ok(());
        }
        let mut buffer = self.buffer.borrow_mut();
        buffer.grow(begin.len() + end.len())?;
        buffer.keys.retain(|k, _| k.as_slice() < begin || k.as_slice() >= end);
        buffer.clears.push((begin.to_vec(), end.to_vec()));
        Ok(())
    }
    /// Adds to a number (8 bytes, little-endian) without reading it, so without a conflict with other adders.
    pub fn add(&self, key: impl Into<Key>, delta: i64) -> Result<()> {
        let key = key.into();
        let mut buffer = self.buffer.borrow_mut();
        buffer.grow(key.len() + 8)?;
        let base = match buffer.keys.get(&key) {
            Some(Local::Put(v)) => Some(number(v)),
            Some(Local::Clear) => Some(0),
            Some(Local::Add(d)) => {
                let sum = d.wrapping_add(delta);
                buffer.keys.insert(key, Local::Add(sum));
                return Ok(());
            }
            None if buffer.cleared(&key) => Some(0),
            None => None,
        };
        let local = match base {
            Some(n) => Local::Put(n.wrapping_add(delta).to_le_bytes().to_vec()),
            None => Local::Add(delta),
        };
        buffer.keys.insert(key, local);
        Ok(())
    }
    /// Sets the key `prefix + versionstamp + suffix`; the stamp (10 bytes) is known when it commits, so the
    /// transaction itself cannot read it.
    pub fn put_versionstamped(
        &self,
        prefix: impl Into<Key>,
        suffix: impl Into<Key>,
        value: impl Into<Value>,
    ) -> Result<()> {
        let (prefix, suffix, value) = (prefix.into(), suffix.into(), value.into());
        let mut buffer = self.buffer.borrow_mut();
        buffer.grow(prefix.len() + suffix.len() + value.len() + 10)?;
        buffer.stamped.push((prefix, suffix, value));
        Ok(())
    }
    /// Counts `[begin, end)` as read.
    pub fn add_read_conflict(&self, begin: &[u8], end: &[u8]) -> Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        buffer.unseen = true;
        buffer.note_range(begin.to_vec(), end.to_vec())
    }
    /// Counts `[begin, end)` as written.
    pub fn add_write_conflict(&self, begin: &[u8], end: &[u8]) -> Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        buffer.grow(begin.len() + end.len())?;
        buffer.write_conflicts.push((begin.to_vec(), end.to_vec()));
        Ok(())
    }
    /// What it is about to change, to go [`back_to`](Self::back_to): for several steps of which one may come to nothing.
    pub fn savepoint(&self) -> Savepoint {
        let b = self.buffer.borrow();
        Savepoint {
            keys: b.keys.clone(),
            clears: b.clears.clone(),
            stamped: b.stamped.clone(),
            write_conflicts: b.write_conflicts.clone(),
            grows: self.grows.get(),
        }
    }
    /// Forgets the changes since a savepoint. What was read since still counts as read: somebody may go by it.
    pub fn back_to(&self, savepoint: Savepoint) {
        let mut b = self.buffer.borrow_mut();
        let Savepoint { keys, clears, stamped, write_conflicts, grows } = savepoint;
        (b.keys, b.clears, b.stamped, b.write_conflicts) = (keys, clears, stamped, write_conflicts);
        self.grows.set(grows);
    }
    /// It makes larger what is kept: where room is short, an engine with a reserve refuses it (`NoSpace`), and takes what frees room and what keeps the cluster going.
    pub fn grows(&self) {
        self.grows.set(true);
    }
    /// How many conditions its commit has by what was read so far: of a key that was there, that it still is and has not changed. Some engines bound them.
    pub fn conditions(&self) -> usize {
        let buffer = self.buffer.borrow();
        let keys: BTreeSet<_> = buffer.read_keys.iter().collect();
        let ranges: BTreeSet<_> = buffer.read_ranges.iter().collect();
        let present: BTreeSet<_> = buffer.present.iter().collect();
        let of_keys: usize = keys.iter().map(|(_, there)| 1 + usize::from(*there)).sum();
        of_keys + ranges.len() + present.len()
    }
    /// Whether it would change nothing.
    pub fn is_read_only(&self) -> bool {
        self.buffer.borrow().is_empty()
    }

    /// Commits. With `durable` the changes are on disk before it returns. A transaction that changes nothing is
    /// serializable as it is (all its reads are of one version) and only waits until what it read is settled.
    pub async fn commit(&self, durable: bool) -> Result<Version> {
        let mut buffer = take(&mut *self.buffer.borrow_mut());
        if buffer.is_empty() && !durable && self.version.get().is_none() {
            return Ok(0);
        }
        let read_version = self.version.get().unwrap_or(0);
        let read_only = buffer.is_empty();
        // Nobody else runs before the commit begins.
        let unchanged = read_only || self.engine.is_newest(read_version);
        let (read, present) = if unchanged { Default::default() } else { buffer.take_reads() };
        let present =
            (!unchanged && !buffer.unseen).then(|| present.into_iter().map(Into::into).collect());
        let commit = Commit {
            read_version,
            read_conflicts: ranges(read),
            write_conflicts: ranges(buffer.write_conflicts),
            mutations: mutations(buffer.clears, buffer.keys, buffer.stamped),
            durable,
            present,
            grows: self.grows.get(),
        };
        self.engine.commit(commit).await
    }

    /// Waits until what it read is settled, without its writes: for work that ends in an error because of what it read.
    pub(crate) async fn check_reads(&self) -> Result<()> {
        *self.buffer.borrow_mut() = Buffer::default();
        self.commit(false).await.map(|_| ())
    }
}

fn ranges(all: Vec<(Key, Key)>) -> Vec<(ByteVec, ByteVec)> {
    all.into_iter().map(|(b, e)| (b.into(), e.into())).collect()
}

fn number(value: &[u8]) -> i64 {
    <[u8; 8]>::try_from(value).map_or(0, i64::from_le_bytes)
}

fn overlay(buffer: &Buffer, key: &[u8], base: Option<Value>) -> Option<Value> {
    match buffer.keys.get(key) {
        Some(Local::Put(v)) => Some(v.clone()),
        Some(Local::Clear) => None,
        Some(Local::Add(d)) => {
            let base = if buffer.cleared(key) { 0 } else { base.as_deref().map_or(0, number) };
            Some(base.wrapping_add(*d).to_le_bytes().to_vec())
        }
        None if buffer.cleared(key) => None,
        None => base,
    }
}

fn mutations(
    clears: Vec<(Key, Key)>,
    keys: BTreeMap<Key, Local>,
    stamped: Vec<(Key, Key, Value)>,
) -> Vec<Mutation> {
    let mut out = Vec::with_capacity(clears.len() + keys.len() + stamped.len());
    out.extend(clears.into_iter().map(|(begin, end)| Mutation::ClearRange { begin, end }));
    for (key, local) in keys {
        out.push(match local {
            Local::Put(value) => Mutation::Put { key, value },
            Local::Clear => {
                let end = key_after(&key);
                Mutation::ClearRange { begin: key, end }
            }
            Local::Add(delta) => Mutation::Add { key, delta },
        });
    }
    let stamp = |(prefix, suffix, value)| Mutation::PutVersionstamped { prefix, suffix, value };
    out.extend(stamped.into_iter().map(stamp));
    out
}
