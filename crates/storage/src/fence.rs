//! Late updates: the newest truncate epoch that was seen for each data id, so that nothing issued before a truncate gets in after it.
//!
//! Meta recalls capabilities before it cuts, so a client that plays by the rules never meets this. It stops the others: a client that answers the recall
//! and writes on, a write that was long on its way to a removed file, and the cut of a metadata service that was overtaken by another one, which
//! would cut off what was written since. What forwards tell is noted too, so it outlives the loss of a head.
//!
//! An epoch counts until the capabilities that told of it are over, and a margin longer; what was issued before it is over by then, and has no say here any
//! more, also not for what was begun in time ([`Fences::pass`]). So an epoch that the metadata's host has lost with its power keeps nobody out for longer.
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
    /// Whether a checked capability is as new as the newest that was seen for its data; notes it. It may have expired since it was checked, but not longer
    /// ago than the margin: by then nothing is remembered any more of what was issued after it.
    pub fn pass(&self, capability: &Capability, now_ns: u64) -> Result<()> {
        let data = (VolumeId(capability.volume.get()), DataId(capability.data.get()));
        let epoch = epoch_of(capability);
        let until = capability.expiry_ns.get().saturating_add(MARGIN_NS);
        if until <= now_ns {
            let e = "capability expired while the request was under way; ask again with a new one";
            return Err(Error::new(Status::BadCapability, e));
        }
        let mut inner = self.0.borrow_mut();
        match inner.newest.get(&data).filter(|(_, until)| *until > now_ns) {
            Some((newest, _)) if epoch < *newest => Err(Error::new(
                Status::BadCapability,
                "capability was issued before the file was truncated or removed; open it again",
            )),
            None if epoch == 0 => Ok(()),
            _ => {
                inner.note(data, epoch, until, now_ns);
                Ok(())
            }
        }
    }
}

impl Inner {
    fn note(&mut self, data: Data, epoch: u64, until: u64, now_ns: u64) {
        if let Some(entry) = self.newest.get_mut(&data) {
            let newest = if entry.1 > now_ns { entry.0.max(epoch) } else { epoch };
            *entry = (newest, entry.1.max(until));
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

    /// The metadata's host has lost the newest epoch with its power: nobody could write until some other data was cut or removed here.
    #[test]
    fn it_is_over_at_its_end_whether_others_come_or_not() {
        let f = Fences::default();
        let end = 10 + MARGIN_NS;
        let (newer, older) = (cap(5, 7, 3, 10), cap(5, 7, 2, 10 + end));
        assert!(f.pass(&newer, 1).is_ok());
        assert!(f.pass(&older, end - 1).is_err());
        assert!(f.pass(&older, end).is_ok(), "over");
        assert!(f.pass(&cap(5, 7, 1, 10 + end), end).is_err(), "what is noted now counts");
        assert_eq!((f.0.borrow().newest.len(), f.0.borrow().order.len()), (1, 1));
        // What is issued before an epoch is over before it, also where the work under it goes on.
        let f = Fences::default();
        assert!(f.pass(&cap(5, 7, 2, 10), 1).is_ok());
        assert!(f.pass(&cap(5, 7, 3, 20), 2).is_ok());
        assert!(f.pass(&cap(5, 7, 2, 10), 20 + MARGIN_NS).is_err());
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
