//! Copying from file to file on the storage nodes: what exists of the source becomes writes there, what does not becomes holes.
//!
//! Pieces need not be aligned: each is a read of one chunk and a write of one chunk, and their checksums are made where the bytes are. Must never: overlap
//! source and destination in one file.

use crate::core::Core;
use crate::file::{OpenFile, Rights};
use crate::sparse::Chunks;
use crate::write::{CUTS_MAX, Change, Source, apply};
use crate::zero;
use glowfs_rt::sync::join_all;
use glowfs_types::wire::data::update;
use glowfs_types::wire::sparse::EXTENT_BLOCK_BYTES;
use glowfs_types::{Error, Result, Status, TruncateEpoch};
use std::cell::Cell;
use std::rc::Rc;

/// The greatest piece, in bytes.
const PIECE: u64 = 4 << 20;
/// Pieces on their way at once.
const PARALLEL: usize = 8;

/// What is to be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Where it begins in the source,
    pub from: u64,
    /// and in the destination.
    pub to: u64,
    /// Bytes; not behind the end of the source.
    pub len: u64,
    /// How long the destination is: behind that are no bytes that a hole would have to make zeros.
    pub to_len: u64,
}

/// Copies; answers whether it left holes in the destination.
pub(crate) async fn copy(
    core: &Rc<Core>,
    source: &Rc<OpenFile>,
    file: &Rc<OpenFile>,
    span: Span,
) -> Result<bool> {
    if span.len == 0 {
        return Ok(false);
    }
    let mut cuts = 0;
    loop {
        let epoch = file.epoch();
        match copy_under(core, source, file, span, epoch).await {
            // As with a write of several pieces: all of it comes after the truncate.
            Err(e) if e.status == Status::Stale && file.epoch() != epoch && cuts < CUTS_MAX => {
                cuts += 1;
            }
            done => {
                return done.inspect(|_| file.wrote(epoch, span.to + span.len));
            }
        }
    }
}

/// The same, all of it under one truncate epoch of the destination.
async fn copy_under(
    core: &Rc<Core>,
    source: &Rc<OpenFile>,
    file: &Rc<OpenFile>,
    span: Span,
    epoch: TruncateEpoch,
) -> Result<bool> {
    if source.data() == file.data()
        && span.from < span.to.saturating_add(span.len)
        && span.to < span.from.saturating_add(span.len)
    {
        let e = "source and destination of a copy overlap";
        return Err(Error::new(Status::InvalidArgument, e));
    }
    let chunk = u64::from(source.layout().chunk_bytes);
    let end = span.from + span.len;
    let mut chunks = Chunks::new(source, span.from / chunk, (end - 1) / chunk).await?;
    let (mut at, mut holes) = (span.from, false);
    let mut pieces = Vec::new();
    while at < end {
        let next = chunks.next().await?.filter(|c| c.index.saturating_mul(chunk) < end);
        let runs: Vec<(u64, u64)> = match &next {
            Some(c) => {
                let base = c.index.saturating_mul(chunk);
                let place = |n: u32| base.saturating_add(u64::from(n) * EXTENT_BLOCK_BYTES);
                c.runs
                    .iter()
                    .map(|(first, n)| (place(*first), place(first.saturating_add(*n))))
                    .collect()
            }
            None => vec![(end, end)],
        };
        for (begin, stop) in runs {
            let (begin, stop) = (begin.clamp(at, end), stop.clamp(at, end));
            if begin > at {
                holes = true;
                gap(core, file, &span, (at, begin), epoch).await?;
            }
            pieces.extend(split(source, file, &span, begin, stop));
            at = stop.max(begin);
        }
        if pieces.len() >= PARALLEL || next.is_none() {
            send(core, source, file, &mut pieces, epoch).await?;
        }
        if next.is_none() {
            break;
        }
    }
    send(core, source, file, &mut pieces, epoch).await?;
    Ok(holes)
}

/// `[begin, end)` of the source is a hole: so is its place in the destination.
async fn gap(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    span: &Span,
    (begin, end): (u64, u64),
    epoch: TruncateEpoch,
) -> Result<()> {
    let place = |at: u64| (span.to + (at - span.from)).min(span.to_len);
    let (from, to) = (place(begin), place(end));
    if from < to { zero::zero(core, file, from, to - from, Some(epoch)).await } else { Ok(()) }
}

/// One read of one chunk, and one write of one chunk.
struct Piece {
    from: u64,
    to: u64,
    len: u64,
}

fn split(source: &OpenFile, file: &OpenFile, span: &Span, begin: u64, end: u64) -> Vec<Piece> {
    let (theirs, ours) =
        (u64::from(source.layout().chunk_bytes), u64::from(file.layout().chunk_bytes));
    let (mut at, mut out) = (begin, Vec::new());
    while at < end {
        let to = span.to + (at - span.from);
        let len = (end - at).min(theirs - at % theirs).min(ours - to % ours).min(PIECE);
        out.push(Piece { from: at, to, len });
        at += len;
    }
    out
}

async fn send(
    core: &Rc<Core>,
    source: &Rc<OpenFile>,
    file: &Rc<OpenFile>,
    pieces: &mut Vec<Piece>,
    epoch: TruncateEpoch,
) -> Result<()> {
    let (theirs, layout) = (u64::from(source.layout().chunk_bytes), file.layout());
    let ours = u64::from(layout.chunk_bytes);
    for some in std::mem::take(pieces).chunks(PARALLEL) {
        let work = some.iter().map(async |p| {
            let change = Change {
                kind: update::WRITE,
                layout,
                volume: file.volume(),
                index: p.to / ours,
                offset: (p.to % ours) as u32,
                len: p.len as u32,
                payload: None,
                crcs: Vec::new(),
                source: Some(Source {
                    file: source.clone(),
                    index: p.from / theirs,
                    offset: (p.from % theirs) as u32,
                    asked: Cell::new(0),
                }),
                under: Some(epoch),
            };
            apply(core, &Rights::File(file.clone()), &change).await.map(|_| ())
        });
        join_all(work.collect::<Vec<_>>()).await.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}
