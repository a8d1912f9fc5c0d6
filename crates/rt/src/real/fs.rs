//! Directories and files. Data goes through operations ([`super::ops`]); everything rare runs on helper threads.

use super::driver::{Driver, Share, submit};
use super::ops::{Kind, Op, OpFuture};
use crate::backend::{BoxFuture, Dir, DirIo, File, FileIo, OpenOptions, Part, Space};
use crate::outcome::Outcome;
use crate::{Buf, BufMut, Instant};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Names in one directory that [`DirIo::list`] returns at most.
const NAMES_MAX: usize = 1 << 20;

/// A write of up to so many bytes that only goes to the page cache is done at once, on this thread. File systems refuse to do it without
/// the chance of waiting, so the ring would hand it to a thread of the kernel, and to wake that one costs far more than the copy.
const CACHED_WRITE_BYTES: u64 = 64 << 10;

/// What statfs(2) calls a tmpfs.
const TMPFS_MAGIC: rustix::fs::FsWord = libc::TMPFS_MAGIC;

struct RealDir {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    share: Rc<Share>,
}

/// Opens a directory, making it if need be.
pub(crate) fn open_dir(driver: &Rc<dyn Driver>, path: &Path) -> io::Result<Dir> {
    make_dir(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = Arc::new(rustix::fs::open(path, flags, Mode::empty())?);
    Ok(Rc::new(RealDir { fd, path: path.to_owned(), share: Rc::new(Share::new(driver)) }))
}

/// Makes a directory and its parents, durably: what is flushed in a directory is lost with it if its own name is not on disk.
fn make_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dir(parent)?;
    }
    match std::fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn plain_name(name: &str) -> io::Result<CString> {
    let bad =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("«{name}» is not a plain name"));
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(bad());
    }
    CString::new(name).map_err(|_| bad())
}

fn on_helper<T: Send + 'static>(
    share: Rc<Share>,
    fd: Arc<OwnedFd>,
    work: impl FnOnce(&OwnedFd) -> io::Result<T> + Send + 'static,
) -> BoxFuture<io::Result<T>> {
    Box::pin(async move {
        let (outcome, job) = Outcome::of(move || work(&fd));
        share.driver.helpers().unblock(share.owner.jobs, job).await;
        let panicked = || Err(io::Error::other("a helper thread panicked"));
        outcome.take().unwrap_or_else(panicked)
    })
}

impl RealDir {
    fn on_helper<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OwnedFd) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<io::Result<T>> {
        on_helper(self.share.clone(), self.fd.clone(), work)
    }
}

impl DirIo for RealDir {
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>> {
        let (name, share) = (plain_name(name), self.share.clone());
        let opened = self.on_helper(move |dir| {
            let (fd, direct) = open_file(dir, &name?, options)?;
            let memory = lies_in_memory(&fd);
            Ok((fd, direct, memory))
        });
        Box::pin(async move {
            let (fd, direct, memory) = opened.await?;
            Ok(Rc::new(RealFile { fd: Arc::new(fd), direct, memory, share }) as File)
        })
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        self.on_helper(|dir| {
            let mut names = Vec::new();
            for entry in rustix::fs::Dir::read_from(dir)? {
                let entry = entry?;
                match entry.file_name().to_str() {
                    Ok("." | "..") | Err(_) => {}
                    Ok(_) if names.len() >= NAMES_MAX => {
                        return Err(io::Error::other(format!("over {NAMES_MAX} names")));
                    }
                    Ok(name) => names.push(name.to_owned()),
                }
            }
            names.sort_unstable();
            Ok(names)
        })
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let name = plain_name(name);
        self.on_helper(move |dir| Ok(rustix::fs::unlinkat(dir, name?, AtFlags::empty())?))
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let (from, to) = (plain_name(from), plain_name(to));
        self.on_helper(move |dir| Ok(rustix::fs::renameat(dir, from?, dir, to?)?))
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        self.on_helper(|dir| Ok(rustix::fs::fsync(dir)?))
    }
    fn space(&self) -> io::Result<Space> {
        let s = rustix::fs::fstatvfs(&self.fd)?;
        Ok(Space {
            total_bytes: s.f_blocks.saturating_mul(s.f_frsize),
            free_bytes: s.f_bavail.saturating_mul(s.f_frsize),
        })
    }
    fn lock(&self) -> io::Result<()> {
        rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive).map_err(|e| {
            if e == rustix::io::Errno::WOULDBLOCK {
                let text = format!("{} is in use by another process", self.path.display());
                io::Error::new(io::ErrorKind::ResourceBusy, text)
            } else {
                e.into()
            }
        })
    }
    fn path(&self) -> String {
        self.path.display().to_string()
    }
    fn under_way_since(&self) -> Option<Instant> {
        self.share.driver.under_way_since(self.share.owner)
    }
}

fn open_file(dir: &OwnedFd, name: &CString, options: OpenOptions) -> io::Result<(OwnedFd, bool)> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if options.create {
        flags |= OFlags::CREATE;
    }
    let mode = Mode::RUSR | Mode::WUSR;
    if options.direct {
        match rustix::fs::openat(dir, name, flags | OFlags::DIRECT, mode) {
            // This file system cannot.
            Err(rustix::io::Errno::INVAL) => {}
            other => return Ok((other?, true)),
        }
    }
    Ok((rustix::fs::openat(dir, name, flags, mode)?, false))
}

/// Whether there is no disk that a read or a write would wait for.
fn lies_in_memory(fd: &OwnedFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|s| s.f_type == TMPFS_MAGIC)
}

struct RealFile {
    fd: Arc<OwnedFd>,
    direct: bool,
    /// It lies in memory.
    memory: bool,
    share: Rc<Share>,
}

impl RealFile {
    fn submit(&self, op: Op) -> OpFuture {
        let op = op.of(self.share.owner);
        submit(&self.share.driver, if self.memory { op.in_memory() } else { op })
    }
    fn on_helper<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OwnedFd) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<io::Result<T>> {
        on_helper(self.share.clone(), self.fd.clone(), work)
    }
    fn plain(&self, kind: Kind, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        if i64::try_from(offset.saturating_add(len)).is_err() {
            return Box::pin(std::future::ready(Err(io::ErrorKind::InvalidInput.into())));
        }
        if matches!(kind, Kind::Allocate | Kind::Punch) && len == 0 {
            return Box::pin(std::future::ready(Ok(())));
        }
        let op = self.submit(Op::plain(kind, &self.fd, offset, len));
        Box::pin(async move { op.await.0.map(|_| ()) })
    }
}

impl FileIo for RealFile {
    fn read(&self, buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)> {
        self.read_by(buf, offset, Instant::NEVER)
    }
    fn read_by(
        &self,
        buf: BufMut,
        offset: u64,
        by: Instant,
    ) -> BoxFuture<(io::Result<usize>, BufMut)> {
        if i64::try_from(offset.saturating_add(buf.len() as u64)).is_err() {
            return Box::pin(std::future::ready((Err(io::ErrorKind::InvalidInput.into()), buf)));
        }
        let op = self.submit(Op::read(&self.fd, self.direct, buf, offset).by(by));
        Box::pin(async move {
            let (result, keep) = op.await;
            let buf = keep.read.unwrap_or_else(|| crate::Pool::heap().alloc(0));
            (result, buf)
        })
    }
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>> {
        let total = bufs.iter().map(|b| b.len() as u64).sum::<u64>();
        if i64::try_from(offset.saturating_add(total)).is_err() {
            return Box::pin(std::future::ready(Err(io::ErrorKind::InvalidInput.into())));
        }
        let op = Op::write(&self.fd, self.direct, bufs, offset);
        if !self.direct && total <= CACHED_WRITE_BYTES {
            return Box::pin(std::future::ready(op.run_now().map(|_| ())));
        }
        let op = self.submit(op);
        Box::pin(async move { op.await.0.map(|_| ()) })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        self.plain(Kind::Sync, 0, 0)
    }
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        self.plain(Kind::Allocate, offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        self.plain(Kind::Punch, offset, len)
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        self.plain(Kind::SetLen, 0, len)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }
    fn room_bytes(&self) -> io::Result<u64> {
        // In units of 512 bytes, whatever the file system's blocks are (stat(2)).
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_blocks).unwrap_or(0).saturating_mul(512))
    }
    fn rooms(&self) -> BoxFuture<io::Result<Option<Vec<Part>>>> {
        self.on_helper(|fd| super::rooms::rooms(fd))
    }
}
