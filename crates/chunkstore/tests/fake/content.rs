//! What a file holds, and the changes of it, which may be done in part.

use super::{BLOCK, Rng};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

type Blocks = BTreeMap<u64, Rc<[u8]>>;

#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) blocks: Blocks,
    /// Blocks that take room, written or not.
    pub(super) room: BTreeSet<u64>,
    pub(super) len: u64,
}

/// The blocks that a range touches.
pub(super) fn touched(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / BLOCK as u64..(offset + len).div_ceil(BLOCK as u64)
}

impl Content {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            self.blocks.insert(offset / BLOCK as u64 + i as u64, b.into());
        }
        self.room.extend(touched(offset, bytes.len() as u64));
        self.len = self.len.max(offset + bytes.len() as u64);
    }
    pub(super) fn set_len(&mut self, len: u64) {
        self.len = len;
        self.blocks.retain(|b, _| b * (BLOCK as u64) < len);
        self.room.retain(|b| b * (BLOCK as u64) < len);
    }
    fn punch(&mut self, offset: u64, len: u64) {
        for b in touched(offset, len) {
            self.blocks.remove(&b);
            self.room.remove(&b);
        }
    }
}

#[derive(Clone)]
pub(super) enum Change {
    Write(u64, Rc<[u8]>),
    SetLen(u64),
    /// Offset and length.
    Allocate(u64, u64),
    Punch(u64, u64),
}

impl Content {
    pub(super) fn apply(&mut self, c: &Change) {
        match c {
            Change::Write(at, bytes) => self.write(*at, bytes),
            Change::SetLen(len) => self.set_len(*len),
            Change::Allocate(at, len) => {
                self.len = self.len.max(at + len);
                self.room.extend(touched(*at, *len));
            }
            Change::Punch(at, len) => self.punch(*at, *len),
        }
    }
    /// Applies all of a change or some blocks of it, maybe torn; what that came to.
    pub(super) fn apply_part(&mut self, change: Change, all: bool, rng: &Rng) -> Vec<Change> {
        let Change::Write(at, bytes) = change else {
            self.apply(&change);
            return vec![change];
        };
        let mut done = Vec::new();
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            let at = at + (i * BLOCK) as u64;
            let block: Rc<[u8]> = match if all { 0 } else { rng.below(4) } {
                0 | 1 => b.into(),
                2 => continue,
                _ => {
                    let old = self.blocks.get(&(at / BLOCK as u64));
                    let mut torn = old.map_or(vec![0; BLOCK], |b| b.to_vec());
                    let n = 512 * rng.below(8) as usize;
                    torn[..n].copy_from_slice(&b[..n]);
                    torn.into()
                }
            };
            done.push(Change::Write(at, block));
            done.last().into_iter().for_each(|c| self.apply(c));
        }
        done
    }
}
