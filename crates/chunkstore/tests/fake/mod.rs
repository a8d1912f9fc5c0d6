//! A world for the store's tests: a seeded executor and a disk that can be cut off after any operation.
#![allow(dead_code)]

use glowfs_rt::backend::{Backend, BoxFuture, DirIo, FileIo, OpenOptions, Space};
use glowfs_rt::tasks::Tasks;
use glowfs_rt::timers::Timers;
use glowfs_rt::{Address, Buf, BufMut, Dir, Duration, File, Instant, Listener, Pool, Rt, Stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const BLOCK: usize = 4096;

/// SplitMix64.
pub struct Rng(Cell<u64>);
impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }
    pub fn next(&self) -> u64 {
        let s = self.0.get();
        self.0.set(s.wrapping_add(1));
        glowfs_types::layout::splitmix64(s)
    }
    pub fn below(&self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }
}

pub struct World {
    tasks: Tasks,
    timers: Timers,
    now: Cell<u64>,
    pool: Pool,
    pub rng: Rng,
}

impl Backend for World {
    fn now(&self) -> Instant {
        Instant(self.now.get())
    }
    fn unix_ns(&self) -> u64 {
        self.now.get()
    }
    fn random(&self) -> u64 {
        self.rng.next()
    }
    fn set_timer(&self, at: Instant, waker: Waker) -> u64 {
        self.timers.set(at, waker)
    }
    fn cancel_timer(&self, key: u64) {
        self.timers.cancel(key);
    }
    fn spawn(&self, task: BoxFuture<()>) {
        self.tasks.spawn(task);
    }
    fn listen(&self, _: &Address) -> io::Result<Listener> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn connect(&self, _: &Address) -> BoxFuture<io::Result<Stream>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    fn open_dir(&self, _: &Path) -> io::Result<Dir> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<()> {
        work();
        Box::pin(async {})
    }
    fn poll_readable(&self, _: BorrowedFd<'_>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
    fn forget_readable(&self, _: BorrowedFd<'_>) {}
    fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// Runs `main` in a seeded world until it ends (its result) or `disk` was cut off (`None`).
pub fn run<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    disk: &Rc<Disk>,
    main: impl FnOnce(Rt) -> F,
) -> Option<T> {
    run_observed(seed, disk, || {}, main)
}

/// The same; `observe` is called after every operation that changed something on the disk (if it [`Disk::yields`]).
pub fn run_observed<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    disk: &Rc<Disk>,
    mut observe: impl FnMut(),
    main: impl FnOnce(Rt) -> F,
) -> Option<T> {
    let world = Rc::new(World {
        tasks: Tasks::new(Box::new(|| {})),
        timers: Timers::default(),
        now: Cell::new(1),
        pool: Pool::heap(),
        rng: Rng::new(seed),
    });
    let rt = Rt::new(world.clone());
    let out = Rc::new(RefCell::new(None));
    let put = out.clone();
    let work = main(rt.clone());
    rt.spawn_detached(async move { *put.borrow_mut() = Some(work.await) });
    drop(rt);
    let mut seen = disk.ops.get();
    while out.borrow().is_none() && !disk.is_cut() {
        if disk.ops.get() != seen {
            seen = disk.ops.get();
            observe();
        }
        let ready = world.tasks.ready() as u64;
        if ready > 0 {
            let nth = if world.rng.below(2) == 0 { 0 } else { world.rng.below(ready) };
            world.tasks.run_nth(nth as usize);
            continue;
        }
        let next = world.timers.next().expect("a task waits for nothing: deadlock");
        world.now.set(next.0.max(world.now.get()));
        world.timers.fire(next);
    }
    world.tasks.clear();
    out.take()
}

type Blocks = BTreeMap<u64, Rc<[u8]>>;

#[derive(Clone, Default)]
struct Content {
    blocks: Blocks,
    /// Blocks that take room, written or not.
    room: BTreeSet<u64>,
    len: u64,
}

/// The blocks that a range touches.
fn touched(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / BLOCK as u64..(offset + len).div_ceil(BLOCK as u64)
}

impl Content {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            self.blocks.insert(offset / BLOCK as u64 + i as u64, b.into());
        }
        self.room.extend(touched(offset, bytes.len() as u64));
        self.len = self.len.max(offset + bytes.len() as u64);
    }
    fn set_len(&mut self, len: u64) {
        self.len = len;
        self.blocks.retain(|b, _| b * (BLOCK as u64) < len);
        self.room.retain(|b| b * (BLOCK as u64) < len);
    }
    fn punch(&mut self, offset: u64, len: u64) {
        for b in touched(offset, len) {
            self.blocks.remove(&b);
            self.room.remove(&b);
        }
    }
}

#[derive(Clone)]
enum Change {
    Write(u64, Rc<[u8]>),
    SetLen(u64),
    /// Offset and length.
    Allocate(u64, u64),
    Punch(u64, u64),
}

impl Content {
    fn apply(&mut self, c: &Change) {
        match c {
            Change::Write(at, bytes) => self.write(*at, bytes),
            Change::SetLen(len) => self.set_len(*len),
            Change::Allocate(at, len) => {
                self.len = self.len.max(at + len);
                self.room.extend(touched(*at, *len));
            }
            Change::Punch(at, len) => self.punch(*at, *len),
        }
    }
    /// Applies all of a change or some blocks of it, maybe torn; what that came to.
    fn apply_part(&mut self, change: Change, all: bool, rng: &Rng) -> Vec<Change> {
        let Change::Write(at, bytes) = change else {
            self.apply(&change);
            return vec![change];
        };
        let mut done = Vec::new();
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            let at = at + (i * BLOCK) as u64;
            let block: Rc<[u8]> = match if all { 0 } else { rng.below(4) } {
                0 | 1 => b.into(),
                2 => continue,
                _ => {
                    let old = self.blocks.get(&(at / BLOCK as u64));
                    let mut torn = old.map_or(vec![0; BLOCK], |b| b.to_vec());
                    let n = 512 * rng.below(8) as usize;
                    torn[..n].copy_from_slice(&b[..n]);
                    torn.into()
                }
            };
            done.push(Change::Write(at, block));
            done.last().into_iter().for_each(|c| self.apply(c));
        }
        done
    }
}

#[derive(Default)]
struct FileState {
    now: Content,
    durable: Content,
    /// Completed, not durable.
    unsynced: Vec<Change>,
    /// Begun, not completed.
    running: BTreeMap<u64, Change>,
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
    rng: Rng,
    files: RefCell<BTreeMap<u64, FileState>>,
    names: RefCell<BTreeMap<String, u64>>,
    durable_names: RefCell<BTreeMap<String, u64>>,
    next: Cell<u64>,
    /// Operations that changed something.
    pub ops: Cell<u64>,
    /// Cut off after so many.
    pub cut_at: Cell<u64>,
    pub capacity: Cell<u64>,
    /// Operations fail from here on: (operation number, error).
    pub fail_at: Cell<Option<(u64, io::ErrorKind)>>,
    pub syncs: Cell<u64>,
    /// Other tasks, or an observer, come between any two operations.
    pub yields: Cell<bool>,
    /// This many flushes from now, one fails; 0: none does.
    pub fail_sync: Cell<u64>,
    /// The read so many reads from now returns a wrong bit; 0: none does.
    pub flip_read: Cell<u64>,
    /// Each operation takes so long, twice.
    slow: RefCell<Option<(Rt, Duration)>>,
    /// Files (by their inner number) and blocks that cannot be read.
    unreadable: RefCell<BTreeSet<(u64, u64)>>,
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
            yields: Cell::new(false),
            fail_sync: Cell::new(0),
            flip_read: Cell::new(0),
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
    fn need_room(&self, id: u64, offset: u64, len: u64) -> io::Result<()> {
        let missing =
            self.content(id, |f| touched(offset, len).filter(|b| !f.now.room.contains(b)).count());
        if missing > 0 && self.used() + (missing * BLOCK) as u64 > self.capacity.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
    fn operation(&self) -> io::Result<()> {
        self.ops.set(self.ops.get() + 1);
        match self.fail_at.get() {
            Some((at, kind)) if self.ops.get() >= at => Err(kind.into()),
            _ => Ok(()),
        }
    }
    /// Whether the flush that is made now is the one that fails.
    fn sync_fails(&self) -> bool {
        let left = self.fail_sync.get();
        self.fail_sync.set(left.saturating_sub(1));
        left == 1
    }
    fn content<T>(&self, id: u64, f: impl FnOnce(&mut FileState) -> T) -> T {
        f(self.files.borrow_mut().get_mut(&id).expect("an open file"))
    }
    /// Makes a change at once; it is durable with the next flush.
    fn change(&self, id: u64, change: Change) {
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
    /// Some other task may run, or several.
    async fn pause(&self) {
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

struct FakeDir(Rc<Disk>);
struct FakeFile {
    disk: Rc<Disk>,
    id: u64,
}

impl FileIo for FakeFile {
    fn read(&self, mut buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)> {
        assert!(offset.is_multiple_of(BLOCK as u64) && buf.len().is_multiple_of(BLOCK));
        assert!((buf.as_ptr() as usize).is_multiple_of(BLOCK));
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            let first = offset / BLOCK as u64;
            let range = (id, first)..(id, first + (buf.len() / BLOCK) as u64);
            if disk.unreadable.borrow().range(range).next().is_some() {
                return (Err(io::Error::other("the block cannot be read")), buf);
            }
            let n = disk.content(id, |f| {
                let n = f.now.len.saturating_sub(offset).min(buf.len() as u64) as usize;
                for (i, b) in buf[..n].chunks_mut(BLOCK).enumerate() {
                    match f.now.blocks.get(&(offset / BLOCK as u64 + i as u64)) {
                        Some(data) => b.copy_from_slice(&data[..b.len()]),
                        None => b.fill(0),
                    }
                }
                n
            });
            let left = disk.flip_read.get();
            disk.flip_read.set(left.saturating_sub(1));
            if left == 1 && n > 0 {
                // In the first block: most reads at start-up need no more of what they read ahead.
                buf[disk.rng.below(n.min(BLOCK) as u64) as usize] ^= 1 << disk.rng.below(8);
            }
            disk.pause().await;
            (Ok(n), buf)
        })
    }
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>> {
        assert!(offset.is_multiple_of(BLOCK as u64));
        let mut bytes = Vec::new();
        for b in &bufs {
            assert!(b.is_aligned() && b.len().is_multiple_of(BLOCK), "unaligned write");
            bytes.extend_from_slice(b);
        }
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            let key = disk.next.get();
            disk.next.set(key + 1);
            disk.need_room(id, offset, bytes.len() as u64)?;
            let change = Change::Write(offset, bytes.into());
            disk.content(id, |f| f.running.insert(key, change.clone()));
            disk.pause().await;
            let result = disk.operation();
            disk.content(id, |f| {
                f.running.remove(&key);
                if result.is_ok() {
                    f.now.apply(&change);
                    f.unsynced.push(change);
                }
            });
            disk.pause().await;
            result
        })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            let n = disk.content(id, |f| f.unsynced.len());
            disk.pause().await;
            disk.operation()?;
            disk.syncs.set(disk.syncs.get() + 1);
            let fails = disk.sync_fails();
            disk.content(id, |f| {
                let n = n.min(f.unsynced.len());
                for c in f.unsynced.drain(..n).collect::<Vec<_>>() {
                    if !fails {
                        f.durable.apply(&c);
                    } else if disk.rng.below(2) == 0 {
                        // It can be read as before and counts as clean; the disk has any part of it.
                        f.durable.apply_part(c, false, &disk.rng);
                    }
                }
            });
            disk.pause().await;
            if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
        })
    }
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.need_room(id, offset, len)?;
            disk.change(id, Change::Allocate(offset, len));
            Ok(())
        })
    }
    fn punch(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.change(id, Change::Punch(offset, len));
            Ok(())
        })
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.change(id, Change::SetLen(len));
            Ok(())
        })
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.content(self.id, |f| f.now.len))
    }
    fn room_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.content(self.id, |f| (f.now.room.len() * BLOCK) as u64))
    }
}

impl DirIo for FakeDir {
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>> {
        let (disk, name) = (self.0.clone(), name.to_owned());
        Box::pin(async move {
            disk.pause().await;
            let found = disk.names.borrow().get(&name).copied();
            let id = match found {
                Some(id) => id,
                None if options.create => {
                    disk.operation()?;
                    let id = disk.next.get();
                    disk.next.set(id + 1);
                    disk.files.borrow_mut().insert(id, FileState::default());
                    disk.names.borrow_mut().insert(name, id);
                    id
                }
                None => return Err(io::ErrorKind::NotFound.into()),
            };
            Ok(Rc::new(FakeFile { disk, id }) as File)
        })
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        let names = self.0.file_names();
        Box::pin(async move { Ok(names) })
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let (disk, name) = (self.0.clone(), name.to_owned());
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.names.borrow_mut().remove(&name);
            Ok(())
        })
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let (disk, from, to) = (self.0.clone(), from.to_owned(), to.to_owned());
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            let mut names = disk.names.borrow_mut();
            let id = names.remove(&from).ok_or(io::ErrorKind::NotFound)?;
            names.insert(to, id);
            Ok(())
        })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let disk = self.0.clone();
        Box::pin(async move {
            let names = disk.names.borrow().clone();
            disk.pause().await;
            disk.operation()?;
            if disk.sync_fails() {
                return Err(io::Error::from_raw_os_error(5));
            }
            *disk.durable_names.borrow_mut() = names;
            Ok(())
        })
    }
    fn space(&self) -> io::Result<Space> {
        let total = self.0.capacity.get();
        Ok(Space { total_bytes: total, free_bytes: total.saturating_sub(self.0.used()) })
    }
    fn lock(&self) -> io::Result<()> {
        Ok(())
    }
    fn path(&self) -> String {
        "/disk".into()
    }
}
