//! [`Gate`]: many users of a file's contents at once, or one that changes its length. First come, first served, so
//! that neither starves and writes keep their order behind a truncate.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct Inner {
    /// Shared holders, or [`EXCLUSIVE`].
    held: Cell<u32>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

const EXCLUSIVE: u32 = u32::MAX;

struct Waiter {
    exclusive: bool,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Gate(Rc<Inner>);

impl Gate {
    /// Enters together with others.
    pub fn shared(&self) -> Enter {
        self.enter(false)
    }
    /// Enters alone.
    pub fn exclusive(&self) -> Enter {
        self.enter(true)
    }
    fn enter(&self, exclusive: bool) -> Enter {
        Enter { gate: self.clone(), exclusive, waiter: None, done: false }
    }
    fn try_take(&self, exclusive: bool) -> bool {
        let held = self.0.held.get();
        let free = if exclusive { held == 0 } else { held < EXCLUSIVE - 1 };
        if free {
            self.0.held.set(if exclusive { EXCLUSIVE } else { held + 1 });
        }
        free
    }
    fn release(&self, exclusive: bool) {
        let held = self.0.held.get();
        self.0.held.set(if exclusive { 0 } else { held.saturating_sub(1) });
        self.grant();
    }
    /// Lets those at the front in, in order.
    fn grant(&self) {
        loop {
            let next = {
                let mut queue = self.0.queue.borrow_mut();
                match queue.front() {
                    Some(w) if self.try_take(w.exclusive) => queue.pop_front(),
                    _ => None,
                }
            };
            let Some(w) = next else { return };
            w.granted.set(true);
            if let Some(waker) = w.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

/// Resolves to a [`Pass`].
pub struct Enter {
    gate: Gate,
    exclusive: bool,
    waiter: Option<Rc<Waiter>>,
    done: bool,
}

impl Future for Enter {
    type Output = Pass;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pass> {
        let granted = match &self.waiter {
            Some(w) => w.granted.get(),
            None => self.gate.0.queue.borrow().is_empty() && self.gate.try_take(self.exclusive),
        };
        if granted {
            self.done = true;
            return Poll::Ready(Pass { gate: self.gate.clone(), exclusive: self.exclusive });
        }
        match &self.waiter {
            Some(w) => *w.waker.borrow_mut() = Some(cx.waker().clone()),
            None => {
                let w = Rc::new(Waiter {
                    exclusive: self.exclusive,
                    granted: Cell::new(false),
                    waker: RefCell::new(Some(cx.waker().clone())),
                });
                self.gate.0.queue.borrow_mut().push_back(w.clone());
                self.waiter = Some(w);
            }
        }
        Poll::Pending
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let Some(w) = self.waiter.take() else { return };
        if w.granted.get() {
            self.gate.release(self.exclusive);
        } else {
            self.gate.0.queue.borrow_mut().retain(|other| !Rc::ptr_eq(other, &w));
            self.gate.grant();
        }
    }
}

/// Being inside; dropping it leaves.
pub struct Pass {
    gate: Gate,
    exclusive: bool,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.release(self.exclusive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(e: &mut Pin<Box<Enter>>) -> Option<Pass> {
        match e.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(p) => Some(p),
            Poll::Pending => None,
        }
    }

    #[test]
    fn first_come_first_served() {
        let gate = Gate::default();
        let (mut a, mut b) = (Box::pin(gate.shared()), Box::pin(gate.shared()));
        let (pa, pb) = (poll(&mut a).expect("free"), poll(&mut b).expect("shared"));
        let mut alone = Box::pin(gate.exclusive());
        assert!(poll(&mut alone).is_none());
        let mut late = Box::pin(gate.shared());
        assert!(poll(&mut late).is_none(), "waits behind the one that waits");
        drop(pa);
        assert!(poll(&mut alone).is_none());
        drop(pb);
        let inside = poll(&mut alone).expect("drained");
        assert!(poll(&mut late).is_none());
        drop(inside);
        assert!(poll(&mut late).is_some());
    }

    #[test]
    fn giving_up_lets_the_next_in() {
        let gate = Gate::default();
        let mut a = Box::pin(gate.shared());
        let pass = poll(&mut a).expect("free");
        let mut alone = Box::pin(gate.exclusive());
        assert!(poll(&mut alone).is_none());
        let mut late = Box::pin(gate.shared());
        assert!(poll(&mut late).is_none());
        drop(alone);
        assert!(poll(&mut late).is_some());
        // Granted but never polled again: the place is given back.
        let mut alone = Box::pin(gate.exclusive());
        assert!(poll(&mut alone).is_none());
        drop(pass);
        let mut again = Box::pin(gate.exclusive());
        drop(alone);
        drop(late);
        assert!(poll(&mut again).is_some());
    }
}
