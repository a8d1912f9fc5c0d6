//! Updates of a chunk: checks, data into the log or fresh slots, the record.
//!
//! Guarantees: of one chunk records enter the log in the order in which their updates came, however long each takes to write its data; an update whose
//! predecessor failed is refused (`VersionGap`) and leaves nothing. What does not fit (version, size, checksums, window) is refused before anything is
//! written. Must never: write over bytes that a version has which can still be read (an update goes to the log or to fresh slots), or make a record that
//! the next start would refuse.

use crate::alloc::{Taken, corrupt};
use crate::api::{PENDING_MAX, SMALL_WRITE_BYTES, StageKind, StageRequest};
use crate::extents::{Extent, Loc};
use crate::format::BLOCK;
use crate::gate::{Gate, Ticket};
use crate::record::{Delta, Record};
use crate::slots::{bytes_of, is_chunk_size};
use crate::state::Inner;
use glowfs_rt::{Buf, Instant};
use glowfs_types::checksum::{block_count, crc32c, verify_pieces};
use glowfs_types::{ChunkId, ChunkVersion, Error, Result, Status, TargetId};
use std::rc::Rc;

/// The blocks of an update, ready to be written.
struct Body {
    first: u32,
    /// Aligned memory, whole blocks.
    bufs: Vec<Buf>,
    crcs: Vec<u32>,
}

impl Body {
    fn none() -> Self {
        Self { first: 0, bufs: Vec::new(), crcs: Vec::new() }
    }
}

/// What the newest version looks like when an update begins.
#[derive(Clone, Copy)]
struct Newest {
    version: ChunkVersion,
    committed: ChunkVersion,
    len: u32,
    window: usize,
    /// It is removed or was never here, and nothing is pending.
    gone: bool,
    chunk_bytes: u32,
    /// One of those under way failed ([`Gate::is_broken`]).
    broken: bool,
}

impl Inner {
    /// What is stored, whatever is under way.
    fn stored(&self, target: TargetId, id: ChunkId) -> Result<Newest> {
        let targets = self.targets.borrow();
        let t = targets.get(&target).ok_or_else(|| Self::no_target(target))?;
        Ok(match t.chunks.get(&id) {
            Some(c) => Newest {
                version: c.newest(),
                committed: c.committed,
                len: c.newest_len(),
                window: c.pending.len(),
                gone: c.removed && c.pending.is_empty(),
                chunk_bytes: c.size_for_next(),
                broken: false,
            },
            None => Newest {
                version: ChunkVersion(0),
                committed: ChunkVersion(0),
                len: 0,
                window: 0,
                gone: true,
                chunk_bytes: 0,
                broken: false,
            },
        })
    }

    /// What there is with all that is under way.
    fn newest(&self, target: TargetId, id: ChunkId) -> Result<Newest> {
        let mut n = self.stored(target, id)?;
        if let Some(g) = self.gate(target, id) {
            n.version = n.version.max(g.newest.get());
            n.gone &= g.in_flight() == 0;
            n.len = g.len.get();
            n.chunk_bytes = g.chunk_bytes.get();
            n.window += g.in_flight();
            n.broken = g.is_broken();
        }
        Ok(n)
    }

    pub async fn stage(self: &Rc<Self>, target: TargetId, mut req: StageRequest) -> Result<()> {
        self.check_open()?;
        let mut newest = self.newest(target, req.chunk)?;
        if newest.broken {
            newest = self.after_failed(target, &req)?;
        }
        let len = check(&req, newest)?;
        if let Some(e) = &*self.log.full.borrow()
            && matches!(req.kind, StageKind::Write | StageKind::Replace)
        {
            self.retry_checkpoint();
            return Err(e.clone());
        }
        let offset = if req.kind == StageKind::Write { req.offset } else { 0 };
        let verified = verify_pieces(offset, &req.payload, req.crcs.iter().copied());
        let known = req.damaged && damage_is_marked(&req);
        if !verified && !known {
            return Err(corrupt(format!(
                "chunk {}: the payload does not match its checksums; send it again",
                req.chunk
            )));
        }
        let key = (target, req.chunk);
        let ticket = Ticket::draw(self, key, Gate::default);
        ticket.gate.newest.set(if overrides(&req) {
            req.version
        } else {
            req.version.max(newest.version)
        });
        ticket.gate.len.set(len);
        let removes = req.kind == StageKind::Remove;
        ticket.gate.chunk_bytes.set(if removes { 0 } else { req.chunk_bytes });
        let flush = req.flush;
        let merges = needs_merge(&req, newest.len);
        let lsn = self.stage_in_order(ticket, target, &mut req, len, merges).await?;
        if flush {
            Box::pin(self.flush_to(lsn)).await?;
        }
        Ok(())
    }

    /// What an update finds that comes after one that failed. Those behind that one may still be writing their data, for nothing: what follows what is stored (that one, once more) has its turn
    /// when they have ended.
    fn after_failed(&self, target: TargetId, req: &StageRequest) -> Result<Newest> {
        // One that nobody waited for any more may have left it.
        self.sweep_gate(target, req.chunk);
        let stored = self.stored(target, req.chunk)?;
        if self.gate(target, req.chunk).is_some() {
            check(req, stored)?;
            let e = "updates behind one that failed have not ended; retry after a pause";
            return Err(Error::new(Status::Overloaded, format!("chunk {}: {e}", req.chunk)));
        }
        Ok(stored)
    }

    async fn stage_in_order(
        self: &Rc<Self>,
        ticket: Ticket,
        target: TargetId,
        req: &mut StageRequest,
        len: u32,
        merges: bool,
    ) -> Result<u64> {
        let (chunk, version) = (req.chunk, req.version);
        let gap = || {
            Error::new(
                Status::VersionGap,
                format!("chunk {chunk}: an update before version {version} failed"),
            )
        };
        // What a small write within whole blocks does not need stands apart: this is a part of the task of each update, and copied with it.
        // The log's own blocks always match.
        let small = req.payload.len() <= SMALL_WRITE_BYTES as usize && !req.damaged;
        let body;
        let mut taken = None;
        let mut extents = Vec::new();
        if merges {
            if !ticket.turn().await {
                return Err(gap());
            }
            ticket.applied().await;
            body = Box::pin(self.merged_body(target, req)).await?;
            if !small {
                taken = Some(Box::pin(self.write_slots(&body, &mut extents)).await?);
            }
        } else {
            body = self.plain_body(req);
            if !small {
                taken = Some(Box::pin(self.write_slots(&body, &mut extents)).await?);
            }
            if req.damaged {
                // No start could verify it: a lost block looks like one that was never written. So what is sound of it must not go with the power.
                Box::pin(self.flush_all()).await?;
            }
            if !ticket.turn().await {
                return Err(gap());
            }
        }
        let mut payload = Vec::new();
        if small && !body.crcs.is_empty() {
            let loc = Loc::Log { segment: 0, block: 0 };
            extents.push(Extent { block: body.first, count: body.crcs.len() as u32, loc });
            payload = body.bufs;
        }
        let delta = Delta {
            version: req.version,
            kind: req.kind,
            len,
            chunk_bytes: req.chunk_bytes,
            channel: req.channel.take(),
            extents,
            crcs: body.crcs,
            damaged: req.damaged,
        };
        let record = Record::Stage { chunk: req.chunk, commit: req.commit, delta };
        let queued = self.enqueue(target, record, payload, Some(ticket.gate.clone()), taken)?;
        ticket.enter();
        let result = queued.written().await;
        self.sweep_gate(target, req.chunk);
        result
    }

    /// The blocks of an update that needs nothing of what was there. Takes its checksums.
    fn plain_body(&self, req: &mut StageRequest) -> Body {
        let n = req.payload.len();
        if n == 0 {
            return Body::none();
        }
        let first = if req.kind == StageKind::Write { req.offset / BLOCK as u32 } else { 0 };
        let start = if req.kind == StageKind::Write { req.offset as usize % BLOCK } else { 0 };
        let crcs = std::mem::take(&mut req.crcs);
        let end = if n.is_multiple_of(BLOCK) { None } else { crcs.last().copied() };
        let mut body = self.lay_out(first, start, &req.payload, crcs, None, None);
        if req.damaged
            && let Some(end) = end
            && crc32c(&req.payload[n - n % BLOCK..]) != end
        {
            // The last block is lost: its checksum is not that of the zeros in its place.
            body.crcs[n / BLOCK] = end;
        }
        body
    }

    /// The blocks of an update whose ends share blocks with what was there. Takes its checksums.
    async fn merged_body(
        self: &Rc<Self>,
        target: TargetId,
        req: &mut StageRequest,
    ) -> Result<Body> {
        let id = req.chunk;
        let version = self.newest_applied(target, id);
        if req.kind == StageKind::Truncate {
            let old = self.edge_block(target, id, version, req.len / BLOCK as u32).await?;
            let mut block = old;
            block[req.len as usize % BLOCK..].fill(0);
            let crcs = vec![crc32c(&block)];
            return Ok(Body { first: req.len / BLOCK as u32, bufs: vec![block.freeze()], crcs });
        }
        let first = req.offset / BLOCK as u32;
        let start = req.offset as usize % BLOCK;
        let end = start + req.payload.len();
        let last = first + (end.div_ceil(BLOCK) - 1) as u32;
        let head = if start != 0 {
            Some(self.edge_block(target, id, version, first).await?)
        } else {
            None
        };
        let in_head = last == first && head.is_some();
        let tail_needed = !end.is_multiple_of(BLOCK) && !in_head;
        let tail = if tail_needed {
            Some(self.edge_block(target, id, version, last).await?)
        } else {
            None
        };
        let crcs = std::mem::take(&mut req.crcs);
        Ok(self.lay_out(first, start, &req.payload, crcs, head, tail))
    }

    fn newest_applied(&self, target: TargetId, id: ChunkId) -> ChunkVersion {
        let targets = self.targets.borrow();
        targets.get(&target).and_then(|t| t.chunks.get(&id)).map_or(ChunkVersion(0), |c| c.newest())
    }

    async fn edge_block(
        self: &Rc<Self>,
        target: TargetId,
        id: ChunkId,
        version: ChunkVersion,
        block: u32,
    ) -> Result<glowfs_rt::BufMut> {
        let buf = self.rt.alloc(BLOCK);
        let offset = block * BLOCK as u32;
        let (result, buf) =
            self.read_at(target, id, Some(version), offset, buf, Instant::NEVER).await;
        match result {
            Ok(_) => Ok(buf),
            // One place that cannot be read is damage, to be mended from another replica; whether the disk works is found out elsewhere.
            Err(e) if e.status == Status::DiskFailed => Err(corrupt(e.message)),
            Err(e) => Err(e),
        }
    }

    /// Lays the payload out in whole blocks of aligned memory; copies only the ends if the middle is aligned.
    fn lay_out(
        &self,
        first: u32,
        start: usize,
        payload: &Buf,
        crcs: Vec<u32>,
        head: Option<glowfs_rt::BufMut>,
        tail: Option<glowfs_rt::BufMut>,
    ) -> Body {
        let end = start + payload.len();
        let blocks = end.div_ceil(BLOCK);
        // The whole blocks of the payload: [from, to) in payload bytes.
        let from = if start == 0 { 0 } else { (BLOCK - start).min(payload.len()) };
        let to = from + (payload.len() - from) / BLOCK * BLOCK;
        let mut out = Body { first, bufs: Vec::new(), crcs };
        let middle = payload.slice(from..to);
        let aligned = middle.is_empty() || middle.is_aligned();
        let mut head_block = head;
        if start != 0 {
            let block = head_block.get_or_insert_with(|| zeroed(self.rt.alloc(BLOCK)));
            block[start..start + from].copy_from_slice(&payload[..from]);
            out.crcs[0] = crc32c(block);
        }
        let rest = payload.len() - to;
        let tail_block = (rest > 0).then(|| {
            let mut block = tail.unwrap_or_else(|| zeroed(self.rt.alloc(BLOCK)));
            block[..rest].copy_from_slice(&payload[to..]);
            out.crcs[blocks - 1] = crc32c(&block);
            block
        });
        if aligned {
            out.bufs.extend(head_block.map(|b| b.freeze()));
            if !middle.is_empty() {
                out.bufs.push(middle);
            }
            out.bufs.extend(tail_block.map(|b| b.freeze()));
        } else {
            let mut all = self.rt.alloc(blocks * BLOCK);
            let mut at = 0;
            for part in [head_block.as_deref(), Some(&middle[..]), tail_block.as_deref()]
                .into_iter()
                .flatten()
            {
                all[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            out.bufs.push(all.freeze());
        }
        out
    }

    /// Writes the body to fresh slots.
    async fn write_slots(self: &Rc<Self>, body: &Body, extents: &mut Vec<Extent>) -> Result<Taken> {
        let taken = self.take_slots(body.crcs.len() as u32, false).await?;
        let mut block = body.first;
        let mut rest: std::collections::VecDeque<Buf> = body.bufs.iter().cloned().collect();
        for &(class, index, used) in &taken.list {
            let bufs = split_off(&mut rest, used as usize * BLOCK);
            let file = self.block_file(class).await?;
            if let Err(e) = file.write(bufs, u64::from(index) * bytes_of(class)).await {
                if crate::log::is_no_space(&e) {
                    return Err(self.no_space("chunks", &e));
                }
                return Err(self.poison("write of data", &e));
            }
            self.flush.dirty_classes.borrow_mut().insert(class);
            self.count_written(u64::from(used) * BLOCK as u64);
            extents.push(Extent { block, count: used, loc: Loc::Slot { class, index, block: 0 } });
            block += used;
        }
        Ok(taken)
    }

    pub async fn commit(
        self: &Rc<Self>,
        target: TargetId,
        id: ChunkId,
        version: ChunkVersion,
    ) -> Result<()> {
        self.check_open()?;
        let n = self.newest(target, id)?;
        if version <= n.committed {
            return Ok(());
        }
        if version > n.version {
            return Err(Error::new(
                Status::VersionGap,
                format!("chunk {id}: version {version} is not here, the newest is {}", n.version),
            ));
        }
        self.append(target, Record::Commit { chunk: id, version }).await.map(|_| ())
    }

    pub async fn discard(
        self: &Rc<Self>,
        target: TargetId,
        id: ChunkId,
        version: ChunkVersion,
    ) -> Result<()> {
        self.check_open()?;
        self.wait_idle(target, id).await;
        let (before, len, exists) = {
            let targets = self.targets.borrow();
            let t = targets.get(&target).ok_or_else(|| Self::no_target(target))?;
            let Some(c) = t.chunks.get(&id) else { return Ok(()) };
            let kept = c.pending.iter().rev().find(|d| d.version < version);
            (
                kept.map_or(c.committed, |d| d.version),
                c.len_at(ChunkVersion(version.0.saturating_sub(1))),
                c.pending.iter().any(|d| d.version >= version),
            )
        };
        if !exists {
            return Ok(());
        }
        let ticket = Ticket::draw(self, (target, id), Gate::default);
        ticket.gate.newest.set(before);
        ticket.gate.len.set(len);
        // Who comes next must find the pending versions gone.
        let queued = self.enqueue(
            target,
            Record::Discard { chunk: id, version },
            Vec::new(),
            Some(ticket.gate.clone()),
            None,
        )?;
        let result = queued.written().await;
        ticket.enter();
        self.sweep_gate(target, id);
        result.map(|_| ())
    }
}

/// Whether every piece either matches its checksum or is lost.
fn damage_is_marked(req: &StageRequest) -> bool {
    let mut pieces = req.payload.chunks(BLOCK).zip(&req.crcs);
    req.kind == StageKind::Replace
        && pieces.all(|(piece, crc)| crc32c(piece) == *crc || piece.iter().all(|b| *b == 0))
}

fn zeroed(mut b: glowfs_rt::BufMut) -> glowfs_rt::BufMut {
    b.fill(0);
    b
}

/// Takes `n` bytes off the front.
fn split_off(rest: &mut std::collections::VecDeque<Buf>, mut n: usize) -> Vec<Buf> {
    let mut out = Vec::new();
    while n > 0 {
        let Some(b) = rest.pop_front() else { break };
        if b.len() > n {
            out.push(b.slice(0..n));
            rest.push_front(b.slice(n..b.len()));
            n = 0;
        } else {
            n -= b.len();
            out.push(b);
        }
    }
    out
}

/// Whether the ends of the update share blocks with what may be there.
fn needs_merge(req: &StageRequest, len: u32) -> bool {
    match req.kind {
        StageKind::Write => {
            !(req.offset as usize).is_multiple_of(BLOCK)
                || !(req.offset as usize + req.payload.len()).is_multiple_of(BLOCK)
        }
        StageKind::Truncate => req.len < len && !(req.len as usize).is_multiple_of(BLOCK),
        StageKind::Remove | StageKind::Replace => false,
    }
}

/// Whether it is put in force whatever version is there: what a target is brought up to date with may be older than what it has.
fn overrides(req: &StageRequest) -> bool {
    req.commit
        && (req.kind == StageKind::Replace || (req.kind == StageKind::Remove && req.any_version))
}

/// Checks the form of a request against the newest version; the length after it.
fn check(req: &StageRequest, newest: Newest) -> Result<u32> {
    let bad = |what: String| {
        Err(Error::new(Status::InvalidArgument, format!("chunk {}: {what}", req.chunk)))
    };
    if !is_chunk_size(req.chunk_bytes) {
        return bad(format!("chunk size {} is not allowed", req.chunk_bytes));
    }
    let writes = matches!(req.kind, StageKind::Write | StageKind::Replace);
    if !writes && !req.payload.is_empty() {
        return bad("a payload with an update that has none".into());
    }
    if req.kind == StageKind::Write && req.payload.is_empty() {
        return bad("a write of nothing".into());
    }
    let offset = if req.kind == StageKind::Write { req.offset } else { 0 };
    let end = u64::from(offset) + req.payload.len() as u64;
    if end > u64::from(req.chunk_bytes)
        || (req.kind == StageKind::Truncate && req.len > req.chunk_bytes)
    {
        return bad(format!("the update reaches past the chunk size {}", req.chunk_bytes));
    }
    if req.crcs.len() != block_count(offset, req.payload.len() as u32) {
        return bad(format!(
            "{} checksums for {} bytes at {offset}",
            req.crcs.len(),
            req.payload.len()
        ));
    }
    if newest.chunk_bytes != 0
        && newest.chunk_bytes != req.chunk_bytes
        && !matches!(req.kind, StageKind::Replace | StageKind::Remove)
    {
        return bad(format!(
            "chunk size {}, but it was made with {}",
            req.chunk_bytes, newest.chunk_bytes
        ));
    }
    let follows = match req.kind {
        StageKind::Replace if req.commit => req.version.0 > 0,
        StageKind::Remove if req.commit && req.any_version => true,
        StageKind::Replace => req.version > newest.version,
        _ if req.anew && newest.gone => req.version > newest.version,
        _ => req.version == newest.version.next(),
    };
    if !follows {
        return Err(Error::new(
            Status::VersionGap,
            format!(
                "chunk {}: version {} does not follow {}",
                req.chunk, req.version, newest.version
            ),
        ));
    }
    if !req.commit && newest.window >= PENDING_MAX {
        return Err(Error::new(
            Status::Overloaded,
            format!(
                "chunk {}: {PENDING_MAX} versions are pending; retry when they are committed",
                req.chunk
            ),
        ));
    }
    let len = match req.kind {
        StageKind::Write => newest.len.max(end as u32),
        StageKind::Truncate => req.len,
        StageKind::Remove => 0,
        StageKind::Replace => end as u32,
    };
    // A log with such a record would be refused.
    if len > req.chunk_bytes {
        return bad(format!("{len} bytes in a chunk of {}", req.chunk_bytes));
    }
    Ok(len)
}
