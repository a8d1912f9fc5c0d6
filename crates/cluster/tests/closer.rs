//! Numbers of which only the order matters, and the distances up to some bound, get new names; so that walks (`walk/mod.rs`) take worlds for one that differ in nothing else.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

/// The same numbers, in the same order, with no more than `gap` between two neighbours; one of them has a name that is given. What is nearer than `gap` to another one is so afterwards, by as
/// much, and nothing else is.
pub fn closer(all: BTreeSet<u64>, gap: u64, one: u64, name: u64) -> BTreeMap<u64, u64> {
    let mut names = BTreeMap::new();
    let (mut last, mut next) = (one, name);
    for n in all.range(one..) {
        next += (n - last).min(gap);
        last = *n;
        names.insert(*n, next);
    }
    let (mut last, mut next) = (one, name);
    for n in all.range(..one).rev() {
        next -= (last - n).min(gap);
        last = *n;
        names.insert(*n, next);
    }
    names
}
