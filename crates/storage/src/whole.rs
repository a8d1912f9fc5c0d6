//! Whole chunks in memory on their way to a successor that is being brought up to date.
//!
//! Such a one is sent the whole chunk for the first update of it, however small that is, and of all chunks with updates under way at once. What admission counts of these updates does not
//! bound that, so it is bounded here: by as many bytes as requests may have in work (`inflight_bytes`), an even part for each disk, so that one that hangs holds up its own
//! chunks only; one chunk is always let in. They wait in the order in which they came.
//!
//! Guarantees: who holds a part waits for nobody but the disk, who mends what is damaged there, and a successor that is the last one of its chain, and for none of them without a
//! bound of time; so nodes that bring each other up to date go on. What a resync transfers has bounds of its own (`sync_targets`, `sync_chunks`).

use crate::node::Node;
use crate::target::Target;
use glowfs_rt::sync::Permit;
use glowfs_types::ChunkId;
use std::rc::Rc;

/// A part of the bytes; given back when dropped.
pub(crate) struct Whole {
    node: Rc<Node>,
    bytes: usize,
    _permit: Permit,
}

impl Target {
    /// Waits until there is room for a whole chunk, as long as it is just now.
    pub(crate) async fn hold_whole(&self, node: &Rc<Node>, chunk: ChunkId) -> Whole {
        let committed = self.store.chunk(self.id, chunk).map_or(0, |s| s.len);
        let pending = self.store.pending(self.id, chunk).into_iter().map(|p| p.len);
        let bytes = pending.fold(committed, u32::max) as usize;
        let permit = self.share.whole.acquire(bytes.min(node.admission.whole_max)).await;
        node.metrics.whole_bytes.add(bytes as i64);
        Whole { node: node.clone(), bytes, _permit: permit }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.node.metrics.whole_bytes.add(-(self.bytes as i64));
    }
}
