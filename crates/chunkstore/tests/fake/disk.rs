//! The disk: files and names, what of them is durable, faults, and what is left after a crash.

use super::content::{Change, Content, touched};
use super::files::FakeDir;
use super::{BLOCK, Rng};
use glowfs_rt::{Dir, Duration, Rt};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Default)]
pub(super) struct FileState {
    pub(super) now: Content,
    pub(super) durable: Content,
    /// Completed, not durable.
    pub(super) unsynced: Vec<Change>,
    /// Begun, not completed.
    pub(super) running: BTreeMap<u64, Change>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// Completed writes stay.
    Kill,
    /// Only what was synced is sure to stay.
    Power,
}

/// A disk in memory.
pub struct Disk {
    pub(super) rng: Rng,
    pub(super) files: RefCell<BTreeMap<u64, FileState>>,
    pub(super) names: RefCell<BTreeMap<String, u64>>,
    pub(super) durable_names: RefCell<BTreeMap<String, u64>>,
    pub(super) next: Cell<u64>,
    /// Operations that changed something.
    pub ops: Cell<u64>,
    /// Cut off after so many.
    pub cut_at: Cell<u64>,
    pub capacity: Cell<u64>,
    /// Operations fail from here on: (operation number, error).
    pub fail_at: Cell<Option<(u64, io::ErrorKind)>>,
    pub syncs: Cell<u64>,
    /// So many times from now on no descriptor is had for a file.
    pub scarce: Cell<u64>,
    /// Other tasks, or an observer, come between any two operations.
    pub yields: Cell<bool>,
    /// This many flushes from now, one fails; 0: none does.
    pub fail_sync: Cell<u64>,
    /// The read so many reads from now returns a wrong bit; 0: none does.
    pub flip_read: Cell<u64>,
    /// Writes of this file wait ([`Disk::hold`]),
    held: Cell<Option<&'static str>>,
    /// or all flushes of files ([`Disk::hold_flushes`]),
    flushes_held: Cell<bool>,
    /// and these do.
    waiting: RefCell<Vec<Waker>>,
    /// It tells which parts of its files have room.
    pub tells_rooms: Cell<bool>,
    /// Each operation takes so long, twice.
    slow: RefCell<Option<(Rt, Duration)>>,
    /// Files (by their inner number) and blocks that cannot be read.
    pub(super) unreadable: RefCell<BTreeSet<(u64, u64)>>,
}

impl Disk {
    pub fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            rng: Rng::new(seed ^ 0xd15c),
            files: RefCell::default(),
            names: RefCell::default(),
            durable_names: RefCell::default(),
            next: Cell::new(1),
            ops: Cell::new(0),
            cut_at: Cell::new(u64::MAX),
            capacity: Cell::new(1 << 40),
            fail_at: Cell::new(None),
            syncs: Cell::new(0),
            scarce: Cell::new(0),
            yields: Cell::new(false),
            fail_sync: Cell::new(0),
            flip_read: Cell::new(0),
            held: Cell::new(None),
            flushes_held: Cell::new(false),
            waiting: RefCell::default(),
            tells_rooms: Cell::new(true),
            slow: RefCell::default(),
            unreadable: RefCell::default(),
        })
    }
    pub fn is_cut(&self) -> bool {
        self.ops.get() >= self.cut_at.get()
    }
    pub fn dir(self: &Rc<Self>) -> Dir {
        Rc::new(FakeDir(self.clone()))
    }
    pub fn used(&self) -> u64 {
        let files = self.files.borrow();
        let blocks: usize = self
            .names
            .borrow()
            .values()
            .filter_map(|id| files.get(id))
            .map(|f| f.now.room.len())
            .sum();
        (blocks * BLOCK) as u64
    }
    /// Fails if the file has no room for the range yet and the disk has none either.
    pub(super) fn need_room(&self, id: u64, offset: u64, len: u64) -> io::Result<()> {
        let missing =
            self.content(id, |f| touched(offset, len).filter(|b| !f.now.room.contains(b)).count());
        if missing > 0 && self.used() + (missing * BLOCK) as u64 > self.capacity.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
    pub(super) fn operation(&self) -> io::Result<()> {
        self.ops.set(self.ops.get() + 1);
        match self.fail_at.get() {
            Some((at, kind)) if self.ops.get() >= at => Err(kind.into()),
            _ => Ok(()),
        }
    }
    /// Whether the flush that is made now is the one that fails.
    pub(super) fn sync_fails(&self) -> bool {
        let left = self.fail_sync.get();
        self.fail_sync.set(left.saturating_sub(1));
        left == 1
    }
    pub(super) fn content<T>(&self, id: u64, f: impl FnOnce(&mut FileState) -> T) -> T {
        f(self.files.borrow_mut().get_mut(&id).expect("an open file"))
    }
    /// Makes a change at once; it is durable with the next flush.
    pub(super) fn change(&self, id: u64, change: Change) {
        self.content(id, |f| {
            f.now.apply(&change);
            f.unsynced.push(change);
        });
    }
    /// What the next life finds.
    pub fn after(&self, crash: Crash, seed: u64) -> Rc<Disk> {
        let disk = Disk::new(seed);
        let rng = Rng::new(seed ^ 0xc4a5);
        let names = match crash {
            Crash::Kill => self.names.borrow().clone(),
            Crash::Power if rng.below(2) == 0 => self.names.borrow().clone(),
            Crash::Power => self.durable_names.borrow().clone(),
        };
        for (id, f) in &*self.files.borrow() {
            let (mut content, loose) = match crash {
                Crash::Kill => (f.now.clone(), Vec::new()),
                Crash::Power => (f.durable.clone(), f.unsynced.clone()),
            };
            let loose = loose.into_iter().chain(f.running.values().cloned());
            // 0: all is lost, 1: all stays, else block by block.
            let fate = rng.below(3);
            let mut kept = Vec::new();
            for change in loose.filter(|_| fate > 0 || crash == Crash::Kill) {
                kept.extend(content.apply_part(change, fate == 1, &rng));
            }
            let state = match crash {
                // The machine goes on: what was not flushed still is not.
                Crash::Kill => FileState {
                    now: content,
                    durable: f.durable.clone(),
                    unsynced: f.unsynced.iter().cloned().chain(kept).collect(),
                    ..FileState::default()
                },
                Crash::Power => {
                    FileState { now: content.clone(), durable: content, ..FileState::default() }
                }
            };
            disk.files.borrow_mut().insert(*id, state);
        }
        *disk.durable_names.borrow_mut() = match crash {
            Crash::Kill => self.durable_names.borrow().clone(),
            Crash::Power => names.clone(),
        };
        *disk.names.borrow_mut() = names;
        disk.next.set(self.next.get());
        disk.capacity.set(self.capacity.get());
        disk
    }
    pub fn file_names(&self) -> Vec<String> {
        self.names.borrow().keys().cloned().collect()
    }
    /// Blocks of a file that were ever written.
    pub fn blocks(&self, name: &str) -> Vec<u64> {
        let id = self.names.borrow()[name];
        self.content(id, |f| f.now.blocks.keys().copied().collect())
    }
    pub fn flip(&self, name: &str, block: u64, bit: usize) {
        let id = self.names.borrow()[name];
        self.content(id, |f| {
            let mut b = f.now.blocks[&block].to_vec();
            b[bit / 8] ^= 1 << (bit % 8);
            f.now.blocks.insert(block, b.into());
        });
    }
    /// Every read of this block is an I/O error from now on.
    pub fn make_unreadable(&self, name: &str, block: u64) {
        self.unreadable.borrow_mut().insert((self.names.borrow()[name], block));
    }
    /// All blocks can be read again.
    pub fn make_readable(&self) {
        self.unreadable.borrow_mut().clear();
    }
    pub fn len(&self, name: &str) -> u64 {
        let id = self.names.borrow()[name];
        self.content(id, |f| f.now.len)
    }
    /// A part of a file is a hole from now on, durably.
    pub fn punch(&self, name: &str, offset: u64, len: u64) {
        let id = self.names.borrow()[name];
        self.content(id, |f| {
            for content in [&mut f.now, &mut f.durable] {
                content.apply(&Change::Punch(offset, len));
            }
        });
    }
    pub fn truncate(&self, name: &str, len: u64) {
        let id = self.names.borrow()[name];
        self.content(id, |f| f.now.set_len(len));
    }
    pub fn bytes(&self, name: &str, block: u64) -> Vec<u8> {
        let id = self.names.borrow()[name];
        self.content(id, |f| f.now.blocks.get(&block).map_or(vec![0; BLOCK], |b| b.to_vec()))
    }
    /// From now on each operation takes at least so long.
    pub fn slow_down(&self, rt: &Rt, least: Duration) {
        *self.slow.borrow_mut() = Some((rt.clone(), least / 2));
    }
    /// Writes of a file do not go on until they are let go.
    pub fn hold(&self, name: &'static str) {
        self.held.set(Some(name));
    }
    /// Flushes of files do not go on until they are let go.
    pub fn hold_flushes(&self) {
        self.flushes_held.set(true);
    }
    /// Whether any waits.
    pub fn holds(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }
    pub fn let_go(&self) {
        self.held.set(None);
        self.flushes_held.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
    pub(super) async fn while_held(&self, id: u64) {
        poll_fn(|cx| {
            let held = self.held.get().is_some_and(|n| self.names.borrow().get(n) == Some(&id));
            if held {
                self.waiting.borrow_mut().push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
    pub(super) async fn while_flushes_are_held(&self) {
        poll_fn(|cx| {
            if self.flushes_held.get() {
                self.waiting.borrow_mut().push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
    /// Some other task may run, or several.
    pub(super) async fn pause(&self) {
        let slow = self.slow.borrow().clone();
        if let Some((rt, pause)) = slow {
            rt.sleep(pause).await;
        }
        let mut n = self.rng.below(4).max(u64::from(self.yields.get()));
        poll_fn(|cx| {
            if n == 0 {
                return Poll::Ready(());
            }
            n -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        if self.is_cut() {
            std::future::pending::<()>().await;
        }
    }
}
