//! Holes of a file: what its chains hold of it, walked in order.
//!
//! The heads of the chains are asked, which hold every acknowledged write as committed. Must never call something a hole that an
//! acknowledged write has filled.

use crate::core::Core;
use crate::file::{OpenFile, Rights};
use crate::heads::{head_call_by, layout_chains, on_chains};
use crate::routes;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::method;
use glowfs_types::wire::sparse::{
    ChunkExtents, EXTENT_BLOCK_BYTES, LIST_EXTENTS_MAX, ListExtents, ListExtentsReply,
};
use glowfs_types::wire::{decode, encode};
use glowfs_types::{Capability, ChainId, ChunkId, DataId, Error, Layout, Result, Status, VolumeId};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Chunks asked for first; then more and more.
const PAGE_FIRST: u32 = 16;
/// How often a fresh capability is tried after a refusal.
const REFUSALS_MAX: u32 = 3;

/// Asks one chain, under the rights of a file or of a service.
async fn ask(
    core: &Rc<Core>,
    rights: &Rights,
    chain: ChainId,
    what: (VolumeId, Option<DataId>),
    (index, limit, sum_only): (u64, u32, bool),
) -> Result<ListExtentsReply> {
    let used = Cell::new(None);
    // Meta's recall waits for attempts, not for pauses.
    let body = async |_: &RoutingInfo, chain_version| {
        let (capability, data, held) = match rights {
            Rights::File(file) => {
                let p = file.permission().await?;
                (p.capability, p.data, Some(p))
            }
            Rights::Signed(c) => (*c, DataId(c.data.get()), None),
        };
        if what.1.is_some_and(|wanted| wanted != data) {
            return Err(Error::new(Status::Stale, "the file was truncated to nothing meanwhile"));
        }
        used.set(Some(capability));
        let from = ChunkId { volume: what.0, data, index };
        let capability = capability.as_bytes().to_vec();
        let query = ListExtents { from, chain, chain_version, limit, sum_only, capability };
        Ok((encode(&query), held))
    };
    let mut refusals = 0;
    loop {
        let asked = head_call_by(core, chain, method::LIST_EXTENTS, "list of extents", &body);
        match (asked.await, rights, used.get()) {
            (Err(e), Rights::File(file), Some(capability))
                if e.status == Status::BadCapability && refusals < REFUSALS_MAX =>
            {
                refusals += 1;
                file.refused(&capability);
            }
            (answer, ..) => return decode(&answer?),
        }
    }
}

/// Bytes of the blocks that exist of some data.
pub(crate) async fn allocated(core: &Rc<Core>, rights: &Rights, layout: &Layout) -> Result<u64> {
    let volume = match rights {
        Rights::File(f) => f.volume(),
        Rights::Signed(c) => VolumeId(c.volume.get()),
    };
    let chains = layout_chains(core, layout).await?;
    let replies =
        on_chains(&chains, |chain| ask(core, rights, chain, (volume, None), (0, 1, true))).await?;
    Ok(replies.iter().fold(0, |sum, r| sum.saturating_add(r.bytes)))
}

/// The same for whoever has a signed capability.
pub(crate) async fn allocated_signed(
    core: &Rc<Core>,
    capability: &Capability,
    layout: &Layout,
) -> Result<u64> {
    allocated(core, &Rights::Signed(*capability), layout).await
}

/// What one chain still has to say.
struct Feed {
    chain: ChainId,
    ready: VecDeque<ChunkExtents>,
    /// The index to ask from next; none: there is nothing more.
    next: Option<u64>,
    page: u32,
}

/// The chunks of a file that exist from some index on, in order.
pub(crate) struct Chunks {
    core: Rc<Core>,
    rights: Rights,
    volume: VolumeId,
    data: DataId,
    feeds: Vec<Feed>,
}

impl Chunks {
    /// Those of `[first, last]`, and maybe some behind.
    pub async fn new(file: &Rc<OpenFile>, first: u64, last: u64) -> Result<Self> {
        let core = file.client().core.clone();
        let layout = file.layout();
        let mut chains = layout_chains(&core, &layout).await?;
        if last.saturating_sub(first) < chains.len() as u64 {
            let info = core.routing.borrow().clone();
            let some: Result<BTreeSet<ChainId>> =
                (first..=last).map(|index| routes::chain_of(&info, &layout, index)).collect();
            chains.retain(|c| some.as_ref().map_or(true, |s| s.contains(c)));
        }
        let feed =
            |chain| Feed { chain, ready: VecDeque::new(), next: Some(first), page: PAGE_FIRST };
        let feeds = chains.into_iter().map(feed).collect();
        let (volume, data) = (file.volume(), file.data());
        Ok(Self { core, rights: Rights::File(file.clone()), volume, data, feeds })
    }

    /// The next one.
    pub async fn next(&mut self) -> Result<Option<ChunkExtents>> {
        let (core, rights, what) = (&self.core, &self.rights, (self.volume, Some(self.data)));
        let empty: Vec<&mut Feed> =
            self.feeds.iter_mut().filter(|f| f.ready.is_empty() && f.next.is_some()).collect();
        let asked = empty.into_iter().map(async |feed: &mut Feed| {
            let from = feed.next.unwrap_or(u64::MAX);
            let reply = ask(core, rights, feed.chain, what, (from, feed.page, false)).await?;
            feed.page = (feed.page * 4).min(LIST_EXTENTS_MAX);
            let last = reply.chunks.last().map(|c| c.index);
            if reply.chunks.iter().any(|c| c.index < from) || (reply.more && last.is_none()) {
                let e = format!("{}: a list of chunks that does not go on from {from}", feed.chain);
                return Err(Error::new(Status::BadMessage, e));
            }
            feed.next = last.filter(|_| reply.more).and_then(|l| l.checked_add(1));
            feed.ready = reply.chunks.into();
            Ok(())
        });
        for done in glowfs_rt::sync::join_all(asked.collect::<Vec<_>>()).await {
            let done: Result<()> = done;
            done?;
        }
        let first = self
            .feeds
            .iter_mut()
            .filter(|f| !f.ready.is_empty())
            .min_by_key(|f| f.ready.front().map(|c| c.index));
        Ok(first.and_then(|f| f.ready.pop_front()))
    }
}

/// The first byte from `offset` on, before `len`, that exists (`data`) or lies in a hole (not `data`; the end of the file is one). None: there is no
/// data any more.
pub(crate) async fn seek(
    file: &Rc<OpenFile>,
    offset: u64,
    len: u64,
    data: bool,
) -> Result<Option<u64>> {
    let chunk_bytes = u64::from(file.layout().chunk_bytes);
    if offset >= len {
        return Ok(None);
    }
    let mut chunks = Chunks::new(file, offset / chunk_bytes, (len - 1) / chunk_bytes).await?;
    let mut at = offset;
    while let Some(chunk) = chunks.next().await? {
        let base = chunk.index.saturating_mul(chunk_bytes);
        if base >= len {
            break;
        }
        for (first, count) in chunk.runs {
            let begin = base.saturating_add(u64::from(first) * EXTENT_BLOCK_BYTES);
            let end = begin.saturating_add(u64::from(count) * EXTENT_BLOCK_BYTES);
            if end <= at {
                continue;
            }
            if data {
                let found = begin.max(at);
                return Ok((found < len).then_some(found));
            }
            if begin > at {
                return Ok(Some(at.min(len)));
            }
            at = end;
        }
    }
    Ok(if data { None } else { Some(at.min(len)) })
}
