//! Where this mount has renamed names to, a moment ago: the kernel takes what it knows of the old name along to the new one.
//!
//! After a rename Linux moves its entry of the old name to the new one, with the inode that it had there and for as long as that was leased
//! (`vfs_rename` and `d_move`), although another client may have put another inode there before meta carried the rename out. The recall of
//! that other change names the old name only. So whoever is told to forget a name forgets also where it was moved to since ([`Moves::follow`]), and
//! looks again when one of these was moved on meanwhile ([`Moves::went_on`]): back to where it came from, perhaps.
//!
//! Must never forget a move while something that it took along may still be leased.

use glowfs_rt::Instant;
use glowfs_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Moves that are remembered.
const MOVES_MAX: usize = 1 << 16;
/// Names that are followed; where there are more it costs less to wait until nothing is leased any more.
const FOLLOWED_MAX: usize = 64;

/// A directory and a name in it.
pub type Place = (InodeId, Vec<u8>);

/// What became of a name.
#[derive(Default)]
struct Left {
    /// Where it was moved to, and how often.
    to: BTreeMap<Place, u32>,
    /// The number of the last move.
    last: u64,
}

#[derive(Default)]
struct Table {
    /// Names that were moved, by moves that are on their way or not forgotten yet.
    from: BTreeMap<Place, Left>,
    /// How many such moves there are.
    count: usize,
    /// How many moves have begun.
    begun: u64,
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
        if table.count >= MOVES_MAX {
            self.missing.set(self.missing.get() + 1);
            return Move { moves: self.clone(), noted: None };
        }
        (table.begun, table.count) = (table.begun + 1, table.count + 1);
        let number = table.begun;
        let left = table.from.entry(from.clone()).or_default();
        left.last = number;
        *left.to.entry(to.clone()).or_insert(0) += 1;
        Move { moves: self.clone(), noted: Some((from, to)) }
    }

    /// How many moves have begun.
    pub fn begun(&self) -> u64 {
        self.table.borrow().begun
    }

    /// Whether one of these places was moved on by a move that had not begun when so many had.
    pub fn went_on(&self, places: &[Place], begun: u64) -> bool {
        let table = self.table.borrow();
        let later = |p| table.from.get(p).is_some_and(|left| left.last > begun);
        self.missing.get() > 0 || places.iter().any(later)
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
            for to in table.from.get(at).into_iter().flat_map(|left| left.to.keys()) {
                if seen.insert(to) {
                    ahead.push(to);
                    found.push(to.clone());
                }
            }
            if found.len() > FOLLOWED_MAX {
                return Follow::Until(longest);
            }
        }
        Follow::Names(found)
    }

    fn forget(&self, now: Instant) {
        let mut table = self.table.borrow_mut();
        let Table { from, count, ended, .. } = &mut *table;
        while let Some((_, place, to)) = ended.pop_front_if(|(until, ..)| *until <= now) {
            *count -= 1;
            let Some(left) = from.get_mut(&place) else { continue };
            if let Some(times) = left.to.get_mut(&to) {
                *times -= 1;
                if *times == 0 {
                    left.to.remove(&to);
                }
            }
            if left.to.is_empty() {
                from.remove(&place);
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
        let table = moves.table.borrow();
        assert!(table.from.is_empty() && table.ended.is_empty() && table.count == 0);
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
    fn what_is_moved_on_meanwhile_is_noticed() {
        let moves = Rc::new(Moves::default());
        moved(&moves, "a", "b");
        let begun = moves.begun();
        let places = [at(1, "a"), at(1, "b")];
        moved(&moves, "x", "a");
        assert!(!moves.went_on(&places, begun));
        moved(&moves, "b", "a");
        assert!(moves.went_on(&places, begun));
        assert!(!moves.went_on(&places, moves.begun()));
    }

    #[test]
    fn very_many_names_are_not_followed() {
        let moves = Rc::new(Moves::default());
        for i in 0..=FOLLOWED_MAX {
            moved(&moves, "a", &format!("n{i}"));
        }
        assert_eq!(moves.follow(&at(1, "a"), NOW, LONGEST), Follow::Until(LONGEST));
    }

    #[test]
    fn it_is_bounded() {
        let moves = Rc::new(Moves::default());
        for i in 0..MOVES_MAX {
            moved(&moves, "x", &format!("n{i}"));
        }
        let last = moves.begin(at(1, "a"), at(1, "b"));
        assert_eq!(moves.follow(&at(1, "a"), NOW, LONGEST), Follow::Until(LONGEST));
        last.end(NOW, LATER);
        assert_eq!(moves.follow(&at(1, "a"), NOW, LONGEST), Follow::Until(LATER));
        assert_eq!(names(&moves, LATER), []);
    }
}
