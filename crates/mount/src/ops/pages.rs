//! Pages that were stored into through a mapping, as the kernel writes them back.
//!
//! Guarantee: they never make a file longer. A store through a mapping cannot, and the kernel writes back no more than what it takes for the file's length; but
//! another client may have cut the file since. So each write goes under the truncate epoch that a known length is of, and only as far as that length.

use crate::daemon::{Context, Failure};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use crate::ops::back::Spot;
use glowfs_client::CUTS_MAX;
use glowfs_rt::{Buf, Duration};
use glowfs_types::wire::meta::inode_flags;
use glowfs_types::{InodeId, Status};
use libc::EPERM;

/// How long a time that is set waits for pages to be written back. Those that come later bring their own.
const PATIENCE: Duration = Duration::from_secs(10);

impl<S: FileSystem> Context<S> {
    /// Has the kernel write back what programs have stored into a file through mappings by now. Whether there may have been something.
    pub(crate) async fn write_mapped_pages(&self, inode: InodeId) -> bool {
        let mapped = self.inodes.opened(inode).is_some_and(|open| open.may_be_mapped());
        let session = self.session.borrow().upgrade().filter(|_| mapped);
        let Some(session) = session else { return false };
        let told = Box::pin(session.notify_inval_inode(inode.0, 0, 0));
        if self.rt.timeout(PATIENCE, told).await.is_err() {
            tracing::debug!(%inode, "pages take long to be written back");
        }
        true
    }
    /// Writes pages where they stand, at once: the kernel writes them back when it wants them to be stored. What lies behind the end of the file is dropped.
    pub(crate) async fn write_pages(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        payload: Buf,
    ) -> Result<(), Failure> {
        let end = offset.saturating_add(payload.len() as u64);
        for piece in handle.inode.old_tails.written_of(offset..end) {
            let bytes = (piece.start - offset) as usize..(piece.end - offset) as usize;
            self.write_piece_of_pages(handle, piece.start, payload.slice(bytes)).await?;
        }
        Ok(())
    }
    async fn write_piece_of_pages(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        payload: Buf,
    ) -> Result<(), Failure> {
        let inode = &handle.inode;
        let _inside = inode.gate.shared().await;
        if inode.attr().flags & inode_flags::APPEND != 0 {
            return Err(Failure::Errno(EPERM));
        }
        self.all_sent(inode).await;
        let mut cuts = 0;
        loop {
            self.refresh_if_unleased(inode).await?;
            let (len, epoch) = (inode.len().min(inode.cut_pages.limit()), inode.epoch());
            let n = len.saturating_sub(offset).min(payload.len() as u64);
            if n == 0 {
                return Ok(());
            }
            let spot = Spot { place: offset, gap: false, under: Some(epoch) };
            inode.begin_write(offset, n, false);
            let piece = payload.slice(0..n as usize);
            match self.store(inode, &handle.opened, spot, piece, None).await {
                // It was cut before they were there.
                Err(e) if e.status == Status::Stale && cuts < CUTS_MAX => {
                    cuts += 1;
                    let (attr, _) = Box::pin(self.fresh(inode.id)).await?;
                    handle.opened.file.update_attr(&attr);
                }
                told => {
                    let told = told?;
                    self.count_written(n as usize);
                    if told.with_meta.is_none() && told.cut_elsewhere {
                        Box::pin(self.fresh(inode.id)).await?;
                    }
                    return Ok(());
                }
            }
        }
    }
}
