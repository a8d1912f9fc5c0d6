//! Targets that were removed: what they had goes away in small steps, for that may be millions of chunks.
//!
//! Nobody finds such a target any more; that alone is the removal. Its slots stay taken until their turn comes. Neither a checkpoint nor a recovery knows of it: after a
//! start they are free.

use crate::chunk::Chunk;
use crate::compact::slots_of;
use crate::signal::Signal;
use crate::state::{Inner, Target};
use glowfs_types::ChunkId;
use std::cell::{Cell, RefCell};
use std::collections::{VecDeque, btree_map};
use std::rc::Rc;

/// Chunks, and channel records, that are given up without letting other tasks run.
const STEP: usize = 256;

/// What is left of a target.
struct Rest {
    /// The batch of its removal.
    lsn: u64,
    chunks: btree_map::IntoIter<ChunkId, Chunk>,
    /// All else that there may be much of.
    others: Box<dyn Iterator<Item = ()>>,
}

/// Targets that are on their way out.
#[derive(Default)]
pub(crate) struct Leaving {
    list: RefCell<VecDeque<Rest>>,
    running: Cell<bool>,
    gone: Signal,
}

impl Leaving {
    /// A target was removed in batch `lsn`.
    pub fn add(&self, target: Target, lsn: u64) {
        let Target { chunks, channels, pending, .. } = target;
        let others = channels.into_iter().map(drop).chain(pending.into_iter().map(drop));
        let rest = Rest { lsn, chunks: chunks.into_iter(), others: Box::new(others) };
        self.list.borrow_mut().push_back(rest);
    }
    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }
    /// Their slots are nobody's concern: all of them are looked for anew.
    pub fn forget(&self) {
        self.list.borrow_mut().clear();
    }
}

impl Inner {
    /// Begins to give up what removed targets had, if there are any.
    pub fn start_leaving(self: &Rc<Self>) {
        if self.leaving.is_empty() || self.leaving.running.replace(true) {
            return;
        }
        // Not a reason to keep the store, and its lock on the directory, alive.
        let (rt, inner) = (self.rt.clone(), Rc::downgrade(self));
        self.rt.spawn_detached(async move {
            while let Some(inner) = inner.upgrade() {
                let lsn = inner.leaving.list.borrow().front().map(|r| r.lsn);
                let Some(lsn) = lsn else {
                    inner.leaving.running.set(false);
                    return;
                };
                // Otherwise all of it would gather until the next flush.
                let durable = inner.flush_to(lsn).await.is_ok();
                inner.leaving_step(durable);
                drop(inner);
                rt.yield_now().await;
            }
        });
    }

    /// Gives some of it up. `durable`: the removal is, so slots may be used anew.
    fn leaving_step(&self, durable: bool) {
        let mut list = self.leaving.list.borrow_mut();
        let Some(rest) = list.front_mut() else { return };
        let lsn = rest.lsn;
        let chunks: Vec<Chunk> = rest.chunks.by_ref().take(STEP).map(|(_, c)| c).collect();
        let ended = chunks.len() < STEP && rest.others.by_ref().take(STEP).count() < STEP;
        if ended {
            list.pop_front();
        }
        drop(list);
        if durable {
            self.retire_slots(Some(chunks.iter().flat_map(slots_of).collect()), lsn);
        }
        if ended {
            self.leaving.gone.wake();
        }
    }

    /// Resolves when all that removed targets had is given up, or the store fails.
    pub async fn left(&self) {
        let over = || self.leaving.is_empty() || self.failed.borrow().is_some();
        self.leaving.gone.wait(|| over().then_some(())).await;
    }
}
