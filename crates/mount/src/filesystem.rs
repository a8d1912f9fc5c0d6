//! [`FileSystem`]: what the mount needs of the client library, so that tests can put something else below.

use glowfs_client::{Client, FileAccess, Found, OpenFile, RecallHandler};
use glowfs_rt::{Buf, BufMut};
use glowfs_types::wire::Empty;
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::inline::InlineReply;
use glowfs_types::wire::lock::{Lock, LockReply};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::{RemoveTree, RemoveTreeReply};
use glowfs_types::{ClientId, Result, SessionId, TruncateEpoch};
use std::rc::Rc;

/// An open file; see [`OpenFile`].
#[allow(async_fn_in_trait, missing_docs)]
pub trait FileData: 'static {
    fn session(&self) -> Option<SessionId>;
    /// See [`OpenFile::lives`].
    fn lives(&self) -> bool;
    fn epoch(&self) -> TruncateEpoch;
    /// See [`OpenFile::writable_epoch`].
    async fn writable_epoch(&self) -> Result<TruncateEpoch>;
    /// The greatest end of an acknowledged write under the present epoch.
    fn len_written(&self) -> Option<u64>;
    fn update_attr(&self, attr: &Attr);
    /// Fills `buf` from `offset`: holes and bytes past the end are zeros.
    async fn read(&self, offset: u64, buf: BufMut) -> (Result<Found>, BufMut);
    /// See [`OpenFile::write_told`].
    async fn write(
        &self,
        offset: u64,
        buf: Buf,
        under: Option<TruncateEpoch>,
    ) -> Result<Option<Attr>>;
    /// See [`OpenFile::spill`].
    async fn spill(&self) -> Result<()>;
    /// See [`OpenFile::content`].
    async fn content(&self) -> Result<Option<InlineReply>>;
    /// Makes bytes before the end of the file zeros, and gives back space if it can.
    async fn zero(&self, offset: u64, len: u64) -> Result<()>;
    /// See [`OpenFile::flush`].
    async fn flush(&self) -> Result<()>;
    /// See [`OpenFile::losses`].
    fn losses(&self) -> u64;
    /// See [`OpenFile::seek`].
    async fn seek(&self, offset: u64, len: u64, data: bool) -> Result<Option<u64>>;
    /// Bytes of the blocks that exist.
    async fn allocated(&self) -> Result<u64>;
    /// See [`OpenFile::copy_from`].
    async fn copy_from(&self, source: &Rc<Self>, span: (u64, u64, u64), len: u64) -> Result<bool>;
}

macro_rules! file_system {
    ($($name:ident($query:ty) -> $reply:ty;)*) => {
        /// A file system; see [`Client`].
        #[allow(async_fn_in_trait, missing_docs)]
        pub trait FileSystem: 'static {
            type File: FileData;
            $(async fn $name(&self, query: $query) -> Result<$reply>;)*
            fn new_session(&self) -> SessionId;
            /// See [`Client::closes_room`].
            fn closes_room(&self) -> bool;
            /// See [`Client::close_later`].
            async fn close_later(self: &Rc<Self>, query: Sync) -> Result<()>;
            /// This life of the client: what an earlier one held is lost.
            fn life(&self) -> ClientId;
            fn open_file(self: &Rc<Self>, reply: &OpenReply, access: FileAccess) -> Result<Rc<Self::File>>;
            /// Whom to tell when others change what is known here, and to ask what is open.
            fn listen(&self, handler: Rc<dyn RecallHandler>);
            /// Ends the connection with the cluster.
            async fn shut_down(&self);
        }
        impl FileSystem for Client {
            type File = OpenFile;
            $(async fn $name(&self, query: $query) -> Result<$reply> { Client::$name(self, query).await })*
            fn new_session(&self) -> SessionId {
                Client::new_session(self)
            }
            fn closes_room(&self) -> bool {
                Client::closes_room(self)
            }
            async fn close_later(self: &Rc<Self>, query: Sync) -> Result<()> {
                Client::close_later(self, query).await
            }
            fn life(&self) -> ClientId {
                self.id()
            }
            fn open_file(self: &Rc<Self>, reply: &OpenReply, access: FileAccess) -> Result<Rc<OpenFile>> {
                Client::open_file(self, reply, access)
            }
            fn listen(&self, handler: Rc<dyn RecallHandler>) {
                self.on_recall(handler);
            }
            async fn shut_down(&self) {
                self.close().await;
            }
        }
    };
}

file_system! {
    lookup(Lookup) -> AttrReply;
    getattr(OfInode) -> AttrReply;
    setattr(SetAttr) -> AttrReply;
    make(Make) -> AttrReply;
    link(Link) -> AttrReply;
    unlink(Unlink) -> UnlinkReply;
    rename(Rename) -> RenameReply;
    readdir(ReadDir) -> ReadDirReply;
    open(Open) -> OpenReply;
    sync(Sync) -> AttrReply;
    close_session(Sync) -> AttrReply;
    readlink(ReadLink) -> ReadLinkReply;
    statfs(OfInode) -> StatFsReply;
    getxattr(OfXattr) -> XattrReply;
    setxattr(SetXattr) -> Empty;
    listxattr(OfInode) -> XattrList;
    removexattr(OfXattr) -> Empty;
    remove_tree(RemoveTree) -> RemoveTreeReply;
    append(Append) -> AppendReply;
    lock(Lock) -> LockReply;
    lock_test(Lock) -> LockReply;
    lock_wait(Lock) -> LockReply;
}

impl FileData for OpenFile {
    fn session(&self) -> Option<SessionId> {
        OpenFile::session(self)
    }
    fn lives(&self) -> bool {
        OpenFile::lives(self)
    }
    fn epoch(&self) -> TruncateEpoch {
        OpenFile::epoch(self)
    }
    async fn writable_epoch(&self) -> Result<TruncateEpoch> {
        OpenFile::writable_epoch(self).await
    }
    fn len_written(&self) -> Option<u64> {
        OpenFile::len_written(self)
    }
    fn update_attr(&self, attr: &Attr) {
        OpenFile::update_attr(self, attr);
    }
    async fn read(&self, offset: u64, buf: BufMut) -> (Result<Found>, BufMut) {
        OpenFile::read_found(self, offset, buf).await
    }
    async fn write(
        &self,
        offset: u64,
        buf: Buf,
        under: Option<TruncateEpoch>,
    ) -> Result<Option<Attr>> {
        OpenFile::write_told(self, offset, buf, under).await
    }
    async fn spill(&self) -> Result<()> {
        OpenFile::spill(self).await
    }
    async fn content(&self) -> Result<Option<InlineReply>> {
        OpenFile::content(self).await
    }
    async fn zero(&self, offset: u64, len: u64) -> Result<()> {
        OpenFile::zero(self, offset, len).await
    }
    async fn flush(&self) -> Result<()> {
        OpenFile::flush(self).await
    }
    fn losses(&self) -> u64 {
        OpenFile::losses(self)
    }
    async fn seek(&self, offset: u64, len: u64, data: bool) -> Result<Option<u64>> {
        OpenFile::seek(self, offset, len, data).await
    }
    async fn allocated(&self) -> Result<u64> {
        OpenFile::allocated(self).await
    }
    async fn copy_from(&self, source: &Rc<Self>, span: (u64, u64, u64), len: u64) -> Result<bool> {
        OpenFile::copy_from(self, source, span, len).await
    }
}
