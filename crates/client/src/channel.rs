//! Channels: lanes with at most one write outstanding, whose sequence numbers let the chain apply a retry once.
//!
//! Guarantees: a channel is held by one write at a time; every new write takes a sequence number greater than all
//! before it on that channel; a channel whose last outcome is unknown is never used again.

use glowfs_rt::sync::{Permit, Semaphore};
use glowfs_types::{ChannelId, Seq};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The channels of one client.
pub struct ChannelPool {
    slots: Semaphore,
    idle: RefCell<Vec<(ChannelId, Seq)>>,
    next: Cell<u64>,
}

/// A channel held for one write.
pub struct Held {
    pool: Rc<ChannelPool>,
    _slot: Permit,
    /// The channel.
    pub channel: ChannelId,
    /// The number of this write; its retries carry the same.
    pub seq: Seq,
    known: bool,
}

impl ChannelPool {
    /// At most `max` channels in use at once.
    pub fn new(max: usize) -> Rc<Self> {
        Rc::new(Self {
            slots: Semaphore::new(max.max(1)),
            idle: RefCell::new(Vec::new()),
            next: Cell::new(1),
        })
    }
    /// Waits (first come, first served) for a channel and takes the next number on it.
    pub async fn take(self: &Rc<Self>) -> Held {
        let slot = self.slots.acquire(1).await;
        let (channel, last) = self.idle.borrow_mut().pop().unwrap_or_else(|| {
            let id = self.next.get();
            self.next.set(id + 1);
            (ChannelId(id), Seq(0))
        });
        Held { pool: self.clone(), _slot: slot, channel, seq: last.next(), known: false }
    }
}

impl Held {
    /// The outcome of the write is known for certain: the channel may be used again.
    pub fn settle(mut self) {
        self.known = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Without `settle` (cancelled, or given up) a late copy of the write may still arrive somewhere: the channel is
        // retired, and a new one takes its slot.
        if self.known {
            self.pool.idle.borrow_mut().push((self.channel, self.seq));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    fn poll_once<F: Future + Unpin>(f: &mut F) -> Option<F::Output> {
        match Pin::new(f).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }
    fn run<F: Future>(f: F) -> F::Output {
        poll_once(&mut Box::pin(f)).expect("must not wait")
    }

    #[test]
    fn numbers_grow_and_unknown_outcomes_retire() {
        let pool = ChannelPool::new(2);
        let a = run(pool.take());
        assert_eq!((a.channel, a.seq), (ChannelId(1), Seq(1)));
        a.settle();
        let a = run(pool.take());
        assert_eq!((a.channel, a.seq), (ChannelId(1), Seq(2)));
        drop(a); // cancelled: unknown
        let b = run(pool.take());
        assert_eq!((b.channel, b.seq), (ChannelId(2), Seq(1)));
    }

    #[test]
    fn the_bound_holds_and_waiters_come_in_order() {
        let pool = ChannelPool::new(1);
        let a = run(pool.take());
        let mut second = Box::pin(pool.take());
        let mut third = Box::pin(pool.take());
        assert!(poll_once(&mut second).is_none());
        assert!(poll_once(&mut third).is_none());
        a.settle();
        assert!(poll_once(&mut third).is_none(), "the second is first");
        let b = poll_once(&mut second).expect("free");
        assert_eq!(b.seq, Seq(2));
        drop(b);
        assert_eq!(poll_once(&mut third).expect("free").channel, ChannelId(2));
    }
}
