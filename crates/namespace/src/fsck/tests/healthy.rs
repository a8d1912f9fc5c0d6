//! A healthy tree that has every kind of thing.

use super::*;
use glowfs_types::wire::lock::{Lock, LockWish};

impl World {
    pub(super) async fn make(&self, parent: InodeId, n: &str, kind: InodeKind) -> InodeId {
        let symlink = if kind == InodeKind::Symlink { b"target".to_vec() } else { vec![] };
        let request = RequestId(u128::from(self.id.get()) << 8);
        let q = Make {
            caller: who(),
            request,
            parent,
            name: name(n),
            kind,
            mode: 0o755,
            symlink,
            ..Make::default()
        };
        op!(self, ns::make, q).attr.inode
    }
    pub(super) async fn mkdir(&self, parent: InodeId, n: &str) -> InodeId {
        self.make(parent, n, InodeKind::Directory).await
    }
    pub(super) async fn file(&self, parent: InodeId, n: &str) -> InodeId {
        self.make(parent, n, InodeKind::File).await
    }
    pub(super) async fn rm(&self, parent: InodeId, n: &str, directory: bool) {
        let q = Unlink { caller: who(), request: RequestId(0), parent, name: name(n), directory };
        op!(self, ns::unlink, q);
    }
    pub(super) async fn open(&self, inode: InodeId, session: u128) {
        let flags = OpenFlags {
            read: true,
            write: true,
            session: SessionId(session),
            ..OpenFlags::default()
        };
        op!(self, ns::open, Open { caller: who(), request: RequestId(0), inode, flags });
    }
    pub(super) async fn lock(&self, inode: InodeId, owner: u64, waits: bool) {
        let wish = LockWish::Exclusive;
        op!(
            self,
            ns::lock,
            Lock { caller: who(), inode, owner, wish, end: 9, waits, ..Lock::default() }
        );
    }
    pub(super) async fn setxattr(&self, inode: InodeId, n: &str, value: &[u8]) {
        let (request, flags) = (RequestId(0), 0);
        op!(
            self,
            ns::setxattr,
            SetXattr { caller: who(), request, inode, name: name(n), value: value.to_vec(), flags }
        );
    }
}

/// The places of a healthy tree that has every kind of thing.
pub(super) struct Tree {
    pub(super) d: InodeId,
    pub(super) sub: InodeId,
    pub(super) f: InodeId,
    pub(super) two: InodeId,
    pub(super) link: InodeId,
    pub(super) trashed: InodeId,
    pub(super) removed: InodeId,
}

pub(super) async fn tree(w: &World) -> Tree {
    let root = ROOT_INODE;
    let d = w.mkdir(root, "d").await;
    let sub = w.mkdir(d, "sub").await;
    w.mkdir(sub, "deep").await;
    let f = w.file(d, "f").await;
    let two = w.file(d, "two").await;
    op!(
        w,
        ns::link,
        Link {
            caller: who(),
            request: RequestId(0),
            inode: two,
            parent: sub,
            name: name("second")
        }
    );
    let link = w.make(root, "link", InodeKind::Symlink).await;
    w.make(root, "fifo", InodeKind::Fifo).await;
    w.make(root, "device", InodeKind::CharDevice).await;
    w.setxattr(f, "user.note", b"x").await;
    w.setxattr(d, "user.note", b"x").await;
    w.open(f, 50).await;
    w.lock(f, 1, false).await;
    w.lock(f, 2, true).await;
    // Removed while it is open; removed and kept by the service; never named.
    let removed = w.file(d, "removed").await;
    w.open(removed, 51).await;
    w.rm(d, "removed", false).await;
    w.file(d, "gone").await;
    w.rm(d, "gone", false).await;
    let flags =
        OpenFlags { read: true, write: true, session: SessionId(52), ..OpenFlags::default() };
    op!(
        w,
        ns::make,
        Make {
            caller: who(),
            parent: d,
            kind: InodeKind::File,
            open: Some(flags),
            unnamed: true,
            ..Make::default()
        }
    );
    // A trash.
    w.setxattr(sub, "glowfs.trash", b"7d").await;
    let trashed = w.file(sub, "kept").await;
    w.rm(sub, "kept", false).await;
    // Directories that were moved and removed.
    w.mkdir(d, "a").await;
    let b = w.mkdir(root, "b").await;
    let (old, new) = (name("a"), name("moved"));
    op!(
        w,
        ns::rename,
        Rename {
            caller: who(),
            request: RequestId(0),
            parent: d,
            name: old,
            new_parent: b,
            new_name: new,
            flags: 0
        }
    );
    w.mkdir(b, "short").await;
    w.rm(b, "short", true).await;
    Tree { d, sub, f, two, link, trashed, removed }
}
