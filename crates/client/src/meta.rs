//! One typed call for each method of the meta service.
//!
//! `caller.client` and an all-zero request id are filled in here; the same message is sent again to another service
//! when an attempt fails without an answer, so that it takes effect once.

use crate::client::{Client, unbuilt};
use glowfs_types::wire::{Empty, meta::*};
use glowfs_types::Result;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($query:ty) -> $reply:ty;)*) => {
        impl Client {
            $($(#[$doc])*
            pub async fn $name(&self, query: $query) -> Result<$reply> {
                let _ = query;
                Err(unbuilt())
            })*
        }
    };
}

calls! {
    /// LOOKUP.
    lookup(Lookup) -> AttrReply;
    /// GETATTR.
    getattr(OfInode) -> AttrReply;
    /// SETATTR.
    setattr(SetAttr) -> AttrReply;
    /// MAKE.
    make(Make) -> AttrReply;
    /// LINK.
    link(Link) -> AttrReply;
    /// UNLINK.
    unlink(Unlink) -> UnlinkReply;
    /// RENAME.
    rename(Rename) -> RenameReply;
    /// READDIR.
    readdir(ReadDir) -> ReadDirReply;
    /// OPEN. Give the answer to [`Client::open_file`].
    open(Open) -> OpenReply;
    /// SYNC.
    sync(Sync) -> AttrReply;
    /// CLOSE.
    close_session(Sync) -> AttrReply;
    /// READLINK.
    readlink(OfInode) -> ReadLinkReply;
    /// STATFS.
    statfs(OfInode) -> StatFsReply;
    /// GETXATTR.
    getxattr(OfXattr) -> XattrReply;
    /// SETXATTR.
    setxattr(SetXattr) -> Empty;
    /// LISTXATTR.
    listxattr(OfInode) -> XattrList;
    /// REMOVEXATTR.
    removexattr(OfXattr) -> Empty;
    /// RENEW.
    renew(Renew) -> OpenReply;
}
