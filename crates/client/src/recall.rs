//! Calls that meta makes to a client: RECALL and IN_USE.

use crate::core::Core;
use glowfs_net::{Handler, Incoming};
use glowfs_rt::Rt;
use glowfs_types::wire::meta::{IN_USE_MAX, InUse, InUseReply, Recall};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{Error, InodeId, Result, Status};
use std::rc::{Rc, Weak};

struct Calls {
    rt: Rt,
    core: Weak<Core>,
}

/// Serves the calls of peers over our connections.
pub(crate) fn handler(rt: &Rt, core: Weak<Core>) -> Rc<dyn Handler> {
    Rc::new(Calls { rt: rt.clone(), core })
}

impl Calls {
    fn in_use(&self, q: &InUse) -> Result<InUseReply> {
        let core = self.core.upgrade().ok_or(Status::ShuttingDown)?;
        if q.inodes.len() > IN_USE_MAX {
            return Err(Error::new(Status::BadMessage, format!("{} inodes", q.inodes.len())));
        }
        if core.opens.has_unnamed() {
            let e = "a file is being made and opened; ask again";
            return Err(Error::new(Status::Busy, e));
        }
        let handler = core.recall.borrow().clone();
        let used = |i: &InodeId| {
            core.files.has(*i)
                || core.opens.has(*i)
                || handler.as_ref().is_some_and(|h| h.in_use(*i))
        };
        Ok(InUseReply { open: q.inodes.iter().copied().filter(used).collect() })
    }
}

impl Handler for Calls {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let called = incoming.method();
        if called == method::IN_USE {
            let answer = incoming.msg().and_then(|q: InUse| self.in_use(&q));
            return incoming.reply_msg(answer);
        }
        if called != method::RECALL {
            return incoming.reply(Err(Error::new(
                Status::UnknownMethod,
                format!("method {called} is not served by a client"),
            )));
        }
        // Only services of the cluster may recall; we connected to them by the addresses that mgmtd gave us.
        let recall: Recall = match incoming.msg() {
            Ok(r) => r,
            Err(e) => return incoming.reply(Err(e)),
        };
        let Some(core) = self.core.upgrade() else {
            return incoming.reply(Err(Status::ShuttingDown.into()));
        };
        self.rt.spawn_detached(async move {
            let bound = incoming.deadline().since(core.rt.now()).min(core.config.meta_attempt);
            let result = serve(&core, recall, bound).await;
            incoming.reply_msg(result.map(|()| Empty {}));
        });
    }
}

/// Stops using what is recalled, waits for what is on its way, and tells the mount. An error means that the old capability may
/// still be in use, so meta must wait for its end.
async fn serve(core: &Rc<Core>, recall: Recall, bound: glowfs_rt::Duration) -> Result<()> {
    let inode = recall.inode;
    core.files.changing(inode);
    let handler = core.recall.borrow().clone();
    let (epoch, append) = (recall.epoch, recall.append);
    // It knows at once, also if what is on its way does not end in time: nothing may be sent later as if nobody had cut the file.
    let told = handler.as_ref().filter(|_| append.is_none()).map(|h| h.recall(recall));
    if let Some(epoch) = epoch {
        core.opens.recalled(inode, epoch);
        let drained = core.rt.timeout(bound, core.files.recalled(inode, epoch)).await;
        if drained.is_err() {
            // The kernel is told all the same.
            told.into_iter().for_each(|told| core.rt.spawn_detached(told));
            return Err(Error::new(
                Status::Busy,
                format!("writes to inode {inode} under its old capability are still on their way"),
            ));
        }
    }
    if let Some(grant) = append {
        let Some(h) = handler else { return Err(Status::NotSupported.into()) };
        let late = || Error::new(Status::Busy, "appends are still on their way");
        let given = core.rt.timeout(bound, h.give_append(inode, grant)).await;
        return given.unwrap_or_else(|_| Err(late()));
    }
    if let Some(told) = told {
        told.await;
    }
    Ok(())
}
