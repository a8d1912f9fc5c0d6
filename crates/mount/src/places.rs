//! Under which name the kernel has a directory ([`Places`]).
//!
//! Of a directory the kernel has one entry. A look-up that finds the directory elsewhere takes the entry along, unless that needs a lock that the kernel
//! has to try for and does not get (`__d_unalias` in `fs/dcache.c`): then the look-up ends with ESTALE, and the entry stays where it was. So what the
//! kernel was told last may not be what it has, and the places from before count until it has been made to forget them ([`crate::astray`]), or was told that
//! something else is there: then the entry there is that one's, and must be left alone.

use crate::moves::Place;
use glowfs_types::InodeId;
use std::cell::RefCell;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::btree_set::BTreeSet;

/// Places from before that are remembered of a directory. With more, a rename of it may fail once.
const BEFORE_MAX: usize = 4;

/// Where the kernel may have one directory.
struct Of {
    /// Where it was told of it last.
    now: Place,
    /// Where it may have it still, in other directories. The oldest first.
    before: Vec<Place>,
}

#[derive(Default)]
struct Table {
    of: BTreeMap<InodeId, Of>,
    /// What stands in any [`Of::before`], by the place.
    before: BTreeSet<(Place, InodeId)>,
}

/// See the module.
#[derive(Default)]
pub struct Places(RefCell<Table>);

impl Places {
    /// The kernel is told that a directory is here. Returns where it may have it instead, in other directories.
    pub fn tell(&self, inode: InodeId, dir: InodeId, name: &[u8]) -> Vec<Place> {
        let table = &mut *self.0.borrow_mut();
        let place = (dir, name.to_vec());
        table.taken(&place, None);
        let of = match table.of.entry(inode) {
            Entry::Vacant(new) => {
                new.insert(Of { now: place, before: Vec::new() });
                return Vec::new();
            }
            Entry::Occupied(of) => of.into_mut(),
        };
        let before = std::mem::replace(&mut of.now, place);
        // Within one directory the kernel needs no further lock.
        if before.0 != dir {
            table.remember(inode, before);
        }
        table.of.get(&inode).map_or(Vec::new(), |of| of.before.clone())
    }

    /// The kernel is told that here is nothing, or something that is no directory.
    pub fn tell_other(&self, dir: InodeId, name: &[u8]) {
        let mut table = self.0.borrow_mut();
        // The rule, and this is asked at every look-up.
        if !table.before.is_empty() {
            table.taken(&(dir, name.to_vec()), None);
        }
    }

    /// A rename of ours took a directory, or with `exchanged` one of both, from one of these to the other.
    pub fn moved(&self, inode: InodeId, from: &Place, to: &Place, exchanged: bool) {
        let table = &mut *self.0.borrow_mut();
        let Some(of) = table.of.get_mut(&inode) else { return };
        let arrives = if of.now == *from {
            of.now = to.clone();
            to
        } else if exchanged && of.now == *to {
            of.now = from.clone();
            from
        } else {
            // It was found elsewhere meanwhile. The kernel takes its entry along all the same.
            table.remember(inode, to.clone());
            to
        };
        table.taken(arrives, Some(inode));
    }

    /// Whether the kernel may have the directory there still, where it was before.
    pub fn may_be(&self, inode: InodeId, place: &Place) -> bool {
        self.0.borrow().before.contains(&(place.clone(), inode))
    }

    /// The kernel has no entry of the directory there any more.
    pub fn left(&self, inode: InodeId, place: &Place) {
        self.0.borrow_mut().left(inode, place);
    }

    /// The kernel has forgotten the inode.
    pub fn forget(&self, inode: InodeId) {
        let mut table = self.0.borrow_mut();
        if let Some(of) = table.of.remove(&inode) {
            for place in of.before {
                table.before.remove(&(place, inode));
            }
        }
    }
}

impl Table {
    /// The entry here is of nobody who was here before, but for this one.
    fn taken(&mut self, place: &Place, by: Option<InodeId>) {
        if self.before.is_empty() {
            return;
        }
        let all = (place.clone(), InodeId(0))..=(place.clone(), InodeId(u64::MAX));
        let who: Vec<InodeId> = self.before.range(all).map(|b| b.1).collect();
        who.into_iter().filter(|i| Some(*i) != by).for_each(|i| self.left(i, place));
    }

    fn left(&mut self, inode: InodeId, place: &Place) {
        if self.before.remove(&(place.clone(), inode))
            && let Some(of) = self.of.get_mut(&inode)
        {
            of.before.retain(|p| p != place);
        }
    }

    fn remember(&mut self, inode: InodeId, place: Place) {
        let Some(of) = self.of.get_mut(&inode) else { return };
        if !self.before.insert((place.clone(), inode)) {
            return;
        }
        of.before.push(place);
        if of.before.len() > BEFORE_MAX {
            let oldest = of.before.remove(0);
            self.before.remove(&(oldest, inode));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: InodeId = InodeId(1);
    const E: InodeId = InodeId(2);
    /// The directory that moves, and another one.
    const X: InodeId = InodeId(8);
    const Y: InodeId = InodeId(9);

    fn at(dir: InodeId, name: &str) -> Place {
        (dir, name.into())
    }

    #[test]
    fn where_it_was_counts_until_the_kernel_has_forgotten_it() {
        let p = Places::default();
        assert_eq!(p.tell(X, D, b"x"), []);
        assert_eq!(p.tell(X, D, b"x"), []);
        assert_eq!(p.tell(X, E, b"x"), [at(D, "x")]);
        assert_eq!(p.tell(X, E, b"x"), [at(D, "x")], "told again");
        assert_eq!(p.tell(X, E, b"y"), [at(D, "x")], "no lock is needed within a directory");
        assert_eq!(p.tell(X, D, b"x"), [at(E, "y")], "back again");
        assert!(p.may_be(X, &at(E, "y")) && !p.may_be(X, &at(D, "x")));
        p.left(X, &at(E, "y"));
        assert_eq!(p.tell(X, D, b"x"), []);
        for i in 0..10 {
            p.tell(X, InodeId(10 + i), b"x");
        }
        assert_eq!(p.tell(X, InodeId(19), b"x").len(), BEFORE_MAX);
        assert_eq!(p.0.borrow().before.len(), BEFORE_MAX);
        p.forget(X);
        assert!(p.0.borrow().of.is_empty() && p.0.borrow().before.is_empty());
    }

    #[test]
    fn it_goes_along_with_a_rename_of_ours() {
        let p = Places::default();
        p.tell(X, D, b"x");
        p.moved(X, &at(D, "x"), &at(E, "y"), false);
        assert_eq!(p.tell(X, E, b"y"), []);
        p.moved(X, &at(D, "a"), &at(E, "y"), true);
        assert_eq!(p.tell(X, D, b"a"), []);
        // Found elsewhere while the rename was on its way.
        p.moved(X, &at(D, "x"), &at(E, "z"), false);
        assert_eq!(p.tell(X, D, b"a"), [at(E, "z")]);
    }

    #[test]
    fn where_something_else_is_now_it_is_not_any_more() {
        let p = Places::default();
        let gone_astray = || {
            p.tell(X, D, b"x");
            assert_eq!(p.tell(X, E, b"x"), [at(D, "x")]);
        };
        gone_astray();
        p.tell(Y, D, b"x");
        assert_eq!(p.tell(X, E, b"x"), [], "another directory is there");
        gone_astray();
        p.tell_other(D, b"x");
        assert_eq!(p.tell(X, E, b"x"), [], "a file, or nothing");
        gone_astray();
        p.tell(Y, D, b"y");
        p.moved(Y, &at(D, "y"), &at(D, "x"), false);
        assert_eq!(p.tell(X, E, b"x"), [], "we have moved another one there");
        // The kernel has taken it along, and may have it there.
        p.moved(X, &at(D, "z"), &at(D, "x"), false);
        assert_eq!(p.tell(X, E, b"x"), [at(D, "x")]);
        assert!(p.may_be(X, &at(D, "x")) && !p.may_be(Y, &at(D, "x")));
    }
}
