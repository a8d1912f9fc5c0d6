//! [`Counts`]: how many of something are under way, by chunk.

use glowfs_types::ChunkId;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// See the module. As many ends as begins: then nothing is left of the chunk.
#[derive(Default)]
pub(crate) struct Counts(RefCell<BTreeMap<ChunkId, u32>>);

impl Counts {
    /// One more of the chunk; how many were under way before it.
    pub fn begin(&self, chunk: ChunkId) -> u32 {
        let mut counts = self.0.borrow_mut();
        let count = counts.entry(chunk).or_default();
        *count += 1;
        *count - 1
    }
    /// One less.
    pub fn end(&self, chunk: ChunkId) {
        let mut counts = self.0.borrow_mut();
        match counts.get_mut(&chunk) {
            Some(n) if *n > 1 => *n -= 1,
            _ => {
                counts.remove(&chunk);
            }
        }
    }
    /// Whether any of the chunk is under way.
    pub fn any(&self, chunk: ChunkId) -> bool {
        self.0.borrow().contains_key(&chunk)
    }
}
