//! What a recovery finds behind the last batch that is known to be durable: verified, and written once more.
//!
//! After a failed flush the system takes what it could not write for clean: it can still be read, further flushes succeed
//! without writing it, and the next loss of power takes it away. A process that is started again cannot tell such bytes from those
//! that are merely not flushed yet. So whatever the store is going to rely upon and does not know to be durable is verified
//! against its checksum and written to where it lies, before the flush that begins a new life. The bytes are the same, so
//! a cut in the middle of that changes nothing. Must never: write a byte that it has not verified.

use crate::behind::UNREADABLE_MAX;
use crate::chunk::Place;
use crate::extents::{Extent, Loc};
use crate::format::BLOCK;
use crate::record::Record;
use crate::state::Inner;
use glowfs_rt::BufMut;
use glowfs_types::checksum::crc32c;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{ChunkId, Result, Status, TargetId};

/// Blocks of data verified at once.
const VERIFY_BLOCKS: usize = 256;

/// Header blocks in the log, of a segment or of a batch: verified bytes and where they lie.
pub(crate) struct Header {
    pub segment: u64,
    pub block: u32,
    pub bytes: Vec<u8>,
}

/// An update whose data may have been lost with the power.
pub(crate) struct Doubt {
    target: TargetId,
    chunk: ChunkId,
    lsn: u64,
    extents: Vec<Extent>,
    crcs: Vec<u32>,
}

/// The first batch whose data is not there, and whether that data lies in a slot: then it was written before the batch.
pub(crate) struct Lost {
    pub lsn: u64,
    pub in_slot: bool,
}

impl Doubt {
    pub fn of(target: TargetId, record: &Record, lsn: u64) -> Option<Self> {
        let Record::Stage { chunk, delta, .. } = record else { return None };
        if delta.damaged {
            return None;
        }
        let (extents, crcs) = (delta.extents.clone(), delta.crcs.clone());
        Some(Self { target, chunk: *chunk, lsn, extents, crcs })
    }
}

impl Inner {
    /// Writes the data of doubtful updates again, as far as it is needed; or the first batch whose data is not there. Data that
    /// was superseded does not count: its place may have been used anew, once the batch that superseded it was durable.
    pub async fn secure_data(&self, doubtful: &[Doubt]) -> Result<Option<Lost>> {
        let mut unreadable = 0;
        for doubt in doubtful {
            let needed = self.still_needed(doubt);
            let mut rest = needed.as_slice();
            // So many blocks are verified one by one, for not all of them could be read. (With very many of those the disk fails, and each may take it seconds: a node's start waits.)
            let mut singly = 0;
            while let Some((loc, _)) = rest.first() {
                let follows = |(i, (next, _)): &(usize, &(Loc, u32))| *next == loc.plus(*i as u32);
                let one_by_one = singly > 0 && unreadable < UNREADABLE_MAX;
                let most = if one_by_one { 1 } else { VERIFY_BLOCKS };
                let n = rest.iter().take(most).enumerate().take_while(follows).count();
                let (now, later) = rest.split_at(n);
                match self.read_matching(now).await {
                    Ok(Some(buf)) => self.write_again(*loc, buf).await?,
                    Ok(None) => {
                        let in_slot = loc.slot().is_some();
                        return Ok(Some(Lost { lsn: doubt.lsn, in_slot }));
                    }
                    Err(_) if n > 1 && unreadable < UNREADABLE_MAX => {
                        singly = n;
                        continue;
                    }
                    // It cannot be read now and shows as damaged later; that is no reason to lose the updates behind it.
                    Err(error) => {
                        unreadable += 1;
                        tracing::warn!(%error, blocks = n, "data of an unflushed update");
                    }
                }
                singly = singly.saturating_sub(n);
                rest = later;
            }
        }
        Ok(None)
    }

    /// Reads blocks that follow one another; `None` if they do not match their checksums, also when they are read again.
    async fn read_matching(&self, blocks: &[(Loc, u32)]) -> Result<Option<BufMut>> {
        let Some((loc, _)) = blocks.first() else { return Ok(None) };
        for _ in 0..2 {
            let (result, buf) = self.read_place(*loc, self.rt.alloc(blocks.len() * BLOCK)).await;
            match result {
                Ok(()) => {
                    let mut read = blocks.iter().zip(buf.chunks(BLOCK));
                    if read.all(|((_, crc), b)| crc32c(b) == *crc) {
                        return Ok(Some(buf));
                    }
                }
                Err(e) if e.status == Status::Corrupt => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Writes header blocks again, and fixes the lengths of the block files.
    pub async fn secure_headers(&self, headers: Vec<Header>) -> Result<()> {
        for h in headers {
            let mut buf = self.rt.alloc(h.bytes.len());
            buf.copy_from_slice(&h.bytes);
            self.write_again(Loc::Log { segment: h.segment, block: h.block }, buf).await?;
        }
        if self.was_clean.get() {
            return Ok(());
        }
        let files: Vec<_> = self.block_files.borrow().values().cloned().collect();
        for file in files {
            let fixed = match file.len() {
                Ok(len) => file.set_len(len).await,
                Err(e) => Err(e),
            };
            fixed.map_err(|e| self.poison("fixing the length of a block file", &e))?;
        }
        Ok(())
    }

    async fn write_again(&self, loc: Loc, buf: BufMut) -> Result<()> {
        let Some((file, offset)) = self.place(loc) else { return Ok(()) };
        if planted(Mutant::CacheTrusted) {
            return Ok(());
        }
        let written = file.write(vec![buf.freeze()], offset).await;
        written.map_err(|e| self.poison("writing what may not be durable again", &e))
    }

    /// The blocks of an update that its chunk still refers to.
    fn still_needed(&self, doubt: &Doubt) -> Vec<(Loc, u32)> {
        let targets = self.targets.borrow();
        let Some(chunk) = targets.get(&doubt.target).and_then(|t| t.chunks.get(&doubt.chunk))
        else {
            return Vec::new();
        };
        let mut out = Vec::new();
        let mut crcs = doubt.crcs.iter();
        for e in &doubt.extents {
            for (k, crc) in (0..e.count).zip(&mut crcs) {
                let (block, loc) = (e.block + k, e.loc.plus(k));
                let same = |p: &Place| p.loc == Some(loc) && p.crc == *crc;
                let versions =
                    std::iter::once(chunk.committed).chain(chunk.pending.iter().map(|d| d.version));
                if versions
                    .into_iter()
                    .any(|v| chunk.places(v, block, block + 1).first().is_some_and(same))
                {
                    out.push((loc, *crc));
                }
            }
        }
        out
    }
}
