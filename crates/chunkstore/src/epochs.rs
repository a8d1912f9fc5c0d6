//! [`Epochs`]: who uses places on the disk, so that a place is not used anew under somebody who reads it still.

use crate::signal::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Who uses places on the disk right now. A place that is no longer referred to may be used anew only when all
/// who entered before that have left.
#[derive(Default)]
pub(crate) struct Epochs {
    next: Cell<u64>,
    active: RefCell<BTreeSet<u64>>,
    left: Signal,
}

/// Someone who uses places on the disk.
pub(crate) struct Guard {
    epochs: Rc<Epochs>,
    seq: u64,
}

impl Epochs {
    pub fn enter(self: &Rc<Self>) -> Guard {
        let seq = self.now();
        self.next.set(seq + 1);
        self.active.borrow_mut().insert(seq);
        Guard { epochs: self.clone(), seq }
    }
    /// Those who enter from now on have this number or a greater one.
    pub fn now(&self) -> u64 {
        self.next.get()
    }
    /// Whether all who entered before `seq` have left.
    pub fn passed(&self, seq: u64) -> bool {
        self.active.borrow().first().is_none_or(|first| *first >= seq)
    }
    /// Resolves when all who entered before `seq` have left.
    pub async fn wait(&self, seq: u64) {
        self.left.wait(|| self.passed(seq).then_some(())).await;
    }
}

impl Guard {
    /// Resolves when all who entered before this guard have left.
    pub async fn alone_since(&self) {
        self.epochs.wait(self.seq).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.epochs.active.borrow_mut().remove(&self.seq);
        self.epochs.left.wake();
    }
}
