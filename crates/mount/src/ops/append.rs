//! Appends: a mount that has the right to append to a file decides alone where the end of the file is, so appends of several clients do not
//! overlap. It keeps the right until meta asks for it on behalf of another client, or it was not used for a while.
//!
//! Before the right is given back, the appends under it have ended and meta knows the length, so whoever gets it next begins at the true end; what
//! failed was never counted, so it leaves no hole.

use crate::daemon::{Context, Daemon, Failure};
use crate::filesystem::FileSystem;
use crate::gate::Pass;
use crate::handles::Handle;
use crate::open::OpenInode;
use glowfs_fuse::Reply;
use glowfs_rt::sync::{Either, Notify, select};
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::meta::{Caller, Edition};
use glowfs_types::{ClientId, InodeId, RequestId, Result, Status};
use libc::EINTR;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

/// A right that was not used for so long is given back, so that nobody has to wait for this client if it dies.
const IDLE: Duration = Duration::from_secs(1);
/// A write(2) of more than one request comes in pieces, during which the kernel lets no other one through: after a piece that may not be the last
/// the next one is waited for so long,
const NEXT_PIECE: Duration = Duration::from_millis(50);
/// but others wait at most so long for the end of such writes, from when the piece is there that was on its way as they asked.
const PIECES_MAX: Duration = Duration::from_secs(1);
/// By how much a full piece may be shorter than the greatest request: memory that is not page-aligned takes one page more.
const PIECE_SLACK: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Asked for at meta.
    Taking,
    Held,
    /// On its way back.
    Returning,
}

/// The right to append to one file.
struct Right {
    grant: RequestId,
    /// The life of the client that got it.
    life: ClientId,
    caller: Caller,
    /// What meta said of the file as it gave the right.
    given: Cell<Edition>,
    stage: Cell<Stage>,
    /// Appends under it.
    users: Cell<u32>,
    /// Since when somebody else wants it.
    wanted: Cell<Option<Instant>>,
    /// When the first append ended after that.
    ended: Cell<Option<Instant>>,
    /// When it was last used, and whether more pieces of that write(2) may come.
    used: Cell<(Instant, bool)>,
    moved: Notify,
}

impl Right {
    /// Until when others wait for the end of a write(2) in several pieces. How long a piece takes does not count: it may have to put contents into chunks first.
    fn patience_ends(&self, now: Instant) -> Instant {
        self.ended.get().or(self.wanted.get()).unwrap_or(now) + PIECES_MAX
    }
}

/// The rights of a mount.
#[derive(Default)]
pub struct Appends {
    rights: RefCell<BTreeMap<InodeId, Rc<Right>>>,
    /// Who asked for one last: by a token that is not root's nobody else may give back what meta believes to be here.
    asked: RefCell<Option<Caller>>,
}

impl Appends {
    fn get(&self, inode: InodeId) -> Option<Rc<Right>> {
        self.rights.borrow().get(&inode).cloned()
    }
    fn drop(&self, inode: InodeId, right: &Rc<Right>) {
        let mut all = self.rights.borrow_mut();
        if all.get(&inode).is_some_and(|r| Rc::ptr_eq(r, right)) {
            all.remove(&inode);
        }
        drop(all);
        right.moved.notify_all();
    }
    /// Keeps a right of the file, if there is one, until the result is dropped: something is still to be told to meta.
    pub fn hold(&self, inode: InodeId) -> Option<Turn> {
        self.get(inode).map(Turn::new)
    }
}

/// One use of a right.
pub struct Turn(Rc<Right>);

impl Turn {
    fn new(right: Rc<Right>) -> Self {
        right.users.set(right.users.get() + 1);
        Self(right)
    }
    /// An append has ended that the kernel sent as `len` bytes at `offset`.
    pub fn used(&self, now: Instant, (offset, len): (u64, u64), direct: bool, request_max: u32) {
        let full = len + PIECE_SLACK >= u64::from(request_max);
        // What goes through the page cache is cut at pages that are not there yet, too.
        let cut = !direct && (offset + len).is_multiple_of(PIECE_SLACK);
        self.0.used.set((now, full || cut));
        if self.0.wanted.get().is_some() && self.0.ended.get().is_none() {
            self.0.ended.set(Some(now));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.users.set(self.0.users.get() - 1);
        self.0.moved.notify_all();
    }
}

/// A right that is asked for once more, for meta may have lost it; whatever comes of that, it is held again. (Nobody else gets it before its users have ended
/// and meta knows their length.)
struct Renewing(Rc<Right>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.stage.set(Stage::Held);
        self.0.moved.notify_all();
    }
}

/// A right that is being asked for; if nobody waits for the answer any more, it is given back.
struct Taking<S: FileSystem> {
    daemon: Rc<Daemon<S>>,
    inode: InodeId,
    right: Rc<Right>,
}

impl<S: FileSystem> Drop for Taking<S> {
    fn drop(&mut self) {
        if self.right.stage.get() != Stage::Taking {
            return;
        }
        self.daemon.appends.drop(self.inode, &self.right);
        let (daemon, inode, right) = (self.daemon.clone(), self.inode, self.right.clone());
        self.daemon.rt.spawn_detached(async move {
            // If this fails, meta will ask for it when somebody wants it.
            let _ = daemon.release_right(inode, right.grant, &right.caller).await;
        });
    }
}

impl<S: FileSystem> Context<S> {
    /// Waits for the right to append to the file of a handle; ends with EINTR some time after the caller was interrupted.
    pub(crate) async fn append_turn(
        &self,
        handle: &Handle<S::File>,
        reply: &Reply,
    ) -> Result<Turn, Failure> {
        let inode = handle.inode.id;
        if let Some(right) = self.appends.get(inode)
            && self.usable(&right, &handle.inode)
        {
            return Ok(Turn::new(right));
        }
        self.unless_stopped(Box::pin(self.take_turn(handle, reply)), reply).await?
    }

    /// Waits until all appends to the file that arrived before have their places.
    pub(crate) async fn append_in_line(
        &self,
        handle: &Handle<S::File>,
        reply: &Reply,
    ) -> Result<Pass, Failure> {
        self.unless_stopped(handle.inode.line.exclusive(), reply).await
    }

    /// Waits, but not for long when the caller was interrupted: a write to a file is not expected to be interrupted by whatever signal comes, and the
    /// right is usually here in a moment.
    async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
        reply: &Reply,
    ) -> Result<T, Failure> {
        let stop = async {
            reply.interrupted().await;
            self.rt.sleep(Duration::from_millis(self.config.interrupt_grace_ms)).await;
        };
        match select(work, stop).await {
            Either::Left(done) => Ok(done),
            Either::Right(()) => Err(Failure::Errno(EINTR)),
        }
    }

    /// Whether one more append may go on under the right.
    fn usable(&self, right: &Right, inode: &OpenInode<S::File>) -> bool {
        if right.stage.get() != Stage::Held || right.life != self.fs.life() {
            return false;
        }
        // The rest of a write(2) goes on under it, also if meta has begun another life meanwhile.
        if right.wanted.get().is_some() {
            let now = self.rt.now();
            return self.awaits_piece(right) && now < right.patience_ends(now);
        }
        !inode.edition().is_of_later_life_than(&right.given.get())
    }

    async fn take_turn(&self, handle: &Handle<S::File>, reply: &Reply) -> Result<Turn, Failure> {
        let inode = handle.inode.id;
        loop {
            match self.appends.get(inode) {
                Some(right) if self.usable(&right, &handle.inode) => return Ok(Turn::new(right)),
                Some(right) if right.stage.get() == Stage::Held && right.wanted.get().is_none() => {
                    // Of a former life of this client: the cluster has ended it. Or of a former life of meta's engine, which may have lost it.
                    if right.life != self.fs.life() || !self.ask_again(handle, &right).await? {
                        self.appends.drop(inode, &right);
                    }
                }
                Some(right) => right.moved.wait().await,
                None => return self.take_right(handle, reply).await,
            }
        }
    }

    /// Has meta note a right once more. False: it was lost, and another client has it.
    async fn ask_again(&self, handle: &Handle<S::File>, right: &Rc<Right>) -> Result<bool> {
        right.stage.set(Stage::Taking);
        let _renewing = Renewing(right.clone());
        let inode = handle.inode.id;
        let caller = Caller { client: right.life, ..handle.caller.clone() };
        let q = Append { caller, inode, grant: right.grant, release: false };
        let heard = handle.inode.edition();
        let given = match self.fs.append(q).await {
            Ok(AppendReply { attr: None }) => return Ok(false),
            Ok(AppendReply { attr: Some(attr) }) => {
                self.inodes.seen(&attr);
                attr.edition()
            }
            Err(e) if e.status == Status::UnknownMethod => handle.inode.edition(),
            Err(e) => return Err(e),
        };
        given.check_asked_after(&heard)?;
        right.given.set(given);
        // A write(2) in the middle of its pieces still is.
        let (_, full) = right.used.get();
        right.used.set((self.rt.now(), full));
        Ok(true)
    }

    async fn take_right(&self, handle: &Handle<S::File>, reply: &Reply) -> Result<Turn, Failure> {
        let inode = handle.inode.id;
        let right = Rc::new(Right {
            grant: RequestId(self.rt.random_u128()),
            life: self.fs.life(),
            caller: handle.caller.clone(),
            given: Cell::default(),
            stage: Cell::new(Stage::Taking),
            users: Cell::new(0),
            wanted: Cell::new(None),
            ended: Cell::new(None),
            used: Cell::new((self.rt.now(), false)),
            moved: Notify::default(),
        });
        self.appends.rights.borrow_mut().insert(inode, right.clone());
        self.appends.asked.replace(Some(right.caller.clone()));
        let taking = Taking { daemon: self.daemon.clone(), inode, right: right.clone() };
        let caller = Caller { client: right.life, ..right.caller.clone() };
        let q = Append { caller, inode, grant: right.grant, release: false };
        loop {
            let heard = handle.inode.edition();
            match self.fs.append(q.clone()).await {
                Ok(AppendReply { attr: Some(attr) }) => {
                    attr.edition().check_asked_after(&heard)?;
                    self.inodes.seen(&attr);
                    right.given.set(attr.edition());
                    break;
                }
                // A meta service of an older release knows of no such right: appends are whole on this client only.
                Err(e) if e.status == Status::UnknownMethod => break,
                // If it may not, it keeps its place among the outstanding; the other client is asked to give the right back.
                Ok(_) => _ = reply.park(),
                Err(e) => return Err(e.into()),
            }
        }
        right.stage.set(Stage::Held);
        let turn = Turn::new(right.clone());
        drop(taking);
        right.moved.notify_all();
        self.rt.spawn_detached(self.daemon.clone().return_when_idle(inode, right));
        Ok(turn)
    }
}

impl<S: FileSystem> Daemon<S> {
    /// Whether a write(2) may be in the middle of its pieces.
    fn awaits_piece(&self, right: &Right) -> bool {
        let (at, full) = right.used.get();
        full && self.rt.now() < at + NEXT_PIECE
    }

    async fn return_when_idle(self: Rc<Self>, inode: InodeId, right: Rc<Right>) {
        loop {
            self.rt.sleep(IDLE).await;
            let there = self.appends.get(inode).is_some_and(|r| Rc::ptr_eq(&r, &right));
            if !there {
                return;
            }
            if right.stage.get() != Stage::Held {
                continue;
            }
            let idle = self.rt.now().since(right.used.get().0) >= IDLE;
            if right.users.get() == 0 && right.wanted.get().is_none() && idle {
                right.wanted.set(Some(self.rt.now()));
                if self.give_right(inode, &right).await.is_ok() {
                    return;
                }
            }
        }
    }

    /// Meta asks for the right on behalf of another client. Returns when it was given back.
    pub async fn give_append(self: Rc<Self>, inode: InodeId, grant: RequestId) -> Result<()> {
        let Some(right) = self.appends.get(inode) else {
            let asked = self.appends.asked.borrow().clone();
            let caller = asked.unwrap_or_else(|| self.callers.root());
            return self.release_right(inode, grant, &caller).await;
        };
        let first = right.wanted.get().is_none();
        if first {
            right.wanted.set(Some(self.rt.now()));
            // One of them may hold the right.
            self.unanswered.try_now(inode);
            // Beside the call, which may be given up.
            let (daemon, right) = (self.clone(), right.clone());
            self.rt.spawn_detached(async move {
                while right.stage.get() == Stage::Taking && daemon.has_right(inode, &right) {
                    right.moved.wait().await;
                }
                if let Err(e) = daemon.give_right(inode, &right).await {
                    tracing::warn!(%inode, error = %e, "cannot give the right to append back yet");
                }
            });
        }
        while self.has_right(inode, &right) && right.wanted.get().is_some() {
            right.moved.wait().await;
        }
        if self.has_right(inode, &right) {
            return Err(Status::Busy.into());
        }
        if right.grant == grant {
            return Ok(());
        }
        self.release_right(inode, grant, &right.caller).await
    }

    fn has_right(&self, inode: InodeId, right: &Rc<Right>) -> bool {
        self.appends.get(inode).is_some_and(|r| Rc::ptr_eq(&r, right))
    }

    /// Waits for the appends under the right, tells meta the length and gives it back. `wanted` is set, so no further appends begin.
    async fn give_right(&self, inode: InodeId, right: &Rc<Right>) -> Result<()> {
        let told = loop {
            let news = right.moved.wait();
            if !self.has_right(inode, right) || right.stage.get() != Stage::Held {
                return Ok(());
            }
            let now = self.rt.now();
            let late = now >= right.patience_ends(now);
            if right.users.get() > 0 {
                news.await;
            } else if self.awaits_piece(right) && !late {
                let _ = self.rt.timeout(NEXT_PIECE / 8, news).await;
            } else {
                right.stage.set(Stage::Returning);
                let told = self.report_length(inode, &right.caller).await;
                if right.users.get() == 0 {
                    break told;
                }
                // A close has begun meanwhile that tells the length itself.
                right.stage.set(Stage::Held);
            }
        };
        // A session that the cluster has ended has nothing to tell any more.
        if let Err(e) = told
            && !matches!(e.status, Status::SessionEnded | Status::Stale)
        {
            right.stage.set(Stage::Held);
            right.wanted.set(None);
            right.ended.set(None);
            right.moved.notify_all();
            return Err(e);
        }
        let given = self.release_right(inode, right.grant, &right.caller).await;
        self.appends.drop(inode, right);
        given
    }

    /// Tells meta what was written to an inode, if it is open here for writing.
    async fn report_length(&self, inode: InodeId, caller: &Caller) -> Result<()> {
        let Some(open) = self.inodes.opened(inode) else { return Ok(()) };
        self.all_sent(&open).await;
        let (Some(dirty), Some(writer)) = (open.dirty(), open.find_writable()) else {
            return Ok(());
        };
        let q = self.sync_query(&open, &writer, caller, false);
        let r = self.fs.sync(q).await?;
        open.reported(dirty, false, &r.attr);
        Ok(())
    }

    async fn release_right(&self, inode: InodeId, grant: RequestId, caller: &Caller) -> Result<()> {
        let q = Append { caller: caller.clone(), inode, grant, release: true };
        self.fs.append(q).await.map(|_| ())
    }

    /// Gives all rights back. For the end of the mount.
    pub async fn give_all_rights(&self) {
        let all: Vec<_> =
            self.appends.rights.borrow().iter().map(|(i, r)| (*i, r.clone())).collect();
        for (inode, right) in all {
            if right.stage.get() == Stage::Held && right.users.get() == 0 {
                right.wanted.set(Some(Instant(0)));
                if let Err(e) = self.give_right(inode, &right).await {
                    tracing::debug!(%inode, error = %e, "a right to append ends with this client");
                }
            }
        }
    }
}
