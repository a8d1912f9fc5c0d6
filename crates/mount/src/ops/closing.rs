//! The end of a handle: meta is told what is left to tell, and the session ends there.
//!
//! Where meta does not answer for as long as it may be asked, it is asked again, beside all else, until it has answered or this life of the client has ended (of a client that is gone
//! meta asks the chunks how long the file is). So what was written through the handle, and acknowledged, counts, though close(2) said EIO. Guarantees: meanwhile the file
//! counts as open here, so its length is known here, and whoever else has it open tells it as well; and a right to append to it is not given back, for
//! whoever gets it next has to begin behind what was written. Each time meta is told what is true by then: what this client has cut off since is not told, and
//! what others have cut off goes under the truncate epoch that it was written under, by which meta knows that it does not count. A session that is being closed is not
//! used again: who opens the file meanwhile gets another one.
//!
//! Meta may have done what it did not answer. Then the session is not there, and a close of it is answered as if it had been done, whatever it tells. So it
//! tells nothing when it is made again: what is left to tell, also of who has opened the file since, goes before it by SYNC, which fails where the session is not there.
//!
//! Must never: count as told what came with a close that was made again; keep more than [`KEPT_MAX`] of such closes, or one that is refused. What comes beyond is given up, and the log says so: its session ends with
//! this client, and only then its length is asked for.

use crate::daemon::{Context, Daemon, Failure};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use crate::open::Dirty;
use glowfs_rt::sync::{Notify, Semaphore};
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::meta::{Attr, Sync};
use glowfs_types::{DataId, Error, InodeId, RequestId, Result, SessionId, Status, TruncateEpoch};
use libc::EBADF;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// So many closes are kept that have no answer: some 3 KiB each.
const KEPT_MAX: usize = 16_384;
/// Of these, closes by which meta hears nothing that it does not know but that the session has ended leave the others so much room.
const KEPT_FOR_LENGTHS: usize = KEPT_MAX / 2;
/// So many of them are tried at once.
const AT_ONCE: usize = 32;
/// One that takes longer leaves its place to the next, and goes on beside it: it may wait for a chain that is away.
const PLACE_MAX: Duration = Duration::from_secs(5);
/// The first pause between two attempts, and the least, whoever waits for one; it doubles,
const AGAIN_FIRST: Duration = Duration::from_secs(1);
/// up to this.
const AGAIN_LAST: Duration = Duration::from_secs(15);
/// So often in a row a close may be refused ([`is_refusal`]).
const REFUSALS_MAX: u32 = 3;

/// Those that are kept, by inode and a number, with what wakes each.
type All = RefCell<BTreeMap<(InodeId, u64), Rc<Notify>>>;

/// Closes that meta has not answered.
pub struct Unanswered {
    kept: Rc<All>,
    next: Cell<u64>,
    turns: Rc<Semaphore>,
    /// When all were last woken because meta answers.
    woken: Cell<Instant>,
}

impl Default for Unanswered {
    fn default() -> Self {
        let turns = Rc::new(Semaphore::new(AT_ONCE));
        Self { kept: Rc::default(), next: Cell::new(0), turns, woken: Cell::new(Instant(0)) }
    }
}

/// One of them, as long as it is kept.
struct Kept {
    all: Rc<All>,
    key: (InodeId, u64),
    /// Meta answers again, or somebody waits for this one.
    now: Rc<Notify>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.borrow_mut().remove(&self.key);
    }
}

impl Unanswered {
    /// Room for one more. `tells`: meta is to hear of more than that a session has ended.
    fn keep(&self, inode: InodeId, tells: bool) -> Option<Kept> {
        let room = if tells { KEPT_MAX } else { KEPT_MAX - KEPT_FOR_LENGTHS };
        let mut kept = self.kept.borrow_mut();
        (kept.len() < room).then(|| {
            let key = (inode, self.next.replace(self.next.get() + 1));
            let now = Rc::new(Notify::default());
            kept.insert(key, now.clone());
            Kept { all: self.kept.clone(), key, now }
        })
    }
    /// Those of a file do not pause any more: somebody waits for them.
    pub(crate) fn try_now(&self, inode: InodeId) {
        self.kept.borrow().range((inode, 0)..=(inode, u64::MAX)).for_each(|(_, k)| k.notify_all());
    }
    /// Meta answers again: the others need not wait to hear that by themselves. Each of them says so, so once in a while is enough.
    fn is_answered(&self, now: Instant) {
        if now >= self.woken.get() + AGAIN_FIRST {
            self.woken.set(now);
            self.try_all();
        }
    }
    /// None of them pauses any more.
    pub(crate) fn try_all(&self) {
        self.kept.borrow().values().for_each(|k| k.notify_all());
    }
}

/// Whether a close that ended so has no other answer to expect: the session is none of this life of the client, or never was.
const fn is_over(status: Status) -> bool {
    use Status::*;
    matches!(status, SessionEnded | Stale | NotFound | InvalidArgument | BadMessage | FileTooBig)
}

impl<S: FileSystem> Context<S> {
    /// Closes a handle; the last of a session ends it at meta.
    pub(super) async fn close(&self, fh: u64) -> Result<(), Failure> {
        let Some((handle, last)) = self.inodes.handles.remove_file(fh) else {
            return Err(Failure::Errno(EBADF));
        };
        if !last {
            return Ok(());
        }
        let inode = &handle.inode;
        self.all_sent(inode).await;
        let allocated = self.counted(inode, false).await;
        if handle.opened.users.get() > 0 || !inode.remove(&handle.opened) {
            // Meanwhile it was opened again, and is used, or was closed by who did that.
            return Ok(());
        }
        let Some(session) = handle.opened.file.session() else {
            self.report_access(handle.clone());
            return Ok(());
        };
        let known = inode.dirty().is_none() && allocated.is_none() && inode.read_at().is_none();
        if known && self.fs.closes_room() {
            self.close_later(handle, session);
            return Ok(());
        }
        // Whoever appends next has to begin behind what this session wrote.
        let _turn = self.appends.hold(inode.id);
        match self.end_session(&handle, session, allocated).await {
            Err(e) if !is_over(e.status) => self.close_again(handle.clone(), session, e),
            ended => ended.map_err(Failure::from),
        }
    }
}

impl<S: FileSystem> Daemon<S> {
    /// Ends a session of which meta knows all but that it has ended. The handle is kept until then: meanwhile the file counts as open here.
    fn close_later(&self, handle: Rc<Handle<S::File>>, session: SessionId) {
        let Some(daemon) = self.this.upgrade() else { return };
        let q = self.closing_query(&handle, session, None);
        self.rt.spawn_detached(async move {
            let _work = daemon.work();
            let closed = match daemon.fs.close_later(q).await {
                Err(e) if !is_over(e.status) => {
                    daemon.close_again(handle.clone(), session, e).map_err(|_| Status::TimedOut.into())
                }
                closed => closed,
            };
            if let Err(error) = closed {
                tracing::debug!(%error, inode = %handle.inode.id, "a session is not closed; it ends with this client");
            }
        });
    }

    /// What meta is to hear with the end of a session, as of now.
    fn closing_query(
        &self,
        handle: &Handle<S::File>,
        session: SessionId,
        allocated: Option<u64>,
    ) -> Sync {
        let (inode, file) = (&handle.inode, &handle.opened.file);
        let mut q = self.sync_query(inode, &handle.opened, &handle.caller, false);
        (q.session, q.allocated) = (Some(session), allocated);
        if q.len_at_least.is_none() {
            // Reported before; said again, so that meta knows that something was written at all. No more than it has: what it lost is not the length any more.
            let has = inode.stored_len();
            (q.len_at_least, q.epoch) = (file.len_written().map(|l| l.min(has)), file.epoch());
        }
        q
    }

    /// Tells meta all that is left to tell, and that the session ends.
    async fn end_session(
        &self,
        handle: &Handle<S::File>,
        session: SessionId,
        allocated: Option<u64>,
    ) -> Result<()> {
        let inode = &handle.inode;
        let dirty: Option<Dirty> = inode.dirty();
        let q = self.closing_query(handle, session, allocated);
        // A time that is set from now on is set after this read.
        let _telling = q.atime.map(|_| inode.telling_access.begin());
        let wrote = u64::from(q.tells_of_writes());
        let r = self.fs.close_session(q).await?;
        inode.reported(dirty.unwrap_or_default(), allocated.is_some(), &r.attr);
        if wrote > 0 && self.inodes.changed_here(&r.attr, wrote) {
            self.forget_pages_later(r.attr.inode);
        }
        Ok(())
    }

    /// The same once more, where meta may have done it. First it is told what is left to tell, if anybody here can say so.
    async fn end_session_again(
        &self,
        handle: &Handle<S::File>,
        session: SessionId,
        under: &Under,
    ) -> Result<()> {
        let (inode, file) = (&handle.inode, &handle.opened.file);
        match Box::pin(self.learn_length(inode.id, &handle.caller)).await {
            // Of a file that is removed the session is to be ended all the same.
            Err(e) if !is_over(e.status) => return Err(e),
            _ => file.update_attr(&inode.attr()),
        }
        self.tell_what_is_left(handle, under).await?;
        let written = file.len_written().map(|l| l.min(inode.stored_len()));
        let q = Sync {
            caller: handle.caller.clone(),
            request: RequestId(self.rt.random_u128()),
            inode: inode.id,
            session: Some(session),
            len_at_least: written,
            epoch: file.epoch(),
            ..Sync::default()
        };
        let r = self.fs.close_session(q).await?;
        if r.attr.inode == inode.id {
            inode.merge(&r.attr);
        }
        Ok(())
    }

    /// Tells meta what this client has written, through who has the file open, or in the session that is being closed. Where neither is there any more, nobody can.
    async fn tell_what_is_left(&self, handle: &Handle<S::File>, under: &Under) -> Result<()> {
        let inode = &handle.inode;
        let ways = [inode.find_writable(), Some(handle.opened.clone())];
        for through in ways.into_iter().flatten() {
            let Some(dirty) = inode.dirty() else { return Ok(()) };
            let mut q = self.sync_query(inode, &through, &handle.caller, false);
            if under.was_given_anew(&inode.attr()) {
                (q.len_at_least, q.epoch) = (through.file.len_written(), through.file.epoch());
            }
            let _telling = q.atime.map(|_| inode.telling_access.begin());
            let wrote = u64::from(q.tells_of_writes());
            match self.fs.sync(q).await {
                Ok(r) => {
                    inode.reported(dirty, false, &r.attr);
                    if wrote > 0 && self.inodes.changed_here(&r.attr, wrote) {
                        self.forget_pages_later(r.attr.inode);
                    }
                    return Ok(());
                }
                Err(e) if !is_over(e.status) => return Err(e),
                Err(error) => {
                    tracing::debug!(%error, inode = %inode.id, "a session can tell nothing more");
                }
            }
        }
        Ok(())
    }

    /// Meta did not answer a close: it is made again until it does.
    fn close_again(
        &self,
        handle: Rc<Handle<S::File>>,
        session: SessionId,
        error: Error,
    ) -> Result<(), Failure> {
        let (inode, tells) = (handle.inode.id, handle.inode.dirty().is_some());
        let Some(kept) = self.unanswered.keep(inode, tells) else {
            if tells {
                tracing::error!(%inode, len = handle.inode.stored_len(), "{} closes have no answer from the metadata service: what this file was made longer by counts only when this client has ended", self.unanswered.kept.borrow().len());
            }
            return Err(error.into());
        };
        tracing::warn!(%inode, %error, "a close has no answer from the metadata service; it is made again until it has");
        let again = Again {
            daemon: self.this.clone(),
            turns: self.unanswered.turns.clone(),
            under: Under::of(&handle.inode.attr()),
            refusals: Cell::new(u32::from(is_refusal(error.status))),
            handle,
            session,
        };
        let (rt, turn) = (self.rt.clone(), self.appends.hold(inode));
        self.rt.spawn_detached(async move {
            let mut pause = AGAIN_FIRST;
            loop {
                let now = kept.now.wait();
                rt.sleep(AGAIN_FIRST).await;
                let _ = rt.timeout(pause - AGAIN_FIRST, now).await;
                pause = AGAIN_LAST.min(pause * 2);
                if again.is_over().await {
                    break;
                }
            }
            drop((turn, kept));
        });
        Ok(())
    }
}

/// Whether meta may say that again whenever it is asked. A service without room, or one that is broken, is another one when it has been mended.
fn is_refusal(status: Status) -> bool {
    let for_now = matches!(status, Status::NoSpace | Status::QuotaExceeded | Status::Internal);
    !status.is_retriable() && !for_now
}

/// The contents that a length is of. After a loss of its power the engine of meta can give the number of a truncate out again.
struct Under {
    epoch: TruncateEpoch,
    data: DataId,
    inline: bool,
}

impl Under {
    fn of(attr: &Attr) -> Self {
        Self { epoch: attr.epoch, data: attr.data, inline: attr.inline }
    }
    fn was_given_anew(&self, now: &Attr) -> bool {
        self.epoch == now.epoch && self.data != now.data && !self.inline
    }
}

/// A close that is made again.
struct Again<S: FileSystem> {
    /// Weak: with the mount it is given up.
    daemon: Weak<Daemon<S>>,
    turns: Rc<Semaphore>,
    handle: Rc<Handle<S::File>>,
    session: SessionId,
    /// As it was closed.
    under: Under,
    /// How often in a row it was refused.
    refusals: Cell<u32>,
}

impl<S: FileSystem> Again<S> {
    /// Makes it once more; whether that was the last time.
    async fn is_over(&self) -> bool {
        let turn = self.turns.acquire(1).await;
        let inode = self.handle.inode.id;
        let lives = self.handle.opened.file.lives();
        let Some(daemon) = self.daemon.upgrade().filter(|_| lives) else {
            tracing::debug!(%inode, "a session has ended with its client before it was closed");
            return true;
        };
        let mut ends = Box::pin(daemon.end_session_again(&self.handle, self.session, &self.under));
        let ended = daemon.rt.timeout(PLACE_MAX, &mut ends).await;
        drop(turn);
        let ended = match ended {
            Ok(ended) => ended,
            Err(_) => ends.await,
        };
        match ended {
            Ok(()) => {
                tracing::info!(%inode, "a close has its answer");
                daemon.unanswered.is_answered(daemon.rt.now());
                true
            }
            Err(error) => self.gives_up(&error),
        }
    }

    /// Whether it is not made again after that. What meta refuses it may refuse for good, and others wait for the right to append meanwhile.
    fn gives_up(&self, error: &Error) -> bool {
        let inode = self.handle.inode.id;
        let refusals = if is_refusal(error.status) { self.refusals.get() + 1 } else { 0 };
        self.refusals.set(refusals);
        if !is_over(error.status) && refusals < REFUSALS_MAX {
            tracing::debug!(%inode, %error, "a close has no answer yet");
            return false;
        }
        tracing::error!(%inode, %error, "a session could not be closed; it ends with this client");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_kept_and_those_that_tell_a_length_find_room_longest() {
        let all = Unanswered::default();
        let ends: Vec<_> = std::iter::from_fn(|| all.keep(InodeId(5), false)).collect();
        assert_eq!(ends.len(), KEPT_MAX - KEPT_FOR_LENGTHS);
        let tell: Vec<_> = std::iter::from_fn(|| all.keep(InodeId(6), true)).collect();
        assert_eq!(tell.len(), KEPT_FOR_LENGTHS);
        drop(tell);
        assert!(all.keep(InodeId(7), false).is_none() && all.keep(InodeId(7), true).is_some());
        drop(ends);
        assert_eq!(all.kept.borrow().len(), 0);
        assert!(all.keep(InodeId(5), false).is_some());
    }
}
