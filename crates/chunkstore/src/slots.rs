//! Slots: which parts of the block files are in use. One file for each size class, grown in steps; nothing about
//! slots is written down but what chunks refer to, so the maps are rebuilt at start-up.
//!
//! Room goes from one class to another through the file system: free slots become holes when another class finds no room.

use crate::format::BLOCK;
use std::collections::{BTreeMap, BTreeSet};

/// Log2 of the smallest slot's bytes.
pub(crate) const CLASS_MIN: u8 = 12;
/// Log2 of the greatest slot's bytes.
pub(crate) const CLASS_MAX: u8 = 26;
/// A block file grows by at most so many bytes (and at least one slot).
const GROW_BYTES_MAX: u64 = 64 << 20;
/// A block file grows by at least so many bytes.
const GROW_BYTES_MIN: u64 = 1 << 20;

pub(crate) fn is_class(class: u8) -> bool {
    (CLASS_MIN..=CLASS_MAX).contains(&class)
}
pub(crate) fn blocks_of(class: u8) -> u32 {
    1 << (class - CLASS_MIN)
}
pub(crate) fn bytes_of(class: u8) -> u64 {
    1 << class
}
pub(crate) fn is_chunk_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes as usize >= BLOCK && bytes <= 1 << CLASS_MAX
}
pub(crate) fn file_name(class: u8) -> String {
    format!("blocks-{class:02}")
}

/// Splits `blocks` into at most four slots: `(class, blocks used of it)`. Little is wasted, and a power of two is one slot.
pub(crate) fn pieces(blocks: u32) -> Vec<(u8, u32)> {
    const PIECES_MAX: usize = 4;
    let mut out = Vec::new();
    let mut rest = blocks;
    while rest > 0 {
        let up = rest.next_power_of_two();
        let fits =
            rest == up || out.len() + 1 == PIECES_MAX || u64::from(rest) * 8 >= u64::from(up) * 7;
        let size = if fits { up } else { up / 2 };
        let class = (CLASS_MIN as u32 + size.trailing_zeros()).min(u32::from(CLASS_MAX)) as u8;
        let n = rest.min(blocks_of(class));
        out.push((class, n));
        rest -= n;
    }
    out
}

#[derive(Default)]
struct Class {
    /// Slots that the file has a place for.
    total: u32,
    free: BTreeSet<u32>,
    /// Neither used nor free: their room was given back to the file system.
    holes: BTreeSet<u32>,
}

/// Slots that follow one another in a class's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub class: u8,
    pub first: u32,
    pub count: u32,
}

impl Run {
    /// Where it begins in the file, and how long it is, in bytes.
    pub fn range(self) -> (u64, u64) {
        (u64::from(self.first) * bytes_of(self.class), u64::from(self.count) * bytes_of(self.class))
    }
    fn slots(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }
}

/// The first slots of a set that follow one another, at most `most`.
fn first_run(class: u8, set: &BTreeSet<u32>, most: u32) -> Option<Run> {
    let first = *set.first()?;
    let count = set.iter().zip(first..).take(most as usize).take_while(|(a, b)| **a == *b).count();
    Some(Run { class, first, count: count as u32 })
}

/// The slots of all classes.
#[derive(Default)]
pub(crate) struct Slots {
    classes: BTreeMap<u8, Class>,
    used_bytes: u64,
}

impl Slots {
    /// A free slot, the lowest, if the file has one.
    pub fn take(&mut self, class: u8) -> Option<u32> {
        let index = self.classes.entry(class).or_default().free.pop_first()?;
        self.used_bytes += bytes_of(class);
        Some(index)
    }
    pub fn give_back(&mut self, class: u8, index: u32) {
        let c = self.classes.entry(class).or_default();
        if index < c.total && c.free.insert(index) {
            self.used_bytes -= bytes_of(class);
        }
    }
    pub fn has_free(&self, class: u8) -> bool {
        self.classes.get(&class).is_some_and(|c| !c.free.is_empty())
    }
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
    pub fn free_bytes(&self) -> u64 {
        self.classes.iter().map(|(c, s)| s.free.len() as u64 * bytes_of(*c)).sum()
    }
    /// By how many slots the file should grow next: as much as it has, within bounds.
    pub fn step(&self, class: u8) -> u32 {
        let have = u64::from(self.total(class)) * bytes_of(class);
        let bytes = have.clamp(GROW_BYTES_MIN, GROW_BYTES_MAX).max(bytes_of(class));
        (bytes / bytes_of(class)) as u32
    }
    pub fn total(&self, class: u8) -> u32 {
        self.classes.get(&class).map_or(0, |c| c.total)
    }
    /// The file has room for `total` slots now.
    pub fn grown(&mut self, class: u8, total: u32) {
        let c = self.classes.entry(class).or_default();
        c.free.extend(c.total..total.max(c.total));
        c.total = total.max(c.total);
    }
    /// Where a class's file may grow by at most `most` slots: a hole, or behind its end.
    pub fn growth(&self, class: u8, most: u32) -> Option<Run> {
        let end = self.total(class);
        let hole = self.classes.get(&class).and_then(|c| first_run(class, &c.holes, most));
        let behind = || Some(Run { class, first: end, count: most.min(u32::MAX - end) });
        hole.or_else(behind).filter(|r| r.count > 0)
    }
    /// That run has room now.
    pub fn filled(&mut self, run: Run) {
        self.grown(run.class, run.first + run.count);
        let c = self.classes.entry(run.class).or_default();
        for i in run.slots() {
            if c.holes.remove(&i) {
                c.free.insert(i);
            }
        }
    }
    /// Free slots of another class (the one with most of them), to be punched out. They are nobody's until [`Slots::punched`]: a hole that
    /// somebody fills while it is still being punched would lose what is written there.
    pub fn release(&mut self, but: u8, most_bytes: u64) -> Option<Run> {
        let free = |(class, c): &(&u8, &Class)| c.free.len() as u64 * bytes_of(**class);
        let others = self.classes.iter().filter(|(class, c)| **class != but && !c.free.is_empty());
        let class = *others.max_by_key(free)?.0;
        self.take_free(class, (most_bytes / bytes_of(class)).clamp(1, u64::from(u32::MAX)) as u32)
    }
    /// The first free slots of a class, likewise.
    pub fn take_free(&mut self, class: u8, most: u32) -> Option<Run> {
        let c = self.classes.get_mut(&class)?;
        let run = first_run(class, &c.free, most)?;
        for i in run.slots() {
            c.free.remove(&i);
        }
        Some(run)
    }
    /// Free slots of a class that have not all of their room, in runs, likewise. `has` says whether bytes of the file have it, from where on and how many.
    pub fn take_lacking(&mut self, class: u8, has: impl Fn(u64, u64) -> bool) -> Vec<Run> {
        let Some(c) = self.classes.get_mut(&class) else { return Vec::new() };
        let bytes = bytes_of(class);
        let lacking: Vec<u32> =
            c.free.iter().copied().filter(|i| !has(u64::from(*i) * bytes, bytes)).collect();
        let mut runs: Vec<Run> = Vec::new();
        for first in lacking {
            c.free.remove(&first);
            match runs.last_mut() {
                Some(run) if run.first + run.count == first => run.count += 1,
                _ => runs.push(Run { class, first, count: 1 }),
            }
        }
        runs
    }
    /// What was taken to be punched is holes now; if that failed, it is free as before.
    pub fn punched(&mut self, run: Run, done: bool) {
        let c = self.classes.entry(run.class).or_default();
        if done { &mut c.holes } else { &mut c.free }.extend(run.slots());
    }
    /// At start-up: everything is free but `used`.
    pub fn rebuild(&mut self, totals: &BTreeMap<u8, u32>, used: &BTreeSet<(u8, u32)>) {
        *self = Self::default();
        for (class, total) in totals {
            self.grown(*class, *total);
        }
        for (class, index) in used {
            if self.classes.entry(*class).or_default().free.remove(index) {
                self.used_bytes += bytes_of(*class);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover() {
        for blocks in 1..5000 {
            let p = pieces(blocks);
            assert!(p.len() <= 4);
            assert_eq!(p.iter().map(|x| x.1).sum::<u32>(), blocks);
            assert!(p.iter().all(|(c, n)| *n <= blocks_of(*c)), "{blocks}: {p:?}");
            let room: u32 = p.iter().map(|x| blocks_of(x.0)).sum();
            assert!(
                u64::from(room) * 7 <= u64::from(blocks) * 8 || room - blocks < 8 || p.len() == 4,
                "{blocks}: {p:?}"
            );
        }
        assert_eq!(pieces(256), [(20, 256)]);
        assert_eq!(pieces(32 << 10).len(), 2, "two of the greatest class");
    }

    #[test]
    fn room_goes_from_class_to_class() {
        let mut s = Slots::default();
        s.filled(s.growth(20, 8).expect("behind the end"));
        let taken: Vec<_> = (0..8).filter_map(|_| s.take(20)).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(s.release(12, 4 << 20), None, "nothing is free");
        for i in [1, 2, 3, 6] {
            s.give_back(20, i);
        }
        assert_eq!(s.release(20, 4 << 20), None, "not of its own");
        let run = Run { class: 20, first: 1, count: 2 };
        assert_eq!(s.release(12, 2 << 20), Some(run));
        // While it is being punched it is nobody's.
        assert_eq!(s.growth(20, 2), Some(Run { class: 20, first: 8, count: 2 }));
        assert_eq!(s.free_bytes(), 2 << 20);
        s.punched(run, true);
        assert_eq!((s.free_bytes(), s.used_bytes()), (2 << 20, 4 << 20));
        let run = Run { class: 20, first: 3, count: 1 };
        assert_eq!(s.release(12, 1), Some(run), "at least one");
        s.punched(run, false);
        assert_eq!(s.free_bytes(), 2 << 20, "it could not be punched");
        assert_eq!(s.release(12, 1), Some(run));
        s.punched(run, true);
        // The holes are filled before the file grows.
        assert_eq!(s.growth(20, 2), Some(Run { class: 20, first: 1, count: 2 }));
        s.filled(Run { class: 20, first: 1, count: 2 });
        assert_eq!(s.growth(20, 2), Some(Run { class: 20, first: 3, count: 1 }));
        s.filled(Run { class: 20, first: 3, count: 1 });
        assert_eq!(s.growth(20, 2), Some(Run { class: 20, first: 8, count: 2 }));
        assert_eq!(s.free_bytes(), 4 << 20);
    }

    #[test]
    fn what_lacks_room_is_taken_out_in_runs() {
        let mut s = Slots::default();
        s.filled(s.growth(20, 8).expect("behind the end"));
        let used = s.take(20);
        assert_eq!(used, Some(0));
        let lacks = [0, 1, 2, 5, 7].map(|i: u64| i << 20);
        let runs = s.take_lacking(20, |at, bytes| bytes == 1 << 20 && !lacks.contains(&at));
        let run = |first, count| Run { class: 20, first, count };
        assert_eq!(runs, [run(1, 2), run(5, 1), run(7, 1)], "not what is in use");
        runs.into_iter().for_each(|r| s.punched(r, true));
        assert_eq!(s.free_bytes(), 3 << 20);
        assert_eq!(s.growth(20, 8), Some(run(1, 2)));
    }
}
