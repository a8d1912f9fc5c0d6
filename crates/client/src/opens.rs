//! Files that are being opened. Before there is an [`crate::OpenFile`] of a file, IN_USE must know of it already, and a recall that comes
//! before the answer, as it can, must not be forgotten: the answer brings what was recalled.

use glowfs_types::wire::meta::OpenReply;
use glowfs_types::{InodeId, TruncateEpoch};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// OPENs and MAKEs of this client that are not answered yet.
#[derive(Default)]
pub(crate) struct Opens {
    by_inode: RefCell<BTreeMap<InodeId, u32>>,
    unnamed: Cell<u32>,
    /// Their numbers, which grow.
    running: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    /// What was recalled while some of them ran: the epoch from which on capabilities are good, and the number of the next one to begin.
    recalled: RefCell<BTreeMap<InodeId, (TruncateEpoch, u64)>>,
}

/// Which file is being opened, as far as IN_USE has to know.
enum Which {
    Inode(InodeId),
    Unnamed,
    /// Meta knows by itself that it is open.
    Known,
}

/// One of them; it ends when this is dropped.
pub(crate) struct Opening<'a> {
    opens: &'a Opens,
    which: Which,
    number: u64,
}

impl Opens {
    /// A file is being opened.
    pub fn begin(&self, inode: InodeId) -> Opening<'_> {
        *self.by_inode.borrow_mut().entry(inode).or_insert(0) += 1;
        self.run(Which::Inode(inode))
    }
    /// A file is being made and opened without a session; which one it is, only the answer says.
    pub fn begin_unnamed(&self) -> Opening<'_> {
        self.unnamed.set(self.unnamed.get() + 1);
        self.run(Which::Unnamed)
    }
    /// A file is being made and opened with a session.
    pub fn begin_known(&self) -> Opening<'_> {
        self.run(Which::Known)
    }
    fn run(&self, which: Which) -> Opening<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.running.borrow_mut().insert(number);
        Opening { opens: self, which, number }
    }
    /// Whether the file is being opened.
    pub fn has(&self, inode: InodeId) -> bool {
        self.by_inode.borrow().contains_key(&inode)
    }
    /// Whether some file is being opened of which it is not known which one it is.
    pub fn has_unnamed(&self) -> bool {
        self.unnamed.get() > 0
    }
    /// Capabilities older than `epoch` are recalled, also those that are on their way here.
    pub fn recalled(&self, inode: InodeId, epoch: TruncateEpoch) {
        if self.running.borrow().is_empty() {
            return;
        }
        let mut recalled = self.recalled.borrow_mut();
        let noted = recalled.entry(inode).or_insert((epoch, 0));
        *noted = (noted.0.max(epoch), self.next.get());
    }
}

impl Opening<'_> {
    /// The answer is here. If a recall was faster, the capability that it brings is not used.
    pub fn answered(&self, reply: &mut OpenReply) {
        let recalled = self.opens.recalled.borrow();
        if recalled.get(&reply.attr.inode).is_some_and(|(epoch, _)| reply.attr.epoch < *epoch) {
            reply.capability_ms = 0;
        }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let opens = self.opens;
        let mut running = opens.running.borrow_mut();
        running.remove(&self.number);
        let mut recalled = opens.recalled.borrow_mut();
        if !recalled.is_empty() {
            // Only those that ran already when it was noted have to know of it.
            let oldest = running.first().copied();
            recalled.retain(|_, (_, next)| oldest.is_some_and(|oldest| oldest < *next));
        }
        match self.which {
            Which::Inode(inode) => {
                let mut all = opens.by_inode.borrow_mut();
                if let Some(n) = all.get_mut(&inode) {
                    *n -= 1;
                    if *n == 0 {
                        all.remove(&inode);
                    }
                }
            }
            Which::Unnamed => opens.unnamed.set(opens.unnamed.get().saturating_sub(1)),
            Which::Known => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of an epoch, and whether its capability may be used.
    fn usable(opening: &Opening<'_>, inode: u64, epoch: u64) -> bool {
        let mut reply = OpenReply {
            attr: Default::default(),
            session: None,
            capability: Vec::new(),
            capability_ms: 1000,
            lease_ms: 0,
            content: None,
        };
        (reply.attr.inode, reply.attr.epoch) = (InodeId(inode), TruncateEpoch(epoch));
        opening.answered(&mut reply);
        reply.capability_ms > 0
    }

    #[test]
    fn a_recall_counts_for_the_opens_that_it_overtakes_and_is_forgotten_with_them() {
        let opens = Opens::default();
        opens.recalled(InodeId(1), TruncateEpoch(9));
        let (first, made) = (opens.begin(InodeId(1)), opens.begin_known());
        assert!(usable(&first, 1, 5), "nobody opened it when it was recalled");
        opens.recalled(InodeId(1), TruncateEpoch(7));
        opens.recalled(InodeId(1), TruncateEpoch(6));
        assert!(!usable(&first, 1, 6) && !usable(&made, 1, 6));
        assert!(usable(&first, 1, 7) && usable(&made, 2, 6));
        drop(first);
        assert!(!opens.has(InodeId(1)));
        let later = opens.begin_unnamed();
        assert!(!usable(&made, 1, 6), "it still runs");
        drop(made);
        assert!(opens.recalled.borrow().is_empty(), "the later one asked after the recall");
        drop(later);
        assert!(opens.running.borrow().is_empty() && !opens.has_unnamed());
    }
}
