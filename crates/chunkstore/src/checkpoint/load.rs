//! Reads a checkpoint at start-up. What is wrong in it refuses the store: nothing is guessed.

use super::CHECKPOINT;
use super::file::{
    CHANNEL, CHUNK, CheckpointHead, END, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, FRAME_MAGIC, TARGET,
    get_chunk,
};
use crate::codec::Reader;
use crate::format::BLOCK;
use crate::record::get_channel;
use crate::state::{Inner, Target};
use glowfs_rt::File;
use glowfs_types::checksum::crc32c;
use glowfs_types::{Error, Result, Status, StoreId, TargetId};
use std::collections::BTreeMap;

/// What a checkpoint holds.
pub(crate) struct Loaded {
    pub head: CheckpointHead,
    pub targets: BTreeMap<TargetId, Target>,
    /// What was written of its file, which may be longer.
    pub bytes: u64,
}

/// Reads a whole checkpoint file.
pub(crate) struct Loader {
    /// The last batch that the checkpoint covers.
    lsn: u64,
    targets: BTreeMap<TargetId, Target>,
    chunks: u64,
    ended: bool,
}

impl Inner {
    pub async fn load_checkpoint(&self, file: &File, store: StoreId) -> Result<Loaded> {
        let bad = |what: &str| {
            Error::new(
                Status::Corrupt,
                format!(
                    "{}/{CHECKPOINT}: {what}; replace the disk and let the replicas be rebuilt",
                    self.dir.path()
                ),
            )
        };
        let read = async |at: u64, len: usize| -> Result<glowfs_rt::BufMut> {
            let (r, buf) = file.read(self.rt.alloc(len), at).await;
            match r {
                Ok(n) if n == len => Ok(buf),
                Ok(_) => Err(bad("cut short")),
                Err(e) => Err(self.read_error("read of the checkpoint", &e)),
            }
        };
        let head = CheckpointHead::decode(&read(0, BLOCK).await?)
            .map_err(|e| e.context(self.dir.path()))?;
        if head.store != store {
            return Err(bad("belongs to another store"));
        }
        let mut loader =
            Loader { lsn: head.lsn, targets: BTreeMap::new(), chunks: 0, ended: false };
        let file_bytes = file.len().map_err(|e| self.read_error("read of the checkpoint", &e))?;
        let mut at = BLOCK as u64;
        let mut number = 0;
        while !loader.ended {
            let first = read(at, BLOCK).await?;
            let mut r = Reader(&first);
            let (magic, crc, lsn, n, bytes) =
                (r.u32()?, r.u32()?, r.u64()?, r.u64()?, r.u32()? as usize);
            if magic != FRAME_MAGIC || lsn != head.lsn || n != number || bytes > FRAME_BYTES_MAX {
                return Err(bad("a frame is not where it should be"));
            }
            let total = (FRAME_HEAD_BYTES + bytes).next_multiple_of(BLOCK);
            if at + total as u64 > file_bytes {
                return Err(bad("cut short"));
            }
            let whole = if total == BLOCK { first } else { read(at, total).await? };
            if crc32c(&whole[8..]) != crc {
                return Err(bad(&format!("checksum mismatch in frame {number}")));
            }
            loader
                .frame(&whole[FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + bytes])
                .map_err(|e| bad(&e.message))?;
            at += total as u64;
            number += 1;
        }
        Ok(Loaded { head, targets: loader.targets, bytes: at })
    }
}

impl Loader {
    fn frame(&mut self, entries: &[u8]) -> Result<()> {
        let bad = |what: &str| Error::new(Status::Corrupt, what.to_owned());
        let mut rest = Reader(entries);
        while !rest.0.is_empty() {
            let len = Reader(rest.0).u32()? as usize;
            if len < 16 {
                return Err(bad("an entry without a length"));
            }
            let mut r = Reader(rest.bytes(len)?);
            r.u32()?;
            let kind = r.u32()?;
            let target = TargetId(r.u64()?);
            match kind {
                TARGET => {
                    let n = r.u32()? as usize;
                    self.targets.entry(target).or_default().meta = r.bytes(n)?.to_vec();
                }
                CHANNEL => {
                    let c = get_channel(&mut r)?;
                    let t = self
                        .targets
                        .get_mut(&target)
                        .ok_or_else(|| bad("a channel without its target"))?;
                    t.channels.insert((c.client, c.channel), c);
                }
                CHUNK => {
                    let (id, chunk) = get_chunk(&mut r)?;
                    if chunk.lsn > self.lsn {
                        // Its flush would be waited for for ever.
                        return Err(bad("a chunk that changed after the checkpoint"));
                    }
                    let t = self
                        .targets
                        .get_mut(&target)
                        .ok_or_else(|| bad("a chunk without its target"))?;
                    if !chunk.pending.is_empty() {
                        t.pending.insert(id);
                    }
                    t.tombstones += usize::from(chunk.removed);
                    let old = t.chunks.insert(id, chunk);
                    t.tombstones -= usize::from(old.is_some_and(|c| c.removed));
                    self.chunks += 1;
                }
                END => {
                    self.ended = true;
                    if r.u64()? != self.chunks {
                        return Err(bad("the number of chunks is wrong"));
                    }
                }
                k => return Err(bad(&format!("unknown kind of entry {k}"))),
            }
        }
        Ok(())
    }
}
