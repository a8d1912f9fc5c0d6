//! What a directory was asked and has not answered yet.

use super::core::Core;
use glowfs_rt::Instant;
use glowfs_rt::backend::BoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The operations of a directory that was opened, and of its files; in the order in which they began.
pub(crate) struct UnderWay {
    node: usize,
    last: Cell<u64>,
    /// Since when each of them, by the clock of the node.
    all: RefCell<BTreeMap<u64, Instant>>,
}

impl UnderWay {
    pub(crate) fn new(node: usize) -> Rc<Self> {
        Rc::new(Self { node, last: Cell::new(0), all: RefCell::default() })
    }
    /// Since when the oldest.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.all.borrow().values().next().copied()
    }
    /// [`Core::later`] for an operation, which is under way until then.
    pub(crate) fn later<T: 'static>(
        self: &Rc<Self>,
        core: &Core,
        delay_ns: u64,
        work: impl FnOnce(&Rc<Core>) -> T + 'static,
    ) -> BoxFuture<T> {
        let (me, key) = (self.clone(), self.last.get() + 1);
        self.last.set(key);
        self.all.borrow_mut().insert(key, core.time_of(self.node));
        core.later(delay_ns, move |core| {
            me.all.borrow_mut().remove(&key);
            work(core)
        })
    }
}
