//! Files that are being opened: before there is an [`crate::OpenFile`] of a file, IN_USE must know of it already.

use glowfs_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// OPENs and MAKEs of this client that are not answered yet.
#[derive(Default)]
pub(crate) struct Opens {
    by_inode: RefCell<BTreeMap<InodeId, u32>>,
    unnamed: Cell<u32>,
}

/// One of them; it ends when this is dropped.
pub(crate) struct Opening<'a> {
    opens: &'a Opens,
    inode: Option<InodeId>,
}

impl Opens {
    /// A file is being opened.
    pub fn begin(&self, inode: InodeId) -> Opening<'_> {
        *self.by_inode.borrow_mut().entry(inode).or_insert(0) += 1;
        Opening { opens: self, inode: Some(inode) }
    }
    /// A file is being made and opened without a session; which one it is, only the answer says.
    pub fn begin_unnamed(&self) -> Opening<'_> {
        self.unnamed.set(self.unnamed.get() + 1);
        Opening { opens: self, inode: None }
    }
    /// Whether the file is being opened.
    pub fn has(&self, inode: InodeId) -> bool {
        self.by_inode.borrow().contains_key(&inode)
    }
    /// Whether some file is being opened of which it is not known which one it is.
    pub fn has_unnamed(&self) -> bool {
        self.unnamed.get() > 0
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let Some(inode) = self.inode else {
            return self.opens.unnamed.set(self.opens.unnamed.get().saturating_sub(1));
        };
        let mut all = self.opens.by_inode.borrow_mut();
        if let Some(n) = all.get_mut(&inode) {
            *n -= 1;
            if *n == 0 {
                all.remove(&inode);
            }
        }
    }
}
