//! Work beside requests that a later request has to wait for.

use glowfs_rt::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// What runs, by the order in which it began.
#[derive(Default)]
struct Numbers {
    next: Cell<u64>,
    running: RefCell<BTreeSet<u64>>,
    news: Notify,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Running(Rc<Numbers>);

/// One piece of work; over when dropped.
pub struct Work {
    of: Running,
    number: u64,
}

impl Running {
    /// A piece of work begins.
    pub fn begin(&self) -> Work {
        let number = self.0.next.replace(self.0.next.get() + 1);
        self.0.running.borrow_mut().insert(number);
        Work { of: self.clone(), number }
    }
    /// Resolves when all that had begun before this was called is over.
    pub async fn over(&self) {
        let end = self.0.next.get();
        while self.0.running.borrow().first().is_some_and(|first| *first < end) {
            self.0.news.wait().await;
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.of.0.running.borrow_mut().remove(&self.number);
        self.of.0.news.notify_all();
    }
}
