//! A chunk in memory, and what records do to it. The same code runs when a record was written and when it is replayed.

use crate::api::{ChunkState, StageKind};
use crate::extents::{self, Extent, Loc};
use crate::format::BLOCK;
use crate::record::Delta;
use glowfs_types::ChunkVersion;
use glowfs_types::checksum::crc32c;
use std::cell::Cell;
use std::sync::OnceLock;
use zerocopy::IntoBytes;

/// The checksum of a block of zeros.
pub(crate) fn zero_crc() -> u32 {
    static CRC: OnceLock<u32> = OnceLock::new();
    *CRC.get_or_init(|| crc32c(&[0; BLOCK]))
}

/// How many blocks `len` bytes take.
pub(crate) fn blocks_for(len: u32) -> u32 {
    len.div_ceil(BLOCK as u32)
}

/// The committed content and the pending versions of one chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunk {
    pub committed: ChunkVersion,
    pub len: u32,
    pub chunk_bytes: u32,
    pub removed: bool,
    /// The checkpoint that has written this chunk down already.
    pub checkpoint: u32,
    /// The batch that changed it last.
    pub lsn: u64,
    /// Checksums of the blocks up to `len`; a hole has that of zeros.
    pub crcs: Vec<u32>,
    pub extents: Vec<Extent>,
    pub pending: Vec<Delta>,
    pub content_crc: Cell<Option<u32>>,
}

/// A block as some version sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// `None`: a hole.
    pub loc: Option<Loc>,
    pub crc: u32,
}

impl Chunk {
    pub fn newest(&self) -> ChunkVersion {
        self.pending.last().map_or(self.committed, |d| d.version)
    }
    pub fn newest_len(&self) -> u32 {
        self.pending.last().map_or(self.len, |d| d.len)
    }
    /// The size that an update behind the newest version has to have; 0: any, for the chunk does not exist then. (The size in a removal is
    /// whatever it named.)
    pub fn size_for_next(&self) -> u32 {
        let exists = |d: &Delta| d.kind != StageKind::Remove;
        match self.pending.last() {
            Some(d) if exists(d) => d.chunk_bytes,
            Some(_) => 0,
            None if self.removed => 0,
            None => self.chunk_bytes,
        }
    }
    pub fn content_crc(&self) -> u32 {
        if let Some(crc) = self.content_crc.get() {
            return crc;
        }
        let crc = if cfg!(target_endian = "little") {
            crc32c(self.crcs.as_bytes())
        } else {
            crc32c(&self.crcs.iter().flat_map(|c| c.to_le_bytes()).collect::<Vec<u8>>())
        };
        self.content_crc.set(Some(crc));
        crc
    }
    pub fn state(&self) -> ChunkState {
        ChunkState {
            committed: self.committed,
            pending: self.newest(),
            len: self.len,
            content_crc: self.content_crc(),
            chunk_bytes: self.chunk_bytes,
            removed: self.removed,
        }
    }
    /// Memory it takes, roughly.
    pub fn memory_bytes(&self) -> u64 {
        let deltas: usize = self
            .pending
            .iter()
            .map(|d| {
                size_of::<Delta>()
                    + d.extents.capacity() * size_of::<Extent>()
                    + d.crcs.capacity() * 4
            })
            .sum();
        (size_of::<Self>()
            + self.crcs.capacity() * 4
            + self.extents.capacity() * size_of::<Extent>()
            + deltas) as u64
    }

    /// The length as of `version` (pending ones up to it included).
    pub fn len_at(&self, version: ChunkVersion) -> u32 {
        self.pending.iter().rev().find(|d| d.version <= version).map_or(self.len, |d| d.len)
    }

    /// The blocks `[from, to)` as of `version`, in order.
    pub fn places(&self, version: ChunkVersion, from: u32, to: u32) -> Vec<Place> {
        let hole = Place { loc: None, crc: zero_crc() };
        let mut out = vec![hole; (to - from) as usize];
        for e in extents::within(&self.extents, (from, to), self.crcs.len() as u32) {
            for k in 0..e.count {
                let b = e.block + k;
                let crc = self.crcs.get(b as usize).copied().unwrap_or_default();
                out[(b - from) as usize] = Place { loc: Some(e.loc.plus(k)), crc };
            }
        }
        for d in self.pending.iter().take_while(|d| d.version <= version) {
            let keep = if d.resets() { 0 } else { blocks_for(d.len) };
            out.iter_mut().skip(keep.saturating_sub(from) as usize).for_each(|p| *p = hole);
            let mut at = 0;
            for e in &d.extents {
                for k in 0..e.count {
                    let b = e.block + k;
                    if (from..to).contains(&b) {
                        out[(b - from) as usize] = Place {
                            loc: Some(e.loc.plus(k)),
                            crc: d.crcs.get(at).copied().unwrap_or_default(),
                        };
                    }
                    at += 1;
                }
            }
        }
        out
    }

    /// Makes a pending delta the committed content; what it displaced is appended to `removed`.
    pub fn apply(&mut self, d: Delta, removed: &mut Vec<Extent>) {
        self.content_crc.set(None);
        if d.resets() {
            removed.append(&mut self.extents);
            self.crcs.clear();
            self.len = 0;
        }
        let blocks = blocks_for(d.len);
        if d.len < self.len {
            extents::cut(&mut self.extents, blocks, u32::MAX, removed);
        }
        if self.crcs.len() < blocks as usize {
            self.crcs.reserve_exact(blocks as usize - self.crcs.len());
        }
        self.crcs.resize(blocks as usize, zero_crc());
        let mut at = 0;
        for e in &d.extents {
            let n = e.count as usize;
            if let (Some(to), Some(from)) =
                (self.crcs.get_mut(e.block as usize..e.block as usize + n), d.crcs.get(at..at + n))
            {
                to.copy_from_slice(from);
            }
            at += n;
            extents::put(&mut self.extents, *e, removed);
        }
        self.len = d.len;
        self.chunk_bytes = d.chunk_bytes;
        self.removed = d.kind == StageKind::Remove;
        self.committed = d.version;
    }

    /// Every place that the chunk refers to, committed or pending.
    pub fn all_extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter().chain(self.pending.iter().flat_map(|d| d.extents.iter()))
    }
    pub fn refers_to(&self, slot: (u8, u32)) -> bool {
        self.all_extents().any(|e| e.loc.slot() == Some(slot))
    }
    pub fn has_log_extents(&self) -> bool {
        self.all_extents().any(|e| matches!(e.loc, Loc::Log { .. }))
    }
}
