//! The end of a handle: meta is told what is left to tell, and the session ends there.
//!
//! Where meta does not answer for as long as it may be asked, it is asked again, beside all else, until it has answered or this life of the client has ended (of a client that is gone
//! meta asks the chunks how long the file is). So what was written through the handle, and acknowledged, counts, though close(2) said EIO. Guarantees: meanwhile the file
//! counts as open here, so its length is known here, and whoever else has it open tells it as well; and a right to append to it is not given back, for
//! whoever gets it next has to begin behind what was written. Each time meta is told what is true by then: what this client has cut off since is not told, and
//! what others have cut off goes under the truncate epoch that it was written under, by which meta knows that it does not count. A session that is being closed is not
//! used again: who opens the file meanwhile gets another one. Meta may have done what it did not answer: then the session is not there, and nothing is done twice. Must never: keep more
//! than [`KEPT_MAX`] of such closes. What comes beyond is given up, and the log says so: its session ends with this client, and only then its length is asked for.

use crate::daemon::{Context, Daemon, Failure};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use crate::open::Dirty;
use glowfs_rt::Duration;
use glowfs_rt::sync::{Notify, Semaphore};
use glowfs_types::wire::meta::Sync;
use glowfs_types::{Error, Result, SessionId, Status};
use libc::EBADF;
use std::cell::Cell;
use std::rc::{Rc, Weak};

/// So many closes are kept that have no answer: some 3 KiB each.
const KEPT_MAX: usize = 16_384;
/// Of these, closes by which meta hears nothing that it does not know but that the session has ended leave the others so much room.
const KEPT_FOR_LENGTHS: usize = KEPT_MAX / 2;
/// So many of them are tried at once.
const AT_ONCE: usize = 32;
/// The first pause between two attempts; it doubles,
const AGAIN_FIRST: Duration = Duration::from_secs(1);
/// up to this.
const AGAIN_LAST: Duration = Duration::from_secs(15);

/// Closes that meta has not answered.
pub struct Unanswered {
    kept: Rc<Cell<usize>>,
    turns: Rc<Semaphore>,
    /// Meta answers again, or somebody waits for one of them.
    now: Rc<Notify>,
}

impl Default for Unanswered {
    fn default() -> Self {
        Self { kept: Rc::default(), turns: Rc::new(Semaphore::new(AT_ONCE)), now: Rc::default() }
    }
}

/// One of them, as long as it is kept.
struct Kept(Rc<Cell<usize>>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Unanswered {
    /// Room for one more. `tells`: meta is to hear of more than that a session has ended.
    fn keep(&self, tells: bool) -> Option<Kept> {
        let room = if tells { KEPT_MAX } else { KEPT_MAX - KEPT_FOR_LENGTHS };
        let kept = self.kept.get();
        (kept < room).then(|| {
            self.kept.set(kept + 1);
            Kept(self.kept.clone())
        })
    }
    /// Those that pause are tried now.
    pub(crate) fn try_now(&self) {
        self.now.notify_all();
    }
}

/// Whether a close that ended so may have another answer later. Not where the session is none of this life of the client, or never was.
const fn is_unanswered(status: Status) -> bool {
    use Status::*;
    !matches!(status, SessionEnded | Stale | NotFound | InvalidArgument | BadMessage | FileTooBig)
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
            Err(e) if is_unanswered(e.status) => self.close_again(handle.clone(), session, e),
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
                Err(e) if is_unanswered(e.status) => {
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

    /// Meta did not answer a close: it is made again until it does.
    fn close_again(
        &self,
        handle: Rc<Handle<S::File>>,
        session: SessionId,
        error: Error,
    ) -> Result<(), Failure> {
        let (inode, tells) = (handle.inode.id, handle.inode.dirty().is_some());
        let Some(kept) = self.unanswered.keep(tells) else {
            if tells {
                tracing::error!(%inode, len = handle.inode.stored_len(), "{} closes have no answer from the metadata service: what this file was made longer by counts only when this client has ended", self.unanswered.kept.get());
            }
            return Err(error.into());
        };
        tracing::warn!(%inode, %error, "a close has no answer from the metadata service; it is made again until it has");
        let again = Again {
            daemon: self.this.clone(),
            turns: self.unanswered.turns.clone(),
            now: self.unanswered.now.clone(),
            handle,
            session,
        };
        let (rt, turn) = (self.rt.clone(), self.appends.hold(inode));
        self.rt.spawn_detached(async move {
            let mut pause = AGAIN_FIRST;
            loop {
                let now = again.now.wait();
                let _ = rt.timeout(pause, now).await;
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

/// A close that is made again.
struct Again<S: FileSystem> {
    /// Weak: with the mount it is given up.
    daemon: Weak<Daemon<S>>,
    turns: Rc<Semaphore>,
    now: Rc<Notify>,
    handle: Rc<Handle<S::File>>,
    session: SessionId,
}

impl<S: FileSystem> Again<S> {
    /// Makes it once more; whether that was the last time.
    async fn is_over(&self) -> bool {
        let _turn = self.turns.acquire(1).await;
        let inode = self.handle.inode.id;
        let lives = self.handle.opened.file.lives();
        let Some(daemon) = self.daemon.upgrade().filter(|_| lives) else {
            tracing::debug!(%inode, "a session has ended with its client before it was closed");
            return true;
        };
        // What is not counted so is with the next report.
        match daemon.end_session(&self.handle, self.session, None).await {
            Ok(()) => tracing::info!(%inode, "a close has its answer"),
            Err(error) if is_unanswered(error.status) => {
                tracing::debug!(%inode, %error, "a close has no answer yet");
                return false;
            }
            Err(error) => tracing::error!(%inode, %error, "a session could not be closed"),
        }
        // Others need not wait to hear that by themselves.
        self.now.notify_all();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_kept_and_those_that_tell_a_length_find_room_longest() {
        let all = Unanswered::default();
        let ends: Vec<_> = std::iter::from_fn(|| all.keep(false)).collect();
        assert_eq!(ends.len(), KEPT_MAX - KEPT_FOR_LENGTHS);
        let tell: Vec<_> = std::iter::from_fn(|| all.keep(true)).collect();
        assert_eq!(tell.len(), KEPT_FOR_LENGTHS);
        drop(tell);
        assert!(all.keep(false).is_none() && all.keep(true).is_some());
        drop(ends);
        assert_eq!(all.kept.get(), 0);
        assert!(all.keep(false).is_some());
    }
}
