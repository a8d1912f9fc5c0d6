//! Reading files whose contents are kept with the metadata.
//!
//! The contents that came with an open or an earlier read serve as long as the attributes they came with are the newest and leased: every change of the
//! contents changes the attributes, and a change by another client takes the lease away before it is answered. Otherwise meta is asked.

use crate::daemon::{Context, Failure};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use glowfs_client::Found;
use glowfs_rt::BufMut;

/// What came of a read.
pub(crate) enum Inline {
    /// The bytes, all of which exist; none behind the end of the file.
    Bytes(Option<(BufMut, Found)>),
    /// The contents are in chunks by now, and what is known of the file says so.
    InChunks,
}

impl<S: FileSystem> Context<S> {
    /// Reads what lies before `end`, from `offset` on.
    pub(crate) async fn read_inline(
        &self,
        handle: &Handle<S::File>,
        (offset, end): (u64, u64),
        alloc: &impl Fn(usize) -> BufMut,
    ) -> Result<Inline, Failure> {
        let inode = &handle.inode;
        if !handle.direct
            && self.rt.now() < inode.lease.get()
            && let Some(bytes) = inode.content()
        {
            return Ok(Inline::Bytes(self.cut_out(&bytes, (offset, end), alloc)));
        }
        let asked = self.asking();
        let Some(reply) = handle.opened.file.content().await? else {
            self.fresh(inode.id).await?;
            return Ok(Inline::InChunks);
        };
        inode.lease.set(self.lease_end(asked, inode.id, reply.lease_ms));
        self.inodes.seen(&reply.attr);
        let bytes = Vec::from(reply.content.unwrap_or_else(|| Vec::new().into()));
        let found = self.cut_out(&bytes, (offset, end), alloc);
        inode.keep_content(&reply.attr, bytes);
        Ok(Inline::Bytes(found))
    }

    fn cut_out(
        &self,
        bytes: &[u8],
        (offset, end): (u64, u64),
        alloc: &impl Fn(usize) -> BufMut,
    ) -> Option<(BufMut, Found)> {
        let stop = (bytes.len() as u64).min(end);
        let n = stop.checked_sub(offset).filter(|n| *n > 0)? as usize;
        let mut buf = alloc(n);
        buf.truncate(n);
        buf.copy_from_slice(&bytes[offset as usize..stop as usize]);
        self.count_read(n);
        Some((buf, Found::first(n)))
    }
}
