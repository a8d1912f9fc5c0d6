//! Making a range of a file zeros: whole chunks and the end of one are cut off, so that their space comes back; only what is left is
//! written.

use crate::ChunkIo;
use crate::core::Core;
use crate::file::{OpenFile, Rights};
use crate::write::{Change, apply, write};
use glowfs_rt::sync::join_all;
use glowfs_types::layout::Extent;
use glowfs_types::wire::data::update;
use glowfs_types::{Error, Layout, Result, Status};
use std::rc::Rc;

/// Chunks worked on at once.
const PARALLEL: usize = 16;
/// The greatest number of chunks of one call: removing what is not there costs a message each, too.
const CHUNKS_MAX: u64 = 1 << 20;
/// Zeros written by one update, in bytes.
const PIECE: u64 = 1 << 20;

/// See the module. The caller sees to it that the range does not reach behind the end of the file.
pub(crate) async fn zero(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    offset: u64,
    len: u64,
) -> Result<()> {
    let layout = file.layout();
    let chunk = u64::from(layout.chunk_bytes);
    let mut len = len;
    if len / chunk > PARALLEL as u64 {
        // A long one: nothing is stored behind the last chunk.
        let io = ChunkIo::new(file.client().clone());
        let stored = io.query_extent(&layout, file.volume(), file.data()).await?.len;
        len = len.min(stored.next_multiple_of(chunk).saturating_sub(offset));
    }
    if len / chunk > CHUNKS_MAX {
        let e = format!("a hole over more than {CHUNKS_MAX} chunks at once");
        return Err(Error::new(Status::NotSupported, e));
    }
    let mut extents = layout.extents(offset, len);
    loop {
        let some: Vec<Extent> = extents.by_ref().take(PARALLEL).collect();
        if some.is_empty() {
            return Ok(());
        }
        let done = join_all(some.iter().map(|e| zero_extent(core, file, &layout, offset, e))).await;
        done.into_iter().collect::<Result<()>>()?;
    }
}

async fn zero_extent(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    layout: &Layout,
    offset: u64,
    e: &Extent,
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
        };
        return apply(core, &Rights::File(file.clone()), &change).await.map(|_| ());
    }
    let (mut at, end) = (offset + e.at, offset + e.at + u64::from(e.len));
    while at < end {
        let n = (end - at).min(PIECE);
        let mut zeros = core.rt.alloc(n as usize);
        zeros.fill(0);
        write(core, file, at, zeros.freeze()).await?;
        at += n;
    }
    Ok(())
}
