//! Flushes: one round at a time makes everything durable that was written when it began; all who wait share it.
//!
//! A batch says what was durable when it was written, so the next batch tells a recovery that its predecessors had been flushed; one that was begun while
//! the flush ran does not. When the log tells nothing of a flush for [`MARK_PAUSE`], an empty batch is written for that purpose alone (the
//! *mark*): damage of the last flushed batch is then found instead of being taken for a torn tail.

use crate::record::Record;
use crate::signal::Signal;
use crate::state::Inner;
use crate::unflushed::Unflushed;
use glowfs_rt::Duration;
use glowfs_rt::sync::join_all;
use glowfs_types::Result;
use glowfs_types::mutant::{Mutant, planted};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// How long after a flush the log may stay without anything that tells of it.
const MARK_PAUSE: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(crate) struct FlushState {
    /// Every batch up to this one, with the data it refers to, is durable.
    pub durable: Cell<u64>,
    /// The same as the log tells it: what the last header says that was written there.
    pub told: Cell<u64>,
    pub signal: Signal,
    /// What is not, by file.
    pub unflushed: Unflushed,
    wanted: Cell<u64>,
    running: Cell<bool>,
    /// Rounds begun and ended, and up to which round someone wants one in any case.
    begun: Cell<u64>,
    ended: Cell<u64>,
    forced: Cell<u64>,
    /// Files written since their last flush.
    pub dirty_classes: RefCell<BTreeSet<u8>>,
    pub dirty_segments: RefCell<BTreeSet<u64>>,
    /// Files were made since the directory's last flush.
    pub dirty_dir: Cell<bool>,
    /// Bytes written since the last round began.
    pub bytes: Cell<u64>,
    /// Told of every round that ended well.
    pub observer: RefCell<Option<Rc<dyn Fn()>>>,
    /// A task waits to write the mark; and the last batch that is nothing but a mark.
    marking: Cell<bool>,
    pub marked: Cell<u64>,
}

impl Inner {
    /// Resolves when batch `lsn` and all it refers to is durable.
    pub async fn flush_to(self: &Rc<Self>, lsn: u64) -> Result<()> {
        self.want_flush(lsn);
        self.flush
            .signal
            .wait(|| {
                if self.flush.durable.get() >= lsn {
                    return Some(Ok(()));
                }
                self.failed.borrow().clone().map(Err)
            })
            .await
    }

    /// Starts rounds until `lsn` is durable.
    pub fn want_flush(self: &Rc<Self>, lsn: u64) {
        let state = &self.flush;
        state.wanted.set(state.wanted.get().max(lsn));
        if state.durable.get() < lsn {
            self.start_flush();
        }
    }

    /// Resolves when everything written before the call is durable, also what no record refers to yet.
    pub async fn flush_all(self: &Rc<Self>) -> Result<()> {
        let state = &self.flush;
        let round = state.begun.get() + 1;
        state.forced.set(state.forced.get().max(round));
        self.start_flush();
        state
            .signal
            .wait(|| {
                if state.ended.get() >= round {
                    return Some(Ok(()));
                }
                self.failed.borrow().clone().map(Err)
            })
            .await
    }

    fn start_flush(self: &Rc<Self>) {
        let state = &self.flush;
        if state.running.get() || self.failed.borrow().is_some() {
            return;
        }
        state.running.set(true);
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            let state = &inner.flush;
            while state.durable.get() < state.wanted.get() || state.ended.get() < state.forced.get()
            {
                if inner.flush_round().await.is_err() {
                    break;
                }
            }
            inner.flush.running.set(false);
        });
    }

    /// One round. A failure poisons the store; it is never tried again.
    async fn flush_round(self: &Rc<Self>) -> Result<()> {
        let state = &self.flush;
        let upto = self.log.written.get();
        let began = self.rt.now();
        state.begun.set(state.begun.get() + 1);
        state.bytes.set(0);
        let classes = state.dirty_classes.take();
        let segments = state.dirty_segments.take();
        let mut files = Vec::new();
        for class in classes {
            files.extend(self.block_files.borrow().get(&class).cloned());
        }
        for seq in segments {
            files.extend(self.log.file_of(seq));
        }
        if planted(Mutant::MissingFlush) {
            files.clear();
        }
        for result in join_all(files.iter().map(|f| f.sync())).await {
            result.map_err(|e| self.poison("flush", &e))?;
        }
        if state.dirty_dir.replace(false) {
            self.dir.sync().await.map_err(|e| self.poison("flush of the directory", &e))?;
        }
        if self.failed.borrow().is_none() {
            state.durable.set(state.durable.get().max(upto));
            state.unflushed.flushed(state.durable.get());
            state.ended.set(state.begun.get());
            let (round, took) = (state.begun.get(), self.rt.now().since(began));
            tracing::debug!(
                disk = self.dir.path(),
                round,
                upto,
                files = files.len(),
                ?took,
                "flushed"
            );
            let observer = state.observer.borrow().clone();
            observer.iter().for_each(|o| o());
        }
        state.signal.wake();
        self.reap_all().await;
        self.mark_later();
        self.check_not_failed()
    }

    /// Writes a mark if nothing else tells of this flush soon.
    fn mark_later(self: &Rc<Self>) {
        if self.flush.marking.replace(true) {
            return;
        }
        // Not a reason to keep the store, and its lock on the directory, alive.
        let (rt, inner) = (self.rt.clone(), Rc::downgrade(self));
        self.rt.spawn_detached(async move {
            rt.sleep(MARK_PAUSE).await;
            let Some(inner) = inner.upgrade() else { return };
            inner.flush.marking.set(false);
            let durable = inner.flush.durable.get();
            // Nothing needs to tell that a mark was flushed.
            let last = durable - u64::from(durable > 0 && durable == inner.flush.marked.get());
            // What is recovered is flushed before this life has a segment, and to begin that may take long; its header tells.
            let told = inner.flush.told.get() >= last || !inner.log.is_living();
            let target = inner.targets.borrow().keys().next().copied();
            if let Some(target) = target
                && !told
            {
                // Its own loss changes nothing. A failure shows at the next update.
                let _ = inner.append(target, Record::Channels(Vec::new())).await;
            }
        });
    }

    /// Fails if a write or flush failed.
    pub fn check_not_failed(&self) -> Result<()> {
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Counts bytes written; too many begin a flush by themselves.
    pub fn count_written(self: &Rc<Self>, bytes: u64) {
        let total = self.flush.bytes.get() + bytes;
        self.flush.bytes.set(total);
        if total > self.config.unflushed_bytes_max {
            self.want_flush(self.log.written.get());
        }
    }
}
