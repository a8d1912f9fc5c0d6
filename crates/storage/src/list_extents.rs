//! LIST_EXTENTS: which blocks of a file exist on one chain, for those who may read or write the file.
//!
//! An acknowledged update may not be committed here yet, so it waits for pending ones as a read does.

use crate::node::Node;
use crate::target::Target;
use glowfs_net::Incoming;
use glowfs_types::capability::rights;
use glowfs_types::wire::sparse::{
    EXTENT_RUNS_MAX, LIST_EXTENTS_MAX, ListExtents, ListExtentsReply,
};
use glowfs_types::{Capability, ChainVersion, ChunkId, ChunkVersion, Error, Result, Status};
use std::rc::Rc;
use zerocopy::FromBytes;

impl Node {
    pub(crate) async fn list_extents(
        self: &Rc<Self>,
        incoming: &Incoming,
    ) -> Result<ListExtentsReply> {
        self.check_lease()?;
        let ask: ListExtents = incoming.msg()?;
        if self.require_service(incoming).is_err() {
            let capability = Capability::read_from_bytes(&ask.capability).map_err(|_| {
                Error::new(Status::BadCapability, "the capability has a wrong size")
            })?;
            let what = (ask.from.volume, ask.from.data);
            let may = |right| self.check_capability(incoming, &capability, what, right);
            may(rights::READ).or_else(|_| may(rights::WRITE))?;
        }
        let (target, _) = self.member(ask.chain, ask.chain_version, "its head", |v| v.head)?;
        self.settled(&target, ask.chain_version, ask.from).await?;
        let reply = if ask.sum_only {
            let bytes = target.store.present_bytes(target.id, ask.from);
            ListExtentsReply { bytes, ..ListExtentsReply::default() }
        } else {
            let limit = ask.limit.clamp(1, LIST_EXTENTS_MAX) as usize;
            let (chunks, more) = target.store.present(target.id, ask.from, limit, EXTENT_RUNS_MAX);
            ListExtentsReply { chunks, more, bytes: 0 }
        };
        self.told(&target, ask.chain_version, ask.from).await?;
        self.check_answer()?;
        Ok(reply)
    }

    /// Waits for the updates that are pending of a data id, from a chunk on: some may be acknowledged and not committed here yet.
    pub(crate) async fn settled(
        &self,
        target: &Rc<Target>,
        version: ChainVersion,
        from: ChunkId,
    ) -> Result<()> {
        let mut pending = target.store.chunks_pending(target.id);
        pending.retain(|c| (c.volume, c.data) == (from.volume, from.data));
        for chunk in pending.into_iter().filter(|c| c.index >= from.index) {
            let settled = self.may_read(target, version, chunk).await;
            settled.map_err(|status| target.refusal(status))?;
        }
        Ok(())
    }

    /// Of a data id, from a chunk on, something was found out just now, and nothing has waited since: waits until all of it may be told.
    pub(crate) async fn told(
        &self,
        target: &Rc<Target>,
        version: ChainVersion,
        from: ChunkId,
    ) -> Result<()> {
        if target.replica.borrow().begins_again() {
            return Err(target.refusal(Status::Pending));
        }
        let committed =
            |c| target.store.chunk(target.id, c).map_or(ChunkVersion(0), |s| s.committed);
        let unvouched = target.unvouched_of(from);
        let found: Vec<_> = unvouched.into_iter().map(|c| (c, committed(c))).collect();
        // One question for all of them.
        found.iter().for_each(|(chunk, version)| target.ask_for(*chunk, *version));
        for read in found {
            let told = self.may_tell(target, version, read, 0).await;
            told.map_err(|status| target.refusal(status))?;
        }
        Ok(())
    }
}
