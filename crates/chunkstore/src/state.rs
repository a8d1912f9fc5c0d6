//! The store in memory: targets, chunks, slots; how records change them; what may be used anew and when.

use crate::api::{StageKind, StoreConfig};
use crate::checkpoint::Running;
use crate::chunk::{Chunk, blocks_for};
use crate::compact::{Dead, NOTED_BLOCKS};
use crate::epochs::Epochs;
use crate::extents::{Extent, Loc};
use crate::flush::FlushState;
use crate::format::Superblock;
use crate::gate::Gate;
use crate::health::KnownSpace;
use crate::leaving::Leaving;
use crate::log::Log;
use crate::record::{Delta, Record};
use crate::retired::{Retired, RetiredPlace, RetiredPlaces};
use crate::signal::Signal;
use crate::slots::Slots;
use glowfs_rt::{Dir, File, Instant, Rt};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkId, ChunkVersion, ClientId, Error, Result, Status, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Places that are freed at a time, at most.
const REAPED_AT_ONCE: usize = 1024;

/// One target in memory.
#[derive(Default)]
pub(crate) struct Target {
    pub chunks: BTreeMap<ChunkId, Chunk>,
    pub channels: BTreeMap<(ClientId, ChannelId), ChannelRecord>,
    pub meta: Vec<u8>,
    /// Chunks with pending versions.
    pub pending: BTreeSet<ChunkId>,
    /// How many chunks are removed, those with pending versions included.
    pub tombstones: usize,
}

impl Target {
    /// Chunks, without those of which nothing but a tombstone is left.
    pub fn chunk_count(&self) -> usize {
        let begun = |id: &&ChunkId| self.chunks.get(*id).is_some_and(|c| c.removed);
        self.chunks.len() + self.pending.iter().filter(begun).count() - self.tombstones
    }

    /// A chunk that has neither a version nor pending ones is as if it had never been.
    fn forget_unknown(&mut self, id: ChunkId) {
        if self.chunks.get(&id).is_some_and(is_unknown)
            && let Some(chunk) = self.chunks.remove(&id)
        {
            self.tombstones -= usize::from(chunk.removed);
        }
    }
}

fn is_unknown(c: &Chunk) -> bool {
    c.committed.0 == 0 && c.pending.is_empty()
}

/// Commits the pending versions of a chunk up to `version`, in order.
fn commit_up_to(
    chunk: &mut Chunk,
    version: ChunkVersion,
    (channels, tombstones): (&mut BTreeMap<(ClientId, ChannelId), ChannelRecord>, &mut usize),
    removed: &mut Vec<Extent>,
) {
    *tombstones -= usize::from(chunk.removed);
    let n = chunk.pending.partition_point(|d| d.version <= version);
    // Put back for its memory: the next version comes soon.
    let mut pending = std::mem::take(&mut chunk.pending);
    for mut delta in pending.drain(..n) {
        if let Some(c) = delta.channel.take() {
            keep_newer(channels, c);
        }
        chunk.apply(delta, removed);
    }
    chunk.pending = pending;
    *tombstones += usize::from(chunk.removed);
}

pub(crate) struct Inner {
    pub rt: Rt,
    pub dir: Dir,
    pub config: StoreConfig,
    pub superblock: RefCell<Superblock>,
    pub was_clean: Cell<bool>,
    /// The start had to cut off batches whose write had ended.
    pub cut: Cell<bool>,
    /// What the life before this one drew by lot; 0: there was none, or it did not.
    pub former: u32,
    pub targets: RefCell<BTreeMap<TargetId, Target>>,
    /// Chunks with blocks in the log.
    pub in_log: RefCell<BTreeSet<(TargetId, ChunkId)>>,
    /// Blocks that stay in the log because they could not be read when they were to be folded, and since when ([`crate::copy`]).
    pub unread: RefCell<BTreeMap<Loc, Instant>>,
    pub dead: Dead,
    pub gates: RefCell<BTreeMap<(TargetId, ChunkId), Rc<Gate>>>,
    pub slots: RefCell<Slots>,
    pub block_files: RefCell<BTreeMap<u8, File>>,
    /// Bytes of slots that updates under way will take.
    pub promised: Cell<u64>,
    pub growing: Cell<bool>,
    pub grown: Signal,
    pub epochs: Rc<Epochs>,
    pub retired: RefCell<RetiredPlaces>,
    pub leaving: Leaving,
    pub log: Log,
    pub flush: FlushState,
    pub checkpoint: RefCell<Option<Running>>,
    pub checkpoint_count: Cell<u32>,
    pub checkpoint_busy: Cell<bool>,
    pub checkpoint_done: Signal,
    /// When one was attempted last because the disk was full.
    pub checkpoint_tried: Cell<Option<glowfs_rt::Instant>>,
    /// What was written of the newest one that this life has loaded, in bytes.
    pub checkpoint_bytes: Cell<u64>,
    /// The file of the next one is there.
    pub checkpoint_spare: Cell<bool>,
    pub failed: RefCell<Option<Error>>,
    pub failed_signal: Signal,
    pub closing: Cell<bool>,
    pub known_space: KnownSpace,
}

impl Inner {
    /// Fails if the store takes no more updates.
    pub fn check_open(&self) -> Result<()> {
        if let Some(e) = &*self.failed.borrow() {
            return Err(e.clone());
        }
        if self.closing.get() {
            return Err(Error::new(
                Status::ShuttingDown,
                format!("{}: the store is closed", self.dir.path()),
            ));
        }
        Ok(())
    }

    /// No more updates from now on: what the disk holds is not known.
    pub fn poison(&self, what: &str, cause: &std::io::Error) -> Error {
        let error = Error::new(
            Status::DiskFailed,
            format!(
                "{}: {what} failed: {cause}; the store takes no more updates, its targets go offline; replace the disk or restart the service",
                self.dir.path()
            ),
        );
        let first = {
            let mut failed = self.failed.borrow_mut();
            failed.get_or_insert_with(|| error).clone()
        };
        tracing::error!(error = %first, "store failed");
        self.failed_signal.wake();
        self.flush.signal.wake();
        self.checkpoint_done.wake();
        self.log.space.wake();
        first
    }

    pub fn no_target(target: TargetId) -> Error {
        Error::new(
            Status::NoTarget,
            format!("target {target} is not in this store; refresh the routing info"),
        )
    }

    /// Runs `f` on a chunk that is about to change: a running checkpoint writes its old state down first.
    fn change<T>(
        &self,
        target: TargetId,
        id: ChunkId,
        f: impl FnOnce(&mut Target) -> T,
    ) -> Option<T> {
        let mut targets = self.targets.borrow_mut();
        let t = targets.get_mut(&target)?;
        if let Some(run) = &mut *self.checkpoint.borrow_mut()
            && let Some(chunk) = t.chunks.get_mut(&id)
        {
            run.before_change(target, id, chunk);
        }
        Some(f(t))
    }

    /// Does what a written (or replayed) record says. Total: a record that makes no sense changes nothing.
    pub fn apply(&self, target: TargetId, record: Record, lsn: u64) {
        match record {
            Record::Stage { chunk, commit, delta } => {
                self.apply_stage(target, chunk, commit, delta, lsn)
            }
            Record::Commit { chunk, version } => self.apply_commit(target, chunk, version, lsn),
            Record::Discard { chunk, version } => self.apply_discard(target, chunk, version, lsn),
            Record::CreateTarget => {
                self.targets.borrow_mut().entry(target).or_default();
            }
            Record::RemoveTarget => self.apply_remove_target(target, lsn),
            Record::TargetMeta(bytes) => {
                if let Some(t) = self.targets.borrow_mut().get_mut(&target) {
                    t.meta = bytes;
                }
            }
            Record::Channels(list) => {
                if let Some(t) = self.targets.borrow_mut().get_mut(&target) {
                    list.into_iter().for_each(|c| keep_newer(&mut t.channels, c));
                }
            }
            Record::ForgetClient(client) => {
                if let Some(t) = self.targets.borrow_mut().get_mut(&target) {
                    let all = (client, ChannelId(0))..=(client, ChannelId(u64::MAX));
                    let theirs: Vec<_> = t.channels.range(all).map(|(key, _)| *key).collect();
                    for key in theirs {
                        t.channels.remove(&key);
                    }
                }
            }
            Record::ForgetChannels(client, list) => {
                if let Some(t) = self.targets.borrow_mut().get_mut(&target) {
                    for channel in list {
                        t.channels.remove(&(client, channel));
                    }
                }
            }
            Record::PurgeTombstones => self.apply_purge(target),
        }
    }

    fn apply_stage(&self, target: TargetId, id: ChunkId, commit: bool, delta: Delta, lsn: u64) {
        if delta.extents.iter().any(|e| matches!(e.loc, Loc::Log { .. })) {
            self.in_log.borrow_mut().insert((target, id));
        }
        let generation = self.checkpoint_count.get();
        let dropped = self.change(target, id, |t| {
            // Each look for the chunk costs: there are many.
            let Target { chunks, channels, pending, tombstones, .. } = &mut *t;
            let chunk = chunks.entry(id).or_insert_with(|| Chunk {
                chunk_bytes: delta.chunk_bytes,
                checkpoint: generation,
                ..Chunk::default()
            });
            chunk.lsn = lsn;
            let mut removed = Vec::new();
            let version = delta.version;
            if commit && delta.kind == StageKind::Replace {
                let (old, later) = std::mem::take(&mut chunk.pending)
                    .into_iter()
                    .partition(|d| d.version <= version);
                chunk.pending = later;
                let old: Vec<Delta> = old;
                removed.extend(old.iter().flat_map(|d| d.extents.iter().copied()));
                old.iter().filter_map(|d| d.channel.clone()).for_each(|c| keep_newer(channels, c));
            }
            chunk.pending.retain(|d| d.version != version);
            let at = chunk.pending.partition_point(|d| d.version < version);
            chunk.pending.insert(at, delta);
            if commit {
                commit_up_to(chunk, version, (channels, tombstones), &mut removed);
            }
            let dropped = finish_change(chunk, (id, pending), &removed);
            if is_unknown(chunk) {
                t.forget_unknown(id);
            }
            dropped
        });
        self.give_up((target, id), dropped, lsn);
    }

    fn apply_commit(&self, target: TargetId, id: ChunkId, version: ChunkVersion, lsn: u64) {
        let dropped = self.change(target, id, |t| {
            let Target { chunks, channels, pending, tombstones, .. } = t;
            let Some(chunk) = chunks.get_mut(&id) else { return Dropped::default() };
            let mut removed = Vec::new();
            chunk.lsn = lsn;
            commit_up_to(chunk, version, (channels, tombstones), &mut removed);
            finish_change(chunk, (id, pending), &removed)
        });
        self.give_up((target, id), dropped, lsn);
    }

    fn apply_discard(&self, target: TargetId, id: ChunkId, version: ChunkVersion, lsn: u64) {
        let dropped = self.change(target, id, |t| {
            let Some(chunk) = t.chunks.get_mut(&id) else { return Dropped::default() };
            let mut removed = Vec::new();
            chunk.lsn = lsn;
            let at = chunk.pending.partition_point(|d| d.version < version);
            for d in chunk.pending.drain(at..) {
                removed.extend(d.extents);
            }
            let dropped = finish_change(chunk, (id, &mut t.pending), &removed);
            t.forget_unknown(id);
            dropped
        });
        self.give_up((target, id), dropped, lsn);
    }

    fn apply_remove_target(&self, target: TargetId, lsn: u64) {
        if let Some(run) = &mut *self.checkpoint.borrow_mut() {
            run.abandon();
        }
        // What is noted of its chunks elsewhere is passed over: folding drops what is in no target.
        if let Some(t) = self.targets.borrow_mut().remove(&target) {
            self.leaving.add(t, lsn);
        }
    }

    fn apply_purge(&self, target: TargetId) {
        if let Some(run) = &mut *self.checkpoint.borrow_mut() {
            run.abandon();
        }
        if let Some(t) = self.targets.borrow_mut().get_mut(&target) {
            t.chunks.retain(|_, c| !(c.removed && c.pending.is_empty()));
            // Below a pending version as well: when that is taken back, the tombstone would be there again.
            for c in t.chunks.values_mut().filter(|c| c.removed) {
                (c.removed, c.committed) = (false, ChunkVersion(0));
                c.chunk_bytes = c.pending.first().map_or(c.chunk_bytes, |d| d.chunk_bytes);
            }
            t.tombstones = 0;
        }
    }

    /// A chunk has changed at `lsn`, and refers to less.
    fn give_up(&self, key: (TargetId, ChunkId), dropped: Option<Dropped>, lsn: u64) {
        let Some(Dropped { slots, dead }) = dropped else { return };
        self.dead.note(key, dead);
        self.retire_slots(Some(slots), lsn);
    }

    /// Slots that nothing refers to since `lsn`.
    pub fn retire_slots(&self, slots: Option<Vec<(u8, u32)>>, lsn: u64) {
        let Some(slots) = slots else { return };
        if slots.is_empty() {
            return;
        }
        let epoch = self.epochs.now();
        let places = slots.into_iter().map(|(class, index)| RetiredPlace::Slot(class, index));
        self.retired.borrow_mut().retire(lsn, epoch, places);
        self.reap();
    }

    /// Frees all that nothing refers to any more: flushes what gave it up, and waits for those who read it.
    pub async fn free_retired(self: &Rc<Self>) -> Result<()> {
        self.flush_to(self.log.written.get()).await?;
        self.epochs.wait(self.epochs.now()).await;
        self.reap_all().await;
        Ok(())
    }

    /// The same without waiting for anybody: what may be used anew now.
    pub async fn reap_all(&self) {
        while self.reap() {
            self.rt.yield_now().await;
        }
    }

    /// Frees some of what may be used anew now; whether there may be more.
    pub fn reap(&self) -> bool {
        let durable = self.flush.durable.get();
        for _ in 0..REAPED_AT_ONCE {
            let free = |r: &Retired| r.lsn <= durable && self.epochs.passed(r.epoch);
            let place = self.retired.borrow_mut().take_if(free);
            match place {
                Some(RetiredPlace::Slot(class, index)) => {
                    self.slots.borrow_mut().give_back(class, index);
                }
                Some(RetiredPlace::Segment(seq)) => self.log.recycle(seq),
                None => return false,
            }
        }
        true
    }

    /// Replaces extents of a chunk by where their bytes were copied to, as far as they still lie where they did.
    pub fn move_extents(&self, target: TargetId, id: ChunkId, moves: &[(Extent, Loc)]) {
        self.change(target, id, |t| {
            let Some(chunk) = t.chunks.get_mut(&id) else { return };
            move_in(&mut chunk.extents, moves);
            for d in &mut chunk.pending {
                move_in(&mut d.extents, moves);
            }
        });
    }
}

/// See [`Inner::move_extents`].
fn move_in(list: &mut Vec<Extent>, moves: &[(Extent, Loc)]) {
    let mut nowhere = Vec::new();
    for (old, new) in moves {
        let blocks = list.last().map_or(0, Extent::end);
        let still: Vec<Extent> = crate::extents::within(list, (old.block, old.end()), blocks)
            .filter(|e| e.loc == old.loc.plus(e.block - old.block))
            .collect();
        for e in still {
            let loc = new.plus(e.block - old.block);
            crate::extents::put(list, Extent { loc, ..e }, &mut nowhere);
        }
    }
}

/// What a change took away from a chunk.
#[derive(Default)]
struct Dropped {
    /// Slots that it does not refer to any more.
    slots: Vec<(u8, u32)>,
    /// Blocks in others, of what was written over only if they are many.
    dead: u32,
}

/// After a change of a chunk: keeps the set of pending chunks and finds what it does not refer to any more.
fn finish_change(
    chunk: &Chunk,
    (id, pending): (ChunkId, &mut BTreeSet<ChunkId>),
    removed: &[Extent],
) -> Dropped {
    if chunk.pending.is_empty() {
        pending.remove(&id);
    } else {
        pending.insert(id);
    }
    let mut slots: Vec<_> = removed.iter().filter_map(|e| e.loc.slot()).collect();
    slots.sort_unstable();
    slots.dedup();
    slots.retain(|s| !chunk.refers_to(*s));
    let stays = |e: &Extent| e.loc.slot().is_some_and(|s| slots.binary_search(&s).is_err());
    let many = removed.iter().map(|e| e.count).sum::<u32>() > NOTED_BLOCKS;
    let end = blocks_for(chunk.len);
    let dies = |e: &Extent| if many { e.count } else { e.end().saturating_sub(end.max(e.block)) };
    let dead = removed.iter().map(|e| (e, dies(e))).filter(|(e, n)| *n > 0 && stays(e));
    let dead = dead.map(|(_, n)| n).sum();
    Dropped { slots, dead }
}

/// The record with the greater sequence number stays.
pub(crate) fn keep_newer(
    map: &mut BTreeMap<(ClientId, ChannelId), ChannelRecord>,
    c: ChannelRecord,
) {
    let key = (c.client, c.channel);
    match map.get_mut(&key) {
        Some(old) if old.seq > c.seq => {}
        Some(old) => *old = c,
        None => {
            map.insert(key, c);
        }
    }
}
