//! Answers: each consumes the request it belongs to.

use crate::abi;
use crate::session::Session;
use crate::uring::Entry;
use glowfs_rt::{Buf, BufMut};
use libc::{EIO, ERANGE};
use std::cell::Cell;
use std::io::IoSlice;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// The right and duty to answer one request. Dropped without an answer, it answers EIO.
pub struct Reply {
    pub(crate) session: Rc<Session>,
    pub(crate) unique: u64,
    /// Where it came, if not by the device.
    pub(crate) entry: Option<Rc<Entry>>,
    pub(crate) answered: Cell<bool>,
}

impl Reply {
    /// A page-aligned buffer for the payload of the answer (its place in the entry, over io_uring).
    pub fn buffer(&self, len: usize) -> BufMut {
        self.session.buffer(self.entry.as_ref(), len)
    }
    /// Resolves when the kernel has told us that the caller was interrupted by a signal. The request still wants
    /// its answer.
    pub async fn interrupted(&self) {
        self.session.interrupted(self.unique).await;
    }
    /// The request is going to wait for other requests of the kernel (for a lock, say): from now on it does not count among those
    /// outstanding, or it could keep out what it waits for. False: too many do, and it should not wait long.
    #[must_use]
    pub fn park(&self) -> bool {
        self.session.park(self.unique, self.entry.as_ref())
    }
    fn send(self, error: i32, parts: &[IoSlice<'_>]) {
        self.answered.set(true);
        self.session.answer(self.unique, self.entry.as_ref(), error, parts);
    }
    /// Failure, with an errno (positive).
    pub fn error(self, errno: i32) {
        let errno = if (1..=511).contains(&errno) { errno } else { EIO };
        self.send(-errno, &[]);
    }
    /// Success without a body.
    pub fn ok(self) {
        self.send(0, &[]);
    }
    /// Success with bytes.
    pub fn bytes(self, bytes: &[u8]) {
        self.send(0, &[IoSlice::new(bytes)]);
    }
    /// Success of READ: the payload, sent without a copy of ours.
    pub fn data(self, buf: Buf) {
        self.answered.set(true);
        self.session.answer_data(self.unique, self.entry.as_ref(), buf);
    }
    /// Success of LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(self, entry: &abi::EntryOut) {
        self.bytes(entry.as_bytes());
    }
    /// Success of GETATTR, SETATTR.
    pub fn attr(self, attr: &abi::AttrOut) {
        self.bytes(attr.as_bytes());
    }
    /// Success of OPEN, OPENDIR.
    pub fn open(self, fh: u64, open_flags: u32) {
        self.bytes(abi::OpenOut { fh, open_flags, backing_id: 0 }.as_bytes());
    }
    /// Success of CREATE.
    pub fn create(self, entry: &abi::EntryOut, fh: u64, open_flags: u32) {
        let open = abi::OpenOut { fh, open_flags, backing_id: 0 };
        self.send(0, &[IoSlice::new(entry.as_bytes()), IoSlice::new(open.as_bytes())]);
    }
    /// Success of WRITE.
    pub fn written(self, bytes: u32) {
        self.bytes(abi::WriteOut { size: bytes, padding: 0 }.as_bytes());
    }
    /// Success of LSEEK.
    pub fn lseek(self, offset: u64) {
        self.bytes(abi::LseekOut { offset }.as_bytes());
    }
    /// Success of IOCTL: what the caller gets back.
    pub fn ioctl(self, data: &[u8]) {
        self.send(0, &[IoSlice::new(abi::IoctlOut::default().as_bytes()), IoSlice::new(data)]);
    }
    /// Success of GETLK.
    pub fn lock(self, lock: &abi::LkOut) {
        self.bytes(lock.as_bytes());
    }
    /// Success of STATFS.
    pub fn statfs(self, st: &abi::StatfsOut) {
        self.bytes(st.as_bytes());
    }
    /// Success of GETXATTR and LISTXATTR: the size if that was asked for, the value, or ERANGE.
    pub fn xattr(self, asked: u32, value: &[u8]) {
        if asked == 0 {
            self.bytes(abi::GetxattrOut { size: value.len() as u32, padding: 0 }.as_bytes());
        } else if value.len() > asked as usize {
            self.error(ERANGE);
        } else {
            self.bytes(value);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered.get() {
            tracing::warn!(unique = self.unique, "a FUSE request was dropped without an answer");
            self.session.answer(self.unique, self.entry.as_ref(), -EIO, &[]);
        }
    }
}

/// Builds the answer of READDIR or READDIRPLUS within the size the kernel asked for.
pub struct DirWriter {
    bytes: Vec<u8>,
    limit: usize,
}

impl DirWriter {
    /// A writer of at most `limit` bytes.
    pub fn new(limit: u32) -> Self {
        let limit = (limit as usize).min(1 << 20);
        Self { bytes: Vec::with_capacity(limit.min(64 << 10)), limit }
    }
    /// Adds an entry of READDIR; `off` is the cookie that listing goes on after. False: it did not fit.
    #[must_use]
    pub fn entry(&mut self, ino: u64, off: u64, kind: u32, name: &[u8]) -> bool {
        self.push(None, ino, off, kind, name)
    }
    /// Adds an entry of READDIRPLUS. False: it did not fit.
    #[must_use]
    pub fn entry_plus(
        &mut self,
        entry: &abi::EntryOut,
        ino: u64,
        off: u64,
        kind: u32,
        name: &[u8],
    ) -> bool {
        self.push(Some(entry), ino, off, kind, name)
    }
    fn push(
        &mut self,
        entry: Option<&abi::EntryOut>,
        ino: u64,
        off: u64,
        kind: u32,
        name: &[u8],
    ) -> bool {
        let fixed = size_of::<abi::Dirent>() + entry.map_or(0, |_| size_of::<abi::EntryOut>());
        let padded = abi::dirent_align(fixed + name.len());
        if self.bytes.len() + padded > self.limit {
            return false;
        }
        let end = self.bytes.len() + padded;
        if let Some(e) = entry {
            self.bytes.extend_from_slice(e.as_bytes());
        }
        let head = abi::Dirent { ino, off, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
    /// The bytes to answer with.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
