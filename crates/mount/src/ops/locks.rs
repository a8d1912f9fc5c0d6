//! Locks: flock, fcntl, OFD. Meta keeps them; the mount knows only which owner may have some, to give them back when files are closed.
//!
//! Before a lock is given back, meta is told what was written (so other clients are told to forget what they had cached): whoever gets
//! it next sees that.

use crate::daemon::{Answer, Context, Daemon, Failure, Outcome, fail};
use crate::filesystem::FileSystem;
use crate::handles::Handle;
use glowfs_fuse::Reply;
use glowfs_fuse::abi::{self, LkIn, LkOut, lk};
use glowfs_rt::Duration;
use glowfs_rt::sync::Shares;
use glowfs_rt::sync::{Either, Notify, select};
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::Caller;
use glowfs_types::{InodeId, RequestId, Status};
use libc::{EAGAIN, EBADF, EINTR, EINVAL, ENOLCK};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The greatest number of owners that wait on one mount, of all users; none gets all of them ([`Shares`]).
const WAITING_MAX: usize = 1024;

/// A lock that could not be given back is given back again after so long, and after twice as long each time,
const AGAIN_FIRST: Duration = Duration::from_millis(500);
/// but at the latest after so long.
const AGAIN_LAST: Duration = Duration::from_secs(10);

/// An owner's locks of a file: flocks and ranges apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner {
    inode: InodeId,
    owner: u64,
    whole: bool,
}

/// Which owners may have locks, and through which handles they asked for them. What no handle stands for any more is given back.
pub struct Owners {
    handles: BTreeMap<Owner, BTreeSet<u64>>,
    /// Owners whose locks are on their way back.
    returning: BTreeSet<Owner>,
    returned: Rc<Notify>,
    waiting: Shares<u32>,
}

impl Default for Owners {
    fn default() -> Self {
        let (handles, returning, returned) = Default::default();
        Self { handles, returning, returned, waiting: Shares::new(WAITING_MAX) }
    }
}

/// The locks of an owner are on their way back. (The kernel may give the number of an owner that is gone to a new one.)
struct Returning<'a>(&'a RefCell<Owners>, Owner);

impl<'a> Returning<'a> {
    /// None: somebody is at it, or the owner uses locks again.
    fn begin(owners: &'a RefCell<Owners>, owner: Owner) -> Option<Self> {
        let mut all = owners.borrow_mut();
        let begins = !all.handles.contains_key(&owner) && all.returning.insert(owner);
        begins.then(|| Self(owners, owner))
    }
}

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        let mut all = self.0.borrow_mut();
        all.returning.remove(&self.1);
        all.returned.notify_all();
    }
}

impl Owners {
    /// The owner may have locks that he asked for through the handle.
    fn notes(&mut self, owner: Owner, fh: u64) {
        self.handles.entry(owner).or_default().insert(fh);
    }
    fn closes(&mut self, fh: u64) -> Vec<Owner> {
        let mut done = Vec::new();
        self.handles.retain(|owner, handles| {
            if handles.remove(&fh) && handles.is_empty() {
                done.push(*owner);
            }
            !handles.is_empty()
        });
        done
    }
}

impl<S: FileSystem> Context<S> {
    fn lock_of(&self, handle: &Handle<S::File>, i: &LkIn) -> Option<Lock> {
        let whole = i.lk_flags & abi::LK_FLOCK != 0;
        let wish = match i.kind {
            lk::RDLCK => LockWish::Shared,
            lk::WRLCK => LockWish::Exclusive,
            lk::UNLCK => LockWish::Release,
            _ => return None,
        };
        let (start, end) = if whole { (0, u64::MAX) } else { (i.start, i.end) };
        Some(Lock {
            caller: handle.caller.clone(),
            inode: handle.inode.id,
            owner: i.owner,
            whole,
            wish,
            start,
            end,
            pid: i.pid,
            ..Lock::default()
        })
    }
    pub(crate) async fn getlk(&self, i: LkIn) -> Outcome {
        let Some(handle) = self.inodes.handles.file(i.fh) else { return fail(EBADF) };
        let Some(q) = self.lock_of(&handle, &i) else { return fail(EINVAL) };
        let found = self.fs.lock_test(q).await?.holder;
        let out = found.map_or(LkOut { kind: lk::UNLCK, ..LkOut::default() }, |h| LkOut {
            start: h.start,
            end: h.end,
            kind: if h.exclusive { lk::WRLCK } else { lk::RDLCK },
            // A process of another client is none of this host: its number means somebody else here.
            pid: if h.client == self.fs.life() { h.pid } else { 0 },
        });
        Ok(Answer::Lock(out))
    }

    pub(crate) async fn setlk(&self, i: LkIn, wait: bool, reply: &Reply) -> Outcome {
        let Some(handle) = self.inodes.handles.file(i.fh) else { return fail(EBADF) };
        let Some(q) = self.lock_of(&handle, &i) else { return fail(EINVAL) };
        if q.wish == LockWish::Release {
            self.report_uncounted(&handle).await?;
            self.fs.lock(self.once(&q)).await?;
            return Ok(Answer::Done);
        }
        // What was written before the lock counts as written before it.
        self.all_sent(&handle.inode).await;
        // Noted first: if the outcome is not known, it is given back all the same.
        let owner = Owner { inode: q.inode, owner: q.owner, whole: q.whole };
        self.owners.borrow_mut().notes(owner, i.fh);
        self.returned(owner).await;
        if q.wish == LockWish::Shared {
            // It may be less than the owner had, and so let others in.
            self.report_uncounted(&handle).await?;
        }
        let q = Lock { waits: wait, ..q };
        loop {
            let answer = self.fs.lock(self.once(&q)).await;
            // Once more: if the process closed another handle of the file meanwhile, nobody knows of its owner any more.
            self.owners.borrow_mut().notes(owner, i.fh);
            if answer?.holder.is_none() {
                return Ok(Answer::Done);
            }
            if !wait {
                return fail(EAGAIN);
            }
            self.wait_for(&q, reply).await?;
        }
    }

    /// Returns when nothing stood in the way of a lock for a moment.
    async fn wait_for(&self, q: &Lock, reply: &Reply) -> Result<(), Failure> {
        let share = self.owners.borrow().waiting.take(self.header.uid);
        if share.is_none() || !reply.park() {
            self.fs.lock(self.once(&Lock { wish: LockWish::GiveUp, ..q.clone() })).await?;
            return Err(Failure::Errno(ENOLCK));
        }
        let free = async {
            while self.fs.lock_wait(q.clone()).await?.holder.is_some() {}
            Ok(())
        };
        let ended = select(free, reply.interrupted()).await;
        drop(share);
        match ended {
            Either::Left(free) => free,
            Either::Right(()) => {
                self.fs.lock(self.once(&Lock { wish: LockWish::GiveUp, ..q.clone() })).await?;
                Err(Failure::Errno(EINTR))
            }
        }
    }

    /// A process closes a file: its locks of ranges go, whichever handle they came through.
    pub(crate) async fn unlock_closing(&self, fh: u64, owner: u64) -> Result<(), Failure> {
        let Some(handle) = self.inodes.handles.file(fh) else { return Ok(()) };
        let owner = Owner { inode: handle.inode.id, owner, whole: false };
        if self.owners.borrow_mut().handles.remove(&owner).is_some() {
            // Once more, if it was not told before: who closes hears of that.
            let _ = self.report_uncounted(&handle).await;
            self.give_back(handle.caller.clone(), owner).await?;
        }
        Ok(())
    }

    /// A handle is gone: so are the locks that only it stood for.
    pub(crate) async fn unlock_released(&self, fh: u64) -> Result<(), Failure> {
        let Some(handle) = self.inodes.handles.file(fh) else { return Ok(()) };
        let done = self.owners.borrow_mut().closes(fh);
        if done.is_empty() {
            return Ok(());
        }
        // Nobody will ask for them once more: whatever comes of it, all of them go back.
        let mut outcome = self.report_uncounted(&handle).await;
        for owner in done {
            let given = self.give_back(handle.caller.clone(), owner).await;
            outcome = outcome.and(given.map_err(Failure::from));
        }
        outcome
    }

    /// Waits until no locks of the owner are on their way back.
    async fn returned(&self, owner: Owner) {
        loop {
            let returned = self.owners.borrow().returned.clone();
            let news = returned.wait();
            if !self.owners.borrow().returning.contains(&owner) {
                return;
            }
            news.await;
        }
    }
}

impl<S: FileSystem> Daemon<S> {
    fn once(&self, q: &Lock) -> Lock {
        Lock { request: RequestId(self.rt.random_u128()), ..q.clone() }
    }

    /// Gives back all that an owner has who is gone. If that fails, it is tried until it succeeds: to others the file would be locked for as long as this
    /// client lives.
    async fn give_back(&self, caller: Caller, owner: Owner) -> glowfs_types::Result<()> {
        let given = self.try_to_give_back(&caller, owner).await;
        if let Err(e) = &given {
            tracing::warn!(inode = %owner.inode, error = %e, "a lock is not given back yet");
            let (this, rt, life) = (self.this.clone(), self.rt.clone(), self.fs.life());
            self.rt.spawn_detached(async move {
                let mut pause = AGAIN_FIRST;
                loop {
                    rt.sleep(pause).await;
                    // What an earlier life of the client had locked is taken from it.
                    let daemon = this.upgrade().filter(|d| d.fs.life() == life);
                    let Some(daemon) = daemon else { return };
                    match daemon.try_to_give_back(&caller, owner).await {
                        Err(e) if e.status != Status::Stale => pause = AGAIN_LAST.min(pause * 2),
                        _ => return,
                    }
                }
            });
        }
        given
    }

    async fn try_to_give_back(&self, caller: &Caller, owner: Owner) -> glowfs_types::Result<()> {
        let Some(_returning) = Returning::begin(&self.owners, owner) else { return Ok(()) };
        let q = Lock {
            caller: caller.clone(),
            inode: owner.inode,
            owner: owner.owner,
            whole: owner.whole,
            wish: LockWish::Release,
            start: 0,
            end: u64::MAX,
            ..Lock::default()
        };
        self.fs.lock(self.once(&q)).await?;
        Ok(())
    }
}
