//! [`CutsEnded`]: truncates whose end may not be on disk yet.
//!
//! The end of a truncate gives the file an epoch under which others write again. If it goes with the power once somebody has, the truncate is done over: storage refuses that for a while, and
//! then what was written behind the new end is cut off. So nobody gets a capability for writing under such an epoch before it is on disk. (Nobody waits for that who only cuts a file.)
//!
//! Guarantees: an end is known here from before it can be seen until a flush that began after it. Only of this service: where there are others, the end itself is flushed ([`crate::cut`]).

use crate::state::{Service, ms};
use glowfs_rt::Duration;
use glowfs_types::{InodeId, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// So many may wait for a flush; the next ones are flushed themselves.
const WAITING_MAX: usize = 1 << 14;

/// See the module.
#[derive(Default)]
pub struct CutsEnded {
    /// When each of them ended, counted in ends; none: it is being committed.
    by_inode: RefCell<BTreeMap<InodeId, Option<u64>>>,
    ends: Cell<u64>,
    /// A task waits for a flush of those that are there.
    watched: Cell<bool>,
}

/// One that is being committed; whatever becomes of that, it has to be flushed from then on.
pub struct Ending<'a> {
    all: &'a CutsEnded,
    inode: InodeId,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let end = self.all.ends.get();
        self.all.ends.set(end + 1);
        self.all.by_inode.borrow_mut().insert(self.inode, Some(end));
    }
}

impl CutsEnded {
    /// The end of a truncate is going to be committed. None: too many wait, so this one has to be flushed.
    pub fn begin(&self, inode: InodeId) -> Option<Ending<'_>> {
        let mut all = self.by_inode.borrow_mut();
        if all.len() >= WAITING_MAX && !all.contains_key(&inode) {
            return None;
        }
        all.insert(inode, None);
        Some(Ending { all: self, inode })
    }
    /// Whether the epoch of a file may not be on disk.
    pub fn has(&self, inode: InodeId) -> bool {
        self.by_inode.borrow().contains_key(&inode)
    }
    fn flushed(&self, before: u64) {
        self.by_inode.borrow_mut().retain(|_, end| end.is_none_or(|end| end >= before));
    }
}

impl Service {
    /// Everything that was committed before is on disk when it returns.
    pub async fn flush(&self) -> Result<()> {
        let ends = self.cuts_ended.ends.get();
        self.engine.flush_barrier().await?;
        self.cuts_ended.flushed(ends);
        Ok(())
    }

    /// Has ends forgotten when the engine has flushed them by itself.
    pub fn watch_ends(&self) {
        if self.cuts_ended.watched.replace(true) {
            return;
        }
        let (own, pause) = (self.own.clone(), ms(self.config.tuning.flush_interval_ms));
        let rt = self.rt.clone();
        self.rt.spawn_detached(async move {
            loop {
                rt.sleep(pause.max(PAUSE_MIN)).await;
                let Some(s) = own.upgrade().filter(|s| !s.stopping.get()) else { return };
                if let Err(error) = s.flush().await {
                    tracing::debug!(%error, "ends of truncates are not flushed yet");
                }
                if s.cuts_ended.by_inode.borrow().is_empty() {
                    s.cuts_ended.watched.set(false);
                    return;
                }
            }
        });
    }
}

/// At least so long a task waits before it asks for a flush.
const PAUSE_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_known_until_a_flush_that_began_after_it() {
        let all = CutsEnded::default();
        let inode = InodeId;
        let ending = all.begin(inode(1)).expect("room");
        assert!(all.has(inode(1)) && !all.has(inode(2)));
        let before = all.ends.get();
        all.flushed(before);
        drop(ending);
        all.flushed(before);
        assert!(all.has(inode(1)), "the flush began before");
        drop(all.begin(inode(2)).expect("room"));
        // Cut once more, while a flush of the first end is under way.
        let (now, again) = (all.ends.get(), all.begin(inode(1)).expect("room"));
        all.flushed(now);
        assert!(all.has(inode(1)) && !all.has(inode(2)));
        drop(again);
        all.flushed(all.ends.get());
        assert!(all.by_inode.borrow().is_empty());
        let many: Vec<_> = (0..WAITING_MAX as u64).filter_map(|n| all.begin(inode(n))).collect();
        assert_eq!(many.len(), WAITING_MAX);
        assert!(all.begin(inode(u64::MAX)).is_none());
    }
}
