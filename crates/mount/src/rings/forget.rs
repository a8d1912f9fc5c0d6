//! [`Forgetting`]: what the kernel was given of a file is forgotten around a ring's write, which it does not see.
//!
//! One write may have begun what also concerns another one: whoever finds nothing left to be forgotten waits for the one who has begun last.

use crate::daemon::Context;
use crate::filesystem::FileSystem;
use glowfs_rt::sync::Notify;
use glowfs_types::InodeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

/// Where the kernel is forgetting; at most one entry for each operation of a ring.
#[derive(Default)]
pub(super) struct Forgetting {
    /// What was begun last for an inode, and tells when it ends.
    under_way: RefCell<BTreeMap<InodeId, Rc<Notify>>>,
}

/// Somebody has the kernel forget.
struct Begun<'a> {
    all: &'a Forgetting,
    inode: InodeId,
    ended: Rc<Notify>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut under_way = self.all.under_way.borrow_mut();
        if under_way.get(&self.inode).is_some_and(|last| Rc::ptr_eq(last, &self.ended)) {
            under_way.remove(&self.inode);
        }
        self.ended.notify_all();
    }
}

impl Forgetting {
    fn begin(&self, inode: InodeId) -> Begun<'_> {
        let ended = Rc::new(Notify::new());
        self.under_way.borrow_mut().insert(inode, ended.clone());
        Begun { all: self, inode, ended }
    }
    /// Returns when the kernel has nothing of the inode that it was given before. `given`: whether it was given something since it was told last;
    /// `tell` has it forget all it has.
    async fn forget<F: Future>(&self, inode: InodeId, given: bool, tell: impl FnOnce() -> F) {
        if given {
            let _begun = self.begin(inode);
            tell().await;
            return;
        }
        let last = self.under_way.borrow().get(&inode).cloned();
        if let Some(ended) = last {
            ended.wait().await;
        }
    }
}

/// The kernel forgets what it was given of an inode. What a program has stored into a mapping it writes first.
pub(super) async fn forget<S: FileSystem>(context: &Context<S>, inode: InodeId) {
    let given = context.inodes.take_kept(inode);
    let tell = async || {
        let session = context.session.borrow().upgrade();
        if let Some(session) = session
            && let Err(e) = session.notify_inval_inode(inode.0, 0, 0).await
        {
            tracing::debug!(%inode, error = %e, "the kernel was not told to forget");
        }
    };
    context.rings.forgetting.forget(inode, given, tell).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Poll, Waker};

    fn is_done<F: Future>(f: Pin<&mut F>) -> bool {
        let mut cx = std::task::Context::from_waker(Waker::noop());
        matches!(f.poll(&mut cx), Poll::Ready(_))
    }

    #[test]
    fn whoever_finds_nothing_to_forget_waits_for_who_has_begun() {
        let (all, told) = (Forgetting::default(), [Notify::new(), Notify::new()]);
        let (one, other) = (InodeId(1), InodeId(2));
        let tell = |i: usize| told[i].wait();
        let nobody = || std::future::pending::<()>();
        let mut first = pin!(all.forget(one, true, || tell(0)));
        assert!(!is_done(first.as_mut()));
        let mut beside = pin!(all.forget(one, false, nobody));
        assert!(!is_done(beside.as_mut()));
        assert!(is_done(pin!(all.forget(other, false, nobody))), "another file");
        // Pages were given meanwhile: these are forgotten by who comes next.
        let mut second = pin!(all.forget(one, true, || tell(1)));
        assert!(!is_done(second.as_mut()));
        let mut last = pin!(all.forget(one, false, nobody));
        assert!(!is_done(last.as_mut()));
        told[0].notify_all();
        assert!(is_done(first.as_mut()) && is_done(beside.as_mut()));
        assert!(!is_done(last.as_mut()), "it waits for the second");
        told[1].notify_all();
        assert!(is_done(second.as_mut()) && is_done(last.as_mut()));
        assert!(all.under_way.borrow().is_empty());
    }

    #[test]
    fn who_gives_up_lets_the_others_go() {
        let all = Forgetting::default();
        let inode = InodeId(1);
        let mut first = Box::pin(all.forget(inode, true, std::future::pending::<()>));
        assert!(!is_done(first.as_mut()));
        let mut beside = pin!(all.forget(inode, false, std::future::pending::<()>));
        assert!(!is_done(beside.as_mut()));
        drop(first);
        assert!(is_done(beside.as_mut()) && all.under_way.borrow().is_empty());
    }
}
