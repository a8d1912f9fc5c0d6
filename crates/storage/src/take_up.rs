//! A disk that failed was replaced: what is in its place now is taken up without a restart of the service.
//!
//! Only when an operator says so (`glowfs admin disk replace`): an empty directory may as well be the mount point of a disk that is away, and
//! a store that failed must not be opened again and again. Guarantees: a disk that works is left alone; the old store serves nothing
//! any more before the new one is opened; a store that was known to the cluster comes back as a new life of it. Must never: format what is
//! not empty.

use crate::disk::{Disk, close_untouched};
use crate::node::Node;
use crate::service::register;
use crate::target::Target;
use glowfs_chunkstore::Store;
use glowfs_net::Incoming;
use glowfs_rt::Duration;
use glowfs_types::wire::operate::{TakeDisk, TakeDiskReply};
use glowfs_types::{Error, Result, Status};
use std::path::Path;
use std::rc::Rc;

/// How long mgmtd has to hear of the new store before the call is answered; it is told of it at any rate.
const REGISTER_WAIT: Duration = Duration::from_secs(3);

/// A disk is taken up by one call at a time.
struct Taking<'a>(&'a Disk);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.taking.set(false);
    }
}

impl Node {
    /// TAKE_DISK.
    pub(crate) async fn take_disk(self: &Rc<Self>, incoming: &Incoming) -> Result<TakeDiskReply> {
        let identity = incoming.conn().peer().identity;
        if !identity.admin && !identity.root {
            let e = "only administrators may replace disks; use a token of one";
            return Err(Error::new(Status::AccessDenied, e));
        }
        let ask: TakeDisk = incoming.msg()?;
        let disk = self.disks.iter().find(|d| d.index == ask.disk).ok_or_else(|| {
            let e = format!("node {} has {} disks", self.config.node_id, self.disks.len());
            Error::new(Status::InvalidArgument, e)
        })?;
        if disk.taking.replace(true) {
            return Err(Error::new(Status::Busy, "the disk is being taken up already"));
        }
        let _taking = Taking(disk);
        let taken = disk.problem().is_some();
        if taken {
            self.take_up(disk).await?;
        }
        Ok(TakeDiskReply { store: disk.store()?.id(), taken })
    }

    async fn take_up(self: &Rc<Self>, disk: &Disk) -> Result<()> {
        self.let_go(disk);
        let path = Path::new(&disk.path);
        let opened = Disk::open(&self.rt, disk.index, path, self.config.store()?).await;
        let store = opened.and_then(|d| d.store()).inspect_err(|e| disk.set(Err(e.clone())))?;
        match self.targets_of(disk, &store) {
            Ok(targets) => self.targets.borrow_mut().extend(targets.into_iter().map(|t| (t.id, t))),
            Err(e) => {
                close_untouched(&store).await;
                return Err(e);
            }
        }
        disk.set(Ok(store.clone()));
        self.watch_store(disk, &store);
        tracing::info!(disk = disk.path, store = %store.id(), "disk taken up");
        self.routing_changed(&self.routing());
        if let Some(agent) = self.agent() {
            let told = self.rt.spawn(register(self.clone(), agent.clone()));
            let _ = self.rt.timeout(REGISTER_WAIT, told).await;
        }
        self.report();
        Ok(())
    }

    /// The targets of a store that is to be the disk's: all of them, or none.
    fn targets_of(self: &Rc<Self>, disk: &Disk, store: &Store) -> Result<Vec<Rc<Target>>> {
        let same =
            |d: &Disk| d.index != disk.index && d.store().is_ok_and(|s| s.id() == store.id());
        if self.disks.iter().any(same) {
            let e = format!("{}: this store is that of another disk of the node", disk.path);
            return Err(Error::new(Status::Busy, e));
        }
        store.targets().into_iter().map(|id| Target::open(self, store.clone(), id)).collect()
    }

    /// Gives the failed store up, with its targets: they are reported offline, as those of a disk that could not be opened.
    fn let_go(&self, disk: &Disk) {
        if let Ok(old) = disk.store() {
            let why = disk.problem().unwrap_or_else(|| Status::DiskFailed.into());
            self.store_failed(&old);
            let of_it = |t: &Rc<Target>| t.store.id() == old.id() && t.store.failure().is_some();
            self.targets.borrow_mut().retain(|_, t| !of_it(t));
            disk.set(Err(why));
        }
    }
}
