//! Late updates: the newest truncate epoch that was seen for each data id, so that nothing issued before a truncate gets in after it.
//!
//! Meta recalls capabilities before it cuts, so a client that plays by the rules never meets this. It stops the others: a client that answers the recall
//! and writes on, a write that was long on its way to a removed file, and the cut of a metadata service that was overtaken by another one, which
//! would cut off what was written since. What forwards tell is noted too, so it outlives the loss of a head.
//!
//! Kept in memory, and bounded: after a restart of the service capabilities of before count until they expire. Must never refuse what is as new as
//! the newest.

use glowfs_types::{Capability, DataId, Error, Result, Status, VolumeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// Data ids remembered at most; the oldest go first.
const ENTRIES_MAX: usize = 1 << 16;
/// How much longer than the capability that told of it an epoch is remembered, in ns: metadata services' clocks may differ so much.
const MARGIN_NS: u64 = 60_000_000_000;

type Data = (VolumeId, DataId);

/// See the module.
#[derive(Default)]
pub(crate) struct Fences(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    /// The newest epoch of each, and when that may be forgotten (ns since the Unix epoch).
    newest: BTreeMap<Data, (u64, u64)>,
    /// In the order in which they may be forgotten, as it was when they were put in.
    order: VecDeque<(Data, u64)>,
}

/// The epoch that a capability speaks for. What removes data without an inode comes after all truncates.
fn epoch_of(capability: &Capability) -> u64 {
    if capability.inode.get() == 0 { u64::MAX } else { capability.epoch.get() }
}

impl Fences {
    /// Whether a checked capability is as new as the newest that was seen for its data; notes it.
    pub fn pass(&self, capability: &Capability, now_ns: u64) -> Result<()> {
        let data = (VolumeId(capability.volume.get()), DataId(capability.data.get()));
        let epoch = epoch_of(capability);
        let mut inner = self.0.borrow_mut();
        match inner.newest.get(&data) {
            Some((newest, _)) if epoch < *newest => Err(Error::new(
                Status::BadCapability,
                "capability was issued before the file was truncated or removed; open it again",
            )),
            None if epoch == 0 => Ok(()),
            _ => {
                let until = capability.expiry_ns.get().saturating_add(MARGIN_NS);
                inner.note(data, epoch, until, now_ns);
                Ok(())
            }
        }
    }
}

impl Inner {
    fn note(&mut self, data: Data, epoch: u64, until: u64, now_ns: u64) {
        if let Some(entry) = self.newest.get_mut(&data) {
            *entry = (entry.0.max(epoch), entry.1.max(until));
            return;
        }
        while let Some((old, expected)) = self.order.front().copied() {
            let full = self.newest.len() >= ENTRIES_MAX;
            if !full && expected > now_ns {
                break;
            }
            self.order.pop_front();
            match self.newest.get(&old) {
                Some((_, until)) if *until > expected && !full => {
                    self.order.push_back((old, *until));
                }
                _ => {
                    self.newest.remove(&old);
                }
            }
        }
        self.newest.insert(data, (epoch, until));
        self.order.push_back((data, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{InodeId, SessionId, TruncateEpoch};

    fn cap(inode: u64, data: u64, epoch: u64, expiry_ns: u64) -> Capability {
        Capability::new(
            VolumeId(1),
            InodeId(inode),
            DataId(data),
            SessionId(0),
            TruncateEpoch(epoch),
            expiry_ns,
            0,
        )
    }

    #[test]
    fn what_is_older_than_the_newest_is_refused() {
        let f = Fences::default();
        let pass = |inode, data, epoch| f.pass(&cap(inode, data, epoch, 100), 1).is_ok();
        assert!(pass(5, 7, 0) && pass(5, 7, 2) && pass(5, 7, 2));
        assert!(!pass(5, 7, 1) && !pass(5, 7, 0));
        assert!(pass(5, 8, 0), "of other data");
        assert!(pass(5, 7, 3) && !pass(5, 7, 2));
        assert!(pass(0, 7, 0), "removal comes last");
        assert!(!pass(5, 7, 9) && pass(0, 7, 0), "nothing comes after it but itself");
        assert_eq!(f.0.borrow().newest.len(), 1, "epoch 0 needs no entry");
    }

    #[test]
    fn it_is_forgotten_when_the_old_capabilities_have_expired_and_bounded() {
        let f = Fences::default();
        let late = 10 + MARGIN_NS;
        assert!(f.pass(&cap(5, 7, 2, 10), 1).is_ok());
        // Seen again, with a later end: kept until then.
        assert!(f.pass(&cap(5, 6, 2, 10), 1).is_ok());
        assert!(f.pass(&cap(5, 6, 2, 1000), 1).is_ok());
        assert!(f.pass(&cap(5, 9, 1, late), late).is_ok());
        assert!(f.pass(&cap(5, 7, 1, late), late).is_ok());
        assert!(f.pass(&cap(5, 6, 1, late), late).is_err());
        for data in 0..2 * ENTRIES_MAX as u64 {
            assert!(f.pass(&cap(5, 100 + data, 1, late), 1).is_ok());
        }
        let inner = f.0.borrow();
        assert!(inner.newest.len() <= ENTRIES_MAX && inner.order.len() <= ENTRIES_MAX);
    }
}
