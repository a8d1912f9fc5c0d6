//! REMOVE_DATA: removes the chunks of a data id on one chain, a bounded number in a call.
//!
//! Guarantee: when the last call is answered, nothing that was under way here when it came is left or comes later, however slow the disk is (what comes later the
//! fence refuses).

use crate::node::Node;
use crate::target::{Asked, Payload, Target, Waiting};
use glowfs_craq::{Event, Update as Core};
use glowfs_net::Incoming;
use glowfs_rt::Buf;
use glowfs_rt::sync::{join_all, oneshot};
use glowfs_types::capability::rights;
use glowfs_types::wire::data::{RemoveData, RemoveDataReply, UpdateHead, update};
use glowfs_types::{Capability, ChainVersion, ChunkId, Error, Result, Status};
use std::rc::Rc;
use zerocopy::FromBytes;

/// The greatest number of chunks removed in one call.
const REMOVE_MAX: usize = 1024;
/// Chunks removed at once.
const REMOVE_PARALLEL: usize = 64;

impl Node {
    pub(crate) async fn remove_data(
        self: &Rc<Self>,
        incoming: &Incoming,
    ) -> Result<RemoveDataReply> {
        self.check_lease()?;
        let ask: RemoveData = incoming.msg()?;
        let capability = Capability::read_from_bytes(&ask.capability)
            .map_err(|_| Error::new(Status::BadCapability, "the capability has a wrong size"))?;
        let what = (ask.from.volume, ask.from.data);
        self.check_capability(incoming, &capability, what, rights::REMOVE)?;
        self.fences.pass(&capability, self.cluster_ns())?;
        let (target, _) = self.member(ask.chain, ask.chain_version, "its head", |v| v.head)?;
        let limit = (ask.limit as usize).clamp(1, REMOVE_MAX);
        // Looked at before the store: what is staged meanwhile the store shows. The fence lets nothing else in.
        let mut chunks = target.under_way(ask.from);
        let (page, more) = target.store.list_of(target.id, ask.from, limit).await;
        if more {
            // The call that finds the last of them takes these, too.
            chunks.clear();
        }
        chunks.extend(page.into_iter().map(|c| (c.chunk, c.chunk_bytes)));
        let chunks: Vec<(ChunkId, u32)> = chunks.into_iter().collect();
        let mut removed = 0;
        for group in chunks.chunks(REMOVE_PARALLEL) {
            // The groups before may have taken long.
            self.check_lease()?;
            self.fences.pass(&capability, self.cluster_ns())?;
            let work = group
                .iter()
                .map(|&(c, bytes)| remove(&target, ask.chain_version, c, bytes, &capability));
            for result in join_all(work).await {
                result.map_err(|s| target.refusal(s))?;
                removed += 1;
            }
        }
        tracing::debug!(target = %target.id, from = %ask.from, removed, more, "chunks removed");
        self.check_answer()?;
        Ok(RemoveDataReply { removed, more })
    }
}

async fn remove(
    target: &Rc<Target>,
    chain_version: ChainVersion,
    chunk: ChunkId,
    chunk_bytes: u32,
    capability: &Capability,
) -> Result<(), Status> {
    let (done, removed) = oneshot();
    let head = UpdateHead {
        kind: update::REMOVE,
        chunk: chunk.into(),
        chunk_bytes: chunk_bytes.into(),
        // The replicas note its epoch.
        capability: *capability,
        ..UpdateHead::default()
    };
    let payload = Payload { head, crcs: Vec::new(), bytes: Buf::from_vec(Vec::new()) };
    let asked = Asked { waiting: Waiting::Local(done), payload: Rc::new(payload) };
    target.ask(asked, |ticket| Event::Update {
        ticket,
        chain_version,
        chunk,
        update: Core { removes: true, ..Core::default() },
    });
    removed.await.unwrap_or(Err(Status::ShuttingDown)).map(|_| ())
}
