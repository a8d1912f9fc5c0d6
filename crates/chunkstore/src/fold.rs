//! Folding: blocks that lie in old log segments are copied into slots, so that the segments can go.
//!
//! A block goes back to the position in its chunk's slot that it superseded, where there is one: that position is
//! dead (the record that superseded it is durable, and no reader from before is left). Otherwise it gets a fresh slot.

use crate::chunk::Chunk;
use crate::extents::{Extent, Loc};
use crate::format::BLOCK;
use crate::slots::{blocks_of, bytes_of};
use crate::state::Inner;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, BufMut, Duration};
use glowfs_types::checksum::crc32c;
use glowfs_types::{ChunkId, Error, Result, Status, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Chunks folded side by side.
const FOLD_CHUNKS: usize = 16;
/// Readings of a block that comes wrongly, before it is copied as it is,
const READINGS_MAX: u32 = 8;
/// and the pause between them.
const READING_PAUSE: Duration = Duration::from_millis(1);

/// Where blocks may go.
#[derive(Clone, Copy)]
struct How {
    /// To where the chunk has a slot already.
    in_place: bool,
    /// To slots that are taken for it.
    fresh: bool,
}

/// The checksums of blocks in the log, by their places.
#[derive(Default)]
struct Checksums(BTreeMap<Loc, u32>);

impl Checksums {
    /// Those of an extent, whose first block has the first of `crcs`.
    fn note(&mut self, e: &Extent, crcs: &[u32]) {
        self.0.extend((0..e.count).zip(crcs).map(|(k, crc)| (e.loc.plus(k), *crc)));
    }

    fn fits(&self, loc: Loc, block: &[u8]) -> bool {
        self.0.get(&loc).is_some_and(|crc| crc32c(block) == *crc)
    }
}

fn is_old(e: &Extent, before: u64) -> bool {
    matches!(e.loc, Loc::Log { segment, .. } if segment < before)
}

/// Splits `e` into parts that have a dead position in a slot of the chunk, and the rest.
fn place_in_slots(
    chunk: &Chunk,
    e: Extent,
    placed: &mut Vec<(Extent, Loc)>,
    rest: &mut Vec<Extent>,
) {
    let mut todo = vec![e];
    for s in &chunk.extents {
        let Loc::Slot { class, index, block } = s.loc else { continue };
        let Some(start) = s.block.checked_sub(block) else { continue };
        let end = start + blocks_of(class);
        let mut next = Vec::new();
        for t in todo {
            let Some(inside) = t.clip(start, end) else {
                next.push(t);
                continue;
            };
            placed.push((inside, Loc::Slot { class, index, block: inside.block - start }));
            next.extend(t.clip(0, start));
            next.extend(t.clip(end, u32::MAX));
        }
        todo = next;
        if todo.is_empty() {
            return;
        }
    }
    rest.extend(todo);
}

/// Groups extents whose blocks follow one another, as `(first block, extents)`; all in one group if they are dense.
fn groups(mut list: Vec<Extent>) -> Vec<Vec<Extent>> {
    list.sort_by_key(|e| e.block);
    let (Some(first), Some(last)) = (list.first(), list.last()) else { return Vec::new() };
    let span = last.end() - first.block;
    let total: u32 = list.iter().map(|e| e.count).sum();
    if u64::from(total) * 2 >= u64::from(span) {
        return vec![list];
    }
    let mut out: Vec<Vec<Extent>> = Vec::new();
    for e in list {
        match out.last_mut() {
            Some(g) if g.last().is_some_and(|l| l.end() == e.block) => g.push(e),
            _ => out.push(vec![e]),
        }
    }
    out
}

impl Inner {
    /// Empties all segments before `segment` of blocks that chunks refer to, but for those that there is no room for: why, if so.
    pub async fn fold_before(self: &Rc<Self>, segment: u64) -> Result<Option<Error>> {
        let todo: Vec<(TargetId, ChunkId)> = self.in_log.borrow().iter().copied().collect();
        let mut short = None;
        for group in todo.chunks(FOLD_CHUNKS) {
            self.check_not_failed()?;
            let fresh = short.is_none();
            let folds = group.iter().map(|(t, c)| self.fold_wholly(*t, *c, segment, fresh));
            for result in join_all(folds).await {
                match result {
                    Err(e) if e.status == Status::NoSpace => short = short.or(Some(e)),
                    other => other?,
                }
            }
        }
        Ok(short)
    }

    /// `fresh`: slots may be taken; else blocks go only where the chunk has slots already.
    async fn fold_wholly(
        self: &Rc<Self>,
        target: TargetId,
        id: ChunkId,
        before: u64,
        fresh: bool,
    ) -> Result<()> {
        let how = How { in_place: true, fresh };
        if !self.fold_chunk(target, id, before, how).await? && fresh {
            // A slot was given up meanwhile; fresh ones cannot be.
            self.fold_chunk(target, id, before, How { in_place: false, fresh }).await?;
        }
        Ok(())
    }

    /// The segments before `segment` in which chunks still have blocks.
    pub fn in_use_before(&self, segment: u64) -> BTreeSet<u64> {
        let targets = self.targets.borrow();
        let in_log = self.in_log.borrow();
        let chunks = in_log.iter().filter_map(|(t, c)| targets.get(t)?.chunks.get(c));
        let old = chunks.flat_map(|c| c.all_extents()).filter(|e| is_old(e, segment));
        old.filter_map(|e| match e.loc {
            Loc::Log { segment, .. } => Some(segment),
            Loc::Slot { .. } => None,
        })
        .collect()
    }

    /// `false`: some blocks could not be moved to where they should have gone.
    async fn fold_chunk(
        self: &Rc<Self>,
        target: TargetId,
        id: ChunkId,
        before: u64,
        how: How,
    ) -> Result<bool> {
        // A position in a slot is dead only if what superseded it is durable.
        let changed =
            self.targets.borrow().get(&target).and_then(|t| t.chunks.get(&id)).map(|c| c.lsn);
        if let Some(lsn) = changed {
            self.flush_to(lsn).await?;
        }
        let guard = self.epochs.enter();
        let mut placed = Vec::new();
        let mut fresh: Vec<Vec<Extent>> = Vec::new();
        let mut checksums = Checksums::default();
        {
            let targets = self.targets.borrow();
            let chunk = targets.get(&target).and_then(|t| t.chunks.get(&id));
            let Some(chunk) = chunk.filter(|c| c.has_log_extents()) else {
                self.in_log.borrow_mut().remove(&(target, id));
                return Ok(true);
            };
            let mut rest = Vec::new();
            let in_place = how.in_place && chunk.lsn <= self.flush.durable.get();
            for e in chunk.extents.iter().filter(|e| is_old(e, before)) {
                checksums.note(e, chunk.crcs.get(e.block as usize..).unwrap_or_default());
                if in_place {
                    place_in_slots(chunk, *e, &mut placed, &mut rest);
                } else {
                    rest.push(*e);
                }
            }
            fresh.extend(groups(rest));
            for d in &chunk.pending {
                let mut at = 0;
                for e in &d.extents {
                    if is_old(e, before) {
                        checksums.note(e, d.crcs.get(at..).unwrap_or_default());
                    }
                    at += e.count as usize;
                }
                fresh.extend(groups(
                    d.extents.iter().filter(|e| is_old(e, before)).copied().collect(),
                ));
            }
        }
        if !how.fresh {
            fresh.clear();
        }
        let mut taken = Vec::new();
        for group in fresh {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            let mut start = first.block;
            let slots = self.take_slots(last.end() - first.block, true).await?;
            for (class, index, used) in &slots.list {
                let end = start + used;
                for e in group.iter().filter_map(|e| e.clip(start, end)) {
                    placed.push((
                        e,
                        Loc::Slot { class: *class, index: *index, block: e.block - start },
                    ));
                }
                start = end;
            }
            taken.push(slots);
        }
        if placed.is_empty() {
            return Ok(true);
        }
        guard.alone_since().await;
        placed.sort_by_key(|(_, to)| *to);
        self.copy_blocks(&placed, &checksums).await?;
        let planned = placed.len();
        self.drop_given_up(target, id, &mut placed, &taken);
        self.move_extents(target, id, &placed);
        self.keep_referenced(target, id, taken);
        drop(guard);
        Ok(placed.len() == planned)
    }

    /// A slot that the chunk gave up while blocks were copied into it is on its way to others: nothing may move there.
    fn drop_given_up(
        &self,
        target: TargetId,
        id: ChunkId,
        placed: &mut Vec<(Extent, Loc)>,
        taken: &[crate::alloc::Taken],
    ) {
        let fresh: BTreeSet<(u8, u32)> = taken
            .iter()
            .flat_map(|t| t.list.iter().map(|(class, index, _)| (*class, *index)))
            .collect();
        let targets = self.targets.borrow();
        let chunk = targets.get(&target).and_then(|t| t.chunks.get(&id));
        placed.retain(|(_, to)| {
            to.slot().is_some_and(|s| fresh.contains(&s) || chunk.is_some_and(|c| c.refers_to(s)))
        });
    }

    /// Slots that the chunk refers to now stay taken; others (it changed meanwhile) are given back.
    fn keep_referenced(&self, target: TargetId, id: ChunkId, taken: Vec<crate::alloc::Taken>) {
        let targets = self.targets.borrow();
        let chunk = targets.get(&target).and_then(|t| t.chunks.get(&id));
        for mut slots in taken {
            slots
                .list
                .retain(|(class, index, _)| !chunk.is_some_and(|c| c.refers_to((*class, *index))));
        }
    }

    /// Copies blocks. One that does not match its checksum however often it is read will not match it later either.
    async fn copy_blocks(
        self: &Rc<Self>,
        moves: &[(Extent, Loc)],
        checksums: &Checksums,
    ) -> Result<()> {
        let mut write: Option<(Loc, u32, Vec<Buf>)> = None;
        for (from, to) in moves {
            let buf = self.read_for_good(from, checksums).await;
            match &mut write {
                Some((start, n, bufs)) if start.plus(*n) == *to && start.slot() == to.slot() => {
                    *n += from.count;
                    bufs.push(buf.freeze());
                }
                _ => {
                    if let Some(w) = write.take() {
                        self.write_blocks(w).await?;
                    }
                    write = Some((*to, from.count, vec![buf.freeze()]));
                }
            }
        }
        match write {
            Some(w) => self.write_blocks(w).await,
            None => Ok(()),
        }
    }

    /// The blocks of an extent of the log. What is read here replaces what is stored, so one wrong reading must not be the last.
    async fn read_for_good(&self, from: &Extent, checksums: &Checksums) -> BufMut {
        let whole = self.rt.alloc(from.count as usize * BLOCK);
        let (result, mut buf) = self.read_place(from.loc, whole).await;
        if result.is_err() {
            buf.fill(0);
        }
        for (k, block) in (0..).zip(buf.chunks_mut(BLOCK)) {
            let loc = from.loc.plus(k);
            let mut readings = 1;
            while !checksums.fits(loc, block) {
                if readings >= READINGS_MAX {
                    tracing::warn!(?loc, "a block of the log is damaged; its chunk needs repair");
                    break;
                }
                readings += 1;
                self.rt.sleep(READING_PAUSE).await;
                if let (Ok(()), again) = self.read_place(loc, self.rt.alloc(BLOCK)).await {
                    block.copy_from_slice(&again);
                }
            }
        }
        buf
    }

    async fn write_blocks(self: &Rc<Self>, (to, count, bufs): (Loc, u32, Vec<Buf>)) -> Result<()> {
        let Loc::Slot { class, index, block } = to else { return Ok(()) };
        let file = self.block_file(class).await?;
        let at = u64::from(index) * bytes_of(class) + u64::from(block) * BLOCK as u64;
        if let Err(e) = file.write(bufs, at).await {
            if crate::log::is_no_space(&e) {
                return Err(self.no_space("a checkpoint", &e));
            }
            return Err(self.poison("write of data", &e));
        }
        self.flush.dirty_classes.borrow_mut().insert(class);
        self.flush.bytes.set(self.flush.bytes.get() + u64::from(count) * BLOCK as u64);
        Ok(())
    }
}
