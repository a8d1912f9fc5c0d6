//! [`Handles`]: what applications have open, by the number that the kernel uses for it.

use crate::daemon::Asked;
use crate::inodes::Pin;
use crate::late::Heard;
use crate::open::OpenedFile;
use crate::uses::Uses;
use glowfs_types::InodeId;
use glowfs_types::wire::meta::{Caller, DirEntry};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// An open file of an application.
pub struct Handle<F> {
    /// The inode.
    pub inode: Pin<F>,
    /// The file it uses.
    pub opened: Rc<OpenedFile<F>>,
    /// Who opened it.
    pub caller: Caller,
    /// It was opened for reading. (The file it uses may have more rights.)
    pub read: bool,
    /// It was opened for writing.
    pub write: bool,
    /// Reads through it leave the time of last access alone (O_NOATIME).
    pub no_atime: bool,
    /// The kernel passes its reads and writes on as they are.
    pub direct: bool,
    /// What is written through it is to be durable at once (O_DSYNC, O_SYNC).
    pub durable: bool,
    /// Which of the errors of late writes its application has been told.
    pub heard: Heard,
    /// What goes on through it that the kernel does not know of.
    pub uses: Uses,
}

/// An open directory.
#[derive(Default)]
pub struct DirHandle {
    /// Who opened it: he may list it, whoever does so for him.
    pub caller: Caller,
    /// Entries that were fetched and not delivered yet.
    pub ahead: VecDeque<DirEntry>,
    /// The cookie after which `ahead` begins.
    pub after: u64,
    /// Whether the directory ends behind `ahead`.
    pub end: bool,
    /// The cookie that the listing ends with: the greatest one when it began.
    pub last: Option<u64>,
    /// The directory's parent, once known.
    pub parent: Option<InodeId>,
    /// What `ahead` is of.
    pub page: Option<Page>,
}

/// What meta said of a directory at once.
#[derive(Clone, Copy)]
pub struct Page {
    /// When it was asked.
    pub asked: Asked,
    /// What it leased of it is leased for so many ms.
    pub lease_ms: u64,
    /// [`crate::known::Directories::name_changes`] before it was asked.
    pub name_changes: u64,
}

/// See the module.
pub struct Handles<F> {
    files: RefCell<BTreeMap<u64, Rc<Handle<F>>>>,
    dirs: RefCell<BTreeMap<u64, Rc<RefCell<DirHandle>>>>,
    next: Cell<u64>,
}

impl<F> Default for Handles<F> {
    fn default() -> Self {
        Self { files: RefCell::default(), dirs: RefCell::default(), next: Cell::new(1) }
    }
}

impl<F> Handles<F> {
    fn number(&self) -> u64 {
        let n = self.next.get();
        self.next.set(n + 1);
        n
    }
    /// A new handle.
    pub fn add_file(&self, handle: Handle<F>) -> u64 {
        handle.opened.users.set(handle.opened.users.get() + 1);
        let n = self.number();
        self.files.borrow_mut().insert(n, Rc::new(handle));
        n
    }
    /// A handle.
    pub fn file(&self, fh: u64) -> Option<Rc<Handle<F>>> {
        self.files.borrow().get(&fh).cloned()
    }
    /// Takes a handle out; true if its file has no other user.
    pub fn remove_file(&self, fh: u64) -> Option<(Rc<Handle<F>>, bool)> {
        let handle = self.files.borrow_mut().remove(&fh)?;
        let users = handle.opened.users.get().saturating_sub(1);
        handle.opened.users.set(users);
        Some((handle, users == 0))
    }
    /// Every handle, in order.
    pub fn file_handles(&self) -> Vec<u64> {
        self.files.borrow().keys().copied().collect()
    }
    /// A new directory handle.
    pub fn add_dir(&self, caller: Caller) -> u64 {
        let n = self.number();
        let dir = DirHandle { caller, ..DirHandle::default() };
        self.dirs.borrow_mut().insert(n, Rc::new(RefCell::new(dir)));
        n
    }
    /// A directory handle.
    pub fn dir(&self, fh: u64) -> Option<Rc<RefCell<DirHandle>>> {
        self.dirs.borrow().get(&fh).cloned()
    }
    /// Takes a directory handle out.
    pub fn remove_dir(&self, fh: u64) {
        self.dirs.borrow_mut().remove(&fh);
    }
}
