//! What lies behind a place where no batch counts: it tells a torn end from damage.
//!
//! Batches are written one after the other, and each says what was durable when it was written. So whatever whole batch is found behind says two things
//! of the one that is missing: whether it was durable (then the store is refused), and that its write had ended (then it was acknowledged, and is damaged).

use crate::format::{BLOCK, BatchHead, SegmentHead};
use crate::state::Inner;
use glowfs_rt::{BufMut, File};
use glowfs_types::{Result, StoreId};
use std::collections::BTreeMap;

/// The log is read in pieces of so many bytes.
const READ_BYTES: usize = 1 << 20;
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

/// Reads a segment file block by block, a big piece at a time.
pub(crate) struct Window {
    file: File,
    at: u64,
    bytes: Option<BufMut>,
}

impl Window {
    pub fn new(file: File) -> Self {
        Self { file, at: 0, bytes: None }
    }
    /// `len` bytes at `at`, or `None` past the end of the file.
    pub async fn get(&mut self, inner: &Inner, at: u64, len: usize) -> Result<Option<&[u8]>> {
        let held = self.bytes.as_ref().map_or(0, |b| b.len());
        let inside = at >= self.at && at + len as u64 <= self.at + held as u64;
        if !inside {
            let buf = inner.rt.alloc(READ_BYTES.max(len.next_multiple_of(BLOCK)));
            let (result, mut buf) = self.file.read(buf, at).await;
            let n = result.map_err(|e| inner.read_error("read of the log", &e))?;
            buf.truncate(n);
            self.at = at;
            self.bytes = Some(buf);
        }
        let start = (at - self.at) as usize;
        Ok(self.bytes.as_ref().and_then(|b| b.get(start..start + len)))
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
            let Some(bytes) = window.get(self, at, BLOCK).await? else { break };
            let Some(head) = BatchHead::peek(bytes).filter(&counts) else { continue };
            if !(1..=HEADER_BLOCKS_MAX).contains(&head.header_blocks) {
                continue;
            }
            let len = head.header_blocks as usize * BLOCK;
            if window.get(self, at, len).await?.is_some_and(|h| head.verify(h)) {
                let began = if head.incarnation >= since { head.lsn } else { 0 };
                behind = behind.and(Behind { durable: head.durable_lsn, began });
            }
        }
        Ok(behind)
    }
}
