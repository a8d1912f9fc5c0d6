//! READ: pieces of chunks, straight into the caller's memory.
//!
//! What has waited for its turn at the disk until its caller waits no more is not read: a slow disk must not work on what nobody wants.

use crate::admission::{Admitted, Share};
use crate::behind::{Class, Kind};
use crate::node::Node;
use crate::repair::Wrong;
use crate::target::Target;
use glowfs_craq::{Event, Ticket};
use glowfs_net::{Incoming, Reply};
use glowfs_rt::sync::{join_all, oneshot};
use glowfs_rt::{BufMut, Duration, Instant};
use glowfs_types::capability::rights;
use glowfs_types::wire::data::{Read, ReadOp, ReadResult};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, Error, Result, Status};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// What a READ asks for.
enum Pieces {
    /// What most ask for: one piece at the beginning of the buffer, which needs no lists.
    One(ReadOp, Option<Admitted>),
    /// With what the last one of each disk gives back.
    Many(Vec<(ReadOp, Option<Rc<Admitted>>)>),
}

impl Node {
    /// A READ. Nothing of it waits here; the work is spawned, in a task as small as it can be: a task is copied to where it lives.
    pub(crate) fn read(self: &Rc<Self>, mut incoming: Incoming) {
        let began = self.rt.turn_began();
        let pieces = match self.begin_read(&incoming) {
            Ok(pieces) => pieces,
            Err(e) => return self.end_read(incoming, began, Err(e)),
        };
        let node = self.clone();
        match pieces {
            Pieces::One(op, admitted) => self.rt.spawn_detached(async move {
                let result = node.read_one(op, &mut incoming).await;
                drop(admitted);
                node.end_read(incoming, began, result);
            }),
            Pieces::Many(ops) => self.rt.spawn_detached(async move {
                let result = node.read_many(ops, &mut incoming).await;
                node.end_read(incoming, began, result);
            }),
        }
    }

    /// Checks a READ and takes it in.
    fn begin_read(&self, incoming: &Incoming) -> Result<Pieces> {
        self.check_lease()?;
        let room = u32::try_from(incoming.reply_room()).unwrap_or(u32::MAX);
        let read = Read::parse(incoming.body(), room)?;
        for op in read.ops {
            let chunk = ChunkId::from(op.chunk);
            let what = (chunk.volume, chunk.data);
            self.check_capability(incoming, &read.head.capability, what, rights::READ)?;
        }
        Ok(match read.ops {
            [op] if op.at.get() == 0 && op.len.get() > 0 => Pieces::One(*op, self.admit_one(op)?),
            ops => Pieces::Many(self.admit_many(ops)?),
        })
    }

    /// What is asked of a target that is not here waits for nothing.
    fn admit_one(&self, op: &ReadOp) -> Result<Option<Admitted>> {
        let targets = self.targets.borrow();
        let target = targets.get(&op.target.get().into());
        target.map(|t| t.share.admit(op.len.get().into())).transpose()
    }

    /// The pieces on one disk are one request to it: they wait for that disk only.
    fn admit_many(&self, ops: &[ReadOp]) -> Result<Vec<(ReadOp, Option<Rc<Admitted>>)>> {
        let targets = self.targets.borrow();
        let share = |op: &ReadOp| targets.get(&op.target.get().into()).map(|t| &t.share);
        let mut disks: Vec<(&Rc<Share>, u64)> = Vec::new();
        for op in ops {
            let Some(share) = share(op) else { continue };
            let bytes = u64::from(op.len.get());
            match disks.iter_mut().find(|(s, _)| Rc::ptr_eq(s, share)) {
                Some((_, total)) => *total += bytes,
                None => disks.push((share, bytes)),
            }
        }
        let mut admitted = Vec::with_capacity(disks.len());
        for (share, bytes) in disks {
            admitted.push((share, Rc::new(share.admit(bytes)?)));
        }
        let of = |op| {
            let share = share(op)?;
            admitted.iter().find(|(s, _)| Rc::ptr_eq(s, share)).map(|(_, a)| a.clone())
        };
        Ok(ops.iter().map(|op| (*op, of(op))).collect())
    }

    fn end_read(&self, incoming: Incoming, began: Instant, result: Result<Reply>) {
        if result.as_ref().is_err_and(|e| e.status == Status::Overloaded) {
            self.metrics.overloaded.inc();
        }
        let now = self.rt.turn_began();
        if let Ok(reply) = &result {
            let bytes = reply.bulk.as_ref().map_or(0, |b| b.len()) as u64;
            self.behind.borrow_mut().served(Class::new(Kind::Read, bytes), began, now);
        }
        let took = now.since(began);
        self.metrics.read_seconds.record(took.as_nanos() as u64);
        incoming.reply(result);
    }

    async fn read_one(self: &Rc<Self>, op: ReadOp, incoming: &mut Incoming) -> Result<Reply> {
        let mut piece = incoming.reply_buffer()?;
        piece.truncate(op.len.get() as usize);
        let (result, piece) = self.read_op(op, piece, incoming.deadline()).await;
        self.check_answer()?;
        Ok(Reply { body: result.as_bytes().to_vec(), bulk: Some(piece) })
    }

    async fn read_many(
        self: &Rc<Self>,
        admitted: Vec<(ReadOp, Option<Rc<Admitted>>)>,
        incoming: &mut Incoming,
    ) -> Result<Reply> {
        let (ops, mut admitted): (Vec<ReadOp>, Vec<_>) = admitted.into_iter().unzip();
        let mut order: Vec<usize> = (0..ops.len()).collect();
        order.sort_by_key(|&i| (ops[i].at.get(), ops[i].len.get()));
        let end = ops.iter().map(|op| op.at.get() + op.len.get()).max().unwrap_or(0);
        let mut rest = if end == 0 { self.rt.alloc(0) } else { incoming.reply_buffer()? };
        // The buffer is cut into the pieces, so that each is filled by one read; what lies between is zeroed, since it may be
        // memory that somebody else used before.
        let by = incoming.deadline();
        let mut work = Vec::with_capacity(ops.len());
        let mut gaps = Vec::new();
        let mut at = 0;
        for &i in &order {
            let op = ops[i];
            let Some(skip) = op.at.get().checked_sub(at) else {
                return Err(Error::new(Status::BadMessage, "read: pieces overlap in the buffer"));
            };
            let mut gap = rest.split_to(skip as usize);
            gap.fill(0);
            gaps.push(gap);
            let piece = rest.split_to(op.len.get() as usize);
            at = op.at.get() + op.len.get();
            let admitted = admitted[i].take();
            work.push(async move {
                let read = self.read_op(op, piece, by).await;
                drop(admitted);
                read
            });
        }
        let done = join_all(work).await;
        self.check_answer()?;
        let mut results = vec![ReadResult::default(); ops.len()];
        let mut whole: Option<BufMut> = None;
        let mut join = |part: BufMut| -> Result<()> {
            match &mut whole {
                None => whole = Some(part),
                Some(w) => w.unsplit(part).map_err(|_| {
                    Error::new(Status::Internal, "the pieces of a read buffer do not join")
                })?,
            }
            Ok(())
        };
        for ((i, gap), (result, piece)) in order.into_iter().zip(gaps).zip(done) {
            results[i] = result;
            join(gap)?;
            join(piece)?;
        }
        let bulk = whole.filter(|_| end > 0);
        Ok(Reply { body: results.as_bytes().to_vec(), bulk })
    }

    /// One piece, if its turn at the disk comes by then: its result, and its part of the buffer, in which every byte is either data or zero.
    pub(crate) async fn read_op(
        self: &Rc<Self>,
        op: ReadOp,
        piece: BufMut,
        by: Instant,
    ) -> (ReadResult, BufMut) {
        let target = match self.target(op.target.get().into()) {
            Ok(t) => t,
            Err(e) => return failed(e.status, piece),
        };
        let chunk = ChunkId::from(op.chunk);
        let version = ChainVersion(op.chain_version.get());
        if let Err(status) = self.may_read(&target, version, chunk).await {
            self.metrics.read_errors.inc();
            return failed(status, piece);
        }
        let (outcome, piece) =
            target.store.read_by(target.id, chunk, op.offset.get(), piece, by).await;
        match outcome {
            Ok(found) => {
                // Of a version that may not be shown yet.
                let read = (chunk, found.version);
                if let Err(status) = self.may_tell(&target, version, read, op.len.get()).await {
                    self.metrics.read_errors.inc();
                    return failed(status, piece);
                }
                self.metrics.reads.inc();
                self.metrics.read_bytes.add(u64::from(op.len.get()));
                let result = ReadResult {
                    len: found.len.into(),
                    version: found.version.0.into(),
                    crc: found.crc.into(),
                    chain_version: version.0.into(),
                    ..ReadResult::default()
                };
                (result, piece)
            }
            Err(e) => failed(Box::pin(self.read_failed(&target, &op, e)).await, piece),
        }
    }

    /// The store could not read a piece: what the caller is told.
    async fn read_failed(self: &Rc<Self>, target: &Rc<Target>, op: &ReadOp, e: Error) -> Status {
        let chunk = ChunkId::from(op.chunk);
        self.metrics.read_errors.inc();
        if e.status == Status::TimedOut {
            tracing::debug!(target = %target.id, %chunk, error = %e, "nobody waits for a read any more");
            return e.status;
        }
        tracing::warn!(target = %target.id, %chunk, error = %e, "read failed");
        if !matches!(e.status, Status::Corrupt | Status::DiskFailed) {
            return e.status;
        }
        target.repair_soon(chunk, Wrong::Damaged);
        let lost = target.has_lost(self, chunk, op.offset.get(), op.len.get()).await;
        if lost { Status::Lost } else { e.status }
    }

    /// Waits, bounded, until the chunk has no pending version.
    pub(crate) async fn may_read(
        &self,
        target: &Rc<Target>,
        version: ChainVersion,
        chunk: ChunkId,
    ) -> Result<(), Status> {
        if target.store.failure().is_some() {
            return Err(Status::NotServing);
        }
        let at_once = target.replica.borrow().can_read(version, chunk);
        if at_once == Ok(true) {
            return Ok(());
        }
        // What is rare stands apart: it would make the tasks of all reads larger.
        Box::pin(self.may_read_later(target, version, chunk)).await
    }

    async fn may_read_later(
        &self,
        target: &Rc<Target>,
        version: ChainVersion,
        chunk: ChunkId,
    ) -> Result<(), Status> {
        let read = |ticket| Event::Read { ticket, chain_version: version, chunk };
        self.wait_for_core(target, chunk, read).await
    }

    /// Waits, bounded, until that version, which was read under that chain version, may be told. Who waits holds its bytes meanwhile.
    pub(crate) async fn may_tell(
        &self,
        target: &Rc<Target>,
        chain_version: ChainVersion,
        (chunk, version): (ChunkId, ChunkVersion),
        bytes: u32,
    ) -> Result<(), Status> {
        let at_once = target.replica.borrow().may_tell(chain_version, chunk, version);
        if at_once? {
            return Ok(());
        }
        self.metrics.reads_unvouched.inc();
        let tell = move |ticket| Event::Tell { ticket, chain_version, chunk, version };
        Box::pin(async move {
            // Where many wait already, the head can tell at once.
            let _room = target.share.wait_for_others(bytes.into()).ok_or(Status::Pending)?;
            self.wait_for_core(target, chunk, tell).await
        })
        .await
    }

    async fn wait_for_core(
        &self,
        target: &Rc<Target>,
        chunk: ChunkId,
        event: impl FnOnce(Ticket) -> Event,
    ) -> Result<(), Status> {
        let ticket = target.ticket();
        let (waiting, woken) = oneshot();
        target.reads.borrow_mut().insert(ticket, waiting);
        target.feed(event(ticket));
        let mut woken = std::pin::pin!(woken);
        let bound = Duration::from_millis(self.config.read_wait_ms);
        if let Ok(result) = self.rt.timeout(bound, woken.as_mut()).await {
            return result.unwrap_or(Err(Status::ShuttingDown));
        }
        target.feed(Event::ReadExpired(ticket, chunk));
        // The core refused it just now, or had let it go on in the same moment.
        let late = self.rt.timeout(Duration::ZERO, woken).await;
        target.reads.borrow_mut().remove(&ticket);
        match late {
            Ok(Ok(result)) => result,
            _ => Err(Status::Pending),
        }
    }
}

fn failed(status: Status, mut piece: BufMut) -> (ReadResult, BufMut) {
    piece.fill(0);
    (ReadResult { status: status.code().into(), ..ReadResult::default() }, piece)
}
