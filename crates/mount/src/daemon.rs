//! [`Daemon`]: takes requests of the kernel, gives each a task, sends the answers.

use crate::MountConfig;
use crate::astray::Astray;
use crate::caller::{Callers, is_killed};
use crate::errno::errno;
use crate::filesystem::FileSystem;
use crate::forgetting::Forgetting;
use crate::inodes::Inodes;
use crate::known::Directories;
use crate::metrics::Metrics;
use crate::moves::Moves;
use crate::ops::{Appends, Owners, Unanswered, WriteBack};
use crate::rings::{Limits, Rings};
use glowfs_fuse::abi;
use glowfs_fuse::{Header, Incoming, Op, Reply, Session};
use glowfs_rt::{Buf, Duration, Instant, Rt};
use glowfs_types::wire::meta::Caller;
use glowfs_types::{Error, InodeId, VolumeId};
use libc::{EINTR, EIO, ENOSYS};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::Poll;

/// What a request is answered with.
pub enum Answer {
    /// Success, nothing to say.
    Done,
    /// Bytes.
    Bytes(Vec<u8>),
    /// Payload.
    Data(Buf),
    /// LOOKUP and what makes names.
    Entry(Box<abi::EntryOut>),
    /// GETATTR, SETATTR.
    Attr(Box<abi::AttrOut>),
    /// OPEN, OPENDIR: handle and flags.
    Open(u64, u32),
    /// CREATE.
    Create(Box<abi::EntryOut>, u64, u32),
    /// WRITE.
    Written(u32),
    /// GETXATTR, LISTXATTR: the size asked for, the value.
    Xattr(u32, Vec<u8>),
    /// IOCTL: what goes back.
    Ioctl(Vec<u8>),
    /// STATFS.
    Statfs(Box<abi::StatfsOut>),
    /// GETLK.
    Lock(abi::LkOut),
    /// LSEEK.
    Seek(u64),
}

/// Why a request failed.
pub enum Failure {
    /// The kernel is told this errno.
    Errno(i32),
    /// Something to log when it is not plain POSIX.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

/// The outcome of a request.
pub type Outcome = Result<Answer, Failure>;
/// A request in work.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// Fails with an errno.
pub fn fail(errno: i32) -> Outcome {
    Err(Failure::Errno(errno))
}

/// One mount's state.
pub struct Daemon<S: FileSystem> {
    /// The runtime.
    pub rt: Rt,
    /// The file system below.
    pub fs: Rc<S>,
    /// What is open and known.
    pub inodes: Rc<Inodes<S::File>>,
    /// What is known of directories that this client changes.
    pub directories: Rc<Directories>,
    /// Where names were renamed to.
    pub moves: Rc<Moves>,
    /// Who asks.
    pub callers: Callers,
    /// Who may have locks.
    pub owners: RefCell<Owners>,
    /// Which files may be appended to without asking.
    pub appends: Appends,
    /// Writes that were answered before they were sent, if there may be such.
    pub write_back: Option<WriteBack>,
    /// Closes that meta has not answered.
    pub unanswered: Unanswered,
    /// Itself.
    pub this: Weak<Self>,
    /// Settings.
    pub config: MountConfig,
    pub(crate) metrics: Metrics,
    /// User-space rings.
    pub rings: Rings,
    /// Files whose pages the kernel is forgetting.
    pub(crate) forgetting: Rc<Forgetting>,
    /// Renames that meet directories under names that others have taken from them.
    pub(crate) astray: Astray,
    /// The longest lease that meta gave.
    pub longest_lease: Cell<Duration>,
    /// The way to the kernel, for notifications.
    pub session: RefCell<Weak<Session>>,
    /// Requests in work.
    busy: Cell<u64>,
}

/// See [`Daemon::work`].
pub struct Work<S: FileSystem>(Rc<Daemon<S>>);

impl<S: FileSystem> Drop for Work<S> {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

/// When a question to meta began, and how many recalls had come by then.
#[derive(Clone, Copy)]
pub struct Asked {
    /// When.
    pub at: Instant,
    recalls: u64,
    /// How many of our changes of directories had begun or ended by then.
    pub tick: u64,
}

impl Asked {
    /// How many recalls had come by then, and changes been seen.
    pub fn recalls(self) -> u64 {
        self.recalls
    }
}

/// One request on its way through.
pub struct Context<S: FileSystem> {
    /// The mount.
    pub daemon: Rc<Daemon<S>>,
    /// Its header.
    pub header: Header,
    groups: Vec<u32>,
    /// See [`crate::rights`].
    pub admitted: bool,
}

impl<S: FileSystem> Clone for Context<S> {
    fn clone(&self) -> Self {
        let Self { daemon, header, groups, admitted } = self;
        let (daemon, groups) = (daemon.clone(), groups.clone());
        Self { daemon, header: *header, groups, admitted: *admitted }
    }
}

impl<S: FileSystem> std::ops::Deref for Context<S> {
    type Target = Daemon<S>;
    fn deref(&self) -> &Daemon<S> {
        &self.daemon
    }
}

impl<S: FileSystem> Context<S> {
    /// Who asks.
    pub fn caller(&self) -> Caller {
        let admitted = self.admitted;
        Caller { admitted, ..self.callers.of(&self.header, &self.groups) }
    }
    /// The same request, of which the kernel has seen to it that its caller may do that.
    pub(crate) fn as_admitted(&self) -> Self {
        Self { admitted: true, ..self.clone() }
    }
    /// The same request by somebody else.
    pub fn as_caller(&self, who: &Caller) -> Self {
        // His groups are known: no process is asked for them.
        let header = Header { uid: who.uid, gid: who.gid, pid: 0, ..self.header };
        let (daemon, groups) = (self.daemon.clone(), who.groups.clone());
        Self { daemon, header, groups, admitted: who.admitted }
    }
}

impl<S: FileSystem> Daemon<S> {
    /// A mount of `fs`.
    pub fn new(rt: &Rt, fs: Rc<S>, config: MountConfig) -> Rc<Self> {
        let ttl = Duration::from_millis(config.groups_ttl_ms);
        let limits = Limits {
            descriptors: glowfs_rt::process::raise_descriptor_limit(),
            mappings: glowfs_rt::process::mappings_max(),
            requests: config.max_outstanding,
        };
        Rc::new_cyclic(|this| Self {
            rt: rt.clone(),
            fs,
            inodes: Inodes::new(),
            directories: Rc::default(),
            moves: Rc::default(),
            callers: Callers::new(rt, VolumeId(config.volume), ttl),
            owners: RefCell::default(),
            appends: Appends::default(),
            write_back: config.writes_back().then(WriteBack::default),
            unanswered: Unanswered::default(),
            this: this.clone(),
            config,
            metrics: Metrics::new(),
            rings: Rings::new(limits),
            forgetting: Rc::default(),
            astray: Astray::default(),
            longest_lease: Cell::new(Duration::ZERO),
            session: RefCell::default(),
            busy: Cell::new(0),
        })
    }

    /// Serves until the file system is unmounted.
    pub async fn serve(self: Rc<Self>, session: Rc<Session>) -> std::io::Result<()> {
        while let Some(incoming) = session.next().await? {
            self.take(incoming);
        }
        Ok(())
    }

    /// Requests in work.
    pub fn busy(&self) -> u64 {
        self.busy.get()
    }

    fn take(self: &Rc<Self>, incoming: Incoming) {
        let Incoming { header, op, payload, groups, reply } = incoming;
        let Some(reply) = reply else {
            if let Op::Forget(list) = op {
                for (inode, lookups) in list {
                    self.inodes.forget(inode, lookups);
                }
            }
            return;
        };
        let context = Context { daemon: self.clone(), header, groups, admitted: false };
        self.busy.set(self.busy.get() + 1);
        self.rt.spawn_detached(async move {
            let daemon = context.daemon.clone();
            let began = daemon.rt.turn_began();
            let Header { opcode, node, pid: caller, .. } = context.header;
            // `reply` moves into the answer below, so the work borrows it only here. A task is moved to the heap as a whole, and is as
            // large as the largest of its branches: only what a READ needs stands here itself.
            let outcome = match op {
                Op::Read(i) => context.read(i, &reply).await,
                op => {
                    let work = context.run_by_rights(op, payload, &reply);
                    match may_stop(opcode) {
                        true => daemon.race(work, caller, &reply).await,
                        false => work.await,
                    }
                }
            };
            let failed = outcome.is_err();
            send(reply, outcome, opcode, node);
            daemon.metrics.record(opcode, daemon.rt.turn_began().since(began), failed);
            daemon.busy.set(daemon.busy.get() - 1);
        });
    }

    /// Runs the work; it is given up some time after its caller was killed, who otherwise could not end. Whoever only got a signal that he handles waits on:
    /// stat(2), access(2) and their like know no EINTR, and the kernel would hand ours on, SA_RESTART or not.
    async fn race(&self, mut work: Running<'_>, caller: u32, reply: &Reply) -> Outcome {
        let grace = Duration::from_millis(self.config.interrupt_grace_ms);
        let mut stop = pin!(async {
            reply.interrupted().await;
            self.rt.sleep(grace).await;
            // The signal that interrupted it may have been another one.
            while !is_killed(caller) {
                self.rt.sleep(KILLED_LOOK_PAUSE).await;
            }
        });
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(out) => Poll::Ready(out),
            Poll::Pending => stop.as_mut().poll(cx).map(|()| fail(EINTR)),
        })
        .await
    }

    /// Counts one piece of work that [`Daemon::busy`] is to wait for, until the result is dropped.
    pub fn work(self: &Rc<Self>) -> Work<S> {
        self.busy.set(self.busy.get() + 1);
        Work(self.clone())
    }
    /// Counts what an application read.
    pub fn count_read(&self, bytes: usize) {
        self.metrics.read_bytes.add(bytes as u64);
    }
    /// Counts what an application wrote.
    pub fn count_written(&self, bytes: usize) {
        self.metrics.written_bytes.add(bytes as u64);
    }
    /// Call before meta is asked for what it may lease.
    pub fn asking(&self) -> Asked {
        let (recalls, tick) = (self.inodes.recalls(), self.directories.tick());
        Asked { at: self.rt.now(), recalls, tick }
    }
    /// Until when what meta leased for `lease_ms` may be kept: the lease counts from before the question, and a recall that came
    /// since then ends it.
    pub fn lease_end(&self, asked: Asked, inode: InodeId, lease_ms: u64) -> Instant {
        if lease_ms == 0 || !self.inodes.may_lease(inode, asked.recalls) {
            return Instant(0);
        }
        let life = Duration::from_millis(lease_ms);
        self.longest_lease.set(self.longest_lease.get().max(life));
        asked.at + life
    }
    /// How long the kernel may keep attributes that are leased until then.
    pub fn valid(&self, end: Instant) -> Duration {
        // The kernel counts from when it has taken the answer in, which is later than now.
        let left = end.since(self.rt.now()) * 3 / 4;
        Duration::from_millis(self.config.attr_timeout_ms).min(left)
    }
}

/// Pause between looks whether a caller that got a signal was killed.
const KILLED_LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Whether a request whose caller was killed may be given up. Changing ones always run to their end: their outcome must be known.
fn may_stop(opcode: u32) -> bool {
    use abi::opcode::*;
    matches!(
        opcode,
        LOOKUP | GETATTR | READLINK | STATFS | GETXATTR | LISTXATTR | READDIR | READDIRPLUS
    )
}

/// Whether a request may change attributes of a directory, but no names in it.
fn touches(opcode: u32) -> bool {
    use abi::opcode::*;
    // To list one is to read it.
    matches!(opcode, SETATTR | SETXATTR | REMOVEXATTR | IOCTL | READDIR | READDIRPLUS)
}

fn send(reply: Reply, outcome: Outcome, opcode: u32, node: u64) {
    match outcome {
        Ok(Answer::Done) => reply.ok(),
        Ok(Answer::Bytes(b)) => reply.bytes(&b),
        Ok(Answer::Data(b)) => reply.data(b),
        Ok(Answer::Entry(e)) => reply.entry(&e),
        Ok(Answer::Attr(a)) => reply.attr(&a),
        Ok(Answer::Open(fh, flags)) => reply.open(fh, flags),
        Ok(Answer::Create(e, fh, flags)) => reply.create(&e, fh, flags),
        Ok(Answer::Written(n)) => reply.written(n),
        Ok(Answer::Xattr(asked, value)) => reply.xattr(asked, &value),
        Ok(Answer::Ioctl(data)) => reply.ioctl(&data),
        Ok(Answer::Statfs(st)) => reply.statfs(&st),
        Ok(Answer::Lock(lock)) => reply.lock(&lock),
        Ok(Answer::Seek(offset)) => reply.lseek(offset),
        Err(Failure::Errno(e)) => reply.error(e),
        Err(Failure::Error(e)) => {
            let number = errno(&e);
            if number == EIO {
                tracing::error!(op = abi::opcode_name(opcode), inode = node, error = %e, "an application gets EIO");
            } else {
                tracing::debug!(op = abi::opcode_name(opcode), inode = node, error = %e, "refused");
            }
            reply.error(number);
        }
    }
}

impl<S: FileSystem> Context<S> {
    /// What a request asks for. Each kind is a future of its own, no larger than that kind needs: most are small, some are not.
    pub(crate) fn run<'a>(&'a self, op: Op, payload: Option<Buf>, reply: &'a Reply) -> Running<'a> {
        match op {
            Op::Write(i) => Box::pin(self.write(i, payload, reply)),
            Op::Lookup { name } => Box::pin(self.lookup(name)),
            Op::Getattr { fh } => Box::pin(self.getattr(fh)),
            Op::Mkdir { name, mode, umask } => Box::pin(self.mkdir(name, mode, umask)),
            Op::Unlink { name } => Box::pin(self.unlink(name, false)),
            Op::Rmdir { name } => Box::pin(self.unlink(name, true)),
            Op::Rename { name, new_parent, new_name, flags } => {
                Box::pin(self.rename(name, new_parent, new_name, flags))
            }
            Op::Open { flags, .. } => Box::pin(self.open(flags)),
            Op::Create { name, flags, mode, umask, .. } => {
                Box::pin(self.create(name, flags, (mode, umask), false))
            }
            Op::Release(i) => Box::pin(self.release(i.fh)),
            Op::Flush(i) => Box::pin(self.flush(i.fh, i.lock_owner)),
            op => Box::pin(self.run_rarer(op, reply)),
        }
    }

    async fn run_rarer(&self, op: Op, reply: &Reply) -> Outcome {
        // Names that are made, moved and removed are followed in their place.
        let _changing = touches(self.header.opcode)
            .then(|| self.directories.change(&[InodeId(self.header.node)], false));
        match op {
            Op::Setattr(i) => self.setattr(*i).await,
            Op::Readlink => self.readlink().await,
            Op::Symlink { name, target } => self.symlink(name, target).await,
            Op::Mknod { name, mode, rdev, umask } => self.mknod(name, mode, rdev, umask).await,
            Op::Link { inode, new_name } => self.link(inode, new_name).await,
            Op::Statfs => self.statfs().await,
            Op::Fsync { fh, data_only } => self.fsync(fh, data_only).await,
            Op::Getlk(i) => self.getlk(i).await,
            Op::Setlk { lock, wait } => self.setlk(lock, wait, reply).await,
            Op::Opendir { .. } => Ok(Answer::Open(self.inodes.handles.add_dir(self.caller()), 0)),
            Op::Readdir(i) => self.readdir(i, false).await,
            Op::Readdirplus(i) => self.readdir(i, true).await,
            Op::Releasedir(i) => {
                self.rings.forget(i.fh);
                self.inodes.handles.remove_dir(i.fh);
                Ok(Answer::Done)
            }
            Op::Fsyncdir { .. } => self.fsyncdir().await,
            Op::Destroy => Ok(Answer::Done),
            Op::Syncfs => self.syncfs().await,
            Op::Setxattr { name, value, flags } => self.setxattr(name, value, flags).await,
            Op::Getxattr { name, size } => self.getxattr(name, size).await,
            Op::Listxattr { size } => self.listxattr(size).await,
            Op::Removexattr { name } => self.removexattr(name).await,
            Op::Lseek(i) => self.lseek(i).await,
            Op::CopyFileRange(i) => self.copy_file_range(i).await,
            Op::Fallocate(i) => self.fallocate(i).await,
            Op::Ioctl(head, data) => self.ioctl(head, data).await,
            Op::Tmpfile { flags, mode, umask } => {
                self.create(Vec::new(), flags, (mode, umask), true).await
            }
            // The kernel does these itself from the first ENOSYS on: permissions (default_permissions), polling,
            // block maps.
            _ => fail(ENOSYS),
        }
    }
}
