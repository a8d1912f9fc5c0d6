//! What other clients do meanwhile, as the switches say, and what this one is asked for then.

use super::{Node, RamFs, SLOW};
use crate::ram::switches::*;
use glowfs_rt::Duration;
use glowfs_types::wire::meta::*;
use glowfs_types::{Result, Status, VolumeId};
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl RamFs {
    /// What another client does.
    pub(super) fn exchange_with_other(&self, q: &Rename) -> Result<()> {
        let (caller, request, parent, name) =
            (q.caller.clone(), q.request, q.parent, q.name.clone());
        let (new_parent, new_name, flags) = (parent, b"other".to_vec().into(), 2);
        let exchange = Rename { caller, request, parent, name, new_parent, new_name, flags };
        self.move_name(&exchange)?;
        let listener = self.listener.borrow().clone().ok_or(Status::Internal)?;
        let (volume, name) = (q.caller.volume, Some(q.name.clone()));
        let recall = Recall { volume, inode: parent, name, epoch: None, data: false, append: None };
        self.rt.spawn_detached(async move { listener.recall(recall).await });
        Ok(())
    }
    /// The same, to the length of a file that is being written.
    pub(super) fn cut_by_other(self: &Rc<Self>, n: &Rc<Node>, len: u64) -> Result<()> {
        self.cut(n, len);
        let attr = self.change(n, |_| ());
        let listener = self.listener.borrow().clone().ok_or(Status::Internal)?;
        let (inode, epoch) = (attr.inode, Some(attr.epoch));
        let recall =
            Recall { volume: VolumeId(1), inode, name: None, epoch, data: true, append: None };
        let late = CUT_TOLD_LATE.swap(false, Relaxed);
        if !late {
            self.rt.spawn_detached(listener.recall(recall.clone()));
        }
        if late || CUT_TOLD_AGAIN.swap(false, Relaxed) {
            let rt = self.rt.clone();
            self.rt.spawn_detached(async move {
                rt.sleep(SLOW).await;
                listener.recall(recall).await;
            });
        }
        if let Some(len) = LONG_AGAIN.swap(0, Relaxed).checked_sub(1) {
            let (fs, n) = (self.clone(), n.clone());
            self.rt.spawn_detached(async move {
                fs.rt.sleep(SLOW).await;
                _ = fs.cut_by_other(&n, len);
            });
        }
        Ok(())
    }
    fn lengthen(&self, n: &Node, len: u64) -> Attr {
        let from = n.attr.borrow().len;
        n.content.borrow().write(from, &vec![b'o'; len.saturating_sub(from) as usize]);
        self.change(n, |a| a.len = a.len.max(len))
    }
    /// What another client writes behind the end of a file of which this one has no lease.
    pub(super) fn made_longer_unseen(&self, n: &Node) {
        let to = LONGER_UNSEEN.load(Relaxed).checked_sub(1);
        let fits =
            |len: &u64| n.attr.borrow().kind == InodeKind::File && n.attr.borrow().len < *len;
        if let Some(len) = to.filter(fits) {
            LONGER_UNSEEN.store(0, Relaxed);
            self.lengthen(n, len);
        }
    }
    /// What another client writes behind the end.
    pub(super) fn made_longer_by_other(&self, n: &Node, len: u64) -> Result<()> {
        let attr = self.lengthen(n, len);
        let listener = self.listener.borrow().clone().ok_or(Status::Internal)?;
        let (volume, inode) = (VolumeId(1), attr.inode);
        let recall = Recall { volume, inode, name: None, epoch: None, data: true, append: None };
        self.rt.spawn_detached(listener.recall(recall));
        Ok(())
    }
    /// What another client gives a file that is to be run.
    pub(super) fn capability_given(&self, n: &Node) -> Result<()> {
        n.xattrs.borrow_mut().insert(b"security.capability".to_vec(), vec![0; 20]);
        let inode = self.change(n, |_| ()).inode;
        let listener = self.listener.borrow().clone().ok_or(Status::Internal)?;
        let volume = VolumeId(1);
        let recall = Recall { volume, inode, name: None, epoch: None, data: false, append: None };
        self.rt.spawn_detached(listener.recall(recall));
        Ok(())
    }
    pub(super) fn want_right(&self, n: &Node) -> Result<()> {
        let listener = self.listener.borrow().clone().ok_or(Status::Internal)?;
        let given = *LAST_RIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        let (grant, _) = given.ok_or(Status::Internal)?;
        let asked = listener.give_append(n.attr.borrow().inode, grant);
        self.rt.spawn_detached(async move { _ = asked.await });
        Ok(())
    }
    /// Another client cuts a file, and takes a while.
    pub(super) fn cut_slowly(&self, n: &Rc<Node>, len: u64) {
        self.cut(n, len);
        self.change(n, |_| ());
        n.cutting.set(true);
        let (rt, n) = (self.rt.clone(), n.clone());
        self.rt.spawn_detached(async move {
            rt.sleep(SLOW).await;
            let mut a = n.attr.borrow_mut();
            (a.epoch, a.change) = (a.epoch.next(), a.change + 1);
            n.cutting.set(false);
        });
    }
    /// Returns when no cut is unfinished.
    pub(super) async fn cut_over(&self, n: &Node) {
        while n.cutting.get() {
            self.rt.sleep(Duration::from_millis(1)).await;
        }
    }
}
