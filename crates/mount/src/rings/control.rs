//! The control messages of [`glowfs_usrbio::control`]: ioctls on directories and files of the mount.

use super::closing::Kept;
use super::session::{Ring, Session, SharedBuffer};
use super::{FILES_MAX, adopt, serve};
use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::filesystem::FileSystem;
use crate::ops::{FSGETXATTR, FSSETXATTR, GETFLAGS, SETFLAGS};
use glowfs_fuse::abi::IoctlIn;
use glowfs_rt::sync::Notify;
use glowfs_types::Depth;
use glowfs_usrbio::control::{self, Control};
use glowfs_usrbio::{Kind, RING_VERSION, flags, ring_bytes};
use libc::{EACCES, EBADF, EBUSY, EINVAL, ENOENT, ENOMEM, ENOSPC, ENOTTY, EOPNOTSUPP};
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// The descriptor is a directory (fuse.h).
const FUSE_IOCTL_DIR: u32 = 1 << 4;

/// What the application gets for a descriptor or memory that cannot be used.
fn refused(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |e| {
        tracing::debug!(what, error = %e, "refused");
        Failure::Errno(e.raw_os_error().unwrap_or(match e.kind() {
            io::ErrorKind::OutOfMemory => ENOMEM,
            _ => EINVAL,
        }))
    }
}

fn parse<C: Control>(data: &[u8]) -> Result<C, Failure> {
    C::read_from_bytes(data).map_err(|_| Failure::Errno(EINVAL))
}
fn answer<C: Control>(record: C) -> Outcome {
    Ok(Answer::Ioctl(record.as_bytes().to_vec()))
}

impl<S: FileSystem> Context<S> {
    pub(crate) async fn ioctl(&self, head: IoctlIn, data: Vec<u8>) -> Outcome {
        use control::*;
        let directory = head.flags & FUSE_IOCTL_DIR != 0;
        match (head.cmd, directory) {
            (GETFLAGS | SETFLAGS | FSGETXATTR | FSSETXATTR, _) => self.flags(head.cmd, &data).await,
            (Ask::COMMAND, _) => answer(Ask { mark: MARK, version: RING_VERSION, reserved: 0 }),
            (Open::COMMAND, true) => self.open_session(head.fh, parse(&data)?),
            (AddFile::COMMAND, false) => self.add_file(head.fh, parse(&data)?),
            (AddBuffer::COMMAND, true) => {
                self.add_buffer(&*self.ring_session(&head)?, parse(&data)?).await
            }
            (AddRing::COMMAND, true) => {
                self.add_ring(self.ring_session(&head)?, parse(&data)?).await
            }
            (NameBuffer::COMMAND, true) => {
                let q: NameBuffer = parse(&data)?;
                self.name_buffer(&*self.ring_session(&head)?, head.fh, q)?;
                answer(q)
            }
            (LocateBuffer::COMMAND, true) => {
                self.ring_session(&head)?;
                answer(self.locate_buffer(parse(&data)?)?)
            }
            (FindBuffer::COMMAND, true) => {
                self.ring_session(&head)?;
                let mut q: FindBuffer = parse(&data)?;
                let at = self.locate_buffer(LocateBuffer { name: q.name, ..Default::default() })?;
                (q.process, q.fd, q.len) = (at.process, at.fd, at.len);
                answer(q)
            }
            (RemoveBuffer::COMMAND, true) => {
                let q: RemoveBuffer = parse(&data)?;
                let gone = self.ring_session(&head)?.buffers.borrow_mut().remove(&q.buffer);
                gone.map_or_else(|| fail(EBADF), |_| answer(q))
            }
            (RemoveFile::COMMAND, true) => {
                let q: RemoveFile = parse(&data)?;
                let gone = self.ring_session(&head)?.files.borrow_mut().remove(&q.file);
                gone.map_or_else(|| fail(EBADF), |_| answer(q))
            }
            (RemoveRing::COMMAND, true) => {
                let q: RemoveRing = parse(&data)?;
                let Some(ring) = self.ring_session(&head)?.rings.borrow_mut().remove(&q.ring)
                else {
                    return fail(EBADF);
                };
                ring.end();
                answer(q)
            }
            _ => fail(ENOTTY),
        }
    }

    fn ring_session(&self, head: &IoctlIn) -> Result<Rc<Session>, Failure> {
        self.rings.session(head.fh).ok_or(Failure::Errno(EBADF))
    }

    fn open_session(&self, directory: u64, mut q: control::Open) -> Outcome {
        if q.version != RING_VERSION {
            return fail(EOPNOTSUPP);
        }
        if self.inodes.handles.dir(directory).is_none() {
            return fail(EBADF);
        }
        let mut sessions = self.rings.sessions.borrow_mut();
        if sessions.contains_key(&directory) {
            return fail(EBUSY);
        }
        let user = self.header.uid;
        let Some(share) = self.rings.session_shares.take(user) else { return fail(ENOSPC) };
        (q.session, q.secret) = (directory, self.rt.random());
        sessions.insert(directory, Rc::new(Session::new(q.secret, user, share)));
        answer(q)
    }

    fn add_file(&self, handle: u64, mut q: control::AddFile) -> Outcome {
        let session = self.rings.session(q.session).filter(|s| s.secret == q.secret);
        let Some(session) = session else { return fail(EACCES) };
        if self.inodes.handles.file(handle).is_none() {
            return fail(EBADF);
        }
        let mut files = session.files.borrow_mut();
        if files.len() >= FILES_MAX {
            return fail(ENOSPC);
        }
        q.file = self.rings.number(&files);
        files.insert(q.file, handle);
        answer(q)
    }

    /// Looks at descriptors of the caller, where waiting does no harm.
    async fn at_descriptors<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.rings.adoptions.run(&self.rt, self.header.uid, work).await
    }

    async fn add_buffer(&self, session: &Session, mut q: control::AddBuffer) -> Outcome {
        let Some((taken, _coming)) = self.rings.room.for_buffer(session) else {
            return fail(ENOSPC);
        };
        let (thread, number, len) = (self.header.pid, q.fd, q.len);
        let fetched = self.at_descriptors(move || adopt::buffer(thread, number, len)).await;
        let (memory, process, which) = fetched.map_err(refused("a buffer"))?;
        let memory = Kept::new(&self.rt, &self.rings.closing, Arc::new(memory), taken);
        if session.ended.get() {
            return fail(EBADF);
        }
        let mut buffers = session.buffers.borrow_mut();
        q.buffer = self.rings.number(&buffers);
        let (memory, place) = (self.rings.copies.lend(memory), (process, q.fd, which));
        buffers.insert(q.buffer, SharedBuffer { memory, place, name: None });
        answer(q)
    }

    fn name_buffer(
        &self,
        session: &Session,
        directory: u64,
        q: control::NameBuffer,
    ) -> Result<(), Failure> {
        let mut buffers = session.buffers.borrow_mut();
        let buffer = buffers.get_mut(&q.buffer).ok_or(Failure::Errno(EBADF))?;
        // In this order: it may be the same name.
        buffer.name = None;
        buffer.name = self.rings.names.give(q.name, (directory, q.buffer));
        Ok(())
    }

    /// Only tells where the memory is: whether the caller may open it there, its kernel decides.
    fn locate_buffer(
        &self,
        mut q: control::LocateBuffer,
    ) -> Result<control::LocateBuffer, Failure> {
        let missing = || Failure::Errno(ENOENT);
        let (directory, number) = self.rings.names.find(q.name).ok_or_else(missing)?;
        let session = self.rings.session(directory).ok_or_else(missing)?;
        let buffers = session.buffers.borrow();
        let buffer = buffers.get(&number).ok_or_else(missing)?;
        let ((process, fd, which), len) = (buffer.place, buffer.memory.memory.len());
        (q.process, q.fd, q.len) = (process, fd, len);
        (q.device, q.inode) = (which.device, which.inode);
        Ok(q)
    }

    async fn add_ring(&self, session: Rc<Session>, mut q: control::AddRing) -> Outcome {
        let kind = match q.kind {
            1 => Kind::Read,
            2 => Kind::Write,
            _ => return fail(EINVAL),
        };
        if q.flags & !flags::KNOWN != 0 || i64::from(q.io_depth) > i64::from(q.entries) {
            return fail(EINVAL);
        }
        if q.entries == 0 || q.entries > glowfs_usrbio::ENTRIES_MAX {
            return fail(EINVAL);
        }
        let (thread, memory, len) = (self.header.pid, q.memory, ring_bytes(q.entries));
        let Some((taken, _coming)) = self.rings.room.for_ring(&session, len) else {
            return fail(ENOSPC);
        };
        let consumer = self.at_descriptors(move || adopt::ring(thread, memory, q.entries)).await;
        let consumer = consumer.map_err(refused("the memory of a ring"))?;
        let consumer = Kept::new(&self.rt, &self.rings.closing, consumer, taken);
        let bell = self.at_descriptors(move || adopt::doorbell(thread, q.doorbell)).await;
        let bell = bell.map_err(refused("a doorbell"))?;
        if session.ended.get() {
            return fail(EBADF);
        }
        let ring = Rc::new(Ring {
            consumer,
            bell,
            kind,
            depth: Depth(q.io_depth),
            priority: q.priority,
            timeout_ms: q.timeout_ms,
            flags: q.flags,
            ended: Cell::new(false),
            moved: Notify::default(),
        });
        q.ring = self.rings.number(&session.rings.borrow());
        session.rings.borrow_mut().insert(q.ring, ring.clone());
        self.rt.spawn_detached(serve::serve(self.clone(), session.clone(), ring));
        answer(q)
    }
}
