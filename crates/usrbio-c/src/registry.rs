//! What this process has to do with mounts: one connection for each, the files that were registered, the buffers by name.
//!
//! A forked child has a session of its own: files and buffers that it has from its parent are shared with that one when they are used there. Nobody asks the daemon anything while the
//! registry is locked, and nobody forks while another thread has it: in the child that lock would stay locked.

use glowfs_usrbio::{Buffer, Connection, RegisteredFile, SharedMemory, mount_point_of_device};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};

/// A file that operations may name.
pub struct Registered {
    pub file: RegisteredFile,
    pub readable: bool,
    pub writable: bool,
    /// What the parent of this process had registered: its descriptor stays open, for its number is in use here.
    _parents: Option<Arc<Registered>>,
}

/// What a structure of the caller's stands for.
pub struct Held {
    /// As the structure names it,
    named: Arc<Buffer>,
    /// and as this process uses it.
    used: Arc<Buffer>,
}

impl Held {
    fn new(buffer: Arc<Buffer>) -> Self {
        Self { named: buffer.clone(), used: buffer }
    }
}

/// What a structure that only views finds.
#[derive(Clone, Copy)]
pub struct View {
    /// How long it is.
    pub bytes: usize,
    /// It is there for those who view it, and this is one more of them: [`Registry::remove_view`] is for him, and for nobody else.
    pub counted: bool,
}

/// The buffers of a name.
#[derive(Default)]
struct Named {
    /// One for each structure that holds its buffer.
    held: Vec<Held>,
    /// Another process's, which structures only view; and how many do, that were not destroyed. Those that view what this process holds itself are not
    /// counted: nothing is there for them only, and programs need not destroy them.
    viewed: Option<(Held, usize)>,
}

impl Named {
    fn all(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.iter_mut().chain(self.viewed.as_mut().map(|(held, _)| held))
    }
    /// One that operations can use.
    fn used(&self) -> Option<&Arc<Buffer>> {
        let viewed = || self.viewed.as_ref().map(|(held, _)| held);
        self.held.last().or_else(viewed).map(|held| &held.used)
    }
}

#[derive(Default)]
pub struct Registry {
    /// By device number.
    connections: HashMap<u64, Connection>,
    /// By the caller's descriptor and by the one that is kept.
    files: HashMap<RawFd, Arc<Registered>>,
    /// By name.
    buffers: HashMap<[u8; 16], Named>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The registry, locked by this thread, which forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Registry>>> = const { RefCell::new(None) };
}

/// Before a fork.
extern "C" fn forks() {
    let locked = lock();
    // In a thread that ends (no more thread-locals) it is as without this.
    let _ = FORKING.try_with(|forking| *forking.borrow_mut() = Some(locked));
}
/// After it, in the parent and in the child, by the very thread that forked.
extern "C" fn has_forked() {
    let _ = FORKING.try_with(|forking| forking.borrow_mut().take());
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registry, locked. Nobody waits for anything while holding it: the daemon is asked, memory is made, and files and memory are given back, without it.
pub fn registry() -> MutexGuard<'static, Registry> {
    static HEAR: Once = Once::new();
    // SAFETY: the handlers are those of a lock, which is what they are for. (Where there is no room for them, a fork is as it would be without.)
    HEAR.call_once(|| unsafe {
        libc::pthread_atfork(Some(forks), Some(has_forked), Some(has_forked));
    });
    lock()
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Whether a connection is of this very process, and leads to somebody.
fn is_usable(c: &Connection) -> bool {
    !c.is_inherited() && c.is_alive()
}

/// The connection to the mount that `path` is on.
pub fn connection(path: &Path) -> io::Result<Connection> {
    let device = std::os::unix::fs::MetadataExt::dev(&path.metadata()?);
    connection_by(device, || Ok(path.to_owned()))
}
/// The connection to the mount with this device number.
fn connection_of(device: u64) -> io::Result<Connection> {
    connection_by(device, || mount_point_of_device(device))
}
/// All who ask at once get the same one: what is of different ones does not go together.
fn connection_by(
    device: u64,
    path: impl FnOnce() -> io::Result<PathBuf>,
) -> io::Result<Connection> {
    let known = registry().connections.get(&device).cloned();
    if let Some(c) = known.as_ref().filter(|c| is_usable(c)) {
        return Ok(c.clone());
    }
    let new = Connection::open(&path()?)?;
    let mut registry = registry();
    let now = registry.connections.get(&device);
    // Another thread may have been first; then this one is given back, after the registry.
    if let Some(now) = now.filter(|now| !known.as_ref().is_some_and(|known| known.is_same(now))) {
        return Ok(now.clone());
    }
    registry.connections.insert(device, new.clone());
    Ok(new)
}

impl Registry {
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
    /// A registered file by either number, and a buffer by its name, as they stand here: maybe this process's parent's.
    fn known(&self, fd: RawFd, id: &[u8; 16]) -> io::Result<(Arc<Registered>, Arc<Buffer>)> {
        let file = self.files.get(&fd).cloned().ok_or_else(|| error(libc::EBADF))?;
        let buffer = self.buffers.get(id).and_then(Named::used).cloned();
        Ok((file, buffer.ok_or_else(|| error(libc::EINVAL))?))
    }
    /// Another structure holds a buffer of that name.
    pub fn add_buffer(&mut self, id: [u8; 16], buffer: Arc<Buffer>) {
        self.buffers.entry(id).or_default().held.push(Held::new(buffer));
    }
    /// One of them does no longer. What is left of it is to be dropped where nobody waits for it.
    #[must_use]
    pub fn remove_buffer(&mut self, id: &[u8; 16], buffer: &Arc<Buffer>) -> Option<Held> {
        let named = self.buffers.get_mut(id)?;
        let at = named.held.iter().position(|b| Arc::ptr_eq(&b.named, buffer))?;
        let gone = named.held.swap_remove(at);
        self.forget_name(id);
        Some(gone)
    }
    /// Another structure views what has that name. None: nobody of this process has it.
    fn view_known(&mut self, id: &[u8; 16]) -> Option<View> {
        let named = self.buffers.get_mut(id)?;
        let bytes = named.used()?.len();
        let counted = named.viewed.as_mut().map(|(_, views)| *views += 1).is_some();
        Some(View { bytes, counted })
    }
    /// One of those that view another process's, and are counted, does no longer; as above.
    #[must_use]
    pub fn remove_view(&mut self, id: &[u8; 16]) -> Option<Held> {
        let (_, views) = self.buffers.get_mut(id)?.viewed.as_mut()?;
        *views -= 1;
        if *views > 0 {
            return None;
        }
        let (gone, _) = self.buffers.get_mut(id)?.viewed.take()?;
        self.forget_name(id);
        Some(gone)
    }
    fn forget_name(&mut self, id: &[u8; 16]) {
        if self.buffers.get(id).is_some_and(|n| n.used().is_none()) {
            self.buffers.remove(id);
        }
    }
    /// Forgets a file. It may be closed when the result is dropped, which is to be where nobody waits for it.
    #[must_use]
    pub fn deregister(&mut self, fd: RawFd) -> Option<Arc<Registered>> {
        let gone = self.files.remove(&fd)?;
        self.files.retain(|_, f| !Arc::ptr_eq(f, &gone));
        Some(gone)
    }
}

/// A registered file, by either number, and a buffer, by its name, of this process.
pub fn used(fd: RawFd, id: &[u8; 16]) -> io::Result<(Arc<Registered>, Arc<Buffer>)> {
    let (file, buffer) = registry().known(fd, id)?;
    let file = if file.file.is_inherited() { own_file(fd, file)? } else { file };
    let buffer = if buffer.is_inherited() { own_buffer(id, buffer)? } else { buffer };
    Ok((file, buffer))
}

/// Registers what this process's parent had registered.
fn own_file(fd: RawFd, parents: Arc<Registered>) -> io::Result<Arc<Registered>> {
    // SAFETY: open as long as `parents` is there.
    let kept = unsafe { BorrowedFd::borrow_raw(parents.file.as_raw_fd()) };
    let connection = connection_of(rustix::fs::fstat(kept)?.st_dev)?;
    let kept = registry().duplicate(kept)?;
    let file = connection.register_kept(kept)?;
    let Registered { readable, writable, .. } = *parents;
    let own = Registered { file, readable, writable, _parents: Some(parents.clone()) };
    let own = Arc::new(own);
    let mut registry = registry();
    let now = registry.files.get(&fd).cloned().ok_or_else(|| error(libc::EBADF))?;
    if !Arc::ptr_eq(&now, &parents) {
        // By another thread, meanwhile; this one is given back, after the registry.
        return Ok(now);
    }
    for f in registry.files.values_mut().filter(|f| Arc::ptr_eq(f, &parents)) {
        *f = own.clone();
    }
    Ok(own)
}

/// Shares a buffer of this process's parent's.
fn own_buffer(id: &[u8; 16], parents: Arc<Buffer>) -> io::Result<Arc<Buffer>> {
    let memory = parents.memory();
    let memory = SharedMemory::adopt(memory.as_fd().try_clone_to_owned()?, memory.len())?;
    let own = Arc::new(connection(parents.connection().mount_point())?.share(memory)?);
    let mut registry = registry();
    let held = registry.buffers.get_mut(id).into_iter().flat_map(Named::all);
    let mut replaced = false;
    for held in held.filter(|held| Arc::ptr_eq(&held.used, &parents)) {
        held.used = own.clone();
        replaced = true;
    }
    if replaced {
        return Ok(own);
    }
    // By another thread, meanwhile, or it is gone.
    let now = registry.buffers.get(id).and_then(Named::used).cloned();
    now.ok_or_else(|| error(libc::EINVAL))
}

/// A structure is to view what has that name: of this process, or of another one.
pub fn view(id: [u8; 16], path: &Path) -> io::Result<View> {
    if let Some(view) = registry().view_known(&id) {
        return Ok(view);
    }
    let connection = connection(path)?;
    let found = Arc::new(connection.find(id)?);
    let mut registry = registry();
    // Another thread may have been first; then this one is given back, after the registry.
    if let Some(view) = registry.view_known(&id) {
        return Ok(view);
    }
    let bytes = found.len();
    registry.buffers.entry(id).or_default().viewed = Some((Held::new(found), 1));
    Ok(View { bytes, counted: true })
}

/// Registers a descriptor; answers the one that is kept for it.
pub fn register(fd: RawFd) -> io::Result<RawFd> {
    if fd < 0 {
        return Err(error(libc::EBADF));
    }
    // SAFETY: used during this call only; a number that is not open gives EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = rustix::fs::fcntl_getfl(borrowed)?;
    if !Connection::is_ours(borrowed) {
        return Err(error(libc::EBADF));
    }
    let device = rustix::fs::fstat(borrowed)?.st_dev;
    if registry().files.contains_key(&fd) {
        return Err(error(libc::EINVAL));
    }
    let connection = connection_of(device)?;
    let kept = registry().duplicate(borrowed)?;
    let file = connection.register_kept(kept)?;
    let kept = file.as_raw_fd();
    let access = flags.bits() as i32 & libc::O_ACCMODE;
    let (readable, writable) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
    let registered = Arc::new(Registered { file, readable, writable, _parents: None });
    let mut registry = registry();
    if registry.files.contains_key(&fd) {
        // By another thread, meanwhile.
        return Err(error(libc::EINVAL));
    }
    registry.files.insert(fd, registered.clone());
    registry.files.insert(kept, registered);
    Ok(kept)
}
