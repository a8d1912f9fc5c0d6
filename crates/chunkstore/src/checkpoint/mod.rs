//! Checkpoints: the state as of one batch, written to a file of its own in small steps, so that the log before it
//! can go. A chunk that changes before its turn is written down first, so the snapshot is of one moment exactly. A channel record may be newer:
//! what the log behind says of it comes out the same.

mod file;
mod load;

use crate::alloc::RELEASE_BYTES;
use crate::chunk::Chunk;
use crate::codec::Writer;
use crate::record::put_channel;
use crate::room::CHECKPOINT_SPARE;
use crate::state::Inner;
use file::{CHANNEL, CheckpointHead, END, FRAME_BYTES, TARGET, entry, frame, parts, put_chunk};
use glowfs_rt::File;
use glowfs_rt::backend::OpenOptions;
use glowfs_types::{ChannelId, ChunkId, ClientId, Error, Result, Status, TargetId};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

pub(crate) const CHECKPOINT: &str = "checkpoint";
pub(crate) const CHECKPOINT_NEW: &str = "checkpoint.new";
/// Chunks looked at without letting other tasks run.
const STEP_CHUNKS: usize = 64;
/// Channel records likewise.
const STEP_CHANNELS: usize = 256;
/// How often a checkpoint begins anew because a target was removed meanwhile, or for want of room.
const ATTEMPTS_MAX: usize = 8;

/// Which segments a checkpoint is to make superfluous.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upto {
    /// Those before the one that is written.
    Current,
    /// That one as well: nothing is written there any more.
    All,
}

/// A checkpoint that is being written.
pub(crate) struct Running {
    generation: u32,
    out: Writer,
    abandoned: bool,
    chunks: u64,
    /// Targets of the snapshot whose channel records are not written down, the last one's turn being next; and behind which record it goes on.
    channels_of: Vec<TargetId>,
    channels_after: Option<(ClientId, ChannelId)>,
}

/// What was written down.
struct Snapshot {
    /// The last batch it covers.
    lsn: u64,
    /// Segments that chunks still have blocks in.
    in_use: BTreeSet<u64>,
    /// Bytes of its file.
    bytes: u64,
}

impl Running {
    /// The chunk is about to change: writes it down as it is, if that was not done yet.
    pub fn before_change(&mut self, target: TargetId, id: ChunkId, chunk: &mut Chunk) {
        if chunk.checkpoint != self.generation && !self.abandoned {
            chunk.checkpoint = self.generation;
            self.chunks += 1;
            put_chunk(&mut self.out, target, id, chunk);
        }
    }
    /// The snapshot cannot be finished; it begins anew.
    pub fn abandon(&mut self) {
        self.abandoned = true;
        self.out.0.clear();
    }
}

impl Inner {
    /// Starts a checkpoint if the log has grown to half of its bound, or much has died in slots that stay.
    pub fn maybe_checkpoint(self: &Rc<Self>) {
        let most = self.segments_usual() as usize;
        let wanted = self.log.segments.borrow().len() > most / 2 || self.wants_compaction();
        if wanted && !self.closing.get() {
            self.start_checkpoint();
        }
    }

    /// Starts a checkpoint in the background if none runs.
    pub fn start_checkpoint(self: &Rc<Self>) {
        if self.checkpoint_busy.replace(true) {
            return;
        }
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            let _ = inner.checkpoint_task(Upto::Current).await;
        });
    }

    /// Writes a checkpoint; waits for one that runs already.
    pub async fn checkpoint_now(self: &Rc<Self>, upto: Upto) -> Result<()> {
        self.checkpoint_done.wait(|| (!self.checkpoint_busy.get()).then_some(())).await;
        self.checkpoint_busy.set(true);
        self.checkpoint_task(upto).await
    }

    async fn checkpoint_task(self: &Rc<Self>, upto: Upto) -> Result<()> {
        let mut result =
            Err(Error::new(Status::Busy, "the checkpoint was disturbed; it begins anew by itself"));
        for attempt in 0..ATTEMPTS_MAX {
            match self.checkpoint_attempt(upto, attempt == 0).await {
                Ok(true) => {
                    result = Ok(());
                    break;
                }
                Ok(false) => {}
                Err(e) => {
                    tracing::warn!(error = %e, "checkpoint failed, or could not empty the log");
                    result = Err(e);
                    break;
                }
            }
        }
        *self.checkpoint.borrow_mut() = None;
        if result.as_ref().err().is_none_or(|e| e.status == Status::NoSpace)
            // The log may be waiting for these segments, and all flushes that somebody would ask for may be waiting for the log.
            && let Err(e) = self.free_retired().await
        {
            result = Err(e);
        }
        *self.log.full.borrow_mut() = match &result {
            Err(e) if e.status == Status::NoSpace => Some(e.clone()),
            _ => None,
        };
        self.checkpoint_busy.set(false);
        self.checkpoint_done.wake();
        self.log.space.wake();
        // What it has given up is there now; where nothing is written nobody else would ask for the next portion.
        if result.is_ok() && self.dead.more.take() && !self.closing.get() {
            self.start_checkpoint();
        }
        result
    }

    /// `false`: abandoned, to be tried again. `first`: it was not tried before.
    async fn checkpoint_attempt(self: &Rc<Self>, upto: Upto, first: bool) -> Result<bool> {
        let before = self.log.current.get() + u64::from(upto == Upto::All);
        self.flush_to(self.log.written.get()).await?;
        let short = self.fold_before(before).await?;
        // Behind it, for the log needs the room more; and not where all that there is may be needed for the checkpoint itself.
        if first && upto == Upto::Current {
            self.compact().await?;
        }
        let Some(snapshot) = self.write_down(before, short.is_some()).await? else {
            return Ok(false);
        };
        let Snapshot { lsn, in_use, bytes } = snapshot;
        let dir_error = |e: std::io::Error| self.poison("switching the checkpoint", &e);
        self.dir.rename(CHECKPOINT_NEW, CHECKPOINT).await.map_err(dir_error)?;
        self.dir.sync().await.map_err(dir_error)?;
        self.keep_checkpoint_spare(bytes).await;
        self.retire_segments(before, lsn, &in_use);
        self.retire_vacated(lsn);
        self.unread
            .borrow_mut()
            .retain(|loc, _| loc.segment().is_some_and(|s| in_use.contains(&s)));
        self.keep_reserve().await;
        short.map_or(Ok(true), Err)
    }

    /// Writes the state down, to [`CHECKPOINT_NEW`]; `None`: it does not free what it should, or was abandoned. `short`: blocks of the log stay for want of room.
    ///
    /// What does not fit is written anew with the room that free slots give up. Nothing is folded in between: that would take the same room.
    async fn write_down(self: &Rc<Self>, before: u64, short: bool) -> Result<Option<Snapshot>> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let in_use = self.in_use_before(before);
            if !short && !in_use.is_subset(&self.unread_segments()) {
                return Ok(None);
            }
            // Nothing was awaited since: what is in use is so as of the snapshot.
            let lsn = self.begin_snapshot();
            let first_segment = in_use.first().copied().unwrap_or(before);
            let written = self.write_snapshot(lsn, first_segment).await;
            *self.checkpoint.borrow_mut() = None;
            match written {
                Err(e)
                    if e.status == Status::NoSpace
                        && attempts < ATTEMPTS_MAX
                        && self.release_room(0, RELEASE_BYTES).await? > 0 =>
                {
                    tracing::debug!(error = %e, "the checkpoint begins anew");
                }
                Err(e) => return Err(e),
                Ok(bytes) => return Ok(bytes.map(|bytes| Snapshot { lsn, in_use, bytes })),
            }
        }
    }

    /// The targets are written down at once. Returns the batch of the snapshot.
    fn begin_snapshot(&self) -> u64 {
        let generation = self.checkpoint_count.get().wrapping_add(1).max(1);
        self.checkpoint_count.set(generation);
        let targets = self.targets.borrow();
        let mut run = Running {
            generation,
            out: Writer::default(),
            abandoned: false,
            chunks: 0,
            channels_of: targets.keys().rev().copied().collect(),
            channels_after: None,
        };
        for (id, t) in &*targets {
            entry(&mut run.out, TARGET, *id, |w| {
                w.u32(t.meta.len() as u32);
                w.bytes(&t.meta);
            });
        }
        *self.checkpoint.borrow_mut() = Some(run);
        self.log.written.get()
    }

    /// Its bytes; `None`: abandoned.
    async fn write_snapshot(self: &Rc<Self>, lsn: u64, first_segment: u64) -> Result<Option<u64>> {
        let error = |e: std::io::Error| {
            if crate::log::is_no_space(&e) {
                self.no_space("a checkpoint", &e)
            } else {
                self.poison("writing a checkpoint", &e)
            }
        };
        if self.checkpoint_spare.take() {
            self.dir.rename(CHECKPOINT_SPARE, CHECKPOINT_NEW).await.map_err(error)?;
        }
        // Not cut: its room is needed. What is behind the last frame means nothing.
        let options = OpenOptions { create: true, direct: true };
        let file = self.open_waiting(CHECKPOINT_NEW, options).await.map_err(error)?;
        let head = {
            let sb = self.superblock.borrow();
            CheckpointHead { store: sb.store, incarnation: sb.incarnation, lsn, first_segment }
        };
        let mut at = self.write_at(&file, 0, &head.encode()).await.map_err(error)?;
        let mut number = 0;
        let mut cursor: Option<(TargetId, Option<ChunkId>)> = Some((TargetId(0), None));
        while let Some(from) = cursor {
            if !self.snapshot_channels() {
                cursor = self.snapshot_step(from);
            }
            let entries = {
                let mut run = self.checkpoint.borrow_mut();
                let Some(run) = run.as_mut().filter(|r| !r.abandoned) else { return Ok(None) };
                if cursor.is_none() {
                    let chunks = run.chunks;
                    entry(&mut run.out, END, TargetId(0), |w| w.u64(chunks));
                }
                let full = run.out.0.len() >= FRAME_BYTES || cursor.is_none();
                if full { std::mem::take(&mut run.out.0) } else { Vec::new() }
            };
            if entries.is_empty() {
                self.rt.yield_now().await;
                continue;
            }
            // More may have gathered than one frame takes: chunks that changed during the last write.
            for part in parts(&entries, FRAME_BYTES) {
                at = self.write_at(&file, at, &frame(number, lsn, part)).await.map_err(error)?;
                number += 1;
            }
        }
        self.flush_all().await?;
        file.sync().await.map_err(|e| self.poison("flush of a checkpoint", &e))?;
        Ok(Some(at))
    }

    async fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> std::io::Result<u64> {
        let mut buf = self.rt.alloc(bytes.len());
        buf.copy_from_slice(bytes);
        file.write(vec![buf.freeze()], at).await?;
        Ok(at + bytes.len() as u64)
    }

    /// Writes some channel records down; whether there are more.
    fn snapshot_channels(&self) -> bool {
        let targets = self.targets.borrow();
        let mut run = self.checkpoint.borrow_mut();
        let Some(run) = run.as_mut().filter(|r| !r.abandoned) else { return false };
        let mut steps = 0;
        while let Some(target) = run.channels_of.last().copied() {
            let from = run.channels_after.map_or(Unbounded, Excluded);
            // A target that was made since is not of the snapshot, and one that was removed ends it.
            let rest = targets.get(&target).map(|t| t.channels.range((from, Unbounded)));
            for (key, record) in rest.into_iter().flatten() {
                if steps == STEP_CHANNELS {
                    return true;
                }
                entry(&mut run.out, CHANNEL, target, |w| put_channel(w, record));
                run.channels_after = Some(*key);
                steps += 1;
            }
            run.channels_of.pop();
            run.channels_after = None;
        }
        false
    }

    /// Writes some chunks down; where to go on, or `None` at the end.
    fn snapshot_step(
        &self,
        from: (TargetId, Option<ChunkId>),
    ) -> Option<(TargetId, Option<ChunkId>)> {
        let mut targets = self.targets.borrow_mut();
        let mut run = self.checkpoint.borrow_mut();
        let run = run.as_mut()?;
        let (start, mut after) = from;
        let mut steps = 0;
        for (target, t) in targets.range_mut(start..) {
            if *target != start {
                after = None;
            }
            let bound = after.map_or(Unbounded, Excluded);
            for (id, chunk) in t.chunks.range_mut((bound, Unbounded)) {
                run.before_change(*target, *id, chunk);
                steps += 1;
                if steps >= STEP_CHUNKS || run.out.0.len() >= FRAME_BYTES {
                    return Some((*target, Some(*id)));
                }
            }
        }
        None
    }
}
