//! Compaction: what is left in slots that are mostly dead is copied to fresh ones, so that the old ones can go.
//!
//! A write that is too large for the log takes fresh slots, and a slot stays as long as one of its blocks is referred to: a chunk that is written over at shifting
//! places, or cut short, would keep many times its bytes. A checkpoint looks at the chunks of which that may be so, and begins for them alone when there is much of it.
//!
//! What moves is in no record. Until the checkpoint that says so is durable a recovery refers to the old slots; they are given up only then ([`Inner::retire_vacated`]).
//! Only committed blocks move, and of a slot all or none. The reserve is not touched, nor more than half of what is free, and nothing is waited for that a reader holds: where there is no room, the
//! chunk stays as it is, and its turn comes when room was gained or more has died. Nor is the log kept waiting.

use crate::alloc::Taken;
use crate::chunk::Chunk;
use crate::copy::Move;
use crate::extents::{Extent, Loc};
use crate::fold::{Piece, groups, part_of};
use crate::format::BLOCK;
use crate::slots::{blocks_of, pieces};
use crate::state::Inner;
use glowfs_types::{ChunkId, Result, Status, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What is written over of slots that stay counts only if it is more blocks than a small write has: what those leave is filled again by folding. What is cut
/// off counts always, for nothing comes in its place.
pub(crate) const NOTED_BLOCKS: u32 = crate::api::SMALL_WRITE_BYTES / BLOCK as u32 + 1;
/// A checkpoint begins for it when at least so many bytes have died since the last one,
const DEAD_BYTES_MIN: u64 = 16 << 20;
/// and this part of what the slots take, or more than is free.
const DEAD_PART: u64 = 8;
/// Bytes that one checkpoint moves, about: what it vacates can be used only when it is over.
const PASS_BYTES: u64 = 1 << 30;
/// Chunks looked at without letting other tasks run.
const STEP: usize = 16;
/// Chunks that find no room, before a checkpoint looks at no more.
const SHORT_MAX: u32 = 16;

type Key = (TargetId, ChunkId);

/// Dead blocks in slots of which something is left.
#[derive(Default)]
pub(crate) struct Dead {
    /// Chunks that may have many.
    chunks: RefCell<BTreeSet<Key>>,
    /// Bytes that died since the chunks were last looked at.
    grown: Cell<u64>,
    /// When so many bytes are free it is worth while to look again: there was not enough room for a chunk.
    needs: Cell<Option<u64>>,
    /// The last checkpoint moved something, and there is more: what that has given up may be room for it.
    pub more: Cell<bool>,
    /// Slots that nothing refers to but what a recovery would find.
    vacated: RefCell<Vec<(u8, u32)>>,
}

impl Dead {
    /// So many blocks of a chunk died in slots that stay.
    pub fn note(&self, key: Key, blocks: u32) {
        if blocks > 0 {
            self.chunks.borrow_mut().insert(key);
            let bytes = u64::from(blocks) * BLOCK as u64;
            self.grown.set(self.grown.get().saturating_add(bytes));
        }
    }
    /// Nothing is known yet.
    pub fn clear(&self) {
        self.chunks.borrow_mut().clear();
        self.grown.set(0);
        self.needs.set(None);
    }
}

/// What came of a chunk.
enum Outcome {
    /// It is where it should be, and took so many bytes.
    Done(u64),
    /// There is less room than these bytes.
    Needs(u64),
    /// There was none after all.
    NoRoom,
}

/// The slots that a chunk refers to.
pub(crate) fn slots_of(chunk: &Chunk) -> BTreeSet<(u8, u32)> {
    chunk.all_extents().filter_map(|e| e.loc.slot()).collect()
}

/// What a chunk has in slots, in groups that get slots of their own, and how many blocks those take. None: it stays where it is.
fn plan(chunk: &Chunk) -> Option<(Vec<Vec<Piece>>, u32)> {
    let in_slots = || chunk.extents.iter().filter(|e| e.loc.slot().is_some());
    let old: BTreeSet<(u8, u32)> = in_slots().filter_map(|e| e.loc.slot()).collect();
    let have: u32 = old.iter().map(|(class, _)| blocks_of(*class)).sum();
    let blocks: u32 = in_slots().map(|e| e.count).sum();
    if have / 2 <= blocks {
        return None;
    }
    let piece = |e: &Extent| {
        let crcs = chunk.crcs.get(e.block as usize..e.end() as usize).unwrap_or_default();
        (*e, crcs.to_vec())
    };
    let groups = groups(in_slots().map(piece).collect());
    let takes: u32 = groups.iter().flat_map(|g| pieces(span(g))).map(|(c, _)| blocks_of(c)).sum();
    // Of blocks far from each other much room stays unused wherever they lie.
    (have >= takes + NOTED_BLOCKS.max(have / 4)).then_some((groups, takes))
}

/// How many blocks a group spreads over.
fn span(group: &[Piece]) -> u32 {
    match (group.first(), group.last()) {
        (Some((first, _)), Some((last, _))) => last.end() - first.block,
        _ => 0,
    }
}

/// Leaves the moves out that would take a part of a slot only, for what is left of it could not be read, or came meanwhile. Such a slot would be given up, or be written
/// to anew by folding, when that part dies, which is in the log, while a recovery still finds there what moved, which is not.
fn leave_parts(chunk: &Chunk, placed: &mut Vec<(Extent, Loc)>) {
    let block_of = |loc: Loc| match loc {
        Loc::Slot { block, .. } => block,
        Loc::Log { .. } => 0,
    };
    let mut moved: BTreeMap<(u8, u32), BTreeSet<u32>> = BTreeMap::new();
    for (from, _) in placed.iter() {
        if let Some(slot) = from.loc.slot() {
            let first = block_of(from.loc);
            moved.entry(slot).or_default().extend(first..first + from.count);
        }
    }
    for e in chunk.all_extents() {
        let Some(slot) = e.loc.slot() else { continue };
        let first = block_of(e.loc);
        let whole = |blocks: &BTreeSet<u32>| (first..first + e.count).all(|b| blocks.contains(&b));
        if moved.get(&slot).is_some_and(|blocks| !whole(blocks)) {
            moved.remove(&slot);
        }
    }
    placed.retain(|(from, _)| from.loc.slot().is_some_and(|slot| moved.contains_key(&slot)));
}

impl Inner {
    /// Whether so much has died that a checkpoint is worth while for that alone.
    pub fn wants_compaction(&self) -> bool {
        let (grown, needs) = (self.dead.grown.get(), self.dead.needs.get());
        let much = grown >= DEAD_BYTES_MIN
            && (grown >= self.slots.borrow().used_bytes() / DEAD_PART
                || grown >= self.free_for_slots());
        much || needs.is_some_and(|needs| self.free_for_slots() >= needs)
    }
    /// Bytes that slots can still take.
    fn free_for_slots(&self) -> u64 {
        let (slots, config) = (self.slots.borrow(), &self.config);
        let disk = self.disk_space().free_bytes.saturating_sub(config.reserve_bytes);
        let free = (disk + slots.free_bytes()).saturating_sub(self.promised.get());
        match config.capacity_bytes {
            0 => free,
            most => free.min(most.saturating_sub(slots.used_bytes())),
        }
    }
    /// Whether the log will soon wait for the checkpoint that runs.
    fn log_wants_checkpoint(&self) -> bool {
        self.log.segments.borrow().len() > self.segments_usual() as usize * 3 / 4
    }
    /// An update found no slot: a checkpoint begins if anything to speak of has died since the last one.
    pub fn compact_for_room(self: &Rc<Self>) {
        let some = u64::from(NOTED_BLOCKS) * BLOCK as u64;
        let worth = self.dead.grown.get() > some || self.wants_compaction();
        if worth && !self.closing.get() {
            self.start_checkpoint();
        }
    }

    /// Moves what is left in mostly dead slots to fresh ones, as far as there is room.
    pub async fn compact(self: &Rc<Self>) -> Result<()> {
        let dead = &self.dead;
        dead.grown.set(0);
        dead.needs.set(None);
        dead.more.set(false);
        let todo: Vec<Key> = dead.chunks.borrow().iter().copied().collect();
        // The other half is for updates: what moves is there twice until the checkpoint is durable.
        let mut room = self.free_for_slots() / 2;
        let (mut short, mut needs, mut moved) = (0, None::<u64>, 0);
        for (nth, key) in todo.into_iter().enumerate() {
            if nth % STEP == STEP - 1 {
                // Most are left as they are, for which nothing is waited.
                self.rt.yield_now().await;
            }
            self.check_not_failed()?;
            if self.closing.get() || self.log_wants_checkpoint() || moved >= PASS_BYTES {
                // The next one goes on.
                needs = Some(0);
                break;
            }
            room = room.min(self.free_for_slots() / 2);
            dead.chunks.borrow_mut().remove(&key);
            match self.compact_chunk(key, room).await? {
                Outcome::Done(took) => {
                    room = room.saturating_sub(took);
                    moved += took;
                    continue;
                }
                Outcome::Needs(bytes) => needs = Some(needs.map_or(bytes, |n| n.min(bytes))),
                Outcome::NoRoom => {}
            }
            dead.chunks.borrow_mut().insert(key);
            short += 1;
            if short == SHORT_MAX {
                break;
            }
        }
        dead.more.set(moved > 0 && (needs.is_some() || short > 0));
        dead.needs.set(needs.map(|bytes| bytes.saturating_mul(2)));
        Ok(())
    }

    async fn compact_chunk(self: &Rc<Self>, key: Key, room: u64) -> Result<Outcome> {
        // From here on no slot that the chunk gives up is used anew.
        let guard = self.epochs.enter();
        let plan = {
            let targets = self.targets.borrow();
            targets.get(&key.0).and_then(|t| t.chunks.get(&key.1)).and_then(plan)
        };
        let Some((groups, blocks)) = plan else { return Ok(Outcome::Done(0)) };
        let bytes = u64::from(blocks) * BLOCK as u64;
        if bytes > room {
            return Ok(Outcome::Needs(bytes));
        }
        let mut taken = Taken::none(self);
        let mut moves = Vec::new();
        for group in &groups {
            match self.place_group(group, &mut taken, &mut moves).await {
                Ok(true) => {}
                Ok(false) => return Ok(Outcome::NoRoom),
                // A file of slots that is not there yet.
                Err(e) if e.status == Status::NoSpace => return Ok(Outcome::NoRoom),
                Err(e) => return Err(e),
            }
        }
        let unread = match self.copy_blocks(&moves).await {
            Err(e) if e.status == Status::NoSpace => return Ok(Outcome::NoRoom),
            other => other?,
        };
        // A block of a slot that cannot be read stays there, for as long as that is so.
        self.unread.borrow_mut().retain(|loc, _| loc.segment().is_some());
        let moved = moves.iter().enumerate().filter(|(i, _)| !unread.contains(i));
        let mut placed: Vec<_> = moved.map(|(_, m)| (m.from, m.to)).collect();
        let slots = || {
            let targets = self.targets.borrow();
            targets.get(&key.0).and_then(|t| t.chunks.get(&key.1)).map(slots_of).unwrap_or_default()
        };
        // Nothing is awaited from here on: what is looked at is what is moved.
        if let Some(chunk) = self.targets.borrow().get(&key.0).and_then(|t| t.chunks.get(&key.1)) {
            leave_parts(chunk, &mut placed);
        }
        let before = slots();
        self.move_extents(key.0, key.1, &placed);
        let after = slots();
        self.dead.vacated.borrow_mut().extend(before.difference(&after));
        self.keep_referenced(key.0, key.1, vec![taken]);
        drop(guard);
        Ok(Outcome::Done(bytes))
    }

    /// Takes slots for a group, in which the blocks lie as in the chunk. `false`: there is no room.
    async fn place_group(
        self: &Rc<Self>,
        group: &[Piece],
        taken: &mut Taken,
        moves: &mut Vec<Move>,
    ) -> Result<bool> {
        let mut start = group.first().map_or(0, |(e, _)| e.block);
        for (class, used) in pieces(span(group)) {
            // Not as updates take them: those wait for readers, of which this counts as one.
            let Some(index) = self.try_take(class, false).await? else { return Ok(false) };
            taken.list.push((class, index, used));
            let end = start + used;
            for piece in group {
                let Some(part) = piece.0.clip(start, end) else { continue };
                let to = Loc::Slot { class, index, block: part.block - start };
                moves.push(part_of(piece, part, to));
            }
            start = end;
        }
        Ok(true)
    }

    /// The checkpoint as of `lsn` is durable: what was moved before it is not referred to any more where it was.
    pub fn retire_vacated(&self, lsn: u64) {
        self.retire_slots(Some(self.dead.vacated.take()), lsn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u32, count: u32, index: u32, slot_block: u32) -> Extent {
        Extent { block, count, loc: Loc::Slot { class: 20, index, block: slot_block } }
    }

    /// What could not be read stays in its slot, and so does all the rest that is there.
    #[test]
    fn of_a_slot_all_or_nothing_moves() {
        let to = Loc::Slot { class: 20, index: 9, block: 0 };
        let extents = vec![at(0, 2, 1, 0), at(2, 3, 1, 2), at(5, 4, 2, 5)];
        let chunk = Chunk { extents, ..Chunk::default() };
        let all = || vec![(at(0, 2, 1, 0), to), (at(2, 3, 1, 2), to), (at(5, 4, 2, 5), to)];
        let mut placed = all();
        leave_parts(&chunk, &mut placed);
        assert_eq!(placed.len(), 3);
        // In pieces, as slots of several sizes have it.
        let mut pieces = vec![(at(5, 1, 2, 5), to), (at(6, 3, 2, 6), to)];
        leave_parts(&chunk, &mut pieces);
        assert_eq!(pieces.len(), 2);

        let mut placed = all();
        placed.remove(1);
        leave_parts(&chunk, &mut placed);
        assert_eq!(placed, [(at(5, 4, 2, 5), to)]);
        // It was written to meanwhile: nothing of the slot is referred to any more, and nothing is there to be moved.
        let chunk = Chunk { extents: vec![at(0, 1, 3, 0)], ..Chunk::default() };
        let mut placed = all();
        leave_parts(&chunk, &mut placed);
        assert_eq!(
            placed.len(),
            3,
            "what is not referred to is not moved by `move_extents` either"
        );
    }
}
