//! [`OpenFile`]: reads, writes and flushes of one open file.

use crate::Client;
use crate::client::unbuilt;
use glowfs_rt::{Buf, BufMut};
use glowfs_types::wire::meta::{Attr, Caller, OpenReply};
use glowfs_types::{DataId, InodeId, Layout, Result, SessionId, TruncateEpoch};
use std::rc::Rc;

/// On whose behalf and for what a file is open; capabilities are renewed with it.
#[derive(Clone, Debug)]
pub struct FileAccess {
    /// Who opened it.
    pub caller: Caller,
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
}

/// An open file. I/O is by offset and concurrent; ordering overlapping writes is the caller's.
pub struct OpenFile {
    inode: InodeId,
}

impl OpenFile {
    pub(crate) fn new(client: &Rc<Client>, reply: &OpenReply, access: FileAccess) -> Result<Rc<Self>> {
        let _ = (client, access);
        Ok(Rc::new(Self { inode: reply.attr.inode }))
    }
    /// The inode.
    pub fn inode(&self) -> InodeId {
        self.inode
    }
    /// The session, if it is open for writing.
    pub fn session(&self) -> Option<SessionId> {
        None
    }
    /// The data id its chunks are stored under now.
    pub fn data(&self) -> DataId {
        DataId(0)
    }
    /// Its layout.
    pub fn layout(&self) -> Option<Layout> {
        None
    }
    /// The truncate epoch that writes are made under (for SYNC and CLOSE).
    pub fn epoch(&self) -> TruncateEpoch {
        TruncateEpoch(0)
    }
    /// The greatest end of an acknowledged write under the present epoch, if there was one (for SYNC and CLOSE).
    pub fn len_written(&self) -> Option<u64> {
        None
    }
    /// Takes newer attributes over (after a truncate, or a recall): data id and epoch. A capability of an older epoch
    /// is renewed before it is used again.
    pub fn update_attr(&self, attr: &Attr) {
        let _ = attr;
    }
    /// Fills `buf` from `offset`: holes and bytes past the end are zeros. Answers how far into `buf` bytes exist in the
    /// chunks (the file's length is the caller's matter). On an error the contents of `buf` are arbitrary.
    pub async fn read(&self, offset: u64, buf: BufMut) -> (Result<usize>, BufMut) {
        let _ = offset;
        (Err(unbuilt()), buf)
    }
    /// Writes all of `buf`; when it returns, every serving replica has it (or, for an error, any part of it).
    pub async fn write(&self, offset: u64, buf: Buf) -> Result<()> {
        let _ = (offset, buf);
        Err(unbuilt())
    }
    /// Everything written to the file and acknowledged before, by whomever, is on disk when it returns.
    pub async fn flush(&self) -> Result<()> {
        Err(unbuilt())
    }
    /// Gets a fresh capability (I/O does so by itself when it is due).
    pub async fn renew(&self) -> Result<Attr> {
        Err(unbuilt())
    }
}
