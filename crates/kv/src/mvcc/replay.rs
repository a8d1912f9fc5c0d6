//! How a store comes to be as a log says: changes made again when it is recovered, and commits taken back that the log has no room for.

use super::{Chain, Mvcc, Stamped, Superseded, is_single};
use crate::Version;
use crate::stored_key::StoredKey;
use std::collections::VecDeque;
use std::collections::btree_map::Entry;

impl Mvcc {
    /// Takes back all commits behind `to`, which is not older than the oldest version, given the keys that they put: everything is as of `to`, under a new version,
    /// and nobody who has read any other goes on with that. Returns the last version that was taken back.
    pub fn take_back<'a>(&mut self, to: Version, put: impl Iterator<Item = &'a [u8]>) -> Version {
        while self.superseded.back().is_some_and(|s| s.version > to) {
            let Some(Superseded { key, .. }) = self.superseded.pop_back() else { break };
            let Some(chain) = self.map.get_mut(&key) else { continue };
            // A commit that changed a key twice has superseded one value.
            if chain.newest.version <= to {
                continue;
            }
            let Some(old) = chain.older.pop_back() else { continue };
            let (new_bytes, old_bytes) = (u64::from(chain.newest.bytes()), u64::from(old.bytes()));
            self.bytes = self.bytes + old_bytes - new_bytes;
            self.older_bytes -= old_bytes;
            chain.newest = old;
            // A removal of which the turn to be dropped has passed while another value stood on it ([`Self::trim`]).
            if chain.newest.value.is_none() && chain.newest.version <= self.oldest {
                self.older_bytes -= chain.older.iter().map(|s| u64::from(s.bytes())).sum::<u64>();
                self.bytes -= key.len() as u64;
                self.map.remove(&key);
            }
        }
        // What is still newer was not there before.
        for key in put {
            let key = StoredKey::new(key);
            if self.map.get(&key).is_some_and(|chain| chain.newest.version > to)
                && let Some(chain) = self.map.remove(&key)
            {
                self.bytes -= key.len() as u64 + u64::from(chain.newest.bytes());
            }
        }
        while self.range_writes.back().is_some_and(|(version, ..)| *version > to) {
            self.range_writes.pop_back();
        }
        let last = self.version;
        self.version += 1;
        self.begun = self.version;
        last
    }

    /// Applies one change of a log or checkpoint at a version that is not older than the last one. Nobody reads the past of a store that is
    /// being recovered: what was there before is not kept.
    pub fn replay_put(&mut self, version: Version, key: &[u8], value: &[u8]) {
        self.set_version(version);
        self.bytes += value.len() as u64;
        let newest = Stamped { version, value: Some(value.into()) };
        match self.map.entry(StoredKey::new(key)) {
            Entry::Vacant(place) => {
                self.bytes += key.len() as u64;
                place.insert(Chain { newest, older: VecDeque::new() });
            }
            Entry::Occupied(mut place) => {
                let old = std::mem::replace(&mut place.get_mut().newest, newest);
                self.bytes -= old.value.map_or(0, |v| v.len() as u64);
            }
        }
    }
    /// The same for a removal.
    pub fn replay_clear(&mut self, version: Version, begin: &[u8], end: &[u8]) {
        self.set_version(version);
        if begin >= end {
            return;
        }
        let bytes = |key: &StoredKey, chain: &Chain| {
            (key.len() + chain.newest.value.as_ref().map_or(0, |v| v.len())) as u64
        };
        let key = StoredKey::new(begin);
        if is_single(begin, end) {
            if let Some((key, chain)) = self.map.remove_entry(&key) {
                self.bytes -= bytes(&key, &chain);
            }
            return;
        }
        for (key, chain) in self.map.extract_if(key..StoredKey::new(end), |_, _| true) {
            self.bytes -= bytes(&key, &chain);
        }
    }
}
