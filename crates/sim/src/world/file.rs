//! A file on a simulated disk: what readers see, what is durable, and what lies between.

use super::blocks::{BLOCK, Blocks, Pieces, Room};
use super::core::Core;
use super::disk::Disk;
use super::random::Random;
use super::under_way::UnderWay;
use glowfs_rt::backend::{BoxFuture, FileIo, Part, late};
use glowfs_rt::{Buf, BufMut, Duration, Instant};
use std::cell::RefCell;
use std::io;
use std::rc::{Rc, Weak};

/// The least that a disk writes at once, in bytes.
const SECTOR: usize = 512;

/// The state of a file; it lives on when all handles are gone.
#[derive(Default)]
pub(crate) struct Content {
    /// What readers see.
    now: Blocks,
    /// What a crash cannot take away.
    durable: Blocks,
    /// Changes since the last sync, in their order.
    unsynced: Vec<Change>,
    /// Changes that are under way: not visible yet, but a crash may leave parts of them.
    running: Vec<(u64, Change)>,
    pub(crate) room: Room,
    changes: u64,
    /// Changes that left `unsynced` since the file was made.
    synced: u64,
    /// A sync failed: what readers see is the system's cache, until it is evicted.
    cached: bool,
}

#[derive(Clone)]
enum Change {
    Write(Rc<Pieces>),
    Zero {
        offset: u64,
        len: u64,
    },
    SetLen(u64),
    /// Allocation: extends the file.
    Extend(u64),
}

impl Change {
    /// Bytes that are transferred for it.
    fn bytes(&self) -> usize {
        match self {
            Self::Write(pieces) => pieces.len(),
            Self::Zero { .. } | Self::SetLen(_) | Self::Extend(_) => 0,
        }
    }
    fn apply(&self, to: &mut Blocks) {
        match self {
            Self::Write(pieces) => to.put(pieces),
            Self::Zero { offset, len } => to.zero(*offset, *len),
            Self::SetLen(len) => to.set_len(*len),
            Self::Extend(len) => to.set_len(to.len().max(*len)),
        }
    }
    /// What a crash leaves of it: nothing, all, or any part.
    fn apply_torn(&self, to: &mut Blocks, random: &mut Random) {
        let Self::Write(pieces) = self else {
            if random.below(2) == 0 {
                self.apply(to);
            }
            return;
        };
        let grain = match random.below(4) {
            0 => return,
            1 => return self.apply(to),
            2 => SECTOR,
            _ => BLOCK as usize,
        };
        for (i, part) in pieces.bytes().chunks(grain).enumerate() {
            if random.below(2) == 0 {
                to.write(pieces.offset() + (i * grain) as u64, part);
            }
        }
    }
}

impl Content {
    fn begin(&mut self, change: Change) -> u64 {
        self.changes += 1;
        self.running.push((self.changes, change));
        self.changes
    }
    fn end(&mut self, number: u64, apply: bool) {
        let Some(place) = self.running.iter().position(|(n, _)| *n == number) else { return };
        let (_, change) = self.running.remove(place);
        if apply {
            change.apply(&mut self.now);
            self.unsynced.push(change);
        }
    }
    /// Number of changes that were ever visible.
    fn done(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }
    /// The process is gone: what it was just writing may have happened or not. And what a failed sync left in the cache may be
    /// evicted before the next process looks.
    pub(crate) fn kill(&mut self, random: &mut Random) {
        if self.cached && random.below(2) == 0 {
            self.cached = false;
            self.now = self.durable.clone();
            self.unsynced.iter().for_each(|c| c.apply(&mut self.now));
        }
        for (_, change) in std::mem::take(&mut self.running) {
            if random.below(2) == 0 {
                change.apply(&mut self.now);
                self.unsynced.push(change);
            }
        }
    }
    /// The process and the disk's volatile memory are gone.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let running = std::mem::take(&mut self.running).into_iter().map(|(_, c)| c);
        self.synced = self.done();
        self.cached = false;
        for change in std::mem::take(&mut self.unsynced).into_iter().chain(running) {
            change.apply_torn(&mut self.durable, random);
        }
        self.now = self.durable.clone();
        let end = self.now.len().div_ceil(BLOCK);
        self.room.remove(end, u64::MAX);
    }
    /// What readers see, as a file of its own that is durable.
    pub(crate) fn copy(&self) -> Self {
        let (now, durable, room) = (self.now.clone(), self.now.clone(), self.room.clone());
        Self { now, durable, room, ..Self::default() }
    }
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) {
        self.now.flip(offset, bit);
        self.durable.flip(offset, bit);
    }
    pub(crate) fn len(&self) -> u64 {
        self.now.len()
    }
    /// The blocks that were written, by number.
    pub(crate) fn written(&self) -> Vec<u64> {
        self.now.written()
    }
}

pub(crate) struct SimFile {
    pub(crate) core: Weak<Core>,
    pub(crate) disk: Rc<Disk>,
    pub(crate) name: String,
    pub(crate) life: u64,
    pub(crate) content: Rc<RefCell<Content>>,
    pub(crate) direct: bool,
    pub(crate) under_way: Rc<UnderWay>,
}

fn failed<T: 'static>(e: io::Error) -> BoxFuture<io::Result<T>> {
    Box::pin(std::future::ready(Err(e)))
}

impl SimFile {
    fn core(&self) -> io::Result<Rc<Core>> {
        let gone = || io::Error::other("the simulated world is gone");
        let core = self.core.upgrade().ok_or_else(gone)?;
        if self.disk.life() == self.life {
            Ok(core)
        } else {
            Err(io::Error::other("this node has crashed"))
        }
    }
    fn check_aligned(&self, offset: u64, ptr: *const u8, len: usize) -> io::Result<()> {
        let fits = |n: u64| n.is_multiple_of(BLOCK);
        if self.direct && !(fits(offset) && fits(len as u64) && fits(ptr as u64)) {
            return Err(io::Error::from_raw_os_error(22));
        }
        Ok(())
    }
    /// Takes room for a range, or says that there is none.
    fn take_room(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (start, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let missing = self.content.borrow().room.missing(start, end);
        if missing * BLOCK > self.disk.free_bytes() {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.content.borrow_mut().room.insert(start, end);
        Ok(())
    }
    /// Makes a change that takes a while.
    fn change(&self, core: &Rc<Core>, change: Change) -> BoxFuture<io::Result<()>> {
        let waits = self.disk.waits(core);
        let delay = self.disk.write_delay(core, change.bytes(), || {
            let content = self.content.borrow();
            matches!(&change, Change::Write(p) if !content.now.covers(p.offset(), p.len() as u64))
        });
        let (disk, life, content) = (self.disk.clone(), self.life, self.content.clone());
        let lost = matches!(change, Change::Write(_)) && disk.loses(&self.name);
        let number = content.borrow_mut().begin(change);
        self.under_way.after_others(core, waits, delay, move |core| {
            if disk.life() != life {
                return Err(io::Error::other("this node has crashed"));
            }
            let error = disk.fails(core, |f| f.write_errors_per_million);
            content.borrow_mut().end(number, !error && !lost);
            core.trace(6, number, u64::from(error));
            if error { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
        })
    }
}

impl FileIo for SimFile {
    fn read(&self, buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)> {
        self.read_by(buf, offset, Instant::NEVER)
    }
    fn read_by(
        &self,
        mut buf: BufMut,
        offset: u64,
        by: Instant,
    ) -> BoxFuture<(io::Result<usize>, BufMut)> {
        let checked = self
            .core()
            .and_then(|c| self.check_aligned(offset, buf.as_ptr(), buf.len()).map(|()| c));
        let core = match checked {
            Ok(core) => core,
            Err(e) => return Box::pin(std::future::ready((Err(e), buf))),
        };
        let waits = self.disk.waits(&core);
        if self.under_way.now(&core) + Duration::from_nanos(waits) > by {
            return self.under_way.after_others(&core, waits, 0, move |_| (Err(late()), buf));
        }
        let delay = self.disk.transfer_delay(&core, buf.len());
        let (disk, content) = (self.disk.clone(), self.content.clone());
        self.under_way.after_others(&core, waits, delay, move |core| {
            if disk.fails(core, |f| f.read_errors_per_million) {
                return (Err(io::Error::from_raw_os_error(5)), buf);
            }
            let n = content.borrow().now.read(offset, &mut buf);
            if n > 0 && disk.fails(core, |f| f.read_flips_per_million) {
                let (at, bit) = core.random(|r| (r.below(n as u64) as usize, r.below(8)));
                buf[at] ^= 1 << bit;
            }
            (Ok(n), buf)
        })
    }
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let checked = self.core().and_then(|core| {
            let mut at = offset;
            for b in &bufs {
                self.check_aligned(at, b.as_ptr(), b.len())?;
                at = at.checked_add(b.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
            }
            self.take_room(offset, total as u64)?;
            Ok(core)
        });
        let core = match checked {
            Ok(core) => core,
            Err(e) => return failed(e),
        };
        let pieces = Pieces::new(offset, bufs.iter().map(|b| &b[..]));
        self.change(&core, Change::Write(Rc::new(pieces)))
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let core = match self.core() {
            Ok(core) => core,
            Err(e) => return failed(e),
        };
        let delay = self.disk.sync_delay(&core);
        let covered = self.content.borrow().done();
        let (disk, life, content) = (self.disk.clone(), self.life, self.content.clone());
        let changes = content.borrow().changes;
        self.under_way.later(&core, delay, move |core| {
            if disk.life() != life {
                return Err(io::Error::other("this node has crashed"));
            }
            let error = disk.fails(core, |f| f.sync_errors_per_million);
            core.trace(7, changes, u64::from(error));
            let mut c = content.borrow_mut();
            // Another sync may have covered some of them meanwhile.
            let left = covered.saturating_sub(c.synced) as usize;
            let covered: Vec<_> = c.unsynced.drain(..left).collect();
            c.synced += left as u64;
            if error {
                // As on Linux: the pages are clean now and can be read, but what of them is on the disk nobody knows.
                c.cached = true;
                core.random(|r| covered.iter().for_each(|x| x.apply_torn(&mut c.durable, r)));
                return Err(io::Error::from_raw_os_error(5));
            }
            covered.iter().for_each(|x| x.apply(&mut c.durable));
            Ok(())
        })
    }
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        match self.core().and_then(|core| self.take_room(offset, len).map(|()| core)) {
            Ok(core) => self.change(&core, Change::Extend(offset + len)),
            Err(e) => failed(e),
        }
    }
    fn punch(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        let core = match self.core() {
            Ok(core) => core,
            Err(e) => return failed(e),
        };
        let whole = (offset.div_ceil(BLOCK), offset.saturating_add(len) / BLOCK);
        self.content.borrow_mut().room.remove(whole.0, whole.1);
        self.change(&core, Change::Zero { offset, len })
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        let core = match self.core() {
            Ok(core) => core,
            Err(e) => return failed(e),
        };
        self.content.borrow_mut().room.remove(len.div_ceil(BLOCK), u64::MAX);
        self.change(&core, Change::SetLen(len))
    }
    fn len(&self) -> io::Result<u64> {
        self.core()?;
        Ok(self.content.borrow().len())
    }
    fn room_bytes(&self) -> io::Result<u64> {
        self.core()?;
        Ok(self.content.borrow().room.blocks() * BLOCK)
    }
    fn rooms(&self) -> BoxFuture<io::Result<Option<Vec<Part>>>> {
        if let Err(e) = self.core() {
            return failed(e);
        }
        let content = self.content.borrow();
        let parts = content.room.parts();
        let parts = parts.map(|(start, end)| Part { start: start * BLOCK, end: end * BLOCK });
        Box::pin(std::future::ready(Ok(Some(parts.collect()))))
    }
}
