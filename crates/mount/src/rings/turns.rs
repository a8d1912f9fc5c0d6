//! [`Turns`]: so many bytes of ring operations are in work at a time; those of rings with a higher priority go first, and among equals the one
//! that came first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Priority (the lower goes first) and arrival.
type Place = (i32, u64);

/// How many bytes somebody waits for, and how to wake him.
type Waiting = (usize, Option<Waker>);

#[derive(Default)]
struct Inner {
    free: Cell<usize>,
    all: usize,
    arrivals: Cell<u64>,
    waiting: RefCell<BTreeMap<Place, Waiting>>,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Turns(Rc<Inner>);

/// The right to have so many bytes in work.
pub(super) struct Turn {
    turns: Turns,
    bytes: usize,
}

/// Resolves to a [`Turn`].
pub(super) struct Wait {
    turns: Turns,
    bytes: usize,
    place: Option<Place>,
    priority: i32,
}

impl Turns {
    pub fn new(bytes: usize) -> Self {
        Self(Rc::new(Inner { free: Cell::new(bytes), all: bytes, ..Inner::default() }))
    }
    /// The right to have `bytes` in work; one that asks for more than there is gets all.
    pub fn take(&self, bytes: usize, priority: i32) -> Wait {
        Wait { turns: self.clone(), bytes: bytes.clamp(1, self.0.all), place: None, priority }
    }
    /// Wakes those who can go now. (Each is taken out and has its bytes counted here, so nobody overtakes.)
    fn grant(&self) {
        let mut waiting = self.0.waiting.borrow_mut();
        while let Some(mut first) = waiting.first_entry() {
            let (bytes, waker) = first.get_mut();
            if *bytes > self.0.free.get() {
                break;
            }
            self.0.free.set(self.0.free.get() - *bytes);
            let waker = waker.take();
            first.remove();
            if let Some(w) = waker {
                w.wake();
            }
        }
    }
}

impl Future for Wait {
    type Output = Turn;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let inner = self.turns.0.clone();
        let mut waiting = inner.waiting.borrow_mut();
        if let Some(place) = self.place {
            if let Some((_, waker)) = waiting.get_mut(&place) {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        } else if waiting.is_empty() && inner.free.get() >= self.bytes {
            inner.free.set(inner.free.get() - self.bytes);
        } else {
            let place = (self.priority, inner.arrivals.get());
            inner.arrivals.set(place.1 + 1);
            waiting.insert(place, (self.bytes, Some(cx.waker().clone())));
            self.place = Some(place);
            return Poll::Pending;
        }
        let turn = Turn { turns: self.turns.clone(), bytes: self.bytes };
        self.bytes = 0;
        Poll::Ready(turn)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let waited = self.turns.0.waiting.borrow_mut().remove(&place).is_some();
        if !waited && self.bytes > 0 {
            // It was granted and never looked.
            drop(Turn { turns: self.turns.clone(), bytes: self.bytes });
        } else if waited {
            self.turns.grant();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let free = &self.turns.0.free;
        free.set(free.get() + self.bytes);
        self.turns.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn now<F: Future>(f: Pin<&mut F>) -> Option<F::Output> {
        match f.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    #[test]
    fn priority_then_arrival_and_nothing_is_lost() {
        let turns = Turns::new(10);
        let first = now(pin!(turns.take(8, 0))).expect("there is room");
        let (mut low, mut high) = (Box::pin(turns.take(6, 1)), Box::pin(turns.take(6, -1)));
        let gone = now(pin!(turns.take(6, -1)));
        assert!(gone.is_none(), "and given up again");
        assert!(now(low.as_mut()).is_none() && now(high.as_mut()).is_none());
        drop(first);
        assert!(now(low.as_mut()).is_none(), "the other one goes first, though it came later");
        let second = now(high.as_mut()).expect("its turn");
        drop(second);
        let third = now(low.as_mut()).expect("its turn");
        drop(third);
        assert_eq!(turns.0.free.get(), 10);
        assert!(now(pin!(turns.take(1000, 0))).is_some(), "one that wants more than all gets all");
        assert_eq!(turns.0.free.get(), 10);
    }

    #[test]
    fn a_turn_that_was_granted_and_not_looked_at_comes_back() {
        let turns = Turns::new(4);
        let held = now(pin!(turns.take(4, 0))).expect("there is room");
        let mut waiting = Box::pin(turns.take(4, 0));
        assert!(now(waiting.as_mut()).is_none());
        drop(held);
        drop(waiting);
        assert_eq!(turns.0.free.get(), 4);
    }
}
