//! Sparse contents of a file.

use glowfs_client::Found;
use std::cell::RefCell;
use std::collections::BTreeMap;

const PIECE: u64 = 64 << 10;

/// Bytes in pieces; missing ones are zeros.
#[derive(Default, Clone)]
pub struct Content(RefCell<BTreeMap<u64, Box<[u8]>>>);

impl Content {
    /// What takes the place of what was cut off.
    pub const CUT_OFF: &[u8] = b"this is what stale handles read";

    /// Contents that were cut off.
    pub fn cut_off() -> Self {
        let content = Self::default();
        content.write(0, Self::CUT_OFF);
        content
    }
    fn each(offset: u64, len: usize, mut act: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut at = 0;
        while at < len {
            let pos = offset + at as u64;
            let within = (pos % PIECE) as usize;
            let n = (PIECE as usize - within).min(len - at);
            act(pos / PIECE, within, at..at + n);
            at += n;
        }
    }
    /// Fills `buf`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Found {
        let pieces = self.0.borrow();
        let mut found = Found::default();
        Self::each(offset, buf.len(), |index, within, range| match pieces.get(&index) {
            Some(p) => {
                found.add(range.start, Found::first(range.len()));
                let n = range.len();
                buf[range].copy_from_slice(&p[within..within + n]);
            }
            None => buf[range].fill(0),
        });
        found
    }
    /// Writes `bytes`.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut pieces = self.0.borrow_mut();
        Self::each(offset, bytes.len(), |index, within, range| {
            let p = pieces.entry(index).or_insert_with(|| vec![0; PIECE as usize].into());
            let n = range.len();
            p[within..within + n].copy_from_slice(&bytes[range]);
        });
    }
    /// Forgets everything from `len` on.
    pub fn cut(&self, len: u64) {
        let mut pieces = self.0.borrow_mut();
        let keep = len.div_ceil(PIECE);
        pieces.split_off(&keep);
        if let Some(p) = pieces.get_mut(&(len / PIECE)) {
            p[(len % PIECE) as usize..].fill(0);
        }
    }
    /// As [`crate::FileData::seek`].
    pub fn seek(&self, offset: u64, len: u64, data: bool) -> Option<u64> {
        if offset >= len {
            return None;
        }
        let pieces = self.0.borrow();
        let found = (offset / PIECE..=(len - 1) / PIECE).find(|i| pieces.contains_key(i) == data);
        let found = found.map(|i| (i * PIECE).max(offset));
        if data { found } else { found.or(Some(len)) }
    }
    /// Bytes held.
    pub fn allocated(&self) -> u64 {
        self.0.borrow().len() as u64 * PIECE
    }
}
