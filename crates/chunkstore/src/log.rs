//! The log of the disk: one batch is written at a time, and the next one is collected meanwhile.
//!
//! A record is applied to memory when its batch was written, in the order of the log. A segment is a file that is
//! used again under a new sequence number once a checkpoint covers it.

use crate::alloc::Taken;
use crate::api::StageKind;
use crate::codec::Writer;
use crate::extents::Loc;
use crate::format::{BATCH_HEAD_BYTES, BLOCK, BatchHead, SegmentHead};
use crate::gate::Gate;
use crate::record::Record;
use crate::retired::RetiredPlace;
use crate::room::RESERVE_SEGMENTS;
use crate::signal::Signal;
use crate::state::Inner;
use glowfs_rt::sync::{OneReceiver, OneSender, oneshot};
use glowfs_rt::{Buf, File};
use glowfs_types::{Error, Result, Status, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;

/// Payload bytes in one batch.
const BATCH_PAYLOAD_MAX: usize = 1 << 20;
/// Record bytes in one batch, unless one record alone is greater.
const BATCH_RECORDS_MAX: usize = 128 << 10;
/// Records that may wait for the log; more are refused. Far more than a storage service admits, since that would end the target.
const QUEUE_RECORDS_MAX: usize = 128 << 10;

/// A record on its way into the log.
pub(crate) struct Entry {
    pub target: TargetId,
    pub record: Record,
    /// Whole blocks.
    pub payload: Vec<Buf>,
    pub payload_blocks: u32,
    /// Where it begins in the payload of the batch, in blocks.
    pub base: u32,
    pub gate: Option<Rc<Gate>>,
    /// The slots that the record refers to; given back if it is not written.
    pub taken: Option<Taken>,
    pub done: OneSender<Result<u64>>,
}

impl Entry {
    /// Whether it takes no room, or gives some back: a full disk must not refuse it.
    fn makes_room(&self) -> bool {
        let Record::Stage { delta, .. } = &self.record else { return true };
        !matches!(delta.kind, StageKind::Write | StageKind::Replace)
    }
    /// Whether it changes nothing ([`crate::flush`]).
    fn is_mark(&self) -> bool {
        matches!(&self.record, Record::Channels(records) if records.is_empty())
    }
    /// Puts its payload at a place of the batch's.
    fn place(&mut self, base: u32) {
        if let Record::Stage { delta, .. } = &mut self.record {
            for e in &mut delta.extents {
                if let Loc::Log { block, .. } = &mut e.loc {
                    *block = *block - self.base + base;
                }
            }
        }
        self.base = base;
    }
    /// Something before it on the same chunk was refused.
    fn is_behind_refused(&self) -> bool {
        self.gate.as_ref().is_some_and(|g| g.refused.get())
    }
    /// Tells what became of it.
    fn end(self, outcome: Result<u64>) {
        tell(self.gate, self.done, outcome);
    }
}

fn tell(gate: Option<Rc<Gate>>, done: OneSender<Result<u64>>, outcome: Result<u64>) {
    if let Some(g) = gate {
        if outcome.is_err() {
            g.refused.set(true);
        }
        g.applied();
    }
    // Who asked for it may be gone; what is written counts all the same.
    let _ = done.send(outcome);
}

/// A record in the queue of the log.
pub(crate) struct Queued(OneReceiver<Result<u64>>);

impl Queued {
    /// Waits until it is written and applied; its batch.
    pub async fn written(self) -> Result<u64> {
        let ended = |_| Err(Error::new(Status::ShuttingDown, "the log ended before the update"));
        self.0.await.unwrap_or_else(ended)
    }
}

/// A segment with batches that a recovery needs.
pub(crate) struct Segment {
    pub file: File,
    /// Number in the file's name.
    pub index: u32,
    pub last_lsn: u64,
}

#[derive(Default)]
pub(crate) struct Log {
    pub segments: RefCell<BTreeMap<u64, Segment>>,
    pub free: RefCell<Vec<(u32, File)>>,
    /// Segment files that it has, in use or free.
    pub files: Cell<u32>,
    /// The number of the next one; there may be gaps.
    pub numbers: Cell<u32>,
    /// The segment that is written; before this life has begun one, the last one of the life before; 0: there is none.
    pub current: Cell<u64>,
    /// The next block in it; 0: this life has begun no segment yet.
    pub block: Cell<u32>,
    pub next_lsn: Cell<u64>,
    /// The last batch that was written.
    pub written: Cell<u64>,
    pub prev_crc: Cell<u32>,
    queue: RefCell<VecDeque<Entry>>,
    running: Cell<bool>,
    /// The current segment is one of those that are kept for what makes room ([`crate::room`]).
    pub on_reserve: Cell<bool>,
    /// Why no segment can be had, if so.
    pub full: RefCell<Option<Error>>,
    /// A segment was freed, or the log failed.
    pub space: Signal,
}

impl Log {
    /// Whether batches can be written: only behind the header of a segment that this life has begun.
    pub fn is_living(&self) -> bool {
        self.block.get() > 0
    }
}

pub(crate) fn segment_name(index: u32) -> String {
    format!("log-{index:04}")
}

fn behind_refused() -> Error {
    Error::new(Status::VersionGap, "an update of the chunk before this one was refused")
}

pub(crate) fn is_no_space(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Log {
    /// A segment file that is free, if more than `keep` are.
    fn take_free(&self, keep: usize) -> Option<(u32, File)> {
        let mut free = self.free.borrow_mut();
        if free.len() > keep { free.pop() } else { None }
    }
    pub fn file_of(&self, seq: u64) -> Option<File> {
        self.segments.borrow().get(&seq).map(|s| s.file.clone())
    }
    /// A retired segment's file may be used again.
    pub fn recycle(&self, seq: u64) {
        if let Some(s) = self.segments.borrow_mut().remove(&seq) {
            self.free.borrow_mut().push((s.index, s.file));
        }
        self.space.wake();
    }
}

impl Inner {
    /// Puts a record into the queue. Its place in the log is behind all that were put there before.
    pub fn enqueue(
        self: &Rc<Self>,
        target: TargetId,
        record: Record,
        payload: Vec<Buf>,
        gate: Option<Rc<Gate>>,
        taken: Option<Taken>,
    ) -> Result<Queued> {
        self.check_open()?;
        debug_assert!(record.is_readable(), "no recovery could read {record:?}");
        let (done, written) = oneshot();
        let payload_blocks = (payload.iter().map(|b| b.len()).sum::<usize>() / BLOCK) as u32;
        {
            let mut queue = self.log.queue.borrow_mut();
            if queue.len() >= QUEUE_RECORDS_MAX {
                return Err(Error::new(
                    Status::Overloaded,
                    format!(
                        "{}: {QUEUE_RECORDS_MAX} updates wait for the log; retry after a pause",
                        self.dir.path()
                    ),
                ));
            }
            if let Some(g) = &gate {
                g.unapplied.set(g.unapplied.get() + 1);
            }
            queue.push_back(Entry {
                target,
                record,
                payload,
                payload_blocks,
                base: 0,
                gate,
                taken,
                done,
            });
        }
        if !self.log.running.replace(true) {
            let inner = self.clone();
            self.rt.spawn_detached(async move {
                // Whatever else is ready to run may join the first batch.
                inner.rt.yield_now().await;
                inner.write_queue().await;
            });
        }
        Ok(Queued(written))
    }

    /// Puts a record there and waits until it is written; its batch.
    pub async fn append(self: &Rc<Self>, target: TargetId, record: Record) -> Result<u64> {
        self.enqueue(target, record, Vec::new(), None, None)?.written().await
    }

    async fn write_queue(self: &Rc<Self>) {
        loop {
            let (batch, records) = self.collect();
            if batch.is_empty() {
                self.log.running.set(false);
                return;
            }
            match self.write_batch(&batch, records).await {
                Err(e) if e.status == Status::NoSpace => self.write_what_makes_room(batch, e).await,
                result => self.finish(batch, result),
            }
        }
    }

    /// There is no room for this batch: what makes room goes on alone, the rest is refused.
    async fn write_what_makes_room(self: &Rc<Self>, batch: Vec<Entry>, why: Error) {
        let (makes, takes): (Vec<_>, Vec<_>) = batch.into_iter().partition(Entry::makes_room);
        if takes.is_empty() {
            return self.finish(makes, Err(why));
        }
        self.finish(takes, Err(why));
        let (behind, mut makes): (Vec<_>, Vec<_>) =
            makes.into_iter().partition(Entry::is_behind_refused);
        behind.into_iter().for_each(|e| e.end(Err(behind_refused())));
        if makes.is_empty() {
            return;
        }
        let mut w = Writer::default();
        let mut base = 0;
        for entry in &mut makes {
            entry.place(base);
            base += entry.payload_blocks;
            entry.record.encode(entry.target, &mut w);
        }
        let result = self.write_batch(&makes, w.0).await;
        self.finish(makes, result);
    }

    /// Takes what fits into one batch; encodes the records.
    fn collect(&self) -> (Vec<Entry>, Vec<u8>) {
        let mut batch: Vec<Entry> = Vec::new();
        let mut w = Writer::default();
        let mut payload = 0usize;
        // So that a batch always fits into a segment.
        let payload_max = BATCH_PAYLOAD_MAX.min(self.config.log_segment_bytes as usize / 2);
        let records_max = BATCH_RECORDS_MAX.min(self.config.log_segment_bytes as usize / 8);
        let fits = |payload: usize, records: usize, next: &Entry| {
            let bytes = next.payload_blocks as usize * BLOCK;
            payload + bytes <= payload_max && records <= records_max
        };
        let mut queue = self.log.queue.borrow_mut();
        while let Some(next) = queue.front_mut() {
            if !batch.is_empty() && !fits(payload, w.0.len(), next) {
                break;
            }
            if next.is_behind_refused() {
                let refused = queue.pop_front();
                drop(queue);
                refused.into_iter().for_each(|e| e.end(Err(behind_refused())));
                queue = self.log.queue.borrow_mut();
                continue;
            }
            if batch.is_empty() {
                // What goes into the batch's first block with its head: most need no more.
                w.0.reserve(BLOCK - BATCH_HEAD_BYTES);
            }
            next.place((payload / BLOCK) as u32);
            next.record.encode(next.target, &mut w);
            payload += next.payload_blocks as usize * BLOCK;
            batch.extend(queue.pop_front());
        }
        drop(queue);
        (batch, w.0)
    }

    /// Writes one batch; returns its number and its first payload block.
    async fn write_batch(self: &Rc<Self>, batch: &[Entry], records: Vec<u8>) -> Result<(u64, u32)> {
        let log = &self.log;
        let header_blocks = (BATCH_HEAD_BYTES + records.len()).div_ceil(BLOCK) as u32;
        let payload_blocks: u32 = batch.iter().map(|e| e.payload_blocks).sum();
        let need = header_blocks + payload_blocks;
        let capacity = (self.config.log_segment_bytes / BLOCK as u64) as u32;
        if need >= capacity {
            return Err(Error::new(
                Status::TooLarge,
                format!(
                    "an update of {need} blocks does not fit into a log segment; raise log_segment_bytes"
                ),
            ));
        }
        if !log.is_living() {
            let e = "the log of this store has not begun yet; this is a fault of ours";
            return Err(Error::new(Status::Internal, e));
        }
        let makes_room = batch.iter().all(Entry::makes_room);
        let ended = log.block.get() + need > capacity;
        if ended || (log.on_reserve.get() && !makes_room) {
            self.next_segment(makes_room).await?;
        }
        if let Some(e) = &*self.failed.borrow() {
            return Err(e.clone());
        }
        let lsn = log.next_lsn.get();
        let at = log.block.get();
        let segment = log.current.get();
        let durable_lsn = self.flush.durable.get();
        let head = BatchHead {
            crc: 0,
            store: self.superblock.borrow().store,
            segment,
            lsn,
            incarnation: self.superblock.borrow().incarnation,
            durable_lsn,
            prev_crc: log.prev_crc.get(),
            records_bytes: records.len() as u32,
            record_count: batch.len() as u32,
            header_blocks,
            payload_blocks,
        };
        let mut header = self.rt.alloc(header_blocks as usize * BLOCK);
        let crc = head.encode_into(&records, &mut header);
        let mut bufs = Vec::with_capacity(1 + batch.len());
        bufs.push(header.freeze());
        bufs.extend(batch.iter().flat_map(|e| e.payload.iter().cloned()));
        let file = log.file_of(segment).ok_or_else(|| {
            Error::new(
                Status::Internal,
                format!("log segment {segment} is not open; restart the service"),
            )
        })?;
        if let Err(e) = file.write(bufs, u64::from(at) * BLOCK as u64).await {
            if is_no_space(&e) {
                return Err(self.no_space("the log", &e));
            }
            return Err(self.poison("write to the log", &e));
        }
        self.flush.dirty_segments.borrow_mut().insert(segment);
        log.prev_crc.set(crc);
        log.next_lsn.set(lsn + 1);
        log.block.set(at + need);
        if let Some(s) = log.segments.borrow_mut().get_mut(&segment) {
            s.last_lsn = lsn;
        }
        log.written.set(lsn);
        self.flush.told.set(durable_lsn);
        if batch.iter().all(Entry::is_mark) {
            self.flush.marked.set(lsn);
        }
        self.count_written(u64::from(need) * BLOCK as u64);
        Ok((lsn, at + header_blocks))
    }

    /// Applies a written batch and tells everyone.
    fn finish(self: &Rc<Self>, batch: Vec<Entry>, result: Result<(u64, u32)>) {
        let segment = self.log.current.get();
        for entry in batch {
            let (lsn, base) = match &result {
                Ok(place) => *place,
                Err(e) => {
                    entry.end(Err(e.clone()));
                    continue;
                }
            };
            let Entry { target, mut record, gate, taken, done, .. } = entry;
            locate(&mut record, segment, base);
            // Of a stage that ends behind the removal of its target nothing stays that could give its slots up.
            if let Some(taken) = taken
                && self.targets.borrow().contains_key(&target)
            {
                taken.keep();
            }
            self.flush.unflushed.note(&record, lsn);
            self.apply(target, record, lsn);
            tell(gate, done, Ok(lsn));
        }
        self.start_leaving();
        self.maybe_checkpoint();
    }

    pub fn no_space(&self, what: &str, cause: &dyn std::fmt::Display) -> Error {
        Error::new(
            Status::NoSpace,
            format!("{}: no space for {what}: {cause}; remove files or add disks", self.dir.path()),
        )
    }

    /// Begins the next segment; waits for a checkpoint if the log is full. The last ones are only for what makes room
    /// (`makes_room`), so that removals work on a full disk.
    async fn next_segment(self: &Rc<Self>, makes_room: bool) -> Result<()> {
        let log = &self.log;
        let keep = if makes_room { 0 } else { RESERVE_SEGMENTS };
        // What makes room is refused only if a checkpoint frees nothing either.
        let mut last_attempt = !makes_room;
        let (index, file) = loop {
            self.check_not_failed()?;
            if let Some(free) = log.take_free(keep) {
                break free;
            }
            if log.files.get() < self.segments_max() {
                match self.add_segment_file().await {
                    Ok(()) => continue,
                    Err(e) if e.status == Status::NoSpace => *log.full.borrow_mut() = Some(e),
                    Err(e) => return Err(e),
                }
            }
            let full = log.full.borrow().clone();
            if let Some(e) = full.filter(|_| !self.checkpoint_busy.get()) {
                if last_attempt {
                    self.retry_checkpoint();
                    return Err(e);
                }
                last_attempt = true;
            }
            self.start_checkpoint();
            self.segment_or_end(keep).await;
        };
        log.on_reserve.set(log.free.borrow().len() < RESERVE_SEGMENTS);
        self.begin_segment(index, file).await
    }

    /// Waits until a segment is free or the running checkpoint has ended (it frees what it can before).
    async fn segment_or_end(&self, keep: usize) {
        let ready = || {
            self.log.free.borrow().len() > keep
                || self.failed.borrow().is_some()
                || !self.checkpoint_busy.get()
        };
        self.log.space.wait(|| ready().then_some(())).await;
    }

    /// Writes the header of the next segment; batches go there from now on.
    pub async fn begin_segment(&self, index: u32, file: File) -> Result<()> {
        let log = &self.log;
        let seq = log.current.get() + 1;
        let durable_lsn = self.flush.durable.get();
        let head = SegmentHead {
            store: self.superblock.borrow().store,
            seq,
            incarnation: self.superblock.borrow().incarnation,
            first_lsn: log.next_lsn.get(),
            durable_lsn,
            prev_crc: log.prev_crc.get(),
        };
        let mut block = self.rt.alloc(BLOCK);
        block.copy_from_slice(&head.encode());
        file.write(vec![block.freeze()], 0)
            .await
            .map_err(|e| self.poison("write to the log", &e))?;
        let last_lsn = log.next_lsn.get() - 1;
        log.segments.borrow_mut().insert(seq, Segment { file, index, last_lsn });
        self.flush.dirty_segments.borrow_mut().insert(seq);
        log.current.set(seq);
        log.block.set(1);
        self.flush.told.set(durable_lsn);
        Ok(())
    }

    /// Segments that the checkpoint at `lsn` covers may go, once nobody reads them; not those that chunks refer to.
    pub fn retire_segments(&self, before: u64, lsn: u64, in_use: &BTreeSet<u64>) {
        let epoch = self.epochs.now();
        let segments = self.log.segments.borrow();
        let old: Vec<u64> = segments
            .range(..before)
            .filter(|(seq, s)| s.last_lsn <= lsn && !in_use.contains(seq))
            .map(|(seq, _)| *seq)
            .collect();
        drop(segments);
        let places = old.into_iter().map(RetiredPlace::Segment);
        self.retired.borrow_mut().retire(lsn, epoch, places);
        self.reap();
    }

    /// Bytes that a recovery would read.
    pub fn log_bytes(&self) -> u64 {
        self.log.segments.borrow().len() as u64 * self.config.log_segment_bytes
    }
}

/// Turns places relative to a batch's payload into places in the log.
pub(crate) fn locate(record: &mut Record, in_segment: u64, base: u32) {
    if let Record::Stage { delta, .. } = record {
        for e in &mut delta.extents {
            if let Loc::Log { segment, block } = &mut e.loc {
                *segment = in_segment;
                *block = block.saturating_add(base);
            }
        }
    }
}

impl Inner {
    /// Resolves when no record waits for the log.
    pub async fn drained(&self) {
        while self.log.running.get() {
            self.rt.yield_now().await;
        }
    }
}
