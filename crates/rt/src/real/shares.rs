//! Shares in what all directories of a runtime use together: the kernel's operations, and helper threads.
//!
//! A directory is a disk's, and a disk may hang. Guarantee: each owner has a share of its own, its work begins in its own order, and owners
//! with work that can begin take turns; so work of one owner never waits for work of another one to end. Memory for what waits is bounded by
//! whoever asks.

use slab::Slab;
use std::collections::VecDeque;

/// The owner of what belongs to no directory: messages, look-ups of names.
pub(crate) const NOBODY: usize = 0;

/// Work of several owners, of which each may have so much running at once.
pub(crate) struct Shares<T> {
    owners: Slab<Owner<T>>,
    /// Owners with work that can begin now, in the order of their turns.
    turns: VecDeque<usize>,
    /// How much of one owner runs at once, at most.
    share: usize,
    /// How much can begin now.
    startable: usize,
}

struct Owner<T> {
    running: usize,
    waiting: VecDeque<T>,
    in_turns: bool,
    /// Nothing more comes: it is forgotten when the last work has ended.
    left: bool,
}

impl<T> Owner<T> {
    fn startable(&self, share: usize) -> usize {
        self.waiting.len().min(share.saturating_sub(self.running))
    }
}

impl<T> Shares<T> {
    /// With only [`NOBODY`].
    pub(crate) fn new(share: usize) -> Self {
        let mut new =
            Self { owners: Slab::new(), turns: VecDeque::new(), share: share.max(1), startable: 0 };
        let nobody = new.add();
        debug_assert_eq!(nobody, NOBODY);
        new
    }
    /// A new owner.
    pub(crate) fn add(&mut self) -> usize {
        let owner = Owner { running: 0, waiting: VecDeque::new(), in_turns: false, left: false };
        self.owners.insert(owner)
    }
    /// An owner will not come with more. What it has running or waiting goes on.
    pub(crate) fn leave(&mut self, key: usize) {
        self.change(key, |owner| owner.left = true);
        self.forget_if_done(key);
    }
    /// How much may run at once, of all owners together.
    pub(crate) fn most(&self) -> usize {
        self.owners.len().saturating_mul(self.share)
    }
    /// How much waits though it could begin.
    pub(crate) fn startable(&self) -> usize {
        self.startable
    }
    /// Takes a place for work that begins at once; false if it has to wait its turn.
    pub(crate) fn begin_now(&mut self, key: usize) -> bool {
        let share = self.share;
        let owner = &mut self.owners[key];
        let free = owner.waiting.is_empty() && owner.running < share;
        owner.running += usize::from(free);
        free
    }
    /// Puts work behind what its owner has waiting.
    pub(crate) fn push(&mut self, key: usize, work: T) {
        if self.change(key, |owner| owner.waiting.push_back(work)) {
            self.turns.push_back(key);
        }
    }
    /// What begins next, and whose it is. It runs until [`Shares::ended`].
    pub(crate) fn next(&mut self) -> Option<(usize, T)> {
        let key = self.turns.pop_front()?;
        self.owners[key].in_turns = false;
        let mut work = None;
        let again = self.change(key, |owner| {
            work = owner.waiting.pop_front();
            owner.running += 1;
        });
        if again {
            self.turns.push_back(key);
        }
        Some((key, work?))
    }
    /// What was to run could not begin: it is the next.
    pub(crate) fn put_back(&mut self, key: usize, work: T) {
        let turn = self.change(key, |owner| {
            owner.running = owner.running.saturating_sub(1);
            owner.waiting.push_front(work);
        });
        if turn {
            self.turns.push_front(key);
        }
    }
    /// Something of an owner does not run any more.
    pub(crate) fn ended(&mut self, key: usize) {
        if self.change(key, |owner| owner.running = owner.running.saturating_sub(1)) {
            self.turns.push_back(key);
        }
        self.forget_if_done(key);
    }
    /// Changes an owner and the count of what can begin. True if it is to get a turn, and has none yet.
    fn change(&mut self, key: usize, change: impl FnOnce(&mut Owner<T>)) -> bool {
        let owner = &mut self.owners[key];
        let before = owner.startable(self.share);
        change(owner);
        let after = owner.startable(self.share);
        self.startable = self.startable + after - before;
        let turn = after > 0 && !owner.in_turns;
        owner.in_turns |= turn;
        turn
    }
    fn forget_if_done(&mut self, key: usize) {
        let owner = &self.owners[key];
        if owner.left && owner.running == 0 && owner.waiting.is_empty() {
            self.owners.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that begins now.
    fn begun(shares: &mut Shares<u32>) -> Vec<u32> {
        std::iter::from_fn(|| shares.next()).map(|(_, work)| work).collect()
    }

    #[test]
    fn owners_take_turns_and_each_keeps_its_order() {
        let mut shares = Shares::new(3);
        let (a, b) = (shares.add(), shares.add());
        (0..5).for_each(|i| shares.push(a, i));
        (10..12).for_each(|i| shares.push(b, i));
        assert_eq!(shares.startable(), 5);
        assert_eq!(begun(&mut shares), [0, 10, 1, 11, 2]);
        assert_eq!(shares.startable(), 0);
        // What hangs of one costs the other nothing, and nobody gets past what waits.
        assert!(shares.begin_now(b) && !shares.begin_now(a) && !shares.begin_now(b));
        shares.ended(a);
        assert!(!shares.begin_now(a));
        assert_eq!(shares.startable(), 1);
        assert_eq!(begun(&mut shares), [3]);
    }

    #[test]
    fn what_could_not_begin_is_the_next() {
        let mut shares = Shares::new(2);
        let (a, b) = (shares.add(), shares.add());
        (0..4).for_each(|i| shares.push(a, i));
        shares.push(b, 10);
        assert_eq!(shares.next(), Some((a, 0)));
        shares.put_back(a, 0);
        assert_eq!(shares.startable(), 3);
        assert_eq!(begun(&mut shares), [10, 0, 1]);
    }

    #[test]
    fn who_has_left_is_forgotten_when_the_last_has_ended() {
        let mut shares = Shares::new(1);
        let a = shares.add();
        (0..2).for_each(|i| shares.push(a, i));
        assert_eq!(begun(&mut shares), [0]);
        shares.leave(a);
        assert_eq!(shares.most(), 2, "it has something running");
        let other = shares.add();
        assert_ne!(other, a);
        shares.ended(a);
        assert_eq!(begun(&mut shares), [1]);
        shares.ended(a);
        assert_eq!(shares.most(), 2);
        shares.leave(other);
        assert_eq!(shares.most(), 1);
    }
}
