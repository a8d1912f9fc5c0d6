//! Attributes, and what changes a file's length without writing.

use crate::attr::{attr_out, entry_out, time_from};
use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::direct::Failed;
use crate::errno::errno;
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use crate::open::OpenInode;
use crate::ops::tails::LongerBy;
use glowfs_client::CUTS_MAX;
use glowfs_fuse::abi::{self, AttrOut, FallocateIn, SetattrIn, fattr};
use glowfs_rt::{Duration, Instant};
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::wire::meta::*;
use glowfs_types::{Error, InodeId, RequestId, Status, TruncateEpoch};
use libc::{EBADF, EFBIG, EIO, EOPNOTSUPP, EPERM, ETIMEDOUT};
use std::rc::Rc;

/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Room that fallocate promises without asking whether there is so much.
const ROOM_UNASKED_BYTES: u64 = 16 << 20;

impl<S: FileSystem> Context<S> {
    fn inode(&self) -> InodeId {
        InodeId(self.header.node)
    }
    fn attr_answer(&self, attr: &Attr, valid: Duration) -> Outcome {
        Ok(Answer::Attr(Box::new(attr_out(attr, self.config.block_bytes, valid))))
    }
    /// Of a SETATTR, for as long as nobody else changes the inode.
    fn set_answer(&self, attr: &Attr) -> Outcome {
        self.inodes.sets_rights(attr);
        self.attr_answer(attr, Duration::ZERO)
    }
    /// Asks meta; what is true on this client, and until when.
    pub(crate) async fn fresh(&self, inode: InodeId) -> Result<(Attr, Instant), Failure> {
        let asked = self.asking();
        let r = self.fs.getattr(OfInode { caller: self.caller(), inode }).await?;
        let end = self.lease_end(asked, inode, r.lease_ms);
        self.directories.heard(&r.attr, end, asked.tick);
        self.note_length(&r.attr, asked);
        let attr = self.inodes.seen_of(&r.attr, asked.recalls());
        if let Some(open) = self.inodes.opened(inode) {
            open.lease.set(end);
        }
        Ok((attr, end))
    }

    /// The kernel asks for a directory's attributes after each change that it passed on itself: those came with meta's answer. What is left of
    /// the lease must be worth while.
    pub(crate) async fn getattr(&self, _fh: Option<u64>) -> Outcome {
        let margin = self.longest_lease.get() / 4;
        let (attr, end) = match self.directories.attr(self.inode(), self.rt.now(), margin) {
            Some(known) => known,
            None => match self.fresh(self.inode()).await {
                Err(Failure::Error(e)) if e.status == Status::Stale => return self.gone(e),
                fresh => fresh?,
            },
        };
        let (attr, end) = match self.inodes.old_end(&attr) {
            Some(_) => {
                self.before_longer(&attr).await;
                let leased = self.inodes.opened(attr.inode).map_or(end, |open| open.lease.get());
                (self.inodes.seen(&attr), end.min(leased))
            }
            None => (attr, end),
        };
        self.inodes.gives(attr.inode);
        let entry = entry_out(&attr, self.config.block_bytes, Default::default());
        if self.inodes.tells(&attr, &entry) {
            self.forget_pages_later(attr.inode);
        }
        // A reader asks before he takes a page.
        let forgotten = !self.forgetting.is_under_way(attr.inode)
            || Box::pin(self.pages_forgotten(attr.inode)).await;
        let valid = if forgotten { self.valid(end) } else { Duration::ZERO };
        self.attr_answer(&attr, valid)
    }

    /// Meta knows the inode no more. Files that are open here it keeps; of everything else (directories, named pipes, ...) whoever still has it open or
    /// works in it may ask for what it was.
    fn gone(&self, e: Error) -> Outcome {
        let lost = self.inodes.opened(self.inode()).is_some();
        match self.inodes.last_told(self.inode()).filter(|_| !lost) {
            Some(attr) => {
                let attr = abi::Attr { nlink: 0, ..attr };
                Ok(Answer::Attr(Box::new(AttrOut { attr, ..AttrOut::default() })))
            }
            None => Err(e.into()),
        }
    }

    /// The handle that a file is to be cut through (ftruncate), unless its session has ended: as little as writes does a truncate through it come between
    /// those of who went on with the file since.
    fn cutting(&self, fh: u64) -> Result<Rc<Handle<S::File>>, Failure> {
        let handle = self.inodes.handles.file(fh).ok_or(Failure::Errno(EBADF))?;
        match handle.opened.file.lives() {
            true => Ok(handle),
            false => Err(Failure::Errno(EIO)),
        }
    }

    /// Set-user-id and set-group-id are cleared by meta where POSIX says so (chown, truncate by another).
    pub(crate) async fn setattr(&self, i: SetattrIn) -> Outcome {
        let has = |bit| i.valid & bit != 0;
        let time = |set, now, secs, nanos| match (has(now), has(set)) {
            (true, _) => Some(SetTime::Now),
            (_, true) => Some(SetTime::At(time_from(secs, nanos))),
            _ => None,
        };
        let mut q = SetAttr {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            inode: self.inode(),
            mode: has(fattr::MODE).then_some(i.mode & 0o7777),
            uid: has(fattr::UID).then_some(i.uid),
            gid: has(fattr::GID).then_some(i.gid),
            len: has(fattr::SIZE).then_some(i.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, i.atime, i.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, i.mtime, i.mtimensec),
            ..SetAttr::default()
        };
        if q.len.is_some_and(|l| l > FILE_BYTES_MAX) {
            return fail(EFBIG);
        }
        let open = self.inodes.opened(q.inode);
        if let Some(len) = q.len {
            // By a path it is cut by who may write there, whoever has it open.
            if has(fattr::FH) {
                let handle = self.cutting(i.fh)?;
                self.kill_capability_given(&handle).await?;
                q.session = handle.opened.file.session();
            }
            let alone = i.valid & !(fattr::LOCKOWNER | fattr::KILL_SUIDGID);
            let undoes = alone == fattr::SIZE | fattr::FH;
            let failed = open.as_ref().and_then(|open| {
                let asked = undoes.then(|| open.direct.undone(i.fh, len, self.rt.now()));
                open.direct.over();
                asked?
            });
            let failed = match failed {
                Some(_) if Box::pin(self.is_in_ftruncate(len)).await => None,
                failed => failed,
            };
            return self.set_len(q, failed).await;
        }
        if let Some(open) = &open {
            open.direct.over();
        }
        let (sets_mtime, sets_atime) = (q.mtime.is_some(), q.atime.is_some());
        if sets_mtime {
            // Written before, so its time does not count any more.
            self.inode_sent(q.inode).await;
            // Likewise what was stored through a mapping.
            if self.write_mapped_pages(q.inode).await {
                self.inode_sent(q.inode).await;
            }
        }
        if sets_atime && let Some(open) = self.inodes.opened(q.inode) {
            // Likewise: it was read before.
            open.telling_access.over().await;
        }
        let r = self.fs.setattr(q).await?;
        if let Some(open) = self.inodes.opened(r.attr.inode) {
            if sets_mtime {
                open.forget_mtime();
            }
            if sets_atime {
                open.forget_atime();
            }
        }
        self.before_longer(&r.attr).await;
        let attr = self.inodes.seen(&r.attr);
        // The kernel takes time and length from this answer, and would see nothing in the next one. Not before it: it holds the inode until then.
        if self.inodes.changed_here(&r.attr, 0) {
            self.forget_pages_later(r.attr.inode);
        }
        if let Some(open) = &open {
            open.direct.kernel_was_told(attr.len);
        }
        self.set_answer(&attr)
    }

    /// A truncate: alone with the file's contents. It sets length and time, so nothing before it is left to report.
    async fn set_len(&self, mut q: SetAttr, undone: Option<Failed>) -> Outcome {
        let open = self.inodes.pin(q.inode);
        // Of appends of others none comes between the question for the length and the cut.
        let _turn = undone.and_then(|_| self.appends.hold(q.inode));
        let _alone = open.gate.exclusive().await;
        self.all_sent(&open).await;
        if let Some(failed) = undone {
            Box::pin(self.fresh(q.inode)).await?;
            q.len = failed.cuts_to(open.meta_len());
            if q.len.is_none() {
                let attr = open.attr();
                open.direct.kernel_was_told(attr.len);
                return self.set_answer(&attr);
            }
        }
        // The kernel writes no page until it is answered.
        let old_tail = match q.len {
            Some(len) => Box::pin(self.old_tail(&open, LongerBy::Length, len)).await,
            None => None,
        };
        let unreported = open.dirty().is_some();
        let r = self.fs.setattr(q).await.inspect_err(|e| self.may_be_cut(&open, e))?;
        self.forget_tail_later(open.id, old_tail);
        self.inodes.drop_cache(r.attr.inode);
        self.inodes.seen(&r.attr);
        if self.inodes.changed_here(&r.attr, 1) {
            self.forget_pages_later(r.attr.inode);
        }
        let attr = open.merge_truncated(&r.attr);
        if unreported {
            // Meta does not know how much of the file was written.
            open.note_holes();
        }
        open.direct.kernel_was_told(attr.len);
        self.set_answer(&attr)
    }

    /// A truncate of ours has failed. If nobody has refused it, meta may have done it; of that it tells others, but not this client.
    pub(super) fn may_be_cut(&self, open: &OpenInode<S::File>, error: &Error) {
        if matches!(errno(error), EIO | ETIMEDOUT) {
            open.lease.set(Instant(0));
            self.inodes.drop_cache(open.id);
            self.forget_pages_later(open.id);
        }
    }

    /// Makes the file at least as long (unless KEEP_SIZE) and, with PUNCH_HOLE or ZERO_RANGE, the range zeros. Space is not reserved, but what there is no space for is refused.
    pub(crate) async fn fallocate(&self, i: FallocateIn) -> Outcome {
        let has = |bit| i.mode & bit != 0;
        let (keep, punch, zero) = (has(KEEP_SIZE), has(PUNCH_HOLE), has(ZERO_RANGE));
        if i.mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 || (punch && (!keep || zero)) {
            return fail(EOPNOTSUPP);
        }
        let Some(end) = i.offset.checked_add(i.length).filter(|e| *e <= FILE_BYTES_MAX) else {
            return fail(EFBIG);
        };
        let Some(handle) = self.inodes.handles.file(i.fh).filter(|h| h.write) else {
            return fail(EBADF);
        };
        let inode = &handle.inode;
        inode.direct.over();
        let old_tail = match keep {
            true => None,
            false => Box::pin(self.before_lengthening(inode, LongerBy::Length, end)).await,
        };
        let _inside =
            if punch || zero { inode.gate.exclusive().await } else { inode.gate.shared().await };
        self.all_sent(inode).await;
        self.refresh_if_unleased(inode).await?;
        let flags = inode.attr().flags;
        let cuts = (punch || zero) && flags & inode_flags::APPEND != 0;
        if cuts || flags & inode_flags::IMMUTABLE != 0 {
            return fail(EPERM);
        }
        self.kill_capability_given(&handle).await?;
        if self.header.uid != 0 {
            self.kill_suid(&handle).await?;
        }
        let len = inode.len();
        let grows = !keep && end > len;
        if !punch {
            self.has_room(end.saturating_sub(len.max(i.offset))).await?;
        }
        let file = &handle.opened.file;
        if !(punch || zero || grows) {
            if !keep {
                inode.direct.wrote(end);
            }
            self.forget_tail_later(inode.id, old_tail);
            return Ok(Answer::Done);
        }
        // Its length is told to meta later, as that of chunks.
        file.spill().await?;
        // As it is under the truncate epoch that the file has at this moment.
        let stop = end.min(inode.len());
        inode.begin_write(i.offset, 0, false);
        let zeroes = (punch || zero) && stop > i.offset;
        let done = if zeroes { file.zero(i.offset, stop - i.offset).await } else { Ok(()) };
        let zeroed = zeroes && done.is_ok();
        let reached = match done {
            Ok(()) if grows => Box::pin(self.reach(&handle, end)).await,
            Ok(()) => Ok((0, file.epoch())),
            Err(e) => Err(e.into()),
        };
        // As if something had been written: length and time are reported with the rest.
        inode.note_holes();
        let now = self.rt.unix_ns();
        let cut_elsewhere = inode.end_write(reached.as_ref().ok().copied(), 0, now);
        if let Err(failure) = &reached
            && zeroes
        {
            // Some of it may be there, and the kernel goes on with the pages that it has.
            match failure {
                Failure::Error(e) if !zeroed => inode.failed_to_write(e, now),
                _ => inode.may_have_written(now),
            }
            self.forget_pages_later(inode.id);
        }
        reached?;
        if cut_elsewhere {
            self.fresh(inode.id).await?;
        }
        if inode.owes_length() {
            self.report(&handle, true).await?;
        }
        if !keep {
            inode.direct.wrote(end);
        }
        self.forget_tail_later(inode.id, old_tail);
        Ok(Answer::Done)
    }
    /// How far a file reaches that is to be so long, and the truncate epoch that this is said under: one that writing is allowed under, so that the end of another
    /// client's truncate does not take it away. Note it before anything else is waited for.
    async fn reach(
        &self,
        handle: &Handle<S::File>,
        end: u64,
    ) -> Result<(u64, TruncateEpoch), Failure> {
        let (inode, file) = (&handle.inode, &handle.opened.file);
        for _ in 0..=CUTS_MAX {
            let epoch = file.writable_epoch().await?;
            if epoch == inode.epoch() {
                let grown = if end > inode.len() { end } else { 0 };
                return Ok((grown, epoch));
            }
            // Another client has cut it meanwhile.
            let (attr, _) = Box::pin(self.fresh(inode.id)).await?;
            file.update_attr(&attr);
        }
        Err(Error::new(Status::Stale, "the file is truncated again and again").into())
    }
    /// Refuses to promise more bytes than the cluster has free.
    async fn has_room(&self, bytes: u64) -> Result<(), Failure> {
        if bytes <= ROOM_UNASKED_BYTES {
            return Ok(());
        }
        let q = OfInode { caller: self.caller(), inode: self.inode() };
        let space = self.fs.statfs(q).await?;
        // While no storage node answers, nobody knows.
        if space.total_bytes > 0 && space.free_bytes < bytes {
            return Err(Failure::Error(Status::NoSpace.into()));
        }
        Ok(())
    }
}
