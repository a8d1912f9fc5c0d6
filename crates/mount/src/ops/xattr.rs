//! Extended attributes.

use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::filesystem::FileSystem;
use crate::handles::Handle;
use glowfs_types::wire::Empty;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::{RemoveTree, RemoveTreeReply};
use glowfs_types::{InodeId, RequestId, Status};
use libc::{ENODATA, EOPNOTSUPP};

/// What a program may do that is run from the file. The kernel asks for it before it writes to a file for the first time.
const CAPABILITY: &[u8] = b"security.capability";

/// Set to a directory's own name, it removes the directory with all that is in it. Its value is that name, if the caller may do that.
const REMOVE_TREE: &[u8] = b"glowfs.remove_tree";

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
        if name == REMOVE_TREE {
            let would = self.remove_tree(Vec::new(), true).await?;
            return Ok(Answer::Xattr(size, would.name.to_vec()));
        }
        let value = self.fs.getxattr(self.of_xattr(name)).await?.value;
        Ok(Answer::Xattr(size, value))
    }
    pub(crate) async fn setxattr(&self, name: Vec<u8>, value: Vec<u8>, flags: u32) -> Outcome {
        if refused(&name) {
            return fail(EOPNOTSUPP);
        }
        if name == REMOVE_TREE {
            self.remove_tree(value, false).await?;
            return Ok(Answer::Done);
        }
        let OfXattr { caller, request, inode, name } = self.of_xattr(name);
        let acl = is_acl(&name);
        let note = || {
            self.inodes.dress(inode);
            if acl {
                self.inodes.note_acl(inode);
            }
        };
        note();
        let q = SetXattr { caller, request, inode, name, value, flags };
        let set = match q.name.as_slice() == CAPABILITY {
            true => self.set_capability(q).await,
            false => self.fs.setxattr(q).await,
        };
        // Once more: attributes from before may have come meanwhile.
        note();
        set?;
        Ok(Answer::Done)
    }
    /// The kernel lets only those set it who have the privilege, and if they have it in a user namespace only, it says in the value whose root it counts for. Of all
    /// that meta knows nothing but the user: so it is done as root.
    async fn set_capability(&self, q: SetXattr) -> glowfs_types::Result<Empty> {
        match self.fs.setxattr(SetXattr { caller: self.callers.root(), ..q.clone() }).await {
            // A mount of a user who is not root.
            Err(e) if matches!(e.status, Status::NotPermitted | Status::AccessDenied) => {
                self.fs.setxattr(SetXattr { request: RequestId(self.rt.random_u128()), ..q }).await
            }
            done => done,
        }
    }
    /// The directory with all that is in it, whose own name is the value: the kernel holds the lock of the directory, and not the one of its parent, which it
    /// needs to forget the name. Meta recalls that from this mount as from all others before it answers.
    async fn remove_tree(&self, name: Vec<u8>, check: bool) -> Result<RemoveTreeReply, Failure> {
        let OfXattr { caller, request, inode, name } = self.of_xattr(name);
        let tree = RemoveTree { caller, request, parent: InodeId(0), name, inode, check };
        Ok(self.fs.remove_tree(tree).await?)
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
        if name == CAPABILITY {
            self.remove_capability(InodeId(self.header.node), self.header.uid != 0).await?;
        } else {
            self.fs.removexattr(self.of_xattr(name)).await?;
        }
        Ok(Answer::Done)
    }

    /// What may be done by running a file goes when it is written to, cut or given away. The kernel asks for that itself on behalf of whoever does it,
    /// and has seen to it that nobody else asks who may not: so it is done as root. `lax`: it may be gone already.
    async fn remove_capability(&self, inode: InodeId, lax: bool) -> Result<(), Failure> {
        let caller = self.callers.root();
        let request = RequestId(self.rt.random_u128());
        let q = OfXattr { caller, request, inode, name: CAPABILITY.to_vec().into() };
        match self.fs.removexattr(q).await {
            Ok(_) => Ok(()),
            Err(e) if lax && e.status == Status::NoAttribute => Ok(()),
            // A mount of a user who is not root: he cannot have given the file what is root's to give.
            Err(e) if matches!(e.status, Status::NotPermitted | Status::AccessDenied) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether [`Context::kill_capability`] has to be called before a write that goes past the kernel's page cache, and so past its own removal of it.
    pub(crate) fn may_have_capability(&self, handle: &Handle<S::File>) -> bool {
        let bare = &handle.inode.bare;
        !bare.get() && !self.inodes.is_bare(handle.inode.id, self.rt.now())
    }
    /// The kernel asks for it until it has heard once that there is none, and then not before it hears of the file's attributes anew: what another client has given since, of
    /// which meta has told us, goes here.
    pub(crate) async fn kill_capability_given(
        &self,
        handle: &Handle<S::File>,
    ) -> Result<(), Failure> {
        let given = &handle.inode.capability_given;
        if !given.replace(false) || !self.may_have_capability(handle) {
            return Ok(());
        }
        let killed = Box::pin(self.kill_capability(handle)).await;
        if killed.is_err() {
            given.set(true);
        }
        killed
    }
    /// Asks for it, once, and removes it.
    pub(crate) async fn kill_capability(&self, handle: &Handle<S::File>) -> Result<(), Failure> {
        let inode = handle.inode.id;
        // Whoever gives it one while we ask takes this away again.
        handle.inode.bare.set(true);
        let name = CAPABILITY.to_vec().into();
        let (caller, request) = (handle.caller.clone(), RequestId(0));
        let killed = match self.fs.getxattr(OfXattr { caller, request, inode, name }).await {
            Ok(_) => self.remove_capability(inode, true).await,
            Err(e) if e.status == Status::NoAttribute => Ok(()),
            Err(e) => Err(e.into()),
        };
        if killed.is_err() {
            handle.inode.bare.set(false);
        }
        killed
    }
}
