//! The requests of the mount, answered as the metadata service would.

use super::{Node, RamFile, RamFs, SLOW, no};
use crate::filesystem::FileSystem;
use crate::ram::content::Content;
use crate::ram::switches::*;
use glowfs_client::{FileAccess, RecallHandler};
use glowfs_namespace::Held;
use glowfs_rt::Duration;
use glowfs_types::mode::without_privileges;
use glowfs_types::wire::Empty;
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::lock::{Lock, LockReply, LockWish};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::tree::{RemoveTree, RemoveTreeReply};
use glowfs_types::{ClientId, InodeId, Result, SessionId, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl RamFs {
    fn by_this_client(&self, q: Lock) -> Lock {
        Lock { caller: Caller { client: self.life(), ..q.caller }, ..q }
    }
    fn make_unnamed(&self, q: &Make) -> Result<AttrReply> {
        let inode = InodeId(self.next.replace(self.next.get() + 1));
        let n = self.node(inode, q.kind, q.mode & !q.umask, &q.caller, q.rdev, Vec::new());
        n.attr.borrow_mut().nlink = 0;
        // Held by the file that is opened from the answer.
        self.orphans.borrow_mut().insert(inode.0, Rc::downgrade(&n));
        self.made.replace(Some(n.clone()));
        let open = self.opened(&n, q.open.unwrap_or_default())?;
        let attr = n.attr.borrow().clone();
        Ok(AttrReply { open: Some(open), ..Self::reply(attr) })
    }
    /// Another client makes it ([`MADE_BEFORE_CREATE`]).
    fn make_something_else(&self, dir: &Node, q: &Make) -> Result<()> {
        let kind = match MADE_BEFORE_CREATE.swap(0, Relaxed) {
            1 => InodeKind::Symlink,
            2 => InodeKind::Fifo,
            3 => InodeKind::Directory,
            _ => return Ok(()),
        };
        let inode = InodeId(self.next.replace(self.next.get() + 1));
        let n = self.node(inode, kind, 0o777, &q.caller, 0, b"target".to_vec());
        self.insert(dir, &q.name, &n)?;
        self.nodes.borrow_mut().insert(inode.0, n);
        Ok(())
    }
    fn reply(a: Attr) -> AttrReply {
        AttrReply { attr: a, lease_ms: 0, open: None, dir: None, name_lease_ms: None }
    }
    fn opened(&self, n: &Node, flags: OpenFlags) -> Result<OpenReply> {
        match n.attr.borrow().kind {
            InodeKind::File => {}
            InodeKind::Directory if !flags.write && !flags.truncate => {
                return Ok(OpenReply {
                    attr: n.attr.borrow().clone(),
                    session: None,
                    capability: Vec::new(),
                    capability_ms: 0,
                    lease_ms: 0,
                    content: None,
                });
            }
            InodeKind::Directory => return Err(no(Status::IsDirectory)),
            InodeKind::Symlink => return Err(no(Status::Loop)),
            _ => return Err(no(Status::NotSupported)),
        }
        if flags.truncate {
            self.cut(n, 0);
            self.change(n, |_| ());
        }
        let attr = n.attr.borrow().clone();
        let session = (flags.session != SessionId(0)).then_some(flags.session);
        if let Some(s) = session {
            self.sessions.borrow_mut().insert((attr.inode.0, s), self.life());
        }
        Ok(OpenReply {
            attr,
            session,
            capability: Vec::new(),
            capability_ms: 1000,
            lease_ms: 0,
            content: None,
        })
    }
}

impl FileSystem for RamFs {
    type File = RamFile;

    async fn lookup(&self, q: Lookup) -> Result<AttrReply> {
        if q.name.as_slice() == b"." {
            return Ok(Self::reply(self.get(q.parent)?.attr.borrow().clone()));
        }
        let dir = self.dir(q.parent)?;
        let n = match q.name.as_slice() {
            b".." => self.get(dir.parent.get())?,
            name => self.child(&dir, name)?,
        };
        self.made_longer_unseen(&n);
        let a = n.attr.borrow().clone();
        Ok(Self::reply(a))
    }
    async fn getattr(&self, q: OfInode) -> Result<AttrReply> {
        let n = self.get(q.inode)?;
        self.made_longer_unseen(&n);
        if CHANGED_UNSEEN.swap(false, Relaxed) {
            let mut a = n.attr.borrow_mut();
            n.content.borrow().write(0, &vec![b'n'; a.len as usize]);
            a.contents_change += 1;
            a.change += 1;
        }
        if let Some(len) = CUT_UNFINISHED.swap(0, Relaxed).checked_sub(1) {
            self.cut_slowly(&n, len);
        }
        let a = n.attr.borrow().clone();
        Ok(Self::reply(a))
    }
    async fn setattr(&self, q: SetAttr) -> Result<AttrReply> {
        let n = self.get(q.inode)?;
        self.made_longer_unseen(&n);
        if let Some(len) = q.len {
            self.cut(&n, len);
        }
        let now = self.now();
        let time = |t| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        Ok(Self::reply(self.change(&n, |a| {
            if q.uid.is_some() || q.gid.is_some() {
                a.mode = without_privileges(a.mode, true);
            }
            if q.unprivileged_write {
                let in_group = q.caller.gid == a.gid || q.caller.groups.contains(&a.gid);
                a.mode = without_privileges(a.mode, in_group);
            }
            a.mode = q.mode.unwrap_or(a.mode);
            a.flags = q.flags.unwrap_or(a.flags);
            a.uid = q.uid.unwrap_or(a.uid);
            a.gid = q.gid.unwrap_or(a.gid);
            a.atime = q.atime.map_or(a.atime, time);
            a.mtime = q.mtime.map_or(a.mtime, time);
        })))
    }
    async fn make(&self, q: Make) -> Result<AttrReply> {
        let dir = self.dir(q.parent)?;
        if q.unnamed {
            return self.make_unnamed(&q);
        }
        if q.open.is_some() {
            self.make_something_else(&dir, &q)?;
        }
        if let Ok(n) = self.child(&dir, &q.name) {
            return match q.open {
                Some(flags) if !q.exclusive => {
                    let open = self.opened(&n, flags)?;
                    Ok(AttrReply { open: Some(open.clone()), ..Self::reply(open.attr) })
                }
                _ => Err(no(Status::Exists)),
            };
        }
        let inode = InodeId(self.next.replace(self.next.get() + 1));
        let mode = q.mode & !q.umask;
        let n = self.node(inode, q.kind, mode, &q.caller, q.rdev, q.symlink);
        self.insert(&dir, &q.name, &n)?;
        self.nodes.borrow_mut().insert(inode.0, n.clone());
        let open =
            q.open.map(|f| self.opened(&n, OpenFlags { truncate: false, ..f })).transpose()?;
        let attr = n.attr.borrow().clone();
        Ok(AttrReply { open, ..Self::reply(attr) })
    }
    async fn link(&self, q: Link) -> Result<AttrReply> {
        let (dir, n) = (self.dir(q.parent)?, self.get(q.inode)?);
        if dir.entries.borrow().contains_key(q.name.as_slice()) {
            return Err(no(Status::Exists));
        }
        self.insert(&dir, &q.name, &n)?;
        self.orphans.borrow_mut().remove(&q.inode.0);
        self.nodes.borrow_mut().insert(q.inode.0, n.clone());
        Ok(Self::reply(self.change(&n, |a| a.nlink += 1)))
    }
    async fn unlink(&self, q: Unlink) -> Result<UnlinkReply> {
        let dir = self.dir(q.parent)?;
        let n = self.child(&dir, &q.name)?;
        let is_dir = n.attr.borrow().kind == InodeKind::Directory;
        match (is_dir, q.directory) {
            (true, false) => return Err(no(Status::IsDirectory)),
            (false, true) => return Err(no(Status::NotDirectory)),
            _ if !n.entries.borrow().is_empty() => return Err(no(Status::NotEmpty)),
            _ => {}
        }
        self.take(&dir, &q.name)?;
        Ok(UnlinkReply { attr: Some(self.drop_link(&n)), dir: None })
    }
    async fn rename(&self, q: Rename) -> Result<RenameReply> {
        if RENAME_OVERTAKEN.swap(false, Relaxed) {
            self.exchange_with_other(&q)?;
        }
        if RENAMES_SLOW.load(Relaxed) {
            self.rt.sleep(SLOW).await;
        }
        self.move_name(&q)
    }
    async fn readdir(&self, q: ReadDir) -> Result<ReadDirReply> {
        let dir = self.dir(q.inode)?;
        let mut all: Vec<_> =
            dir.entries.borrow().iter().map(|(n, (i, c))| (*c, n.clone(), *i)).collect();
        all.retain(|(c, ..)| *c > q.after);
        all.sort_unstable();
        let end = all.len() <= q.limit as usize;
        let last = all.last().filter(|_| q.after == 0 && !end).map(|(c, ..)| *c);
        all.truncate(q.limit as usize);
        let mut entries = Vec::new();
        let leased = LISTS_LEASED.load(Relaxed);
        for (cookie, name, inode) in all {
            let n = self.get(inode)?;
            self.made_longer_unseen(&n);
            let attr = n.attr.borrow().clone();
            let (kind, attr) = (attr.kind, q.attributes.then_some(attr));
            entries.push(DirEntry { name: name.into(), inode, kind, cookie, attr, leased });
        }
        let parent = dir.parent.get();
        Ok(ReadDirReply { entries, end, parent, lease_ms: 60_000, last })
    }
    async fn open(&self, q: Open) -> Result<OpenReply> {
        if REPLACED_BEFORE_OPEN.swap(false, Relaxed) {
            let (parent, new_parent) = (ROOT_INODE, ROOT_INODE);
            let (name, new_name) = (b"new".to_vec().into(), b"old".to_vec().into());
            let caller = q.caller.clone();
            let request = q.request;
            let q = Rename { caller, request, parent, name, new_parent, new_name, flags: 0 };
            self.rename(q).await?;
        }
        let reply = self.opened(&*self.get(q.inode)?, q.flags);
        if OPEN_ANSWERED_LATE.swap(false, Relaxed) {
            self.rt.sleep(Duration::from_millis(300)).await;
        }
        reply
    }
    async fn sync(&self, q: Sync) -> Result<AttrReply> {
        DURABLE_SYNCS.fetch_add(u64::from(q.durable), Relaxed);
        if META_SILENT.load(Relaxed) {
            return Err(no(Status::Disconnected));
        }
        let n = self.get(q.inode)?;
        if let Some(s) = q.session
            && self.sessions.borrow().get(&(q.inode.0, s)) != Some(&self.life())
        {
            return Err(no(Status::SessionEnded));
        }
        if q.durable && CAPABILITY_GIVEN.swap(false, Relaxed) {
            self.capability_given(&n)?;
        }
        WRITES_TOLD.fetch_add(u64::from(q.tells_of_writes()), Relaxed);
        let longer = q.len_at_least.is_some_and(|len| len > n.attr.borrow().len);
        if longer {
            self.cut_over(&n).await;
        }
        let current = n.attr.borrow().epoch == q.epoch;
        {
            let mut a = n.attr.borrow_mut();
            a.atime = q.atime.unwrap_or(a.atime).max(a.atime);
            a.change += 1;
        }
        let known = n.attr.borrow().clone();
        if q.len_at_least.is_none() && q.mtime.is_none() {
            return Ok(Self::reply(known));
        }
        Ok(Self::reply(self.change(&n, |a| {
            if let Some(len) = q.len_at_least.filter(|_| current) {
                a.len = a.len.max(len);
            }
            a.mtime = q.mtime.unwrap_or(a.mtime);
        })))
    }
    async fn close_session(&self, q: Sync) -> Result<AttrReply> {
        let Some(closed) = q.session.map(|s| (q.inode.0, s)) else { return self.sync(q).await };
        CLOSES_ASKED.fetch_add(1, Relaxed);
        if CLOSES_REFUSED.load(Relaxed) {
            return Err(no(Status::AccessDenied));
        }
        if META_SILENT.load(Relaxed) {
            return Err(no(Status::Disconnected));
        }
        if !self.sessions.borrow().contains_key(&closed) {
            // Done before. Not so what was written, unless meta knows of it.
            let Ok(n) = self.get(q.inode) else { return Ok(Self::reply(Attr::default())) };
            let known = n.attr.borrow().clone();
            let lost = q.epoch == known.epoch && q.len_at_least.is_some_and(|l| l > known.len);
            return if lost { Err(no(Status::SessionEnded)) } else { Ok(Self::reply(known)) };
        }
        let done = self.sync(q).await;
        self.sessions.borrow_mut().remove(&closed);
        SESSIONS_ENDED.fetch_add(1, Relaxed);
        let unheard = CLOSES_UNHEARD.load(Relaxed);
        if unheard > 0 {
            CLOSES_UNHEARD.store(unheard - 1, Relaxed);
            return Err(no(Status::Disconnected));
        }
        done
    }
    fn closes_room(&self) -> bool {
        true
    }
    async fn close_later(self: &Rc<Self>, q: Sync) -> Result<()> {
        self.close_session(q).await.map(drop)
    }
    async fn append(&self, q: Append) -> Result<AppendReply> {
        let attr = self.get(q.inode)?.attr.borrow().clone();
        RIGHTS_GIVEN.fetch_add(u64::from(!q.release), Relaxed);
        *LAST_RIGHT.lock().unwrap_or_else(PoisonError::into_inner) = Some((q.grant, q.release));
        Ok(AppendReply { attr: (!q.release).then_some(attr) })
    }
    async fn readlink(&self, q: ReadLink) -> Result<ReadLinkReply> {
        Ok(ReadLinkReply { target: self.get(q.inode)?.symlink.clone() })
    }
    async fn statfs(&self, _: OfInode) -> Result<StatFsReply> {
        while STATFS_WAITS.load(Relaxed) {
            self.rt.sleep(SLOW).await;
        }
        let inodes = self.nodes.borrow().len() as u64;
        Ok(StatFsReply { total_bytes: 1 << 40, free_bytes: 1 << 39, inodes })
    }
    async fn getxattr(&self, q: OfXattr) -> Result<XattrReply> {
        if XATTRS_SLOW.load(Relaxed) {
            self.rt.sleep(SLOW).await;
        }
        let n = self.get(q.inode)?;
        let value = n.xattrs.borrow().get(q.name.as_slice()).cloned();
        Ok(XattrReply { value: value.ok_or_else(|| no(Status::NoAttribute))? })
    }
    async fn remove_tree(&self, _: RemoveTree) -> Result<RemoveTreeReply> {
        Err(no(Status::NotSupported))
    }
    async fn setxattr(&self, q: SetXattr) -> Result<Empty> {
        if q.name.starts_with(b"system.") {
            // An ACL would have to be in the mode, too: cp(1) sets modes that way where it can.
            return Err(no(Status::NotSupported));
        }
        let n = self.get(q.inode)?;
        let there = n.xattrs.borrow().contains_key(q.name.as_slice());
        match (q.flags, there) {
            (1, true) => return Err(no(Status::Exists)),
            (2, false) => return Err(no(Status::NoAttribute)),
            _ => {}
        }
        n.xattrs.borrow_mut().insert(q.name.to_vec(), q.value);
        self.change(&n, |_| ());
        Ok(Empty::default())
    }
    async fn listxattr(&self, q: OfInode) -> Result<XattrList> {
        let names = self.get(q.inode)?.xattrs.borrow().keys().map(|n| n.clone().into()).collect();
        Ok(XattrList { names })
    }
    async fn removexattr(&self, q: OfXattr) -> Result<Empty> {
        let n = self.get(q.inode)?;
        let gone = n.xattrs.borrow_mut().remove(q.name.as_slice());
        gone.map(|_| Empty::default()).ok_or_else(|| no(Status::NoAttribute))
    }
    async fn lock(&self, q: Lock) -> Result<LockReply> {
        let q = self.by_this_client(q);
        if q.wish == LockWish::Release && LOCKS_STAY.load(Relaxed) {
            return Err(no(Status::TimedOut));
        }
        let n = self.get(q.inode)?;
        let holder = n.locks.borrow().first_conflict(&q).map(Held::holder);
        if holder.is_none() && q.wish != LockWish::GiveUp && n.locks.borrow_mut().apply(&q)? {
            n.unlocked.notify_all();
        }
        Ok(LockReply { holder })
    }
    async fn lock_test(&self, q: Lock) -> Result<LockReply> {
        let q = self.by_this_client(q);
        let n = self.get(q.inode)?;
        let holder = n.locks.borrow().first_conflict(&q).map(Held::holder);
        Ok(LockReply { holder })
    }
    async fn lock_wait(&self, q: Lock) -> Result<LockReply> {
        let q = self.by_this_client(q);
        let n = self.get(q.inode)?;
        loop {
            let news = n.unlocked.wait();
            let free = n.locks.borrow().conflicts(&q).next().is_none();
            if free {
                return Ok(LockReply::default());
            }
            news.await;
        }
    }
    fn new_session(&self) -> SessionId {
        SessionId(self.rt.random_u128())
    }
    fn life(&self) -> ClientId {
        ClientId(LIFE.load(Relaxed).into())
    }
    fn open_file(self: &Rc<Self>, reply: &OpenReply, _: FileAccess) -> Result<Rc<RamFile>> {
        let node = self.get(reply.attr.inode)?;
        self.made.replace(None);
        let content = match reply.attr.epoch < node.attr.borrow().epoch {
            true => Rc::new(Content::cut_off()),
            false => node.content.borrow().clone(),
        };
        let content = RefCell::new(content);
        let epoch = Cell::new(reply.attr.epoch);
        let heard = Cell::new(node.losses.get());
        Ok(Rc::new(RamFile {
            node,
            content,
            epoch,
            life: Cell::new(reply.attr.life),
            written: Cell::new(None),
            session: reply.session,
            owner: self.life(),
            heard,
            fs: Rc::downgrade(self),
        }))
    }
    fn listen(&self, handler: Rc<dyn RecallHandler>) {
        *self.listener.borrow_mut() = Some(handler);
    }
    async fn shut_down(&self) {}
}
