//! A counter that tasks of this thread can wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Counts changes and wakes whoever waits for the next one. Nothing is missed: a waiter says which count it has seen.
#[derive(Default)]
pub struct Notify {
    count: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl Notify {
    /// A counter at 0.
    pub fn new() -> Self {
        Self::default()
    }
    /// How many changes there were.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
    /// One more; wakes all waiters.
    pub fn notify(&self) {
        self.count.set(self.count.get() + 1);
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        for waker in wakers {
            waker.wake();
        }
    }
    /// Waits until there were more changes than `seen`; returns the new count.
    pub async fn past(&self, seen: u64) -> u64 {
        poll_fn(|cx| {
            if self.count.get() > seen {
                return Poll::Ready(self.count.get());
            }
            let mut wakers = self.wakers.borrow_mut();
            if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
