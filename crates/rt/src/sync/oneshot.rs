//! [`oneshot`]: a channel for one value. Not a [`super::channel`] of one place, which costs more: every update of a chunk has one.

use super::Closed;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    sending: bool,
    receiving: bool,
    receiver: Option<Waker>,
}

/// Sends one value.
pub struct OneSender<T>(Rc<RefCell<Slot<T>>>);
/// A future of that value; [`Closed`] if the sender is dropped without it.
pub struct OneReceiver<T>(Rc<RefCell<Slot<T>>>);

/// A channel for one value.
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let slot = Slot { value: None, sending: true, receiving: true, receiver: None };
    let shared = Rc::new(RefCell::new(slot));
    (OneSender(shared.clone()), OneReceiver(shared))
}

impl<T> OneSender<T> {
    /// Sends it; gives it back if nobody waits.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut slot = self.0.borrow_mut();
        if !slot.receiving {
            return Err(value);
        }
        slot.value = Some(value);
        Ok(())
        // The receiver is woken by the drop of the sender.
    }
    /// Whether nobody waits any more.
    pub fn is_closed(&self) -> bool {
        !self.0.borrow().receiving
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        let receiver = {
            let mut slot = self.0.borrow_mut();
            slot.sending = false;
            slot.receiver.take()
        };
        if let Some(w) = receiver {
            w.wake();
        }
    }
}

impl<T> Future for OneReceiver<T> {
    type Output = Result<T, Closed>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Ok(value));
        }
        if !slot.sending {
            return Poll::Ready(Err(Closed));
        }
        match &mut slot.receiver {
            Some(w) => w.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for OneReceiver<T> {
    fn drop(&mut self) {
        // Dropped when nothing is borrowed: a value may do anything then.
        let _left = {
            let mut slot = self.0.borrow_mut();
            slot.receiving = false;
            (slot.value.take(), slot.receiver.take())
        };
    }
}
