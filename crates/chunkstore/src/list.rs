//! What a target holds, in pages. Between two live chunks there may be millions of tombstones: a walk lets others have their turn.

use crate::Store;
use crate::chunk::Chunk;
use crate::state::Inner;
use glowfs_types::wire::data::ChunkSummary;
use glowfs_types::{ChunkId, DataId, TargetId, VolumeId};
use std::ops::Bound::{self, Excluded, Included, Unbounded};

/// Entries looked at without letting other tasks run: less than a millisecond, tombstones that are in no cache included.
const STEP: usize = 1024;

/// Whether anything but a tombstone is left of it.
fn is_live(chunk: &Chunk) -> bool {
    !chunk.removed || !chunk.pending.is_empty()
}

/// The last chunk that a data id can have.
fn last_of(id: ChunkId) -> ChunkId {
    ChunkId { index: u64::MAX, ..id }
}

impl Store {
    /// Chunks of a target after `after`, in order, at most `limit`, tombstones left out; and whether more follow. Each is as it is when its turn comes.
    pub async fn list(
        &self,
        target: TargetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> (Vec<ChunkSummary>, bool) {
        self.page(target, (after.map_or(Unbounded, Excluded), Unbounded), limit).await
    }

    /// The same of the data id of `from` alone, from that chunk on.
    pub async fn list_of(
        &self,
        target: TargetId,
        from: ChunkId,
        limit: usize,
    ) -> (Vec<ChunkSummary>, bool) {
        self.page(target, (Included(from), Included(last_of(from))), limit).await
    }

    /// The data ids after `after` that the target has chunks of, in order, at most `limit`; and whether more follow.
    pub async fn data_ids(
        &self,
        target: TargetId,
        after: Option<(VolumeId, DataId)>,
        limit: usize,
    ) -> (Vec<(VolumeId, DataId)>, bool) {
        let mut ids = Vec::new();
        let mut from = after.map_or(Unbounded, |(volume, data)| {
            Excluded(ChunkId { volume, data, index: u64::MAX })
        });
        loop {
            let next = self.inner.next_chunk(target, from, Unbounded, is_live).await;
            let Some(next) = next else { return (ids, false) };
            if ids.len() == limit {
                return (ids, true);
            }
            ids.push((next.volume, next.data));
            from = Excluded(last_of(next));
        }
    }

    async fn page(
        &self,
        target: TargetId,
        (from, upto): (Bound<ChunkId>, Bound<ChunkId>),
        limit: usize,
    ) -> (Vec<ChunkSummary>, bool) {
        let (mut page, mut more) = (Vec::new(), false);
        let visit = |id: &ChunkId, c: &Chunk| {
            if !is_live(c) {
                return true;
            }
            more = page.len() == limit;
            if !more {
                page.push(ChunkSummary {
                    chunk: *id,
                    committed: c.committed,
                    pending: c.newest(),
                    len: c.len,
                    content_crc: c.content_crc(),
                    chunk_bytes: c.chunk_bytes,
                });
            }
            !more
        };
        self.inner.walk(target, from, upto, visit).await;
        (page, more)
    }
}

impl Inner {
    /// The first chunk within bounds for which that holds.
    pub async fn next_chunk(
        &self,
        target: TargetId,
        from: Bound<ChunkId>,
        upto: Bound<ChunkId>,
        wanted: impl Fn(&Chunk) -> bool,
    ) -> Option<ChunkId> {
        let mut found = None;
        let visit = |id: &ChunkId, c: &Chunk| {
            found = wanted(c).then_some(*id);
            found.is_none()
        };
        self.walk(target, from, upto, visit).await;
        found
    }

    /// Visits the chunks of a target within bounds, tombstones included, in order, as long as `visit` says so.
    async fn walk(
        &self,
        target: TargetId,
        mut from: Bound<ChunkId>,
        upto: Bound<ChunkId>,
        mut visit: impl FnMut(&ChunkId, &Chunk) -> bool,
    ) {
        loop {
            let mut last = None;
            if let Some(t) = self.targets.borrow().get(&target) {
                for (nth, (id, chunk)) in t.chunks.range((from, upto)).take(STEP).enumerate() {
                    if !visit(id, chunk) {
                        return;
                    }
                    last = (nth + 1 == STEP).then_some(*id);
                }
            }
            let Some(last) = last else { return };
            from = Excluded(last);
            self.rt.yield_now().await;
        }
    }
}
