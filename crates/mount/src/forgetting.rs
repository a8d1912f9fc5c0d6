//! [`Forgetting`]: the kernel is told to forget the pages of a file whose contents another client has changed, where it cannot see that itself: time and length
//! are what they were.
//!
//! It goes on beside the request that showed it, for that may hold what the kernel needs. Until it is over whoever asks for the attributes of the file waits, as a
//! reader does before he takes a page; and what the kernel is told of the file otherwise it may not keep, so that every reader asks.

use crate::daemon::Daemon;
use crate::filesystem::FileSystem;
use glowfs_rt::Duration;
use glowfs_rt::sync::Notify;
use glowfs_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long somebody waits for it. The kernel may wait for a page that is being read from a chain that is away; then he goes on, and may get old pages.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of which files pages are being forgotten; at most one entry for each file that the kernel knows.
#[derive(Default)]
pub struct Forgetting(RefCell<BTreeMap<InodeId, Rc<UnderWay>>>);

#[derive(Default)]
struct UnderWay {
    /// The contents have changed once more since the kernel was told.
    again: Cell<bool>,
    /// How often it has forgotten.
    done: Cell<u64>,
    over: Notify,
}

/// It is under way until this is dropped.
struct Begun {
    all: Rc<Forgetting>,
    inode: InodeId,
    work: Rc<UnderWay>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.all.0.borrow_mut().remove(&self.inode);
        self.work.over.notify_all();
    }
}

impl Forgetting {
    /// None: it is under way, and who is at it will do it once more.
    fn begin(self: &Rc<Self>, inode: InodeId) -> Option<Begun> {
        let mut all = self.0.borrow_mut();
        if let Some(work) = all.get(&inode) {
            work.again.set(true);
            return None;
        }
        let work = Rc::<UnderWay>::default();
        all.insert(inode, work.clone());
        Some(Begun { all: self.clone(), inode, work })
    }
    /// Whether the kernel may still have pages of the file from before such a change.
    pub fn is_under_way(&self, inode: InodeId) -> bool {
        self.0.borrow().contains_key(&inode)
    }
    /// Returns when it has none from before a change that has been noted by now. Who changes the file again and again makes nobody wait for ever.
    async fn over(&self, inode: InodeId) {
        let Some(work) = self.0.borrow().get(&inode).cloned() else { return };
        let until = work.done.get() + 1 + u64::from(work.again.get());
        let is_at_it = || self.0.borrow().get(&inode).is_some_and(|w| Rc::ptr_eq(w, &work));
        while is_at_it() && work.done.get() < until {
            work.over.wait().await;
        }
    }
}

impl Begun {
    /// Has `tell` tell the kernel, until there is nothing left that it has to be told.
    async fn work(self, tell: impl AsyncFn()) {
        loop {
            self.work.again.set(false);
            tell().await;
            self.work.done.set(self.work.done.get() + 1);
            if !self.work.again.get() {
                return;
            }
            self.work.over.notify_all();
        }
    }
}

impl<S: FileSystem> Daemon<S> {
    /// Has the kernel forget the pages of a file beside the request that showed that it has to: it may hold some until it is answered.
    pub(crate) fn forget_pages_later(&self, inode: InodeId) {
        let Some(session) = self.session.borrow().upgrade() else { return };
        let Some(begun) = self.forgetting.begin(inode) else { return };
        self.rt.spawn_detached(begun.work(async move || {
            if let Err(error) = session.notify_inval_inode(inode.0, 0, 0).await {
                tracing::warn!(%inode, %error, "the kernel cannot be told to forget pages");
            }
        }));
    }
    /// Returns when the kernel has forgotten pages that it has been told to forget so. False: that takes too long.
    pub(crate) async fn pages_forgotten(&self, inode: InodeId) -> bool {
        if !self.forgetting.is_under_way(inode) {
            return true;
        }
        let over = self.rt.timeout(PATIENCE, self.forgetting.over(inode)).await.is_ok();
        if !over {
            tracing::warn!(%inode, "the kernel takes long to forget pages; readers may see old ones");
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn is_done<F: Future>(f: Pin<&mut F>) -> bool {
        matches!(f.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[test]
    fn whoever_asks_waits_until_the_newest_change_is_forgotten() {
        let (all, told, turns) = (Rc::<Forgetting>::default(), Notify::new(), Cell::new(0));
        let (one, other) = (InodeId(1), InodeId(2));
        assert!(is_done(pin!(all.over(one))), "nothing is under way");
        let begun = all.begin(one).expect("the first");
        let mut work = Box::pin(begun.work(async || {
            turns.set(turns.get() + 1);
            told.wait().await;
        }));
        assert!(!is_done(work.as_mut()));
        let mut reader = pin!(all.over(one));
        assert!(!is_done(reader.as_mut()));
        assert!(is_done(pin!(all.over(other))), "another file");
        assert!(all.begin(one).is_none() && all.begin(one).is_none());
        let mut later = pin!(all.over(one));
        assert!(!is_done(later.as_mut()));
        told.notify_all();
        assert!(!is_done(work.as_mut()) && !is_done(later.as_mut()), "it has changed since");
        assert!(is_done(reader.as_mut()), "what it asked about is forgotten");
        told.notify_all();
        assert!(is_done(work.as_mut()) && turns.get() == 2);
        drop(work);
        assert!(is_done(later.as_mut()) && !all.is_under_way(one));
        drop(all.begin(one).expect("given up").work(async || ()));
        assert!(!all.is_under_way(one));
    }
}
