//! Small tools for tasks of one thread: a condition to wait on, running futures side by side, epochs of use.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Wakes all who wait whenever something changed; each looks for itself whether it was what it waits for.
#[derive(Default)]
pub(crate) struct Signal(RefCell<Vec<Waker>>);

impl Signal {
    pub fn wake(&self) {
        for w in self.0.take() {
            w.wake();
        }
    }
    /// Resolves when `ready` gives something; asked at once and after each [`Signal::wake`].
    pub async fn wait<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match ready() {
            Some(v) => Poll::Ready(v),
            None => {
                let mut list = self.0.borrow_mut();
                if !list.iter().any(|w| w.will_wake(cx.waker())) {
                    list.push(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}

/// A result for one waiter.
pub(crate) struct Promise<T>(RefCell<(Option<T>, Option<Waker>)>);

impl<T> Promise<T> {
    pub fn new() -> Rc<Self> {
        Rc::new(Self(RefCell::new((None, None))))
    }
    pub fn set(&self, value: T) {
        let waker = {
            let mut s = self.0.borrow_mut();
            s.0 = Some(value);
            s.1.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }
    pub async fn get(&self) -> T {
        poll_fn(|cx| {
            let mut s = self.0.borrow_mut();
            match s.0.take() {
                Some(v) => Poll::Ready(v),
                None => {
                    s.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A future among others.
pub(crate) type Job<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all side by side; the results in order.
pub(crate) async fn join_all<T>(futures: Vec<Job<'_, T>>) -> Vec<T> {
    let mut slots: Vec<_> = futures.into_iter().map(|f| (Some(f), None)).collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for (future, out) in &mut slots {
            if let Some(f) = future {
                match f.as_mut().poll(cx) {
                    Poll::Ready(v) => {
                        *out = Some(v);
                        *future = None;
                    }
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    slots.into_iter().filter_map(|(_, out)| out).collect()
}

/// Who uses places on the disk right now. A place that is no longer referred to may be used anew only when all
/// who entered before that have left.
#[derive(Default)]
pub(crate) struct Epochs {
    next: Cell<u64>,
    active: RefCell<BTreeSet<u64>>,
    left: Signal,
}

/// Someone who uses places on the disk.
pub(crate) struct Guard {
    epochs: Rc<Epochs>,
    seq: u64,
}

impl Epochs {
    pub fn enter(self: &Rc<Self>) -> Guard {
        let seq = self.now();
        self.next.set(seq + 1);
        self.active.borrow_mut().insert(seq);
        Guard { epochs: self.clone(), seq }
    }
    /// Those who enter from now on have this number or a greater one.
    pub fn now(&self) -> u64 {
        self.next.get()
    }
    /// Whether all who entered before `seq` have left.
    pub fn passed(&self, seq: u64) -> bool {
        self.active.borrow().first().is_none_or(|first| *first >= seq)
    }
    /// Resolves when all who entered before `seq` have left.
    pub async fn wait(&self, seq: u64) {
        self.left.wait(|| self.passed(seq).then_some(())).await;
    }
}

impl Guard {
    /// Resolves when all who entered before this guard have left.
    pub async fn alone_since(&self) {
        self.epochs.wait(self.seq).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.epochs.active.borrow_mut().remove(&self.seq);
        self.epochs.left.wake();
    }
}
