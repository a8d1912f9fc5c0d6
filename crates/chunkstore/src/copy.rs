//! Copying blocks from the log, or from other slots, to slots, many at once: read as long runs in the order of where they lie, written in the order of the slots,
//! several of each side by side. One block after the other would cost a wait for the disk each.
//!
//! Guarantees: what is written has its checksum, or could not be read rightly however often it was tried; a block whose reading *fails* counts
//! as damaged only when it fails again after [`UNREAD_MAX`], for until then the log still has it. Must never: decide where a block goes, or whether
//! that place is free ([`crate::fold`] does).

use crate::extents::{Extent, Loc};
use crate::format::BLOCK;
use crate::slots::bytes_of;
use crate::state::Inner;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, BufMut, Duration};
use glowfs_types::checksum::crc32c;
use glowfs_types::{Result, Status};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Blocks of one read, or of one write, at most (unless one extent alone is longer).
const RUN_BLOCKS: u32 = 256;
/// So many blocks that nobody wants are read along rather than beginning another read.
const GAP_BLOCKS: u32 = 8;
/// Reads, and writes, on their way.
const AT_ONCE: usize = 16;
/// Readings of a block that comes wrongly, before it is copied as it is,
const READINGS_MAX: u32 = 8;
/// and the pause between them.
const READING_PAUSE: Duration = Duration::from_millis(1);
/// For so long at least a block of which every reading fails stays in the log. A bound, for its segment cannot be used anew meanwhile.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Blocks of the log or of a slot that go to a slot, with the checksum of each.
pub(crate) struct Move {
    pub from: Extent,
    pub to: Loc,
    pub crcs: Vec<u32>,
}

/// How many blocks further `to` is than `from` in the same place.
fn distance(from: Loc, to: Loc) -> Option<u32> {
    match (from, to) {
        (Loc::Log { segment: a, block: from }, Loc::Log { segment: b, block: to }) if a == b => {
            to.checked_sub(from)
        }
        (Loc::Slot { block: a, .. }, Loc::Slot { block: b, .. }) if from.slot() == to.slot() => {
            b.checked_sub(a)
        }
        _ => None,
    }
}

/// A run of the log or of a slot, and those of the moves that lie in it.
struct Run {
    start: Loc,
    count: u32,
    moves: Vec<usize>,
}

/// Moves as runs of where they come from, in its order.
fn runs(moves: &[Move]) -> Vec<Run> {
    let mut order: Vec<usize> = (0..moves.len()).collect();
    order.sort_by_key(|i| moves[*i].from.loc);
    let mut out: Vec<Run> = Vec::new();
    for i in order {
        let from = moves[i].from;
        if let Some(run) = out.last_mut()
            && let Some(at) = distance(run.start, from.loc)
            && at <= run.count + GAP_BLOCKS
            && at + from.count <= RUN_BLOCKS
        {
            // Two versions of a chunk may refer to the same place.
            run.count = run.count.max(at + from.count);
            run.moves.push(i);
        } else {
            out.push(Run { start: from.loc, count: from.count, moves: vec![i] });
        }
    }
    out
}

/// A run of a slot, and its bytes.
struct Write {
    to: Loc,
    count: u32,
    bytes: BufMut,
}

/// Where the blocks of a move go: which write, and how many bytes inside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Home {
    write: usize,
    at: usize,
}

/// Neighbours in slots as runs, and where in them each move goes.
fn homes(moves: &[Move]) -> (Vec<(Loc, u32)>, Vec<Home>) {
    let mut order: Vec<usize> = (0..moves.len()).collect();
    order.sort_by_key(|i| moves[*i].to);
    let mut writes: Vec<(Loc, u32)> = Vec::new();
    let mut homes = vec![Home::default(); moves.len()];
    for i in order {
        let (to, count) = (moves[i].to, moves[i].from.count);
        let joins = writes.last().is_some_and(|(start, n)| {
            start.plus(*n) == to && start.slot() == to.slot() && n + count <= RUN_BLOCKS
        });
        if !joins {
            writes.push((to, 0));
        }
        let write = writes.len() - 1;
        let blocks = &mut writes[write].1;
        homes[i] = Home { write, at: *blocks as usize * BLOCK };
        *blocks += count;
    }
    (writes, homes)
}

impl Inner {
    /// Copies all of it, but for the moves that it answers: of those a block cannot be read now, and what was written in their place
    /// means nothing. Takes memory for all, and for [`AT_ONCE`] reads.
    pub async fn copy_blocks(&self, moves: &[Move]) -> Result<BTreeSet<usize>> {
        let (places, homes) = homes(moves);
        let alloc = |(to, count): (Loc, u32)| {
            let bytes = self.rt.alloc(count as usize * BLOCK);
            Write { to, count, bytes }
        };
        let writes = RefCell::new(places.into_iter().map(alloc).collect::<Vec<_>>());
        let todo = RefCell::new(runs(moves).into_iter());
        let unread = RefCell::new(BTreeSet::new());
        let lanes = (0..AT_ONCE).map(|_| async {
            loop {
                let Some(run) = todo.borrow_mut().next() else { return };
                let stay = self.read_moves(&run, moves, &homes, &writes).await;
                unread.borrow_mut().extend(stay);
            }
        });
        join_all(lanes).await;
        let todo = RefCell::new(writes.into_inner().into_iter());
        let lanes = (0..AT_ONCE).map(|_| async {
            loop {
                let Some(write) = todo.borrow_mut().next() else { return Ok(()) };
                self.write_blocks(write).await?;
            }
        });
        join_all(lanes).await.into_iter().collect::<Result<()>>()?;
        Ok(unread.into_inner())
    }

    /// Reads a run and puts the blocks of its moves where they are written from. What is read here replaces what is stored, so one wrong
    /// reading must not be the last. Answers the moves that cannot be made yet.
    async fn read_moves(
        &self,
        run: &Run,
        moves: &[Move],
        homes: &[Home],
        writes: &RefCell<Vec<Write>>,
    ) -> Vec<usize> {
        let mut unread = Vec::new();
        let whole = self.rt.alloc(run.count as usize * BLOCK);
        let (result, whole) = self.read_place(run.start, whole).await;
        for i in &run.moves {
            let (Move { from, crcs, .. }, home) = (&moves[*i], homes[*i]);
            let first = distance(run.start, from.loc).unwrap_or(0) as usize;
            for k in 0..from.count as usize {
                let loc = from.loc.plus(k as u32);
                let read = (result.is_ok())
                    .then(|| &whole[(first + k) * BLOCK..(first + k + 1) * BLOCK])
                    .filter(|b| crcs.get(k).is_some_and(|crc| crc32c(b) == *crc));
                let again = match read {
                    Some(_) => {
                        self.unread.borrow_mut().remove(&loc);
                        None
                    }
                    None => self.read_again(loc, crcs.get(k).copied()).await,
                };
                let Some(block) = read.or(again.as_deref()) else {
                    unread.push(*i);
                    break;
                };
                let at = home.at + k * BLOCK;
                writes.borrow_mut()[home.write].bytes[at..at + BLOCK].copy_from_slice(block);
            }
        }
        unread
    }

    /// One block that came wrongly, or not at all. One that does not match its checksum however often it is read will not match it later
    /// either, and is copied so. Where the reading itself failed, `None`, until that has been so for [`UNREAD_MAX`]: zeros then.
    async fn read_again(&self, loc: Loc, crc: Option<u32>) -> Option<Buf> {
        let mut last = self.rt.alloc(BLOCK);
        last.fill(0);
        let mut failed = false;
        for _ in 1..READINGS_MAX {
            match self.read_place(loc, self.rt.alloc(BLOCK)).await {
                (Ok(()), block) if crc == Some(crc32c(&block)) => {
                    self.unread.borrow_mut().remove(&loc);
                    return Some(block.freeze());
                }
                (Ok(()), block) => last = block,
                (Err(e), _) => failed |= e.status == Status::DiskFailed,
            }
            self.rt.sleep(READING_PAUSE).await;
        }
        if failed {
            let now = self.rt.now();
            let since = *self.unread.borrow_mut().entry(loc).or_insert(now);
            if now.since(since) < UNREAD_MAX {
                tracing::warn!(?loc, "a block cannot be read now; it stays where it is");
                return None;
            }
        }
        self.unread.borrow_mut().remove(&loc);
        tracing::warn!(?loc, "a block that is to be moved is damaged; its chunk needs repair");
        Some(last.freeze())
    }

    async fn write_blocks(&self, Write { to, count, bytes }: Write) -> Result<()> {
        let Loc::Slot { class, index, block } = to else { return Ok(()) };
        let file = self.block_file(class).await?;
        let at = u64::from(index) * bytes_of(class) + u64::from(block) * BLOCK as u64;
        if let Err(e) = file.write(vec![bytes.freeze()], at).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u64, block: u32, count: u32, to: u32) -> Move {
        let from = Extent { block: 0, count, loc: Loc::Log { segment, block } };
        Move { from, to: Loc::Slot { class: 20, index: 7, block: to }, crcs: Vec::new() }
    }

    #[test]
    fn neighbours_and_small_gaps_are_read_in_one() {
        let gap = 8 + GAP_BLOCKS;
        let moves =
            [at(1, 100, 1, 0), at(1, gap, 1, 1), at(1, 6, 2, 2), at(1, 5, 1, 3), at(2, 101, 1, 4)];
        let shape: Vec<_> = runs(&moves).into_iter().map(|r| (r.moves, r.count)).collect();
        assert_eq!(shape, [(vec![3, 2, 1], 4 + GAP_BLOCKS), (vec![0], 1), (vec![4], 1)]);
    }

    #[test]
    fn reads_and_writes_are_bounded_but_for_one_long_extent() {
        let long = RUN_BLOCKS * 2;
        let moves: Vec<_> = (0..long).map(|i| at(1, i, 1, i)).collect();
        let counts: Vec<u32> = runs(&moves).iter().map(|r| r.count).collect();
        assert_eq!(counts, [RUN_BLOCKS; 2]);
        let counts: Vec<u32> = homes(&moves).0.iter().map(|(_, n)| *n).collect();
        assert_eq!(counts, [RUN_BLOCKS; 2]);
        let moves = [at(1, 0, long, 0), at(1, long, 1, long)];
        assert_eq!(runs(&moves).len(), 2);
        assert_eq!(homes(&moves).0.len(), 2);
    }

    #[test]
    fn neighbours_in_a_slot_are_written_in_one_wherever_they_come_from() {
        let moves = [at(3, 9, 1, 12), at(1, 1, 2, 10), at(2, 5, 1, 14)];
        let (writes, homes) = homes(&moves);
        let to = |block| Loc::Slot { class: 20, index: 7, block };
        assert_eq!(writes, [(to(10), 3), (to(14), 1)]);
        let home = |write, blocks: usize| Home { write, at: blocks * BLOCK };
        assert_eq!(homes, [home(0, 2), home(0, 0), home(1, 0)]);
    }
}
