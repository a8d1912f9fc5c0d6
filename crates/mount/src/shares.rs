//! [`Shares`]: things of which a mount has a bounded number, and no user may have all.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module. A user gets one more while more are free than he has: the first one alone gets half of them, the second half of the rest, and so there is
/// always something left for one who comes later.
pub struct Shares(Rc<Taken>);

struct Taken {
    most: usize,
    all: Cell<usize>,
    /// By user; only those who have some.
    of_user: RefCell<BTreeMap<u32, usize>>,
}

/// One of them; given back when dropped.
pub struct Share {
    of: Rc<Taken>,
    user: u32,
}

impl Shares {
    /// So many in all.
    pub fn new(most: usize) -> Self {
        Self(Rc::new(Taken { most, all: Cell::new(0), of_user: RefCell::default() }))
    }
    /// One for a user; None: he has his share.
    pub fn take(&self, user: u32) -> Option<Share> {
        let mut users = self.0.of_user.borrow_mut();
        let has = users.get(&user).copied().unwrap_or(0);
        if has >= self.0.most - self.0.all.get() {
            return None;
        }
        users.insert(user, has + 1);
        self.0.all.set(self.0.all.get() + 1);
        Some(Share { of: self.0.clone(), user })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut users = self.of.of_user.borrow_mut();
        if let Some(has) = users.get_mut(&self.user) {
            *has -= 1;
            if *has == 0 {
                users.remove(&self.user);
            }
            self.of.all.set(self.of.all.get() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_he_gets_leaves_something_to_others() {
        let shares = Shares::new(64);
        let all = |user| std::iter::from_fn(|| shares.take(user)).collect::<Vec<_>>();
        let first = all(1);
        assert_eq!(first.len(), 32);
        let others: Vec<_> = (2..6).map(all).collect();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [16, 8, 4, 2]);
        assert!(shares.take(1).is_none());
        drop((first, others));
        assert_eq!(all(7).len(), 32, "given back");
        assert!(shares.0.of_user.borrow().is_empty() && shares.0.all.get() == 0);
    }
}
