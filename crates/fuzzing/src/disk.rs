//! A directory in memory, cheap to copy.

use glowfs_rt::backend::{BoxFuture, DirIo, FileIo, OpenOptions, Space};
use glowfs_rt::{Buf, BufMut, Dir, File};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// The grain in which files are shared between copies.
pub const BLOCK: usize = 4096;
/// No file of a run grows beyond this, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A file: blocks that were written, and the length.
#[derive(Clone, Default)]
pub struct Content {
    blocks: BTreeMap<u64, Rc<[u8]>>,
    /// Its length.
    pub len: u64,
}

impl Content {
    /// A block; zeros where nothing was written.
    pub fn block(&self, number: u64) -> Vec<u8> {
        self.blocks.get(&number).map_or(vec![0; BLOCK], |b| b.to_vec())
    }
    /// Replaces a block.
    pub fn set_block(&mut self, number: u64, bytes: &[u8]) {
        self.blocks.insert(number, bytes.into());
    }
    fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        self.len = self.len.max(at + bytes.len() as u64);
        while !bytes.is_empty() {
            let (number, from) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let n = bytes.len().min(BLOCK - from);
            let mut block = self.block(number);
            block[from..from + n].copy_from_slice(&bytes[..n]);
            self.set_block(number, &block);
            at += n as u64;
            bytes = &bytes[n..];
        }
    }
    fn read(&self, at: u64, out: &mut [u8]) -> usize {
        let n = (out.len() as u64).min(self.len.saturating_sub(at)) as usize;
        let mut done = 0;
        while done < n {
            let here = at + done as u64;
            let from = (here % BLOCK as u64) as usize;
            let some = (n - done).min(BLOCK - from);
            match self.blocks.get(&(here / BLOCK as u64)) {
                Some(b) => out[done..done + some].copy_from_slice(&b[from..from + some]),
                None => out[done..done + some].fill(0),
            }
            done += some;
        }
        n
    }
}

/// The files of a directory, by name.
pub type Files = BTreeMap<String, Content>;

type Shared = Rc<RefCell<BTreeMap<String, Rc<RefCell<Content>>>>>;

/// A directory with such files. It takes what is done to it; the image stays as it is.
pub fn directory(image: &Files) -> (Dir, Disk) {
    let files = image.iter().map(|(n, c)| (n.clone(), Rc::new(RefCell::new(c.clone())))).collect();
    let disk = Disk(Rc::new(RefCell::new(files)));
    (Rc::new(disk.clone()), disk)
}

/// See [`directory`].
#[derive(Clone)]
pub struct Disk(Shared);

impl Disk {
    /// What it holds now.
    pub fn image(&self) -> Files {
        self.0.borrow().iter().map(|(n, c)| (n.clone(), c.borrow().clone())).collect()
    }
}

fn ready<T: 'static>(t: T) -> BoxFuture<T> {
    Box::pin(std::future::ready(t))
}

impl DirIo for Disk {
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>> {
        let mut files = self.0.borrow_mut();
        if options.create {
            files.entry(name.to_owned()).or_default();
        }
        let found = files.get(name).cloned();
        ready(match found {
            Some(content) => Ok(Rc::new(Handle(content)) as File),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        ready(Ok(self.0.borrow().keys().cloned().collect()))
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let gone = self.0.borrow_mut().remove(name);
        ready(gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into()))
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let mut files = self.0.borrow_mut();
        let moved = files.remove(from).map(|content| drop(files.insert(to.to_owned(), content)));
        ready(moved.ok_or_else(|| io::ErrorKind::NotFound.into()))
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        ready(Ok(()))
    }
    fn space(&self) -> io::Result<Space> {
        Ok(Space { total_bytes: 1 << 40, free_bytes: 1 << 40 })
    }
    fn lock(&self) -> io::Result<()> {
        Ok(())
    }
    fn path(&self) -> String {
        "memory".into()
    }
}

struct Handle(Rc<RefCell<Content>>);

impl Handle {
    fn grow(&self, len: u64) -> BoxFuture<io::Result<()>> {
        if len > FILE_BYTES_MAX {
            return ready(Err(io::ErrorKind::StorageFull.into()));
        }
        let mut content = self.0.borrow_mut();
        content.len = content.len.max(len);
        ready(Ok(()))
    }
}

impl FileIo for Handle {
    fn read(&self, mut buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)> {
        let n = self.0.borrow().read(offset, &mut buf);
        ready((Ok(n), buf))
    }
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>> {
        let len = bufs.iter().map(|b| b.len() as u64).sum::<u64>();
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return ready(Err(io::ErrorKind::StorageFull.into()));
        }
        let mut at = offset;
        for buf in bufs {
            self.0.borrow_mut().write(at, &buf);
            at += buf.len() as u64;
        }
        ready(Ok(()))
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        ready(Ok(()))
    }
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        self.grow(offset.saturating_add(len))
    }
    fn punch(&self, _: u64, _: u64) -> BoxFuture<io::Result<()>> {
        ready(Ok(()))
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        {
            let mut content = self.0.borrow_mut();
            content.len = content.len.min(len);
            content.blocks.retain(|b, _| b * (BLOCK as u64) < len);
        }
        self.grow(len)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len)
    }
    fn room_bytes(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len)
    }
}

/// Writes the fuzzer's bytes over an image: file (1 byte), block (2), offset in it (2), length (1), bytes. An odd first bit of the file's
/// byte also cuts the file to that block.
pub fn edit(image: &mut Files, mut input: &[u8]) {
    let names: Vec<String> = image.keys().cloned().collect();
    while let Some((head, rest)) = input.split_first_chunk::<6>() {
        let [file, b0, b1, o0, o1, len] = *head;
        let (bytes, rest) = rest.split_at(usize::from(len).min(rest.len()));
        input = rest;
        let Some(content) = image.get_mut(&names[usize::from(file >> 1) % names.len()]) else {
            return;
        };
        let blocks = content.len.div_ceil(BLOCK as u64).max(1);
        let number = u64::from(u16::from_le_bytes([b0, b1])) % blocks;
        let offset = usize::from(u16::from_le_bytes([o0, o1])) % BLOCK;
        if file & 1 != 0 && len == 0 {
            content.len = number * BLOCK as u64;
            content.blocks.retain(|b, _| *b < number);
            continue;
        }
        let mut block = content.block(number);
        let n = bytes.len().min(BLOCK - offset);
        block[offset..offset + n].copy_from_slice(&bytes[..n]);
        content.set_block(number, &block);
    }
}
