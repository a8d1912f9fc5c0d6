//! Waiting within one thread: a notification, a first-come-first-served semaphore, and running futures together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Wakes everybody who waits for a change.
#[derive(Default)]
pub struct Notify {
    count: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl Notify {
    /// A mark for [`Notify::after`].
    pub fn mark(&self) -> u64 {
        self.count.get()
    }
    /// Something changed.
    pub fn notify(&self) {
        self.count.set(self.count.get() + 1);
        for w in self.wakers.take() {
            w.wake();
        }
    }
    /// Waits for the first change after `mark`.
    pub async fn after(&self, mark: u64) {
        poll_fn(|cx| {
            if self.count.get() != mark {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

struct Waiter {
    want: usize,
    granted: Cell<bool>,
    gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A bound on something countable; waiters are served in the order they came.
pub struct Semaphore {
    max: usize,
    free: Cell<usize>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

/// Part of a [`Semaphore`]; given back when dropped.
pub struct Permit {
    of: Rc<Semaphore>,
    n: usize,
}

impl Semaphore {
    /// `max` in all.
    pub fn new(max: usize) -> Rc<Self> {
        Rc::new(Self { max, free: Cell::new(max), queue: RefCell::default() })
    }
    /// Waits for `n` (at most all there are).
    pub async fn acquire(self: &Rc<Self>, n: usize) -> Permit {
        let n = n.min(self.max);
        if self.queue.borrow().is_empty() && self.free.get() >= n {
            self.free.set(self.free.get() - n);
            return Permit { of: self.clone(), n };
        }
        let waiter = Rc::new(Waiter {
            want: n,
            granted: Cell::new(false),
            gone: Cell::new(false),
            waker: RefCell::default(),
        });
        self.queue.borrow_mut().push_back(waiter.clone());
        let mut guard = Waiting { of: self, waiter: &waiter, taken: false };
        poll_fn(|cx| {
            if waiter.granted.get() {
                return Poll::Ready(());
            }
            *waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        guard.taken = true;
        Permit { of: self.clone(), n }
    }
    fn give(&self, n: usize) {
        self.free.set(self.free.get() + n);
        self.serve();
    }
    fn serve(&self) {
        loop {
            let first = self.queue.borrow().front().cloned();
            let Some(first) = first else { return };
            if !first.gone.get() {
                if self.free.get() < first.want {
                    return;
                }
                self.free.set(self.free.get() - first.want);
                first.granted.set(true);
            }
            self.queue.borrow_mut().pop_front();
            let waker = first.waker.borrow_mut().take();
            if let Some(w) = waker {
                w.wake();
            }
        }
    }
}

/// Keeps a cancelled waiter from holding its place or what it was granted.
struct Waiting<'a> {
    of: &'a Semaphore,
    waiter: &'a Waiter,
    taken: bool,
}
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        if self.waiter.granted.get() {
            self.of.give(self.waiter.want);
        } else {
            self.waiter.gone.set(true);
            self.of.serve();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.of.give(self.n);
    }
}

/// Runs all of them together and returns their results in order.
pub async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    enum Slot<F: Future> {
        Running(Pin<Box<F>>),
        Done(F::Output),
    }
    let mut slots: Vec<Slot<F>> = futures.into_iter().map(|f| Slot::Running(Box::pin(f))).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for slot in &mut slots {
            if let Slot::Running(f) = slot {
                match f.as_mut().poll(cx) {
                    Poll::Ready(out) => *slot = Slot::Done(out),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    slots
        .into_iter()
        .filter_map(|s| match s {
            Slot::Done(out) => Some(out),
            Slot::Running(_) => None,
        })
        .collect()
}

/// Whichever of two ends first.
pub enum Either<A, B> {
    /// The first.
    Left(A),
    /// The second.
    Right(B),
}

/// Runs two futures until one ends; the first is preferred.
pub async fn race<A: Future, B: Future>(
    a: &mut Pin<Box<A>>,
    b: &mut Pin<Box<B>>,
) -> Either<A::Output, B::Output> {
    poll_fn(|cx| {
        if let Poll::Ready(out) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(out));
        }
        b.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::task::Context;

    pub(crate) fn poll_once<F: Future + Unpin>(f: &mut F) -> Option<F::Output> {
        match Pin::new(f).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }
    pub(crate) fn run<F: Future>(f: F) -> F::Output {
        poll_once(&mut Box::pin(f)).expect("must not wait")
    }

    #[test]
    fn a_cancelled_waiter_gives_its_place_up() {
        let s = Semaphore::new(3);
        let a = run(s.acquire(2));
        let mut big = Box::pin(s.acquire(3));
        let mut small = Box::pin(s.acquire(1));
        assert!(poll_once(&mut big).is_none());
        assert!(poll_once(&mut small).is_none(), "behind the big one");
        drop(big);
        let b = poll_once(&mut small).expect("now first");
        drop((a, b));
        drop(run(s.acquire(99)));
        assert_eq!(s.free.get(), 3);
    }

    #[test]
    fn a_granted_but_cancelled_waiter_returns_it() {
        let s = Semaphore::new(1);
        let a = run(s.acquire(1));
        let mut w = Box::pin(s.acquire(1));
        assert!(poll_once(&mut w).is_none());
        drop(a);
        drop(w);
        assert_eq!(s.free.get(), 1);
    }

    #[test]
    fn join_keeps_order() {
        assert_eq!(run(join_all(vec![std::future::ready(1), std::future::ready(2)])), [1, 2]);
        let n = Notify::default();
        let mark = n.mark();
        let mut w = Box::pin(n.after(mark));
        assert!(poll_once(&mut w).is_none());
        n.notify();
        assert!(poll_once(&mut w).is_some());
    }
}
