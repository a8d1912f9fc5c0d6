//! Tasks of this thread that wait for something.

use std::cell::RefCell;
use std::task::{Context, Waker};

/// Tasks to wake. Whoever changes the condition calls [`Waiters::wake`]; whoever waits looks at the condition first.
#[derive(Default)]
pub(crate) struct Waiters(RefCell<Vec<Waker>>);

impl Waiters {
    /// Remembers the task that polls.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        let mut waiters = self.0.borrow_mut();
        if !waiters.iter().any(|w| w.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
    }
    /// Wakes all of them.
    pub(crate) fn wake(&self) {
        if self.0.borrow().is_empty() {
            return;
        }
        for waker in self.0.take() {
            waker.wake();
        }
    }
}
