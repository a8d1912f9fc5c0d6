//! What tasks of one thread wait for each other with: [`Notify`], [`oneshot`], [`channel`], [`Semaphore`],
//! [`join_all`], [`select`]. Nothing here crosses threads.

mod oneshot;
mod shares;

pub use oneshot::{OneReceiver, OneSender, oneshot};
pub use shares::{Share, Shares};

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Tasks that wait for the same thing. A waiter is known by its number; they stand in the order of their numbers.
#[derive(Default)]
struct Waiters {
    next: u64,
    queue: VecDeque<(u64, Waker)>,
}

impl Waiters {
    /// Puts a task at the end, or renews its waker where it stands.
    fn wait(&mut self, number: &mut Option<u64>, cx: &Context<'_>) {
        if let Some(place) = self.place(*number) {
            self.queue[place].1.clone_from(cx.waker());
            return;
        }
        self.next += 1;
        *number = Some(self.next);
        self.queue.push_back((self.next, cx.waker().clone()));
    }
    /// Takes one out. False if it was woken already.
    fn leave(&mut self, number: Option<u64>) -> bool {
        let Some(place) = self.place(number) else { return false };
        self.queue.remove(place);
        true
    }
    fn place(&self, number: Option<u64>) -> Option<usize> {
        let number = number?;
        self.queue.binary_search_by_key(&number, |(i, _)| *i).ok()
    }
}

/// An event that can happen many times. A waiter sees every [`Notify::notify_all`] after [`Notify::wait`] was
/// *called* (not polled), so "check, call wait, check again, await" loses nothing.
#[derive(Default)]
pub struct Notify {
    state: RefCell<NotifyState>,
}

#[derive(Default)]
struct NotifyState {
    round: u64,
    waiters: Waiters,
}

impl Notify {
    /// Nothing happened yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// Wakes all who wait now.
    pub fn notify_all(&self) {
        let woken = {
            let mut s = self.state.borrow_mut();
            s.round += 1;
            std::mem::take(&mut s.waiters.queue)
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }
    /// Resolves at the next [`Notify::notify_all`].
    pub fn wait(&self) -> Notified<'_> {
        Notified { notify: self, round: self.state.borrow().round, number: None }
    }
}

/// See [`Notify::wait`].
pub struct Notified<'a> {
    notify: &'a Notify,
    round: u64,
    number: Option<u64>,
}

impl Future for Notified<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut s = this.notify.state.borrow_mut();
        if s.round != this.round {
            return Poll::Ready(());
        }
        s.waiters.wait(&mut this.number, cx);
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        self.notify.state.borrow_mut().waiters.leave(self.number);
    }
}

/// The other side was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

struct Channel<T> {
    queue: VecDeque<T>,
    bound: usize,
    senders: usize,
    receiving: bool,
    receiver: Option<Waker>,
    waiters: Waiters,
}

/// The end of a channel that values are put in. Can be cloned.
pub struct Sender<T>(Rc<RefCell<Channel<T>>>);
/// The end of a channel that values come out of.
pub struct Receiver<T>(Rc<RefCell<Channel<T>>>);

/// A queue of at most `bound` values (at least one).
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(RefCell::new(Channel {
        queue: VecDeque::new(),
        bound: bound.max(1),
        senders: 1,
        receiving: true,
        receiver: None,
        waiters: Waiters::default(),
    }));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Puts a value in if there is room and a receiver; gives it back otherwise.
    pub fn try_send(&self, value: T) -> Result<(), T> {
        let waker = {
            let mut c = self.0.borrow_mut();
            if !c.receiving || c.queue.len() >= c.bound {
                return Err(value);
            }
            c.queue.push_back(value);
            c.receiver.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
        Ok(())
    }
    /// Waits for room. The value is lost if the receiver is gone.
    pub async fn send(&self, value: T) -> Result<(), Closed> {
        let mut value = Some(value);
        let mut waiting = WaitGuard { channel: &self.0, number: None };
        // Not a `move` closure: that would copy the guard's fields, and the guard would not know its number.
        poll_fn(|cx| {
            if !waiting.channel.borrow().receiving {
                return Poll::Ready(Err(Closed));
            }
            let Some(v) = value.take() else { return Poll::Ready(Ok(())) };
            match self.try_send(v) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(v) => {
                    value = Some(v);
                    waiting.channel.borrow_mut().waiters.wait(&mut waiting.number, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }
    /// Whether nobody will receive any more.
    pub fn is_closed(&self) -> bool {
        !self.0.borrow().receiving
    }
}

struct WaitGuard<'a, T> {
    channel: &'a Rc<RefCell<Channel<T>>>,
    number: Option<u64>,
}
impl<T> Drop for WaitGuard<'_, T> {
    fn drop(&mut self) {
        if self.number.is_none() {
            return;
        }
        // Woken for room that it will not use: pass the room on.
        let mut c = self.channel.borrow_mut();
        let passed = if c.waiters.leave(self.number) { None } else { c.room() };
        drop(c);
        if let Some(w) = passed {
            w.wake();
        }
    }
}

impl<T> Channel<T> {
    /// The sender that may use free room.
    fn room(&mut self) -> Option<Waker> {
        if self.queue.len() < self.bound {
            self.waiters.queue.pop_front().map(|(_, w)| w)
        } else {
            None
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.borrow_mut().senders += 1;
        Self(self.0.clone())
    }
}
impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut c = self.0.borrow_mut();
            c.senders -= 1;
            if c.senders == 0 { c.receiver.take() } else { None }
        };
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next value; None when all senders are gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }
    /// See [`Receiver::recv`].
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(v) = self.try_recv() {
            return Poll::Ready(Some(v));
        }
        let mut c = self.0.borrow_mut();
        if c.senders == 0 {
            return Poll::Ready(None);
        }
        c.receiver = Some(cx.waker().clone());
        Poll::Pending
    }
    /// A value that is there already.
    pub fn try_recv(&mut self) -> Option<T> {
        let (value, waker) = {
            let mut c = self.0.borrow_mut();
            let value = c.queue.pop_front()?;
            let waker = c.room();
            (value, waker)
        };
        if let Some(w) = waker {
            w.wake();
        }
        Some(value)
    }
}
impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let (values, woken) = {
            let mut c = self.0.borrow_mut();
            c.receiving = false;
            (std::mem::take(&mut c.queue), std::mem::take(&mut c.waiters.queue))
        };
        drop(values);
        for (_, w) in woken {
            w.wake();
        }
    }
}

/// A number of permits; those who wait are served in their order.
pub struct Semaphore(Rc<RefCell<Permits>>);

struct Permits {
    free: usize,
    waiters: VecDeque<(u64, usize, Waker)>,
    granted: Vec<u64>,
    next: u64,
}

/// Held permits; given back when dropped.
pub struct Permit {
    permits: Rc<RefCell<Permits>>,
    count: usize,
}

impl Semaphore {
    /// `count` permits.
    pub fn new(count: usize) -> Self {
        let permits =
            Permits { free: count, waiters: VecDeque::new(), granted: Vec::new(), next: 0 };
        Self(Rc::new(RefCell::new(permits)))
    }
    /// Takes `count` permits if they are free and nobody waits.
    pub fn try_acquire(&self, count: usize) -> Option<Permit> {
        let mut p = self.0.borrow_mut();
        if !p.waiters.is_empty() || p.free < count {
            return None;
        }
        p.free -= count;
        Some(Permit { permits: self.0.clone(), count })
    }
    /// Waits for `count` permits.
    pub fn acquire(&self, count: usize) -> Acquire {
        Acquire { permits: self.0.clone(), count, number: None }
    }
    /// Free permits now.
    pub fn free(&self) -> usize {
        self.0.borrow().free
    }
}

/// See [`Semaphore::acquire`].
pub struct Acquire {
    permits: Rc<RefCell<Permits>>,
    count: usize,
    number: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut p = this.permits.borrow_mut();
        let permit = || Permit { permits: this.permits.clone(), count: this.count };
        if let Some(n) = this.number {
            if let Some(i) = p.granted.iter().position(|g| *g == n) {
                p.granted.swap_remove(i);
                this.number = None;
                return Poll::Ready(permit());
            }
            if let Some(w) = p.waiters.iter_mut().find(|w| w.0 == n) {
                w.2.clone_from(cx.waker());
            }
            return Poll::Pending;
        }
        if p.waiters.is_empty() && p.free >= this.count {
            p.free -= this.count;
            return Poll::Ready(permit());
        }
        p.next += 1;
        let n = p.next;
        p.waiters.push_back((n, this.count, cx.waker().clone()));
        this.number = Some(n);
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(n) = self.number else { return };
        let mut p = self.permits.borrow_mut();
        p.waiters.retain(|w| w.0 != n);
        if let Some(i) = p.granted.iter().position(|g| *g == n) {
            p.granted.swap_remove(i);
            p.free += self.count;
        }
        let woken = p.grant();
        drop(p);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Permits {
    fn grant(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while self.waiters.front().is_some_and(|w| w.1 <= self.free) {
            let Some((n, count, waker)) = self.waiters.pop_front() else { break };
            self.free -= count;
            self.granted.push(n);
            woken.push(waker);
        }
        woken
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut p = self.permits.borrow_mut();
        p.free += self.count;
        let woken = p.grant();
        drop(p);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Runs futures side by side in this task; their results in their order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Result<F::Output, Pin<Box<F>>>> =
        futures.into_iter().map(|f| Err(Box::pin(f))).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for slot in &mut running {
            if let Err(future) = slot {
                match future.as_mut().poll(cx) {
                    Poll::Ready(out) => *slot = Ok(out),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(Result::ok).collect()
}

/// Runs two futures side by side in this task until both are done.
pub async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut left, mut right) = (None, None);
    poll_fn(|cx| {
        if left.is_none()
            && let Poll::Ready(out) = a.as_mut().poll(cx)
        {
            left = Some(out);
        }
        if right.is_none()
            && let Poll::Ready(out) = b.as_mut().poll(cx)
        {
            right = Some(out);
        }
        match (left.take(), right.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            rest => {
                (left, right) = rest;
                Poll::Pending
            }
        }
    })
    .await
}

/// Which of two was first.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first one.
    Left(A),
    /// The second one.
    Right(B),
}

/// Runs two futures side by side until one is done (the first one, if both are); the other is dropped.
pub async fn select<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(out) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(out));
        }
        b.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

#[cfg(test)]
mod tests;
