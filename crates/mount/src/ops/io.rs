//! Reading and writing, as the kernel and rings ask for it.
//!
//! Guarantees: a read answers contents of one truncate epoch, not older than the file's last change by another client, and never from chunks that were cut off
//! and may have been collected meanwhile; a write that was answered is with the storage nodes (or gathered, where it may be), and its length is with meta, or owed.
//! An append stands at the end of the file, whole and once, also if another client cuts the file meanwhile. Must never: wait for others before it has
//! taken its place in the line of appends, for pieces of one write come at once.

use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::direct::{Before, Piece};
use crate::filesystem::{FileData, FileSystem};
use crate::gate::Pass;
use crate::handles::Handle;
use crate::open::OpenInode;
use crate::ops::back::{Spot, Stored};
use crate::ops::inline::Inline;
use crate::ops::open_flags::{O_APPEND, O_DIRECT, O_DSYNC, O_SYNC_ONLY};
use crate::ops::tails::LongerBy;
use glowfs_client::{CUTS_MAX, Found};
use glowfs_fuse::Reply;
use glowfs_fuse::abi::{ReadIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn};
use glowfs_rt::{Buf, BufMut, Duration, Instant};
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::mode::without_privileges;
use glowfs_types::wire::meta::{AtimeRule, Caller, InodeKind, SetAttr, inode_flags};
use glowfs_types::{RequestId, Status, TruncateEpoch};
use libc::{EBADF, EFBIG, EINVAL, EPERM};

/// Set-user-id and set-group-id in a mode.
const SUID_SGID: u32 = 0o6000;
/// After a read that took longer, without a lease, meta is asked whether the file was cut meanwhile: meta keeps data that went out
/// of reach for longer than this.
const READ_MAX: Duration = Duration::from_millis(500);

/// What else goes with a write.
#[derive(Clone, Copy, Default)]
pub(crate) struct HowToWrite {
    /// At the end of the file, wherever that is.
    pub append: bool,
    /// The writer may not keep set-user-id and set-group-id of the file.
    pub kill_suid: bool,
    /// It may be answered before it is sent.
    pub later: bool,
    /// Which request of the kernel it is, if that is of a direct write.
    pub piece: Option<Piece>,
}

/// What was known of a file when its chunks were looked at. What was found there only counts if nobody has cut it since: what was cut or replaced may have been
/// collected, and then is a hole.
pub(super) struct Seen {
    asked: Instant,
    leased: Instant,
    epoch: TruncateEpoch,
}

impl Seen {
    /// `asked`: when meta was asked at the latest.
    pub(super) fn of<F: FileData>(inode: &OpenInode<F>, asked: Instant) -> Self {
        Self { asked, leased: inode.lease.get(), epoch: inode.epoch() }
    }
    /// Whether meta has to be asked before it can be told that nobody has.
    pub(super) fn is_doubtful<F: FileData>(&self, inode: &OpenInode<F>, now: Instant) -> bool {
        now >= self.leased.max(self.asked + READ_MAX) || inode.lease.get() < self.leased
    }
    /// Whether nobody has, as far as is known now.
    pub(super) fn holds<F: FileData>(&self, inode: &OpenInode<F>) -> bool {
        self.epoch == inode.epoch()
    }
}

impl<S: FileSystem> Context<S> {
    pub(crate) async fn read(&self, i: ReadIn, reply: &Reply) -> Outcome {
        let Some(handle) = self.inodes.handles.file(i.fh) else { return fail(EBADF) };
        let since = handle.inode.direct.moves();
        self.inodes.gives(handle.inode.id);
        // Also through a direct handle: a mapping of it is read so.
        handle.inode.given_pages.give(i.offset.saturating_add(i.size.into()));
        let size = u64::from(i.size);
        let read = self.read_at(&handle, i.offset, size, |n| reply.buffer(n)).await?;
        let n = read.as_ref().map_or(0, |(buf, _)| buf.len() as u64);
        let end = i.offset.saturating_add(n);
        let taken = n == size || handle.inode.direct.read_short(end, since);
        if !taken && handle.inode.may_be_mapped() {
            self.forget_zeros_later(handle.inode.id, end..i.offset.saturating_add(size));
        }
        match read {
            Some((buf, _)) => Ok(Answer::Data(buf.freeze())),
            None => Ok(Answer::Bytes(Vec::new())),
        }
    }

    /// Reads up to `size` bytes into a buffer that `alloc` makes; also says which of them exist in the chunks (the rest are holes).
    /// None: the file ends before.
    pub(crate) async fn read_at(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        size: u64,
        alloc: impl Fn(usize) -> BufMut,
    ) -> Result<Option<(BufMut, Found)>, Failure> {
        let _inside = handle.inode.gate.shared().await;
        self.all_sent(&handle.inode).await;
        let outcome = self.read_inside(handle, offset, size, alloc).await;
        if outcome.is_ok() && !handle.no_atime {
            self.accessed(&handle.inode);
        }
        outcome
    }

    /// A file was read.
    fn accessed(&self, inode: &OpenInode<S::File>) {
        let rule = self.config.atime_rule(InodeKind::File);
        if rule != AtimeRule::Never {
            inode.accessed(rule, self.rt.unix_ns());
        }
    }

    async fn read_inside(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        size: u64,
        alloc: impl Fn(usize) -> BufMut,
    ) -> Result<Option<(BufMut, Found)>, Failure> {
        let alloc = &alloc;
        let wanted = offset.saturating_add(size);
        let mut outgrown = false;
        loop {
            if handle.inode.is_inline() {
                // Apart, as all that most reads do not need: it would make the task of each of them larger.
                match Box::pin(self.read_inline(handle, (offset, wanted), alloc)).await? {
                    Inline::Bytes(found) => return Ok(found),
                    Inline::InChunks => {}
                }
            }
            let asked = self.refresh_if_unleased(&handle.inode).await?;
            let seen = Seen::of(&handle.inode, asked);
            let n = handle.inode.len().min(wanted).saturating_sub(offset);
            if n == 0 {
                return Ok(None);
            }
            let n = n as usize;
            let (result, mut buf) = handle.opened.file.read(offset, alloc(n)).await;
            let Found { end, whole } = result?;
            if seen.is_doubtful(&handle.inode, self.rt.now()) {
                Box::pin(self.fresh(handle.inode.id)).await?;
            }
            // It may have become longer meanwhile: where it ends is said as of the answer. Once: who goes on writing does not keep a reader for ever.
            let longer = (n as u64) < size && handle.inode.len() > offset + n as u64;
            if longer && !outgrown || !seen.holds(&handle.inode) {
                outgrown |= longer;
                self.all_sent(&handle.inode).await;
                continue;
            }
            buf.truncate(n);
            self.count_read(n);
            return Ok(Some((buf, Found { end: end.min(n), whole: whole.min(n) })));
        }
    }

    /// Makes sure that what is known of an open file is not older than its last change by another client. Returns when meta was asked
    /// at the latest.
    pub(crate) async fn refresh_if_unleased(
        &self,
        inode: &OpenInode<S::File>,
    ) -> Result<Instant, Failure> {
        let now = self.rt.now();
        if now >= inode.lease.get() {
            Box::pin(self.fresh(inode.id)).await?;
        }
        Ok(now)
    }

    pub(crate) async fn write(&self, i: WriteIn, payload: Option<Buf>, reply: &Reply) -> Outcome {
        let Some(payload) = payload else { return fail(EINVAL) };
        let Some(handle) = self.inodes.handles.file(i.fh) else { return fail(EBADF) };
        let len = payload.len() as u32;
        let cached = i.write_flags & WRITE_CACHE != 0;
        if cached {
            self.inodes.gives(handle.inode.id);
            // The kernel says of nobody that it does so for him.
            let writer = self.as_caller(&handle.caller);
            writer.write_pages(&handle, i.offset, payload).await?;
            return Ok(Answer::Written(len));
        }
        let append = i.flags & O_APPEND != 0;
        let direct = &handle.inode.direct;
        let piece = if handle.direct || i.flags & O_DIRECT != 0 {
            Some(direct.begin(i.fh, (i.offset, u64::from(len)), append))
        } else {
            direct.over();
            None
        };
        let how = HowToWrite {
            append,
            kill_suid: i.write_flags & WRITE_KILL_SUIDGID != 0,
            later: self.may_gather(&handle, i.flags, payload.len()),
            piece,
        };
        let written = self.write_request(&handle, &i, payload, how, reply).await;
        if let Some(piece) = piece {
            direct.ended(piece, written.is_ok(), self.rt.now());
        }
        written?;
        direct.wrote(i.offset.saturating_add(u64::from(len)));
        Ok(Answer::Written(len))
    }

    /// One request of a write(2), or all of it.
    async fn write_request(
        &self,
        handle: &Handle<S::File>,
        i: &WriteIn,
        payload: Buf,
        how: HowToWrite,
        reply: &Reply,
    ) -> Result<(), Failure> {
        let len = payload.len() as u64;
        // Before anything is waited for: the pieces of one write(2) may come at once.
        let first = match how.append {
            true => Some(Box::pin(self.append_in_line(handle, reply)).await?),
            false => None,
        };
        if handle.direct && self.may_have_capability(handle) {
            Box::pin(self.kill_capability(handle)).await?;
        }
        self.kill_capability_given(handle).await?;
        // What lies between the end that the kernel knows and the write becomes part of the file for it, too.
        let from = match how.append {
            true => handle.inode.len().min(i.offset),
            false => handle.inode.direct.kernel_len().least.min(i.offset),
        };
        let mut old_tail = None;
        if handle.direct {
            // What a mapping has of before is not to be written over this.
            self.forget_given(handle, from).await;
        } else {
            let end = i.offset.saturating_add(len);
            handle.inode.given_pages.give(end);
            if !how.append {
                let by = LongerBy::Write { from: i.offset };
                old_tail = Box::pin(self.before_lengthening(&handle.inode, by, end)).await;
            }
        }
        self.inodes.gives(handle.inode.id);
        if how.append {
            let turn = Box::pin(self.append_turn(handle, reply)).await?;
            if !handle.direct {
                // Who had the right to append has told by now how far he came.
                let end = i.offset.saturating_add(len);
                old_tail = Box::pin(self.old_tail(&handle.inode, LongerBy::Append, end)).await;
            }
            let written = self.write_at(handle, i.offset, payload, how, first).await;
            if written.is_err() && handle.direct {
                // Some of it may be there.
                self.forget_given(handle, from).await;
            }
            let place = written?;
            let piece = (i.offset, len);
            turn.used(self.rt.now(), piece, handle.direct, self.config.max_request_bytes);
            drop(turn);
            if !handle.direct {
                // It holds the pages of this write until we answer, so it can only forget them after that.
                self.forget_pages_later(handle.inode.id);
            } else {
                self.forget_given(handle, from.min(place)).await;
            }
        } else {
            let written = self.write_at(handle, i.offset, payload, how, None).await;
            if handle.direct {
                // And what the kernel was given meanwhile is old, also where the write failed: some of it may be there.
                self.forget_given(handle, from).await;
            }
            written?;
        }
        self.forget_tail_later(handle.inode.id, old_tail);
        if handle.direct && i.flags & O_DSYNC != 0 {
            // The kernel lets an fsync follow only what went through its page cache.
            let times = i.flags & O_SYNC_ONLY != 0;
            Box::pin(self.make_as_durable(handle, !times)).await?;
            self.heard(handle)?;
        }
        Ok(())
    }

    /// Has the kernel forget what it was given of a file from there on, for a write that goes past it. What a program has stored into a mapping it writes first.
    async fn forget_given(&self, handle: &Handle<S::File>, from: u64) {
        const BOUND: Duration = Duration::from_secs(1);
        let from = from & !4095;
        let Some(end) = handle.inode.given_pages.take_from(from) else { return };
        let Some(session) = self.session.borrow().upgrade() else { return };
        let inode = handle.inode.id;
        let told = Box::pin(session.notify_inval_inode(
            inode.0,
            i64::try_from(from).unwrap_or(i64::MAX),
            0,
        ));
        if !matches!(self.rt.timeout(BOUND, told).await, Ok(Ok(_))) {
            // The next write tries again.
            handle.inode.given_pages.give(end);
            tracing::debug!(%inode, "the kernel takes long to forget pages beside a direct write");
        }
    }

    /// Writes all of `payload`; answers where. An append needs the right to it ([`Context::append_turn`]), and is the `first` in line.
    pub(crate) async fn write_at(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        payload: Buf,
        how: HowToWrite,
        first: Option<Pass>,
    ) -> Result<u64, Failure> {
        let len = payload.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Failure::Errno(EFBIG));
        }
        let inode = &handle.inode;
        let _inside = inode.gate.shared().await;
        if !how.append && inode.attr().flags & inode_flags::APPEND != 0 {
            return Err(Failure::Errno(EPERM));
        }
        if how.append {
            // Others may have cut the file, or made it longer.
            self.refresh_if_unleased(inode).await?;
        }
        let kills = how.kill_suid && self.has_privileges(inode).await?;
        if how.later
            && !kills
            && let Some(place) = Box::pin(self.gather(handle, offset, &payload, how.append)).await?
        {
            return Ok(place);
        }
        // In the order in which they were answered.
        self.all_sent(inode).await;
        if kills {
            Box::pin(self.kill_suid(handle)).await?;
        }
        let (place, told) = self.place(handle, offset, payload, how, first).await?;
        self.count_written(len as usize);
        if told.with_meta.is_some() {
            return Ok(place);
        }
        if told.cut_elsewhere {
            Box::pin(self.fresh(inode.id)).await?;
        }
        if inode.owes_length() {
            Box::pin(self.report(handle, true)).await?;
        }
        Ok(place)
    }

    /// Writes; answers where. An append gets its place when it is sent, and another one if another client has cut the file before it was there.
    async fn place(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        payload: Buf,
        HowToWrite { append, piece, .. }: HowToWrite,
        mut first: Option<Pass>,
    ) -> Result<(u64, Stored), Failure> {
        let (inode, len) = (&handle.inode, payload.len() as u64);
        let mut cuts = 0;
        loop {
            let gap = !append && offset > inode.len();
            let under = append.then(|| inode.epoch());
            let before = inode.len();
            let place = inode.begin_write(offset, len, append);
            drop(first.take());
            if let Some(piece) = piece {
                let sure = append || self.rt.now() < inode.lease.get();
                let len = if append { place } else { before };
                inode.direct.placed(piece, Before { len, sure, at: place });
            }
            if place.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
                let _ = inode.end_write(None, 0, 0);
                return Err(Failure::Errno(EFBIG));
            }
            let spot = Spot { place, gap, under };
            match self.store(inode, &handle.opened, spot, payload.clone(), None).await {
                Err(e) if append && e.status == Status::Stale && cuts < CUTS_MAX => {
                    cuts += 1;
                    let (attr, _) = Box::pin(self.fresh(inode.id)).await?;
                    handle.opened.file.update_attr(&attr);
                }
                told => {
                    let told = told?;
                    if let Some(piece) = piece {
                        inode.direct.stored(piece, place + len, told.with_meta.is_some());
                    }
                    return Ok((place, told));
                }
            }
        }
    }

    /// Whether a program with this content may get privileges by its mode. Meta tells writers when that may have become so.
    async fn has_privileges(&self, inode: &OpenInode<S::File>) -> Result<bool, Failure> {
        if !inode.mode_known.replace(true)
            && let Err(e) = Box::pin(self.fresh(inode.id)).await
        {
            inode.mode_known.set(false);
            return Err(e);
        }
        Ok(inode.mode() & SUID_SGID != 0)
    }

    /// A write by someone without the privilege takes set-user-id and set-group-id away. The writer need not own the file, so this is done as root, but
    /// with his groups; a mount that may not speak as root speaks as him.
    pub(crate) async fn kill_suid(&self, handle: &Handle<S::File>) -> Result<(), Failure> {
        if !self.has_privileges(&handle.inode).await? {
            return Ok(());
        }
        let (attr, writer) = (handle.inode.attr(), &handle.caller);
        let in_group = writer.gid == attr.gid || writer.groups.contains(&attr.gid);
        if without_privileges(attr.mode, in_group) == attr.mode {
            return Ok(());
        }
        let as_root =
            Caller { gid: writer.gid, groups: writer.groups.clone(), ..self.callers.root() };
        let q = |caller: Caller| SetAttr {
            caller,
            request: RequestId(self.rt.random_u128()),
            inode: handle.inode.id,
            session: handle.opened.file.session(),
            unprivileged_write: true,
            ..SetAttr::default()
        };
        let r = match self.fs.setattr(q(as_root)).await {
            Err(e) if matches!(e.status, Status::NotPermitted | Status::AccessDenied) => {
                self.fs.setattr(q(writer.clone())).await?
            }
            other => other?,
        };
        let left = without_privileges(r.attr.mode, in_group);
        let r = if left == r.attr.mode {
            r
        } else {
            // A meta service of an older release, which does not know that wish.
            let q =
                SetAttr { unprivileged_write: false, mode: Some(left), ..q(self.callers.root()) };
            self.fs.setattr(q).await?
        };
        self.inodes.seen(&r.attr);
        self.forget_attr(handle.inode.id);
        Ok(())
    }

    /// The kernel cannot know that we changed the mode: it is told, beside this request.
    fn forget_attr(&self, inode: glowfs_types::InodeId) {
        if let Some(session) = self.session.borrow().upgrade() {
            self.rt.spawn_detached(async move {
                if let Err(e) = session.notify_inval_inode(inode.0, -1, 0).await {
                    tracing::debug!(%inode, error = %e, "the kernel was not told to forget");
                }
            });
        }
    }
}
