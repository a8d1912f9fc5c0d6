//! The namespace of the RAM file system: its nodes and their names. Requests, open files and other clients are below.

use super::content::Content;
use super::power::Power;
use glowfs_client::RecallHandler;
use glowfs_namespace::LockTable;
use glowfs_rt::sync::Notify;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::meta::*;
use glowfs_types::{ClientId, DataId, Error, InodeId, Result, SessionId, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

mod file;
mod others;
mod requests;
pub use file::RamFile;

pub(super) struct Node {
    pub(super) attr: RefCell<Attr>,
    content: RefCell<Rc<Content>>,
    entries: RefCell<BTreeMap<Vec<u8>, (InodeId, u64)>>,
    next_cookie: Cell<u64>,
    parent: Cell<InodeId>,
    symlink: Vec<u8>,
    xattrs: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
    locks: RefCell<LockTable>,
    unlocked: Notify,
    /// Something was written and not flushed.
    unflushed: Cell<bool>,
    /// The number of the newest loss of that.
    losses: Cell<u64>,
    /// A cut by another client is not finished.
    cutting: Cell<bool>,
}

/// What a slow rename takes ([`super::RENAMES_SLOW`]), and how long after a cut a file gets long again ([`super::LONG_AGAIN`]).
const SLOW: Duration = Duration::from_millis(200);

/// See [`super`].
pub struct RamFs {
    rt: Rt,
    nodes: RefCell<BTreeMap<u64, Rc<Node>>>,
    /// Nodes without a name that are still open.
    orphans: RefCell<BTreeMap<u64, Weak<Node>>>,
    /// Sessions, and the life of the client that each is of.
    sessions: RefCell<BTreeMap<(u64, SessionId), ClientId>>,
    listener: RefCell<Option<Rc<dyn RecallHandler>>>,
    next: Cell<u64>,
    /// The last file without a name, until it is open.
    made: RefCell<Option<Rc<Node>>>,
    power: Power,
}

fn no(status: Status) -> Error {
    status.into()
}

impl RamFs {
    /// An empty one, with a root that anybody may use.
    pub fn new(rt: &Rt) -> Rc<Self> {
        let fs = Self {
            rt: rt.clone(),
            nodes: RefCell::default(),
            orphans: RefCell::default(),
            sessions: RefCell::default(),
            listener: RefCell::default(),
            next: Cell::new(2),
            made: RefCell::default(),
            power: Power::default(),
        };
        let root =
            fs.node(ROOT_INODE, InodeKind::Directory, 0o777, &Caller::default(), 0, Vec::new());
        root.parent.set(ROOT_INODE);
        fs.nodes.borrow_mut().insert(1, root);
        Rc::new(fs)
    }
    fn move_name(&self, q: &Rename) -> Result<RenameReply> {
        let (from, to) = (self.dir(q.parent)?, self.dir(q.new_parent)?);
        let moving = self.child(&from, &q.name)?;
        let target = self.child(&to, &q.new_name).ok();
        let replaced = match (target, q.flags) {
            (Some(_), 1) => return Err(no(Status::Exists)),
            (None, 2) => return Err(no(Status::NotFound)),
            (Some(t), _) if Rc::ptr_eq(&t, &moving) => return Ok(RenameReply::default()),
            (Some(t), 2) => {
                self.take(&from, &q.name)?;
                self.take(&to, &q.new_name)?;
                self.insert(&from, &q.name, &t)?;
                self.insert(&to, &q.new_name, &moving)?;
                return Ok(RenameReply::default());
            }
            (Some(t), 0) => {
                let (a, b) = (t.attr.borrow().kind, moving.attr.borrow().kind);
                match (a == InodeKind::Directory, b == InodeKind::Directory) {
                    (true, false) => return Err(no(Status::IsDirectory)),
                    (false, true) => return Err(no(Status::NotDirectory)),
                    _ if !t.entries.borrow().is_empty() => return Err(no(Status::NotEmpty)),
                    _ => {}
                }
                self.take(&to, &q.new_name)?;
                Some(self.drop_link(&t))
            }
            (None, 0 | 1) => None,
            _ => return Err(no(Status::InvalidArgument)),
        };
        self.take(&from, &q.name)?;
        self.insert(&to, &q.new_name, &moving)?;
        self.change(&moving, |_| ());
        Ok(RenameReply { replaced, ..RenameReply::default() })
    }
    fn now(&self) -> Time {
        crate::attr::time_of(self.rt.unix_ns())
    }
    fn node(
        &self,
        inode: InodeId,
        kind: InodeKind,
        mode: u32,
        who: &Caller,
        rdev: u32,
        symlink: Vec<u8>,
    ) -> Rc<Node> {
        let now = self.now();
        let attr = Attr {
            inode,
            kind,
            mode,
            uid: who.uid,
            gid: who.gid,
            nlink: if kind == InodeKind::Directory { 2 } else { 1 },
            len: symlink.len() as u64,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            rdev,
            data: DataId(inode.0),
            change: 1,
            generation: 1,
            life: self.power.life(),
            ..Attr::default()
        };
        Rc::new(Node {
            attr: RefCell::new(attr),
            content: RefCell::default(),
            entries: RefCell::default(),
            next_cookie: Cell::new(1),
            parent: Cell::new(inode),
            symlink,
            xattrs: RefCell::default(),
            locks: RefCell::default(),
            unlocked: Notify::new(),
            unflushed: Cell::new(false),
            losses: Cell::new(0),
            cutting: Cell::new(false),
        })
    }
    fn get(&self, inode: InodeId) -> Result<Rc<Node>> {
        self.power.look(|| self.nodes.borrow().values().cloned().collect());
        if let Some(n) = self.nodes.borrow().get(&inode.0) {
            return Ok(n.clone());
        }
        let orphan = self.orphans.borrow().get(&inode.0).and_then(Weak::upgrade);
        orphan.ok_or_else(|| no(Status::Stale))
    }
    fn dir(&self, inode: InodeId) -> Result<Rc<Node>> {
        let n = self.get(inode)?;
        let is_dir = n.attr.borrow().kind == InodeKind::Directory;
        if is_dir { Ok(n) } else { Err(no(Status::NotDirectory)) }
    }
    fn child(&self, dir: &Node, name: &[u8]) -> Result<Rc<Node>> {
        let found = dir.entries.borrow().get(name).map(|(i, _)| *i);
        self.get(found.ok_or_else(|| no(Status::NotFound))?)
    }
    fn touch(&self, n: &Node) {
        let mut a = n.attr.borrow_mut();
        (a.mtime, a.ctime) = (self.now(), self.now());
        a.change += 1;
    }
    fn change(&self, n: &Node, act: impl FnOnce(&mut Attr)) -> Attr {
        let mut a = n.attr.borrow_mut();
        act(&mut a);
        a.ctime = self.now();
        a.change += 1;
        a.allocated = n.content.borrow().allocated().max(1);
        a.clone()
    }
    fn insert(&self, dir: &Node, name: &[u8], n: &Node) -> Result<()> {
        if name.len() > NAME_BYTES_MAX {
            return Err(no(Status::NameTooLong));
        }
        let cookie = dir.next_cookie.get();
        dir.next_cookie.set(cookie + 1);
        let inode = n.attr.borrow().inode;
        dir.entries.borrow_mut().insert(name.to_vec(), (inode, cookie));
        if n.attr.borrow().kind == InodeKind::Directory {
            n.parent.set(dir.attr.borrow().inode);
            dir.attr.borrow_mut().nlink += 1;
        }
        self.touch(dir);
        Ok(())
    }
    fn take(&self, dir: &Node, name: &[u8]) -> Result<Rc<Node>> {
        let n = self.child(dir, name)?;
        dir.entries.borrow_mut().remove(name);
        if n.attr.borrow().kind == InodeKind::Directory {
            dir.attr.borrow_mut().nlink -= 1;
        }
        self.touch(dir);
        Ok(n)
    }
    /// A name of the node is gone for good.
    fn drop_link(&self, n: &Rc<Node>) -> Attr {
        let directory = n.attr.borrow().kind == InodeKind::Directory;
        let a = self.change(n, |a| a.nlink = if directory { 0 } else { a.nlink - 1 });
        if a.nlink == 0 {
            self.nodes.borrow_mut().remove(&a.inode.0);
            let listener = self.listener.borrow().clone();
            if self.sessions.borrow().keys().any(|(i, _)| *i == a.inode.0)
                || listener.is_some_and(|l| l.in_use(a.inode))
            {
                self.orphans.borrow_mut().insert(a.inode.0, Rc::downgrade(n));
            } else {
                // As if the chunks were collected at once.
                n.content.borrow().cut(0);
            }
        }
        a
    }
    fn cut(&self, n: &Node, len: u64) {
        let old = n.content.borrow().clone();
        let new = Content::clone(&old);
        new.cut(len);
        *n.content.borrow_mut() = Rc::new(new);
        let mut a = n.attr.borrow_mut();
        if len == 0 {
            a.data = DataId(self.next.replace(self.next.get() + 1));
        }
        a.epoch = a.epoch.next();
        a.len = len;
        a.mtime = self.now();
        // Old data must not be found through an old handle.
        old.write(0, Content::CUT_OFF);
    }
}
