//! Holes: LSEEK, and how many bytes a file with holes takes.
//!
//! A file without holes takes what its length says. What may have made holes, or filled some, is noted with the file ([`crate::open`]); then its
//! chains are asked once before meta is told of the writes, so that stat never has to.

use crate::daemon::{Answer, Context, Daemon, Failure, Outcome, fail};
use crate::filesystem::{FileData, FileSystem};
use crate::open::OpenInode;
use crate::ops::io::Seen;
use glowfs_fuse::abi::LseekIn;
use glowfs_rt::Duration;
use glowfs_types::Status;
use libc::{EBADF, EINVAL, ENXIO};

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// How often a search begins anew because the file was cut to nothing meanwhile.
const ATTEMPTS: u32 = 5;
/// A file that is made durable again and again is counted only so often.
const COUNT_PAUSE: Duration = Duration::from_secs(5);

impl<S: FileSystem> Context<S> {
    pub(crate) async fn lseek(&self, i: LseekIn) -> Outcome {
        let data = match i.whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            // The kernel knows the others itself.
            _ => return fail(EINVAL),
        };
        let Some(handle) = self.inodes.handles.file(i.fh) else { return fail(EBADF) };
        let inode = &handle.inode;
        let _inside = inode.gate.shared().await;
        self.all_sent(inode).await;
        for _ in 0..ATTEMPTS {
            let asked = self.refresh_if_unleased(inode).await?;
            let seen = Seen::of(inode, asked);
            let found = handle.opened.file.seek(i.offset, inode.len(), data).await;
            if found.is_ok() && seen.is_doubtful(inode, self.rt.now()) {
                self.fresh(inode.id).await?;
            }
            if found.is_ok() && !seen.holds(inode) {
                continue;
            }
            match found {
                Ok(Some(at)) => return Ok(Answer::Seek(at)),
                Ok(None) => return fail(ENXIO),
                Err(e) if e.status == Status::Stale => {
                    self.fresh(inode.id).await?;
                }
                Err(e) => return Err(Failure::Error(e)),
            }
        }
        Err(Failure::Error(Status::Busy.into()))
    }
}

impl<S: FileSystem> Daemon<S> {
    /// Bytes of the blocks that exist, if they have to be counted before meta is told of writes. `often`: it may come soon again.
    pub(crate) async fn counted(&self, inode: &OpenInode<S::File>, often: bool) -> Option<u64> {
        let now = self.rt.now();
        if !inode.wants_count() || (often && now < inode.counted.get() + COUNT_PAUSE) {
            return None;
        }
        let writer = inode.find_writable()?;
        match writer.file.allocated().await {
            Ok(bytes) => {
                inode.counted.set(now);
                Some(bytes)
            }
            Err(e) => {
                tracing::debug!(inode = %inode.id, error = %e, "the blocks of a file were not counted");
                None
            }
        }
    }
}
