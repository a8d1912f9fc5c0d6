//! Cutting the chunks behind the new end of a truncated file, after the commit that shortened it is on disk.

use crate::cuts_under_way::{SHARED_WAIT, Which};
use crate::recall::Change;
use crate::state::{Service, VOLUME, ms};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context, Cut};
use glowfs_rt::{Duration, Instant};
use glowfs_types::capability::rights;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::meta::{Attr, Caller, OfInode};
use glowfs_types::{
    Capability, ChunkId, ClientId, Error, InodeId, Layout, Result, SessionId, Status, TruncateEpoch,
};

/// Chunks removed by one call.
const REMOVE_BATCH: u32 = 1024;
/// How long a writer has to answer that a file's data was replaced: shorter than a client waits for an answer. Nothing is cut where it lies,
/// so whoever cannot be told holds nobody up; what it still writes goes to the old data.
const TOLD_WITHIN: Duration = Duration::from_secs(3);

/// Cuts, and lets writers in again, under the epoch that it returns. `by` asked for it, and has no write of its own on the way. May be repeated; several calls
/// for one cut share one attempt ([`crate::cuts_under_way::CutsUnderWay`]), and another service may be at it at the same time.
pub async fn finish(s: &Service, cut: &Cut, by: ClientId) -> Result<TruncateEpoch> {
    finish_within(s, cut, by, SHARED_WAIT).await
}

/// The same, waiting for so long.
pub async fn finish_within(
    s: &Service,
    cut: &Cut,
    by: ClientId,
    wait: Duration,
) -> Result<TruncateEpoch> {
    let which = Which { inode: cut.attr.inode, epoch: cut.attr.epoch, owner: cut.attr.uid };
    let (own, cut) = (s.own()?, cut.clone());
    s.cuts.shared(&s.rt, which, wait, async move { attempt(&own, &cut, by).await }).await
}

async fn attempt(s: &Service, cut: &Cut, by: ClientId) -> Result<TruncateEpoch> {
    match try_to_finish(s, cut, by).await {
        // Whoever wanted to write has finished it meanwhile, and has written since, under a newer epoch. Or storage has no key yet to check capabilities
        // with, and will: nothing that the one who asked could mend.
        Err(e) if e.status == Status::BadCapability => over(s, &cut.attr)
            .await?
            .ok_or_else(|| Error::new(Status::Overloaded, format!("{}; retry", e.message))),
        done => done,
    }
}

/// The epoch of a file of which this cut is not to be finished any more.
async fn over(s: &Service, attr: &Attr) -> Result<Option<TruncateEpoch>> {
    let caller = Caller { volume: VOLUME, ..Caller::default() };
    let of = OfInode { caller: caller.clone(), inode: attr.inode };
    s.look(async |tx| {
        let cx = Context::new(tx, &caller, s);
        match ns::pending_cut(&cx, attr.inode).await? {
            Some(cut) if cut.attr.epoch == attr.epoch => Ok(None),
            _ => match ns::getattr(&cx, &of).await {
                Ok(now) => Ok(Some(now.epoch)),
                Err(e) if matches!(e.status, Status::Stale | Status::NotFound) => {
                    Ok(Some(attr.epoch))
                }
                Err(e) => Err(e),
            },
        }
    })
    .await
}

async fn try_to_finish(s: &Service, cut: &Cut, by: ClientId) -> Result<TruncateEpoch> {
    let began = s.rt.now();
    // A truncate that a loss of power could undo must not have cut anything.
    if !planted(Mutant::CutBeforeFlush) {
        s.flush().await?;
    }
    let attr = &cut.attr;
    let layout = layout_of(attr)?;
    // Whoever may still write under the old epoch must have stopped, or a late write would bring back what is cut.
    let mut writers = s.look(async |tx| ns::writers(tx, VOLUME, attr.inode).await).await?;
    writers.retain(|c| *c != by);
    let change = Change::contents(attr.inode, Some(attr.epoch));
    s.recall_writers(&change, &writers, began + ms(s.config.tuning.capability_ms)).await;
    let chunk = u64::from(layout.chunk_bytes);
    let within = (cut.len % chunk) as u32;
    let mut from = cut.len / chunk;
    let mut right = Right::default();
    if within > 0 {
        let id = ChunkId { volume: VOLUME, data: attr.data, index: from };
        s.chunks.truncate_chunk(&layout, id, within, &right.now(s, attr).await?).await?;
        from += 1;
    }
    loop {
        let cap = right.now(s, attr).await?;
        let (data, limit) = (attr.data, REMOVE_BATCH);
        if !s.chunks.remove_data(&layout, VOLUME, data, from, limit, &cap).await?.more {
            break;
        }
    }
    // Of a file with holes nobody knows how much was cut off; one that became longer has lost nothing that was counted.
    let sparse = attr.allocated < attr.len && cut.len >= attr.len;
    let allocated = match sparse {
        true => s.chunks.allocated(&layout, &right.now(s, attr).await?).await.ok(),
        false => None,
    };
    end(s, attr, allocated).await
}

/// Lets writers in, under an epoch that nobody gets before it is on disk: whoever is let in by another service would not know that it is not.
async fn end(s: &Service, attr: &Attr, allocated: Option<u64>) -> Result<TruncateEpoch> {
    let (inode, epoch) = (attr.inode, attr.epoch);
    let at_once = s.has_others() || s.options(false, true).durable;
    let later = if at_once { None } else { s.cuts_ended.begin(inode) };
    let finish = async |tx: &Transaction| ns::finish_cut(tx, VOLUME, inode, epoch, allocated).await;
    let ended = s.run(later.is_none(), true, finish).await;
    if let Some(ending) = later {
        drop(ending);
        s.watch_ends();
    }
    ended
}

/// The layout of a file that is cut. It is as it stands in the engine, where nobody has looked at it yet: a chunk size of 0 would end the service.
fn layout_of(attr: &Attr) -> Result<Layout> {
    let corrupt = |what: &str| Error::new(Status::Corrupt, format!("file {}: {what}", attr.inode));
    let layout = attr.layout.ok_or_else(|| corrupt("it has no layout"))?;
    layout.validate().map_err(|e| corrupt(&e.message))?;
    Ok(layout)
}

/// What this service cuts with: all calls together may take longer than a capability lives. It is signed, and signed anew, only while the cut stands: storage
/// forgets with a restart which epochs it has seen, so an old one must not be signed when others write already.
#[derive(Default)]
struct Right {
    /// When the cut was seen to stand.
    looked: Option<Instant>,
    capability: Option<Capability>,
}

impl Right {
    /// `BadCapability`: the cut is over.
    async fn now(&mut self, s: &Service, attr: &Attr) -> Result<Capability> {
        // What was cut before may have taken long: whoever has lost his lease, or stops, leaves the rest to others.
        if s.stopping.get() || !s.agent.lease_valid() {
            return Err(Error::new(Status::ShuttingDown, "it may not go on with the truncate"));
        }
        let now = s.rt.now();
        let seen_within = ms(s.config.tuning.capability_ms) / 2;
        if self.looked.is_none_or(|at| now.since(at) >= seen_within) {
            if over(s, attr).await?.is_some() {
                return Err(Error::new(Status::BadCapability, "somebody else has finished it"));
            }
            (self.looked, self.capability) = (Some(now), None);
        }
        if let Some(capability) = self.capability {
            return Ok(capability);
        }
        let rights = rights::WRITE | rights::REMOVE;
        let capability = s.capability(attr, (ClientId(0), SessionId(0)), rights)?;
        Ok(*self.capability.insert(capability))
    }
}

/// The length of a file was set, and no chunk of it has to be cut. If it was cut to nothing and has other data now, whoever has it open for writing must not go on with
/// the old one, which nobody sees any more. Also if its contents are with the metadata his kernel may have pages that were stored into, and must give them before
/// the file can get longer again. After the commit.
pub async fn replaced(s: &Service, attr: &Attr, by: ClientId) -> Result<()> {
    tell_writers(s, by, Change::contents(attr.inode, Some(attr.epoch))).await
}

/// Others who have a file open for writing have to know of a change, also if they have no lease.
pub async fn tell_writers(s: &Service, by: ClientId, change: Change) -> Result<()> {
    let mut writers = s.look(async |tx| ns::writers(tx, VOLUME, change.inode).await).await?;
    writers.retain(|c| *c != by);
    s.recall_writers(&change, &writers, s.rt.now() + TOLD_WITHIN).await;
    Ok(())
}

/// Finishes the truncate of an inode, if one is unfinished.
pub async fn finish_inode(s: &Service, inode: InodeId) -> Result<()> {
    let caller = Caller { volume: VOLUME, ..Caller::default() };
    if let Some(cut) =
        s.look(async |tx| ns::pending_cut(&Context::new(tx, &caller, s), inode).await).await?
    {
        finish(s, &cut, ClientId(0)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{ChainTableId, Durability, Redundancy};

    #[test]
    fn a_layout_that_cannot_be_is_an_error_and_not_divided_by() {
        let layout = Layout {
            table: ChainTableId(1),
            table_version: 1,
            chunk_bytes: 65536,
            stripe: 4,
            start: 0,
            redundancy: Redundancy::Replicated,
            durability: Durability::Written,
            inline_bytes: 0,
        };
        let of = |layout| layout_of(&Attr { layout, ..Attr::default() }).map_err(|e| e.status);
        assert_eq!(of(Some(layout)), Ok(layout));
        for damaged in [Layout { chunk_bytes: 0, ..layout }, Layout { chunk_bytes: 3, ..layout }] {
            assert_eq!(of(Some(damaged)), Err(Status::Corrupt));
        }
        assert_eq!(of(None), Err(Status::Corrupt));
    }
}
