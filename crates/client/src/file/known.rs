//! How long a file is and what its chunks are stored under, as meta says it, and how long that may be gone by.
//!
//! Guarantees: what [`OpenFile::known`] answers was asked for after the call began, or stands under a lease that nobody has taken back; those who ask at once
//! share one question. Must never: go by a lease that a recall or a change by this client has ended, or take one from an answer to a question of before that.

use super::{Files, OpenFile};
use glowfs_rt::sync::Notify;
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::meta::OfInode;
use glowfs_types::{DataId, InodeId, Result, TruncateEpoch};
use std::cell::{Cell, RefCell};

/// What reads go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    /// The length that meta knows.
    pub len: u64,
    /// The truncate epoch, and what the chunks are stored under.
    pub under: (TruncateEpoch, DataId),
}

/// What was asked, and what came of it.
#[derive(Default)]
pub(super) struct Questions {
    /// So many were asked, one at a time.
    asked: Cell<u64>,
    asking: Cell<bool>,
    /// The outcome of the newest one that ended, and its number.
    last: RefCell<Option<(u64, Result<Known>)>>,
    /// Until when that may be gone by.
    lease: Cell<Instant>,
    /// How often a lease was ended, or would have been.
    ended: Cell<u64>,
    news: Notify,
}

impl Questions {
    /// What is known is old, and so is what an answer on its way brings.
    pub fn end_lease(&self) {
        self.lease.set(Instant(0));
        self.ended.set(self.ended.get() + 1);
    }
    fn leased(&self, now: Instant) -> Option<Known> {
        if now >= self.lease.get() {
            return None;
        }
        self.last.borrow().as_ref().and_then(|(_, known)| known.as_ref().ok().copied())
    }
    /// The outcome of a question that was asked after so many.
    fn after(&self, asked: u64) -> Option<Result<Known>> {
        self.last.borrow().as_ref().filter(|(n, _)| *n > asked).map(|(_, known)| known.clone())
    }
}

impl Files {
    /// Another client, or this one, changes an inode: what is known of its open files is old.
    pub fn changing(&self, inode: InodeId) {
        for file in self.of(inode) {
            file.questions.end_lease();
        }
    }
}

impl OpenFile {
    /// The truncate epoch and the data that attempts go by now.
    pub(crate) fn under(&self) -> (TruncateEpoch, DataId) {
        let s = self.state.borrow();
        (s.epoch, s.data)
    }

    /// How long the file is, as meta says now, and under what; attempts go by that from then on.
    pub(crate) async fn known(&self) -> Result<Known> {
        let q = &self.questions;
        let before = q.asked.get();
        loop {
            let news = q.news.wait();
            let now = self.client.core.rt.now();
            if let Some(known) = q.leased(now) {
                return Ok(known);
            }
            if let Some(outcome) = q.after(before) {
                return outcome;
            }
            match q.asking.get() {
                true => news.await,
                false => self.ask().await,
            }
        }
    }

    /// The length that a reader of `known` sees: writes through this client's open files count before meta hears of them.
    pub(crate) fn len_here(&self, known: &Known) -> u64 {
        let files = self.client.core.files.of(self.inode);
        let here = files.iter().filter(|f| f.under() == known.under);
        here.filter_map(|f| f.len_written()).fold(known.len, u64::max)
    }

    async fn ask(&self) {
        let q = &self.questions;
        let number = q.asked.get() + 1;
        q.asked.set(number);
        q.asking.set(true);
        let _done = Asking(q);
        let (asked, ended) = (self.client.core.rt.now(), q.ended.get());
        let query = OfInode { caller: self.access.caller.clone(), inode: self.inode };
        let outcome = self.client.getattr(query).await;
        // Before it is taken over: what it says itself does not make it old.
        let good = q.ended.get() == ended;
        let mut until = Instant(0);
        let outcome = outcome.map(|r| {
            self.update_attr(&r.attr);
            if good {
                until = asked + Duration::from_millis(r.lease_ms);
            }
            Known { len: r.attr.len, under: (r.attr.epoch, r.attr.data) }
        });
        q.lease.set(until);
        *q.last.borrow_mut() = Some((number, outcome));
    }
}

/// A question is on its way.
struct Asking<'a>(&'a Questions);
impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.set(false);
        self.0.news.notify_all();
    }
}
