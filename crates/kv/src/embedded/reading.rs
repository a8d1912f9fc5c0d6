//! Reads, and [`Reading`]: how much one task may read before the others have their turn.
//!
//! Everything is in memory, so a read is there at once, and a task that reads very much would keep the thread until it is through: meanwhile nobody's lease is renewed.

use super::{Embedded, Inner};
use crate::{Key, RangePage, Value, Version};
use glowfs_rt::{BoxFuture, Rt};
use glowfs_types::Result;
use std::cell::Cell;

/// What a task may read at a time: keys, entries, and KiB of values. Some 0.1 ms.
const UNITS_MAX: usize = 256;
/// Bytes of values that count as much as a key.
const UNIT_BYTES: usize = 1024;

/// What the task that runs now has read.
#[derive(Default)]
pub struct Reading {
    poll: Cell<u64>,
    units: Cell<usize>,
}

impl Reading {
    /// Whether the task that runs now has to let others run first.
    pub fn is_long(&self, rt: &Rt) -> bool {
        self.poll.get() == rt.polls() && self.units.get() >= UNITS_MAX
    }
    /// It has read so many keys or entries, with so many bytes of values.
    pub fn note(&self, rt: &Rt, keys: usize, bytes: usize) {
        let poll = rt.polls();
        let before = if self.poll.replace(poll) == poll { self.units.get() } else { 0 };
        self.units.set(before + keys + bytes / UNIT_BYTES);
    }
}

impl Embedded {
    /// Reads: at once, or, if this task has read much already, after the others.
    pub(super) fn in_turn<T: 'static>(
        &self,
        read: impl FnOnce(&Inner) -> Result<T> + 'static,
    ) -> BoxFuture<Result<T>> {
        if !self.0.reading.is_long(&self.0.rt) {
            return Box::pin(std::future::ready(read(&self.0)));
        }
        let inner = self.0.clone();
        Box::pin(async move {
            inner.rt.yield_now().await;
            read(&inner)
        })
    }
}

impl Inner {
    pub(super) fn begin(&self) -> Result<Version> {
        self.reading.note(&self.rt, 1, 0);
        let s = self.state.borrow();
        // After a failure only what is in the log is true.
        Ok(if s.failed.is_some() { s.written } else { s.store.version() })
    }

    pub(super) fn get(&self, version: Version, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let s = self.state.borrow();
        let read = |k: &Key| Ok(s.store.get(version, k)?.map(<[u8]>::to_vec));
        let values: Vec<Option<Value>> = keys.iter().map(read).collect::<Result<_>>()?;
        let bytes = values.iter().flatten().map(Vec::len).sum();
        self.reading.note(&self.rt, keys.len(), bytes);
        Ok(values)
    }

    pub(super) fn get_range(
        &self,
        version: Version,
        (begin, end): (&[u8], &[u8]),
        limit: u32,
        reverse: bool,
    ) -> Result<RangePage> {
        let page = self.state.borrow().store.get_range(version, begin, end, limit, reverse)?;
        let bytes = page.entries.iter().map(|(_, value)| value.len()).sum();
        self.reading.note(&self.rt, 1 + page.entries.len(), bytes);
        Ok(page)
    }
}
