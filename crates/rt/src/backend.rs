//! What a backend provides. Services never call these traits' constructors directly; they go through [`crate::Rt`].

use crate::{Address, Buf, BufMut, Instant};
use std::any::Any;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A future of this thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A stream connection. Reads and writes may be polled by different tasks (one reader, one writer).
pub trait StreamIo {
    /// Reads some bytes; 0 is the end.
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>>;
    /// Writes some bytes. File descriptors in `fds` are passed with the first of them (Unix sockets only).
    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Poll<io::Result<usize>>;
    /// Bytes that were written and have not arrived at the peer's machine yet (0 where that cannot be told): what was written less these has.
    fn unsent(&self) -> usize {
        0
    }
    /// File descriptors that arrived with what was read so far, in order (Unix sockets only). At most
    /// [`FDS_PENDING_MAX`] are kept; more break the connection.
    fn take_fds(&self) -> Vec<OwnedFd>;
    /// Ends both directions; pending reads and writes fail.
    fn shutdown(&self);
    /// Ends writing: the peer reads to the end, and what it sends until it closes still arrives. A stream over which no memory is shared may end both directions.
    fn shutdown_write(&self) {
        self.shutdown();
    }
    /// The other end, for logs.
    fn peer(&self) -> String;
    /// Whether it can pass file descriptors.
    fn can_pass_fds(&self) -> bool;
}

/// The greatest number of received file descriptors that wait to be taken.
pub const FDS_PENDING_MAX: usize = 64;

/// A listening socket.
pub trait ListenerIo {
    /// The next connection.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>>;
    /// Where it listens (the real port, if 0 was asked for).
    fn local(&self) -> Address;
}

/// An open file. Offsets and lengths are multiples of 4096 and buffers are page-aligned when it was opened
/// with `direct`.
#[allow(clippy::len_without_is_empty)] // nobody asks that
pub trait FileIo {
    /// Fills `buf` from `offset`; returns it with the number of bytes read (less only at the end of the file).
    fn read(&self, buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)>;
    /// [`FileIo::read`] for whom it is too late after `by`: if it still waits then in a queue of the runtime for its turn at the disk, it is not done when that comes, and fails ([`is_late`]).
    fn read_by(
        &self,
        buf: BufMut,
        offset: u64,
        by: Instant,
    ) -> BoxFuture<(io::Result<usize>, BufMut)> {
        // Who has no queue does it at once.
        let _ = by;
        self.read(buf, offset)
    }
    /// Writes all of `bufs`, one after the other, from `offset` on. An error leaves any part of it written.
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>>;
    /// Returns when everything written before the call is durable (fdatasync). A failed one is final: the
    /// caller must not trust the file any more.
    fn sync(&self) -> BoxFuture<io::Result<()>>;
    /// Makes room for `[offset, offset + len)`, extending the file.
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>>;
    /// Gives the room of `[offset, offset + len)` back; it reads as zeros then.
    fn punch(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>>;
    /// Cuts or extends it.
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>>;
    /// Its length now.
    fn len(&self) -> io::Result<u64>;
    /// Bytes of the disk that it takes: less than its length if parts were punched out or never written.
    fn room_bytes(&self) -> io::Result<u64>;
    /// The parts of it that have room on the disk, written or not, in their order; those that touch are one. None: the file system does not tell.
    fn rooms(&self) -> BoxFuture<io::Result<Option<Vec<Part>>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// What a read fails with whose time was over before its turn came.
pub fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its time was over before its turn came")
}

/// Whether a read failed for that ([`FileIo::read_by`]), and not since the disk says so.
pub fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// A part of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub start: u64,
    /// Behind its last byte.
    pub end: u64,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Make it if it is not there.
    pub create: bool,
    /// Bypass the page cache where the file system can (O_DIRECT).
    pub direct: bool,
}

/// Free and total bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total_bytes: u64,
    /// Bytes free for us.
    pub free_bytes: u64,
}

/// A directory that a service keeps its files in. Names are plain (no `/`).
pub trait DirIo {
    /// Opens a file for reading and writing.
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>>;
    /// Names in it.
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>>;
    /// Makes creations, removals and renames durable.
    fn sync(&self) -> BoxFuture<io::Result<()>>;
    /// Space of its file system.
    fn space(&self) -> io::Result<Space>;
    /// Takes an exclusive lock on the directory, held until this object is dropped; an error if another process has it.
    fn lock(&self) -> io::Result<()>;
    /// Its path, for messages.
    fn path(&self) -> String;
    /// Since when the oldest operation has been under way that the system has been asked for, by this object or a file that was opened by it; also if nobody waits for
    /// it any more. What waits in a queue of the runtime is not counted, so it does not grow with what there is to do. None: there is none, or it is not known.
    fn under_way_since(&self) -> Option<Instant> {
        None
    }
}

/// A shared stream.
pub type Stream = Rc<dyn StreamIo>;
/// A shared listener.
pub type Listener = Rc<dyn ListenerIo>;
/// A shared file.
pub type File = Rc<dyn FileIo>;
/// A shared directory.
pub type Dir = Rc<dyn DirIo>;

/// Bytes of the head of a [`Post`]: what a message to the kernel's FUSE begins with.
pub const POST_HEAD_BYTES: usize = 16;

/// A message that one write carries as a whole: a head, and the payload behind it.
pub struct Post {
    /// Where to. Must not block: the thread waits for the write.
    pub fd: Arc<OwnedFd>,
    /// What it begins with.
    pub head: [u8; POST_HEAD_BYTES],
    /// The rest.
    pub payload: Buf,
    /// Whom to tell when it was written.
    pub tell: Rc<dyn Posted>,
    /// What to tell him with the outcome.
    pub tag: u64,
}

/// Is told of the outcome of a [`Post`].
pub trait Posted {
    /// It was written (so many bytes), or was not.
    fn posted(&self, tag: u64, outcome: io::Result<usize>);
}

/// Bytes of a [`Command`] that only the driver reads.
pub const COMMAND_BYTES: usize = 80;

/// A command to the driver behind a descriptor (io_uring's URING_CMD), which it may answer much later.
pub struct Command {
    /// Whose driver.
    pub fd: Arc<OwnedFd>,
    /// What, in the driver's own numbers.
    pub op: u32,
    /// Where it finds what goes with the command; and how many of these there are.
    pub place: (*const libc::iovec, u32),
    /// What it is told besides.
    pub data: [u8; COMMAND_BYTES],
    /// The memory that the driver reads and writes. Kept until the command was answered, or the kernel cannot reach it any more.
    pub keep: Rc<dyn Any>,
    /// Whom to tell of the answer, if he is still there.
    pub tell: Weak<dyn Commanded>,
    /// What to tell him with it.
    pub tag: u64,
}

/// Is told of the answer to a [`Command`].
pub trait Commanded {
    /// What the driver answered: an errno if negative.
    fn commanded(&self, tag: u64, answer: i32);
}

/// The world as one node sees it.
pub trait Backend {
    /// CLOCK_BOOTTIME.
    fn now(&self) -> Instant;
    /// When the present turn of the loop began: see [`crate::Rt::turn_began`].
    fn turn_began(&self) -> Instant {
        self.now()
    }
    /// How often a task began to run: see [`crate::Rt::polls`].
    fn polls(&self) -> u64;
    /// CLOCK_REALTIME: nanoseconds since the Unix epoch.
    fn unix_ns(&self) -> u64;
    /// 64 random bits (from the seed, in the simulator).
    fn random(&self) -> u64;
    /// Wakes `waker` at `at` (or soon after). Returns a key for [`Backend::cancel_timer`].
    fn set_timer(&self, at: Instant, waker: Waker) -> u64;
    /// Forgets a timer.
    fn cancel_timer(&self, key: u64);
    /// Runs a task to its end.
    fn spawn(&self, task: BoxFuture<()>);
    /// Listens.
    fn listen(&self, address: &Address) -> io::Result<Listener>;
    /// Connects.
    fn connect(&self, address: &Address) -> BoxFuture<io::Result<Stream>>;
    /// Opens a directory, making it (and its parents) if need be.
    fn open_dir(&self, path: &Path) -> io::Result<Dir>;
    /// Runs something that blocks on a helper thread (inline in the simulator).
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<()>;
    /// Resolves when `fd` is readable (real backend only; the FUSE device, signal fds).
    fn poll_readable(&self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Forgets what [`Backend::poll_readable`] keeps of `fd`. Call it before the descriptor is closed.
    fn forget_readable(&self, fd: BorrowedFd<'_>);
    /// Writes a message together with the other I/O of this turn: soon, and after the present task gave way. Messages may overtake each
    /// other, and what is written otherwise overtakes them. A backend that cannot gives the message back.
    fn post(&self, post: Post) -> Result<(), Post> {
        Err(post)
    }
    /// Whether [`Backend::command`] can be used.
    fn takes_commands(&self) -> bool {
        false
    }
    /// Hands a command to a driver together with the other I/O of this turn, in their order. False: it cannot.
    ///
    /// # Safety
    /// Whatever memory the driver touches because of the command lives as long as `keep`.
    unsafe fn command(&self, command: Command) -> bool {
        drop(command);
        false
    }
    /// Resolves when the kernel has what [`Backend::command`] was given until now.
    fn poll_handed_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }
    /// The pool that buffers of this thread come from.
    fn pool(&self) -> &crate::Pool;
}
