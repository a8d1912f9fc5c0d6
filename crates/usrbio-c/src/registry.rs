//! What this process has to do with mounts: one connection for each, the files that were registered, the buffers by name.
//!
//! A forked child has a session of its own: files and buffers that it has from its parent are shared with that one when they are used there.

use glowfs_usrbio::{Buffer, Connection, RegisteredFile, SharedMemory, mount_point_of_device};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A file that operations may name.
pub struct Registered {
    pub file: RegisteredFile,
    pub readable: bool,
    pub writable: bool,
    /// What the parent of this process had registered: its descriptor stays open, for its number is in use here.
    _parents: Option<Arc<Registered>>,
}

/// What a structure of the caller's stands for.
struct Held {
    /// As the structure names it,
    named: Arc<Buffer>,
    /// and as this process uses it.
    used: Arc<Buffer>,
}

#[derive(Default)]
pub struct Registry {
    /// By device number.
    connections: HashMap<u64, Connection>,
    /// By the caller's descriptor and by the one that is kept.
    files: HashMap<RawFd, Arc<Registered>>,
    /// By name: one for each structure of the caller's that stands for it.
    buffers: HashMap<[u8; 16], Vec<Held>>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// The registry, locked. Nobody waits for anything but the daemon's short answers while holding it.
pub fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Whether a connection is of this very process, and leads to somebody.
fn is_usable(c: &Connection) -> bool {
    !c.is_inherited() && c.is_alive()
}

impl Registry {
    /// The connection to the mount that `path` is on.
    pub fn connection(&mut self, path: &Path) -> io::Result<Connection> {
        let device = std::os::unix::fs::MetadataExt::dev(&path.metadata()?);
        if let Some(c) = self.connections.get(&device)
            && is_usable(c)
        {
            return Ok(c.clone());
        }
        let c = Connection::open(path)?;
        self.connections.insert(device, c.clone());
        Ok(c)
    }

    /// Registers a descriptor; answers the one that is kept for it.
    pub fn register(&mut self, fd: RawFd) -> io::Result<RawFd> {
        if fd < 0 {
            return Err(error(libc::EBADF));
        }
        // SAFETY: used during this call only; a number that is not open gives EBADF.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = rustix::fs::fcntl_getfl(borrowed)?;
        if !Connection::is_ours(borrowed) {
            return Err(error(libc::EBADF));
        }
        if self.files.contains_key(&fd) {
            return Err(error(libc::EINVAL));
        }
        let file = self.connection_of(borrowed)?.register_kept(self.duplicate(borrowed)?)?;
        let kept = file.as_raw_fd();
        let access = flags.bits() as i32 & libc::O_ACCMODE;
        let (readable, writable) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        let registered = Arc::new(Registered { file, readable, writable, _parents: None });
        self.files.insert(fd, registered.clone());
        self.files.insert(kept, registered);
        Ok(kept)
    }
    /// The connection to the mount that an open file is on.
    fn connection_of(&mut self, fd: BorrowedFd<'_>) -> io::Result<Connection> {
        let device = rustix::fs::fstat(fd)?.st_dev;
        match self.connections.get(&device).filter(|c| is_usable(c)) {
            Some(c) => Ok(c.clone()),
            None => self.connection(&mount_point_of_device(device)?),
        }
    }
    /// A duplicate whose number names nothing here yet: the caller may have closed a descriptor that stands for another file still, and the
    /// kernel gives its number out again.
    fn duplicate(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // Above the standard ones, which a program may have closed and write to all the same.
        let mut lowest = 3;
        loop {
            let kept = rustix::io::fcntl_dupfd_cloexec(fd, lowest)?;
            if !self.files.contains_key(&kept.as_raw_fd()) {
                return Ok(kept);
            }
            lowest = kept.as_raw_fd() + 1;
        }
    }
    /// A registered file, by either number.
    pub fn file(&mut self, fd: RawFd) -> io::Result<Arc<Registered>> {
        let known = self.files.get(&fd).cloned().ok_or_else(|| error(libc::EBADF))?;
        if !known.file.is_inherited() {
            return Ok(known);
        }
        // SAFETY: open as long as `known` is there.
        let kept = unsafe { BorrowedFd::borrow_raw(known.file.as_raw_fd()) };
        let file = self.connection_of(kept)?.register_kept(self.duplicate(kept)?)?;
        let Registered { readable, writable, .. } = *known;
        let own = Arc::new(Registered { file, readable, writable, _parents: Some(known.clone()) });
        for f in self.files.values_mut().filter(|f| Arc::ptr_eq(f, &known)) {
            *f = own.clone();
        }
        Ok(own)
    }
    /// A buffer by its name.
    pub fn buffer(&mut self, id: &[u8; 16]) -> io::Result<Arc<Buffer>> {
        let last = |r: &Self| Some(r.buffers.get(id)?.last()?.used.clone());
        let known = last(self).ok_or_else(|| error(libc::EINVAL))?;
        if !known.is_inherited() {
            return Ok(known);
        }
        let memory = known.memory();
        let memory = SharedMemory::adopt(memory.as_fd().try_clone_to_owned()?, memory.len())?;
        let own = Arc::new(self.connection(known.connection().mount_point())?.share(memory)?);
        for held in self.buffers.get_mut(id).into_iter().flatten() {
            if Arc::ptr_eq(&held.used, &known) {
                held.used = own.clone();
            }
        }
        Ok(own)
    }
    /// Another structure stands for a buffer of that name.
    pub fn add_buffer(&mut self, id: [u8; 16], buffer: Arc<Buffer>) {
        let held = Held { named: buffer.clone(), used: buffer };
        self.buffers.entry(id).or_default().push(held);
    }
    /// One of them does no longer.
    pub fn remove_buffer(&mut self, id: &[u8; 16], buffer: &Arc<Buffer>) {
        let Some(all) = self.buffers.get_mut(id) else { return };
        if let Some(at) = all.iter().position(|b| Arc::ptr_eq(&b.named, buffer)) {
            all.swap_remove(at);
        }
        if all.is_empty() {
            self.buffers.remove(id);
        }
    }
    /// Forgets a file.
    pub fn deregister(&mut self, fd: RawFd) {
        if let Some(gone) = self.files.remove(&fd) {
            self.files.retain(|_, f| !Arc::ptr_eq(f, &gone));
        }
    }
}
