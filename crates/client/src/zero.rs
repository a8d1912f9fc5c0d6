//! Making a range of a file zeros: whole chunks and the end of one are cut off, so that their space comes back; only what is left is
//! written.

use crate::core::Core;
use crate::file::{OpenFile, Rights};
use crate::sparse::Chunks;
use crate::write::{CUTS_MAX, Change, apply, write};
use glowfs_rt::sync::join_all;
use glowfs_types::layout::Extent;
use glowfs_types::wire::data::update;
use glowfs_types::wire::meta::OfInode;
use glowfs_types::wire::sparse::EXTENT_BLOCK_BYTES;
use glowfs_types::{Error, Layout, Result, Status, TruncateEpoch};
use std::rc::Rc;

/// Chunks worked on at once.
const PARALLEL: usize = 16;
/// The greatest number of chunks that are cut without knowing whether they exist.
const BLIND_MAX: u64 = 4096;
/// Zeros written by one update, in bytes.
const PIECE: u64 = 1 << 20;

/// Makes a range of the file zeros, all of it under one truncate epoch. The range must not reach behind the end that the file has as it is called.
pub(crate) async fn zero_file(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    offset: u64,
    len: u64,
) -> Result<()> {
    let (mut epoch, mut end) = (file.epoch(), offset + len);
    for _ in 0..=CUTS_MAX {
        if offset >= end {
            return Ok(());
        }
        match zero(core, file, offset, end - offset, Some(epoch)).await {
            Err(e) if e.status == Status::Stale && file.epoch() != epoch => {}
            done => return done,
        }
        // The file was cut meanwhile. What is behind its end now is zeros by itself, and to write there would make the file longer.
        let caller = file.access().caller.clone();
        let attr = file.client().getattr(OfInode { caller, inode: file.inode() }).await?.attr;
        file.update_attr(&attr);
        let written = if file.epoch() == attr.epoch { file.len_written() } else { None };
        (epoch, end) = (attr.epoch, end.min(attr.len.max(written.unwrap_or(0))));
    }
    Err(Error::new(Status::Stale, "the file is truncated again and again"))
}

/// See the module. The caller sees to it that the range does not reach behind the end of the file. `under`: as in [`Change::under`].
pub(crate) async fn zero(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    offset: u64,
    len: u64,
    under: Option<TruncateEpoch>,
) -> Result<()> {
    let layout = file.layout();
    let chunk = u64::from(layout.chunk_bytes);
    let last = (offset + len.max(1) - 1) / chunk;
    // Only chunks that exist are touched.
    let mut present = Chunks::new(file, offset / chunk, last).await?;
    let mut all = layout.extents(offset, len);
    let mut blind = false;
    loop {
        let some = if blind {
            all.by_ref().take(PARALLEL).collect()
        } else {
            match next_present(&mut present, &layout, (offset, len)).await {
                // A storage node of an older release does not say: then every chunk of a range that is not too long.
                Err(e) if e.status == Status::UnknownMethod && len / chunk <= BLIND_MAX => {
                    blind = true;
                    continue;
                }
                some => some?,
            }
        };
        if some.is_empty() {
            return Ok(());
        }
        let zeros = some.iter().map(|e| zero_extent(core, file, &layout, (offset, e), under));
        let done = join_all(zeros).await;
        done.into_iter().collect::<Result<()>>()?;
    }
}

/// The parts of a range that lie in the next chunks that exist.
async fn next_present(
    present: &mut Chunks,
    layout: &Layout,
    (offset, len): (u64, u64),
) -> Result<Vec<Extent>> {
    let (chunk, end) = (u64::from(layout.chunk_bytes), offset + len);
    let mut some = Vec::new();
    while some.len() < PARALLEL {
        let Some(next) = present.next().await? else { break };
        let base = next.index.saturating_mul(chunk);
        let (mut begin, mut stop) = (base.max(offset), base.saturating_add(chunk).min(end));
        if begin >= end {
            break;
        }
        // Only the blocks that exist.
        let place = |block: u32| base.saturating_add(u64::from(block) * EXTENT_BLOCK_BYTES);
        let mut inside = next
            .runs
            .iter()
            .filter(|(b, n)| place(*b) < stop && place(b.saturating_add(*n)) > begin);
        let (first, last) = (inside.clone().next(), inside.next_back());
        let (Some((first, _)), Some((last, n))) = (first, last) else { continue };
        begin = begin.max(place(*first));
        if stop < base.saturating_add(chunk) {
            stop = stop.min(place(last.saturating_add(*n)));
        }
        let at = begin - offset;
        some.extend(layout.extents(begin, stop - begin).map(|e| Extent { at: at + e.at, ..e }));
    }
    Ok(some)
}

async fn zero_extent(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    layout: &Layout,
    (offset, e): (u64, &Extent),
    under: Option<TruncateEpoch>,
) -> Result<()> {
    if e.offset + e.len == layout.chunk_bytes {
        // A whole one is cut to nothing, too: only garbage collection may remove chunks.
        let change = Change {
            kind: update::TRUNCATE,
            layout: *layout,
            volume: file.volume(),
            index: e.index,
            offset: 0,
            len: e.offset,
            payload: None,
            crcs: Vec::new(),
            source: None,
            under,
        };
        return apply(core, &Rights::File(file.clone()), &change).await.map(|_| ());
    }
    let (mut at, end) = (offset + e.at, offset + e.at + u64::from(e.len));
    while at < end {
        let n = (end - at).min(PIECE);
        let mut zeros = core.rt.alloc(n as usize);
        zeros.fill(0);
        write(core, file, at, zeros.freeze(), under).await?;
        at += n;
    }
    Ok(())
}
