//! Reads: every block is verified against its checksum before a byte of it leaves.

use crate::alloc::corrupt;
use crate::api::ReadOutcome;
use crate::chunk::{Place, blocks_for, zero_crc};
use crate::crc::Joined;
use crate::extents::Loc;
use crate::format::BLOCK;
use crate::slots::bytes_of;
use crate::state::Inner;
use glowfs_rt::backend::is_late;
use glowfs_rt::mem::PAGE_BYTES;
use glowfs_rt::sync::join_all;
use glowfs_rt::{BufMut, File, Instant};
use glowfs_types::checksum::crc32c;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{ChunkId, ChunkVersion, Error, Result, Status, TargetId};
use std::rc::Rc;

/// Parts of the list that lie one behind the other on the disk each, or are a hole.
fn runs(places: &[Place]) -> impl Iterator<Item = &[Place]> {
    places.chunk_by(|a, b| a.loc.map(|l| l.plus(1)) == b.loc)
}

/// What a range of a chunk looked like when the read began.
pub(crate) struct Snapshot {
    pub version: ChunkVersion,
    pub len: u32,
    pub places: Vec<Place>,
}

impl Inner {
    /// The file and the offset in it of a place.
    pub fn place(&self, loc: Loc) -> Option<(File, u64)> {
        match loc {
            Loc::Log { segment, block } => {
                Some((self.log.file_of(segment)?, u64::from(block) * BLOCK as u64))
            }
            Loc::Slot { class, index, block } => {
                let file = self.block_files.borrow().get(&class).cloned()?;
                Some((file, u64::from(index) * bytes_of(class) + u64::from(block) * BLOCK as u64))
            }
        }
    }

    /// Reads whole blocks at a place; less than all is an error.
    pub fn read_place(&self, loc: Loc, buf: BufMut) -> impl Future<Output = (Result<()>, BufMut)> {
        self.read_place_by(loc, buf, Instant::NEVER)
    }
    /// The same, if its turn at the disk comes by then.
    async fn read_place_by(&self, loc: Loc, buf: BufMut, by: Instant) -> (Result<()>, BufMut) {
        let Some((file, offset)) = self.place(loc) else {
            return (Err(corrupt(format!("{}: {loc:?} does not exist", self.dir.path()))), buf);
        };
        let want = buf.len();
        match file.read_by(buf, offset, by).await {
            (Ok(n), buf) if n == want => (Ok(()), buf),
            (Ok(n), buf) => {
                (Err(corrupt(format!("{}: {n} of {want} bytes at {loc:?}", self.dir.path()))), buf)
            }
            (Err(e), buf) if is_late(&e) => {
                (Err(Error::new(Status::TimedOut, format!("{}: {e}", self.dir.path()))), buf)
            }
            (Err(e), buf) => (Err(self.read_error(&format!("read of {loc:?}"), &e)), buf),
        }
    }

    pub fn snapshot(
        &self,
        target: TargetId,
        id: ChunkId,
        version: Option<ChunkVersion>,
        offset: u32,
        len: usize,
    ) -> Result<Snapshot> {
        let targets = self.targets.borrow();
        let t = targets.get(&target).ok_or_else(|| Self::no_target(target))?;
        let none = Snapshot { version: ChunkVersion(0), len: 0, places: Vec::new() };
        let Some(chunk) = t.chunks.get(&id) else { return Ok(none) };
        let version = version.unwrap_or(chunk.committed);
        if chunk.removed && version <= chunk.committed {
            return Ok(Snapshot { version: chunk.committed, ..none });
        }
        let chunk_len = chunk.len_at(version);
        let end = (u64::from(offset) + len as u64).min(u64::from(chunk_len)) as u32;
        let from = offset / BLOCK as u32;
        let to = blocks_for(end).max(from);
        Ok(Snapshot { version, len: chunk_len, places: chunk.places(version, from, to) })
    }

    /// Reads content as of `version` (`None`: committed) into `buf`, if its turn at the disk comes by then.
    pub async fn read_at(
        self: &Rc<Self>,
        target: TargetId,
        id: ChunkId,
        version: Option<ChunkVersion>,
        offset: u32,
        buf: BufMut,
        by: Instant,
    ) -> (Result<ReadOutcome>, BufMut) {
        let guard = self.epochs.enter();
        let want = buf.len();
        let snap = match self.snapshot(target, id, version, offset, want) {
            Ok(s) => s,
            Err(e) => return (Err(e), buf),
        };
        let aligned = (offset as usize).is_multiple_of(BLOCK)
            && (buf.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
            && want.is_multiple_of(BLOCK);
        let (result, mut buf) = if aligned {
            self.read_aligned(&snap.places, buf, by).await
        } else {
            let start = offset as usize % BLOCK;
            Box::pin(self.read_unaligned(&snap.places, start, buf, by)).await
        };
        drop(guard);
        let outcome = match result {
            Ok(crc) => {
                let len = snap.len.saturating_sub(offset).min(want as u32);
                Ok(ReadOutcome { len, version: snap.version, crc })
            }
            Err(e) => {
                buf.fill(0);
                Err(e.context(format!("target {target}, chunk {id}, version {}", snap.version)))
            }
        };
        (outcome, buf)
    }

    /// Whole blocks, and zeros behind them; the checksum of all of it.
    async fn read_aligned(
        &self,
        places: &[Place],
        mut rest: BufMut,
        by: Instant,
    ) -> (Result<u32>, BufMut) {
        let direct = rest.split_to(places.len() * BLOCK);
        let (joined, mut whole) = self.read_blocks(places, direct, by).await;
        rest.fill(0);
        let result = joined.map(|j| j.then_zeros(rest.len()));
        if let Err(rest) = whole.unsplit(rest) {
            let mut copy = self.rt.alloc(whole.len() + rest.len());
            copy[..whole.len()].copy_from_slice(&whole);
            copy[whole.len()..].copy_from_slice(&rest);
            return (result, copy);
        }
        (result, whole)
    }

    /// The bytes from `start` of the first block on, and zeros behind them; the checksum of all of it.
    async fn read_unaligned(
        &self,
        places: &[Place],
        start: usize,
        mut buf: BufMut,
        by: Instant,
    ) -> (Result<u32>, BufMut) {
        let blocks = self.rt.alloc(places.len() * BLOCK);
        let (joined, blocks) = self.read_blocks(places, blocks, by).await;
        let have = blocks.len().saturating_sub(start).min(buf.len());
        if joined.is_ok() && have > 0 {
            buf[..have].copy_from_slice(&blocks[start..start + have]);
            buf[have..].fill(0);
        } else {
            buf.fill(0);
        }
        (joined.map(|_| crc32c(&buf)), buf)
    }

    /// Fills `buf` with blocks, verified; their joined checksum.
    async fn read_blocks(
        &self,
        places: &[Place],
        buf: BufMut,
        by: Instant,
    ) -> (Result<Joined>, BufMut) {
        let first = runs(places).next().unwrap_or_default();
        if first.len() == places.len()
            && let [Place { loc: Some(loc), .. }, ..] = first
        {
            let (result, buf) = self.read_place_by(*loc, buf, by).await;
            return (result.and_then(|()| verify(places, &buf)), buf);
        }
        Box::pin(self.read_runs(places, buf, by)).await
    }

    async fn read_runs(
        &self,
        places: &[Place],
        mut buf: BufMut,
        by: Instant,
    ) -> (Result<Joined>, BufMut) {
        let pieces: Vec<_> =
            runs(places).map(|run| (run, buf.split_to(run.len() * BLOCK))).collect();
        let reads = pieces.into_iter().map(|(run, piece)| self.read_run(run, piece, by));
        let mut joined = Ok(Joined::default());
        let mut whole: Option<BufMut> = None;
        let mut apart: Vec<BufMut> = Vec::new();
        for (result, piece) in join_all(reads).await {
            joined = joined.and_then(|j: Joined| result.map(|r| j.append(r)));
            match &mut whole {
                Some(w) => {
                    if let Err(piece) = w.unsplit(piece) {
                        apart.push(piece);
                    }
                }
                None => whole = Some(piece),
            }
        }
        match whole {
            Some(w) if apart.is_empty() => (joined, w),
            Some(w) => {
                let total = w.len() + apart.iter().map(|p| p.len()).sum::<usize>();
                let mut copy = self.rt.alloc(total);
                let mut at = 0;
                for p in std::iter::once(&w).chain(apart.iter()) {
                    copy[at..at + p.len()].copy_from_slice(p);
                    at += p.len();
                }
                (joined, copy)
            }
            None => (joined, buf),
        }
    }

    async fn read_run(
        &self,
        run: &[Place],
        mut piece: BufMut,
        by: Instant,
    ) -> (Result<Joined>, BufMut) {
        let Some(Place { loc: Some(loc), .. }) = run.first() else {
            piece.fill(0);
            let mut joined = Joined::default();
            run.iter().for_each(|_| joined.push_block(zero_crc()));
            return (Ok(joined), piece);
        };
        let (result, piece) = self.read_place_by(*loc, piece, by).await;
        (result.and_then(|()| verify(run, &piece)), piece)
    }
}

/// Checks the blocks of one run; their joined checksum.
fn verify(run: &[Place], bytes: &[u8]) -> Result<Joined> {
    let mut joined = Joined::default();
    for (place, block) in run.iter().zip(bytes.chunks(BLOCK)) {
        let seen = crc32c(block);
        if seen != place.crc && !planted(Mutant::ChecksumUnchecked) {
            return Err(corrupt(format!(
                "checksum mismatch at {:?}; read another replica, this one needs repair",
                place.loc
            )));
        }
        joined.push_block(seen);
    }
    Ok(joined)
}
