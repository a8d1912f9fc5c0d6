//! Copying many blocks from the log to slots: long reads in the order of the log, writes in the order of the slots, several of each at
//! once. Bounded memory: one step at a time.

use crate::extents::{Extent, Loc};
use crate::format::BLOCK;
use crate::slots::bytes_of;
use crate::state::Inner;
use crate::util::{Job, join_all};
use glowfs_rt::Buf;
use glowfs_types::Result;
use std::cell::RefCell;
use std::rc::Rc;

/// Blocks in memory at one time, at most (unless one extent alone is longer).
const STEP_BLOCKS: u32 = 2048;
/// Blocks of one read, at most (unless one extent alone is longer).
const READ_BLOCKS: u32 = 256;
/// So many blocks that nobody wants are read along rather than beginning another read.
const GAP_BLOCKS: u32 = 8;
/// Pieces of one write, at most.
const WRITE_PIECES: usize = 256;
/// Writes on their way.
const WRITES_AT_ONCE: usize = 16;

/// A run of the log, and the extents in it.
struct Run<'a> {
    start: Loc,
    count: u32,
    moves: &'a [(Extent, Loc)],
}

/// A run of a slot, and its bytes.
struct Write {
    to: Loc,
    count: u32,
    bufs: Vec<Buf>,
}

/// How many blocks further `to` is than `from` in the same segment.
fn distance(from: Loc, to: Loc) -> Option<u32> {
    match (from, to) {
        (Loc::Log { segment: a, block: from }, Loc::Log { segment: b, block: to }) if a == b => {
            to.checked_sub(from)
        }
        _ => None,
    }
}

/// Joins sorted extents to runs until the step is full; what remains.
fn runs(mut moves: &[(Extent, Loc)]) -> (Vec<Run<'_>>, &[(Extent, Loc)]) {
    let (mut out, mut total) = (Vec::new(), 0);
    while let Some((first, _)) = moves.first()
        && total < STEP_BLOCKS
    {
        let (mut n, mut count) = (1, first.count);
        while let Some((next, _)) = moves.get(n)
            && let Some(at) = distance(first.loc, next.loc)
            && at <= count + GAP_BLOCKS
            && at + next.count <= READ_BLOCKS
        {
            // Two versions of a chunk may refer to the same place.
            count = count.max(at + next.count);
            n += 1;
        }
        let (these, rest) = moves.split_at(n);
        out.push(Run { start: first.loc, count, moves: these });
        total += count;
        moves = rest;
    }
    (out, moves)
}

/// Joins pieces to writes of neighbours.
fn writes(mut pieces: Vec<(Loc, u32, Buf)>) -> Vec<Write> {
    pieces.sort_by_key(|(to, ..)| *to);
    let mut out: Vec<Write> = Vec::new();
    for (to, count, buf) in pieces {
        match out.last_mut() {
            Some(w)
                if w.to.plus(w.count) == to
                    && w.to.slot() == to.slot()
                    && w.bufs.len() < WRITE_PIECES =>
            {
                w.count += count;
                w.bufs.push(buf);
            }
            _ => out.push(Write { to, count, bufs: vec![buf] }),
        }
    }
    out
}

impl Inner {
    /// Copies blocks as they are: what does not match its checksum now will not match it later.
    pub async fn copy_blocks(self: &Rc<Self>, mut moves: Vec<(Extent, Loc)>) -> Result<()> {
        moves.sort_by_key(|(from, _)| from.loc);
        let mut rest = moves.as_slice();
        while !rest.is_empty() {
            let (step, later) = runs(rest);
            let reads: Vec<Job<'_, Vec<(Loc, u32, Buf)>>> =
                step.iter().map(|r| Box::pin(self.read_run(r)) as Job<'_, _>).collect();
            let pieces = join_all(reads).await.into_iter().flatten().collect();
            self.write_all(writes(pieces)).await?;
            rest = later;
        }
        Ok(())
    }

    /// The extents of a run, each with where it goes.
    async fn read_run(self: &Rc<Self>, run: &Run<'_>) -> Vec<(Loc, u32, Buf)> {
        let (result, whole) =
            self.read_place(run.start, self.rt.alloc(run.count as usize * BLOCK)).await;
        let whole = whole.freeze();
        let mut out = Vec::with_capacity(run.moves.len());
        for (from, to) in run.moves {
            let at = distance(run.start, from.loc).unwrap_or(0) as usize * BLOCK;
            let bytes = match &result {
                Ok(()) => whole.slice(at..at + from.count as usize * BLOCK),
                Err(_) => self.read_alone(from).await,
            };
            out.push((*to, from.count, bytes));
        }
        out
    }

    /// One extent, where the run that it is in cannot be read; zeros for what cannot be read by itself either.
    async fn read_alone(self: &Rc<Self>, from: &Extent) -> Buf {
        let (result, mut buf) =
            self.read_place(from.loc, self.rt.alloc(from.count as usize * BLOCK)).await;
        if let Err(e) = result {
            tracing::warn!(error = %e, "a block in the log cannot be read; its chunk needs repair");
            buf.fill(0);
        }
        buf.freeze()
    }

    async fn write_all(self: &Rc<Self>, writes: Vec<Write>) -> Result<()> {
        let queue = Rc::new(RefCell::new(writes.into_iter()));
        let lane = || {
            let (inner, queue) = (self.clone(), queue.clone());
            self.rt.spawn(async move {
                loop {
                    let Some(next) = queue.borrow_mut().next() else { return Ok(()) };
                    inner.write_blocks(next).await?;
                }
            })
        };
        let lanes: Vec<_> = (0..WRITES_AT_ONCE).map(|_| lane()).collect();
        let mut result = Ok(());
        for lane in lanes {
            result = result.and(lane.await);
        }
        result
    }

    async fn write_blocks(self: &Rc<Self>, Write { to, count, bufs }: Write) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u64, block: u32, count: u32) -> (Extent, Loc) {
        let loc = Loc::Log { segment, block };
        (Extent { block: 0, count, loc }, Loc::Slot { class: 12, index: block, block: 0 })
    }

    #[test]
    fn neighbours_and_small_gaps_are_read_in_one() {
        let moves =
            [at(1, 5, 1), at(1, 6, 2), at(1, 8 + GAP_BLOCKS, 1), at(1, 100, 1), at(2, 101, 1)];
        let (runs, rest) = runs(&moves);
        assert!(rest.is_empty());
        let shape: Vec<_> = runs.iter().map(|r| (r.moves.len(), r.count)).collect();
        assert_eq!(shape, [(3, 4 + GAP_BLOCKS), (1, 1), (1, 1)]);
    }

    #[test]
    fn reads_and_steps_are_bounded() {
        let moves: Vec<_> = (0..STEP_BLOCKS * 2).map(|i| at(1, i, 1)).collect();
        let (first, rest) = runs(&moves);
        assert!(first.iter().all(|r| r.count <= READ_BLOCKS));
        assert_eq!(first.iter().map(|r| r.count).sum::<u32>(), STEP_BLOCKS);
        assert_eq!(rest.len(), STEP_BLOCKS as usize);
        let moves = [at(1, 0, STEP_BLOCKS * 3), at(1, STEP_BLOCKS * 3, 1)];
        let (one, rest) = runs(&moves);
        assert_eq!((one.len(), rest.len()), (1, 1), "one long extent goes alone");
    }
}
