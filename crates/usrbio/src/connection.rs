//! What an application uses: a [`Connection`] to a mount, [`Buffer`]s, [`Ring`]s and [`RegisteredFile`]s.
//!
//! Everything is taken back by the daemon when the last of them is dropped, or when the process dies. What a forked child has of its parent's it may drop:
//! that ends nothing of the parent's. Rings stay with who made them: both would write the same indices.

use crate::control::{self, Control};
use crate::layout::{Completion, Kind, RING_VERSION, Submission};
use crate::liveness::Liveness;
use crate::maker::Maker;
use crate::memory::{Identity, SharedMemory};
use crate::mounts::mount_point_of;
use crate::producer::{Producer, Waiter};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Why an operation on a ring could not be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// As many operations as the ring has entries are outstanding: take completions first.
    #[error("as many operations as the ring has entries are outstanding; take completions first")]
    Full,
    /// Bytes outside the buffer.
    #[error("the bytes do not lie inside the buffer")]
    OutsideBuffer,
    /// Buffer, ring and file are of different connections.
    #[error("buffer, ring and file belong to different mounts")]
    OtherConnection,
    /// The ring is of the process that this one was forked from.
    #[error("the ring belongs to the process that this one was forked from")]
    Inherited,
}

struct Session {
    maker: Maker,
    directory: File,
    mount_point: PathBuf,
    session: u64,
    secret: u64,
    liveness: Liveness,
}

/// A session with the daemon of a mount. Clones are the same session.
#[derive(Clone)]
pub struct Connection(Arc<Session>);

/// Makes a control call; `what` says in an error what was wanted.
fn call<C: Control>(fd: BorrowedFd<'_>, message: &mut C, what: &str) -> io::Result<()> {
    // SAFETY: the command carries the size of the record, and the kernel reads and writes just that much of it.
    let r = unsafe {
        libc::ioctl(fd.as_raw_fd(), C::COMMAND as libc::Ioctl, std::ptr::from_mut(message))
    };
    if r < 0 {
        let e = io::Error::last_os_error();
        return Err(match e.raw_os_error() {
            // Kept as it is: callers in C want the number.
            Some(_) => e,
            None => io::Error::other(format!("{what}: {e}")),
        });
    }
    Ok(())
}

/// Whether an open descriptor is of a GlowFS mount that has rings.
pub(crate) fn is_ours(fd: &impl AsFd) -> bool {
    let mut ask = control::Ask::default();
    call(fd.as_fd(), &mut ask, "ask").is_ok() && ask.mark == control::MARK
}

impl Connection {
    /// Whether a descriptor is of a GlowFS mount that has rings.
    pub fn is_ours(fd: impl AsFd) -> bool {
        is_ours(&fd)
    }

    /// A session with the mount that `path` is on.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mount_point = mount_point_of(path)?;
        let directory = File::open(&mount_point)?;
        let mut open = control::Open { version: RING_VERSION, ..Default::default() };
        call(directory.as_fd(), &mut open, "a session")?;
        let control::Open { session, secret, .. } = open;
        let maker = Maker::this();
        let liveness = Liveness::default();
        let session = Session { maker, directory, mount_point, session, secret, liveness };
        Ok(Self(Arc::new(session)))
    }
    /// Where the mount is.
    pub fn mount_point(&self) -> &Path {
        &self.0.mount_point
    }
    /// The device number of the mount, as stat(2) shows it for every file of it.
    pub fn device(&self) -> io::Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::dev(&self.0.directory.metadata()?))
    }
    /// Whether the daemon still serves. Waits for it.
    pub fn is_alive(&self) -> bool {
        is_ours(&self.0.directory)
    }
    /// Whether the daemon is gone, as far as is known, for those who do not wait for one that is only slow.
    pub fn is_gone(&self) -> bool {
        Liveness::is_gone(&self.0, |s| &s.liveness, |s| is_ours(&s.directory))
    }
    /// Whether it is of the process that this one was forked from.
    pub fn is_inherited(&self) -> bool {
        !self.0.maker.is_this()
    }
    /// Whether both are one session.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    fn call<C: Control>(&self, message: &mut C, what: &str) -> io::Result<()> {
        call(self.0.directory.as_fd(), message, what)
    }

    /// New memory that the daemon can reach.
    pub fn buffer(&self, len: usize) -> io::Result<Buffer> {
        self.share(SharedMemory::new("glowfs-buffer", len)?)
    }
    /// Memory that is there already: sealed memfds of other processes, too.
    pub fn share(&self, memory: SharedMemory) -> io::Result<Buffer> {
        let fd = memory.as_fd().as_raw_fd();
        let mut add = control::AddBuffer { fd, buffer: 0, len: memory.len() as u64 };
        self.call(&mut add, "a buffer")?;
        let maker = Maker::this();
        Ok(Buffer { maker, connection: self.clone(), memory, number: add.buffer })
    }

    /// Names a buffer, so that other processes find its memory. A name of zeros takes its name away.
    pub fn name(&self, buffer: &Buffer, name: [u8; 16]) -> io::Result<()> {
        let mut q = control::NameBuffer { name, buffer: buffer.number, reserved: 0 };
        self.call(&mut q, "a name")
    }
    /// The memory of the buffer that somebody has named so, shared once more: with this session.
    pub fn find(&self, name: [u8; 16]) -> io::Result<Buffer> {
        let mut q = control::LocateBuffer { name, ..Default::default() };
        let which = match self.call(&mut q, "a named buffer") {
            Ok(()) => Some(Identity { device: q.device, inode: q.inode }),
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                let mut older = control::FindBuffer { name, ..Default::default() };
                self.call(&mut older, "a named buffer")?;
                (q.process, q.fd, q.len) = (older.process, older.fd, older.len);
                None
            }
            Err(e) => return Err(e),
        };
        let len = usize::try_from(q.len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.share(SharedMemory::of_process(q.process, q.fd, len, which)?)
    }

    /// A new ring.
    pub fn ring(&self, options: RingOptions) -> io::Result<Ring> {
        let producer = Producer::new(options.entries)?;
        let mut add = control::AddRing {
            memory: producer.memory().as_fd().as_raw_fd(),
            doorbell: producer.bell().as_fd().as_raw_fd(),
            entries: options.entries,
            kind: options.kind as u32,
            io_depth: options.io_depth,
            priority: options.priority,
            timeout_ms: options.timeout_ms,
            flags: options.flags,
            ..Default::default()
        };
        self.call(&mut add, "a ring")?;
        let maker = Maker::this();
        Ok(Ring { maker, connection: self.clone(), producer, options, number: add.ring })
    }

    /// Lets rings use an open file, with the rights it is open with. It stays open until the result is dropped, whatever the caller
    /// does with its own descriptor.
    pub fn register(&self, file: impl AsFd) -> io::Result<RegisteredFile> {
        self.register_kept(file.as_fd().try_clone_to_owned()?)
    }
    /// The same with the descriptor that is to be kept.
    pub fn register_kept(&self, kept: OwnedFd) -> io::Result<RegisteredFile> {
        let kept = File::from(kept);
        let mut add = control::AddFile {
            session: self.0.session,
            secret: self.0.secret,
            ..Default::default()
        };
        call(kept.as_fd(), &mut add, "a file")?;
        let maker = Maker::this();
        Ok(RegisteredFile { maker, connection: self.clone(), kept, number: add.file })
    }
}

/// How a ring works.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Entries of each queue: a power of two.
    pub entries: u32,
    /// What its operations do.
    pub kind: Kind,
    /// N > 0: exactly N at a time; 0: as soon as possible; N < 0: at most -N at a time.
    pub io_depth: i32,
    /// Less than 0: before others; more than 0: after them.
    pub priority: i32,
    /// With a positive depth: how long fewer than N wait for more, in ms; 0: for ever.
    pub timeout_ms: u32,
    /// [`crate::flags`].
    pub flags: u32,
}

impl RingOptions {
    /// As soon as possible, with no preference.
    pub fn new(kind: Kind, entries: u32) -> Self {
        Self { entries, kind, io_depth: 0, priority: 0, timeout_ms: 0, flags: 0 }
    }
}

/// Memory that the application and the daemon share.
pub struct Buffer {
    maker: Maker,
    connection: Connection,
    memory: SharedMemory,
    number: u32,
}

impl Buffer {
    /// As [`Connection::is_inherited`].
    pub fn is_inherited(&self) -> bool {
        !self.maker.is_this()
    }
    /// The session it is shared with.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
    /// The memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }
    /// The bytes. Safe as long as no operation on them is outstanding; the rings' users keep that.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }
    /// Never.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }
    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len()));
        // SAFETY: inside the mapping; `bytes` is other memory.
        unsafe { self.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()));
        let mut out = vec![0; len];
        // SAFETY: inside the mapping; `out` is other memory.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.as_ptr().add(offset), len) };
        out
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            return;
        }
        // A daemon that is gone has forgotten it anyway.
        let mut remove = control::RemoveBuffer { buffer: self.number, reserved: 0 };
        let _ = self.connection.call(&mut remove, "the end of a buffer");
    }
}

/// A file that rings may use.
pub struct RegisteredFile {
    maker: Maker,
    connection: Connection,
    kept: File,
    number: u32,
}

impl RegisteredFile {
    /// As [`Connection::is_inherited`].
    pub fn is_inherited(&self) -> bool {
        !self.maker.is_this()
    }
    /// The descriptor that is kept open for it.
    pub fn as_raw_fd(&self) -> i32 {
        self.kept.as_raw_fd()
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            return;
        }
        let mut remove = control::RemoveFile { file: self.number, reserved: 0 };
        let _ = self.connection.call(&mut remove, "the end of a file");
    }
}

/// A ring. One thread uses it at a time.
pub struct Ring {
    maker: Maker,
    connection: Connection,
    producer: Producer,
    options: RingOptions,
    number: u32,
}

impl Ring {
    /// As [`Connection::is_inherited`]. Then nothing can be prepared, submitted or waited for, and there is nothing to take.
    pub fn is_inherited(&self) -> bool {
        !self.maker.is_this()
    }
    /// What it was made with.
    pub fn options(&self) -> &RingOptions {
        &self.options
    }
    /// Operations that were prepared and whose completions were not taken.
    pub fn outstanding(&self) -> u32 {
        self.producer.outstanding()
    }
    /// Prepares an operation: `len` bytes between the buffer at `buffer_offset` and the file at `file_offset`. `user` comes back with its
    /// completion. Returns its index in the queue.
    pub fn prepare(
        &mut self,
        file: &RegisteredFile,
        file_offset: u64,
        buffer: &Buffer,
        buffer_offset: usize,
        len: usize,
        user: u64,
    ) -> Result<u32, RingError> {
        self.may_prepare(file, buffer)?;
        if buffer_offset.checked_add(len).is_none_or(|end| end > buffer.len()) {
            return Err(RingError::OutsideBuffer);
        }
        let submission = Submission {
            kind: self.options.kind as u32,
            flags: self.options.flags,
            file: file.number,
            buffer: buffer.number,
            buffer_offset: buffer_offset as u64,
            file_offset,
            len: len as u64,
            user,
            reserved: [0; 2],
        };
        self.prepare_raw(submission)
    }
    /// Whether operations between a file and a buffer can be prepared, if there is room and their bytes lie inside.
    pub fn may_prepare(&self, file: &RegisteredFile, buffer: &Buffer) -> Result<(), RingError> {
        if !self.maker.is_likely_this() {
            return Err(RingError::Inherited);
        }
        let ours = |c: &Connection| self.connection.is_same(c);
        match ours(&file.connection) && ours(&buffer.connection) {
            true => Ok(()),
            false => Err(RingError::OtherConnection),
        }
    }
    /// Prepares any submission as it is. What is wrong with it the daemon says.
    pub fn prepare_raw(&mut self, submission: Submission) -> Result<u32, RingError> {
        if !self.maker.is_likely_this() {
            return Err(RingError::Inherited);
        }
        self.producer.prepare(submission).ok_or(RingError::Full)
    }
    /// Operations that were prepared and not submitted.
    pub fn unsubmitted(&self) -> u32 {
        self.producer.unsubmitted()
    }
    /// Shows the daemon what was prepared.
    pub fn submit(&mut self) -> io::Result<()> {
        self.maker.check()?;
        self.producer.submit()
    }
    /// Takes a completion that is there.
    pub fn take(&mut self) -> Option<Completion> {
        if !self.maker.is_likely_this() {
            return None;
        }
        self.producer.take()
    }
    /// Waits until a completion is there; false: it was time before. None: no end of time. An error if the daemon is gone or has given
    /// the ring up.
    pub fn wait(&self, until: Option<Instant>) -> io::Result<bool> {
        self.completions().wait(self.taken(), until)
    }
    /// Completions taken so far (it wraps).
    pub fn taken(&self) -> u32 {
        self.producer.taken()
    }
    /// What waits for completions while other threads use the ring.
    pub fn completions(&self) -> Completions {
        let waiter = self.producer.waiter().clone();
        Completions { maker: self.maker, connection: self.connection.clone(), waiter }
    }
    /// Where its memory begins.
    pub fn memory_base(&self) -> *mut u8 {
        self.producer.memory().as_ptr()
    }
    /// The shared memory, for tests that play a hostile application.
    #[doc(hidden)]
    pub fn memory(&self) -> &SharedMemory {
        self.producer.memory()
    }
}

/// Waits for completions of a ring.
#[derive(Clone)]
pub struct Completions {
    maker: Maker,
    connection: Connection,
    waiter: Waiter,
}

impl Completions {
    /// As [`Ring::is_inherited`], as far as can be told without a system call.
    pub fn are_inherited(&self) -> bool {
        !self.maker.is_likely_this()
    }
    /// As [`Ring::wait`]; `taken` is what [`Ring::taken`] said.
    pub fn wait(&self, taken: u32, until: Option<Instant>) -> io::Result<bool> {
        self.maker.check()?;
        loop {
            match self.waiter.wait(taken, until) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    if self.connection.is_gone() {
                        return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
                    }
                }
                other => return other,
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            return;
        }
        let mut remove = control::RemoveRing { ring: self.number, reserved: 0 };
        let _ = self.connection.call(&mut remove, "the end of a ring");
    }
}
