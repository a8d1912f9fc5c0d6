//! What lies behind a place where no batch counts: it tells a torn end from damage.
//!
//! Batches are written one after the other, and each says what was durable when it was written. So whatever whole batch is found behind says two things
//! of the one that is missing: whether it was durable (then the store is refused), and that its write had ended (then it was acknowledged, and is damaged).

use crate::format::{BLOCK, BatchHead, SegmentHead};
use crate::state::Inner;
use glowfs_rt::{BufMut, File};
use glowfs_types::{Result, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// The log is read in pieces of so many bytes.
const READ_BYTES: usize = 1 << 20;
/// So many blocks of a segment, at most, a start does without that cannot be read: with more it is the disk that fails, and each may take it seconds to give up.
pub(crate) const UNREADABLE_MAX: usize = 32;
/// Header blocks of one batch at most.
pub(crate) const HEADER_BLOCKS_MAX: u32 = 1 << 10;

/// A segment file with a whole header.
pub(crate) struct Found {
    pub head: SegmentHead,
    pub file: File,
    pub index: u32,
}

/// What whole batches, and headers of segments, say of those before them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Behind {
    /// Every batch up to this one was durable.
    pub durable: u64,
    /// The writes of all batches before this one had ended.
    pub began: u64,
}

impl Behind {
    fn and(self, other: Behind) -> Behind {
        Behind { durable: self.durable.max(other.durable), began: self.began.max(other.began) }
    }
}

/// What is found at a place of a segment file.
pub(crate) enum Seen<'a> {
    Bytes(&'a [u8]),
    /// A block of it cannot be read.
    Unreadable,
    /// The file ends before.
    End,
}

/// Reads a segment file block by block, a big piece at a time. A block that cannot be read spoils no other: what it held may be long dead.
pub(crate) struct Window {
    file: File,
    at: u64,
    bytes: Option<BufMut>,
    /// Blocks that could not be read, by their number in the file.
    unreadable: BTreeSet<u64>,
}

impl Window {
    pub fn new(file: File) -> Self {
        Self { file, at: 0, bytes: None, unreadable: BTreeSet::new() }
    }
    /// What lies at `at`, so many bytes of it.
    pub async fn get(&mut self, inner: &Inner, at: u64, len: usize) -> Result<Seen<'_>> {
        let end = at + len as u64;
        let held = self.bytes.as_ref().map_or(0, |b| b.len());
        if at < self.at || end > self.at + held as u64 {
            let want = READ_BYTES.max(len.next_multiple_of(BLOCK));
            let piece = self.read(inner, at, want).await?;
            (self.at, self.bytes) = (at, Some(piece));
        }
        let blocks = at / BLOCK as u64..end.div_ceil(BLOCK as u64);
        if self.unreadable.range(blocks).next().is_some() {
            return Ok(Seen::Unreadable);
        }
        let start = (at - self.at) as usize;
        let found = self.bytes.as_ref().and_then(|b| b.get(start..start + len));
        Ok(found.map_or(Seen::End, Seen::Bytes))
    }
    /// The header blocks of a batch where one may have to be, or `None` past the end of the file. Not to read them is not to know what was acknowledged.
    pub async fn header(&mut self, inner: &Inner, at: u64, len: usize) -> Result<Option<&[u8]>> {
        match self.get(inner, at, len).await? {
            Seen::Bytes(bytes) => Ok(Some(bytes)),
            Seen::End => Ok(None),
            Seen::Unreadable => {
                let what =
                    format!("the block at byte {at}, where a batch may begin, is unreadable");
                Err(inner.read_error("read of the log", &what))
            }
        }
    }

    async fn read(&mut self, inner: &Inner, at: u64, want: usize) -> Result<BufMut> {
        let number = |at: u64| at / BLOCK as u64;
        let blocks = number(at)..number(at + want as u64);
        self.unreadable.retain(|b| !blocks.contains(b));
        let (result, mut piece) = self.file.read(inner.rt.alloc(want), at).await;
        let error = match result {
            Ok(n) => {
                piece.truncate(n);
                return Ok(piece);
            }
            Err(e) => e,
        };
        let disk = inner.dir.path();
        tracing::warn!(disk, at, %error, "a piece of the log cannot be read; its blocks are read one by one");
        let mut got = 0;
        while got < want {
            let place = at + got as u64;
            let (result, block) = self.file.read(inner.rt.alloc(BLOCK), place).await;
            let n = match result {
                Ok(n) => n,
                Err(e) if self.unreadable.len() >= UNREADABLE_MAX => {
                    return Err(inner.read_error("read of the log", &e));
                }
                Err(_) => {
                    self.unreadable.insert(number(place));
                    got += BLOCK;
                    continue;
                }
            };
            piece[got..got + n].copy_from_slice(&block[..n]);
            got += n;
            if n < BLOCK {
                break;
            }
        }
        piece.truncate(got);
        Ok(piece)
    }
}

impl Inner {
    /// Looks at everything behind a place, from batch `lsn` on.
    pub async fn behind(
        &self,
        found: &BTreeMap<u64, Found>,
        seq: u64,
        block: u32,
        lsn: u64,
    ) -> Result<Behind> {
        let mut behind = Behind::default();
        for (s, f) in found.range(seq..) {
            let from = if *s == seq { block } else { 1 };
            if *s > seq {
                behind.began = behind.began.max(f.head.first_lsn);
            }
            let counts = |head: &BatchHead| {
                head.store == f.head.store
                    && head.segment == *s
                    && head.lsn >= lsn
                    && head.incarnation == f.head.incarnation
            };
            behind = behind.and(self.behind_in(f.file.clone(), from, 0, counts).await?);
        }
        Ok(behind)
    }

    /// The same of a file without a valid segment header, of batches that the checkpoint does not cover. Those of lives before `since` may be what a start
    /// has cut off already.
    pub async fn behind_headless(
        &self,
        file: File,
        store: StoreId,
        first_segment: u64,
        covered: u64,
        since: u64,
    ) -> Result<Behind> {
        let counts = |head: &BatchHead| {
            head.store == store && head.segment >= first_segment && head.lsn > covered
        };
        self.behind_in(file, 1, since, counts).await
    }

    /// What the whole batches of a file say, from a block on.
    async fn behind_in(
        &self,
        file: File,
        from: u32,
        since: u64,
        counts: impl Fn(&BatchHead) -> bool,
    ) -> Result<Behind> {
        let mut behind = Behind::default();
        let mut window = Window::new(file);
        let blocks = (self.superblock.borrow().log_segment_bytes / BLOCK as u64) as u32;
        for b in from..blocks {
            let at = u64::from(b) * BLOCK as u64;
            let bytes = match window.get(self, at, BLOCK).await? {
                Seen::Bytes(bytes) => bytes,
                // As one that is damaged: what was there may have been anything.
                Seen::Unreadable => continue,
                Seen::End => break,
            };
            let Some(head) = BatchHead::peek(bytes).filter(&counts) else { continue };
            if !(1..=HEADER_BLOCKS_MAX).contains(&head.header_blocks) {
                continue;
            }
            let len = head.header_blocks as usize * BLOCK;
            let header = window.get(self, at, len).await?;
            if matches!(header, Seen::Bytes(h) if head.verify(h)) {
                let began = if head.incarnation >= since { head.lsn } else { 0 };
                behind = behind.and(Behind { durable: head.durable_lsn, began });
            }
        }
        Ok(behind)
    }
}
