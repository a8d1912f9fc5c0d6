//! What is known to be damaged here and nowhere to be had: for operators, who alone can do something about it.
//!
//! It is noted when a read, the scrub or a resync asked every other replica in vain, and looked at again when somebody asks: what was
//! written or mended since is not shown. Not kept over a restart; a pass of the scrub finds it again. Must never: decide what a
//! read answers (that is [`crate::mend`]'s, which asks the others again).

use crate::mend::Mend;
use crate::node::Node;
use crate::target::Target;
use glowfs_chunkstore::BadBlock;
use glowfs_net::Incoming;
use glowfs_types::wire::repair::{Damaged, DamagedChunk, DamagedReply};
use glowfs_types::{ChunkId, Result, TargetId};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

/// Blocks remembered for each target, 8 bytes each, and at most so many chunks.
const BLOCKS_MAX: usize = 64 << 10;
/// Chunks that one answer looks at: each is read.
const PAGE_CHUNKS: usize = 16;
/// Bytes that one answer reads, roughly: it must be there before the call ends.
const PAGE_BYTES: u64 = 32 << 20;

/// What was damaged in a chunk.
struct Known {
    since_ns: u64,
    lost: Vec<BadBlock>,
    silent: Vec<TargetId>,
}

/// What a target has noted.
#[derive(Default)]
pub(crate) struct Ledger {
    chunks: BTreeMap<ChunkId, Known>,
    blocks: usize,
    left_out: bool,
}

impl Ledger {
    /// What came of mending a chunk, or that nothing of it is damaged.
    pub fn note(&mut self, chunk: ChunkId, mend: &Mend, now_ns: u64) {
        let before = self.forget(chunk);
        if mend.lost.is_empty() {
            return;
        }
        if self.blocks + mend.lost.len() > BLOCKS_MAX {
            self.left_out = true;
            return;
        }
        self.blocks += mend.lost.len();
        let (lost, silent) = (mend.lost.clone(), mend.silent.clone());
        let since_ns = before.map_or(now_ns, |k| k.since_ns);
        self.chunks.insert(chunk, Known { since_ns, lost, silent });
    }

    fn forget(&mut self, chunk: ChunkId) -> Option<Known> {
        let known = self.chunks.remove(&chunk)?;
        self.blocks -= known.lost.len();
        Some(known)
    }

    fn next_after(&self, after: Option<ChunkId>) -> Option<ChunkId> {
        let from = after.map_or(Unbounded, Excluded);
        self.chunks.range((from, Unbounded)).next().map(|(id, _)| *id)
    }
}

impl Target {
    /// A noted chunk, as far as it is damaged still; forgotten if it is not.
    async fn still_damaged(&self, node: &Node, chunk: ChunkId) -> Result<Option<DamagedChunk>> {
        let bad = self.store.bad_blocks(self.id, chunk).await?;
        let state = self.store.chunk(self.id, chunk);
        let mut ledger = self.damage.borrow_mut();
        let Some(known) = ledger.chunks.get(&chunk) else { return Ok(None) };
        let mut blocks: Vec<u32> =
            known.lost.iter().filter(|b| bad.contains(b)).map(|b| b.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let Some(state) = state.filter(|_| !blocks.is_empty()) else {
            ledger.forget(chunk);
            return Ok(None);
        };
        Ok(Some(DamagedChunk {
            target: self.id,
            chain: node.routing().targets.get(&self.id).map(|t| t.chain).unwrap_or_default(),
            chunk,
            chunk_bytes: state.chunk_bytes,
            blocks,
            since_ns: known.since_ns,
            silent: known.silent.clone(),
        }))
    }
}

impl Node {
    /// DAMAGED.
    pub(crate) async fn damaged(self: &Rc<Self>, incoming: &Incoming) -> Result<DamagedReply> {
        self.require_operator(incoming)?;
        let ask: Damaged = incoming.msg()?;
        let targets = self.all_targets();
        let mut reply = DamagedReply {
            left_out: targets.iter().any(|t| t.damage.borrow().left_out),
            ..DamagedReply::default()
        };
        let (mut looked, mut bytes) = (0, 0);
        for target in targets {
            if target.store.failure().is_some() || ask.after.is_some_and(|(t, _)| target.id < t) {
                continue;
            }
            let mut after = ask.after.filter(|(t, _)| *t == target.id).map(|(_, chunk)| chunk);
            loop {
                let next = target.damage.borrow().next_after(after);
                let Some(chunk) = next else { break };
                if looked >= PAGE_CHUNKS || bytes >= PAGE_BYTES {
                    return Ok(reply);
                }
                looked += 1;
                bytes += target.store.chunk(target.id, chunk).map_or(0, |s| u64::from(s.len));
                reply.chunks.extend(target.still_damaged(self, chunk).await?);
                after = Some(chunk);
                reply.next = Some((target.id, chunk));
            }
        }
        reply.next = None;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u64) -> ChunkId {
        ChunkId { index, ..ChunkId::default() }
    }
    fn lost(n: u32) -> Mend {
        let lost = (0..n).map(|block| BadBlock { block, crc: block }).collect();
        Mend { lost, ..Mend::default() }
    }

    #[test]
    fn what_is_noted_is_bounded_and_forgotten_when_it_is_sound() {
        let mut ledger = Ledger::default();
        let chunks = BLOCKS_MAX as u64 / 100;
        for i in 0..chunks + 10 {
            ledger.note(chunk(i), &lost(100), i);
        }
        assert!(ledger.blocks <= BLOCKS_MAX && ledger.left_out);
        assert_eq!(ledger.chunks.len() as u64, chunks);
        ledger.note(chunk(3), &lost(2), 999);
        assert_eq!(ledger.chunks[&chunk(3)].since_ns, 3, "it is as old as it was");
        for i in 0..chunks {
            ledger.note(chunk(i), &lost(0), 1000);
        }
        assert_eq!((ledger.blocks, ledger.chunks.len()), (0, 0));
    }
}
