//! What every block of a file may hold: registers with one writer each, whose versions only grow.
//!
//! A read is right if no block is older than what was acknowledged, or what another finished read had returned, when the read began; nor
//! newer than what was begun when it ended; nor torn, nor of another place. That is linearizability for registers with one writer
//! and unique values. A write that failed may have taken effect or not, but not after a later write was acknowledged.

use crate::block::{self, BLOCK, Stamp};
use std::ops::Range;
use std::sync::Mutex;

#[derive(Clone, Copy, Default, Debug)]
struct Cell {
    begun: u64,
    acked: u64,
    seen: u64,
    durable: u64,
}

/// The blocks of one file. Shared by threads.
pub struct Ledger {
    /// The file's number, in every block.
    pub file: u64,
    /// Its name, for messages.
    pub name: String,
    cells: Mutex<Vec<Cell>>,
}

/// A write on its way.
pub struct Writing {
    blocks: Range<u64>,
    versions: Vec<u64>,
    bytes: Vec<u8>,
}

impl Writing {
    /// What to write.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A read on its way.
pub struct Reading {
    blocks: Range<u64>,
    floors: Vec<u64>,
}

fn cells(l: &Ledger) -> std::sync::MutexGuard<'_, Vec<Cell>> {
    l.cells.lock().unwrap_or_else(|e| e.into_inner())
}

impl Ledger {
    /// A file of `blocks` holes.
    pub fn new(file: u64, name: String, blocks: u64) -> Self {
        Self { file, name, cells: Mutex::new(vec![Cell::default(); blocks as usize]) }
    }
    /// Blocks.
    pub fn len(&self) -> u64 {
        cells(self).len() as u64
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A write begins (extending the file if need be); `into` is reused for the bytes.
    pub fn write(&self, blocks: Range<u64>, writer: u32, mut into: Vec<u8>) -> Writing {
        let mut all = cells(self);
        if all.len() < blocks.end as usize {
            all.resize(blocks.end as usize, Cell::default());
        }
        let count = blocks.end.saturating_sub(blocks.start) as usize;
        into.resize(count * BLOCK, 0);
        let mut versions = Vec::with_capacity(count);
        for (b, bytes) in blocks.clone().zip(into.chunks_exact_mut(BLOCK)) {
            let cell = &mut all[b as usize];
            cell.begun += 1;
            versions.push(cell.begun);
            let stamp = Stamp { file: self.file, block: b, version: cell.begun, writer };
            block::fill(stamp, bytes);
        }
        Writing { blocks, versions, bytes: into }
    }
    /// It was acknowledged, or failed. Gives the buffer back.
    pub fn wrote(&self, w: Writing, ok: bool) -> Vec<u8> {
        if ok {
            let mut all = cells(self);
            for (b, v) in w.blocks.zip(&w.versions) {
                let cell = &mut all[b as usize];
                cell.acked = cell.acked.max(*v);
            }
        }
        w.bytes
    }
    /// An fsync begins: what it covers.
    pub fn sync(&self) -> Vec<u64> {
        cells(self).iter().map(|c| c.acked).collect()
    }
    /// It returned success.
    pub fn synced(&self, covered: &[u64]) {
        for (cell, v) in cells(self).iter_mut().zip(covered) {
            cell.durable = cell.durable.max(*v);
        }
    }
    /// A read begins. Blocks past the end count as holes.
    pub fn read(&self, blocks: Range<u64>) -> Reading {
        let all = cells(self);
        let floor = |b: u64| all.get(b as usize).map_or(0, |c| c.acked.max(c.seen));
        let floors = blocks.clone().map(floor).collect();
        Reading { blocks, floors }
    }
    /// It ended with these bytes; what is short of a whole block is taken for missing. Says what is wrong.
    pub fn check(&self, r: Reading, bytes: &[u8], who: &str) -> Vec<String> {
        let mut wrong = vec![];
        let mut all = cells(self);
        let zeros = [0; BLOCK];
        for (i, (b, floor)) in r.blocks.zip(r.floors).enumerate() {
            let content = bytes.get(i * BLOCK..(i + 1) * BLOCK).unwrap_or(&zeros);
            let mut complain = |what: String| {
                wrong.push(format!("{}: {who} read block {b}: {what}", self.name));
            };
            let stamp = match block::parse(self.file, b, content) {
                Ok(stamp) => stamp,
                Err(e) => {
                    complain(e);
                    continue;
                }
            };
            let Some(cell) = all.get_mut(b as usize) else { continue };
            if stamp.version < floor {
                complain(format!(
                    "version {} although {floor} was known when the read began: {cell:?}",
                    stamp.version
                ));
            } else if stamp.version > cell.begun {
                complain(format!("version {} which nobody wrote yet: {cell:?}", stamp.version));
            }
            cell.seen = cell.seen.max(stamp.version);
        }
        wrong
    }
    /// Blocks acknowledged, and of these covered by an fsync.
    pub fn totals(&self) -> (u64, u64) {
        let all = cells(self);
        let acked = all.iter().filter(|c| c.acked > 0).count() as u64;
        let durable = all.iter().filter(|c| c.acked > 0 && c.durable >= c.acked).count() as u64;
        (acked, durable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_finds_what_is_wrong() {
        let l = Ledger::new(1, "f".into(), 4);
        let w1 = l.write(0..2, 1, vec![]);
        let one = w1.bytes().to_vec();
        let r = l.read(0..1);
        assert!(l.check(r, &one[..BLOCK], "a").is_empty(), "before its acknowledgement");
        let r = l.read(0..1);
        assert_eq!(l.check(r, &[0; BLOCK], "b").len(), 1, "new, then old");
        l.wrote(w1, true);
        let r = l.read(1..2);
        assert_eq!(l.check(r, &[0; BLOCK], "c").len(), 1, "a lost write");
        let r = l.read(0..2);
        assert_eq!(l.check(r, &one[..BLOCK], "d").len(), 1, "a short read of acknowledged bytes");
        let r = l.read(0..1);
        assert_eq!(l.check(r, &one[BLOCK..], "e").len(), 1, "another place");
        let w2 = l.write(0..1, 1, vec![]);
        let (early, two) = (l.read(0..1), w2.bytes().to_vec());
        l.wrote(w2, false);
        assert!(l.check(early, &one[..BLOCK], "f").is_empty(), "a failed write need not be there");
        let w3 = l.write(0..1, 1, vec![]);
        l.wrote(w3, true);
        let r = l.read(0..1);
        assert_eq!(l.check(r, &two, "g").len(), 1, "a failed write after a later one");
        let r = l.read(3..4);
        let from_nowhere = l.write(3..4, 1, vec![]).bytes().to_vec();
        let other = Ledger::new(1, "g".into(), 4);
        assert!(l.check(r, &from_nowhere, "h").is_empty());
        let r = other.read(3..4);
        assert_eq!(other.check(r, &from_nowhere, "i").len(), 1, "from nowhere");
    }

    #[test]
    fn what_was_read_and_never_acknowledged_stays() {
        let l = Ledger::new(1, "f".into(), 1);
        let w = l.write(0..1, 1, vec![]);
        let r = l.read(0..1);
        assert!(l.check(r, w.bytes(), "a").is_empty());
        assert_eq!(l.totals(), (0, 0));
        // Whatever was killed meanwhile.
        let r = l.read(0..1);
        assert_eq!(l.check(r, &[0; BLOCK], "b").len(), 1);
        l.wrote(w, true);
        let covered = l.sync();
        l.synced(&covered);
        assert_eq!(l.totals(), (1, 1));
    }
}
