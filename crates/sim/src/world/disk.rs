//! Disks: directories of files with a volatile cache, and the faults that can be put on them.
//!
//! The crash model: of what was not synced, each write is lost, kept, or torn at 512 bytes or 4 KiB, each on its own
//! (so later ones may survive earlier ones); of creations, removals and renames since the directory's last sync
//! a prefix survives, as with a journalling file system.

use super::core::Core;
use super::file::{Content, SimFile};
use super::under_way::UnderWay;
use glowfs_rt::Instant;
use glowfs_rt::backend::{BoxFuture, Dir, DirIo, File, FileIo, OpenOptions, Space};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

/// The size of a disk if the test does not say.
pub const DISK_BYTES: u64 = 64 << 30;

/// How the names of files of chunks begin.
const CHUNKS: &str = "blocks-";

type Names = BTreeMap<String, Rc<RefCell<Content>>>;

/// One directory and the disk under it.
pub(crate) struct Disk {
    path: PathBuf,
    bytes: Cell<u64>,
    faults: Cell<DiskFaults>,
    /// Bytes per second of all reads and writes, one after the other; 0: as many at once as there are, however large. And until when what was begun takes.
    rate: Cell<u64>,
    busy_until_ns: Cell<u64>,
    /// So many of the next writes to files of chunks are answered and never done ([`SimDisk::lose_writes`]).
    to_lose: Cell<u32>,
    lost: Cell<u32>,
    /// After so many openings of the directory, so many find no descriptor ([`SimDisk::lack_descriptors`]).
    scarce: Cell<(u32, u32)>,
    life: Cell<u64>,
    locked: Cell<bool>,
    names: RefCell<Names>,
    durable: RefCell<Names>,
    unsynced: RefCell<Vec<NameChange>>,
    /// Changes that left `unsynced` in this life.
    synced: Cell<u64>,
}

#[derive(Clone)]
enum NameChange {
    Add(String, Rc<RefCell<Content>>),
    Remove(String),
    Rename(String, String),
}

impl NameChange {
    fn apply(&self, to: &mut Names) {
        match self {
            Self::Add(name, content) => {
                to.insert(name.clone(), content.clone());
            }
            Self::Remove(name) => {
                to.remove(name);
            }
            Self::Rename(from, name) => {
                if let Some(content) = to.remove(from) {
                    to.insert(name.clone(), content);
                }
            }
        }
    }
}

/// What goes wrong on a disk; most of it in times per million operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// A read fails with EIO.
    pub read_errors_per_million: u32,
    /// A write, allocation, punch or cut fails with EIO and changes nothing.
    pub write_errors_per_million: u32,
    /// A sync fails with EIO; nobody knows what became durable.
    pub sync_errors_per_million: u32,
    /// A read returns one wrong bit.
    pub read_flips_per_million: u32,
    /// An operation takes a hundred times as long.
    pub slow_per_million: u32,
    /// Every operation takes longer, by a time between these two, in ns.
    pub slower_least_ns: u64,
    /// See above.
    pub slower_most_ns: u64,
    /// What is begun never ends, not even when the fault is taken away.
    pub hangs: bool,
    /// The same of syncs only.
    pub syncs_hang: bool,
    /// The same of writes only, and only of those to where nothing was written before: a thin volume whose pool is full.
    pub new_writes_hang: bool,
}

impl DiskFaults {
    /// Every operation takes seconds: the disk is not dead.
    pub const SECONDS: Self = Self {
        read_errors_per_million: 0,
        write_errors_per_million: 0,
        sync_errors_per_million: 0,
        read_flips_per_million: 0,
        slow_per_million: 0,
        slower_least_ns: 1_000_000_000,
        slower_most_ns: 5_000_000_000,
        hangs: false,
        syncs_hang: false,
        new_writes_hang: false,
    };
}

/// How long an operation on a disk that hangs takes, in ns: longer than any test, and no number overflows.
const NEVER_NS: u64 = 1 << 62;

impl Disk {
    /// Gives back the memory of all files: the world has ended.
    pub(crate) fn forget(&self) {
        for names in [self.names.take(), self.durable.take()] {
            names.values().for_each(|content| drop(content.take()));
        }
        self.unsynced.take();
    }
    pub(crate) fn life(&self) -> u64 {
        self.life.get()
    }
    pub(crate) fn free_bytes(&self) -> u64 {
        let used: u64 = self.names.borrow().values().map(|c| c.borrow().room.blocks()).sum();
        self.bytes.get().saturating_sub(used * super::blocks::BLOCK)
    }
    fn take_descriptor(&self) -> io::Result<()> {
        match self.scarce.get() {
            (0, 0) => Ok(()),
            (0, left) => {
                self.scarce.set((0, left - 1));
                // EMFILE.
                Err(io::Error::from_raw_os_error(24))
            }
            (before, left) => {
                self.scarce.set((before - 1, left));
                Ok(())
            }
        }
    }
    pub(crate) fn fails(&self, core: &Core, what: impl Fn(&DiskFaults) -> u32) -> bool {
        let per_million = what(&self.faults.get());
        core.random(|r| r.chance(per_million))
    }
    fn slow(&self, core: &Core, ns: u64) -> u64 {
        let faults = self.faults.get();
        let more = match faults.slower_most_ns {
            0 => 0,
            most => core.random(|r| r.between(faults.slower_least_ns, most)),
        };
        more + self.slow_by_chance(core, ns)
    }
    fn slow_by_chance(&self, core: &Core, ns: u64) -> u64 {
        match self.fails(core, |f| f.slow_per_million) {
            _ if self.faults.get().hangs => NEVER_NS,
            true => ns * 100,
            false => ns,
        }
    }
    pub(crate) fn delay(&self, core: &Core) -> u64 {
        let ns = core.random(|r| r.between(10_000, 200_000));
        self.slow(core, ns)
    }
    /// How long a transfer waits for those before it.
    pub(crate) fn waits(&self, core: &Core) -> u64 {
        let busy = self.rate.get() > 0;
        if busy { self.busy_until_ns.get().saturating_sub(core.now()) } else { 0 }
    }
    /// [`Disk::delay`] of a transfer, when it has waited; those that come wait for it.
    pub(crate) fn transfer_delay(&self, core: &Core, bytes: usize) -> u64 {
        let delay = self.delay(core);
        let Some(own) = (bytes as u64).saturating_mul(1_000_000_000).checked_div(self.rate.get())
        else {
            return delay;
        };
        self.busy_until_ns.set(core.now() + self.waits(core) + own);
        delay + own
    }
    /// The same of a write; `new` says whether it goes to where nothing is yet.
    pub(crate) fn write_delay(&self, core: &Core, bytes: usize, new: impl Fn() -> bool) -> u64 {
        let delay = self.transfer_delay(core, bytes);
        if self.faults.get().new_writes_hang && new() { NEVER_NS } else { delay }
    }
    pub(crate) fn sync_delay(&self, core: &Core) -> u64 {
        let ns = core.random(|r| r.between(200_000, 2_000_000));
        let ns = self.slow(core, ns);
        if self.faults.get().syncs_hang { NEVER_NS } else { ns }
    }
    /// Whether the disk says of a write to this file that it is done, and does not do it.
    pub(crate) fn loses(&self, file: &str) -> bool {
        if self.to_lose.get() == 0 || !file.starts_with(CHUNKS) {
            return false;
        }
        self.to_lose.set(self.to_lose.get() - 1);
        self.lost.set(self.lost.get() + 1);
        true
    }
    fn change(&self, change: NameChange) {
        change.apply(&mut self.names.borrow_mut());
        self.unsynced.borrow_mut().push(change);
    }
    fn kill(&self, core: &Core) {
        self.life.set(self.life.get() + 1);
        self.locked.set(false);
        for content in self.names.borrow().values() {
            core.random(|r| content.borrow_mut().kill(r));
        }
    }
    fn crash(&self, core: &Core) {
        self.life.set(self.life.get() + 1);
        self.locked.set(false);
        let changes = self.unsynced.take();
        self.synced.set(0);
        let kept = core.random(|r| r.below(changes.len() as u64 + 1)) as usize;
        // Files that are in neither view any more vanish by themselves.
        let mut all: Vec<_> = self.names.borrow().values().cloned().collect();
        all.extend(self.durable.borrow().values().cloned());
        all.extend(changes.iter().filter_map(|c| match c {
            NameChange::Add(_, content) => Some(content.clone()),
            _ => None,
        }));
        let mut done: Vec<*const RefCell<Content>> = Vec::new();
        for content in all {
            if !done.contains(&Rc::as_ptr(&content)) {
                done.push(Rc::as_ptr(&content));
                core.random(|r| content.borrow_mut().crash(r));
            }
        }
        let mut durable = self.durable.borrow_mut();
        changes.iter().take(kept).for_each(|c| c.apply(&mut durable));
        *self.names.borrow_mut() = durable.clone();
    }
}

pub(crate) fn find_or_make(core: &Core, node: usize, path: &Path) -> Rc<Disk> {
    let mut disks = core.disks.borrow_mut();
    let new = || {
        Rc::new(Disk {
            path: path.to_owned(),
            bytes: Cell::new(DISK_BYTES),
            faults: Cell::default(),
            rate: Cell::new(0),
            busy_until_ns: Cell::new(0),
            to_lose: Cell::new(0),
            lost: Cell::new(0),
            scarce: Cell::default(),
            life: Cell::new(1),
            locked: Cell::new(false),
            names: RefCell::default(),
            durable: RefCell::default(),
            unsynced: RefCell::default(),
            synced: Cell::new(0),
        })
    };
    disks.entry((node, path.to_owned())).or_insert_with(new).clone()
}

pub(crate) fn open(core: &Rc<Core>, node: usize, disk: Rc<Disk>) -> io::Result<Dir> {
    disk.take_descriptor()?;
    let (core, life) = (Rc::downgrade(core), disk.life());
    let under_way = UnderWay::new(node);
    Ok(Rc::new(SimDir { core, disk, life, locks: Cell::new(false), under_way }))
}

/// A node's process ended; with `power`, what is not synced may be gone.
pub(crate) fn crash_node(core: &Core, node: usize, power: bool) {
    let disks: Vec<_> =
        core.disks.borrow().iter().filter(|(k, _)| k.0 == node).map(|(_, d)| d.clone()).collect();
    disks.iter().for_each(|d| if power { d.crash(core) } else { d.kill(core) });
}

struct SimDir {
    core: Weak<Core>,
    disk: Rc<Disk>,
    life: u64,
    locks: Cell<bool>,
    under_way: Rc<UnderWay>,
}

impl SimDir {
    /// Does something with the directory after a while.
    fn after<T: 'static>(
        &self,
        sync: bool,
        work: impl FnOnce(&Rc<Core>, &Rc<Disk>) -> io::Result<T> + 'static,
    ) -> BoxFuture<io::Result<T>> {
        let Some(core) = self.core.upgrade() else {
            return Box::pin(std::future::pending());
        };
        let (disk, life) = (self.disk.clone(), self.life);
        let delay = if sync { disk.sync_delay(&core) } else { disk.delay(&core) };
        self.under_way.later(&core, delay, move |core| {
            if disk.life() != life {
                return Err(io::Error::other("this node has crashed"));
            }
            work(core, &disk)
        })
    }
}

fn plain(name: &str) -> io::Result<String> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        let text = format!("«{name}» is not a plain name");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(name.to_owned())
}

fn not_found() -> io::Error {
    io::Error::from_raw_os_error(2)
}

impl DirIo for SimDir {
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>> {
        let (name, life, under_way) = (plain(name), self.life, self.under_way.clone());
        self.after(false, move |core, disk| {
            let name = name?;
            let opened = name.clone();
            let found = disk.names.borrow().get(&name).cloned();
            let content = match found {
                Some(content) => content,
                None if options.create => {
                    let content: Rc<RefCell<Content>> = Rc::default();
                    disk.change(NameChange::Add(name, content.clone()));
                    content
                }
                None => return Err(not_found()),
            };
            let file = SimFile {
                core: Rc::downgrade(core),
                name: opened,
                disk: disk.clone(),
                life,
                content,
                direct: options.direct,
                under_way,
            };
            Ok(Rc::new(file) as Rc<dyn FileIo>)
        })
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        self.after(false, |_, disk| Ok(disk.names.borrow().keys().cloned().collect()))
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let name = plain(name);
        self.after(false, move |_, disk| {
            let name = name?;
            if !disk.names.borrow().contains_key(&name) {
                return Err(not_found());
            }
            disk.change(NameChange::Remove(name));
            Ok(())
        })
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let (from, to) = (plain(from), plain(to));
        self.after(false, move |_, disk| {
            let (from, to) = (from?, to?);
            if !disk.names.borrow().contains_key(&from) {
                return Err(not_found());
            }
            if from != to {
                disk.change(NameChange::Rename(from, to));
            }
            Ok(())
        })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let covered = self.disk.synced.get() + self.disk.unsynced.borrow().len() as u64;
        self.after(true, move |core, disk| {
            if disk.fails(core, |f| f.sync_errors_per_million) {
                return Err(io::Error::from_raw_os_error(5));
            }
            let mut unsynced = disk.unsynced.borrow_mut();
            // Another sync may have covered some of them meanwhile.
            let left = covered.saturating_sub(disk.synced.get());
            disk.synced.set(disk.synced.get() + left);
            let mut durable = disk.durable.borrow_mut();
            unsynced.drain(..left as usize).for_each(|c| c.apply(&mut durable));
            Ok(())
        })
    }
    fn space(&self) -> io::Result<Space> {
        Ok(Space { total_bytes: self.disk.bytes.get(), free_bytes: self.disk.free_bytes() })
    }
    fn lock(&self) -> io::Result<()> {
        if self.locks.get() {
            return Ok(());
        }
        if self.disk.locked.replace(true) {
            let text = format!("{} is in use by another process", self.path());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        self.locks.set(true);
        Ok(())
    }
    fn path(&self) -> String {
        self.disk.path.display().to_string()
    }
    fn under_way_since(&self) -> Option<Instant> {
        let core = self.core.upgrade()?;
        self.under_way.since(&core)
    }
}

impl Drop for SimDir {
    fn drop(&mut self) {
        if self.locks.get() && self.disk.life() == self.life {
            self.disk.locked.set(false);
        }
    }
}

/// What a disk held at one moment.
pub struct DiskImage(Names);

fn copies(names: &Names) -> Names {
    let copy = |content: &RefCell<Content>| Rc::new(RefCell::new(content.borrow().copy()));
    names.iter().map(|(name, content)| (name.clone(), copy(content))).collect()
}

/// A handle on a disk, for tests that break it.
pub struct SimDisk {
    disk: Rc<Disk>,
    core: Rc<Core>,
}

impl SimDisk {
    pub(crate) fn new(disk: Rc<Disk>, core: Rc<Core>) -> Self {
        Self { disk, core }
    }
    /// The size of the disk.
    pub fn set_bytes(&self, bytes: u64) {
        self.disk.bytes.set(bytes);
    }
    /// What its files take.
    pub fn used_bytes(&self) -> u64 {
        self.disk.bytes.get().saturating_sub(self.disk.free_bytes())
    }
    /// The next writes to files of chunks, so many, are answered, are never done, and no flush says so: what is there is older than the store's record of it. (A log that a disk
    /// loses is another matter: nothing that is there tells of it.)
    pub fn lose_writes(&self, count: u32) {
        self.disk.to_lose.set(count);
    }
    /// The directory is opened `before` times as ever; the next `times` that somebody tries there is no descriptor.
    pub fn lack_descriptors(&self, before: u32, times: u32) {
        self.disk.scarce.set((before, times));
    }
    /// How many more times that will be.
    pub fn descriptors_lacked(&self) -> u32 {
        self.disk.scarce.get().1
    }
    /// How many were lost so, ever.
    pub fn lost_writes(&self) -> u32 {
        self.disk.lost.get()
    }
    /// From now on it transfers so many bytes per second, one read or write after the other; 0: as if it had no end.
    pub fn set_rate(&self, bytes_per_s: u64) {
        self.disk.rate.set(bytes_per_s);
    }
    /// What goes wrong now.
    pub fn faults(&self) -> DiskFaults {
        self.disk.faults.get()
    }
    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.disk.faults.set(faults);
    }
    /// Names and lengths of the files.
    pub fn files(&self) -> Vec<(String, u64)> {
        self.disk.names.borrow().iter().map(|(n, c)| (n.clone(), c.borrow().len())).collect()
    }
    /// Turns one bit of a file over, for good. False if there is no such byte.
    pub fn flip(&self, name: &str, offset: u64) -> bool {
        let Some(content) = self.disk.names.borrow().get(name).cloned() else { return false };
        let bit = self.core.random(|r| r.below(8)) as u8;
        let mut content = content.borrow_mut();
        let there = offset < content.len();
        content.flip(offset, bit);
        there
    }
    /// Turns one bit over, for good, in a block of a file that was written. False if there is none.
    pub fn flip_written(&self, name: &str) -> bool {
        let Some(content) = self.disk.names.borrow().get(name).cloned() else { return false };
        let blocks = content.borrow().written();
        if blocks.is_empty() {
            return false;
        }
        let (nth, inside) =
            self.core.random(|r| (r.below(blocks.len() as u64), r.below(super::blocks::BLOCK)));
        self.flip(name, blocks[nth as usize] * super::blocks::BLOCK + inside)
    }
    /// A copy of everything that readers see now: a snapshot.
    pub fn image(&self) -> DiskImage {
        DiskImage(copies(&self.disk.names.borrow()))
    }
    /// Puts a copy in the place of everything, durably. The node must be down.
    pub fn put_back(&self, image: &DiskImage) {
        self.wipe();
        let names = copies(&image.0);
        self.disk.durable.borrow_mut().clone_from(&names);
        *self.disk.names.borrow_mut() = names;
    }
    /// Takes everything off the disk, as if it had been replaced by a new one. The node must be down.
    pub fn wipe(&self) {
        self.disk.names.borrow_mut().clear();
        self.disk.durable.borrow_mut().clear();
        self.disk.unsynced.borrow_mut().clear();
    }
}
