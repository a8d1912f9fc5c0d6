//! Mending: blocks that are damaged at rest are written again where they lie, with bytes from any member of the chain.
//!
//! The right bytes of a block are known by the checksum that stands with it here. So it does not matter what the member that has them is
//! (serving, waiting, being brought up to date) or which version it has, and nothing has to be held still.

use crate::node::Node;
use crate::repair::fetch;
use crate::target::Target;
use glowfs_chunkstore::BadBlock;
use glowfs_net::{Incoming, Reply};
use glowfs_rt::{Buf, Duration, Instant};
use glowfs_types::checksum::{BLOCK_BYTES, crc32c};
use glowfs_types::routing::{ChainInfo, ChainMember, PublicState};
use glowfs_types::wire::data::{UpdateHead, update};
use glowfs_types::wire::repair::{FetchChunk, FetchChunkReply};
use glowfs_types::{ChunkId, Error, Result, Status, TargetId};
use std::collections::BTreeMap;

/// For how long it is remembered that nobody has a block; somebody who has it may come back.
const LOST_FOR: Duration = Duration::from_secs(5);
/// How long a disk has to find a block for another member.
const FIND_DEADLINE: Duration = Duration::from_secs(5);
/// Chunks of which that is remembered at a time.
const LOST_MAX: usize = 256;

/// Until when it is remembered, and which blocks.
pub(crate) type Lost = BTreeMap<ChunkId, (Instant, Vec<BadBlock>)>;

/// How it ended.
#[derive(Default)]
pub(crate) struct Mend {
    /// Blocks that are as they were stored again.
    pub mended: u32,
    /// Blocks that no member that answered has.
    pub lost: Vec<BadBlock>,
    /// Members that did not answer.
    pub silent: Vec<TargetId>,
    /// The disk does not take a block where it lies.
    pub stuck: Option<Error>,
}

/// The error of blocks that nobody has.
pub(crate) fn lost_blocks(lost: usize, silent: &[TargetId]) -> Error {
    let silent: Vec<String> = silent.iter().map(ToString::to_string).collect();
    let what = match silent.as_slice() {
        [] => {
            format!("no replica has {lost} damaged blocks: write them again, or restore the file")
        }
        some => format!(
            "no replica that answers has {lost} damaged blocks; bring targets {} back",
            some.join(", ")
        ),
    };
    Error::new(Status::Corrupt, what)
}

impl Target {
    /// Mends what of a chunk is damaged here.
    pub(crate) async fn mend(&self, node: &Node, chunk: ChunkId) -> Result<Mend> {
        let mut mend = Mend::default();
        let bad = self.store.bad_blocks(self.id, chunk).await?;
        if bad.is_empty() {
            self.note_lost(node, chunk, &mend);
            return Ok(mend);
        }
        let (chain, others) = self.all_others(node)?;
        for b in bad {
            // Another version of it here may have the same block; and zeros are known.
            let own = self.store.find_block(self.id, chunk, b.block, b.crc).await?;
            let bytes = match own {
                Some(own) => Some(own.freeze()),
                None => {
                    let wanted = (b.block, b.crc);
                    self.block_of_others(node, &chain, &others, chunk, wanted, &mut mend).await
                }
            };
            let Some(bytes) = bytes else {
                mend.lost.push(b);
                continue;
            };
            match self.store.mend(self.id, chunk, b.block, bytes).await {
                Ok(_) => mend.mended += 1,
                Err(e) => mend.stuck = Some(e),
            }
        }
        self.note_lost(node, chunk, &mend);
        if mend.mended > 0 {
            tracing::warn!(target = %self.id, %chunk, blocks = mend.mended, "damaged blocks mended from other replicas");
        }
        Ok(mend)
    }

    /// Remembers for a while what every other member was asked for in vain.
    fn note_lost(&self, node: &Node, chunk: ChunkId, mend: &Mend) {
        self.damage.borrow_mut().note(chunk, mend, node.rt.unix_ns());
        let now = node.rt.now();
        let mut lost = self.lost.borrow_mut();
        lost.retain(|_, (until, _)| *until > now);
        if mend.lost.is_empty() || !mend.silent.is_empty() {
            lost.remove(&chunk);
        } else if lost.len() < LOST_MAX {
            lost.insert(chunk, (now + LOST_FOR, mend.lost.clone()));
        }
    }

    /// Whether bytes of this range, which cannot be read, are lost: every other member was asked for them just now.
    pub(crate) async fn has_lost(&self, node: &Node, chunk: ChunkId, at: u32, len: u32) -> bool {
        let end = u64::from(at) + u64::from(len);
        let inside = |b: &BadBlock| {
            let begin = u64::from(b.block) * u64::from(BLOCK_BYTES);
            begin < end && begin + u64::from(BLOCK_BYTES) > u64::from(at)
        };
        let known = {
            let lost = self.lost.borrow();
            let fresh = lost.get(&chunk).filter(|(until, _)| *until > node.rt.now());
            fresh.map_or_else(Vec::new, |(_, all)| all.iter().copied().filter(inside).collect())
        };
        if known.is_empty() {
            return false;
        }
        // It may have been written since.
        let bad = self.store.bad_blocks(self.id, chunk).await.unwrap_or_default();
        bad.iter().any(|b| known.contains(b))
    }

    /// Whether an update writes a part of a block of which the rest is lost ([`Self::has_lost`]): it cannot be done, here or anywhere.
    pub(crate) async fn builds_on_lost(&self, head: &UpdateHead) -> bool {
        let Some(node) = self.node.upgrade() else { return false };
        let (chunk, begin, len) = (head.chunk.into(), head.offset.get(), head.len.get());
        let end = match head.kind {
            update::WRITE => begin.saturating_add(len),
            update::TRUNCATE => len,
            _ => return false,
        };
        let edges = [begin, end].into_iter().filter(|at| !at.is_multiple_of(BLOCK_BYTES));
        for edge in edges {
            if self.has_lost(&node, chunk, edge, 1).await {
                return true;
            }
        }
        false
    }

    /// The bytes of a block with this checksum.
    async fn block_of_others(
        &self,
        node: &Node,
        chain: &ChainInfo,
        others: &[ChainMember],
        chunk: ChunkId,
        (block, crc): (u32, u32),
        mend: &mut Mend,
    ) -> Option<Buf> {
        for other in others {
            if mend.silent.contains(&other.target) {
                continue;
            }
            let ask = FetchChunk {
                chain: chain.id,
                chain_version: chain.version,
                target: other.target,
                chunk,
                offset: block * BLOCK_BYTES,
                len: BLOCK_BYTES,
                block_crc: Some(crc),
            };
            match fetch(node, other, &ask).await {
                Ok((_, bytes)) if crc32c(&bytes) == crc => return Some(bytes.freeze()),
                Ok(_) => {}
                Err(e) if e.status == Status::NotFound => {}
                Err(e) => {
                    tracing::debug!(target = %other.target, %chunk, error = %e, "asked for a block");
                    mend.silent.push(other.target);
                }
            }
        }
        None
    }

    /// The other members of the chain: who serves first, of those the tail first.
    fn all_others(&self, node: &Node) -> Result<(ChainInfo, Vec<ChainMember>)> {
        let routing = node.routing();
        let chain = routing.chains.values().find(|c| c.members.iter().any(|m| m.target == self.id));
        let chain = chain.ok_or_else(|| self.refusal(Status::WrongChainVersion))?;
        let mut others: Vec<_> =
            chain.members.iter().filter(|m| m.target != self.id).copied().collect();
        others.reverse();
        others.sort_by_key(|m| m.state != PublicState::Serving);
        Ok((chain.clone(), others))
    }
}

impl Node {
    /// FETCH_CHUNK of a block that is known by its checksum.
    pub(crate) async fn fetch_block(
        &self,
        incoming: &mut Incoming,
        ask: &FetchChunk,
        crc: u32,
    ) -> Result<Reply> {
        let target = self.target(ask.target)?;
        let whole = ask.len == BLOCK_BYTES && ask.offset.is_multiple_of(BLOCK_BYTES);
        if !whole || incoming.reply_room() < ask.len as usize {
            return Err(Error::new(Status::BadMessage, "not one whole block was asked for"));
        }
        let _admitted = target.share.admit(u64::from(ask.len))?;
        let block = ask.offset / BLOCK_BYTES;
        // Asked of a failed disk as well, which may hang.
        let find = target.store.find_block(target.id, ask.chunk, block, crc);
        let late = |_| Error::new(Status::TimedOut, "the disk does not answer");
        let found = self.rt.timeout(FIND_DEADLINE, find).await.map_err(late)??;
        let found = found.ok_or_else(|| Error::new(Status::NotFound, "the block is not here"))?;
        let mut buf = incoming.reply_buffer()?;
        buf.truncate(found.len());
        buf.copy_from_slice(&found);
        let mut reply = Reply::msg(&FetchChunkReply::default());
        reply.bulk = Some(buf);
        Ok(reply)
    }
}
