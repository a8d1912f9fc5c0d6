//! [`Astray`]: renames that meet a directory which the kernel still has under a name that another client has taken from it.
//!
//! A rename between two directories looks its names up while it holds the kernel's lock of renames, and with that the kernel cannot take a directory's entry
//! along from where it had it ([`crate::places`]): the look-up ends with ESTALE. The kernel then begins the rename anew, once, looking up the whole path.
//! So a thread that was told of a directory in another place than before is remembered for a moment, and when it looks something up again, the kernel is made to
//! forget the old names first. Most such threads only looked, the kernel has taken the entry along, and there is nothing left to forget.
//!
//! To forget a name takes the lock of the directory that it was in. Who looks up may hold that lock, or one for which somebody waits who holds it: so he waits
//! for a bounded time, and for no name in the directory in which he looks. What somebody has open, or something in it, keeps its entry whatever is forgotten.

use crate::daemon::{Context, Daemon};
use crate::filesystem::FileSystem;
use crate::moves::Place;
use glowfs_fuse::abi;
use glowfs_rt::sync::{Notify, join_all};
use glowfs_rt::{Duration, Instant};
use glowfs_types::InodeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long a look-up waits for the kernel to forget.
const PATIENCE: Duration = Duration::from_millis(50);
/// The kernel begins anew within this.
const MOMENT: Duration = Duration::from_secs(1);
/// Threads that are remembered.
const THREADS_MAX: usize = 1024;

/// A directory, and where the kernel may have it.
type Doubt = (InodeId, Place);

/// A thread that was told of such a directory.
struct Thread {
    until: Instant,
    doubts: Vec<Doubt>,
}

/// See the module.
#[derive(Default)]
pub struct Astray {
    /// By their numbers. Those that the daemon cannot see are all 0.
    threads: RefCell<BTreeMap<u32, Thread>>,
    /// Names that are being forgotten.
    under_way: RefCell<BTreeMap<Place, Rc<Notify>>>,
}

impl Astray {
    /// Remembers what a thread was told. False: it, or too many others, were told so a moment ago.
    fn remember(&self, thread: u32, doubts: &[Doubt], now: Instant) -> bool {
        let mut threads = self.threads.borrow_mut();
        threads.retain(|_, t| t.until > now);
        if threads.len() >= THREADS_MAX || threads.contains_key(&thread) {
            return false;
        }
        threads.insert(thread, Thread { until: now + MOMENT, doubts: doubts.to_vec() });
        true
    }
    /// What the kernel has to forget before the thread looks something up.
    fn take(&self, thread: u32, now: Instant) -> Vec<Doubt> {
        let mut threads = self.threads.borrow_mut();
        match threads.get_mut(&thread) {
            Some(t) if t.until > now => std::mem::take(&mut t.doubts),
            _ => {
                threads.remove(&thread);
                Vec::new()
            }
        }
    }
    /// The thread has found what it looked for. What it was told counts on ([`crate::places`]).
    pub fn found(&self, thread: u32) {
        self.threads.borrow_mut().remove(&thread);
    }
    /// Whether there is any such thread.
    fn is_empty(&self) -> bool {
        self.threads.borrow().is_empty()
    }
}

impl<S: FileSystem> Context<S> {
    /// A name is about to be looked up.
    pub(crate) async fn before_look(&self, name: &[u8]) {
        if self.astray.is_empty() {
            return;
        }
        let mut doubts = self.astray.take(self.header.pid, self.rt.now());
        // What the kernel has there it is about to be told, and what it was told it must not forget afterwards.
        doubts.retain(|(_, place)| place.0.0 != self.header.node || place.1 != name);
        if !doubts.is_empty() {
            Box::pin(self.forget_doubts(&doubts)).await;
        }
    }

    /// The kernel is about to be told by this look-up that a directory is there.
    pub(crate) async fn told_of_directory(&self, name: &[u8], entry: &mut abi::EntryOut) {
        let (inode, parent) = (InodeId(entry.nodeid), InodeId(self.header.node));
        let places = self.inodes.places.tell(inode, parent, name);
        if places.is_empty() {
            return;
        }
        let doubts: Vec<Doubt> = places.into_iter().map(|p| (inode, p)).collect();
        if self.astray.remember(self.header.pid, &doubts, self.rt.now()) {
            return;
        }
        // The rename that was begun anew has another such name, and there is no third time.
        Box::pin(self.forget_doubts(&doubts)).await;
        // Nobody knows what was recalled meanwhile.
        (entry.entry_valid, entry.entry_valid_nsec) = (0, 0);
        (entry.attr_valid, entry.attr_valid_nsec) = (0, 0);
    }

    /// Has the kernel forget, and waits for it as long as that does no harm.
    async fn forget_doubts(&self, doubts: &[Doubt]) {
        let (here, others): (Vec<&Doubt>, Vec<&Doubt>) =
            doubts.iter().partition(|(_, place)| place.0.0 == self.header.node);
        here.into_iter().for_each(|d| drop(self.begin_to_forget(d)));
        let over: Vec<Rc<Notify>> =
            others.into_iter().filter_map(|d| self.begin_to_forget(d)).collect();
        let all = join_all(over.iter().map(async |over| over.wait().await));
        if self.rt.timeout(PATIENCE, all).await.is_err() {
            tracing::debug!(?doubts, "the kernel takes long to forget where it had directories");
        }
    }
}

impl<S: FileSystem> Daemon<S> {
    /// What tells when it is over. None: it need not be told, for something else is there meanwhile, or cannot be told any more.
    fn begin_to_forget(&self, (inode, place): &Doubt) -> Option<Rc<Notify>> {
        if !self.inodes.places.may_be(*inode, place) {
            return None;
        }
        let (daemon, session) = (self.this.upgrade()?, self.session.borrow().upgrade()?);
        if let Some(over) = self.astray.under_way.borrow().get(place) {
            return Some(over.clone());
        }
        let over = Rc::<Notify>::default();
        self.astray.under_way.borrow_mut().insert(place.clone(), over.clone());
        let (inode, place, told) = (*inode, place.clone(), over.clone());
        self.rt.spawn_detached(async move {
            match session.notify_inval_entry(place.0.0, &place.1).await {
                Ok(_) => daemon.inodes.places.left(inode, &place),
                Err(error) => tracing::warn!(%inode, %error, "the kernel cannot be told to forget"),
            }
            daemon.astray.under_way.borrow_mut().remove(&place);
            told.notify_all();
        });
        Some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_remembered_for_a_moment_and_not_too_many() {
        let (all, now) = (Astray::default(), Instant(5));
        let doubts = [(InodeId(3), (InodeId(1), b"x".to_vec()))];
        assert!(all.is_empty() && all.take(7, now).is_empty());
        assert!(all.remember(7, &doubts, now));
        assert!(!all.remember(7, &doubts, now), "it begins anew");
        assert_eq!(all.take(7, now), doubts);
        assert!(all.take(7, now).is_empty(), "once");
        let later = now + MOMENT;
        assert!(all.remember(7, &doubts, later));
        assert!(all.take(7, later + MOMENT).is_empty(), "too late");
        assert!(all.remember(7, &doubts, later));
        all.found(7);
        assert!(all.remember(7, &doubts, later), "another rename");
        for thread in 0..2 * THREADS_MAX as u32 {
            all.remember(thread, &doubts, later);
        }
        assert_eq!(all.threads.borrow().len(), THREADS_MAX);
    }
}
