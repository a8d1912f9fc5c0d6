//! Questions: extents, single chunks, space, health.

use crate::config::SYNC_PAGE_MAX;
use crate::node::Node;
use crate::target::Target;
use glowfs_net::Incoming;
use glowfs_types::routing::{LocalState, Role};
use glowfs_types::wire::data::{
    ChunkSummary, DiskInfo, ListChunks, QueryChunk, QueryChunkReply, QueryExtent, QueryExtentReply,
    StorageInfo, SyncListReply,
};
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::{ChunkId, Error, Result, Status, StoreId};
use std::rc::Rc;

impl Node {
    /// What there is of a data id, with all that was acknowledged: lengths of files are settled by it.
    pub(crate) async fn query_extent(
        self: &Rc<Self>,
        incoming: &Incoming,
    ) -> Result<QueryExtentReply> {
        self.require_service(incoming)?;
        self.check_lease()?;
        let ask: QueryExtent = incoming.msg()?;
        let member = || self.member(ask.chain, ask.chain_version, "serving", |v| v.serving());
        let (target, _) = member()?;
        let all = ChunkId { index: 0, ..ask.data };
        self.settled(&target, ask.chain_version, all).await?;
        // It may have lost its place while it waited.
        member()?;
        let extent = target.store.data_extent(target.id, ask.data.volume, ask.data.data);
        // What may not be shown yet has no place in a length, either.
        self.told(&target, ask.chain_version, all).await?;
        self.check_answer()?;
        Ok(extent)
    }

    pub(crate) fn query_chunk(&self, incoming: &Incoming) -> Result<QueryChunkReply> {
        self.require_operator(incoming)?;
        let ask: QueryChunk = incoming.msg()?;
        let target = self.target(ask.target)?;
        let chunk = target.store.chunk(target.id, ask.chunk).map(|s| ChunkSummary {
            chunk: ask.chunk,
            committed: s.committed,
            pending: s.pending,
            len: s.len,
            content_crc: s.content_crc,
            chunk_bytes: s.chunk_bytes,
        });
        Ok(QueryChunkReply { chunk })
    }

    /// What a target holds, whatever its state: for an operator who must know what a chain would lose.
    pub(crate) async fn list_chunks(&self, incoming: &Incoming) -> Result<SyncListReply> {
        self.require_operator(incoming)?;
        let ask: ListChunks = incoming.msg()?;
        let target = self.target(ask.target)?;
        let limit = ask.limit.clamp(1, SYNC_PAGE_MAX) as usize;
        let (chunks, more) = target.store.list(target.id, ask.after, limit).await;
        Ok(SyncListReply { chunks, more })
    }

    /// Only operators and services may look behind the files.
    pub(crate) fn require_operator(&self, incoming: &Incoming) -> Result<()> {
        let identity = incoming.conn().peer().identity;
        if identity.service || identity.admin || identity.root {
            return Ok(());
        }
        let e = "only operators and services may look at chunks and disks";
        Err(Error::new(Status::AccessDenied, e))
    }

    pub(crate) fn storage_info(&self, incoming: &Incoming) -> Result<StorageInfo> {
        self.require_operator(incoming)?;
        let disks = self.disks.iter().map(|disk| {
            let store = disk.store();
            let space = store.as_ref().map(|s| s.space()).unwrap_or_default();
            DiskInfo {
                store: store.as_ref().map_or(StoreId(0), |s| s.id()),
                path: disk.path.clone(),
                capacity_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                used_bytes: space.used_bytes,
                problem: disk.problem().map(|e| e.to_string()),
            }
        });
        Ok(StorageInfo {
            disks: disks.collect(),
            targets: self.all_targets().iter().map(|t| (t.id, t.store.chunk_count(t.id))).collect(),
            reads: self.metrics.reads.get(),
            writes: self.metrics.writes.get(),
            resyncs: self.resyncs.list(&self.rt),
            channels: self.all_targets().iter().map(|t| t.replica.borrow().sizes().0 as u64).sum(),
        })
    }

    pub(crate) fn status(&self) -> ServiceStatus {
        let problems: Vec<String> =
            self.disks.iter().filter_map(|d| d.problem()).map(|e| e.to_string()).collect();
        let targets = self.all_targets();
        let serves = |t: &&Rc<Target>| {
            t.view().is_some_and(|v| v.serving()) && t.local() != LocalState::Offline
        };
        let serving = targets.iter().filter(serves).count();
        let failed = targets.iter().filter(|t| t.local() == LocalState::Offline).count();
        let lease = self.agent().is_some_and(|a| a.lease_valid());
        let detail = match (problems.is_empty(), lease) {
            (_, false) => "no lease from mgmtd: it serves nothing now".to_owned(),
            (false, _) => problems.join("; "),
            _ if failed > 0 => {
                format!("{serving} of {} targets serve, {failed} failed", targets.len())
            }
            _ => format!("{serving} of {} targets serve", targets.len()),
        };
        // Everything else goes on, so that it is well still: as of a metadata engine without room.
        let full = self.disks.iter().filter(|d| d.store().is_ok_and(|s| !self.has_room(&s)));
        let detail = full.fold(detail, |said, d| {
            format!("{said}; disk {} is full: its chains refuse what needs room", d.path)
        });
        let clock = self.agent().and_then(|a| a.clock_complaint());
        let detail = clock.map_or(detail.clone(), |c| format!("{detail}; {c}"));
        ServiceStatus {
            role: Some(Role::Storage),
            node: self.config.node(),
            pid: glowfs_rt::process::pid(),
            release: glowfs_telemetry::RELEASE.to_owned(),
            healthy: lease && problems.is_empty(),
            detail,
            uptime_ns: self.rt.now().since(self.started).as_nanos() as u64,
        }
    }
}
