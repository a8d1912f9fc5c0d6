//! [`Store`]: the handle of one disk's store, with all that can be asked of it; the work is in the modules beside it.
//!
//! Guarantees: a change that returned `Ok` survives a SIGKILL, and the loss of power where it says «durable»; what is read matches its checksum, or the
//! answer is an error. When a write or flush of the disk has failed, no change succeeds any more ([`Store::failed`]). Must never: answer a change
//! before its record is in the log, or walk chunks where heartbeats ask.

use crate::api::*;
use crate::checkpoint::Upto;
use crate::mend::{AsIs, BadBlock};
use crate::record::Record;
use crate::room::Promise;
use crate::state::Inner;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, BufMut, Dir, Instant, Rt};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::data::{ChannelRecord, QueryExtentReply};
use glowfs_types::{
    ChannelId, ChunkId, ChunkVersion, ClientId, DataId, Error, Incarnation, Result, Status,
    StoreId, TargetId, VolumeId,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Channel records in one log record.
const CHANNELS_PER_RECORD: usize = 512;
/// Channels that one record forgets, at most.
const FORGOTTEN_PER_RECORD: usize = 2048;
/// Records that wait for the log at once because of one call.
const APPENDED_AT_ONCE: usize = 4096;

/// The store of one disk. Cheap to clone; belongs to one thread.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<Inner>,
}

impl Store {
    /// Opens (or formats) the store in `dir`, recovers it and bumps its incarnation durably.
    pub async fn open(rt: &Rt, dir: Dir, config: StoreConfig) -> Result<Store> {
        Ok(Store { inner: crate::open::open(rt, dir, config).await? })
    }
    /// The id of the store.
    pub fn id(&self) -> StoreId {
        self.inner.superblock.borrow().store
    }
    /// This life of it.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.inner.superblock.borrow().incarnation)
    }
    /// What this life drew by lot: a store that is put back as it was before (a snapshot of its disk) comes to the same numbers of lives again, and not to the same
    /// lots. Not 0.
    pub fn nonce(&self) -> u32 {
        self.inner.superblock.borrow().nonce
    }
    /// What the life before this one drew; 0: there was none, or it was one of a build that does not draw.
    pub fn former(&self) -> u32 {
        self.inner.former
    }
    /// The first life since which the machine was not started again, as far as is known, and no start has cut off what had been acknowledged: between it
    /// and this one only processes ended, and nothing was lost that was written.
    pub fn machine_since(&self) -> Incarnation {
        let sb = self.inner.superblock.borrow();
        Incarnation(if planted(Mutant::BootIgnored) { 1 } else { sb.boot_since })
    }
    /// Whether the life before ended with [`Store::close`] (or the store is new).
    pub fn was_clean(&self) -> bool {
        self.inner.was_clean.get()
    }
    /// Why the store takes no more updates, if a write or flush failed. See [`Store::failed`].
    pub fn failure(&self) -> Option<Error> {
        self.inner.failed.borrow().clone()
    }
    /// Resolves when a write or flush failed and the store takes no more updates.
    pub async fn failed(&self) -> Error {
        self.inner.failed_signal.wait(|| self.failure()).await
    }
    /// Makes an empty target; a known one is left as it is. Durable.
    pub async fn create_target(&self, target: TargetId) -> Result<()> {
        if self.inner.targets.borrow().contains_key(&target) {
            return self.inner.check_open();
        }
        self.durable(target, Record::CreateTarget).await
    }
    /// Removes a target with all its chunks. Durable, and their room is free when it resolves.
    pub async fn remove_target(&self, target: TargetId) -> Result<()> {
        self.known(target)?;
        self.durable(target, Record::RemoveTarget).await?;
        self.inner.left().await;
        Ok(())
    }
    /// The targets, in order.
    pub fn targets(&self) -> Vec<TargetId> {
        self.inner.targets.borrow().keys().copied().collect()
    }
    /// The small record that the owner keeps with a target; empty if none was put.
    pub fn target_meta(&self, target: TargetId) -> Option<Vec<u8>> {
        self.inner.targets.borrow().get(&target).map(|t| t.meta.clone())
    }
    /// Replaces the small record of a target. Durable when it resolves.
    pub async fn put_target_meta(&self, target: TargetId, bytes: Vec<u8>) -> Result<()> {
        self.known(target)?;
        if bytes.len() > TARGET_META_BYTES_MAX {
            return Err(Error::new(
                Status::TooLarge,
                format!(
                    "a target's record of {} bytes; at most {TARGET_META_BYTES_MAX}",
                    bytes.len()
                ),
            ));
        }
        self.durable(target, Record::TargetMeta(bytes)).await
    }
    /// What is known of a chunk; `None` if it was never written (or its tombstone was purged).
    pub fn chunk(&self, target: TargetId, chunk: ChunkId) -> Option<ChunkState> {
        let targets = self.inner.targets.borrow();
        targets.get(&target)?.chunks.get(&chunk).map(|c| c.state())
    }
    /// The pending versions of a chunk, oldest first.
    pub fn pending(&self, target: TargetId, chunk: ChunkId) -> Vec<PendingState> {
        let targets = self.inner.targets.borrow();
        let chunk = targets.get(&target).and_then(|t| t.chunks.get(&chunk));
        let state = |d: &crate::record::Delta| PendingState {
            version: d.version,
            kind: d.kind,
            len: d.len,
            chunk_bytes: d.chunk_bytes,
            channel: d.channel.clone(),
        };
        chunk.map(|c| c.pending.iter().map(state).collect()).unwrap_or_default()
    }
    /// Chunks of a target with pending versions, in order.
    pub fn chunks_pending(&self, target: TargetId) -> Vec<ChunkId> {
        let targets = self.inner.targets.borrow();
        targets.get(&target).map(|t| t.pending.iter().copied().collect()).unwrap_or_default()
    }
    /// Reads committed content into `buf`: verified, holes and what lies past the end as zeros.
    pub fn read(
        &self,
        target: TargetId,
        chunk: ChunkId,
        offset: u32,
        buf: BufMut,
    ) -> impl Future<Output = (Result<ReadOutcome>, BufMut)> {
        self.read_by(target, chunk, offset, buf, Instant::NEVER)
    }
    /// The same for whom it is too late after `by`: what has to wait longer than that for its turn at the disk is not read (`TimedOut`).
    pub fn read_by(
        &self,
        target: TargetId,
        chunk: ChunkId,
        offset: u32,
        buf: BufMut,
        by: Instant,
    ) -> impl Future<Output = (Result<ReadOutcome>, BufMut)> {
        self.inner.read_at(target, chunk, None, offset, buf, by)
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
        self.inner.read_at(target, chunk, Some(version), offset, buf, Instant::NEVER).await
    }
    /// Adds a pending version (or, with `commit`, a committed one). Resolves when it would survive a SIGKILL (with
    /// `flush`: the loss of power). Stages of one chunk that are called in version order are kept in that order
    /// although earlier ones are still under way.
    pub fn stage(
        &self,
        target: TargetId,
        request: StageRequest,
    ) -> impl Future<Output = Result<()>> {
        // Itself, and not in another future: it is copied as often as it is handed on.
        self.inner.stage(target, request)
    }
    /// Commits a pending version and all before it. Done already: `Ok`.
    pub async fn commit(
        &self,
        target: TargetId,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<()> {
        self.inner.commit(target, chunk, version).await
    }
    /// Drops the pending version and all after it. None there: `Ok`.
    pub async fn discard(
        &self,
        target: TargetId,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<()> {
        self.inner.discard(target, chunk, version).await
    }
    /// Calls `observer` after every flush of the disk from now on.
    pub fn on_flush(&self, observer: impl Fn() + 'static) {
        *self.inner.flush.observer.borrow_mut() = Some(Rc::new(observer));
    }
    /// Resolves when everything acknowledged so far is durable. At once if it is already; who waits at the same time shares a flush.
    pub async fn flush(&self, target: TargetId) -> Result<()> {
        self.known(target)?;
        self.inner.flush_to(self.inner.log.written.get()).await
    }
    /// The same of what was acknowledged of these files alone: it does not wait for what the disk has of others.
    pub async fn flush_of(&self, target: TargetId, files: &[(VolumeId, DataId)]) -> Result<()> {
        self.known(target)?;
        match self.inner.flush.unflushed.upto(files) {
            Some(lsn) => self.inner.flush_to(lsn).await,
            None => Ok(()),
        }
    }
    /// How many chunks [`Store::list`] has, without a walk.
    pub fn chunk_count(&self, target: TargetId) -> u64 {
        self.inner.targets.borrow().get(&target).map_or(0, |t| t.chunk_count() as u64)
    }
    /// The last chunk, number and bytes of the chunks of a data id that have committed content.
    pub fn data_extent(
        &self,
        target: TargetId,
        volume: VolumeId,
        data: DataId,
    ) -> QueryExtentReply {
        let targets = self.inner.targets.borrow();
        let mut reply = QueryExtentReply::default();
        let Some(t) = targets.get(&target) else { return reply };
        let id = |index| ChunkId { volume, data, index };
        for (id, c) in t.chunks.range(id(0)..=id(u64::MAX)) {
            if c.committed.0 > 0 && !c.removed {
                reply.last = Some((id.index, c.len));
                reply.chunks += 1;
                reply.bytes += u64::from(c.len);
            }
        }
        reply
    }
    /// The last write known of a channel, pending or committed.
    pub fn channel(
        &self,
        target: TargetId,
        client: ClientId,
        channel: ChannelId,
    ) -> Option<ChannelRecord> {
        let targets = self.inner.targets.borrow();
        let t = targets.get(&target)?;
        let pending = pending_channels(t).filter(|c| c.client == client && c.channel == channel);
        t.channels.get(&(client, channel)).into_iter().chain(pending).max_by_key(|c| c.seq).cloned()
    }
    /// The last writes of all channels, pending ones included, in order.
    pub fn channels(&self, target: TargetId) -> Vec<ChannelRecord> {
        let targets = self.inner.targets.borrow();
        let Some(t) = targets.get(&target) else { return Vec::new() };
        let mut all: BTreeMap<_, _> = t.channels.clone();
        pending_channels(t).for_each(|c| crate::state::keep_newer(&mut all, c.clone()));
        all.into_values().collect()
    }
    /// Merges channel records of another replica: the greater sequence number stays.
    pub async fn put_channels(&self, target: TargetId, records: Vec<ChannelRecord>) -> Result<()> {
        self.known(target)?;
        // All in one go: nothing that is asked for afterwards comes between two pages.
        let pages = records.chunks(CHANNELS_PER_RECORD).map(|p| Record::Channels(p.to_vec()));
        let written = join_all(pages.map(|page| self.inner.append(target, page))).await;
        written.into_iter().try_for_each(|page| page.map(drop))
    }
    /// Forgets the channels of clients that are gone: of many in a few writes to the log.
    pub async fn forget_clients(
        &self,
        target: TargetId,
        clients: impl IntoIterator<Item = ClientId>,
    ) -> Result<()> {
        self.append_all(target, clients.into_iter().map(Record::ForgetClient)).await
    }
    /// The same, and of some channels of others. Of as many as a call puts into the log at once (4096) nothing that is asked for afterwards comes before.
    pub async fn forget_channels(
        &self,
        target: TargetId,
        clients: impl IntoIterator<Item = ClientId>,
        channels: impl IntoIterator<Item = (ClientId, Vec<ChannelId>)>,
    ) -> Result<()> {
        let clients = clients.into_iter().map(Record::ForgetClient);
        let pages = channels.into_iter().flat_map(|(client, list)| {
            let pages = list.chunks(FORGOTTEN_PER_RECORD).map(<[_]>::to_vec).collect::<Vec<_>>();
            pages.into_iter().map(move |page| Record::ForgetChannels(client, page))
        });
        self.append_all(target, clients.chain(pages)).await
    }
    /// Forgets the tombstones of a target. Only when all replicas agree that the chunks are gone.
    pub async fn purge_tombstones(&self, target: TargetId) -> Result<()> {
        self.known(target)?;
        self.inner.append(target, Record::PurgeTombstones).await.map(|_| ())
    }
    /// Verifies the next chunk after `after` at rest; `None` at the end.
    pub async fn scrub_next(
        &self,
        target: TargetId,
        after: Option<ChunkId>,
    ) -> Result<Option<ScrubResult>> {
        self.inner.scrub(target, after).await
    }
    /// The blocks of a chunk, of its committed content and of pending versions, that are damaged at rest.
    pub async fn bad_blocks(&self, target: TargetId, chunk: ChunkId) -> Result<Vec<BadBlock>> {
        self.inner.bad_blocks(target, chunk).await
    }
    /// Writes a damaged block (of [`Store::bad_blocks`]) again where it lies; `false`: no version of the chunk has such bytes there (any more).
    /// `DiskFailed` or `Corrupt`: the place does not take or keep them; other places may.
    pub async fn mend(
        &self,
        target: TargetId,
        chunk: ChunkId,
        block: u32,
        bytes: Buf,
    ) -> Result<bool> {
        self.inner.mend(target, chunk, block, bytes).await
    }
    /// A block of any version of the chunk, known by its checksum.
    pub async fn find_block(
        &self,
        target: TargetId,
        chunk: ChunkId,
        block: u32,
        crc: u32,
    ) -> Result<Option<BufMut>> {
        self.inner.find_block(target, chunk, block, crc).await
    }
    /// The whole content as of a version (`None`: committed), as far as it is sound.
    pub async fn read_as_is(
        &self,
        target: TargetId,
        chunk: ChunkId,
        version: Option<ChunkVersion>,
    ) -> Result<AsIs> {
        self.inner.read_as_is(target, chunk, version).await
    }
    /// Bytes of the disk: all of it, free for chunks, used by chunks.
    fn room(&self) -> (u64, u64, u64) {
        let inner = &self.inner;
        let disk = inner.disk_space();
        let slots = inner.slots.borrow();
        // Slots given up count as free: whoever needs one makes the removal durable first (`take_slot`).
        let given_up = inner.retired.borrow().slot_bytes();
        let used = slots.used_bytes().saturating_sub(given_up);
        let mut total = disk.total_bytes;
        let mut free = disk.free_bytes.saturating_sub(inner.config.reserve_bytes)
            + slots.free_bytes()
            + given_up;
        if inner.config.capacity_bytes > 0 {
            total = total.min(inner.config.capacity_bytes);
            free = free.min(inner.config.capacity_bytes.saturating_sub(used));
        }
        (total, free, used)
    }
    /// Bytes free for chunks and not promised.
    pub fn free_bytes(&self) -> u64 {
        self.room().1.saturating_sub(self.inner.promised.get())
    }
    /// Takes the room of an update that is about to be staged, with `payload` bytes, out of what is free, until the promise is
    /// dropped: of updates that come at once, the later ones see what the earlier ones are going to take.
    pub fn promise(&self, payload: u64) -> Promise {
        self.inner.promise(payload)
    }
    /// Room on the disk. Walks no chunk: heartbeats ask.
    pub fn space(&self) -> StoreSpace {
        let (total_bytes, free_bytes, used_bytes) = self.room();
        StoreSpace { total_bytes, free_bytes, used_bytes, log_bytes: self.inner.log_bytes() }
    }
    /// Bytes of memory that the metadata of all chunks takes, roughly. Walks all of them.
    pub fn metadata_bytes(&self) -> u64 {
        let targets = self.inner.targets.borrow();
        targets.values().flat_map(|t| t.chunks.values()).map(|c| c.memory_bytes()).sum()
    }
    /// Checks that the disk is still there, is this one, and takes writes; if not, the store fails. An idle store would not notice.
    /// `beside`: the store's directory, opened once more, so that the check does not wait behind what the store asks of it.
    pub async fn probe(&self, beside: &Dir) -> Result<()> {
        self.inner.probe(beside).await
    }
    /// Since when the disk has been at the oldest of what the store has asked it for ([`glowfs_rt::backend::DirIo::under_way_since`]). The check of the disk does not flush, and writes only
    /// where something is already.
    pub fn under_way_since(&self) -> Option<Instant> {
        self.inner.dir.under_way_since()
    }
    /// Takes the store out of service, as a failed write does.
    pub fn fail(&self, why: &str) {
        self.inner.poison("the disk", &std::io::Error::other(why.to_owned()));
    }
    /// Writes a checkpoint now (tests and tools; it happens by itself).
    pub async fn checkpoint(&self) -> Result<()> {
        self.inner.check_open()?;
        self.inner.checkpoint_now(Upto::Current).await
    }
    /// Ends it: flushes, marks a clean shutdown. Everything after fails with `ShuttingDown`.
    pub async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    /// Puts records into the log, many at once.
    async fn append_all(
        &self,
        target: TargetId,
        records: impl Iterator<Item = Record>,
    ) -> Result<()> {
        self.known(target)?;
        let mut records = records.peekable();
        while records.peek().is_some() {
            let mut queued = Vec::new();
            for record in records.by_ref().take(APPENDED_AT_ONCE) {
                queued.push(self.inner.enqueue(target, record, Vec::new(), None, None)?);
            }
            for record in queued {
                record.written().await?;
            }
        }
        Ok(())
    }

    fn known(&self, target: TargetId) -> Result<()> {
        if self.inner.targets.borrow().contains_key(&target) {
            return self.inner.check_open();
        }
        Err(Inner::no_target(target))
    }

    async fn durable(&self, target: TargetId, record: Record) -> Result<()> {
        let lsn = self.inner.append(target, record).await?;
        self.inner.flush_to(lsn).await
    }
}

fn pending_channels(t: &crate::state::Target) -> impl Iterator<Item = &ChannelRecord> {
    let chunks = t.pending.iter().filter_map(|id| t.chunks.get(id));
    chunks.flat_map(|c| c.pending.iter()).filter_map(|d| d.channel.as_ref())
}
