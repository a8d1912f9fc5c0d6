//! Extended attributes.

use crate::daemon::{Answer, Context, Outcome, fail};
use crate::errno::{ENODATA, EOPNOTSUPP};
use crate::filesystem::FileSystem;
use glowfs_types::wire::meta::*;
use glowfs_types::{InodeId, RequestId};

/// What a program may do that is run from the file. The kernel asks for it before it writes to a file for the first time.
const CAPABILITY: &[u8] = b"security.capability";

fn is_acl(name: &[u8]) -> bool {
    name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

fn refused(name: &[u8]) -> bool {
    name.starts_with(b"system.") && !is_acl(name)
}

impl<S: FileSystem> Context<S> {
    fn of_xattr(&self, name: Vec<u8>) -> OfXattr {
        OfXattr {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            inode: InodeId(self.header.node),
            name: name.into(),
        }
    }
    pub(crate) async fn getxattr(&self, name: Vec<u8>, size: u32) -> Outcome {
        if refused(&name) {
            return fail(EOPNOTSUPP);
        }
        if is_acl(&name) && !self.inodes.may_have_acl(InodeId(self.header.node)) {
            // The kernel asks at every step of a path, right after it has asked for the attributes.
            return fail(ENODATA);
        }
        if name == CAPABILITY && self.inodes.is_bare(InodeId(self.header.node), self.rt.now()) {
            return fail(ENODATA);
        }
        let value = self.fs.getxattr(self.of_xattr(name)).await?.value;
        Ok(Answer::Xattr(size, value))
    }
    pub(crate) async fn setxattr(&self, name: Vec<u8>, value: Vec<u8>, flags: u32) -> Outcome {
        if refused(&name) {
            return fail(EOPNOTSUPP);
        }
        let OfXattr { caller, request, inode, name } = self.of_xattr(name);
        self.inodes.dress(inode);
        if is_acl(&name) {
            self.inodes.note_acl(inode);
        }
        self.fs.setxattr(SetXattr { caller, request, inode, name, value, flags }).await?;
        Ok(Answer::Done)
    }
    pub(crate) async fn listxattr(&self, size: u32) -> Outcome {
        let q = OfInode { caller: self.caller(), inode: InodeId(self.header.node) };
        let mut value = Vec::new();
        for name in self.fs.listxattr(q).await?.names {
            value.extend_from_slice(&name);
            value.push(0);
        }
        Ok(Answer::Xattr(size, value))
    }
    pub(crate) async fn removexattr(&self, name: Vec<u8>) -> Outcome {
        if refused(&name) {
            return fail(EOPNOTSUPP);
        }
        self.fs.removexattr(self.of_xattr(name)).await?;
        Ok(Answer::Done)
    }
}
