//! Checkpoints: the state as of one batch, written to a file of its own in small steps, so that the log before it
//! can go. A chunk that changes before its turn is written down first, so the snapshot is of one moment exactly. A channel record may be newer:
//! what the log behind says of it comes out the same.

use crate::alloc::RELEASE_BYTES;
use crate::chunk::Chunk;
use crate::codec::{Reader, Writer};
use crate::extents::Extent;
use crate::format::{BLOCK, FORMAT_VERSION};
use crate::record::{
    Delta, get_channel, get_chunk_id, get_delta, get_extents, put_channel, put_chunk_id, put_delta,
    put_extents,
};
use crate::room::CHECKPOINT_SPARE;
use crate::state::{Inner, Target};
use glowfs_rt::File;
use glowfs_rt::backend::OpenOptions;
use glowfs_types::checksum::crc32c;
use glowfs_types::{
    ChannelId, ChunkId, ChunkVersion, ClientId, Error, Result, Status, StoreId, TargetId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

pub(crate) const CHECKPOINT: &str = "checkpoint";
pub(crate) const CHECKPOINT_NEW: &str = "checkpoint.new";
const MAGIC: &[u8; 8] = b"GLOWCKPT";
const FRAME_MAGIC: u32 = 0x4d52_4647;
/// Bytes of entries in one frame, unless one entry alone is greater.
const FRAME_BYTES: usize = 256 << 10;
/// Entries of a frame that is read, in bytes, at most. Builds before 2026-11-23 put whatever had gathered into one frame.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// Bytes before the entries of a frame.
const FRAME_HEAD_BYTES: usize = 32;
/// Chunks looked at without letting other tasks run.
const STEP_CHUNKS: usize = 64;
/// Channel records likewise.
const STEP_CHANNELS: usize = 256;
/// How often a checkpoint begins anew because a target was removed meanwhile, or for want of room.
const ATTEMPTS_MAX: usize = 8;

const TARGET: u32 = 1;
const CHANNEL: u32 = 2;
const CHUNK: u32 = 3;
const END: u32 = 4;

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

/// The first block of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointHead {
    pub store: StoreId,
    pub incarnation: u64,
    /// The last batch it covers.
    pub lsn: u64,
    /// Segments before this one are not needed. (Of those behind it, some may be missing: no chunk refers to them.)
    pub first_segment: u64,
}

impl CheckpointHead {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC);
        w.u32(FORMAT_VERSION);
        w.u32(0);
        w.u128(self.store.0);
        w.u64(self.incarnation);
        w.u64(self.lsn);
        w.u64(self.first_segment);
        w.0.resize(BLOCK - 4, 0);
        let crc = crc32c(&w.0);
        w.u32(crc);
        w.0
    }
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |what| Error::new(Status::Corrupt, format!("checkpoint header: {what}"));
        let (body, crc) = bytes.split_at_checked(BLOCK - 4).ok_or_else(|| bad("too short"))?;
        if &body[..8] != MAGIC {
            return Err(bad("not a checkpoint"));
        }
        let mut r = Reader(&body[8..]);
        if r.u32()? > FORMAT_VERSION {
            return Err(Error::new(
                Status::NewerFormat,
                format!(
                    "the checkpoint has a newer format than {FORMAT_VERSION}, which this build knows; start a newer glowfs"
                ),
            ));
        }
        if crc != crc32c(body).to_le_bytes() {
            return Err(bad("checksum mismatch"));
        }
        r.u32()?;
        Ok(Self {
            store: StoreId(r.u128()?),
            incarnation: r.u64()?,
            lsn: r.u64()?,
            first_segment: r.u64()?,
        })
    }
}

fn entry(w: &mut Writer, kind: u32, target: TargetId, body: impl FnOnce(&mut Writer)) {
    let start = w.0.len();
    w.u32(0);
    w.u32(kind);
    w.u64(target.0);
    body(w);
    w.0.resize(w.0.len().next_multiple_of(8), 0);
    w.patch_u32(start, (w.0.len() - start) as u32);
}

/// Entries in parts of `most` bytes, or of one entry that is greater.
fn parts(mut rest: &[u8], most: usize) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let mut len = 0;
        while let Ok(next) = Reader(&rest[len..]).u32()
            && (len == 0 || len + next as usize <= most)
        {
            len += next as usize;
        }
        let (part, later) = rest.split_at(len);
        parts.push(part);
        rest = later;
    }
    parts
}

fn put_chunk(w: &mut Writer, target: TargetId, id: ChunkId, c: &Chunk) {
    entry(w, CHUNK, target, |w| {
        put_chunk_id(w, id);
        w.u64(c.committed.0);
        w.u32(c.len);
        w.u32(c.chunk_bytes);
        w.u32(u32::from(c.removed));
        w.u32(c.pending.len() as u32);
        w.u64(c.lsn);
        put_extents(w, &c.extents, &c.crcs);
        c.pending.iter().for_each(|d| put_delta(w, d, false));
    });
}

fn get_chunk(r: &mut Reader<'_>) -> Result<(ChunkId, Chunk)> {
    let bad = || Error::new(Status::Corrupt, "checkpoint: a chunk that makes no sense");
    let id = get_chunk_id(r)?;
    let committed = ChunkVersion(r.u64()?);
    let len = r.u32()?;
    let chunk_bytes = r.u32()?;
    let removed = r.u32()? != 0;
    let n = r.u32()?;
    let lsn = r.u64()?;
    if !crate::slots::is_chunk_size(chunk_bytes) || len > chunk_bytes {
        return Err(bad());
    }
    let (extents, crcs): (Vec<Extent>, Vec<u32>) = get_extents(r, chunk_bytes)?;
    if crcs.len() != crate::chunk::blocks_for(len) as usize
        || extents.last().is_some_and(|e| e.end() as usize > crcs.len())
    {
        return Err(bad());
    }
    let pending = (0..n).map(|_| get_delta(r).map(|(d, _)| d)).collect::<Result<Vec<Delta>>>()?;
    Ok((
        id,
        Chunk {
            committed,
            len,
            chunk_bytes,
            removed,
            lsn,
            crcs,
            extents,
            pending,
            ..Chunk::default()
        },
    ))
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

/// Builds a frame from entries: header, entries, zeros up to whole blocks.
fn frame(number: u64, lsn: u64, entries: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(FRAME_MAGIC);
    w.u32(0);
    w.u64(lsn);
    w.u64(number);
    w.u32(entries.len() as u32);
    w.u32(0);
    w.bytes(entries);
    w.0.resize(w.0.len().next_multiple_of(BLOCK), 0);
    let crc = crc32c(&w.0[8..]);
    w.patch_u32(4, crc);
    w.0
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

/// What a checkpoint holds.
pub(crate) struct Loaded {
    pub head: CheckpointHead,
    pub targets: BTreeMap<TargetId, Target>,
    /// What was written of its file, which may be longer.
    pub bytes: u64,
}

/// Reads a whole checkpoint file.
pub(crate) struct Loader {
    /// The last batch that the checkpoint covers.
    lsn: u64,
    targets: BTreeMap<TargetId, Target>,
    chunks: u64,
    ended: bool,
}

impl Inner {
    pub async fn load_checkpoint(&self, file: &File, store: StoreId) -> Result<Loaded> {
        let bad = |what: &str| {
            Error::new(
                Status::Corrupt,
                format!(
                    "{}/{CHECKPOINT}: {what}; replace the disk and let the replicas be rebuilt",
                    self.dir.path()
                ),
            )
        };
        let read = async |at: u64, len: usize| -> Result<glowfs_rt::BufMut> {
            let (r, buf) = file.read(self.rt.alloc(len), at).await;
            match r {
                Ok(n) if n == len => Ok(buf),
                Ok(_) => Err(bad("cut short")),
                Err(e) => Err(self.read_error("read of the checkpoint", &e)),
            }
        };
        let head = CheckpointHead::decode(&read(0, BLOCK).await?)
            .map_err(|e| e.context(self.dir.path()))?;
        if head.store != store {
            return Err(bad("belongs to another store"));
        }
        let mut loader =
            Loader { lsn: head.lsn, targets: BTreeMap::new(), chunks: 0, ended: false };
        let file_bytes = file.len().map_err(|e| self.read_error("read of the checkpoint", &e))?;
        let mut at = BLOCK as u64;
        let mut number = 0;
        while !loader.ended {
            let first = read(at, BLOCK).await?;
            let mut r = Reader(&first);
            let (magic, crc, lsn, n, bytes) =
                (r.u32()?, r.u32()?, r.u64()?, r.u64()?, r.u32()? as usize);
            if magic != FRAME_MAGIC || lsn != head.lsn || n != number || bytes > FRAME_BYTES_MAX {
                return Err(bad("a frame is not where it should be"));
            }
            let total = (FRAME_HEAD_BYTES + bytes).next_multiple_of(BLOCK);
            if at + total as u64 > file_bytes {
                return Err(bad("cut short"));
            }
            let whole = if total == BLOCK { first } else { read(at, total).await? };
            if crc32c(&whole[8..]) != crc {
                return Err(bad(&format!("checksum mismatch in frame {number}")));
            }
            loader
                .frame(&whole[FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + bytes])
                .map_err(|e| bad(&e.message))?;
            at += total as u64;
            number += 1;
        }
        Ok(Loaded { head, targets: loader.targets, bytes: at })
    }
}

impl Loader {
    fn frame(&mut self, entries: &[u8]) -> Result<()> {
        let bad = |what: &str| Error::new(Status::Corrupt, what.to_owned());
        let mut rest = Reader(entries);
        while !rest.0.is_empty() {
            let len = Reader(rest.0).u32()? as usize;
            if len < 16 {
                return Err(bad("an entry without a length"));
            }
            let mut r = Reader(rest.bytes(len)?);
            r.u32()?;
            let kind = r.u32()?;
            let target = TargetId(r.u64()?);
            match kind {
                TARGET => {
                    let n = r.u32()? as usize;
                    self.targets.entry(target).or_default().meta = r.bytes(n)?.to_vec();
                }
                CHANNEL => {
                    let c = get_channel(&mut r)?;
                    let t = self
                        .targets
                        .get_mut(&target)
                        .ok_or_else(|| bad("a channel without its target"))?;
                    t.channels.insert((c.client, c.channel), c);
                }
                CHUNK => {
                    let (id, chunk) = get_chunk(&mut r)?;
                    if chunk.lsn > self.lsn {
                        // Its flush would be waited for for ever.
                        return Err(bad("a chunk that changed after the checkpoint"));
                    }
                    let t = self
                        .targets
                        .get_mut(&target)
                        .ok_or_else(|| bad("a chunk without its target"))?;
                    if !chunk.pending.is_empty() {
                        t.pending.insert(id);
                    }
                    t.tombstones += usize::from(chunk.removed);
                    let old = t.chunks.insert(id, chunk);
                    t.tombstones -= usize::from(old.is_some_and(|c| c.removed));
                    self.chunks += 1;
                }
                END => {
                    self.ended = true;
                    if r.u64()? != self.chunks {
                        return Err(bad("the number of chunks is wrong"));
                    }
                }
                k => return Err(bad(&format!("unknown kind of entry {k}"))),
            }
        }
        Ok(())
    }
}
