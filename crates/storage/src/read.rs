//! READ: pieces of chunks, straight into the caller's memory.

use crate::node::Node;
use crate::repair::Wrong;
use crate::target::Target;
use glowfs_craq::Event;
use glowfs_net::{Incoming, Reply};
use glowfs_rt::sync::{join_all, oneshot};
use glowfs_rt::{BufMut, Duration};
use glowfs_types::capability::rights;
use glowfs_types::wire::data::{Read, ReadOp, ReadResult};
use glowfs_types::{ChainVersion, ChunkId, Error, Result, Status};
use std::rc::Rc;
use zerocopy::IntoBytes;

impl Node {
    /// A READ. Nothing of it waits here; the work is spawned.
    pub(crate) fn read(self: &Rc<Self>, mut incoming: Incoming) {
        let node = self.clone();
        self.rt.spawn_detached(async move {
            let began = node.rt.now();
            let result = node.read_all(&mut incoming).await;
            match &result {
                Err(e) if e.status == Status::Overloaded => node.metrics.overloaded.inc(),
                _ => {}
            }
            node.metrics.read_seconds.record(node.rt.now().since(began).as_nanos() as u64);
            incoming.reply(result);
        });
    }

    async fn read_all(self: &Rc<Self>, incoming: &mut Incoming) -> Result<Reply> {
        self.check_lease()?;
        let room = u32::try_from(incoming.reply_room()).unwrap_or(u32::MAX);
        let ops: Vec<ReadOp> = {
            let read = Read::parse(incoming.body(), room)?;
            for op in read.ops {
                let chunk = ChunkId::from(op.chunk);
                let what = (chunk.volume, chunk.data);
                self.check_capability(incoming, &read.head.capability, what, rights::READ)?;
            }
            read.ops.to_vec()
        };
        let total: u64 = ops.iter().map(|op| u64::from(op.len.get())).sum();
        let _admitted = self.admission.admit(total)?;
        if let [op] = ops[..]
            && op.at.get() == 0
            && op.len.get() > 0
        {
            // What most reads are: one piece, which needs no lists.
            let mut piece = incoming.reply_buffer()?;
            piece.truncate(op.len.get() as usize);
            let (result, piece) = Box::pin(self.clone().read_op(op, piece)).await;
            self.check_answer()?;
            return Ok(Reply { body: result.as_bytes().to_vec(), bulk: Some(piece) });
        }
        let mut order: Vec<usize> = (0..ops.len()).collect();
        order.sort_by_key(|&i| (ops[i].at.get(), ops[i].len.get()));
        let end = ops.iter().map(|op| op.at.get() + op.len.get()).max().unwrap_or(0);
        let mut rest = if end == 0 { self.rt.alloc(0) } else { incoming.reply_buffer()? };
        // The buffer is cut into the pieces, so that each is filled by one read; what lies between is zeroed, since it may be
        // memory that somebody else used before.
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
            work.push(self.clone().read_op(op, piece));
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

    /// One piece: its result, and its part of the buffer, in which every byte is either data or zero.
    pub(crate) async fn read_op(
        self: Rc<Self>,
        op: ReadOp,
        mut piece: BufMut,
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
        let outcome;
        (outcome, piece) = target.store.read(target.id, chunk, op.offset.get(), piece).await;
        match outcome {
            Ok(found) => {
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
            Err(e) => {
                tracing::warn!(target = %target.id, %chunk, error = %e, "read failed");
                self.metrics.read_errors.inc();
                if !matches!(e.status, Status::Corrupt | Status::DiskFailed) {
                    return failed(e.status, piece);
                }
                target.repair_soon(chunk, Wrong::Damaged);
                let lost = target.has_lost(&self, chunk, op.offset.get(), op.len.get()).await;
                failed(if lost { Status::Lost } else { e.status }, piece)
            }
        }
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
        let ticket = target.ticket();
        let (waiting, woken) = oneshot();
        target.reads.borrow_mut().insert(ticket, waiting);
        target.feed(Event::Read { ticket, chain_version: version, chunk });
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
