//! One typed call for each method of the meta service.
//!
//! `caller.client` and an all-zero request id are filled in here. What changes an inode goes to its [owner](crate::owner), everything else to the service that
//! was used last. When an attempt fails without a final answer, the same request is sent again to
//! another service, marked as a copy (`caller.again`), so that a change takes effect once, or not at all if it is refused.

use crate::client::Client;
use crate::core::Core;
use crate::file::Go;
use crate::owner::Owners;
use crate::retry::{Retry, again_meta};
use crate::routes::{self, Site};
use crate::vain;
use glowfs_net::{Bulk, Request};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::closes::{Closes, ClosesReply};
use glowfs_types::wire::inline::{InlineRead, InlineReply, InlineWrite};
use glowfs_types::wire::lock::{Lock, LockReply, LockWish};
use glowfs_types::wire::trash::{Trash, TrashReply};
use glowfs_types::wire::tree::{RemoveTree, RemoveTreeReply, Trees, TreesReply};
use glowfs_types::wire::{Empty, decode, encode, meta::*, method};
use glowfs_types::{ClientId, Error, InodeId, NodeId, RequestId, Result, SessionId, Status};
use std::rc::Rc;

/// What is filled into every query.
trait Query: minicbor::Encode<()> {
    fn caller(&mut self) -> &mut Caller;
    fn request(&mut self) -> Option<&mut RequestId>;
    /// The inode whose owner is asked: the directory whose names it changes, or the file. None: whoever is near.
    fn changes(&self) -> Option<InodeId>;
}

macro_rules! queries {
    ($($ty:ty: $request:tt $(, $changes:expr)?;)*) => {$(
        impl Query for $ty {
            fn caller(&mut self) -> &mut Caller {
                &mut self.caller
            }
            fn request(&mut self) -> Option<&mut RequestId> {
                queries!(@ self $request)
            }
            fn changes(&self) -> Option<InodeId> {
                let of: fn(&Self) -> Option<InodeId> = queries!(@ changes $($changes)?);
                of(self)
            }
        }
    )*};
    (@ $self:ident once) => { Some(&mut $self.request) };
    (@ $self:ident plain) => { None };
    (@ changes) => { |_| None };
    (@ changes $changes:expr) => { $changes };
}

queries! {
    Lookup: plain;
    OfInode: plain;
    SetAttr: once, |q| Some(q.inode);
    Make: once, |q| Some(q.parent);
    Link: once, |q| Some(q.parent);
    Unlink: once, |q| Some(q.parent);
    Rename: once, |q| Some(q.new_parent);
    ReadDir: plain;
    ReadLink: plain;
    Open: once, |q| (q.flags.write || q.flags.truncate).then_some(q.inode);
    Sync: once, |q| Some(q.inode);
    OfXattr: once;
    SetXattr: once, |q| Some(q.inode);
    Renew: plain, |q| (q.write || q.spill).then_some(q.inode);
    Reopen: once, |q| Some(q.inode);
    Lock: once, |q| Some(q.inode);
    Append: plain, |q| Some(q.inode);
    Closes: plain;
    InlineRead: plain;
    InlineWrite: once, |q| Some(q.inode);
    RemoveTree: once, |q| (q.parent != InodeId(0)).then_some(q.parent);
    Trees: plain;
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($query:ty) -> $reply:ty = $method:ident;)*) => {
        impl Client {
            $($(#[$doc])*
            pub async fn $name(&self, query: $query) -> Result<$reply> {
                self.meta_call(method::$method, query).await
            })*
        }
    };
}

calls! {
    /// LOOKUP.
    lookup(Lookup) -> AttrReply = LOOKUP;
    /// GETATTR.
    getattr(OfInode) -> AttrReply = GETATTR;
    /// LINK.
    link(Link) -> AttrReply = LINK;
    /// UNLINK.
    unlink(Unlink) -> UnlinkReply = UNLINK;
    /// RENAME.
    rename(Rename) -> RenameReply = RENAME;
    /// READDIR.
    readdir(ReadDir) -> ReadDirReply = READDIR;
    /// READLINK.
    readlink(ReadLink) -> ReadLinkReply = READLINK;
    /// STATFS.
    statfs(OfInode) -> StatFsReply = STATFS;
    /// GETXATTR.
    getxattr(OfXattr) -> XattrReply = GETXATTR;
    /// SETXATTR.
    setxattr(SetXattr) -> Empty = SETXATTR;
    /// LISTXATTR.
    listxattr(OfInode) -> XattrList = LISTXATTR;
    /// REMOVEXATTR.
    removexattr(OfXattr) -> Empty = REMOVEXATTR;
    /// LOCK_TEST.
    lock_test(Lock) -> LockReply = LOCK_TEST;
    /// LOCK_WAIT.
    lock_wait(Lock) -> LockReply = LOCK_WAIT;
    /// CLOSES. Usually [`Client::close_later`] gathers them.
    closes(Closes) -> ClosesReply = CLOSES;
    /// INLINE_READ.
    inline_read(InlineRead) -> InlineReply = INLINE_READ;
    /// INLINE_WRITE.
    inline_write(InlineWrite) -> InlineReply = INLINE_WRITE;
    /// REMOVE_TREE: returns when the name is gone; what was in the tree goes in the background.
    remove_tree(RemoveTree) -> RemoveTreeReply = REMOVE_TREE;
    /// TREES.
    trees(Trees) -> TreesReply = TREES;
    /// RENEW.
    renew(Renew) -> OpenReply = RENEW;
    /// REOPEN. Open files do it themselves.
    reopen(Reopen) -> OpenReply = REOPEN;
}

impl Client {
    /// SETATTR.
    pub async fn setattr(&self, query: SetAttr) -> Result<AttrReply> {
        if let Some(len) = query.len {
            self.settle_doubts(query.inode).await?;
            if len == 0 {
                // It has other data then, or none.
                let cut = self.core.files.cutting_to_nothing(query.inode);
                let reply = self.set(query).await?;
                cut();
                return Ok(reply);
            }
            let info = self.core.routing.borrow().clone();
            self.core.files.cutting(query.inode, &info);
        }
        self.set(query).await
    }
    async fn set(&self, mut query: SetAttr) -> Result<AttrReply> {
        if query.session.is_none() {
            return self.meta_call(method::SETATTR, query).await;
        }
        // It takes effect once, also if a copy comes late of what was refused for want of the session.
        if query.request == RequestId(0) {
            query.request = self.new_request();
        }
        let call = async |go: Go| {
            let mut query = query.clone();
            go.mark(&mut query.caller);
            self.meta_call(method::SETATTR, query).await
        };
        self.in_session((query.inode, query.session), call).await
    }
    /// SYNC.
    pub async fn sync(&self, query: Sync) -> Result<AttrReply> {
        self.settle_doubts(query.inode).await?;
        self.sync_as_it_is(query).await
    }
    /// The same, whatever is in doubt.
    pub(crate) async fn sync_as_it_is(&self, query: Sync) -> Result<AttrReply> {
        let call = async |go: Go| self.sync_once(go.report(query.clone())).await;
        self.in_session((query.inode, query.session), call).await
    }
    /// The same, whatever became of the session.
    pub(crate) async fn sync_once(&self, query: Sync) -> Result<AttrReply> {
        self.meta_call(method::SYNC, query).await
    }
    /// CLOSE.
    pub async fn close_session(&self, query: Sync) -> Result<AttrReply> {
        self.before_close(&query).await;
        let call = async |go: Go| self.meta_call(method::CLOSE, go.report(query.clone())).await;
        self.in_session((query.inode, query.session), call).await
    }
    /// LOCK. What was written under a lock that is given back, or that others may share from then on, comes before what they write.
    pub async fn lock(&self, query: Lock) -> Result<LockReply> {
        if matches!(query.wish, LockWish::Release | LockWish::Shared) {
            self.settle_doubts(query.inode).await?;
        }
        self.meta_call(method::LOCK, query).await
    }
    /// APPEND. What was written by a right that is given back comes before what others append.
    pub async fn append(&self, query: Append) -> Result<AppendReply> {
        if query.release {
            self.settle_doubts(query.inode).await?;
            return self.meta_call(method::APPEND, query).await;
        }
        let call = async |_| self.meta_call(method::APPEND, query.clone()).await;
        self.in_session((query.inode, None), call).await
    }
    /// OPEN. Give the answer to [`Client::open_file`] without waiting in between.
    pub async fn open(&self, mut query: Open) -> Result<OpenReply> {
        if query.flags.truncate {
            self.settle_doubts(query.inode).await?;
        }
        query.flags.inline = true;
        let opening = self.core.opens.begin(query.inode);
        let cut = query.flags.truncate.then(|| self.core.files.cutting_to_nothing(query.inode));
        let mut reply: OpenReply = self.meta_call_for(method::OPEN, query, true).await?;
        if let Some(cut) = cut {
            cut();
        }
        opening.answered(&mut reply);
        Ok(reply)
    }
    /// MAKE. Give what it opened to [`Client::open_file`] without waiting in between.
    pub async fn make(&self, mut query: Make) -> Result<AttrReply> {
        if let Some(flags) = &mut query.open {
            flags.inline = true;
        }
        // With a session meta knows by itself that the file is open.
        let opening = query.open.map(|f| match f.session {
            SessionId(0) => self.core.opens.begin_unnamed(),
            _ => self.core.opens.begin_known(),
        });
        let opens = query.open.is_some();
        let mut reply: AttrReply = self.meta_call_for(method::MAKE, query, opens).await?;
        if let (Some(opening), Some(opened)) = (opening, &mut reply.open) {
            opening.answered(opened);
        }
        Ok(reply)
    }
    /// TRASH, for operators. A file that was put back or removed by an attempt whose answer was lost is not found by the next one.
    pub async fn trash(&self, query: Trash) -> Result<TrashReply> {
        decode(&self.core.meta(method::TRASH, |_| encode(&query)).await?)
    }
    async fn meta_call<Q: Query, R>(&self, method: u16, query: Q) -> Result<R>
    where
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        self.meta_call_for(method, query, false).await
    }
    /// The same; `opens`: something is open here afterwards, so mgmtd has to know of this life of the client before.
    async fn meta_call_for<Q: Query, R>(&self, method: u16, mut query: Q, opens: bool) -> Result<R>
    where
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        let named = query.caller().client != ClientId(0);
        let fresh = self.new_request();
        let once = match query.request() {
            Some(request) if *request == RequestId(0) => {
                *request = fresh;
                true
            }
            request => request.is_some(),
        };
        let (mut lives, mut copies) = (0, false);
        let of = query.changes();
        // Meta does not tell a client of its own changes.
        let changing = || of.into_iter().for_each(|inode| self.core.files.changing(inode));
        changing();
        let mut retry = self.core.retry(self.core.meta_policy());
        let answer = loop {
            if opens {
                self.core.known_to_mgmtd().await?;
            }
            let life = self.core.id();
            if !named {
                query.caller().client = life;
            }
            let body = |again| {
                copies |= again;
                query.caller().again |= once && (again || lives > 0);
                encode(&query)
            };
            match self.core.meta_within(&mut retry, (method, of), body).await {
                // A new life of this client began meanwhile: it may ask itself. All lives share the time for which the request is remembered, unless
                // no copy of it can be anywhere: then it begins now.
                Err(e) if e.status == Status::SessionEnded && !named && life != self.core.id() => {
                    lives += 1;
                    if !copies {
                        retry = self.core.retry(self.core.meta_policy());
                    }
                }
                other => break other,
            }
        };
        changing();
        decode(&answer?).map_err(|e| e.context(method::name(method)))
    }
}

impl Core {
    /// One metadata call: at one service after another, until an answer or the bound. `body` is told whether a copy may be on its way.
    pub async fn meta(&self, method: u16, body: impl FnMut(bool) -> Vec<u8>) -> Result<Vec<u8>> {
        self.meta_within(&mut self.retry(self.meta_policy()), (method, None), body).await
    }

    /// The same within attempts that have begun before.
    async fn meta_within(
        &self,
        retry: &mut Retry,
        (method, of): (u16, Option<InodeId>),
        mut body: impl FnMut(bool) -> Vec<u8>,
    ) -> Result<Vec<u8>> {
        let mut again = false;
        loop {
            let mut site = Site::default();
            let error = match self.meta_attempt((method, of), body(again), retry, &mut site).await {
                Ok(answer) => return Ok(answer),
                Err(e) => e,
            };
            let repeat = again_meta(error.status);
            let what = || method::name(method).to_owned();
            self.wait_or_give_up(retry, &what, &site, error, repeat).await?;
            again = true;
        }
    }

    async fn meta_attempt(
        &self,
        (method, of): (u16, Option<InodeId>),
        body: Vec<u8>,
        retry: &Retry,
        site: &mut Site,
    ) -> Result<Vec<u8>> {
        let late = || Error::new(Status::TimedOut, "the time for this call is up");
        let time = retry.attempt_time(self.rt.now()).ok_or_else(late)?;
        let info = self.routing(time).await?;
        site.info = Some(info.clone());
        let node = self.pick_meta(&info, of)?;
        let near = self.conn_now(&info, node);
        site.node = Some(node);
        let time = retry.attempt_time(self.rt.now()).ok_or_else(late)?;
        let conn = match near {
            Some(conn) => Ok(conn),
            None => Box::pin(self.conn(&info, node, time)).await,
        };
        let outcome = match conn {
            Ok(conn) => {
                let request = Request {
                    method,
                    body,
                    bulk: Bulk::None,
                    tenant: self.config.tenant,
                    deadline: time,
                };
                self.unless(|now| vain::failed(now, node), conn.call(request)).await
            }
            Err(e) => Err(e),
        };
        match outcome {
            Ok(response) => Ok(response.body),
            Err(e) => {
                if again_meta(e.status) && !matches!(e.status, Status::Conflict | Status::TooOld) {
                    // Another one next time.
                    self.suspect(node);
                    if matches!(e.status, Status::TimedOut | Status::Disconnected) {
                        self.silent_meta(node);
                    }
                    if self.meta_node.get() == Some(node) {
                        self.meta_node.set(None);
                    }
                }
                Err(e)
            }
        }
    }

    /// The service to ask: the owner of what is changed, or else the one that was used last, or another one.
    fn pick_meta(&self, info: &Rc<RoutingInfo>, of: Option<InodeId>) -> Result<NodeId> {
        let found = match of {
            Some(inode) => self.owner(info, inode),
            None => self.near_meta(info),
        };
        found.ok_or_else(|| {
            Error::new(
                Status::ChainUnavailable,
                format!("no meta service is registered (routing info version {})", info.version),
            )
        })
    }

    fn owner(&self, info: &Rc<RoutingInfo>, inode: InodeId) -> Option<NodeId> {
        let mut owners = self.owners.borrow_mut();
        let owners = match &mut *owners {
            Some(owners) if owners.are_of(info) => owners,
            other => other.insert(Owners::of(info)),
        };
        owners.owner(inode, |n| self.avoids_meta(n))
    }

    fn near_meta(&self, info: &RoutingInfo) -> Option<NodeId> {
        let last = self.meta_node.get().filter(|n| !self.avoids_meta(*n));
        if last.is_some_and(|n| self.conn_now(info, n).is_some()) {
            return last;
        }
        let order = routes::metas(info, self.id().0 as u64, |n| self.avoids_meta(n));
        let node = last.filter(|n| order.contains(n)).or_else(|| order.first().copied());
        self.meta_node.set(node);
        node
    }
}
