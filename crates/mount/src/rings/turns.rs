//! [`Turns`]: so many bytes of ring operations are in work at a time. Users take turns, one operation each; of one user's operations those of
//! rings with a higher priority go first, and among equals the one that came first. So nobody gets before another user by the priority he gives himself.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Priority (the lower goes first) and arrival.
type Place = (i32, u64);

/// Who has his own priorities.
type User = u32;

/// How many bytes somebody waits for, and how to wake him.
type Waiting = (usize, Option<Waker>);

#[derive(Default)]
struct Inner {
    free: Cell<usize>,
    all: usize,
    arrivals: Cell<u64>,
    queue: RefCell<Queue>,
}

/// Who waits. A user stands in the order as long as some operation of his is there.
#[derive(Default)]
struct Queue {
    waiting: BTreeMap<User, BTreeMap<Place, Waiting>>,
    order: VecDeque<User>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
    fn join(&mut self, user: User, place: Place, waiting: Waiting) {
        let own = self.waiting.entry(user).or_default();
        if own.is_empty() {
            self.order.push_back(user);
        }
        own.insert(place, waiting);
    }
    fn find(&mut self, user: User, place: Place) -> Option<&mut Waiting> {
        self.waiting.get_mut(&user)?.get_mut(&place)
    }
    /// Gives up; whether it was there.
    fn leave(&mut self, user: User, place: Place) -> bool {
        let Some(own) = self.waiting.get_mut(&user) else { return false };
        let was_there = own.remove(&place).is_some();
        if own.is_empty() {
            self.waiting.remove(&user);
            self.order.retain(|u| *u != user);
        }
        was_there
    }
    /// Takes the next one out if it needs no more than `free`; then it is the next user's turn.
    fn next(&mut self, free: usize) -> Option<Waiting> {
        let user = *self.order.front()?;
        let own = self.waiting.get_mut(&user)?;
        let first = own.first_entry().filter(|e| e.get().0 <= free)?.remove();
        self.order.pop_front();
        if own.is_empty() {
            self.waiting.remove(&user);
        } else {
            self.order.push_back(user);
        }
        Some(first)
    }
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
    user: User,
    priority: i32,
}

impl Turns {
    pub fn new(bytes: usize) -> Self {
        Self(Rc::new(Inner { free: Cell::new(bytes), all: bytes, ..Inner::default() }))
    }
    /// The right to have `bytes` in work; one that asks for more than there is gets all.
    pub fn take(&self, bytes: usize, user: User, priority: i32) -> Wait {
        let bytes = bytes.clamp(1, self.0.all);
        Wait { turns: self.clone(), bytes, place: None, user, priority }
    }
    /// Wakes those who can go now. (Each is taken out and has its bytes counted here, so nobody overtakes.)
    fn grant(&self) {
        let mut queue = self.0.queue.borrow_mut();
        while let Some((bytes, waker)) = queue.next(self.0.free.get()) {
            self.0.free.set(self.0.free.get() - bytes);
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
        let mut queue = inner.queue.borrow_mut();
        if let Some(place) = self.place {
            if let Some((_, waker)) = queue.find(self.user, place) {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        } else if queue.is_empty() && inner.free.get() >= self.bytes {
            inner.free.set(inner.free.get() - self.bytes);
        } else {
            let place = (self.priority, inner.arrivals.get());
            inner.arrivals.set(place.1 + 1);
            queue.join(self.user, place, (self.bytes, Some(cx.waker().clone())));
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
        let waited = self.turns.0.queue.borrow_mut().leave(self.user, place);
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
        let first = now(pin!(turns.take(8, 0, 0))).expect("there is room");
        let (mut low, mut high) = (Box::pin(turns.take(6, 0, 1)), Box::pin(turns.take(6, 0, -1)));
        let gone = now(pin!(turns.take(6, 0, -1)));
        assert!(gone.is_none(), "and given up again");
        assert!(now(low.as_mut()).is_none() && now(high.as_mut()).is_none());
        drop(first);
        assert!(now(low.as_mut()).is_none(), "the other one goes first, though it came later");
        let second = now(high.as_mut()).expect("its turn");
        drop(second);
        let third = now(low.as_mut()).expect("its turn");
        drop(third);
        assert_eq!(turns.0.free.get(), 10);
        assert!(
            now(pin!(turns.take(1000, 0, 0))).is_some(),
            "one that wants more than all gets all"
        );
        assert_eq!(turns.0.free.get(), 10);
    }

    #[test]
    fn a_turn_that_was_granted_and_not_looked_at_comes_back() {
        let turns = Turns::new(4);
        let held = now(pin!(turns.take(4, 0, 0))).expect("there is room");
        let mut waiting = Box::pin(turns.take(4, 0, 0));
        assert!(now(waiting.as_mut()).is_none());
        drop(held);
        drop(waiting);
        assert_eq!(turns.0.free.get(), 4);
    }

    #[test]
    fn users_take_turns_whatever_priority_they_give_themselves() {
        let turns = Turns::new(4);
        let mut held = now(pin!(turns.take(4, 1, 0))).expect("there is room");
        // One user has much waiting, and says that all of it is urgent.
        let mut urgent: Vec<_> = (0..8).map(|_| Box::pin(turns.take(4, 1, -100))).collect();
        assert!(urgent.iter_mut().all(|w| now(w.as_mut()).is_none()));
        let mut own = Box::pin(turns.take(4, 2, 0));
        assert!(now(own.as_mut()).is_none());
        let mut passed = 0;
        let mine = loop {
            drop(held);
            if let Some(turn) = now(own.as_mut()) {
                break turn;
            }
            let next = urgent.iter_mut().skip(passed).find_map(|w| now(w.as_mut()));
            (held, passed) = (next.expect("somebody"), passed + 1);
        };
        assert_eq!(passed, 1, "one of the other's, which came first");
        // Who gives up leaves the turn to others.
        drop(urgent);
        drop(mine);
        assert_eq!(turns.0.free.get(), 4);
        assert!(turns.0.queue.borrow().is_empty());
    }
}
