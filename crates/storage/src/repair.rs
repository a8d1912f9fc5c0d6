//! Repair: committed content that is damaged here, or differs from the chain's, is replaced by that of another serving replica.
//!
//! What is damaged is first mended where it lies (`mend`), and only if the disk does not take that, put elsewhere as a whole: then
//! the chunk is held still meanwhile (`glowfs_craq::Event::Hold`), and its version stays. Where two replicas differ at
//! the same version although each is sound, the tail's is the chain's: its commit is what makes an update final, and it is what
//! a client is sent to when in doubt.
//!
//! Must never: put anything in place that was not verified, or change what a chunk with the same checksums everywhere says.

use crate::mend::lost_blocks;
use crate::node::Node;
use crate::target::Target;
use glowfs_chunkstore::{ChunkState, StageKind, StageRequest};
use glowfs_craq::{Event, View};
use glowfs_net::{Bulk, Incoming, Reply, Request};
use glowfs_rt::sync::{Either, oneshot, select};
use glowfs_rt::{BufMut, Duration, Instant};
use glowfs_types::checksum::{crc32c, piece_checksums};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::routing::ChainMember;
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{FetchChunk, FetchChunkReply};
use glowfs_types::{ChunkId, Error, Result, Status, TargetId, TenantId};
use std::pin::pin;
use std::rc::Rc;

/// Repairs of a node that wait or run at once; scrubbing finds again what is not taken in.
const REPAIRS_MAX: usize = 256;
/// The pause before a chunk whose repair failed is tried again.
const FAILED_PAUSE: Duration = Duration::from_secs(5);
/// How long a repair waits for what is under way on its chunk.
const HOLD_DEADLINE: Duration = Duration::from_secs(5);
/// How long another replica has for one piece.
const FETCH_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of one piece.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes of a block of the store: checksums of content are per block.
const BLOCK: usize = 4096;

/// What is wrong with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// Bytes at rest do not match their checksums, or cannot be read.
    Damaged,
    /// The content may differ from the tail's at the same version.
    Differs,
}

/// Lets the chunk go when the repair ends, however it ends.
struct Held {
    target: Rc<Target>,
    ticket: glowfs_craq::Ticket,
    chunk: ChunkId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.target.holds.borrow_mut().remove(&self.ticket);
        self.target.feed(Event::LetGo(self.ticket, self.chunk));
    }
}

/// The checksum of content as the store states it: over the checksums of its blocks, the last one filled up with zeros.
fn content_crc(bytes: &[u8]) -> u32 {
    let mut list = Vec::with_capacity(bytes.len().div_ceil(BLOCK) * 4);
    for block in bytes.chunks(BLOCK) {
        let crc = if block.len() == BLOCK {
            crc32c(block)
        } else {
            let mut whole = [0; BLOCK];
            whole[..block.len()].copy_from_slice(block);
            crc32c(&whole)
        };
        list.extend_from_slice(&crc.to_le_bytes());
    }
    crc32c(&list)
}

impl Target {
    /// Begins a repair in the background, if none of that chunk is under way or has failed just now.
    pub(crate) fn repair_soon(self: &Rc<Self>, chunk: ChunkId, wrong: Wrong) {
        let Some(node) = self.node.upgrade() else { return };
        let key = (self.id, chunk);
        {
            let mut repairs = node.repairs.borrow_mut();
            let now = node.rt.now();
            repairs.retain(|_, until| until.is_none_or(|at| at > now));
            if repairs.len() >= REPAIRS_MAX || repairs.contains_key(&key) {
                return;
            }
            repairs.insert(key, None);
        }
        let me = self.clone();
        let rt = node.rt.clone();
        rt.spawn_detached(async move {
            let result = me.repair(&node, chunk, wrong).await;
            let mut repairs = node.repairs.borrow_mut();
            match result {
                Ok(_) => repairs.remove(&key),
                Err(_) => repairs.insert(key, Some(node.rt.now() + FAILED_PAUSE)),
            };
        });
    }

    /// Repairs a chunk; whether anything had to be done.
    pub(crate) async fn repair(
        self: &Rc<Self>,
        node: &Rc<Node>,
        chunk: ChunkId,
        wrong: Wrong,
    ) -> Result<bool> {
        let _slot = node.repair_slots.acquire(1).await;
        // A disk that hangs would keep the slot for ever.
        let work = pin!(self.try_repair(node, chunk, wrong));
        let result = match select(work, pin!(self.store.failed())).await {
            Either::Left(result) => result,
            Either::Right(e) => Err(e),
        };
        match &result {
            Ok(true) => {
                node.metrics.repaired.inc();
                self.scrub.repaired.set(self.scrub.repaired.get() + 1);
                tracing::warn!(target = %self.id, %chunk, ?wrong, "chunk repaired from another replica");
            }
            Ok(false) => {}
            Err(e) => {
                node.metrics.repairs_failed.inc();
                self.scrub.failed.set(self.scrub.failed.get() + 1);
                tracing::error!(target = %self.id, %chunk, ?wrong, error = %e, "chunk could not be repaired; trying again later");
            }
        }
        result
    }

    async fn try_repair(
        self: &Rc<Self>,
        node: &Rc<Node>,
        chunk: ChunkId,
        wrong: Wrong,
    ) -> Result<bool> {
        if wrong == Wrong::Damaged {
            let mend = self.mend(node, chunk).await?;
            match mend.stuck {
                // Only the whole chunk in another place helps.
                Some(why) => {
                    tracing::warn!(target = %self.id, %chunk, error = %why, "mending in place");
                }
                None if mend.lost.is_empty() => return Ok(mend.mended > 0),
                None => return Err(lost_blocks(mend.lost.len(), &mend.silent)),
            }
        }
        let view = self.serving_view()?;
        let held = self.hold(node, chunk).await?;
        let _held = Some(held).filter(|_| !planted(Mutant::RepairNotHeld));
        let state = self.store.chunk(self.id, chunk).filter(|s| s.exists());
        let Some(state) = state else { return Ok(false) };
        let good = match wrong {
            Wrong::Damaged => self.made_whole(node, &view, chunk, &state).await?,
            Wrong::Differs => self.of_the_tail(node, &view, chunk, &state).await?,
        };
        let Some(good) = good else { return Ok(false) };
        // The chain may have changed while it was fetched; then somebody else knows what holds.
        node.check_lease()?;
        if self.serving_view()? != view {
            return Err(self.refusal(Status::WrongChainVersion));
        }
        self.put_in_place(node, chunk, &state, good).await?;
        Ok(true)
    }

    fn serving_view(&self) -> Result<View> {
        let view = self.view().filter(|v| v.serving());
        let view = view.filter(|_| self.replica.borrow().adopting().is_none());
        view.ok_or_else(|| self.refusal(Status::NotServing))
    }

    async fn hold(self: &Rc<Self>, node: &Node, chunk: ChunkId) -> Result<Held> {
        let ticket = self.ticket();
        let (sender, granted) = oneshot();
        self.holds.borrow_mut().insert(ticket, sender);
        let held = Held { target: self.clone(), ticket, chunk };
        self.feed(Event::Hold(ticket, chunk));
        match node.rt.timeout(HOLD_DEADLINE, granted).await {
            Ok(Ok(Ok(()))) => Ok(held),
            Ok(Ok(Err(status))) => Err(self.refusal(status)),
            _ => Err(self.refusal(Status::Pending)),
        }
    }

    /// The content as its own checksums say it was: own pieces that can be read, others from whoever has them. `None`: all is well.
    async fn made_whole(
        &self,
        node: &Node,
        view: &View,
        chunk: ChunkId,
        state: &ChunkState,
    ) -> Result<Option<BufMut>> {
        let mut whole = node.rt.alloc(state.len as usize);
        let mut bad = Vec::new();
        for at in (0..whole.len()).step_by(PIECE_BYTES) {
            let piece = node.rt.alloc(PIECE_BYTES.min(whole.len() - at));
            let (result, piece) = self.store.read(self.id, chunk, at as u32, piece).await;
            match result {
                Ok(_) => whole[at..at + piece.len()].copy_from_slice(&piece),
                Err(e) if matches!(e.status, Status::Corrupt | Status::DiskFailed) => bad.push(at),
                Err(e) => return Err(e),
            }
        }
        if bad.is_empty() {
            return Ok(None);
        }
        let others = self.others(node, view)?;
        let mut last = Error::new(Status::Corrupt, "no other replica serves");
        // One after the other: what one of them has damaged as well, another one may have.
        for other in &others {
            let mut rest = Vec::new();
            for at in bad {
                let len = PIECE_BYTES.min(whole.len() - at);
                match self.fetch(node, view, other, chunk, (at, len)).await {
                    Ok((said, piece))
                        if (said.version, said.len) == (state.committed, state.len) =>
                    {
                        whole[at..at + len].copy_from_slice(&piece[..len]);
                    }
                    Ok((said, _)) => {
                        let what = format!("target {} has version {}", other.target, said.version);
                        last = Error::new(Status::VersionGap, what);
                        rest.push(at);
                    }
                    Err(e) => {
                        last = e;
                        rest.push(at);
                    }
                }
            }
            bad = rest;
            if bad.is_empty() {
                break;
            }
        }
        if !bad.is_empty() {
            return Err(last.context("no serving replica has what is damaged here"));
        }
        if content_crc(&whole) != state.content_crc {
            return Err(Error::new(
                Status::Corrupt,
                "what the other replicas have does not match the checksums here",
            ));
        }
        Ok(Some(whole))
    }

    /// The tail's content, if it differs at our version.
    async fn of_the_tail(
        &self,
        node: &Node,
        view: &View,
        chunk: ChunkId,
        state: &ChunkState,
    ) -> Result<Option<BufMut>> {
        let others = self.others(node, view)?;
        let Some(tail) = others.first().filter(|_| view.successor.is_some_and(|s| !s.2)) else {
            return Ok(None);
        };
        let (said, _) = self.fetch(node, view, tail, chunk, (0, 0)).await?;
        if said.version != state.committed {
            return Err(Error::new(
                Status::VersionGap,
                "the tail has another version; it moves on",
            ));
        }
        if (said.content_crc, said.len) == (state.content_crc, state.len) {
            return Ok(None);
        }
        let mut whole = node.rt.alloc(said.len as usize);
        for at in (0..whole.len()).step_by(PIECE_BYTES) {
            let len = PIECE_BYTES.min(whole.len() - at);
            let (again, piece) = self.fetch(node, view, tail, chunk, (at, len)).await?;
            if again != said {
                return Err(Error::new(Status::VersionGap, "the tail's chunk changed meanwhile"));
            }
            whole[at..at + len].copy_from_slice(&piece[..len]);
        }
        if content_crc(&whole) != said.content_crc {
            return Err(Error::new(Status::Corrupt, "the tail's content came damaged"));
        }
        Ok(Some(whole))
    }

    /// What the tail says of a chunk; `None` if this is the tail.
    pub(crate) async fn tail_says(
        &self,
        node: &Node,
        chunk: ChunkId,
    ) -> Result<Option<FetchChunkReply>> {
        let view = self.serving_view()?;
        let others = self.others(node, &view)?;
        let tail = others.first().filter(|_| view.successor.is_some_and(|s| !s.2));
        match tail {
            Some(tail) => {
                self.fetch(node, &view, tail, chunk, (0, 0)).await.map(|(said, _)| Some(said))
            }
            None => Ok(None),
        }
    }

    /// The other serving members, the tail first.
    fn others(&self, node: &Node, view: &View) -> Result<Vec<ChainMember>> {
        let routing = node.routing();
        let chain = routing.chains.get(&view.chain).filter(|c| c.version == view.version);
        let chain = chain.ok_or_else(|| self.refusal(Status::WrongChainVersion))?;
        let mut others: Vec<_> = chain.serving().filter(|m| m.target != self.id).copied().collect();
        others.reverse();
        Ok(others)
    }

    async fn fetch(
        &self,
        node: &Node,
        view: &View,
        from: &ChainMember,
        chunk: ChunkId,
        (at, len): (usize, usize),
    ) -> Result<(FetchChunkReply, BufMut)> {
        let ask = FetchChunk {
            chain: view.chain,
            chain_version: view.version,
            target: from.target,
            chunk,
            offset: at as u32,
            len: len as u32,
            block_crc: None,
        };
        fetch(node, from, &ask).await
    }
}

/// FETCH_CHUNK of a member of the chain.
pub(crate) async fn fetch(
    node: &Node,
    from: &ChainMember,
    ask: &FetchChunk,
) -> Result<(FetchChunkReply, BufMut)> {
    let len = ask.len as usize;
    let buf = node.rt.alloc(len);
    let call = async {
        let conn = node.connect(from.node).await?;
        conn.call(Request {
            method: method::FETCH_CHUNK,
            body: glowfs_types::wire::encode(ask),
            bulk: if len > 0 { Bulk::Recv(buf) } else { Bulk::None },
            tenant: TenantId::default(),
            deadline: FETCH_DEADLINE,
        })
        .await
    };
    let late = |_| Error::new(Status::TimedOut, format!("target {} is silent", from.target));
    let response = node.rt.timeout(FETCH_DEADLINE, call).await.map_err(late)??;
    let said: FetchChunkReply = glowfs_types::wire::decode(&response.body)?;
    if response.bulk_len != len {
        return Err(Error::new(Status::BadMessage, "a fetch came with another length"));
    }
    Ok((said, response.bulk.unwrap_or_else(|| node.rt.alloc(0))))
}

impl Target {
    async fn put_in_place(
        &self,
        node: &Node,
        chunk: ChunkId,
        state: &ChunkState,
        good: BufMut,
    ) -> Result<()> {
        let len = good.len();
        let payload = good.freeze();
        let mut crcs = Vec::new();
        piece_checksums(0, &payload, &mut crcs);
        let request = StageRequest {
            chunk,
            version: state.committed,
            kind: StageKind::Replace,
            offset: 0,
            len: 0,
            payload,
            crcs,
            chunk_bytes: state.chunk_bytes,
            channel: None,
            commit: true,
            flush: true,
            anew: false,
            any_version: false,
            damaged: false,
        };
        self.store.stage(self.id, request).await?;
        // What was written is read from the disk again: one that does not keep it has more wrong than this chunk.
        let (result, _) = self.store.read(self.id, chunk, 0, node.rt.alloc(len)).await;
        result.map(|_| ()).map_err(|e| e.context("after the repair"))
    }
}

impl Node {
    /// FETCH_CHUNK of another target of the chain.
    pub(crate) async fn fetch_chunk(self: &Rc<Self>, incoming: &mut Incoming) -> Result<Reply> {
        self.require_service(incoming)?;
        let ask: FetchChunk = incoming.msg()?;
        if let Some(crc) = ask.block_crc {
            return self.fetch_block(incoming, &ask, crc).await;
        }
        self.check_lease()?;
        let (target, _) = self.member(ask.chain, ask.chain_version, "serving", |v| v.serving())?;
        if target.id != ask.target || incoming.reply_room() < ask.len as usize {
            return Err(target.refusal(Status::NoTarget));
        }
        let state = target.store.chunk(target.id, ask.chunk).unwrap_or_default();
        let said = FetchChunkReply {
            version: state.committed,
            exists: state.exists(),
            len: state.len,
            content_crc: if state.exists() { state.content_crc } else { 0 },
            chunk_bytes: state.chunk_bytes,
        };
        let mut reply = Reply::msg(&said);
        if ask.len > 0 && state.exists() {
            let _admitted = target.share.admit(u64::from(ask.len))?;
            let mut buf = incoming.reply_buffer()?;
            buf.truncate(ask.len as usize);
            let (found, buf) = target.store.read(target.id, ask.chunk, ask.offset, buf).await;
            let found = found?;
            if found.version != state.committed || found.len != ask.len {
                return Err(Error::new(Status::Pending, "the chunk changed just now; ask again"));
            }
            reply.bulk = Some(buf);
        }
        self.check_answer()?;
        Ok(reply)
    }
}

/// When a repair that failed may be tried again; `None` while one is under way.
pub(crate) type Repairs = std::collections::BTreeMap<(TargetId, ChunkId), Option<Instant>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_summed_by_blocks_filled_up_with_zeros() {
        let bytes = [7u8; BLOCK + 5];
        let mut last = [0u8; BLOCK];
        last[..5].fill(7);
        let list = [crc32c(&bytes[..BLOCK]).to_le_bytes(), crc32c(&last).to_le_bytes()].concat();
        assert_eq!(content_crc(&bytes), crc32c(&list));
        assert_eq!(content_crc(&[]), crc32c(&[]));
    }
}
