//! Timers: a heap of moments and wakers. Setting and cancelling is O(log n) amortised; equal moments fire in the
//! order in which they were set.

use crate::Instant;
use slab::Slab;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

/// Cancelled entries stay in the heap until they are more than this and more than half of it.
const STALE_MIN: usize = 64;

/// The timers of one thread (or one simulated node).
#[derive(Default)]
pub struct Timers(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    /// (moment, order of setting, slot).
    heap: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// The live ones: (order of setting, waker).
    slots: Slab<(u64, Waker)>,
    sequence: u64,
}

/// Slots are numbered below this, so that (sequence, slot) fits a key.
const SLOT_BITS: u32 = 24;

impl Timers {
    /// Sets one; the key cancels it.
    pub fn set(&self, at: Instant, waker: Waker) -> u64 {
        let mut inner = self.0.borrow_mut();
        inner.sequence += 1;
        let sequence = inner.sequence;
        let slot = inner.slots.insert((sequence, waker));
        assert!(slot < 1 << SLOT_BITS, "more than {} timers", 1 << SLOT_BITS);
        inner.heap.push(Reverse((at, sequence, slot)));
        (sequence << SLOT_BITS) | slot as u64
    }
    /// Forgets one; a key that fired is ignored.
    pub fn cancel(&self, key: u64) {
        let waker = {
            let mut inner = self.0.borrow_mut();
            let slot = (key & ((1 << SLOT_BITS) - 1)) as usize;
            let live = inner
                .slots
                .get(slot)
                .is_some_and(|(s, _)| s << SLOT_BITS == key & !((1 << SLOT_BITS) - 1));
            let waker = live.then(|| inner.slots.remove(slot).1);
            inner.purge();
            waker
        };
        drop(waker);
    }
    /// The earliest moment.
    pub fn next(&self) -> Option<Instant> {
        let mut inner = self.0.borrow_mut();
        while let Some(&Reverse((at, sequence, slot))) = inner.heap.peek() {
            if inner.is_live(sequence, slot) {
                return Some(at);
            }
            inner.heap.pop();
        }
        None
    }
    /// Wakes what is due at `now`.
    pub fn fire(&self, now: Instant) {
        while let Some(at) = self.next() {
            if at > now {
                return;
            }
            let waker = {
                let mut inner = self.0.borrow_mut();
                let Some(Reverse((_, _, slot))) = inner.heap.pop() else { return };
                inner.slots.remove(slot).1
            };
            waker.wake();
        }
    }
    /// Forgets all.
    pub fn clear(&self) {
        let old = std::mem::take(&mut *self.0.borrow_mut());
        self.0.borrow_mut().sequence = old.sequence;
        drop(old);
    }
}

impl Inner {
    fn is_live(&self, sequence: u64, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|(s, _)| *s == sequence)
    }
    fn purge(&mut self) {
        let stale = self.heap.len() - self.slots.len();
        if stale > STALE_MIN && stale > self.slots.len() {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|Reverse((_, sequence, slot))| self.is_live(*sequence, *slot));
            self.heap = entries.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    struct Note(u32, Arc<Mutex<Vec<u32>>>);
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("lock").push(self.0);
        }
    }

    #[test]
    fn fires_in_order_and_forgets_cancelled_ones() {
        let timers = Timers::default();
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |n| Waker::from(Arc::new(Note(n, log.clone())));
        timers.set(Instant(30), note(3));
        timers.set(Instant(10), note(1));
        let key = timers.set(Instant(20), note(9));
        timers.set(Instant(20), note(2));
        timers.cancel(key);
        timers.cancel(key);
        assert_eq!(timers.next(), Some(Instant(10)));
        timers.fire(Instant(25));
        assert_eq!(*log.lock().expect("lock"), [1, 2]);
        timers.fire(Instant(30));
        assert_eq!(*log.lock().expect("lock"), [1, 2, 3]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn an_old_key_does_not_cancel_the_slots_next_timer() {
        let timers = Timers::default();
        let old = timers.set(Instant(1), Waker::noop().clone());
        timers.fire(Instant(1));
        timers.set(Instant(2), Waker::noop().clone());
        timers.cancel(old);
        assert_eq!(timers.next(), Some(Instant(2)));
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let timers = Timers::default();
        for i in 0..10_000 {
            let key = timers.set(Instant(1_000_000 + i), Waker::noop().clone());
            timers.cancel(key);
        }
        assert!(timers.0.borrow().heap.len() <= 2 * STALE_MIN);
    }
}
