//! How much of the background work one transaction takes.
//!
//! Engines differ in what fits into one: etcd counts each key that was read, 128 by default. What is too much once is halved from then on, so the
//! work goes on with every engine.

use glowfs_types::{Error, Result, Status};
use std::cell::Cell;

/// Items of a transaction. See the module.
pub struct Portions(Cell<usize>);

impl Portions {
    /// At most `most` at first.
    pub fn new(most: usize) -> Self {
        Self(Cell::new(most.max(1)))
    }

    /// The present number.
    pub fn items(&self) -> usize {
        self.0.get()
    }

    /// Halves it if it was too much for the engine. Whether to try again.
    pub fn smaller(&self, items: usize, status: Status) -> bool {
        let again = status == Status::TooLarge && items > 1;
        if again {
            self.0.set(self.items().min(items / 2));
        }
        again
    }

    /// Does work on all items, some at a time; `work` is one transaction. An error ends it: what was done before stays done.
    pub async fn each<T, R>(
        &self,
        items: &[T],
        work: impl AsyncFn(&[T]) -> Result<R>,
    ) -> Result<Vec<R>> {
        let (mut left, mut done) = (items, Vec::new());
        while !left.is_empty() {
            let (some, rest) = left.split_at(self.items().min(left.len()));
            match work(some).await {
                Ok(result) => {
                    done.push(result);
                    left = rest;
                }
                Err(e) if self.smaller(some.len(), e.status) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// The same where what is damaged must not keep the others: it is looked for by halves, told to `damaged`, and passed over.
    pub async fn each_sound<T, R>(
        &self,
        items: &[T],
        work: impl AsyncFn(&[T]) -> Result<R>,
        mut damaged: impl FnMut(&T, &Error),
    ) -> Result<Vec<R>> {
        let (mut left, mut done) = (vec![items], Vec::new());
        while let Some(items) = left.pop() {
            let (some, rest) = items.split_at(self.items().min(items.len()));
            if some.is_empty() {
                continue;
            }
            left.push(rest);
            match work(some).await {
                Ok(result) => done.push(result),
                Err(e) if self.smaller(some.len(), e.status) => left.push(some),
                Err(e) if e.status == Status::Corrupt => match some {
                    [one] => damaged(one, &e),
                    _ => {
                        let (first, second) = some.split_at(some.len() / 2);
                        left.extend([second, first]);
                    }
                },
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Files beyond what etcd takes in one transaction were never erased.
    #[test]
    fn work_goes_on_whatever_fits_into_a_transaction() {
        glowfs_rt::real::run(|_| async move {
            let items: Vec<u32> = (0..500).collect();
            for fits in [1, 2, 25, 42, 256] {
                let (portions, seen) = (Portions::new(256), RefCell::new(Vec::new()));
                let work = async |some: &[u32]| {
                    if some.len() > fits {
                        return Err(Status::TooLarge.into());
                    }
                    seen.borrow_mut().extend_from_slice(some);
                    Ok(some.len())
                };
                let done = portions.each(&items, work).await.expect("done");
                assert_eq!(done.iter().sum::<usize>(), 500);
                assert_eq!(seen.take(), items);
                assert!(portions.items() <= fits && portions.items() * 2 > fits, "{fits}");
            }
        });
    }

    /// One damaged record stopped the erasing of all files, for good.
    #[test]
    fn what_is_damaged_does_not_keep_the_others() {
        glowfs_rt::real::run(|_| async move {
            let items: Vec<u32> = (0..500).collect();
            for bad in [vec![], vec![0], vec![7, 8, 255, 256, 499], items.clone()] {
                let (portions, seen) = (Portions::new(256), RefCell::new(Vec::new()));
                let work = async |some: &[u32]| {
                    if some.len() > 100 {
                        return Err(Status::TooLarge.into());
                    }
                    if some.iter().any(|i| bad.contains(i)) {
                        return Err(Status::Corrupt.into());
                    }
                    seen.borrow_mut().extend_from_slice(some);
                    Ok(())
                };
                let mut passed_over = Vec::new();
                let damaged = |i: &u32, _: &Error| passed_over.push(*i);
                portions.each_sound(&items, work, damaged).await.expect("done");
                assert_eq!(passed_over, bad);
                let sound: Vec<u32> = items.iter().copied().filter(|i| !bad.contains(i)).collect();
                assert_eq!(seen.take(), sound);
                assert_eq!(portions.items(), 64, "halved for what is too large only");
            }
        });
    }

    #[test]
    fn what_does_not_fit_alone_is_an_error() {
        glowfs_rt::real::run(|_| async move {
            let too_large = async |_: &[u32]| -> Result<()> { Err(Status::TooLarge.into()) };
            let e = Portions::new(8).each(&[1, 2, 3], too_large).await.expect_err("never fits");
            assert_eq!(e.status, Status::TooLarge);
        });
    }
}
