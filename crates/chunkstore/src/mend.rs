//! Content that is damaged at rest: what of it is left, and mending it.
//!
//! A block is known by its checksum, which stands with the chunk and is trusted. So its right bytes can be recognised, wherever they
//! come from, and can be written again where they lay: nothing that the store knows of the chunk changes, so it may be done
//! whatever is under way on it. A crash in between leaves the block as damaged as it was.
//!
//! Must never: write a block that does not match the checksum it stands with.

use crate::alloc::corrupt;
use crate::api::ScrubResult;
use crate::chunk::{Chunk, blocks_for, zero_crc};
use crate::extents::Loc;
use crate::format::BLOCK;
use crate::state::Inner;
use glowfs_rt::{Buf, BufMut};
use glowfs_types::checksum::crc32c;
use glowfs_types::{ChunkId, ChunkVersion, Error, Result, Status, TargetId};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// Blocks read at once.
const STEP: usize = 256;

/// A block that is not what was stored, or cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlock {
    /// Which block of the chunk.
    pub block: u32,
    /// The checksum of what was stored.
    pub crc: u32,
}

/// The whole content of a chunk, as far as it is sound.
pub struct AsIs {
    /// The version that was read; 0 if the chunk does not exist.
    pub version: ChunkVersion,
    /// The bytes; zeros where blocks are damaged.
    pub bytes: BufMut,
    /// A checksum for each block: of the piece of the content in it, but of a damaged block that of what was stored.
    pub crcs: Vec<u32>,
    /// How many blocks are damaged.
    pub damaged: u32,
}

/// The stored blocks of versions of a chunk, each once, in the order of their places.
fn stored(chunk: &Chunk, versions: impl Iterator<Item = ChunkVersion>) -> Vec<(Loc, BadBlock)> {
    let mut places = BTreeMap::new();
    for version in versions {
        let all = chunk.places(version, 0, blocks_for(chunk.len_at(version)));
        for (block, place) in (0..).zip(all) {
            if let Some(loc) = place.loc {
                places.insert(loc, BadBlock { block, crc: place.crc });
            }
        }
    }
    places.into_iter().collect()
}

impl Inner {
    /// The blocks of the committed content and of pending versions that do not match their checksums.
    pub async fn bad_blocks(&self, target: TargetId, id: ChunkId) -> Result<Vec<BadBlock>> {
        let _guard = self.epochs.enter();
        let places = {
            let targets = self.targets.borrow();
            let t = targets.get(&target).ok_or_else(|| Self::no_target(target))?;
            let Some(chunk) = t.chunks.get(&id) else { return Ok(Vec::new()) };
            let pending = chunk.pending.iter().map(|d| d.version);
            stored(chunk, std::iter::once(chunk.committed).chain(pending))
        };
        Ok(self.check(&places).await)
    }

    /// See [`crate::Store::scrub_next`].
    pub async fn scrub(
        &self,
        target: TargetId,
        after: Option<ChunkId>,
    ) -> Result<Option<ScrubResult>> {
        let from = after.map_or(Unbounded, Excluded);
        let whole = |c: &Chunk| c.committed.0 > 0 && !c.removed;
        let next = self.next_chunk(target, from, Unbounded, whole).await;
        // Nothing is awaited until what it refers to is kept.
        let _guard = self.epochs.enter();
        let (id, version, places) = {
            let targets = self.targets.borrow();
            let t = targets.get(&target).ok_or_else(|| Self::no_target(target))?;
            let next = next.and_then(|id| Some((id, t.chunks.get(&id)?)));
            let Some((id, chunk)) = next else { return Ok(None) };
            (id, chunk.committed, stored(chunk, std::iter::once(chunk.committed)))
        };
        let mut bad_blocks: Vec<u32> = self.check(&places).await.iter().map(|b| b.block).collect();
        bad_blocks.sort_unstable();
        let bytes = (places.len() * BLOCK) as u64;
        Ok(Some(ScrubResult { chunk: id, version, bytes, bad_blocks }))
    }

    /// Which of these blocks (in the order of their places) are bad.
    async fn check(&self, places: &[(Loc, BadBlock)]) -> Vec<BadBlock> {
        let mut bad = Vec::new();
        let mut rest = places;
        while let Some((first, _)) = rest.first() {
            let follows = |(i, (loc, _)): &(usize, &(Loc, BadBlock))| *loc == first.plus(*i as u32);
            let n = rest.iter().take(STEP).enumerate().take_while(follows).count();
            let (now, later) = rest.split_at(n);
            self.check_run(now, &mut bad).await;
            rest = later;
        }
        bad
    }

    /// Appends those of blocks that lie one behind the other which are bad.
    async fn check_run(&self, run: &[(Loc, BadBlock)], bad: &mut Vec<BadBlock>) {
        let Some((first, _)) = run.first() else { return };
        let (result, buf) = self.read_place(*first, self.rt.alloc(run.len() * BLOCK)).await;
        if result.is_ok() {
            let blocks = run.iter().zip(buf.chunks(BLOCK));
            bad.extend(blocks.filter(|((_, b), bytes)| crc32c(bytes) != b.crc).map(|(r, _)| r.1));
            return;
        }
        // One that cannot be read says nothing of the others.
        for (loc, block) in run {
            if !self.matches(*loc, block.crc).await {
                bad.push(*block);
            }
        }
    }

    async fn matches(&self, loc: Loc, crc: u32) -> bool {
        let (result, buf) = self.read_place(loc, self.rt.alloc(BLOCK)).await;
        result.is_ok() && crc32c(&buf) == crc
    }

    /// See [`crate::Store::mend`].
    pub async fn mend(
        &self,
        target: TargetId,
        id: ChunkId,
        block: u32,
        bytes: Buf,
    ) -> Result<bool> {
        self.check_open()?;
        if bytes.len() != BLOCK {
            return Err(Error::new(Status::InvalidArgument, "a block to be mended is 4 KiB"));
        }
        let crc = crc32c(&bytes);
        // Until it is let go, no place that is referred to now gets another use.
        let _guard = self.epochs.enter();
        let places = self.places_of(target, id, block, crc)?;
        for loc in &places {
            if self.matches(*loc, crc).await {
                continue;
            }
            self.write_mended(*loc, bytes.clone()).await?;
            if !self.matches(*loc, crc).await {
                return Err(corrupt(format!(
                    "{}: {loc:?} does not keep what is written",
                    self.dir.path()
                )));
            }
        }
        Ok(!places.is_empty())
    }

    /// See [`crate::Store::find_block`].
    pub async fn find_block(
        &self,
        target: TargetId,
        id: ChunkId,
        block: u32,
        crc: u32,
    ) -> Result<Option<BufMut>> {
        if crc == zero_crc() {
            let mut zeros = self.rt.alloc(BLOCK);
            zeros.fill(0);
            return Ok(Some(zeros));
        }
        let _guard = self.epochs.enter();
        for loc in self.places_of(target, id, block, crc)? {
            let (result, buf) = self.read_place(loc, self.rt.alloc(BLOCK)).await;
            if result.is_ok() && crc32c(&buf) == crc {
                return Ok(Some(buf));
            }
        }
        Ok(None)
    }

    /// Where versions of the chunk have a block of this content.
    fn places_of(&self, target: TargetId, id: ChunkId, block: u32, crc: u32) -> Result<Vec<Loc>> {
        let targets = self.targets.borrow();
        let t = targets.get(&target).ok_or_else(|| Self::no_target(target))?;
        let Some(chunk) = t.chunks.get(&id) else { return Ok(Vec::new()) };
        let pending = chunk.pending.iter().map(|d| d.version);
        let mut places: Vec<Loc> = std::iter::once(chunk.committed)
            .chain(pending)
            .flat_map(|v| chunk.places(v, block, block + 1))
            .filter(|p| p.crc == crc)
            .filter_map(|p| p.loc)
            .collect();
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    async fn write_mended(&self, loc: Loc, bytes: Buf) -> Result<()> {
        let Some((file, offset)) = self.place(loc) else {
            return Err(corrupt(format!("{}: {loc:?} does not exist", self.dir.path())));
        };
        // A place that takes no write is not the end of the store: the content can go elsewhere, and other writes tell whether the disk
        // still takes any.
        let failed = |e: std::io::Error| {
            let what = format!("{}: mending {loc:?}: {e}", self.dir.path());
            Error::new(Status::DiskFailed, what)
        };
        file.write(vec![bytes], offset).await.map_err(failed)?;
        // A flush that failed is, for it may have been of others' data, and is told once.
        file.sync().await.map_err(|e| self.poison("flush of a mended block", &e))
    }

    /// See [`crate::Store::read_as_is`].
    pub async fn read_as_is(
        &self,
        target: TargetId,
        id: ChunkId,
        version: Option<ChunkVersion>,
    ) -> Result<AsIs> {
        let _guard = self.epochs.enter();
        let snap = self.snapshot(target, id, version, 0, u32::MAX as usize)?;
        let mut whole = self.rt.alloc(snap.places.len() * BLOCK);
        let mut crcs = Vec::with_capacity(snap.places.len());
        let mut damaged = 0;
        for (place, out) in snap.places.iter().zip(whole.chunks_mut(BLOCK)) {
            let piece = (snap.len as usize - crcs.len() * BLOCK).min(BLOCK);
            let Some(loc) = place.loc else {
                out.fill(0);
                crcs.push(crc32c(&out[..piece]));
                continue;
            };
            let (result, buf) = self.read_place(loc, self.rt.alloc(BLOCK)).await;
            if result.is_ok() && crc32c(&buf) == place.crc {
                out.copy_from_slice(&buf);
                crcs.push(crc32c(&out[..piece]));
            } else {
                out.fill(0);
                crcs.push(place.crc);
                damaged += 1;
            }
        }
        whole.truncate(snap.len as usize);
        Ok(AsIs { version: snap.version, bytes: whole, crcs, damaged })
    }
}
