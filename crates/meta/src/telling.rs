//! Recalls that are on their way.
//!
//! Whoever changes an inode takes the leases of the others, and tells them. Until they have been told they may show what was before, so who
//! changes the same inode meanwhile, and finds no lease any more, is not answered before them either.

use glowfs_rt::sync::Notify;
use glowfs_types::{ClientId, InodeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module.
#[derive(Default)]
pub struct Telling(RefCell<BTreeMap<InodeId, Vec<Rc<Recall>>>>);

/// A client that is being told of an inode.
pub struct Recall {
    client: ClientId,
    over: Cell<bool>,
    news: Notify,
}

impl Recall {
    /// Resolves when the client was told, or has no lease any more.
    pub async fn over(&self) {
        if !self.over.get() {
            self.news.wait().await;
        }
    }
}

/// Somebody tells a client; dropped when that is over.
pub struct Teller<'a> {
    telling: &'a Telling,
    inode: InodeId,
    recall: Rc<Recall>,
}

impl Telling {
    /// Begins to tell a client.
    pub fn begin(&self, inode: InodeId, client: ClientId) -> Teller<'_> {
        let recall = Rc::new(Recall { client, over: Cell::new(false), news: Notify::new() });
        self.0.borrow_mut().entry(inode).or_default().push(recall.clone());
        Teller { telling: self, inode, recall }
    }

    /// What is on its way about an inode, but for what `by` itself is told: that must not wait for its own call.
    pub fn others(&self, inode: InodeId, by: ClientId) -> Vec<Rc<Recall>> {
        let all = self.0.borrow();
        all.get(&inode).into_iter().flatten().filter(|r| r.client != by).cloned().collect()
    }
}

impl Drop for Teller<'_> {
    fn drop(&mut self) {
        let mut all = self.telling.0.borrow_mut();
        if let Some(recalls) = all.get_mut(&self.inode) {
            recalls.retain(|r| !Rc::ptr_eq(r, &self.recall));
            if recalls.is_empty() {
                all.remove(&self.inode);
            }
        }
        drop(all);
        self.recall.over.set(true);
        self.recall.news.notify_all();
    }
}
