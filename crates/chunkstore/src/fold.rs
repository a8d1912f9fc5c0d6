//! Folding: blocks that lie in old log segments are copied into slots, so that the segments can go.
//!
//! A block goes back to the position in its chunk's slot that it superseded, where there is one: that position is
//! dead (the record that superseded it is durable, and no reader from before is left). Otherwise it gets a fresh slot.
//!
//! Chunks are folded in large groups, since what random writes left of one chunk is all over the log: the blocks of a group are read in
//! the order of the log, as long runs, and written in the order of the slots ([`crate::copy`]).

use crate::alloc::Taken;
use crate::chunk::Chunk;
use crate::extents::{Extent, Loc};
use crate::slots::blocks_of;
use crate::state::Inner;
use glowfs_types::{ChunkId, Result, TargetId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Blocks folded in one group, about.
const GROUP_BLOCKS: u64 = 8192;
/// How often a chunk that changes meanwhile is tried again before its blocks get fresh slots.
const IN_PLACE_ATTEMPTS: usize = 2;

type Key = (TargetId, ChunkId);

/// What is to be moved of one chunk.
struct Plan {
    key: Key,
    moves: Vec<(Extent, Loc)>,
    /// The fresh slots among the places.
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
    /// Empties all segments before `segment` of blocks that chunks refer to.
    pub async fn fold_before(self: &Rc<Self>, segment: u64) -> Result<()> {
        let todo: Vec<Key> = self.in_log.borrow().iter().copied().collect();
        let mut rest = todo.as_slice();
        while !rest.is_empty() {
            self.check_not_failed()?;
            let (group, later) = rest.split_at(self.group_len(rest, segment));
            let mut left = group.to_vec();
            for attempt in 0..=IN_PLACE_ATTEMPTS {
                // A chunk that changed, or gave a slot up, meanwhile; fresh slots cannot be given up.
                left = self.fold_group(&left, segment, attempt < IN_PLACE_ATTEMPTS).await?;
                if left.is_empty() {
                    break;
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// How many chunks make a group; at least one.
    fn group_len(&self, keys: &[Key], before: u64) -> usize {
        let mut blocks = 0;
        for (i, key) in keys.iter().enumerate() {
            blocks += self.old_blocks(key, before);
            if blocks >= GROUP_BLOCKS {
                return i + 1;
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

    /// Whether chunks still have blocks in segments before `segment`.
    pub fn in_log_before(&self, segment: u64) -> bool {
        let targets = self.targets.borrow();
        let in_log = self.in_log.borrow();
        let mut chunks = in_log.iter().filter_map(|(t, c)| targets.get(t)?.chunks.get(c));
        chunks.any(|c| c.all_extents().any(|e| is_old(e, segment)))
    }

    /// Answers the chunks of which some blocks could not be moved to where they should have gone.
    async fn fold_group(
        self: &Rc<Self>,
        keys: &[Key],
        before: u64,
        in_place: bool,
    ) -> Result<Vec<Key>> {
        // A position in a slot is dead only if what superseded it is durable.
        let changed = {
            let targets = self.targets.borrow();
            let chunks = keys.iter().filter_map(|(t, c)| targets.get(t)?.chunks.get(c));
            chunks.map(|c| c.lsn).max().unwrap_or(0)
        };
        self.flush_to(changed).await?;
        let mut plans = self.plan_fresh(keys, before, in_place).await?;
        // From here on no slot that is given up is used anew.
        let guard = self.epochs.enter();
        if in_place {
            self.plan_in_place(&mut plans, before);
        }
        guard.alone_since().await;
        let all = plans.iter().flat_map(|p| p.moves.iter().copied()).collect();
        self.copy_blocks(all).await?;
        let mut left = Vec::new();
        for Plan { key: (target, id), mut moves, taken } in plans {
            self.drop_given_up(target, id, &mut moves, &taken);
            self.move_extents(target, id, &moves);
            self.keep_referenced(target, id, taken);
            if self.old_blocks(&(target, id), before) > 0 {
                left.push((target, id));
            }
        }
        drop(guard);
        Ok(left)
    }

    /// Takes fresh slots for what has no place of its own.
    async fn plan_fresh(
        self: &Rc<Self>,
        keys: &[Key],
        before: u64,
        in_place: bool,
    ) -> Result<Vec<Plan>> {
        let mut plans = Vec::with_capacity(keys.len());
        for key in keys {
            let mut fresh = Vec::new();
            {
                let targets = self.targets.borrow();
                let chunk = targets.get(&key.0).and_then(|t| t.chunks.get(&key.1));
                let Some(chunk) = chunk.filter(|c| c.has_log_extents()) else {
                    self.in_log.borrow_mut().remove(key);
                    continue;
                };
                let mut rest = Vec::new();
                for e in chunk.extents.iter().filter(|e| is_old(e, before)) {
                    if in_place {
                        place_in_slots(chunk, *e, &mut Vec::new(), &mut rest);
                    } else {
                        rest.push(*e);
                    }
                }
                fresh.extend(groups(rest));
                for d in &chunk.pending {
                    let old = d.extents.iter().filter(|e| is_old(e, before));
                    fresh.extend(groups(old.copied().collect()));
                }
            }
            let mut plan = Plan { key: *key, moves: Vec::new(), taken: Vec::new() };
            for group in fresh {
                self.place_fresh(&mut plan, &group).await?;
            }
            plans.push(plan);
        }
        Ok(plans)
    }

    async fn place_fresh(self: &Rc<Self>, plan: &mut Plan, group: &[Extent]) -> Result<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let mut start = first.block;
        let slots = self.take_slots(last.end() - first.block, true).await?;
        for (class, index, used) in &slots.list {
            let end = start + used;
            for e in group.iter().filter_map(|e| e.clip(start, end)) {
                let block = e.block - start;
                plan.moves.push((e, Loc::Slot { class: *class, index: *index, block }));
            }
            start = end;
        }
        plan.taken.push(slots);
        Ok(())
    }

    /// Adds what goes back to dead positions of the chunks' own slots.
    fn plan_in_place(&self, plans: &mut [Plan], before: u64) {
        let targets = self.targets.borrow();
        let durable = self.flush.durable.get();
        for plan in plans {
            let chunk = targets.get(&plan.key.0).and_then(|t| t.chunks.get(&plan.key.1));
            let Some(chunk) = chunk.filter(|c| c.lsn <= durable) else { continue };
            let blocks = |e: &Extent| (0..e.count).map(|k| e.loc.plus(k)).collect::<Vec<_>>();
            let fresh: BTreeSet<Loc> = plan.moves.iter().flat_map(|(e, _)| blocks(e)).collect();
            for e in chunk.extents.iter().filter(|e| is_old(e, before)) {
                let mut placed = Vec::new();
                place_in_slots(chunk, *e, &mut placed, &mut Vec::new());
                placed.retain(|(part, _)| blocks(part).iter().all(|b| !fresh.contains(b)));
                plan.moves.extend(placed);
            }
        }
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
    fn keep_referenced(&self, target: TargetId, id: ChunkId, taken: Vec<Taken>) {
        let targets = self.targets.borrow();
        let chunk = targets.get(&target).and_then(|t| t.chunks.get(&id));
        for mut slots in taken {
            slots
                .list
                .retain(|(class, index, _)| !chunk.is_some_and(|c| c.refers_to((*class, *index))));
        }
    }
}
