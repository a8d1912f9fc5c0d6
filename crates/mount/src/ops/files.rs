//! Open files: opening, creating, telling meta. How they are closed is in [`super::closing`].

use crate::attr::time_of;
use crate::daemon::{Answer, Context, Daemon, Failure, Outcome, fail};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use crate::inodes::Pin;
use crate::known::Edit;
use crate::open::{Dirty, OpenInode, OpenedFile};
use crate::ops::names::one;
use crate::ops::open_flags::*;
use crate::uses::Uses;
use glowfs_client::FileAccess;
use glowfs_fuse::abi::fopen;
use glowfs_types::wire::meta::*;
use glowfs_types::{InodeId, RequestId, SessionId, Status};
use libc::{EBADF, EROFS, ESTALE};
use std::rc::Rc;

/// What the flags of open(2) ask for.
#[derive(Clone, Copy)]
struct Wish {
    read: bool,
    write: bool,
    truncate: bool,
    direct: bool,
    append: bool,
    durable: bool,
    no_atime: bool,
    exec: bool,
}

impl Wish {
    fn of(flags: u32) -> Self {
        let mode = flags & O_ACCMODE;
        let write = mode == O_WRONLY || mode == O_RDWR;
        Self {
            read: mode != O_WRONLY,
            write,
            // O_TRUNC with O_RDONLY cuts, too (if the caller may write), through a session like any other.
            truncate: flags & O_TRUNC != 0,
            append: flags & O_APPEND != 0,
            exec: flags & FMODE_EXEC != 0,
            // The kernel must not cache an append where it believes the end of the file to be.
            direct: flags & O_DIRECT != 0 || (write && flags & O_APPEND != 0),
            durable: flags & O_DSYNC != 0,
            no_atime: flags & O_NOATIME != 0,
        }
    }
    fn writes(self) -> bool {
        self.write || self.truncate
    }
}

impl<S: FileSystem> Context<S> {
    pub(crate) async fn open(&self, flags: u32) -> Outcome {
        let wish = Wish::of(flags);
        if self.config.read_only && wish.writes() {
            return fail(EROFS);
        }
        let inode = self.inodes.pin(InodeId(self.header.node));
        let caller = self.caller();
        let pass =
            if wish.truncate { inode.gate.exclusive().await } else { inode.gate.shared().await };
        if wish.truncate {
            self.all_sent(&inode).await;
        }
        // The kernel has checked permissions, so a file that is open here with the same rights is shared.
        let file = match inode.find(&self.access(wish, &caller)) {
            // Whether a file with flags may be opened so, only meta says.
            Some(file) if !wish.truncate && (!wish.write || inode.attr().flags == 0) => file,
            _ => {
                let asked = self.asking();
                let opened = self.open_at_meta(&inode, wish, &caller).await;
                if let Err(Failure::Error(e)) = &opened
                    && wish.truncate
                {
                    self.may_be_cut(&inode, e);
                }
                let reply = opened?;
                inode.lease.set(self.lease_end(asked, inode.id, reply.lease_ms));
                inode.bare.set(false);
                if wish.truncate {
                    self.inodes.drop_cache(inode.id);
                    inode.merge_truncated(&reply.attr);
                    // The kernel takes its length for that, without being told.
                    inode.direct.kernel_was_told(0);
                }
                self.inodes.seen(&reply.attr);
                let file = self.adopt(&inode, &reply, wish, &caller)?;
                if let Some(bytes) = reply.content {
                    inode.keep_content(&reply.attr, bytes.into());
                }
                file
            }
        };
        drop(pass);
        let (fh, answer) = self.add_handle(inode, file, caller, wish);
        Ok(Answer::Open(fh, answer))
    }

    async fn open_at_meta(
        &self,
        inode: &OpenInode<S::File>,
        wish: Wish,
        caller: &Caller,
    ) -> Result<OpenReply, Failure> {
        let q = Open {
            caller: caller.clone(),
            request: RequestId(self.rt.random_u128()),
            inode: inode.id,
            flags: self.meta_flags(wish),
        };
        Ok(self.fs.open(q).await?)
    }
    fn meta_flags(&self, wish: Wish) -> OpenFlags {
        OpenFlags {
            read: wish.read,
            write: wish.writes(),
            truncate: wish.truncate,
            append: wish.append,
            session: if wish.writes() { self.fs.new_session() } else { SessionId(0) },
            inline: true,
            exec: wish.exec,
        }
    }
    fn access(&self, wish: Wish, caller: &Caller) -> FileAccess {
        let Wish { read, write, exec, .. } = wish;
        FileAccess { caller: caller.clone(), read, write, exec }
    }
    fn adopt(
        &self,
        inode: &OpenInode<S::File>,
        reply: &OpenReply,
        wish: Wish,
        caller: &Caller,
    ) -> Result<Rc<OpenedFile<S::File>>, Failure> {
        let access = FileAccess { write: wish.writes(), ..self.access(wish, caller) };
        let file = self.fs.open_file(reply, access.clone())?;
        // What is known here may be newer than the answer, and nobody would tell the file of it any more.
        file.update_attr(&inode.attr());
        Ok(inode.add(file, access))
    }

    /// A handle, and which promises the kernel gets with it.
    fn add_handle(
        &self,
        inode: Pin<S::File>,
        opened: Rc<OpenedFile<S::File>>,
        caller: Caller,
        wish: Wish,
    ) -> (u64, u32) {
        let promises = self.open_flags(&inode, wish);
        let handle = Handle {
            opened,
            caller,
            read: wish.read,
            write: wish.write,
            no_atime: wish.no_atime,
            direct: wish.direct,
            durable: wish.durable,
            heard: inode.late.begin(),
            uses: Uses::default(),
            inode,
        };
        (self.inodes.handles.add_file(handle), promises)
    }
    /// Which promises the kernel gets with a handle.
    fn open_flags(&self, inode: &OpenInode<S::File>, wish: Wish) -> u32 {
        let mut flags = 0;
        if wish.direct {
            // Each read and write comes here as it is, and writes inside the file come in parallel.
            flags |= fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        }
        let (now, rule) = (time_of(self.rt.unix_ns()), self.config.atime_rule(InodeKind::File));
        let unseen = wish.read && inode.attr().wants_atime(rule, now);
        if inode.dirty().is_some() || inode.back().last() != 0 || unseen {
            // A read that moves the time of last access has to come here.
            self.inodes.drop_cache(inode.id);
        } else if !wish.truncate && self.inodes.may_keep_cache(&inode.attr()) {
            flags |= fopen::KEEP_CACHE;
            inode.given_pages.kept();
        }
        flags
    }

    /// O_CREAT with a mode and a umask; `unnamed`: O_TMPFILE.
    pub(crate) async fn create(
        &self,
        name: Vec<u8>,
        flags: u32,
        mode: (u32, u32),
        unnamed: bool,
    ) -> Outcome {
        let parent = InodeId(self.header.node);
        let (mode, umask) = self.inodes.masked(parent, mode);
        let wish = Wish::of(flags);
        let caller = self.caller();
        let q = Make {
            caller: caller.clone(),
            request: RequestId(self.rt.random_u128()),
            parent,
            name: name.clone().into(),
            kind: InodeKind::File,
            mode: mode & 0o7777,
            rdev: 0,
            symlink: Vec::new(),
            open: Some(self.meta_flags(wish)),
            exclusive: flags & O_EXCL != 0,
            unnamed,
            umask,
        };
        let changing = (!unnamed).then(|| self.directories.change(&[parent], true));
        let asked = self.asking();
        let made = match self.fs.make(q).await {
            // Another client has just made something at this name that is not opened here, a symlink or a FIFO. The kernel, which has found nothing there, looks
            // the path up again then, and follows the one and opens the other itself.
            Err(e) if matches!(e.status, Status::Loop | Status::NotSupported) => {
                return fail(ESTALE);
            }
            made => made?,
        };
        if made.attr.kind != InodeKind::File {
            return fail(ESTALE);
        }
        if let Some(changing) = changing {
            let edit = || vec![Edit::Add(&name, made.attr.inode)];
            self.changed_dirs(changing, asked, one(&made.dir), |_| edit());
        }
        self.before_longer(&made.attr).await;
        let inode = self.inodes.pin(made.attr.inode);
        let end = self.lease_end(asked, inode.id, made.lease_ms);
        inode.lease.set(inode.lease.get().max(end));
        let entry = self.entry(&made.attr, end);
        self.inodes.seen_of(&made.attr, asked.recalls());
        if one(&made.dir).iter().any(|d| d.attr.entries != Some(d.before)) {
            self.inodes.made(inode.id, end);
        }
        let reply = match made.open {
            Some(reply) => reply,
            None => self.open_at_meta(&inode, Wish { truncate: false, ..wish }, &caller).await?,
        };
        self.inodes.seen(&reply.attr);
        let file = self.adopt(&inode, &reply, wish, &caller)?;
        let (fh, answer) = self.add_handle(inode, file, caller, wish);
        Ok(Answer::Create(entry, fh, answer))
    }

    /// Tells meta what our writes did, if it does not know.
    pub(crate) async fn report(
        &self,
        handle: &Handle<S::File>,
        durable: bool,
    ) -> Result<(), Failure> {
        self.all_sent(&handle.inode).await;
        let dirty = handle.inode.dirty();
        if dirty.is_none() && !durable {
            return Ok(());
        }
        let allocated = self.counted(&handle.inode, durable).await;
        self.report_counted(handle, dirty, durable, allocated).await
    }
    /// The same before a lock is given back: others wait for that, and chains that are away are not to keep them. What is not counted so is with the next report.
    pub(crate) async fn report_uncounted(&self, handle: &Handle<S::File>) -> Result<(), Failure> {
        self.all_sent(&handle.inode).await;
        match handle.inode.dirty() {
            dirty @ Some(_) => self.report_counted(handle, dirty, false, None).await,
            None => Ok(()),
        }
    }
    /// `dirty`: from before it was counted.
    async fn report_counted(
        &self,
        handle: &Handle<S::File>,
        dirty: Option<Dirty>,
        durable: bool,
        allocated: Option<u64>,
    ) -> Result<(), Failure> {
        let inode = &handle.inode;
        let q = Sync { allocated, ..self.sync_of(handle, durable) };
        // Of a reader, when the session of who wrote has ended, meta takes no length.
        let told = dirty.filter(|_| q.session.is_some()).unwrap_or_default();
        let wrote = u64::from(q.tells_of_writes());
        let r = self.fs.sync(q).await?;
        inode.reported(told, allocated.is_some(), &r.attr);
        if wrote > 0 && self.inodes.changed_here(&r.attr, wrote) {
            self.forget_pages_later(r.attr.inode);
        }
        if durable {
            inode.durable(&r.attr);
        }
        Ok(())
    }
    /// Tells meta when a file was read that nobody here has open for writing, together with ends of sessions. Beside the request: until meta knows,
    /// what this client shows has the new time already, because the handle is kept.
    pub(super) fn report_access(&self, handle: Rc<Handle<S::File>>) {
        let q = self.sync_of(&handle, false);
        let Some(atime) = q.atime else { return };
        // Whoever has the file open for writing reports, and ends its session itself.
        let alone = q.session.is_none() && self.fs.closes_room();
        let daemon = self.daemon.clone();
        let work = (daemon.work(), handle.inode.telling_access.begin());
        self.rt.spawn_detached(async move {
            let _work = work;
            let told = match alone {
                true => daemon.fs.close_later(q).await.map(|()| handle.inode.access_told(atime)),
                false => {
                    let done = daemon.fs.sync(q).await;
                    done.map(|r| handle.inode.reported(Dirty::default(), false, &r.attr))
                }
            };
            if let Err(e) = told {
                tracing::debug!(error = %e, "a time of last access is lost");
            }
        });
    }
    fn sync_of(&self, handle: &Handle<S::File>, durable: bool) -> Sync {
        // Whoever has the file open for writing reports; a handle for reading has no session of its own.
        let writer = handle.inode.find_writable();
        let file = writer.as_ref().unwrap_or(&handle.opened);
        self.sync_query(&handle.inode, file, &handle.caller, durable)
    }

    pub(crate) async fn flush(&self, fh: u64, owner: u64) -> Outcome {
        let Some(handle) = self.inodes.handles.file(fh) else { return fail(EBADF) };
        handle.inode.direct.over();
        let reported = self.report(&handle, false).await;
        self.unlock_closing(fh, owner).await?;
        handle.inode.note_losses(handle.opened.file.losses());
        self.with_late(&handle, reported.map(|()| Answer::Done))
    }
    /// Nobody waits for the answer, but the kernel counts it among few: it comes at once, also if rings use the file still.
    pub(crate) async fn release(&self, fh: u64) -> Outcome {
        let Some(handle) = self.inodes.handles.file(fh) else { return self.let_go(fh).await };
        if !handle.uses.close() {
            return self.let_go(fh).await;
        }
        let (context, work) = (self.clone(), self.daemon.work());
        self.rt.spawn_detached(async move {
            let _work = work;
            handle.uses.ended().await;
            if context.let_go(fh).await.is_err() {
                tracing::debug!(inode = %handle.inode.id, "not closed in order after its ring operations");
            }
        });
        Ok(Answer::Done)
    }

    async fn let_go(&self, fh: u64) -> Outcome {
        let unlocked = self.unlock_released(fh).await;
        self.close(fh).await?;
        unlocked?;
        Ok(Answer::Done)
    }
}

impl<S: FileSystem> Daemon<S> {
    /// What is to be told to meta of an open inode, through a file of it.
    pub(crate) fn sync_query(
        &self,
        inode: &OpenInode<S::File>,
        through: &OpenedFile<S::File>,
        caller: &Caller,
        durable: bool,
    ) -> Sync {
        let dirty = inode.dirty().unwrap_or_default();
        if dirty.len.is_some() {
            inode.direct.report();
        }
        let file = &through.file;
        Sync {
            caller: caller.clone(),
            request: RequestId(self.rt.random_u128()),
            inode: inode.id,
            session: file.session(),
            len_at_least: dirty.len,
            epoch: if dirty.len.is_some() { dirty.epoch } else { file.epoch() },
            wrote: dirty.wrote,
            mtime: dirty.mtime,
            atime: inode.read_at(),
            durable,
            ..Sync::default()
        }
    }
}
