//! The multi-version ordered map in memory: pure, no clock, no disk.
//!
//! Each key holds its newest value and the older ones that a reader may still ask for. A removal is a value too (a tombstone),
//! kept until no reader and no conflict check can need it. Versions older than `oldest` are refused with `TooOld`.

mod replay;
#[cfg(test)]
mod tests;

use crate::Version;
use crate::engine::RangePage;
use crate::engine::check_limits;
use crate::stored_key::StoredKey;
use glowfs_types::wire::kv::{Commit, Mutation, RANGE_ENTRIES_MAX};
use glowfs_types::{Error, Result, Status};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

/// Old versions removed by one commit, at most, beyond four times what it added.
const TRIM_STEP: usize = 16;
/// Bytes of a page of a range read, about, so that one answer stays small.
const PAGE_BYTES_MAX: usize = 1 << 20;

struct Stamped {
    version: Version,
    value: Option<Rc<[u8]>>,
}

/// All kept versions of one key.
struct Chain {
    newest: Stamped,
    /// Oldest first. Long for a key that is written by every transaction.
    older: VecDeque<Stamped>,
}

impl Chain {
    fn at(&self, version: Version) -> Option<&Rc<[u8]>> {
        if self.newest.version <= version {
            return self.newest.value.as_ref();
        }
        let after = self.older.partition_point(|s| s.version <= version);
        self.older.get(after.checked_sub(1)?)?.value.as_ref()
    }
    /// Takes a newer value. Bytes of the older one if it is kept: within one commit only the last value counts.
    fn supersede(&mut self, newer: Stamped) -> Option<u32> {
        let old = std::mem::replace(&mut self.newest, newer);
        (old.version < self.newest.version).then(|| {
            let bytes = old.bytes();
            self.older.push_back(old);
            bytes
        })
    }
}

impl Stamped {
    fn bytes(&self) -> u32 {
        self.value.as_ref().map_or(0, |v| u32::try_from(v.len()).unwrap_or(u32::MAX))
    }
}

/// Whether a range holds one key only.
fn is_single(begin: &[u8], end: &[u8]) -> bool {
    end.len() == begin.len() + 1 && end.starts_with(begin) && end.last() == Some(&0)
}

/// What a commit changed, resolved (sums and stamps computed), in order: this is what a log keeps.
pub(crate) trait Record {
    fn put(&mut self, key: &[u8], value: &[u8]);
    fn clear_range(&mut self, begin: &[u8], end: &[u8]);
}

/// Keeps no record.
impl Record for () {
    fn put(&mut self, _: &[u8], _: &[u8]) {}
    fn clear_range(&mut self, _: &[u8], _: &[u8]) {}
}

/// A value that a later one took the place of.
struct Superseded {
    /// Of the later one.
    version: Version,
    key: StoredKey,
    /// Of the older one.
    bytes: u32,
}

#[derive(Default)]
pub(crate) struct Mvcc {
    map: BTreeMap<StoredKey, Chain>,
    version: Version,
    oldest: Version,
    /// Versions before this one cannot be read: some behind them were taken back.
    begun: Version,
    /// What superseded something, in version order.
    superseded: VecDeque<Superseded>,
    /// Bytes of the older values.
    older_bytes: u64,
    /// Explicit write conflicts, in version order.
    range_writes: VecDeque<(Version, Vec<u8>, Vec<u8>)>,
    /// Bytes of keys and newest values, for metrics.
    bytes: u64,
}

impl Mvcc {
    /// The newest version.
    pub fn version(&self) -> Version {
        self.version
    }
    /// Keys in memory, tombstones included.
    pub fn len(&self) -> usize {
        self.map.len()
    }
    /// Bytes of keys and newest values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Old versions that wait to be dropped.
    pub fn backlog(&self) -> usize {
        self.superseded.len()
    }
    /// Bytes of their values.
    pub fn older_bytes(&self) -> u64 {
        self.older_bytes
    }
    /// Where `oldest` must move to so that at most `keep` old versions stay, of at most `bytes` together.
    pub fn bound_for(&self, keep: usize, bytes: u64) -> Option<Version> {
        let many = self.superseded.len().checked_sub(keep + 1);
        let mut over = self.older_bytes.saturating_sub(bytes);
        let large = self.superseded.iter().take_while(|s| {
            let before = over;
            over = over.saturating_sub(u64::from(s.bytes));
            before > 0
        });
        let at = many.max(large.count().checked_sub(1))?;
        self.superseded.get(at).map(|s| s.version)
    }
    /// Starts from a recovered state.
    pub fn set_version(&mut self, version: Version) {
        self.version = self.version.max(version);
        self.oldest = self.version;
    }
    /// From now on, versions before `oldest` are refused. Never goes back.
    pub fn set_oldest(&mut self, oldest: Version) {
        self.oldest = self.oldest.max(oldest.min(self.version));
    }

    fn readable(&self, version: Version) -> Result<()> {
        let oldest = self.oldest.max(self.begun);
        if version < oldest {
            return Err(Error::new(
                Status::TooOld,
                format!("version {version} is no longer kept (oldest {oldest}); begin again"),
            ));
        }
        if version > self.version {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("version {version} is in the future (newest {})", self.version),
            ));
        }
        Ok(())
    }

    pub fn get(&self, version: Version, key: &[u8]) -> Result<Option<&[u8]>> {
        self.readable(version)?;
        Ok(self.map.get(&StoredKey::new(key)).and_then(|c| c.at(version)).map(|v| &**v))
    }

    pub fn get_range(
        &self,
        version: Version,
        begin: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
    ) -> Result<RangePage> {
        self.readable(version)?;
        let mut page = RangePage::default();
        if begin >= end || limit == 0 {
            return Ok(page);
        }
        let limit = limit.min(RANGE_ENTRIES_MAX) as usize;
        let mut range = self.map.range(StoredKey::new(begin)..StoredKey::new(end));
        let mut bytes = 0;
        while let Some((key, chain)) = if reverse { range.next_back() } else { range.next() } {
            let Some(value) = chain.at(version) else { continue };
            if page.entries.len() == limit || bytes >= PAGE_BYTES_MAX {
                page.more = true;
                break;
            }
            bytes += key.len() + value.len();
            page.entries.push((key.as_slice().to_vec(), value.to_vec()));
        }
        Ok(page)
    }

    /// A step of a walk over everything at `version`: up to `limit` entries after `after`, handed to `each` until it
    /// says no. Returns the last key seen, or `None` at the end.
    pub fn walk(
        &self,
        version: Version,
        after: Option<&StoredKey>,
        limit: usize,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Option<StoredKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (key, chain) in self.map.range((from, Bound::Unbounded)).take(limit) {
            last = Some(key);
            if chain.at(version).is_some_and(|value| !each(key.as_slice(), value)) {
                break;
            }
        }
        last.cloned()
    }

    /// Whether `commit` may be applied now.
    pub fn check(&self, commit: &Commit) -> Result<()> {
        check_limits(commit)?;
        self.check_conflicts(commit)
    }

    /// The same without our limits.
    pub fn check_conflicts(&self, commit: &Commit) -> Result<()> {
        if commit.read_conflicts.is_empty() {
            return Ok(());
        }
        self.readable(commit.read_version)?;
        if commit.read_version == self.version {
            return Ok(());
        }
        for (begin, end) in &commit.read_conflicts {
            if self.written_since(begin, end, commit.read_version) {
                return Err(Error::new(
                    Status::Conflict,
                    "another transaction changed what this one read; retry it",
                ));
            }
        }
        Ok(())
    }

    fn written_since(&self, begin: &[u8], end: &[u8], version: Version) -> bool {
        if begin >= end {
            return false;
        }
        let key = StoredKey::new(begin);
        let in_map = if is_single(begin, end) {
            self.map.get(&key).is_some_and(|c| c.newest.version > version)
        } else {
            let mut range = self.map.range(key..StoredKey::new(end));
            range.any(|(_, c)| c.newest.version > version)
        };
        in_map
            || self
                .range_writes
                .iter()
                .rev()
                .take_while(|(v, _, _)| *v > version)
                .any(|(_, b, e)| b.as_slice() < end && begin < e.as_slice())
    }

    /// Applies a checked commit as the next version, telling `record` what changed. Returns the version.
    pub fn apply(&mut self, commit: &Commit, record: &mut impl Record) -> Version {
        let version = self.version + 1;
        self.version = version;
        let before = self.superseded.len();
        let mut stamps = 0u16;
        for mutation in &commit.mutations {
            match mutation {
                Mutation::Put { key, value } => {
                    record.put(key, value);
                    self.set(version, key, value);
                }
                Mutation::ClearRange { begin, end } => {
                    record.clear_range(begin, end);
                    self.clear_range(version, begin, end);
                }
                Mutation::Add { key, delta } => {
                    let sum = self.add(version, key, *delta);
                    record.put(key, &sum);
                }
                Mutation::PutVersionstamped { prefix, suffix, value } => {
                    let key = stamped_key(prefix, version, stamps, suffix);
                    stamps = stamps.wrapping_add(1);
                    record.put(&key, value);
                    self.set(version, &key, value);
                }
            }
        }
        for (begin, end) in &commit.write_conflicts {
            self.range_writes.push_back((version, begin.to_vec(), end.to_vec()));
        }
        let added = self.superseded.len() - before;
        self.trim(added * 4 + TRIM_STEP);
        version
    }

    fn set(&mut self, version: Version, key: &[u8], value: &[u8]) {
        self.update(version, key, |_| value.into());
    }

    /// Adds to a number; returns the sum.
    fn add(&mut self, version: Version, key: &[u8], delta: i64) -> [u8; 8] {
        let mut sum = [0; 8];
        self.update(version, key, |old| {
            let old = old.and_then(|v| <[u8; 8]>::try_from(v).ok());
            sum = old.map_or(0, i64::from_le_bytes).wrapping_add(delta).to_le_bytes();
            sum.as_slice().into()
        });
        sum
    }

    /// Gives a key the value that `new` makes of its newest one, in one search.
    fn update(
        &mut self,
        version: Version,
        key: &[u8],
        new: impl FnOnce(Option<&[u8]>) -> Rc<[u8]>,
    ) {
        match self.map.entry(StoredKey::new(key)) {
            Entry::Vacant(place) => {
                let value = new(None);
                self.bytes += (key.len() + value.len()) as u64;
                let newest = Stamped { version, value: Some(value) };
                place.insert(Chain { newest, older: VecDeque::new() });
            }
            Entry::Occupied(mut place) => {
                let old = place.get().newest.value.as_deref();
                let value = new(old);
                self.bytes = self.bytes + value.len() as u64 - old.map_or(0, |v| v.len() as u64);
                let newer = Stamped { version, value: Some(value) };
                if let Some(bytes) = place.get_mut().supersede(newer) {
                    self.older_bytes += u64::from(bytes);
                    let key = place.key().clone();
                    self.superseded.push_back(Superseded { version, key, bytes });
                }
            }
        }
    }

    fn clear_range(&mut self, version: Version, begin: &[u8], end: &[u8]) {
        if begin >= end {
            return;
        }
        let mut clear = |key: &StoredKey, chain: &mut Chain| {
            let Some(old) = &chain.newest.value else { return };
            self.bytes -= old.len() as u64;
            let bytes = chain.supersede(Stamped { version, value: None }).unwrap_or(0);
            self.older_bytes += u64::from(bytes);
            self.superseded.push_back(Superseded { version, key: key.clone(), bytes });
        };
        let key = StoredKey::new(begin);
        if is_single(begin, end) {
            if let Some(chain) = self.map.get_mut(&key) {
                clear(&key, chain);
            }
            return;
        }
        for (key, chain) in self.map.range_mut(key..StoredKey::new(end)) {
            clear(key, chain);
        }
    }

    /// Drops what no reader can ask for any more, at most `steps` entries. Returns whether there is more to do.
    pub fn trim(&mut self, steps: usize) -> bool {
        while self.range_writes.front().is_some_and(|(v, _, _)| *v <= self.oldest) {
            self.range_writes.pop_front();
        }
        for _ in 0..steps {
            match self.superseded.front() {
                Some(s) if s.version <= self.oldest => {}
                _ => return false,
            }
            let Some(Superseded { key, .. }) = self.superseded.pop_front() else { return false };
            let Some(chain) = self.map.get_mut(&key) else { continue };
            if chain.newest.version <= self.oldest {
                let gone = std::mem::take(&mut chain.older);
                self.older_bytes -= gone.iter().map(|s| u64::from(s.bytes())).sum::<u64>();
                if chain.newest.value.is_none() {
                    self.bytes -= key.len() as u64;
                    self.map.remove(&key);
                }
            } else {
                // The newest of the older ones that are visible at `oldest` stays.
                while chain.older.get(1).is_some_and(|s| s.version <= self.oldest) {
                    let gone = chain.older.pop_front();
                    self.older_bytes -= gone.map_or(0, |s| u64::from(s.bytes()));
                }
            }
        }
        self.superseded.front().is_some_and(|s| s.version <= self.oldest)
    }
}

/// `prefix + version + order + suffix`.
pub(crate) fn stamped_key(prefix: &[u8], version: Version, order: u16, suffix: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + 10 + suffix.len());
    key.extend_from_slice(prefix);
    key.extend_from_slice(&version.to_be_bytes());
    key.extend_from_slice(&order.to_be_bytes());
    key.extend_from_slice(suffix);
    key
}
