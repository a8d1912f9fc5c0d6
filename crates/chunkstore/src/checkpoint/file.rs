//! The file of a checkpoint: a header, then frames of entries, each with its checksum (`docs/formats/chunk-store.md`). Bytes only: reads and writes no file.

use crate::chunk::Chunk;
use crate::codec::{Reader, Writer};
use crate::extents::Extent;
use crate::format::{BLOCK, FORMAT_VERSION};
use crate::record::{
    Delta, get_chunk_id, get_delta, get_extents, put_chunk_id, put_delta, put_extents,
};
use glowfs_types::checksum::crc32c;
use glowfs_types::{ChunkId, ChunkVersion, Error, Result, Status, StoreId, TargetId};

const MAGIC: &[u8; 8] = b"GLOWCKPT";
pub(super) const FRAME_MAGIC: u32 = 0x4d52_4647;
/// Bytes of entries in one frame, unless one entry alone is greater.
pub(super) const FRAME_BYTES: usize = 256 << 10;
/// Entries of a frame that is read, in bytes, at most. Builds before 2026-11-23 put whatever had gathered into one frame.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 30;
/// Bytes before the entries of a frame.
pub(super) const FRAME_HEAD_BYTES: usize = 32;

pub(super) const TARGET: u32 = 1;
pub(super) const CHANNEL: u32 = 2;
pub(super) const CHUNK: u32 = 3;
pub(super) const END: u32 = 4;

/// The first block of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointHead {
    pub store: StoreId,
    pub incarnation: u64,
    /// The last batch it covers.
    pub lsn: u64,
    /// Segments before this one are not needed. (Of those behind it, some may be missing: no chunk refers to them.)
    pub first_segment: u64,
}

impl CheckpointHead {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC);
        w.u32(FORMAT_VERSION);
        w.u32(0);
        w.u128(self.store.0);
        w.u64(self.incarnation);
        w.u64(self.lsn);
        w.u64(self.first_segment);
        w.0.resize(BLOCK - 4, 0);
        let crc = crc32c(&w.0);
        w.u32(crc);
        w.0
    }
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |what| Error::new(Status::Corrupt, format!("checkpoint header: {what}"));
        let (body, crc) = bytes.split_at_checked(BLOCK - 4).ok_or_else(|| bad("too short"))?;
        if &body[..8] != MAGIC {
            return Err(bad("not a checkpoint"));
        }
        let mut r = Reader(&body[8..]);
        if r.u32()? > FORMAT_VERSION {
            return Err(Error::new(
                Status::NewerFormat,
                format!(
                    "the checkpoint has a newer format than {FORMAT_VERSION}, which this build knows; start a newer glowfs"
                ),
            ));
        }
        if crc != crc32c(body).to_le_bytes() {
            return Err(bad("checksum mismatch"));
        }
        r.u32()?;
        Ok(Self {
            store: StoreId(r.u128()?),
            incarnation: r.u64()?,
            lsn: r.u64()?,
            first_segment: r.u64()?,
        })
    }
}

pub(super) fn entry(w: &mut Writer, kind: u32, target: TargetId, body: impl FnOnce(&mut Writer)) {
    let start = w.0.len();
    w.u32(0);
    w.u32(kind);
    w.u64(target.0);
    body(w);
    w.0.resize(w.0.len().next_multiple_of(8), 0);
    w.patch_u32(start, (w.0.len() - start) as u32);
}

/// Entries in parts of `most` bytes, or of one entry that is greater.
pub(super) fn parts(mut rest: &[u8], most: usize) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let mut len = 0;
        while let Ok(next) = Reader(&rest[len..]).u32()
            && (len == 0 || len + next as usize <= most)
        {
            len += next as usize;
        }
        let (part, later) = rest.split_at(len);
        parts.push(part);
        rest = later;
    }
    parts
}

pub(super) fn put_chunk(w: &mut Writer, target: TargetId, id: ChunkId, c: &Chunk) {
    entry(w, CHUNK, target, |w| {
        put_chunk_id(w, id);
        w.u64(c.committed.0);
        w.u32(c.len);
        w.u32(c.chunk_bytes);
        w.u32(u32::from(c.removed));
        w.u32(c.pending.len() as u32);
        w.u64(c.lsn);
        put_extents(w, &c.extents, &c.crcs);
        c.pending.iter().for_each(|d| put_delta(w, d, false));
    });
}

pub(super) fn get_chunk(r: &mut Reader<'_>) -> Result<(ChunkId, Chunk)> {
    let bad = || Error::new(Status::Corrupt, "checkpoint: a chunk that makes no sense");
    let id = get_chunk_id(r)?;
    let committed = ChunkVersion(r.u64()?);
    let len = r.u32()?;
    let chunk_bytes = r.u32()?;
    let removed = r.u32()? != 0;
    let n = r.u32()?;
    let lsn = r.u64()?;
    if !crate::slots::is_chunk_size(chunk_bytes) || len > chunk_bytes {
        return Err(bad());
    }
    let (extents, crcs): (Vec<Extent>, Vec<u32>) = get_extents(r, chunk_bytes)?;
    if crcs.len() != crate::chunk::blocks_for(len) as usize
        || extents.last().is_some_and(|e| e.end() as usize > crcs.len())
    {
        return Err(bad());
    }
    let pending = (0..n).map(|_| get_delta(r).map(|(d, _)| d)).collect::<Result<Vec<Delta>>>()?;
    Ok((
        id,
        Chunk {
            committed,
            len,
            chunk_bytes,
            removed,
            lsn,
            crcs,
            extents,
            pending,
            ..Chunk::default()
        },
    ))
}

/// Builds a frame from entries: header, entries, zeros up to whole blocks.
pub(super) fn frame(number: u64, lsn: u64, entries: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(FRAME_MAGIC);
    w.u32(0);
    w.u64(lsn);
    w.u64(number);
    w.u32(entries.len() as u32);
    w.u32(0);
    w.bytes(entries);
    w.0.resize(w.0.len().next_multiple_of(BLOCK), 0);
    let crc = crc32c(&w.0[8..]);
    w.patch_u32(4, crc);
    w.0
}
