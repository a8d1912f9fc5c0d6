//! [`Notify`]: lets tasks of one thread wait for a condition that others make true.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

#[derive(Default)]
pub struct Notify(RefCell<Vec<Waker>>);

impl Notify {
    /// Everybody looks again at what they wait for.
    pub fn wake(&self) {
        let wakers = std::mem::take(&mut *self.0.borrow_mut());
        for waker in wakers {
            waker.wake();
        }
    }
    /// Waits until `done`.
    pub async fn until(&self, done: impl Fn() -> bool) {
        poll_fn(|cx| self.poll_until(cx, &done)).await;
    }
    /// The same, to be combined with other waiting.
    pub fn poll_until(&self, cx: &mut Context<'_>, done: &impl Fn() -> bool) -> Poll<()> {
        if done() {
            return Poll::Ready(());
        }
        let mut wakers = self.0.borrow_mut();
        if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
