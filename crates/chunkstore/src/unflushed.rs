//! Up to which batch the log has something of each file that is not durable, so that who flushes one file does not wait for a flush that it does not need.
//!
//! Guarantees: whatever was answered of a data id is durable, or in a batch no later than [`Unflushed::upto`] says. What an earlier life has left counts as durable: it is flushed before
//! this one answers anything. Must never: hold more than the batches name that are not durable yet.

use crate::record::Record;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{DataId, VolumeId};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// See the module.
#[derive(Default)]
pub(crate) struct Unflushed(RefCell<BTreeMap<(VolumeId, DataId), u64>>);

impl Unflushed {
    /// A record of that batch was written.
    pub fn note(&self, record: &Record, lsn: u64) {
        let (Record::Stage { chunk, .. }
        | Record::Commit { chunk, .. }
        | Record::Discard { chunk, .. }) = record
        else {
            return;
        };
        if planted(Mutant::FlushOfOthers) {
            return;
        }
        self.0.borrow_mut().insert((chunk.volume, chunk.data), lsn);
    }
    /// All batches up to that one are durable.
    pub fn flushed(&self, lsn: u64) {
        self.0.borrow_mut().retain(|_, noted| *noted > lsn);
    }
    /// The batch up to which these files' flush has to go; `None`: all of them is durable.
    pub fn upto(&self, files: &[(VolumeId, DataId)]) -> Option<u64> {
        let noted = self.0.borrow();
        files.iter().filter_map(|file| noted.get(file).copied()).max()
    }
}
