//! What meta calls this mount for: to forget what other clients have changed, and to say what is open.
//!
//! The kernel is told through FUSE notifications. They are sent from a helper thread ([`glowfs_fuse::Session`]) and never while a
//! request of that inode holds anything of ours, because the kernel may keep one waiting until we have answered a read of the same page.

use crate::daemon::Daemon;
use crate::filesystem::FileSystem;
use crate::moves::{Follow, Place};
use glowfs_client::RecallHandler;
use glowfs_fuse::Session;
use glowfs_rt::sync::join_all;
use glowfs_rt::{BoxFuture, Duration};
use glowfs_types::wire::meta::Recall;
use glowfs_types::{InodeId, RequestId, Result, Status};
use std::future::Future;
use std::io;
use std::rc::{Rc, Weak};

/// A kernel that does not know an inode of which it may just be hearing is told again after this time, which doubles up to the other one.
const INTRODUCED_PAUSE: Duration = Duration::from_micros(250);
const INTRODUCED_PAUSE_MAX: Duration = Duration::from_millis(64);

/// See the module. Weak: the client that holds this is held by the daemon.
pub struct Recalls<S: FileSystem> {
    daemon: Weak<Daemon<S>>,
}

impl<S: FileSystem> Recalls<S> {
    /// Of a mount.
    pub fn new(daemon: &Rc<Daemon<S>>) -> Rc<Self> {
        Rc::new(Self { daemon: Rc::downgrade(daemon) })
    }
}

impl<S: FileSystem> RecallHandler for Recalls<S> {
    fn recall(&self, recall: Recall) -> BoxFuture<()> {
        let daemon = self.daemon.upgrade();
        let session = daemon.as_ref().and_then(|d| d.session.borrow().upgrade());
        let (Some(daemon), Some(session)) = (daemon, session) else {
            return Box::pin(async {});
        };
        if let Some(name) = recall.name {
            return Box::pin(forget_name(daemon, session, (recall.inode, name.to_vec())));
        }
        // At once: from here on no answer that is on its way may be kept, and nothing is taken from what is known.
        let known = daemon.inodes.recalled(recall.inode, recall.data);
        daemon.directories.recalled(recall.inode);
        let mut cut = None;
        if let Some(epoch) = recall.epoch
            && let Some(open) = daemon.inodes.opened(recall.inode)
        {
            open.back().note_cut(epoch);
            cut = Some(open.cut_pages.begin());
        }
        Box::pin(async move {
            if !known {
                return;
            }
            // Negative: only the attributes.
            let from = if recall.data { 0 } else { -1 };
            let mut pause = INTRODUCED_PAUSE;
            loop {
                let (session, cut) = (session.clone(), cut.take());
                // Also when nobody waits for that any more the pages come, and are from before the cut.
                let told = daemon.rt.spawn(async move {
                    let told = session.notify_inval_inode(recall.inode.0, from, 0).await;
                    drop(cut);
                    told
                });
                if forgotten(&daemon, recall.inode, told).await {
                    return;
                }
                // An answer that tells the kernel of the inode may be on its way to whoever looked it up, or listed it.
                let (now, end) = (daemon.rt.now(), daemon.inodes.introduced(recall.inode));
                if now >= end {
                    return;
                }
                daemon.rt.sleep_until(end.min(now + pause)).await;
                pause = (pause * 2).min(INTRODUCED_PAUSE_MAX);
            }
        })
    }

    fn give_append(&self, inode: InodeId, grant: RequestId) -> BoxFuture<Result<()>> {
        match self.daemon.upgrade() {
            Some(daemon) => Box::pin(daemon.give_append(inode, grant)),
            None => Box::pin(async { Err(Status::ShuttingDown.into()) }),
        }
    }

    fn in_use(&self, inode: InodeId) -> bool {
        self.daemon.upgrade().is_some_and(|d| d.inodes.opened(inode).is_some())
    }
}

/// Has the kernel forget a name, and what it has taken along from there to other names.
async fn forget_name<S: FileSystem>(daemon: Rc<Daemon<S>>, session: Rc<Session>, place: Place) {
    let until = daemon.rt.now() + daemon.longest_lease.get();
    let forget = async |(dir, name): &Place| {
        forgotten(&daemon, *dir, session.notify_inval_entry(dir.0, name)).await;
    };
    loop {
        let begun = daemon.moves.begun();
        // A rename of ours in that directory is through the kernel when this returns, or nothing is leased any more.
        forget(&place).await;
        let mut places = match daemon.moves.follow(&place, daemon.rt.now(), until) {
            Follow::Names(names) => names,
            Follow::Until(end) => return daemon.rt.sleep_until(end).await,
        };
        join_all(places.iter().map(forget)).await;
        places.push(place.clone());
        if daemon.rt.now() >= until || !daemon.moves.went_on(&places, begun) {
            return;
        }
    }
}

/// Waits until the kernel has forgotten something of an inode. False: it did not know it.
async fn forgotten<S: FileSystem>(
    daemon: &Daemon<S>,
    inode: InodeId,
    told: impl Future<Output = io::Result<bool>>,
) -> bool {
    match daemon.rt.timeout(daemon.longest_lease.get(), told).await {
        Ok(Ok(known)) => return known,
        Ok(Err(e)) => {
            tracing::warn!(%inode, error = %e, "the kernel cannot be told to forget")
        }
        // It waits for a page that we are reading, or for a change in the same directory; its lease has ended by now, so it asks before
        // it uses another one.
        Err(_) => tracing::debug!(%inode, "the kernel takes long to forget"),
    }
    true
}
