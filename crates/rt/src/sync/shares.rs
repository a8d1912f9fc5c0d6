//! [`Shares`]: places of which there is a bounded number, and nobody may have all.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module. Who asks gets one more while more are free than he has: the first one alone gets half of them, the second half of the rest, and so there is
/// always something left for one who comes later.
pub struct Shares<K>(Rc<Taken<K>>);

struct Taken<K> {
    most: usize,
    all: Cell<usize>,
    /// Only those who have some.
    of: RefCell<BTreeMap<K, usize>>,
}

/// One place; given back when dropped.
pub struct Share<K: Ord> {
    taken: Rc<Taken<K>>,
    who: K,
}

impl<K: Ord + Clone> Shares<K> {
    /// So many in all.
    pub fn new(most: usize) -> Self {
        Self(Rc::new(Taken { most, all: Cell::new(0), of: RefCell::default() }))
    }
    /// One of them; None: he has his share.
    pub fn take(&self, who: K) -> Option<Share<K>> {
        let mut of = self.0.of.borrow_mut();
        let has = of.get(&who).copied().unwrap_or(0);
        if has >= self.0.most.saturating_sub(self.0.all.get()) {
            return None;
        }
        of.insert(who.clone(), has + 1);
        self.0.all.set(self.0.all.get() + 1);
        Some(Share { taken: self.0.clone(), who })
    }
    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.0.all.get()
    }
}

impl<K: Ord> Drop for Share<K> {
    fn drop(&mut self) {
        let mut of = self.taken.of.borrow_mut();
        if let Some(has) = of.get_mut(&self.who) {
            *has -= 1;
            if *has == 0 {
                of.remove(&self.who);
            }
            self.taken.all.set(self.taken.all.get() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_he_gets_leaves_something_to_others() {
        let shares = Shares::new(64);
        let all = |who| std::iter::from_fn(|| shares.take(who)).collect::<Vec<_>>();
        let first = all(1);
        assert_eq!(first.len(), 32);
        let others: Vec<_> = (2..6).map(all).collect();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [16, 8, 4, 2]);
        assert!(shares.take(1).is_none());
        drop((first, others));
        assert_eq!(all(7).len(), 32, "given back");
        assert!(shares.0.of.borrow().is_empty() && shares.taken() == 0);
    }
}
