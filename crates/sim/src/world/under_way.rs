//! What a directory was asked and has not answered yet.

use super::core::Core;
use glowfs_rt::backend::BoxFuture;
use glowfs_rt::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The operations of a directory that was opened, and of its files; in the order in which they began.
pub(crate) struct UnderWay {
    node: usize,
    last: Cell<u64>,
    /// Since when the disk is at each of them, by the clock of the node; may be yet to come.
    all: RefCell<BTreeMap<u64, Instant>>,
}

impl UnderWay {
    pub(crate) fn new(node: usize) -> Rc<Self> {
        Rc::new(Self { node, last: Cell::new(0), all: RefCell::default() })
    }
    /// What the clock of the node shows.
    pub(crate) fn now(&self, core: &Core) -> Instant {
        core.time_of(self.node)
    }
    /// Since when the oldest, of those that do not wait for others before them.
    pub(crate) fn since(&self, core: &Core) -> Option<Instant> {
        let (all, now) = (self.all.borrow(), self.now(core));
        all.values().filter(|since| **since <= now).min().copied()
    }
    /// [`Core::later`] for an operation, which is under way until then.
    pub(crate) fn later<T: 'static>(
        self: &Rc<Self>,
        core: &Core,
        delay_ns: u64,
        work: impl FnOnce(&Rc<Core>) -> T + 'static,
    ) -> BoxFuture<T> {
        self.after_others(core, 0, delay_ns, work)
    }
    /// The same of one that waits for those before it first.
    pub(crate) fn after_others<T: 'static>(
        self: &Rc<Self>,
        core: &Core,
        waits_ns: u64,
        delay_ns: u64,
        work: impl FnOnce(&Rc<Core>) -> T + 'static,
    ) -> BoxFuture<T> {
        let (me, key) = (self.clone(), self.last.get() + 1);
        self.last.set(key);
        let since = self.now(core) + Duration::from_nanos(waits_ns);
        self.all.borrow_mut().insert(key, since);
        core.later(waits_ns + delay_ns, move |core| {
            me.all.borrow_mut().remove(&key);
            work(core)
        })
    }
}
