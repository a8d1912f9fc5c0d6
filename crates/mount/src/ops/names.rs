//! Names: lookup, making, linking, removing, renaming.

use crate::attr::{entry_out, kind_of, to_abi};
use crate::daemon::{Answer, Asked, Context, Failure, Outcome, fail};
use crate::filesystem::FileSystem;
use crate::known::{Changing, Edit, Named};
use glowfs_fuse::abi;
use glowfs_rt::Instant;
use glowfs_types::wire::meta::*;
use glowfs_types::{InodeId, RequestId};
use libc::{EINVAL, ENAMETOOLONG, ENOENT};

/// The directory, if meta said something of it.
pub(crate) fn one(dir: &Option<Box<DirChanged>>) -> &[DirChanged] {
    dir.as_deref().map_or(&[], std::slice::from_ref)
}

/// RENAME_EXCHANGE of Linux.
const RENAME_EXCHANGE: u32 = 2;
/// RENAME_WHITEOUT of Linux: something else is at the old name then.
const RENAME_WHITEOUT: u32 = 4;

impl<S: FileSystem> Context<S> {
    /// The directory the request names.
    fn parent(&self) -> InodeId {
        InodeId(self.header.node)
    }

    /// An entry for the kernel; it counts as a lookup.
    pub fn entry(&self, from_meta: &Attr, leased_until: Instant) -> Box<abi::EntryOut> {
        self.entry_named(from_meta, (leased_until, leased_until))
    }

    /// The same; attributes and name are leased until these.
    fn entry_named(
        &self,
        from_meta: &Attr,
        (leased_until, named_until): (Instant, Instant),
    ) -> Box<abi::EntryOut> {
        self.inodes.looked_up(from_meta.inode, leased_until.max(named_until));
        self.inodes.gives(from_meta.inode);
        let attr = self.inodes.seen(from_meta);
        let valid = (self.valid(leased_until), self.valid(named_until));
        let mut entry = entry_out(&attr, self.config.block_bytes, valid);
        if self.inodes.tells(&attr, &entry) {
            self.forget_pages_later(attr.inode);
        }
        if self.forgetting.is_under_way(attr.inode) {
            // Readers ask, and wait then.
            (entry.attr_valid, entry.attr_valid_nsec) = (0, 0);
        }
        Box::new(entry)
    }

    /// What is known here of a name in the directory. May ask meta for the directory's attributes.
    async fn named(&self, name: &[u8]) -> Named {
        let named = || self.directories.named(self.parent(), name, self.rt.now());
        match named() {
            // The look-up says what is wrong, if something is.
            Named::MissingIfUnchanged => {
                let asked = Box::pin(self.fresh(self.parent())).await;
                let now = named();
                if asked.is_ok() && now != Named::Missing {
                    // No lease: others work in it, too, and each look-up would ask twice.
                    self.directories.recalled(self.parent());
                }
                now
            }
            known => known,
        }
    }

    /// Our change of directories was done; meta said this of them.
    pub(crate) fn changed_dirs<'a>(
        &self,
        changing: Changing,
        asked: Asked,
        dirs: &[DirChanged],
        edits: impl Fn(InodeId) -> Vec<Edit<'a>>,
    ) {
        let leased = dirs.iter().map(|d| {
            self.inodes.seen_of(&d.attr, asked.recalls());
            (d, self.lease_end(asked, d.attr.inode, d.lease_ms))
        });
        changing.done(&leased.collect::<Vec<_>>(), edits);
    }

    pub(crate) async fn lookup(&self, name: Vec<u8>) -> Outcome {
        if name.len() > NAME_BYTES_MAX {
            return fail(ENAMETOOLONG);
        }
        // An inode by its number, or its parent: names in directories that are followed here are others.
        let dots = [&b"."[..], b".."].contains(&name.as_slice());
        self.before_look(&name).await;
        let mut found = self.look_up(name.clone(), dots).await;
        match &mut found {
            _ if dots => {}
            Ok(entry) if kind_of(entry.attr.mode) == Some(InodeKind::Directory) => {
                self.told_of_directory(&name, entry).await;
            }
            // Also of a name that could not be looked up the kernel keeps nothing.
            Ok(_) | Err(_) => self.inodes.places.tell_other(self.parent(), &name),
        }
        Ok(Answer::Entry(found?))
    }

    async fn look_up(&self, name: Vec<u8>, dots: bool) -> Result<Box<abi::EntryOut>, Failure> {
        match if dots { Named::Unknown } else { self.named(&name).await } {
            Named::Missing => return Err(Failure::Errno(ENOENT)),
            Named::There(inode) => {
                if let Some(entry) = self.inodes.tell_again(inode) {
                    return Ok(entry);
                }
            }
            Named::MissingIfUnchanged | Named::Unknown => {}
        }
        let q = Lookup { caller: self.caller(), parent: self.parent(), name: name.into() };
        let asked = self.asking();
        let r = self.fs.lookup(q).await?;
        self.before_longer(&r.attr).await;
        let end = self.lease_end(asked, r.attr.inode, r.lease_ms);
        let named = |lease_ms| self.lease_end(asked, r.attr.inode, lease_ms);
        let named_until = r.name_lease_ms.map_or(end, named);
        self.directories.heard(&r.attr, end, asked.tick);
        let entry = self.entry_named(&r.attr, (end, named_until));
        self.inodes.seen_of(&r.attr, asked.recalls());
        Ok(entry)
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
            name: name.clone().into(),
            kind,
            mode: mode & 0o7777,
            rdev,
            symlink,
            exclusive: true,
            umask,
            ..Make::default()
        };
        let changing = self.directories.change(&[self.parent()], true);
        let asked = self.asking();
        let r = self.fs.make(q).await?;
        let end = self.lease_end(asked, r.attr.inode, r.lease_ms);
        let edit = || vec![Edit::Add(&name, r.attr.inode)];
        self.changed_dirs(changing, asked, one(&r.dir), |_| edit());
        self.directories.made(&r.attr, end);
        let entry = self.entry(&r.attr, end);
        self.inodes.seen_of(&r.attr, asked.recalls());
        if kind == InodeKind::Directory {
            self.inodes.places.tell(r.attr.inode, self.parent(), &name);
        }
        Ok(Answer::Entry(entry))
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
            name: name.clone().into(),
        };
        let changing = self.directories.change(&[self.parent()], true);
        let asked = self.asking();
        let r = self.fs.link(q).await?;
        let edit = || vec![Edit::Add(&name, r.attr.inode)];
        self.changed_dirs(changing, asked, one(&r.dir), |_| edit());
        self.before_longer(&r.attr).await;
        Ok(Answer::Entry(self.entry(&r.attr, Instant(0))))
    }
    pub(crate) async fn unlink(&self, name: Vec<u8>, directory: bool) -> Outcome {
        let q = Unlink {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            parent: self.parent(),
            name: name.clone().into(),
            directory,
        };
        let changing = self.directories.change(&[self.parent()], true);
        let asked = self.asking();
        let r = self.fs.unlink(q).await?;
        self.changed_dirs(changing, asked, one(&r.dir), |_| vec![Edit::Remove(&name)]);
        match r.attr {
            Some(gone) => self.lost_name(&gone),
            None if directory => self.directories.forget_all(),
            None => {}
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
            name: name.clone().into(),
            new_parent: InodeId(to),
            new_name: new_name.clone().into(),
            flags,
        };
        let (from, to) = (q.parent, q.new_parent);
        self.astray.found(self.header.pid);
        let exchanged = flags & RENAME_EXCHANGE != 0;
        let (old, new) = ((from, name.clone()), (to, new_name.clone()));
        let back = exchanged.then(|| self.moves.begin(new.clone(), old.clone()));
        let moves = [Some(self.moves.begin(old.clone(), new.clone())), back];
        let changing = self.directories.change(&[from, to], true);
        let asked = self.asking();
        let renamed = self.fs.rename(q).await;
        let now = self.rt.now();
        for m in moves.into_iter().flatten() {
            m.end(now, now + self.longest_lease.get());
        }
        let r = renamed?;
        self.changed_dirs(changing, asked, &r.dirs, |dir| {
            let (old, new) = match flags & (RENAME_EXCHANGE | RENAME_WHITEOUT) != 0 {
                true => (Edit::Changed(&name), Edit::Changed(&new_name)),
                false => (Edit::Remove(&name), Edit::Arrived(&new_name)),
            };
            let old = (dir == from).then_some(old);
            old.into_iter().chain((dir == to).then_some(new)).collect()
        });
        if r.dirs.is_empty() {
            // Some directory may have moved, or been replaced.
            self.directories.forget_all();
        }
        for dir in r.moved {
            self.directories.touched(dir);
            self.inodes.places.moved(dir, &old, &new, exchanged);
        }
        if let Some(gone) = r.replaced {
            self.lost_name(&gone);
        }
        Ok(Answer::Done)
    }
    /// A change of ours took the inode a name.
    fn lost_name(&self, gone: &Attr) {
        self.directories.recalled(gone.inode);
        self.inodes.seen(gone);
        if gone.nlink == 0 {
            self.inodes.removed(gone, to_abi(gone, self.config.block_bytes));
        }
    }
    pub(crate) async fn readlink(&self) -> Outcome {
        let (caller, inode) = (self.caller(), InodeId(self.header.node));
        let q = ReadLink { caller, inode, atime: self.config.atime_rule(InodeKind::Symlink) };
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
