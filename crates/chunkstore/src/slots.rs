//! Slots: which parts of the block files are in use. One file for each size class, grown in steps; nothing about
//! slots is written down but what chunks refer to, so the maps are rebuilt at start-up.

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
    /// Slots that the file has room for.
    total: u32,
    free: BTreeSet<u32>,
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
}
