//! The disks: opening or formatting their stores, and what it means for the node that one fails.
//!
//! A disk may hang: what it was asked is never answered, not even with an error; or some of it is not, as flushes (`operation_stuck_ms`). Guarantee: when it is found to (`disk_stuck_ms`),
//! whoever waits for an update is answered, and nothing of the node is held for it but memory. Must never: answer a read that hangs, for the device may still write into the
//! caller's memory; take a disk out for what waits for it in a queue of ours.

use crate::node::Node;
use crate::service::register;
use glowfs_chunkstore::{Store, StoreConfig};
use glowfs_craq::Event;
use glowfs_rt::{Dir, Duration, Instant, Rt};
use glowfs_types::wire::mgmtd::RefusedStore;
use glowfs_types::{Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

/// The time between two looks at what a disk has under way. A process that was stopped for however long counts one of them.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// One configured directory.
pub(crate) struct Disk {
    pub index: u32,
    pub path: String,
    /// The store, or why there is none. Another one when the disk was replaced ([`crate::take_up`]).
    store: RefCell<Result<Store>>,
    /// It is being taken up.
    pub taking: Cell<bool>,
}

impl Disk {
    /// Opens one. Errors that only an operator can resolve (a directory of another cluster, a newer format, one in use) end the
    /// start; a disk that fails is kept as failed.
    pub async fn open(rt: &Rt, index: u32, path: &Path, config: StoreConfig) -> Result<Disk> {
        let shown = path.display().to_string();
        let store = match rt.open_dir(path) {
            Ok(dir) => Store::open(rt, dir, config).await,
            Err(e) => Err(Error::from(e)),
        };
        let store = store.map_err(|e| e.context(format_args!("disk {shown}")));
        match &store {
            Ok(s) => {
                tracing::info!(disk = shown, store = %s.id(), clean = s.was_clean(), "store opened")
            }
            Err(e) if is_operators(e.status) => return Err(e.clone()),
            Err(e) => {
                tracing::error!(disk = shown, error = %e, "disk failed; its targets stay offline")
            }
        }
        Ok(Disk { index, path: shown, store: RefCell::new(store), taking: Cell::new(false) })
    }
    /// The store, or why there is none.
    pub fn store(&self) -> Result<Store> {
        self.store.borrow().clone()
    }
    /// From now on it has this store, or none for this reason.
    pub fn set(&self, store: Result<Store>) {
        drop(self.store.replace(store));
    }
    /// What is wrong with it, if anything.
    pub fn problem(&self) -> Option<Error> {
        match &*self.store.borrow() {
            Ok(store) => store.failure(),
            Err(e) => Some(e.clone()),
        }
    }
}

/// A store that is refused after it was opened must not look as if it had crashed: one that was clean is closed cleanly.
pub(crate) async fn close_untouched(store: &Store) {
    if store.was_clean()
        && let Err(error) = store.close().await
    {
        tracing::warn!(%error, "a disk could not be closed");
    }
}

impl Node {
    /// Follows the health of a disk's store, as long as it has that one.
    pub(crate) fn watch_store(self: &Rc<Self>, disk: &Disk, store: &Store) {
        let flushes = self.metrics.disk_flushes.clone();
        store.on_flush(move || flushes.inc());
        let (me, failing, path) = (self.clone(), store.clone(), disk.path.clone());
        self.rt.spawn_detached(async move {
            let e = failing.failed().await;
            tracing::error!(disk = path, error = %e, "disk failed; its targets go offline");
            me.store_failed(&failing);
            me.report();
            if let Some(agent) = me.agent() {
                // Nothing is to be placed there.
                register(me.clone(), agent.clone()).await;
            }
        });
        self.rt.spawn_detached(self.clone().check_disk(store.clone(), disk.path.clone()));
        self.rt.spawn_detached(self.clone().check_operations(store.clone()));
        self.rt.spawn_detached(self.clone().scrub_disk(store.clone()));
    }

    /// Takes stores that belong to other nodes out of service, cleanly: where they belong they are to be found as they were.
    pub(crate) async fn refuse(&self, refused: Vec<RefusedStore>) {
        for r in refused {
            let mut open = self.disks.iter().filter_map(|d| d.store().ok());
            if let Some(store) = open.find(|s| s.id() == r.store && s.failure().is_none()) {
                close_untouched(&store).await;
                store.fail(&r.why);
            }
        }
    }

    /// Ends what the rest of the node would wait for: what a failed store was asked may never end.
    pub(crate) fn store_failed(&self, store: &Store) {
        self.admission.write_off(store);
        for target in self.all_targets() {
            if target.store.id() == store.id() && target.store.failure().is_some() {
                target.feed(Event::DiskFailed);
            }
        }
    }

    /// Checks a disk now and then: whether it is there, takes writes, and does so in time.
    async fn check_disk(self: Rc<Self>, store: Store, path: String) {
        let Some(beside) = self.open_again(&store, Path::new(&path)).await else { return };
        let period = Duration::from_millis(self.config.disk_check_ms);
        let stuck = Duration::from_millis(self.config.disk_stuck_ms);
        while !self.stopping.get() && store.failure().is_none() {
            self.rt.sleep(period).await;
            // A failed check takes the store out of service by itself.
            if !self.stopping.get() && self.rt.timeout(stuck, store.probe(&beside)).await.is_err() {
                store.fail(&format!("did nothing for {stuck:?}"));
            }
        }
    }

    /// Opens the directory of a store once more, for its check; None when there is nothing to check any more. Having no descriptor is no fault of the disk, and passes.
    async fn open_again(&self, store: &Store, path: &Path) -> Option<Dir> {
        while !self.stopping.get() && store.failure().is_none() {
            match self.rt.open_dir(path) {
                Ok(beside) => return Some(beside),
                Err(error) if glowfs_rt::process::lacks_descriptors(&error) => {
                    let disk = path.display();
                    tracing::error!(%disk, %error, "the check of the disk waits for a descriptor; raise the limit of them, or end connections");
                    self.rt.sleep(Duration::from_millis(self.config.disk_check_ms)).await;
                }
                Err(e) => store.fail(&format!("its directory could not be opened again: {e}")),
            }
        }
        None
    }

    /// Watches how long a disk is at one and the same operation. What passes the check may hang otherwise: a disk may read and write, and end no flush any more, or write only where something is
    /// already; then its log fills up, or is not written, and nothing is written to any chain that has a member there.
    async fn check_operations(self: Rc<Self>, store: Store) {
        let stuck = Duration::from_millis(self.config.operation_stuck_ms);
        let mut oldest = OldestSeen::default();
        while !self.stopping.get() && store.failure().is_none() {
            self.rt.sleep(LOOK_PAUSE).await;
            if !self.stopping.get() && oldest.look(store.under_way_since(), LOOK_PAUSE) >= stuck {
                store.fail(&format!("an operation did not end within {stuck:?}"));
            }
        }
    }
}

/// The oldest operation that was seen under way. Counted is by looks and not by the clock, since a process that was stopped finds what is long done.
#[derive(Default)]
struct OldestSeen {
    began: Option<Instant>,
    lasts: Duration,
}

impl OldestSeen {
    /// One look, that time after the one before; how long the operation has been seen that is the oldest.
    fn look(&mut self, began: Option<Instant>, after: Duration) -> Duration {
        let same = began.is_some() && began == self.began;
        *self = Self { began, lasts: if same { self.lasts + after } else { Duration::ZERO } };
        self.lasts
    }
}

/// Whether starting without the disk would hide a mistake.
fn is_operators(status: Status) -> bool {
    matches!(
        status,
        Status::WrongCluster
            | Status::NewerFormat
            | Status::Busy
            | Status::InvalidArgument
            | Status::Exists
            | Status::NotEmpty
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_and_the_same_operation_is_counted() {
        let (mut seen, second) = (OldestSeen::default(), Duration::from_secs(1));
        let mut look = |began: Option<u64>| seen.look(began.map(Instant), second).as_secs();
        assert_eq!([None, None, Some(5), Some(5), Some(5)].map(&mut look), [0, 0, 0, 1, 2]);
        assert_eq!([Some(6), Some(6), None, Some(6)].map(&mut look), [0, 1, 0, 0]);
    }
}
