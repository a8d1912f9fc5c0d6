//! A checker of shared files: every cell is a register with one writer, whose values only grow.
//!
//! A read is right if no cell is older than what was acknowledged, or what another read had returned, when the read began;
//! nor newer than what was begun when it ended; nor torn. That is linearizability for single-writer registers with unique values.

use super::workload::Interruption;
use std::ops::Range;

/// Bytes of a cell: half a block, so that writes also end inside blocks.
pub const CELL_BYTES: u64 = 2048;
const RECORD: usize = 16;
/// What so many former lives of a writer had under way in a cell counts; what is older has come or never comes.
const STRAYS: usize = 4;

#[derive(Clone, Copy, Default, Debug)]
struct Cell {
    /// The greatest value whose write began.
    begun: u64,
    /// The greatest value whose write was acknowledged.
    acked: u64,
    /// The greatest value that a finished read returned.
    seen: u64,
    /// A write failed: it may take effect at any time.
    spoiled: bool,
    /// Values whose writer ended before it heard of them, the last few: they may turn up at any time, also above later ones.
    strays: [u64; STRAYS],
    /// The greatest value that a finished flush covers.
    flushed: u64,
    /// The same when all power was last lost.
    left: u64,
    /// The greatest value that was acknowledged to its writer, and that no flush told the writer is gone, whatever was lost since.
    promised: u64,
}

/// The cells of one shared file.
#[derive(Clone, Debug)]
pub struct Registers {
    name: String,
    cells: Vec<Cell>,
    /// What was wrong.
    pub problems: Vec<String>,
    /// Cells checked by reads.
    pub checked: u64,
    /// How often all power was lost.
    losses: u64,
}

/// A write on its way.
#[derive(Clone, Debug)]
pub struct Writing {
    cells: Range<usize>,
    values: Vec<u64>,
    losses: u64,
}

/// A read on its way.
#[derive(Clone, Debug)]
pub struct Reading {
    cells: Range<usize>,
    floors: Vec<u64>,
    losses: u64,
}

/// What a flush that began now covers.
#[derive(Clone, Debug)]
pub struct Flushing {
    acked: Vec<u64>,
    /// The cells of who flushes, and what was promised of them.
    own: Range<usize>,
    promised: Vec<u64>,
    losses: u64,
}

impl Registers {
    /// `cells` registers of zeros.
    pub fn new(name: impl Into<String>, cells: usize) -> Self {
        Self {
            name: name.into(),
            cells: vec![Cell::default(); cells],
            problems: Vec::new(),
            checked: 0,
            losses: 0,
        }
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.cells.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
    /// A write begins; answers the bytes to write.
    pub fn write(&mut self, cells: Range<usize>) -> (Writing, Vec<u8>) {
        let mut bytes = Vec::with_capacity(cells.len() * CELL_BYTES as usize);
        let mut values = Vec::with_capacity(cells.len());
        for i in cells.clone() {
            let c = &mut self.cells[i];
            c.begun += 1;
            values.push(c.begun);
            fill(i as u64, c.begun, &mut bytes);
        }
        (Writing { cells, values, losses: self.losses }, bytes)
    }
    /// It was acknowledged, or failed.
    pub fn wrote(&mut self, w: Writing, ok: bool) {
        for (i, v) in w.cells.zip(w.values) {
            let c = &mut self.cells[i];
            if ok && w.losses != self.losses {
                // It may have been done before the power was lost, and its answer was late.
            } else if ok {
                c.acked = c.acked.max(v);
                c.promised = c.promised.max(v);
            } else {
                c.spoiled = true;
            }
        }
    }
    /// Its writer ended before it heard of it.
    pub fn wrote_perhaps(&mut self, w: Writing) {
        for (i, v) in w.cells.zip(w.values) {
            let strays = &mut self.cells[i].strays;
            strays.rotate_right(1);
            strays[0] = v;
        }
    }
    /// The writer of these cells ended; another one goes on with them. It is told of no loss of what was written before it came.
    pub fn inherited(&mut self, cells: Range<usize>) {
        for c in &mut self.cells[cells] {
            c.promised = c.flushed;
        }
    }
    /// A read begins.
    pub fn read(&self, cells: Range<usize>) -> Reading {
        let floors = self.cells[cells.clone()].iter().map(|c| c.acked.max(c.seen)).collect();
        Reading { cells, floors, losses: self.losses }
    }
    /// A flush by the writer of the cells `own` begins: it covers what was acknowledged, and what anybody has read (whoever wrote it, before whatever loss).
    pub fn flush(&self, own: Range<usize>) -> Flushing {
        let acked = self.cells.iter().map(|c| c.acked.max(c.seen)).collect();
        let promised = self.cells[own.clone()].iter().map(|c| c.promised).collect();
        Flushing { acked, own, promised, losses: self.losses }
    }
    /// It was acknowledged. (If all power was lost meanwhile, what others wrote may be gone by a loss that came before it.) If the writer was not `told` that
    /// something is gone, everything that it had written is there.
    pub fn flushed(&mut self, f: Flushing, told: bool) {
        if f.losses == self.losses {
            for (c, acked) in self.cells.iter_mut().zip(f.acked) {
                c.flushed = c.flushed.max(acked);
            }
        }
        for (c, promised) in self.cells[f.own].iter_mut().zip(f.promised) {
            if told {
                c.promised = c.acked;
                continue;
            }
            // Meanwhile it may have been lost in a way of which nobody is told.
            let promised = promised.min(c.promised);
            for kept in [&mut c.flushed, &mut c.left, &mut c.acked] {
                *kept = promised.max(*kept);
            }
        }
    }
    /// All replicas were interrupted at once. If they were killed, nothing that was acknowledged or seen may be gone (what was
    /// seen is in the files of all that serve), also if one of them lost its power. Otherwise what was not flushed may be.
    pub fn interrupted(&mut self, how: Interruption) {
        if how == Interruption::Killed {
            return;
        }
        self.losses += 1;
        for c in &mut self.cells {
            c.left = c.flushed;
            c.acked = c.flushed;
            c.seen = c.acked;
            if how == Interruption::FailedFlushes {
                c.promised = c.acked;
            }
        }
    }
    /// It ended with these bytes.
    pub fn check(&mut self, r: Reading, bytes: &[u8], who: &str) {
        for ((i, floor), cell) in r.cells.zip(r.floors).zip(bytes.chunks(CELL_BYTES as usize)) {
            self.checked += 1;
            let value = match parse(i as u64, cell) {
                Ok(v) => v,
                Err(e) => {
                    self.problems.push(format!("{}: {who} read cell {i}: {e}", self.name));
                    continue;
                }
            };
            let c = &mut self.cells[i];
            if c.spoiled || (value != 0 && c.strays.contains(&value)) {
                continue;
            }
            let floor = match self.losses - r.losses {
                0 => floor,
                // It may have been read at once after the loss, whatever was acknowledged since.
                1 => floor.min(c.left),
                _ => 0,
            };
            if value < floor || value > c.begun {
                self.problems.push(format!(
                    "{}: {who} read cell {i} as {value}, which is not between {floor} (known when it began) and {} (begun): {c:?}",
                    self.name, c.begun
                ));
            }
            // What was answered before the interruption, and arrived after it, binds nobody.
            if r.losses == self.losses {
                c.seen = c.seen.max(value);
            }
        }
    }
}

/// Appends the bytes of a cell with a value.
pub(super) fn fill(index: u64, value: u64, bytes: &mut Vec<u8>) {
    for _ in 0..CELL_BYTES as usize / RECORD {
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.extend_from_slice(&value.to_le_bytes());
    }
}

/// The value of a cell: 0 if it was never written.
pub(super) fn parse(index: u64, bytes: &[u8]) -> Result<u64, String> {
    let word = |at: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(w)
    };
    let (cell, value) = (word(0), word(8));
    if let Some(at) = bytes.chunks(RECORD).position(|r| r != &bytes[..RECORD]) {
        return Err(format!(
            "torn at byte {}: cell {cell} value {value}, then cell {} value {}",
            at * RECORD,
            word(at * RECORD),
            word(at * RECORD + 8)
        ));
    }
    if value != 0 && cell != index {
        return Err(format!("holds value {value} of cell {cell}"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_finds_what_is_wrong() {
        let mut r = Registers::new("f", 4);
        let (w1, one) = r.write(0..2);
        let reading = r.read(0..1);
        r.check(reading, &one[..2048], "a"); // before its acknowledgement: fine
        assert!(r.problems.is_empty());
        let reading = r.read(0..1);
        r.check(reading, &[0; 2048], "b"); // back to the old value
        assert_eq!(r.problems.len(), 1);
        r.wrote(w1, true);
        let reading = r.read(1..2);
        r.check(reading, &[0; 2048], "c"); // lost an acknowledged write
        assert_eq!(r.problems.len(), 2);
        let reading = r.read(1..2);
        let mut torn = one[2048..].to_vec();
        torn[1000] ^= 1;
        r.check(reading, &torn, "d");
        assert!(r.problems[2].contains("torn"), "{:?}", r.problems);
        let reading = r.read(0..1);
        r.check(reading, &one[2048..], "e");
        assert!(r.problems[3].contains("of cell 1"), "{:?}", r.problems);
        let (w, _) = r.write(3..4);
        r.wrote(w, false);
        let (w, two) = r.write(3..4);
        r.wrote(w, true);
        let reading = r.read(3..4);
        r.check(reading, &[0; 2048], "f"); // spoiled: anything goes
        assert_eq!(r.problems.len(), 4);
        let before = r.problems.len();
        let (_, late) = r.write(2..3);
        let reading = r.read(2..3);
        r.interrupted(Interruption::Power);
        r.check(reading, &late, "answered before the power went, heard after it");
        let reading = r.read(2..3);
        r.check(reading, &[0; 2048], "its write was never acknowledged, and is gone");
        assert_eq!(r.problems.len(), before);
        let (_, again) = r.write(2..3);
        let reading = r.read(2..3);
        r.check(reading, &again, "asked after the power came back");
        let reading = r.read(2..3);
        r.check(reading, &[0; 2048], "back to the old value");
        assert_eq!(r.problems.len(), before + 1);
        r.problems.pop();
        assert_eq!(r.problems.len(), 4);
        let reading = r.read(2..3);
        r.check(reading, &two, "g");
        assert!(r.problems.len() > 4, "from nowhere");
    }

    #[test]
    fn what_a_writer_never_heard_of_may_turn_up_late() {
        let mut r = Registers::new("f", 1);
        let (first, one) = r.write(0..1);
        r.wrote(first, true);
        let (lost, two) = r.write(0..1);
        r.wrote_perhaps(lost);
        r.inherited(0..1);
        let (next, three) = r.write(0..1);
        r.wrote(next, true);
        for (bytes, right) in [(&three, true), (&two, true), (&one, false)] {
            let before = r.problems.len();
            let reading = r.read(0..1);
            r.check(reading, bytes, "a");
            assert_eq!(r.problems.len() == before, right, "{:?}", r.problems);
        }
    }

    #[test]
    fn a_read_that_spans_a_loss_may_find_what_the_loss_left() {
        let mut r = Registers::new("f", 1);
        let write = |r: &mut Registers| {
            let (w, bytes) = r.write(0..1);
            r.wrote(w, true);
            bytes
        };
        let one = write(&mut r);
        let flushing = r.flush(0..1);
        r.flushed(flushing, false);
        write(&mut r);
        let (reading, worse) = (r.read(0..1), r.read(0..1));
        r.interrupted(Interruption::Power);
        write(&mut r);
        r.check(reading, &one, "read before the third write, heard after it");
        assert!(r.problems.is_empty(), "{:?}", r.problems);
        r.check(worse, &[0; 2048], "what was flushed is gone");
        assert_eq!(r.problems.len(), 1);
    }

    #[test]
    fn what_was_only_seen_does_not_go_with_processes() {
        let mut r = Registers::new("f", 1);
        let (w, one) = r.write(0..1);
        r.wrote(w, true);
        let (_, two) = r.write(0..1);
        let seen = r.read(0..1);
        r.check(seen, &two, "before its acknowledgement");
        r.interrupted(Interruption::Killed);
        let reading = r.read(0..1);
        assert!(r.problems.is_empty(), "{:?}", r.problems);
        r.check(reading, &one, "what was seen is gone");
        assert_eq!(r.problems.len(), 1);
        let reading = r.read(0..1);
        r.check(reading, &[0; 2048], "what was acknowledged is gone");
        assert_eq!(r.problems.len(), 2);
    }

    #[test]
    fn a_flush_after_a_loss_tells_of_it_or_everything_is_there() {
        for told in [false, true] {
            let mut r = Registers::new("f", 1);
            let (w, _) = r.write(0..1);
            r.wrote(w, true);
            r.interrupted(Interruption::Power);
            let flushing = r.flush(0..1);
            r.flushed(flushing, told);
            let reading = r.read(0..1);
            r.check(reading, &[0; 2048], "a");
            assert_eq!(r.problems.is_empty(), told, "{:?}", r.problems);
        }
    }
}
