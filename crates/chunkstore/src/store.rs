//! [`Store`]: the handle.

use crate::api::*;
use glowfs_rt::{BufMut, Dir, Rt};
use glowfs_types::wire::data::{ChannelRecord, ChunkSummary, QueryExtentReply};
use glowfs_types::{
    ChannelId, ChunkId, ChunkVersion, ClientId, DataId, Error, Incarnation, Result, Status,
    StoreId, TargetId, VolumeId,
};

fn todo_err<T>() -> Result<T> {
    Err(Error::new(Status::NotSupported, "not there yet"))
}

/// The store of one disk. Cheap to clone; belongs to one thread.
#[derive(Clone)]
pub struct Store {
    rt: Rt,
}

impl Store {
    /// Opens (or formats) the store in `dir`, recovers it and bumps its incarnation durably.
    pub async fn open(rt: &Rt, dir: Dir, config: StoreConfig) -> Result<Store> {
        let _ = (dir, config, rt);
        todo_err()
    }
    /// The id of the store.
    pub fn id(&self) -> StoreId {
        StoreId(0)
    }
    /// This life of it.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(0)
    }
    /// Whether the life before ended with [`Store::close`] (or the store is new).
    pub fn was_clean(&self) -> bool {
        false
    }
    /// Why the store takes no more updates, if a write or flush failed. Resolves nothing; poll or use [`Store::failed`].
    pub fn failure(&self) -> Option<Error> {
        None
    }
    /// Resolves when a write or flush failed and the store takes no more updates.
    pub async fn failed(&self) -> Error {
        let _ = &self.rt;
        std::future::pending().await
    }
    /// Makes an empty target; a known one is left as it is. Durable.
    pub async fn create_target(&self, target: TargetId) -> Result<()> {
        let _ = target;
        todo_err()
    }
    /// Removes a target with all its chunks. Durable.
    pub async fn remove_target(&self, target: TargetId) -> Result<()> {
        let _ = target;
        todo_err()
    }
    /// The targets, in order.
    pub fn targets(&self) -> Vec<TargetId> {
        Vec::new()
    }
    /// The small record that the owner keeps with a target; empty if none was put.
    pub fn target_meta(&self, target: TargetId) -> Option<Vec<u8>> {
        let _ = target;
        None
    }
    /// Replaces the small record of a target. Durable when it resolves.
    pub async fn put_target_meta(&self, target: TargetId, bytes: Vec<u8>) -> Result<()> {
        let _ = (target, bytes);
        todo_err()
    }
    /// What is known of a chunk; `None` if it was never written (or its tombstone was purged).
    pub fn chunk(&self, target: TargetId, chunk: ChunkId) -> Option<ChunkState> {
        let _ = (target, chunk);
        None
    }
    /// The pending versions of a chunk, oldest first.
    pub fn pending(&self, target: TargetId, chunk: ChunkId) -> Vec<PendingState> {
        let _ = (target, chunk);
        Vec::new()
    }
    /// Chunks of a target with pending versions, in order.
    pub fn chunks_pending(&self, target: TargetId) -> Vec<ChunkId> {
        let _ = target;
        Vec::new()
    }
    /// Reads committed content into `buf`: verified, holes and what lies past the end as zeros.
    pub async fn read(
        &self,
        target: TargetId,
        chunk: ChunkId,
        offset: u32,
        buf: BufMut,
    ) -> (Result<ReadOutcome>, BufMut) {
        let _ = (target, chunk, offset);
        (todo_err(), buf)
    }
    /// Reads the content as of a pending version (or the committed one).
    pub async fn read_pending(
        &self,
        target: TargetId,
        chunk: ChunkId,
        version: ChunkVersion,
        offset: u32,
        buf: BufMut,
    ) -> (Result<ReadOutcome>, BufMut) {
        let _ = (target, chunk, offset, version);
        (todo_err(), buf)
    }
    /// Adds a pending version (or, with `commit`, a committed one). Resolves when it would survive a SIGKILL (with
    /// `flush`: the loss of power). Stages of one chunk that are called in version order are kept in that order
    /// although earlier ones are still under way.
    pub async fn stage(&self, target: TargetId, request: StageRequest) -> Result<()> {
        let _ = (target, request);
        todo_err()
    }
    /// Commits a pending version and all before it. Done already: `Ok`.
    pub async fn commit(
        &self,
        target: TargetId,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<()> {
        let _ = (target, chunk, version);
        todo_err()
    }
    /// Drops the pending version and all after it. None there: `Ok`.
    pub async fn discard(
        &self,
        target: TargetId,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<()> {
        let _ = (target, chunk, version);
        todo_err()
    }
    /// Resolves when everything acknowledged so far is durable.
    pub async fn flush(&self, target: TargetId) -> Result<()> {
        let _ = target;
        todo_err()
    }
    /// Chunks of a target after `after`, in order, at most `limit`, tombstones left out; and whether more follow.
    pub fn list(
        &self,
        target: TargetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> (Vec<ChunkSummary>, bool) {
        let _ = (target, after, limit);
        (Vec::new(), false)
    }
    /// The last chunk, number and bytes of the chunks of a data id that have committed content.
    pub fn data_extent(
        &self,
        target: TargetId,
        volume: VolumeId,
        data: DataId,
    ) -> QueryExtentReply {
        let _ = (target, volume, data);
        QueryExtentReply::default()
    }
    /// The last write known of a channel, pending or committed.
    pub fn channel(
        &self,
        target: TargetId,
        client: ClientId,
        channel: ChannelId,
    ) -> Option<ChannelRecord> {
        let _ = (target, client, channel);
        None
    }
    /// The last writes of all channels, pending ones included, in order.
    pub fn channels(&self, target: TargetId) -> Vec<ChannelRecord> {
        let _ = target;
        Vec::new()
    }
    /// Merges channel records of another replica: the greater sequence number stays.
    pub async fn put_channels(&self, target: TargetId, records: Vec<ChannelRecord>) -> Result<()> {
        let _ = (target, records);
        todo_err()
    }
    /// Forgets the channels of a client that is gone.
    pub async fn forget_client(&self, target: TargetId, client: ClientId) -> Result<()> {
        let _ = (target, client);
        todo_err()
    }
    /// Forgets the tombstones of a target. Only when all replicas agree that the chunks are gone.
    pub async fn purge_tombstones(&self, target: TargetId) -> Result<()> {
        let _ = target;
        todo_err()
    }
    /// Verifies the next chunk after `after` at rest; `None` at the end.
    pub async fn scrub_next(
        &self,
        target: TargetId,
        after: Option<ChunkId>,
    ) -> Result<Option<ScrubResult>> {
        let _ = (target, after);
        todo_err()
    }
    /// Room on the disk.
    pub fn space(&self) -> StoreSpace {
        StoreSpace::default()
    }
    /// Writes a checkpoint now (tests and tools; it happens by itself).
    pub async fn checkpoint(&self) -> Result<()> {
        todo_err()
    }
    /// Ends it: flushes, marks a clean shutdown. Everything after fails with `ShuttingDown`.
    pub async fn close(&self) -> Result<()> {
        todo_err()
    }
}
