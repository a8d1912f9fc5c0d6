//! Names: lookup, making, linking, removing, renaming.

use crate::attr::{entry_out, kind_of};
use crate::daemon::{Answer, Context, Outcome, fail};
use crate::errno::EINVAL;
use crate::filesystem::FileSystem;
use glowfs_fuse::abi;
use glowfs_rt::Instant;
use glowfs_types::wire::meta::*;
use glowfs_types::{InodeId, RequestId};

impl<S: FileSystem> Context<S> {
    /// The directory the request names.
    fn parent(&self) -> InodeId {
        InodeId(self.header.node)
    }

    /// An entry for the kernel; it counts as a lookup.
    pub fn entry(&self, from_meta: &Attr, leased_until: Instant) -> Box<abi::EntryOut> {
        self.inodes.looked_up(from_meta.inode, leased_until);
        self.inodes.gives(from_meta.inode);
        let attr = self.inodes.seen(from_meta);
        Box::new(entry_out(&attr, self.config.block_bytes, self.valid(leased_until)))
    }

    pub(crate) async fn lookup(&self, name: Vec<u8>) -> Outcome {
        let q = Lookup { caller: self.caller(), parent: self.parent(), name: name.into() };
        let asked = self.asking();
        let r = self.fs.lookup(q).await?;
        let end = self.lease_end(asked, r.attr.inode, r.lease_ms);
        Ok(Answer::Entry(self.entry(&r.attr, end)))
    }

    async fn make(
        &self,
        name: Vec<u8>,
        kind: InodeKind,
        mode: u32,
        (rdev, umask): (u32, u32),
        symlink: Vec<u8>,
    ) -> Outcome {
        let (mode, umask) = self.inodes.masked(self.parent(), (mode, umask));
        let q = Make {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            parent: self.parent(),
            name: name.into(),
            kind,
            mode: mode & 0o7777,
            rdev,
            symlink,
            exclusive: true,
            umask,
            ..Make::default()
        };
        let asked = self.asking();
        let r = self.fs.make(q).await?;
        let end = self.lease_end(asked, r.attr.inode, r.lease_ms);
        Ok(Answer::Entry(self.entry(&r.attr, end)))
    }
    pub(crate) async fn mknod(&self, name: Vec<u8>, mode: u32, rdev: u32, umask: u32) -> Outcome {
        match kind_of(mode) {
            Some(InodeKind::Directory | InodeKind::Symlink) | None => fail(EINVAL),
            Some(kind) => self.make(name, kind, mode, (rdev, umask), Vec::new()).await,
        }
    }
    pub(crate) async fn mkdir(&self, name: Vec<u8>, mode: u32, umask: u32) -> Outcome {
        self.make(name, InodeKind::Directory, mode, (0, umask), Vec::new()).await
    }
    pub(crate) async fn symlink(&self, name: Vec<u8>, target: Vec<u8>) -> Outcome {
        self.make(name, InodeKind::Symlink, 0o777, (0, 0), target).await
    }

    pub(crate) async fn link(&self, inode: u64, name: Vec<u8>) -> Outcome {
        let q = Link {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            inode: InodeId(inode),
            parent: self.parent(),
            name: name.into(),
        };
        let r = self.fs.link(q).await?;
        Ok(Answer::Entry(self.entry(&r.attr, Instant(0))))
    }
    pub(crate) async fn unlink(&self, name: Vec<u8>, directory: bool) -> Outcome {
        let q = Unlink {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            parent: self.parent(),
            name: name.into(),
            directory,
        };
        if let Some(gone) = self.fs.unlink(q).await?.attr {
            self.inodes.seen(&gone);
        }
        Ok(Answer::Done)
    }
    pub(crate) async fn rename(
        &self,
        name: Vec<u8>,
        to: u64,
        new_name: Vec<u8>,
        flags: u32,
    ) -> Outcome {
        let q = Rename {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            parent: self.parent(),
            name: name.into(),
            new_parent: InodeId(to),
            new_name: new_name.into(),
            flags,
        };
        if let Some(gone) = self.fs.rename(q).await?.replaced {
            self.inodes.seen(&gone);
        }
        Ok(Answer::Done)
    }
    pub(crate) async fn readlink(&self) -> Outcome {
        let q = OfInode { caller: self.caller(), inode: InodeId(self.header.node) };
        Ok(Answer::Bytes(self.fs.readlink(q).await?.target))
    }
    pub(crate) async fn statfs(&self) -> Outcome {
        const BLOCK: u64 = 4096;
        let q = OfInode { caller: self.caller(), inode: InodeId(self.header.node) };
        let r = self.fs.statfs(q).await?;
        // Inodes have no bound of their own; show what the free space would hold.
        let free_inodes = r.free_bytes / BLOCK;
        Ok(Answer::Statfs(Box::new(abi::StatfsOut {
            blocks: r.total_bytes / BLOCK,
            bfree: r.free_bytes / BLOCK,
            bavail: r.free_bytes / BLOCK,
            files: r.inodes.saturating_add(free_inodes),
            ffree: free_inodes,
            bsize: BLOCK as u32,
            namelen: NAME_BYTES_MAX as u32,
            frsize: BLOCK as u32,
            padding: 0,
            spare: [0; 6],
        })))
    }
}
