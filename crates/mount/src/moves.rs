//! Where this mount has renamed names to, a moment ago: the kernel takes what it knows of the old name along to the new one.
//!
//! After a rename Linux moves its entry of the old name to the new one, with the inode that it had there and for as long as that was leased
//! (`vfs_rename` and `d_move`), although another client may have put another inode there before meta carried the rename out. The recall of
//! that other change names the old name only. So whoever is told to forget a name forgets also where it was moved to since: [`Moves::follow`].
//!
//! Must never forget a move while something that it took along may still be leased.

use glowfs_rt::Instant;
use glowfs_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Moves that are remembered.
const MOVES_MAX: usize = 1 << 16;

/// A directory and a name in it.
pub type Place = (InodeId, Vec<u8>);

#[derive(Default)]
struct Table {
    /// Where a name was moved to, and how often: moves that are on their way or not forgotten yet.
    to: BTreeMap<Place, BTreeMap<Place, u32>>,
    /// What ended, and until when it counts. In order of that time, but for leases that have become longer.
    ended: VecDeque<(Instant, Place, Place)>,
}

/// See the module.
#[derive(Default)]
pub struct Moves {
    table: RefCell<Table>,
    /// Moves were not noted, and may count until then.
    missed: Cell<Instant>,
    /// So many of those are on their way.
    missing: Cell<u32>,
}

/// A move that is on its way. Dropped unended it counts for ever: end it whatever became of it.
pub struct Move {
    moves: Rc<Moves>,
    noted: Option<(Place, Place)>,
}

/// What else has to be forgotten.
#[derive(PartialEq, Eq, Debug)]
pub enum Follow {
    /// These names.
    Names(Vec<Place>),
    /// Nobody knows: too many moves. What was taken along is leased until then at the longest.
    Until(Instant),
}

impl Moves {
    /// A rename begins.
    pub fn begin(self: &Rc<Self>, from: Place, to: Place) -> Move {
        let mut table = self.table.borrow_mut();
        if table.to.len() >= MOVES_MAX {
            self.missing.set(self.missing.get() + 1);
            return Move { moves: self.clone(), noted: None };
        }
        *table.to.entry(from.clone()).or_default().entry(to.clone()).or_insert(0) += 1;
        Move { moves: self.clone(), noted: Some((from, to)) }
    }

    /// Where `place` was moved to by moves that count at `now`, and what was moved there on. Moves that are on their way last at most until `longest`.
    pub fn follow(&self, place: &Place, now: Instant, longest: Instant) -> Follow {
        self.forget(now);
        if self.missing.get() > 0 {
            return Follow::Until(longest);
        }
        if self.missed.get() > now {
            return Follow::Until(self.missed.get());
        }
        let table = self.table.borrow();
        let (mut seen, mut ahead) = (BTreeSet::from([place]), vec![place]);
        let mut found = Vec::new();
        while let Some(at) = ahead.pop() {
            for to in table.to.get(at).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to) {
                    ahead.push(to);
                    found.push(to.clone());
                }
            }
        }
        Follow::Names(found)
    }

    fn forget(&self, now: Instant) {
        let mut table = self.table.borrow_mut();
        let Table { to, ended } = &mut *table;
        while let Some((_, from, at)) = ended.pop_front_if(|(until, ..)| *until <= now) {
            let Some(places) = to.get_mut(&from) else { continue };
            if let Some(count) = places.get_mut(&at) {
                *count -= 1;
                if *count == 0 {
                    places.remove(&at);
                }
            }
            if places.is_empty() {
                to.remove(&from);
            }
        }
    }
}

impl Move {
    /// It is over, whatever came of it; what it took along is leased until then at the longest.
    pub fn end(self, now: Instant, until: Instant) {
        let m = &self.moves;
        match self.noted {
            Some((from, to)) => {
                m.table.borrow_mut().ended.push_back((until, from, to));
                m.forget(now);
            }
            None => {
                m.missing.set(m.missing.get() - 1);
                m.missed.set(m.missed.get().max(until));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(10);
    const LATER: Instant = Instant(20);
    const LONGEST: Instant = Instant(30);

    fn at(dir: u64, name: &str) -> Place {
        (InodeId(dir), name.into())
    }
    fn moved(moves: &Rc<Moves>, from: &str, to: &str) {
        moves.begin(at(1, from), at(1, to)).end(NOW, LATER);
    }
    fn names(moves: &Moves, now: Instant) -> Vec<Place> {
        match moves.follow(&at(1, "a"), now, LONGEST) {
            Follow::Names(names) => names,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_moved_on_is_followed_until_it_is_not_leased() {
        let moves = Rc::new(Moves::default());
        assert_eq!(names(&moves, NOW), []);
        moved(&moves, "a", "b");
        moved(&moves, "b", "c");
        moved(&moves, "c", "a");
        moved(&moves, "x", "y");
        assert_eq!(names(&moves, NOW), [at(1, "b"), at(1, "c")]);
        // The same move again: each counts for itself.
        moves.begin(at(1, "a"), at(1, "b")).end(NOW, LONGEST);
        assert_eq!(names(&moves, LATER), [at(1, "b")]);
        assert_eq!(names(&moves, LONGEST), []);
        assert!(moves.table.borrow().to.is_empty() && moves.table.borrow().ended.is_empty());
    }

    #[test]
    fn a_move_that_is_on_its_way_counts() {
        let moves = Rc::new(Moves::default());
        let to = moves.begin(at(1, "a"), at(2, "b"));
        assert_eq!(names(&moves, LONGEST), [at(2, "b")]);
        to.end(NOW, LATER);
        assert_eq!(names(&moves, LATER), []);
    }

    #[test]
    fn it_is_bounded() {
        let moves = Rc::new(Moves::default());
        for i in 0..MOVES_MAX {
            moved(&moves, &format!("n{i}"), "b");
        }
        let last = moves.begin(at(1, "a"), at(1, "b"));
        assert_eq!(moves.follow(&at(1, "a"), NOW, LONGEST), Follow::Until(LONGEST));
        last.end(NOW, LATER);
        assert_eq!(moves.follow(&at(1, "a"), NOW, LONGEST), Follow::Until(LATER));
        assert_eq!(names(&moves, LATER), []);
    }
}
