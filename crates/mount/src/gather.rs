//! [`Gathered`]: small writes to one file that were answered and are not sent yet. Pure.
//!
//! Pieces do not overlap. What goes on where a piece ends is added to it; pieces that touch otherwise are put together only when they are sent, so
//! that no pattern of writes copies bytes again and again.

use std::collections::BTreeMap;

/// Bytes, of which the first ones may have been overwritten by another piece.
struct Piece {
    bytes: Vec<u8>,
    skip: usize,
}

impl Piece {
    fn live(&self) -> &[u8] {
        &self.bytes[self.skip..]
    }
}

/// Bytes that follow each other in the file.
pub struct Run {
    /// Where they go.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    pieces: Vec<Piece>,
}

impl Run {
    /// Where they end.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
    /// Copies bytes from the place `at` in the file on. All of them must be here.
    pub fn copy_to(&self, at: u64, mut out: &mut [u8]) {
        let mut skip = (at - self.offset) as usize;
        for piece in &self.pieces {
            let live = piece.live();
            if skip >= live.len() {
                skip -= live.len();
                continue;
            }
            let n = (live.len() - skip).min(out.len());
            let (now, rest) = std::mem::take(&mut out).split_at_mut(n);
            now.copy_from_slice(&live[skip..skip + n]);
            (out, skip) = (rest, 0);
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Gathered {
    pieces: BTreeMap<u64, Piece>,
    held: usize,
}

impl Gathered {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
    /// Bytes of memory held.
    pub fn held(&self) -> usize {
        self.held
    }
    /// How many pieces there are.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }
    /// Where the last piece ends.
    pub fn end(&self) -> Option<u64> {
        let (start, piece) = self.pieces.last_key_value()?;
        Some(start + piece.live().len() as u64)
    }

    /// Bytes are written over whatever was there.
    pub fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut at = offset;
        let before = self.pieces.range_mut(..=offset).next_back();
        let left = before.filter(|(start, p)| *start + p.live().len() as u64 >= offset);
        let Some((&start, left)) = left else {
            self.clear(at, offset + bytes.len() as u64);
            self.held += bytes.len();
            self.pieces.insert(at, Piece { bytes: bytes.to_vec(), skip: 0 });
            return;
        };
        let from = left.skip + (offset - start) as usize;
        let n = (left.bytes.len() - from).min(bytes.len());
        left.bytes[from..from + n].copy_from_slice(&bytes[..n]);
        (at, bytes) = (at + n as u64, &bytes[n..]);
        if bytes.is_empty() {
            return;
        }
        self.clear(at, at + bytes.len() as u64);
        if let Some(left) = self.pieces.get_mut(&start) {
            left.bytes.extend_from_slice(bytes);
            self.held += bytes.len();
        }
    }

    /// Takes out what begins in a range: no piece reaches into it from before.
    fn clear(&mut self, from: u64, to: u64) {
        while let Some((&start, _)) = self.pieces.range(from..to).next() {
            let Some(mut piece) = self.pieces.remove(&start) else { return };
            let end = start + piece.live().len() as u64;
            if end <= to {
                self.held -= piece.bytes.len();
            } else {
                piece.skip += (to - start) as usize;
                self.pieces.insert(to, piece);
            }
        }
    }

    /// Forgets what lies behind `len`.
    pub fn cut(&mut self, len: u64) {
        for piece in self.pieces.split_off(&len).into_values() {
            self.held -= piece.bytes.len();
        }
        if let Some((start, piece)) = self.pieces.iter_mut().next_back() {
            let keep = piece.bytes.len().min(piece.skip + (len - start) as usize);
            self.held -= piece.bytes.len() - keep;
            piece.bytes.truncate(keep);
        }
    }

    /// Takes everything, in the order of the file.
    pub fn take(&mut self) -> Vec<Run> {
        self.held = 0;
        let mut runs: Vec<Run> = Vec::new();
        for (offset, piece) in std::mem::take(&mut self.pieces) {
            let len = piece.live().len() as u64;
            match runs.last_mut().filter(|r| r.end() == offset) {
                Some(run) => {
                    run.len += len;
                    run.pieces.push(piece);
                }
                None => runs.push(Run { offset, len, pieces: vec![piece] }),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// splitmix64.
    struct Random(u64);
    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % n
        }
    }

    const FILE: usize = 300;

    /// What was written and not taken, byte by byte.
    fn check(model: &[Option<u8>], g: &Gathered) {
        let end = model.iter().rposition(Option::is_some).map(|i| i as u64 + 1);
        assert_eq!(g.end(), end);
        assert_eq!(g.is_empty(), end.is_none());
        let live: usize = g.pieces.values().map(|p| p.live().len()).sum();
        assert_eq!(live, model.iter().flatten().count(), "no byte twice, none lost");
        assert_eq!(g.held(), g.pieces.values().map(|p| p.bytes.len()).sum::<usize>());
        assert_eq!(g.count(), g.pieces.len());
    }

    fn taken(runs: &[Run], r: &mut Random) -> Vec<Option<u8>> {
        let mut out = vec![None; FILE];
        let mut last = None;
        for run in runs {
            assert!(last.is_none_or(|end| end < run.offset), "in order, and apart");
            last = Some(run.end());
            // In parts of any size, as they are sent.
            let mut at = run.offset;
            while at < run.end() {
                let n = (1 + r.below(40)).min(run.end() - at);
                let mut part = vec![0; n as usize];
                run.copy_to(at, &mut part);
                for (i, byte) in part.into_iter().enumerate() {
                    out[at as usize + i] = Some(byte);
                }
                at += n;
            }
        }
        out
    }

    #[test]
    fn agrees_with_bytes_one_by_one() {
        for seed in 0..400 {
            let mut r = Random(seed);
            let (mut model, mut g) = (vec![None; FILE], Gathered::default());
            for step in 0..80 {
                match r.below(12) {
                    0 => {
                        let len = r.below(FILE as u64 + 10);
                        g.cut(len);
                        model.iter_mut().skip(len as usize).for_each(|b| *b = None);
                    }
                    1 => {
                        assert!(taken(&g.take(), &mut r) == model, "seed {seed}, step {step}");
                        model.fill(None);
                    }
                    how => {
                        let end = g.end().unwrap_or(0);
                        let offset = match how {
                            2..=4 if end < FILE as u64 => end,
                            _ => r.below(FILE as u64),
                        };
                        let longest = if r.below(4) == 0 { 120 } else { 12 };
                        let n = r.below(longest).min(FILE as u64 - offset);
                        let bytes: Vec<u8> = (0..n).map(|_| r.below(256) as u8).collect();
                        g.write(offset, &bytes);
                        for (i, b) in bytes.into_iter().enumerate() {
                            model[offset as usize + i] = Some(b);
                        }
                    }
                }
                check(&model, &g);
            }
        }
    }

    #[test]
    fn writing_on_makes_one_piece_and_backwards_copies_nothing_again() {
        let mut g = Gathered::default();
        for i in 0..100 {
            g.write(i * 10, &[i as u8; 10]);
        }
        assert_eq!((g.count(), g.held()), (1, 1000));
        let runs = g.take();
        assert_eq!((runs.len(), runs[0].offset, runs[0].len), (1, 0, 1000));
        for i in (0..100).rev() {
            g.write(i * 10, &[i as u8; 10]);
        }
        assert_eq!(g.count(), 100, "put together when it is sent");
        let runs = g.take();
        assert_eq!((runs.len(), runs[0].len, g.held()), (1, 1000, 0));
    }
}
