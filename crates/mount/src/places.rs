//! Under which name the kernel has a directory ([`Places`]).
//!
//! Of a directory the kernel has one entry. A look-up that finds the directory elsewhere takes the entry along, unless that needs a lock that the kernel
//! has to try for and does not get (`__d_unalias` in `fs/dcache.c`): then the look-up ends with ESTALE, and the entry stays where it was. So what the
//! kernel was told last may not be what it has, and the places from before count until it has been made to forget them ([`crate::astray`]).

use crate::moves::Place;
use glowfs_types::InodeId;

/// Places from before that are remembered of a directory. With more, a rename of it may fail once.
const BEFORE_MAX: usize = 4;

/// Where the kernel may have a directory.
pub struct Places {
    /// Where it was told of it last.
    now: Place,
    /// Where it may have it still.
    before: Vec<Place>,
}

impl Places {
    /// The kernel hears of it for the first time.
    pub fn new(dir: InodeId, name: &[u8]) -> Self {
        Self { now: (dir, name.to_vec()), before: Vec::new() }
    }

    /// The kernel is told that it is here. Returns where it may have it instead, in other directories.
    pub fn tell(&mut self, dir: InodeId, name: &[u8]) -> &[Place] {
        if self.now.0 != dir || self.now.1 != name {
            let before = std::mem::replace(&mut self.now, (dir, name.to_vec()));
            self.before.retain(|p| *p != self.now);
            // Within one directory the kernel needs no further lock.
            if before.0 != dir {
                self.remember(before);
            }
        }
        &self.before
    }

    /// A rename of ours took it, or with `exchanged` one of both, from one of these to the other.
    pub fn moved(&mut self, from: &Place, to: &Place, exchanged: bool) {
        if self.now == *from {
            self.now = to.clone();
        } else if exchanged && self.now == *to {
            self.now = from.clone();
        } else {
            // It was found elsewhere meanwhile. The kernel takes its entry along all the same.
            self.remember(to.clone());
        }
    }

    /// The kernel has no entry there any more.
    pub fn left(&mut self, place: &Place) {
        self.before.retain(|p| p != place);
    }

    fn remember(&mut self, place: Place) {
        if self.before.len() >= BEFORE_MAX {
            self.before.remove(0);
        }
        self.before.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: InodeId = InodeId(1);
    const E: InodeId = InodeId(2);

    fn at(dir: InodeId, name: &str) -> Place {
        (dir, name.into())
    }

    #[test]
    fn where_it_was_counts_until_the_kernel_has_forgotten_it() {
        let mut p = Places::new(D, b"x");
        assert_eq!(p.tell(D, b"x"), []);
        assert_eq!(p.tell(E, b"x"), [at(D, "x")]);
        assert_eq!(p.tell(E, b"x"), [at(D, "x")], "told again");
        assert_eq!(p.tell(E, b"y"), [at(D, "x")], "no lock is needed within a directory");
        assert_eq!(p.tell(D, b"x"), [at(E, "y")], "back again");
        p.left(&at(E, "y"));
        assert_eq!(p.tell(D, b"x"), []);
        for i in 0..10 {
            p.tell(InodeId(10 + i), b"x");
        }
        assert_eq!(p.tell(InodeId(19), b"x").len(), BEFORE_MAX);
    }

    #[test]
    fn it_goes_along_with_a_rename_of_ours() {
        let mut p = Places::new(D, b"x");
        p.moved(&at(D, "x"), &at(E, "y"), false);
        assert_eq!(p.tell(E, b"y"), []);
        p.moved(&at(D, "a"), &at(E, "y"), true);
        assert_eq!(p.tell(D, b"a"), []);
        // Found elsewhere while the rename was on its way.
        p.moved(&at(D, "x"), &at(E, "z"), false);
        assert_eq!(p.tell(D, b"a"), [at(E, "z")]);
    }
}
