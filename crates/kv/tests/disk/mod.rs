//! A directory in memory whose process can be killed, or whose power can be cut, at any operation.

use glowfs_rt::backend::{DirIo, FileIo, OpenOptions, Space};
use glowfs_rt::{BoxFuture, Buf, BufMut, Dir, File};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Len(usize),
}

#[derive(Clone, Default)]
struct Body {
    /// What the process sees.
    now: Vec<u8>,
    /// What is on the disk for sure.
    durable: Vec<u8>,
    /// What may or may not be.
    pending: Vec<Change>,
}

type Shared = Rc<RefCell<Body>>;

#[derive(Default)]
pub struct Disk {
    names: RefCell<BTreeMap<String, Shared>>,
    durable_names: RefCell<BTreeMap<String, Shared>>,
    /// Operations left until the crash.
    pub left: Cell<u64>,
    pub done: Cell<u64>,
    /// What a crash or fault answers.
    pub errno: Cell<i32>,
    /// This many flushes of files from now, one fails; 0: none does.
    pub fail_sync: Cell<u64>,
    /// What that one answers.
    pub sync_errno: Cell<i32>,
    /// What flushes of the directory answer from now on; 0: they flush it.
    pub dir_errno: Cell<i32>,
    /// There is no room for another name of a file.
    pub no_rename: Cell<bool>,
    /// Writes that made a file longer.
    pub longer: Cell<u64>,
    /// So many files are not made from now on, for want of a descriptor.
    pub scarce: Cell<u64>,
    /// Bytes that all files may take together.
    pub bytes: Cell<u64>,
    /// There is no room in a file of this name.
    pub full: Cell<Option<&'static str>>,
    /// There is no room to take beforehand.
    pub scant: Cell<bool>,
    /// There is not even room for the first block of a segment.
    pub no_segment: Cell<bool>,
    /// There is not even room for its name.
    pub no_name: Cell<bool>,
    /// Flushes of files that begin from now on.
    pub syncs: Gate,
    /// Writes of files.
    pub writes: Gate,
}

/// Holds operations up, until it is opened.
#[derive(Default)]
pub struct Gate {
    shut: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    pub fn shut(&self) {
        self.shut.set(true);
    }
    /// Those who wait go on in the order in which they came, or the other way round.
    pub fn open(&self, newest_first: bool) {
        self.shut.set(false);
        let mut waiting = self.waiting.take();
        if newest_first {
            waiting.reverse();
        }
        waiting.into_iter().for_each(Waker::wake);
    }
    async fn pass(&self) {
        poll_fn(|cx| {
            if !self.shut.get() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

pub fn rand(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(1);
    glowfs_types::layout::splitmix64(*seed)
}

impl Body {
    fn apply(bytes: &mut Vec<u8>, change: &Change) {
        match change {
            Change::Write(at, data) => {
                if bytes.len() < at + data.len() {
                    bytes.resize(at + data.len(), 0);
                }
                bytes[*at..at + data.len()].copy_from_slice(data);
            }
            Change::Len(n) => bytes.resize(*n, 0),
        }
    }
    fn change(&mut self, change: Change) {
        Self::apply(&mut self.now, &change);
        self.pending.push(change);
    }
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            Self::apply(&mut self.durable, &change);
        }
    }
    /// Applies any part of what is pending to the durable bytes.
    fn sync_in_part(&mut self, seed: &mut u64) {
        for change in std::mem::take(&mut self.pending) {
            match &change {
                Change::Len(_) if rand(seed).is_multiple_of(2) => {
                    Self::apply(&mut self.durable, &change);
                }
                Change::Len(_) => {}
                Change::Write(at, data) => {
                    for (i, block) in data.chunks(512).enumerate() {
                        if !rand(seed).is_multiple_of(3) {
                            let part = Change::Write(at + i * 512, block.to_vec());
                            Self::apply(&mut self.durable, &part);
                        }
                    }
                }
            }
        }
    }
}

impl Disk {
    pub fn new() -> Rc<Self> {
        let d = Self::default();
        d.left.set(u64::MAX);
        d.bytes.set(1 << 40);
        d.errno.set(5);
        d.sync_errno.set(5);
        Rc::new(d)
    }
    pub fn dir(self: &Rc<Self>) -> Dir {
        Rc::new(Handle(self.clone()))
    }
    fn step(&self) -> io::Result<()> {
        self.done.set(self.done.get() + 1);
        match self.left.get() {
            0 => Err(io::Error::from_raw_os_error(self.errno.get())),
            n => {
                self.left.set(n - 1);
                Ok(())
            }
        }
    }
    /// The disk after SIGKILL: everything the process had written, flushed or not.
    pub fn killed(&self) -> Rc<Self> {
        let next = Self::new();
        let mut copies: Vec<(Shared, Shared)> = Vec::new();
        let mut copy = |of: &Shared| match copies.iter().find(|(old, _)| Rc::ptr_eq(old, of)) {
            Some((_, new)) => new.clone(),
            None => {
                let new = Rc::new(RefCell::new(of.borrow().clone()));
                copies.push((of.clone(), new.clone()));
                new
            }
        };
        for (from, to) in [(&self.names, &next.names), (&self.durable_names, &next.durable_names)] {
            let all = from.borrow().iter().map(|(n, body)| (n.clone(), copy(body))).collect();
            *to.borrow_mut() = all;
        }
        next
    }
    /// The disk after a loss of power: what was flushed, and any part of the rest, block by block.
    pub fn unplugged(&self, seed: &mut u64) -> Rc<Self> {
        let next = Self::new();
        let names = if rand(seed).is_multiple_of(2) { &self.names } else { &self.durable_names };
        for (name, body) in &*names.borrow() {
            let mut body = body.borrow().clone();
            body.sync_in_part(seed);
            let bytes = body.durable;
            let body =
                Rc::new(RefCell::new(Body { now: bytes.clone(), durable: bytes, pending: vec![] }));
            next.names.borrow_mut().insert(name.clone(), body.clone());
            next.durable_names.borrow_mut().insert(name.clone(), body);
        }
        next
    }
    /// The disk after a loss of power that took everything that was not flushed.
    pub fn without_unflushed(&self) -> Rc<Self> {
        let next = Self::new();
        for (name, body) in &*self.durable_names.borrow() {
            let bytes = body.borrow().durable.clone();
            let body = Body { now: bytes.clone(), durable: bytes, pending: vec![] };
            let body = Rc::new(RefCell::new(body));
            next.names.borrow_mut().insert(name.clone(), body.clone());
            next.durable_names.borrow_mut().insert(name.clone(), body);
        }
        next
    }
    /// What all files take.
    pub fn used(&self) -> u64 {
        self.names.borrow().values().map(|body| body.borrow().now.len() as u64).sum()
    }
    fn free(&self) -> u64 {
        self.bytes.get().saturating_sub(self.used())
    }
    /// The bytes of a file, to damage them.
    pub fn edit(&self, name: &str, f: impl FnOnce(&mut Vec<u8>)) {
        let names = self.names.borrow();
        let mut body = names[name].borrow_mut();
        f(&mut body.now);
        body.pending.clear();
        body.durable = body.now.clone();
    }
    /// What a process reads in a file.
    pub fn content(&self, name: &str) -> Vec<u8> {
        self.names.borrow()[name].borrow().now.clone()
    }
    /// A file as it was elsewhere.
    pub fn add(&self, name: &str, bytes: Vec<u8>) {
        let body = Body { now: bytes.clone(), durable: bytes, pending: vec![] };
        let body = Rc::new(RefCell::new(body));
        self.names.borrow_mut().insert(name.to_owned(), body.clone());
        self.durable_names.borrow_mut().insert(name.to_owned(), body);
    }
    pub fn names(&self) -> Vec<String> {
        self.names.borrow().keys().cloned().collect()
    }
}

struct Handle(Rc<Disk>);
struct FileHandle(Rc<Disk>, Shared, String);

fn ready<T: 'static>(t: T) -> BoxFuture<T> {
    Box::pin(std::future::ready(t))
}

impl DirIo for Handle {
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>> {
        let mut names = self.0.names.borrow_mut();
        if !names.contains_key(name) {
            if !options.create {
                return ready(Err(io::Error::from_raw_os_error(2)));
            }
            if self.0.no_name.get() && name.starts_with("log-") {
                return ready(Err(io::Error::from_raw_os_error(28)));
            }
            let scarce = self.0.scarce.get();
            if scarce > 0 {
                self.0.scarce.set(scarce - 1);
                return ready(Err(io::Error::from_raw_os_error(24)));
            }
            if let Err(e) = self.0.step() {
                return ready(Err(e));
            }
            names.insert(name.to_owned(), Shared::default());
        }
        let file: File = Rc::new(FileHandle(self.0.clone(), names[name].clone(), name.to_owned()));
        ready(Ok(file))
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        ready(Ok(self.0.names()))
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        ready(self.0.step().and_then(|()| {
            let gone = self.0.names.borrow_mut().remove(name);
            gone.map(drop).ok_or_else(|| io::Error::from_raw_os_error(2))
        }))
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        if self.0.no_rename.get() {
            return ready(Err(io::Error::from_raw_os_error(28)));
        }
        ready(self.0.step().and_then(|()| {
            let mut names = self.0.names.borrow_mut();
            let body = names.remove(from).ok_or_else(|| io::Error::from_raw_os_error(2))?;
            names.insert(to.to_owned(), body);
            Ok(())
        }))
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        if self.0.dir_errno.get() != 0 {
            return ready(Err(io::Error::from_raw_os_error(self.0.dir_errno.get())));
        }
        ready(
            self.0
                .step()
                .map(|()| *self.0.durable_names.borrow_mut() = self.0.names.borrow().clone()),
        )
    }
    fn space(&self) -> io::Result<Space> {
        Ok(Space { total_bytes: self.0.bytes.get(), free_bytes: self.0.free() })
    }
    fn lock(&self) -> io::Result<()> {
        Ok(())
    }
    fn path(&self) -> String {
        "memory".into()
    }
}

impl FileIo for FileHandle {
    fn read(&self, mut buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)> {
        let body = self.1.borrow();
        let at = (offset as usize).min(body.now.len());
        let n = buf.len().min(body.now.len() - at);
        buf[..n].copy_from_slice(&body.now[at..at + n]);
        ready((Ok(n), buf))
    }
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>> {
        let data: Vec<u8> = bufs.iter().flat_map(|b| b.to_vec()).collect();
        let (disk, body) = (self.0.clone(), self.1.clone());
        let full = disk.full.get().is_some_and(|name| name == self.2);
        let none = disk.no_segment.get() && offset == 0 && self.2.starts_with("log-");
        Box::pin(async move {
            disk.writes.pass().await;
            if none || full && offset > 0 {
                return Err(io::Error::from_raw_os_error(28));
            }
            let len = body.borrow().now.len();
            let fits = (disk.free() as usize + len).saturating_sub(offset as usize);
            if data.len() > fits {
                // What there is room for is written all the same.
                let part = data[..fits / 512 * 512].to_vec();
                body.borrow_mut().change(Change::Write(offset as usize, part));
                return Err(io::Error::from_raw_os_error(28));
            }
            match disk.step() {
                Ok(()) => {
                    disk.longer
                        .set(disk.longer.get() + u64::from(offset as usize + data.len() > len));
                    body.borrow_mut().change(Change::Write(offset as usize, data));
                    Ok(())
                }
                Err(e) => {
                    // The write that the crash hits is done in part.
                    let part = data.len() * (disk.done.get() as usize % 4) / 4;
                    if disk.left.replace(0) == 0 && part > 0 && disk.errno.replace(1005) < 1000 {
                        body.borrow_mut()
                            .change(Change::Write(offset as usize, data[..part].to_vec()));
                    }
                    Err(e)
                }
            }
        })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let (disk, body) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            disk.syncs.pass().await;
            let left = disk.fail_sync.get();
            disk.fail_sync.set(left.saturating_sub(1));
            disk.step()?;
            let mut body = body.borrow_mut();
            if left != 1 {
                body.sync();
                return Ok(());
            }
            // It can be read as before and counts as clean; the disk has any part of it.
            body.sync_in_part(&mut disk.done.get());
            Err(io::Error::from_raw_os_error(disk.sync_errno.get()))
        })
    }
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        if self.0.scant.get() {
            // Part of it may be there.
            self.1.borrow_mut().change(Change::Len((offset + len / 2) as usize));
            return ready(Err(io::Error::from_raw_os_error(28)));
        }
        let more = (offset + len).saturating_sub(self.1.borrow().now.len() as u64);
        if more > self.0.free() {
            return ready(Err(io::Error::from_raw_os_error(28)));
        }
        ready(self.0.step().map(|()| {
            let mut body = self.1.borrow_mut();
            let end = (offset + len) as usize;
            if body.now.len() < end {
                body.change(Change::Len(end));
            }
        }))
    }
    fn punch(&self, _: u64, _: u64) -> BoxFuture<io::Result<()>> {
        ready(Ok(()))
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        ready(self.0.step().map(|()| self.1.borrow_mut().change(Change::Len(len as usize))))
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.1.borrow().now.len() as u64)
    }
    fn room_bytes(&self) -> io::Result<u64> {
        self.len()
    }
}
