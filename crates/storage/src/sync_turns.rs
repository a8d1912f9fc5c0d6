//! Turns of resyncs: how many targets of a node send one at once, which can be changed while they run.
//!
//! Guarantees: no more begin than are wanted now, and a greater number counts at once, also for those that wait. Must never: end a resync because fewer are wanted;
//! fewer run when that one has ended.

use glowfs_rt::sync::Notify;
use std::cell::Cell;

/// The turns of a node.
#[derive(Default)]
pub(crate) struct SyncTurns {
    running: Cell<usize>,
    changed: Notify,
}

/// A resync's turn; over when dropped.
pub(crate) struct Turn<'a>(&'a SyncTurns);

impl SyncTurns {
    /// Waits for a turn, of which there are as many at once as `wanted` says by then.
    pub async fn take(&self, wanted: impl Fn() -> usize) -> Turn<'_> {
        while self.running.get() >= wanted() {
            self.changed.wait().await;
        }
        self.running.set(self.running.get() + 1);
        Turn(self)
    }
    /// Another number of them may be wanted now.
    pub fn changed(&self) {
        self.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::{Duration, real};
    use std::rc::Rc;

    #[test]
    fn as_many_run_as_are_wanted_now() {
        real::run(|rt| async move {
            let turns = Rc::new(SyncTurns::default());
            let (wanted, begun) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(0)));
            for _ in 0..6 {
                let (turns, wanted, begun) = (turns.clone(), wanted.clone(), begun.clone());
                let own = rt.clone();
                rt.spawn_detached(async move {
                    let turn = turns.take(|| wanted.get()).await;
                    begun.set(begun.get() + 1);
                    while begun.get() < 100 {
                        own.sleep(Duration::from_millis(1)).await;
                    }
                    drop(turn);
                });
            }
            let settled = async || rt.sleep(Duration::from_millis(20)).await;
            settled().await;
            assert_eq!(begun.get(), 1);
            wanted.set(3);
            turns.changed();
            settled().await;
            assert_eq!(begun.get(), 3, "also those that wait already");
            wanted.set(2);
            turns.changed();
            settled().await;
            assert_eq!((begun.get(), turns.running.get()), (3, 3), "none is ended");
            // All end, and those that wait come after them.
            begun.set(100);
            settled().await;
            assert_eq!((begun.get(), turns.running.get()), (103, 0));
        });
    }
}
