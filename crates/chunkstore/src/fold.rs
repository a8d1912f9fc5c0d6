//! Folding: blocks that lie in old log segments are copied into slots, so that the segments can go.
//!
//! A block goes back to the position in its chunk's slot that it superseded, where there is one: that position is
//! dead (the record that superseded it is durable, and no reader from before is left). Otherwise it gets a fresh slot.
//!
//! A block that cannot be read stays where it is, and with it its segment ([`Inner::unread_segments`]).
//!
//! Chunks are folded in large groups, since what random writes left of one chunk is all over the log ([`crate::copy`]).

use crate::alloc::Taken;
use crate::chunk::Chunk;
use crate::copy::Move;
use crate::extents::{Extent, Loc};
use crate::slots::blocks_of;
use crate::state::Inner;
use glowfs_types::{ChunkId, Error, Result, Status, TargetId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Blocks folded in one group, unless one chunk alone has more; so much memory is taken.
const GROUP_BLOCKS: u64 = 4096;
/// How often a chunk that gave a slot up meanwhile is tried again before its blocks get fresh slots.
const IN_PLACE_ATTEMPTS: usize = 2;

type Key = (TargetId, ChunkId);

/// Where blocks may go.
#[derive(Clone, Copy)]
struct How {
    /// To where the chunk has a slot already.
    in_place: bool,
    /// To slots that are taken for it.
    fresh: bool,
}

/// What is to be moved of one chunk.
struct Plan {
    key: Key,
    moves: Vec<Move>,
    /// What needs fresh slots, in groups of blocks that follow one another in the chunk.
    rest: Vec<Vec<Piece>>,
    taken: Vec<Taken>,
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

/// Groups pieces whose blocks follow one another; all in one group if they are dense.
pub(crate) fn groups(mut list: Vec<Piece>) -> Vec<Vec<Piece>> {
    list.sort_by_key(|(e, _)| e.block);
    let (Some((first, _)), Some((last, _))) = (list.first(), list.last()) else {
        return Vec::new();
    };
    let span = last.end() - first.block;
    let total: u32 = list.iter().map(|(e, _)| e.count).sum();
    if u64::from(total) * 2 >= u64::from(span) {
        return vec![list];
    }
    let mut out: Vec<Vec<Piece>> = Vec::new();
    for piece in list {
        match out.last_mut() {
            Some(g) if g.last().is_some_and(|(l, _)| l.end() == piece.0.block) => g.push(piece),
            _ => out.push(vec![piece]),
        }
    }
    out
}

/// The pieces of a chunk in segments before `before`: to dead positions of its own slots, or left for fresh ones.
fn plan_chunk(key: Key, chunk: &Chunk, before: u64, in_place: bool) -> Plan {
    let mut plan = Plan { key, moves: Vec::new(), rest: Vec::new(), taken: Vec::new() };
    let mut rest = Vec::new();
    for e in chunk.extents.iter().filter(|e| is_old(e, before)) {
        let range = e.block as usize..e.end() as usize;
        let piece = (*e, chunk.crcs.get(range).unwrap_or_default().to_vec());
        if !in_place {
            rest.push(piece);
            continue;
        }
        let (mut placed, mut homeless) = (Vec::new(), Vec::new());
        place_in_slots(chunk, *e, &mut placed, &mut homeless);
        plan.moves.extend(placed.into_iter().map(|(part, to)| part_of(&piece, part, to)));
        rest.extend(homeless.into_iter().map(|part| {
            let Move { from, crcs, .. } = part_of(&piece, part, part.loc);
            (from, crcs)
        }));
    }
    plan.rest.extend(groups(rest));
    for d in &chunk.pending {
        let mut at = 0;
        let mut old = Vec::new();
        for e in &d.extents {
            let n = e.count as usize;
            if is_old(e, before) {
                old.push((*e, d.crcs.get(at..at + n).unwrap_or_default().to_vec()));
            }
            at += n;
        }
        plan.rest.extend(groups(old));
    }
    plan
}

/// An extent with the checksums of its blocks.
pub(crate) type Piece = (Extent, Vec<u32>);

/// The part of a piece that `part` is of its extent, on its way to `to`.
pub(crate) fn part_of((e, crcs): &Piece, part: Extent, to: Loc) -> Move {
    let at = (part.block - e.block) as usize;
    let crcs = crcs.get(at..at + part.count as usize).unwrap_or_default().to_vec();
    Move { from: part, to, crcs }
}

impl Inner {
    /// Empties all segments before `segment` of blocks that chunks refer to, but for those that cannot be read now, and those that there is
    /// no room for: why, if so.
    pub async fn fold_before(self: &Rc<Self>, segment: u64) -> Result<Option<Error>> {
        let todo: Vec<Key> = self.in_log.borrow().iter().copied().collect();
        let mut rest = todo.as_slice();
        let mut short = None;
        while !rest.is_empty() {
            self.check_not_failed()?;
            let (group, later) = rest.split_at(self.group_len(rest, segment));
            let mut left = group.to_vec();
            for attempt in 0..=IN_PLACE_ATTEMPTS {
                // A slot can be given up meanwhile; fresh ones cannot be.
                let how = How { in_place: attempt < IN_PLACE_ATTEMPTS, fresh: short.is_none() };
                left = self.fold_group(&left, segment, how, &mut short).await?;
                if left.is_empty() || short.is_some() {
                    break;
                }
            }
            rest = later;
        }
        Ok(short)
    }

    /// How many chunks make a group; at least one.
    fn group_len(&self, keys: &[Key], before: u64) -> usize {
        let mut blocks = 0;
        for (i, key) in keys.iter().enumerate() {
            blocks += self.old_blocks(key, before);
            if blocks > GROUP_BLOCKS {
                return i.max(1);
            }
        }
        keys.len()
    }

    fn old_blocks(&self, key: &Key, before: u64) -> u64 {
        let targets = self.targets.borrow();
        let chunk = targets.get(&key.0).and_then(|t| t.chunks.get(&key.1));
        let old = chunk.into_iter().flat_map(|c| c.all_extents()).filter(|e| is_old(e, before));
        old.map(|e| u64::from(e.count)).sum()
    }

    /// The segments before `segment` in which chunks still have blocks.
    pub fn in_use_before(&self, segment: u64) -> BTreeSet<u64> {
        let targets = self.targets.borrow();
        let in_log = self.in_log.borrow();
        let chunks = in_log.iter().filter_map(|(t, c)| targets.get(t)?.chunks.get(c));
        let old = chunks.flat_map(|c| c.all_extents()).filter(|e| is_old(e, segment));
        old.filter_map(|e| e.loc.segment()).collect()
    }

    /// The segments in which blocks stay because they could not be read.
    pub fn unread_segments(&self) -> BTreeSet<u64> {
        self.unread.borrow().keys().filter_map(|loc| loc.segment()).collect()
    }

    /// Answers the chunks of which some blocks could not be moved to where they should have gone, though they could be read.
    async fn fold_group(
        self: &Rc<Self>,
        keys: &[Key],
        before: u64,
        how: How,
        short: &mut Option<Error>,
    ) -> Result<Vec<Key>> {
        // From here on no slot that a chunk gives up is used anew.
        let guard = self.epochs.enter();
        let mut plans = self.plan(keys, before, how);
        let upto = self.log.written.get();
        if how.fresh {
            for plan in &mut plans {
                match self.place_fresh(plan).await {
                    Err(e) if e.status == Status::NoSpace => *short = short.take().or(Some(e)),
                    other => other?,
                }
            }
        }
        // A position in a slot is dead only if what superseded it is durable, with the commit of that; and nobody from before reads it.
        self.flush_to(upto).await?;
        guard.alone_since().await;
        let place = |m: &Move| (m.from, m.to);
        let placed: Vec<Vec<_>> =
            plans.iter().map(|p| p.moves.iter().map(place).collect()).collect();
        let moves: Vec<Move> =
            plans.iter_mut().flat_map(|p| std::mem::take(&mut p.moves)).collect();
        let unread = self.copy_blocks(&moves).await?;
        let mut nth = 0..moves.len();
        let mut left = Vec::new();
        for (Plan { key: (target, id), taken, .. }, mut placed) in plans.into_iter().zip(placed) {
            let mut stay = 0;
            placed.retain(|(from, _)| {
                let unread = nth.next().is_some_and(|i| unread.contains(&i));
                stay += if unread { u64::from(from.count) } else { 0 };
                !unread
            });
            self.drop_given_up(target, id, &mut placed, &taken);
            self.move_extents(target, id, &placed);
            self.keep_referenced(target, id, taken);
            if self.old_blocks(&(target, id), before) > stay {
                left.push((target, id));
            }
        }
        drop(guard);
        Ok(left)
    }

    /// What is to be moved of these chunks as they are now.
    fn plan(&self, keys: &[Key], before: u64, how: How) -> Vec<Plan> {
        let targets = self.targets.borrow();
        let mut plans = Vec::with_capacity(keys.len());
        for key in keys {
            let chunk = targets.get(&key.0).and_then(|t| t.chunks.get(&key.1));
            match chunk.filter(|c| c.has_log_extents()) {
                Some(chunk) => plans.push(plan_chunk(*key, chunk, before, how.in_place)),
                None => {
                    self.in_log.borrow_mut().remove(key);
                }
            }
        }
        plans
    }

    /// Takes fresh slots for what has no place of its own.
    async fn place_fresh(self: &Rc<Self>, plan: &mut Plan) -> Result<()> {
        for group in std::mem::take(&mut plan.rest) {
            let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else {
                continue;
            };
            let mut start = first.block;
            let slots = self.take_slots(last.end() - start, true).await?;
            for (class, index, used) in &slots.list {
                let end = start + used;
                for piece in &group {
                    let Some(part) = piece.0.clip(start, end) else { continue };
                    let block = part.block - start;
                    let to = Loc::Slot { class: *class, index: *index, block };
                    plan.moves.push(part_of(piece, part, to));
                }
                start = end;
            }
            plan.taken.push(slots);
        }
        Ok(())
    }

    /// A slot that the chunk gave up while blocks were copied into it is on its way to others: nothing may move there.
    fn drop_given_up(
        &self,
        target: TargetId,
        id: ChunkId,
        placed: &mut Vec<(Extent, Loc)>,
        taken: &[Taken],
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
    pub fn keep_referenced(&self, target: TargetId, id: ChunkId, taken: Vec<Taken>) {
        let targets = self.targets.borrow();
        let chunk = targets.get(&target).and_then(|t| t.chunks.get(&id));
        for mut slots in taken {
            slots
                .list
                .retain(|(class, index, _)| !chunk.is_some_and(|c| c.refers_to((*class, *index))));
        }
    }
}
