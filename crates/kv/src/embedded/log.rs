//! The log's writer and flusher.
//!
//! The writer takes all records that wait, as one batch, and writes it at the end of the segment; while it writes, the next
//! batch gathers. The flusher flushes for those who wait for it, or after the bound for background commits. A segment is complete
//! and flushed before its successor exists, so a gap before the last segment is never a torn tail. One flush of the log at a time:
//! of two that are under way together, the system may tell an error to one only, and the other one would answer for what is lost.

use super::format::{
    BATCH_HEADER, BLOCK, BatchHeader, FileHeader, LOG_MAGIC, Op, fold, log_name, read_records,
};
use super::room::{self, Help};
use super::{Inner, State, spare};
use crate::Version;
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::{Buf, Dir, Duration, File, Rt};
use glowfs_types::checksum::crc32c;
use glowfs_types::{Error, Result, Status};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

/// Where the log goes on.
pub struct Tail {
    pub file: File,
    pub offset: u64,
    /// Of the next batch.
    pub sequence: u64,
    /// The header checksum of the batch before it.
    pub chain: u32,
    /// All blocks of the file are written already.
    pub written: bool,
}

/// Bytes as an aligned buffer.
pub fn aligned(rt: &Rt, parts: &[&[u8]]) -> Buf {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut buf = rt.alloc(len.next_multiple_of(BLOCK));
    let mut at = 0;
    for part in parts {
        buf[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    buf[at..].fill(0);
    buf.freeze()
}

/// Takes room for the log from `from` to `to` beforehand, so that flushes need not note new room. Where there is less (false), the file grows as it is written.
pub async fn take_room(file: &File, from: u64, to: u64) -> Result<bool> {
    match file.allocate(from, to.saturating_sub(from).max(BLOCK as u64)).await.map_err(Error::from)
    {
        Err(error) if room::is_lack(&error) => {
            tracing::warn!(%error, bytes = to.saturating_sub(from), "there is no room for all of a segment of the metadata log: it grows as it is written");
            // What was taken all the same is needed elsewhere.
            file.set_len(from).await?;
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

/// Makes a segment with its header, durable under its name. False: it has not got all of its room.
pub async fn create_segment(
    rt: &Rt,
    dir: &Dir,
    header: &FileHeader,
    segment_bytes: u64,
) -> Result<(Tail, bool)> {
    let name = log_name(header.sequence);
    let file = open_fresh(rt, dir, &name).await?;
    file.set_len(0).await?;
    let whole = take_room(&file, 0, segment_bytes).await?;
    file.write(vec![aligned(rt, &[&header.encode(LOG_MAGIC)])], 0).await?;
    // Whatever a flush says that fails, also that there is no room: nobody knows what it left.
    let failed = |e: std::io::Error| {
        Error::new(Status::DiskFailed, format!("flushing a new segment of the metadata log: {e}"))
    };
    file.sync().await.map_err(failed)?;
    dir.sync().await.map_err(failed)?;
    let offset = BLOCK as u64;
    let (sequence, chain) = (header.sequence, header.chain);
    Ok((Tail { file, offset, sequence, chain, written: false }, whole))
}

/// Opens a file that is written anew. Having no descriptor is no fault of the disk, and passes: it waits for one.
pub async fn open_fresh(rt: &Rt, dir: &Dir, name: &str) -> std::io::Result<File> {
    const PAUSE: Duration = Duration::from_millis(100);
    loop {
        match dir.open(name, OpenOptions { create: true, direct: false }).await {
            Err(error) if glowfs_rt::process::lacks_descriptors(&error) => {
                tracing::error!(name, %error, "the metadata engine waits for a descriptor; raise the limit of them, or end connections");
                rt.sleep(PAUSE).await;
            }
            opened => return opened,
        }
    }
}

/// Ranges of versions that were taken back which are remembered: who waits for one of them hears of it at once, and there are seconds between two.
const TAKEN_BACK_MAX: usize = 64;

struct Batch {
    header: BatchHeader,
    payload: Vec<u8>,
}

fn take_batch(inner: &Inner, tail: &Tail) -> Option<Batch> {
    let mut s = inner.state.borrow_mut();
    let first = s.first_pending.take()?;
    let payload = std::mem::take(&mut s.records.bytes);
    let header = BatchHeader {
        payload: payload.len() as u32,
        sequence: tail.sequence,
        first,
        last: s.store.version(),
        flushed: s.flushed_sequence,
        chain: tail.chain,
        payload_crc: crc32c(&payload),
        engine: fold(inner.engine),
        crc: 0,
    };
    Some(Batch { header, payload })
}

/// Writes batches until the engine closes or fails.
pub async fn write_loop(inner: Rc<Inner>, mut tail: Tail) {
    loop {
        let busy =
            |s: &State| s.first_pending.is_some() || s.rotate || s.closing || s.failed.is_some();
        inner.work.until(|| busy(&inner.state.borrow())).await;
        let (rotate, pending, failed, closing) = {
            let s = inner.state.borrow();
            (s.rotate, s.first_pending.is_some(), s.failed.is_some(), s.closing)
        };
        if failed || (closing && !pending) {
            break;
        }
        if let Err(e) = step(&inner, &mut tail, rotate).await {
            inner.fail(e.context("writing the metadata log"));
        }
    }
    finish(&inner);
}

/// A background loop has ended.
pub fn finish(inner: &Inner) {
    inner.state.borrow_mut().closed_tasks += 1;
    inner.progress.wake();
}

/// Begins a segment, if there is room for it; else what is waiting is taken back.
async fn begin_segment(inner: &Inner, tail: &mut Tail) -> Result<bool> {
    loop {
        match rotate_segment(inner, tail).await {
            Err(e) if room::is_lack(&e) => {
                // A flush that failed for want of room is no lack of room.
                inner.sound()?;
                if room::make(inner, 2 * BLOCK as u64, true).await? == Help::None {
                    take_back(inner, tail, &[], &e).await?;
                    return Ok(false);
                }
            }
            rotated => return rotated.map(|()| true),
        }
    }
}

async fn step(inner: &Inner, tail: &mut Tail, rotate: bool) -> Result<()> {
    let full = tail.offset >= inner.config.segment_bytes;
    // Where flushes cost more, and there is a segment in which they do not.
    let slow =
        !tail.written && tail.offset > BLOCK as u64 && !inner.state.borrow().spares.is_empty();
    if (rotate || full || slow) && !begin_segment(inner, tail).await? {
        return Ok(());
    }
    let Some(batch) = take_batch(inner, tail) else { return Ok(()) };
    let head = batch.header.encode();
    let crc = super::format::u32_at(&head, BATCH_HEADER - 4);
    let buf = aligned(&inner.rt, &[&head, &batch.payload]);
    let bytes = buf.len() as u64;
    // What has found no room has changed nothing that is on the disk: the same bytes go to the same place.
    while let Err(e) = tail.file.write(vec![buf.clone()], tail.offset).await.map_err(Error::from) {
        if !room::is_lack(&e) {
            return Err(e);
        }
        match room::make(inner, bytes, false).await? {
            Help::Room => {}
            // A batch says nothing of its segment.
            Help::Rotate => match rotate_segment(inner, tail).await {
                Err(e) if room::is_lack(&e) => {
                    inner.sound()?;
                    no_segment(inner, &e);
                }
                rotated => rotated?,
            },
            Help::None => return take_back(inner, tail, &batch.payload, &e).await,
        }
    }
    tail.offset += bytes;
    tail.sequence += 1;
    tail.chain = crc;
    {
        let mut s = inner.state.borrow_mut();
        s.written = batch.header.last;
        s.written_sequence = batch.header.sequence;
        s.stats.batches += 1;
        s.stats.log_bytes += bytes;
        // Give the vector's room back for the next batch.
        if s.records.bytes.capacity() == 0 {
            let mut payload = batch.payload;
            payload.clear();
            s.records.bytes = payload;
        }
    }
    inner.progress.wake();
    inner.flush_work.wake();
    Ok(())
}

/// A checkpoint that asks for a fresh segment gets none.
fn no_segment(inner: &Inner, why: &Error) {
    {
        let mut s = inner.state.borrow_mut();
        if std::mem::take(&mut s.rotate) {
            s.rotated = Some(Err(why.clone()));
        }
    }
    inner.progress.wake();
}

/// There is no room for a batch, nor for those that wait behind it: none of their commits happened, for certain, before anybody hears that.
async fn take_back(inner: &Inner, tail: &mut Tail, batch: &[u8], why: &Error) -> Result<()> {
    no_segment(inner, why);
    if batch.is_empty() && inner.state.borrow().first_pending.is_none() {
        return Ok(());
    }
    room::begin_refusing(inner, why);
    // A part of the batch may be there, on some file systems all but its padding.
    tail.written = false;
    tail.file.set_len(tail.offset).await?;
    flush(inner, &tail.file).await?;
    let written = inner.state.borrow().written;
    flushed(inner, written, tail.sequence - 1);
    {
        let mut s = inner.state.borrow_mut();
        let s = &mut *s;
        let waiting = std::mem::take(&mut s.records.bytes);
        s.first_pending = None;
        let mut put: Vec<&[u8]> = Vec::new();
        for payload in [batch, waiting.as_slice()] {
            read_records(payload, |_, op| {
                if let Op::Put(key, _) = op {
                    put.push(key);
                }
            })?;
        }
        let last = s.store.take_back(written, put.into_iter());
        s.wanted.retain(|version| *version <= written);
        if s.taken_back.len() == TAKEN_BACK_MAX {
            s.taken_back.pop_front();
        }
        s.taken_back.push_back((written, last));
        // There is nothing behind it that could be lost.
        s.written = s.store.version();
    }
    inner.progress.wake();
    inner.flush_work.wake();
    Ok(())
}

async fn rotate_segment(inner: &Inner, tail: &mut Tail) -> Result<()> {
    // A segment that another one follows has nothing behind its end. One without a batch goes on.
    if tail.offset > BLOCK as u64 {
        tail.file.set_len(tail.offset).await?;
    }
    flush(inner, &tail.file).await?;
    // Nobody but this task writes, so all of it was there before the flush.
    let written = inner.state.borrow().written;
    flushed(inner, written, tail.sequence - 1);
    let header = FileHeader {
        cluster: inner.config.cluster,
        engine: inner.engine,
        sequence: tail.sequence,
        version: written,
        chain: tail.chain,
    };
    // A segment without a batch yet is as good as a fresh one, and has the same name.
    if tail.offset > BLOCK as u64 {
        let full = tail.offset >= inner.config.segment_bytes;
        let bytes = inner.state.borrow().reserve.segment_bytes(&inner.config);
        let mut made = match spare::promote(inner, &header).await? {
            Some(spare) => Ok((spare, true)),
            None => create_segment(&inner.rt, &inner.dir, &header, bytes).await,
        };
        if made.as_ref().is_err_and(room::is_lack)
            && room::give(inner, 2 * BLOCK as u64, true).await?
        {
            made = create_segment(&inner.rt, &inner.dir, &header, bytes).await;
        }
        match made {
            Ok((new, whole)) => {
                *tail = new;
                // With it, not behind what may still fail: a flush of the segment before says nothing of what is written from now on.
                inner.state.borrow_mut().file = tail.file.clone();
                let checkpoint = inner.state.borrow().rotate;
                if checkpoint && !whole {
                    // The log goes on in it while the checkpoint takes the rest of the reserve.
                    let given = room::give_rest(inner).await?;
                    if given > 0 {
                        take_room(&tail.file, tail.offset, tail.offset + given).await?;
                    }
                }
            }
            // Of one that is full there is no going on.
            Err(e) if room::is_lack(&e) && !full => {
                return stay(inner, tail, &header, e).await;
            }
            Err(e) => return Err(e),
        }
    }
    {
        let mut s = inner.state.borrow_mut();
        s.rotate = false;
        s.rotated = Some(Ok(header));
    }
    inner.progress.wake();
    inner.sound()
}

/// There is no room for the fresh segment that a checkpoint asks for: the log goes on in the one in use. What there is of the other one is
/// gone for certain first, for nothing may follow a segment but what was written behind its end.
async fn stay(inner: &Inner, tail: &mut Tail, header: &FileHeader, why: Error) -> Result<()> {
    match inner.dir.remove(&log_name(header.sequence)).await {
        // It could not even be made.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    inner.dir.sync().await?;
    tail.written = false;
    take_room(&tail.file, tail.offset, inner.config.segment_bytes).await?;
    no_segment(inner, &why);
    inner.sound()
}

/// Flushes a segment when no other flush of the log is under way. Once one has failed, none counts any more.
async fn flush(inner: &Inner, file: &File) -> Result<()> {
    inner.progress.until(|| !inner.state.borrow().flushing).await;
    inner.sound()?;
    inner.state.borrow_mut().flushing = true;
    let result = file.sync().await;
    inner.state.borrow_mut().flushing = false;
    if let Err(e) = result {
        inner.fail(Error::from(e).context("flushing the metadata log"));
    }
    inner.progress.wake();
    inner.sound()
}

/// Flushes for those who wait, and everything else within the bound.
pub async fn flush_loop(inner: Rc<Inner>) {
    loop {
        let dirty = |s: &State| s.written > s.flushed || s.may_end() || s.failed.is_some();
        inner.flush_work.until(|| dirty(&inner.state.borrow())).await;
        let ended = {
            let s = inner.state.borrow();
            s.failed.is_some() || s.may_end()
        };
        if ended {
            break;
        }
        wait_for_reason(&inner).await;
        let (file, version, sequence) = {
            let s = inner.state.borrow();
            (s.file.clone(), s.written, s.written_sequence)
        };
        if flush(&inner, &file).await.is_ok() {
            flushed(&inner, version, sequence);
        }
    }
    finish(&inner);
}

fn flushed(inner: &Inner, version: Version, sequence: u64) {
    {
        let mut s = inner.state.borrow_mut();
        s.flushed = s.flushed.max(version);
        s.flushed_sequence = s.flushed_sequence.max(sequence);
        let flushed = s.flushed;
        if s.wanted.front().is_some_and(|v| *v <= flushed) {
            s.spares.waited();
        }
        while s.wanted.front().is_some_and(|v| *v <= flushed) {
            s.wanted.pop_front();
        }
        s.stats.flushes += 1;
    }
    inner.progress.wake();
}

/// Returns when somebody waits for a flush of something written, or the bound for background commits is over.
async fn wait_for_reason(inner: &Inner) {
    let mut sleep = std::pin::pin!(inner.rt.sleep(inner.config.flush_interval));
    let wanted = || {
        let s = inner.state.borrow();
        s.closing
            || s.failed.is_some()
            || s.wanted.iter().any(|v| *v > s.flushed && *v <= s.written)
    };
    poll_fn(|cx| match inner.flush_work.poll_until(cx, &wanted) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => sleep.as_mut().poll(cx),
    })
    .await;
}
