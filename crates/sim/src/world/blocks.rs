//! The content of a file as blocks, and which of them take room.

use std::collections::BTreeMap;
use std::rc::Rc;

/// The grain of content and of room, in bytes.
pub(crate) const BLOCK: u64 = 4096;

/// [`BLOCK`] bytes.
type Block = Rc<[u8]>;

thread_local!(static ZEROS: Block = Rc::from([0; BLOCK as usize].as_slice()));

/// Bytes that are to be written, cut at the borders of blocks: whole ones are shared by all that they are written to, and copied by none.
pub(crate) struct Pieces {
    offset: u64,
    len: usize,
    all: Vec<Rc<[u8]>>,
}

impl Pieces {
    /// The parts, one behind the other, to be written at `offset`.
    pub(crate) fn new<'a>(offset: u64, parts: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let len = parts.clone().map(<[u8]>::len).sum();
        let mut all = Vec::with_capacity(len / BLOCK as usize + 2);
        // Of a piece that lies in several parts: what came so far.
        let mut begun: Vec<u8> = Vec::new();
        let mut at = offset;
        for mut part in parts {
            while !part.is_empty() {
                let (here, rest) = part.split_at(part.len().min((BLOCK - at % BLOCK) as usize));
                (part, at) = (rest, at + here.len() as u64);
                let ends = at.is_multiple_of(BLOCK);
                if ends && begun.is_empty() {
                    all.push(Rc::from(here));
                    continue;
                }
                begun.extend_from_slice(here);
                if ends {
                    all.push(Rc::from(begun.as_slice()));
                    begun.clear();
                }
            }
        }
        if !begun.is_empty() {
            all.push(Rc::from(begun));
        }
        Self { offset, len, all }
    }
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// All in one.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.all.concat()
    }
}

/// Sparse bytes; what was never written is zero. Cloning is cheap.
#[derive(Clone, Default)]
pub(crate) struct Blocks {
    all: BTreeMap<u64, Block>,
    len: u64,
}

impl Blocks {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
    /// The blocks that were written, by number.
    pub(crate) fn written(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }
    /// Whether all blocks of a range were written.
    pub(crate) fn covers(&self, offset: u64, len: u64) -> bool {
        let (first, end) = (offset / BLOCK, offset.saturating_add(len).div_ceil(BLOCK));
        self.all.range(first..end).count() as u64 == end - first
    }
    /// Cuts or extends.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.len = len;
    }
    /// Fills `out` from `offset`; the number of bytes up to the end.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(offset).min(out.len() as u64) as usize;
        self.each(offset, n as u64, |index, inside, range| match self.all.get(&index) {
            Some(b) => out[range.clone()].copy_from_slice(&b[inside..inside + range.len()]),
            None => out[range].fill(0),
        });
        n
    }
    /// Writes, extending if need be.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.put(&Pieces::new(offset, std::iter::once(bytes)));
    }
    /// The same of what was cut already.
    pub(crate) fn put(&mut self, pieces: &Pieces) {
        let mut at = pieces.offset;
        for piece in &pieces.all {
            let (index, inside) = (at / BLOCK, (at % BLOCK) as usize);
            at += piece.len() as u64;
            if piece.len() == BLOCK as usize {
                self.all.insert(index, piece.clone());
                continue;
            }
            let block = self.all.entry(index).or_insert_with(|| ZEROS.with(Rc::clone));
            Rc::make_mut(block)[inside..inside + piece.len()].copy_from_slice(piece);
        }
        self.len = self.len.max(at);
    }
    /// Makes a range zero; the length stays.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len.next_multiple_of(BLOCK));
        if offset >= end {
            return;
        }
        let touched: Vec<u64> =
            self.all.range(offset / BLOCK..end.div_ceil(BLOCK)).map(|(i, _)| *i).collect();
        for index in touched {
            let start = index * BLOCK;
            let (from, to) = (offset.max(start) - start, end.min(start + BLOCK) - start);
            if (from, to) == (0, BLOCK) {
                self.all.remove(&index);
            } else if let Some(b) = self.all.get_mut(&index) {
                Rc::make_mut(b)[from as usize..to as usize].fill(0);
            }
        }
    }
    /// Turns one bit over.
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) {
        if offset < self.len {
            let mut byte = [0];
            self.read(offset, &mut byte);
            self.write(offset, &[byte[0] ^ (1 << (bit % 8))]);
        }
    }
    /// Calls `f(block, offset in it, range of the whole)` for every block that a range touches.
    fn each(&self, offset: u64, len: u64, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let inside = at % BLOCK;
            let n = (BLOCK - inside).min(len - done);
            f(at / BLOCK, inside as usize, done as usize..(done + n) as usize);
            done += n;
        }
    }
}

/// Ranges of blocks that take room.
#[derive(Clone, Default)]
pub(crate) struct Room {
    /// First block -> behind the last.
    ranges: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Room {
    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }
    /// Its parts: the first block, and behind the last.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }
    /// How many blocks of a range are not in it yet.
    pub(crate) fn missing(&self, start: u64, end: u64) -> u64 {
        let inside: u64 = self
            .ranges
            .range(..end)
            .map(|(s, e)| (*e).min(end).saturating_sub((*s).max(start)))
            .sum();
        end.saturating_sub(start) - inside
    }
    pub(crate) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let touching: Vec<_> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(_, e)| **e >= start)
            .map(|(s, e)| (*s, *e))
            .collect();
        for (s, e) in touching {
            self.ranges.remove(&s);
            self.blocks -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.blocks += end - start;
    }
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let touching: Vec<_> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|(_, e)| **e > start)
            .map(|(s, e)| (*s, *e))
            .collect();
        for (s, e) in touching {
            self.ranges.remove(&s);
            self.blocks -= e - s;
            for (from, to) in [(s, start.min(e)), (end.max(s), e)] {
                if from < to {
                    self.ranges.insert(from, to);
                    self.blocks += to - from;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_plain_bytes(
            steps in prop::collection::vec((0u8..4, 0u64..30_000, 0u64..9000), 1..40),
        ) {
            let mut blocks = Blocks::default();
            let mut plain: Vec<u8> = Vec::new();
            for (i, (kind, offset, len)) in steps.into_iter().enumerate() {
                let fill = i as u8 + 1;
                match kind {
                    0 | 1 => {
                        let end = (offset + len) as usize;
                        if plain.len() < end {
                            plain.resize(end, 0);
                        }
                        let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add(at as u8)).collect();
                        plain[offset as usize..end].copy_from_slice(&bytes);
                        // In two parts or three, which end anywhere.
                        let (first, rest) = bytes.split_at(bytes.len() / 3 * usize::from(kind));
                        let (second, third) = rest.split_at(rest.len() / 2);
                        let pieces = Pieces::new(offset, [first, second, third].into_iter());
                        prop_assert_eq!(pieces.bytes(), &bytes[..]);
                        prop_assert_eq!(pieces.len(), bytes.len());
                        blocks.put(&pieces);
                        if len == 0 {
                            blocks.set_len(plain.len() as u64);
                        }
                    }
                    2 => {
                        let end = ((offset + len) as usize).min(plain.len());
                        if (offset as usize) < end {
                            plain[offset as usize..end].fill(0);
                        }
                        blocks.zero(offset, len);
                    }
                    _ => {
                        plain.resize(offset as usize, 0);
                        blocks.set_len(offset);
                    }
                }
                let mut got = vec![7; plain.len() + 10];
                prop_assert_eq!(blocks.read(0, &mut got), plain.len());
                prop_assert_eq!(&got[..plain.len()], &plain[..]);
            }
        }

        #[test]
        fn room_counts_blocks(steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 1..60)) {
            let mut room = Room::default();
            let mut plain = [false; 100];
            for (add, start, len) in steps {
                let end = start + len;
                let missing = (start..end).filter(|i| !plain[*i as usize]).count() as u64;
                prop_assert_eq!(room.missing(start, end), missing);
                (start..end).for_each(|i| plain[i as usize] = add);
                if add { room.insert(start, end) } else { room.remove(start, end) }
                prop_assert_eq!(room.blocks(), plain.iter().filter(|p| **p).count() as u64);
            }
        }
    }
}
