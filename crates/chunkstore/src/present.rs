//! Which blocks of a data id exist: for those who look for holes, and count what a sparse file takes.

use crate::Store;
use crate::chunk::Chunk;
use crate::format::BLOCK;
use glowfs_types::wire::sparse::ChunkExtents;
use glowfs_types::{ChunkId, TargetId};

impl Store {
    /// Chunks of the data id of `from` from its index on that have committed blocks, with the runs of these, in order: at most `limit`
    /// chunks, and none after so many runs. Also whether there are more.
    pub fn present(
        &self,
        target: TargetId,
        from: ChunkId,
        limit: usize,
        runs_max: usize,
    ) -> (Vec<ChunkExtents>, bool) {
        let (mut chunks, mut runs) = (Vec::new(), 0);
        let mut more = false;
        self.each_present(target, from, |id, chunk| {
            if chunks.len() >= limit || runs >= runs_max {
                more = true;
                return false;
            }
            let found = runs_of(chunk);
            runs += found.len();
            chunks.push(ChunkExtents { index: id.index, runs: found });
            true
        });
        (chunks, more)
    }

    /// Bytes of the committed blocks of the same chunks.
    pub fn present_bytes(&self, target: TargetId, from: ChunkId) -> u64 {
        let mut blocks = 0;
        self.each_present(target, from, |_, chunk| {
            blocks += chunk.extents.iter().map(|e| u64::from(e.count)).sum::<u64>();
            true
        });
        blocks * BLOCK as u64
    }

    fn each_present(
        &self,
        target: TargetId,
        from: ChunkId,
        mut visit: impl FnMut(&ChunkId, &Chunk) -> bool,
    ) {
        let targets = self.inner.targets.borrow();
        let Some(t) = targets.get(&target) else { return };
        for (id, chunk) in t.chunks.range(from..=ChunkId { index: u64::MAX, ..from }) {
            let exists = chunk.committed.0 > 0 && !chunk.removed && !chunk.extents.is_empty();
            if exists && !visit(id, chunk) {
                return;
            }
        }
    }
}

/// First block and number of blocks of what lies in one piece.
fn runs_of(chunk: &Chunk) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for e in &chunk.extents {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == e.block => *count += e.count,
            _ => runs.push((e.block, e.count)),
        }
    }
    runs
}
