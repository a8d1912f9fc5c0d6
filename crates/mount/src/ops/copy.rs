//! copy_file_range: on the storage nodes, a bounded number of bytes a call.

use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use crate::ops::tails::LongerBy;
use glowfs_fuse::abi::CopyFileRangeIn;
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::wire::meta::inode_flags;
use glowfs_types::{Error, Status};
use libc::{EBADF, EFBIG, EINVAL, EOPNOTSUPP, EPERM};
use std::rc::Rc;

/// The greatest number of bytes copied by one call; the caller asks again for the rest. Bounds how long others wait for the file.
const COPY_MAX: u64 = 64 << 20;
/// How often a copy begins anew because the source was cut meanwhile.
const ATTEMPTS: u32 = 5;

impl<S: FileSystem> Context<S> {
    pub(crate) async fn copy_file_range(&self, i: CopyFileRangeIn) -> Outcome {
        if i.flags != 0 {
            return fail(EINVAL);
        }
        let (Some(source), Some(handle)) = (
            self.inodes.handles.file(i.fh_in),
            self.inodes.handles.file(i.fh_out).filter(|h| h.write),
        ) else {
            return fail(EBADF);
        };
        let same = source.inode.id == handle.inode.id;
        let reaches = i.off_out.saturating_add(i.len.min(COPY_MAX));
        let old_tail =
            Box::pin(self.before_lengthening(&handle.inode, LongerBy::Copy, reaches)).await;
        // In one order, or two copies could wait for one another behind those who want to be alone.
        let (first, second) = match source.inode.id <= handle.inode.id {
            true => (&source.inode, &handle.inode),
            false => (&handle.inode, &source.inode),
        };
        let _inside = first.gate.shared().await;
        let _inside_too = if same { None } else { Some(second.gate.shared().await) };
        self.all_sent(&source.inode).await;
        self.all_sent(&handle.inode).await;
        for _ in 0..ATTEMPTS {
            self.refresh_if_unleased(&source.inode).await?;
            self.refresh_if_unleased(&handle.inode).await?;
            if handle.inode.attr().flags & (inode_flags::APPEND | inode_flags::IMMUTABLE) != 0 {
                return fail(EPERM);
            }
            if source.inode.attr().inline {
                // The kernel reads and writes these few bytes, and both files may stay as they are.
                return fail(EOPNOTSUPP);
            }
            let epoch = source.inode.attr().epoch;
            let len = i.len.min(COPY_MAX).min(source.inode.len().saturating_sub(i.off_in));
            if len == 0 {
                return Ok(Answer::Written(0));
            }
            if same && i.off_in < i.off_out.saturating_add(len) && i.off_out < i.off_in + len {
                return fail(EINVAL);
            }
            if i.off_out.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
                return fail(EFBIG);
            }
            self.kill_capability_given(&handle).await?;
            if self.header.uid != 0 {
                self.kill_suid(&handle).await?;
            }
            let copied = self.copy_into(&handle, &source, (i.off_in, i.off_out, len)).await;
            match &copied {
                // The kernel copies by itself from then on.
                Err(e) if e.status == Status::UnknownMethod => return fail(EOPNOTSUPP),
                Err(e) if e.status != Status::Stale => {
                    return copied.map(|()| Answer::Done).map_err(Failure::Error);
                }
                _ => {}
            }
            self.fresh(source.inode.id).await?;
            // What was cut meanwhile may have been collected, and then was copied as zeros.
            if copied.is_ok() && source.inode.attr().epoch == epoch {
                self.count_read(len as usize);
                self.count_written(len as usize);
                handle.inode.direct.wrote(i.off_out + len);
                self.forget_tail_later(handle.inode.id, old_tail);
                return Ok(Answer::Written(len as u32));
            }
        }
        Err(Failure::Error(Error::new(Status::Busy, "the source is truncated again and again")))
    }

    async fn copy_into(
        &self,
        handle: &Handle<S::File>,
        source: &Handle<S::File>,
        (from, to, len): (u64, u64, u64),
    ) -> Result<(), Error> {
        let inode = &handle.inode;
        let file = &handle.opened.file;
        let end = to + len;
        let before = inode.len();
        inode.begin_write(to, len, false);
        let theirs: &Rc<S::File> = &source.opened.file;
        let done = file.copy_from(theirs, (from, to, len), before).await;
        let holes = !matches!(done, Ok(false));
        if holes || to > before {
            inode.note_holes();
        }
        // Whoever has cut it since has cut all of this.
        let counts = file.len_written().is_some_and(|l| l >= end);
        let reached = (done.is_ok() && counts).then(|| (end, file.epoch()));
        let now = self.rt.unix_ns();
        let cut_elsewhere = inode.end_write(reached, len, now);
        if let Err(e) = done {
            // Some of it may be there, and the kernel goes on with the pages that it has. It may have been the source that was cut, of which those who have this file do not hear.
            if e.status != Status::SessionEnded || file.lives() {
                inode.may_have_written(now);
            }
            self.forget_pages_later(inode.id);
            return Err(e);
        }
        if cut_elsewhere {
            self.fresh(inode.id).await.map_err(error_of)?;
        }
        if inode.owes_length() {
            self.report(handle, true).await.map_err(error_of)?;
        }
        Ok(())
    }
}

fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Error(e) => e,
        Failure::Errno(e) => Error::new(Status::Internal, format!("errno {e}")),
    }
}
