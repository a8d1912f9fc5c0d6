//! Memory that the two ends of a connection share: which regions each has named to the other.
//!
//! Guarantees: the number and the total size of a peer's regions are bounded; every reference is checked against the bounds of its
//! region; a region stays mapped as long as a buffer in it lives, whatever the peer does.

use crate::limits::{REGION_BYTES_MAX, REGIONS_MAX, REGIONS_TOTAL_BYTES_MAX};
use glowfs_rt::BufMut;
use glowfs_rt::mem::{ForeignRegion, Region, map_foreign};
use glowfs_types::{Error, Result, Status};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

/// Our regions (and foreign ones that we pass on) as the peer knows them.
#[derive(Default)]
pub(crate) struct RegionsOut {
    by_id: BTreeMap<u64, Named>,
    last_key: u32,
    total: u64,
}

struct Named {
    key: u32,
    len: u64,
    region: Weak<Region>,
}

/// How to name a region to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// The peer knows it.
    Known(u32),
    /// The peer must be told first.
    New(u32),
}

impl RegionsOut {
    /// The key of a region; `None` if no more can be named, and the bulk has to go inline.
    pub(crate) fn name(&mut self, region: &Rc<Region>) -> Option<Name> {
        if let Some(named) = self.by_id.get(&region.id) {
            return Some(Name::Known(named.key));
        }
        let total = self.total.checked_add(region.len)?;
        if self.by_id.len() >= REGIONS_MAX
            || region.len == 0
            || region.len > REGION_BYTES_MAX
            || total > REGIONS_TOTAL_BYTES_MAX
        {
            return None;
        }
        let key = self.last_key.checked_add(1)?;
        self.last_key = key;
        self.total = total;
        self.by_id.insert(region.id, Named { key, len: region.len, region: Rc::downgrade(region) });
        Some(Name::New(key))
    }

    /// Forgets the regions that are gone; their keys, for the peer.
    pub(crate) fn sweep(&mut self) -> Vec<u32> {
        let mut gone = Vec::new();
        let total = &mut self.total;
        self.by_id.retain(|_, named| {
            let live = named.region.strong_count() > 0;
            if !live {
                gone.push(named.key);
                *total -= named.len;
            }
            live
        });
        gone
    }
}

/// The peer's regions.
#[derive(Default)]
pub(crate) struct RegionsIn {
    by_key: BTreeMap<u32, ForeignRegion>,
    total: u64,
}

impl RegionsIn {
    /// Maps a region that the peer names.
    pub(crate) fn register(&mut self, key: u32, len: u64, memfd: OwnedFd) -> Result<()> {
        let total = self.total.saturating_add(len);
        if key == 0 || self.by_key.contains_key(&key) {
            return Err(bad(format!("region key {key} is in use")));
        }
        if self.by_key.len() >= REGIONS_MAX
            || len == 0
            || len > REGION_BYTES_MAX
            || total > REGIONS_TOTAL_BYTES_MAX
        {
            return Err(bad(format!("region of {len} bytes: over the bounds of this connection")));
        }
        let foreign =
            map_foreign(memfd, len).map_err(|e| bad(format!("region of {len} bytes: {e}")))?;
        self.by_key.insert(key, foreign);
        self.total = total;
        Ok(())
    }

    /// Forgets a region; buffers in it live on.
    pub(crate) fn unregister(&mut self, key: u32) -> Result<()> {
        let foreign = self.by_key.remove(&key).ok_or_else(|| unknown(key))?;
        self.total -= foreign.len();
        Ok(())
    }

    /// The memory that the peer means.
    pub(crate) fn view(&self, key: u32, offset: u64, len: u32) -> Result<BufMut> {
        let foreign = self.by_key.get(&key).ok_or_else(|| unknown(key))?;
        foreign.buf_mut(offset, len as usize).map_err(|e| bad(format!("region {key}: {e}")))
    }
}

fn unknown(key: u32) -> Error {
    bad(format!("region {key} was not registered"))
}
fn bad(what: String) -> Error {
    Error::new(Status::BadMessage, what)
}
