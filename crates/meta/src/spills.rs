//! [`Spills`]: contents that are on their way into chunks.
//!
//! Guarantees: one attempt of this service for a file at a time; a storage node that does not answer, and all of them together, hold no more of what
//! meta's other writes need (the channels of its client) than stands here.

use glowfs_rt::sync::{Notify, Permit, Semaphore};
use glowfs_types::{Error, InodeId, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Attempts at a time that write to one node: an eighth of the channels.
const NODE_MAX: usize = 32;
/// Attempts at a time that write: half of the channels.
const ALL_MAX: usize = 128;
/// Attempts that wait until they may write to one node. More are refused, and come again.
const WAITING_MAX: usize = 512;

/// See the module.
pub struct Spills {
    turns: RefCell<BTreeMap<InodeId, Rc<Notify>>>,
    nodes: RefCell<BTreeMap<NodeId, Rc<Node>>>,
    places: Semaphore,
}

/// A storage node that attempts write to, or wait for.
struct Node {
    places: Semaphore,
    /// Attempts of either kind.
    attempts: Cell<usize>,
}

/// The turn of a file's attempt; dropping it lets the others look.
pub struct Turn<'a>(&'a Spills, InodeId);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(done) = self.0.turns.borrow_mut().remove(&self.1) {
            done.notify_all();
        }
    }
}

/// An attempt at a node.
struct Attempt<'a> {
    all: &'a Spills,
    id: NodeId,
    node: Rc<Node>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let left = self.node.attempts.get() - 1;
        self.node.attempts.set(left);
        if left == 0 {
            self.all.nodes.borrow_mut().remove(&self.id);
        }
    }
}

/// The right to write to a node.
pub struct Place<'a> {
    _attempt: Attempt<'a>,
    _permits: (Permit, Permit),
}

impl Spills {
    /// None yet.
    pub fn new() -> Self {
        Self {
            turns: RefCell::default(),
            nodes: RefCell::default(),
            places: Semaphore::new(ALL_MAX),
        }
    }
    /// The turn of whoever comes first; the others wait until it is over.
    pub async fn turn(&self, inode: InodeId) -> Option<Turn<'_>> {
        let busy = self.turns.borrow().get(&inode).cloned();
        match busy {
            Some(done) => {
                done.wait().await;
                None
            }
            None => {
                self.turns.borrow_mut().insert(inode, Rc::default());
                Some(Turn(self, inode))
            }
        }
    }
    /// The right to write to a node: first a place of those for it, so that one that does not answer holds no more of what is everybody's than that.
    pub async fn place(&self, id: NodeId) -> Result<Place<'_>> {
        let attempt = self.attempt(id)?;
        let of_node = attempt.node.places.acquire(1).await;
        let permits = (of_node, self.places.acquire(1).await);
        Ok(Place { _attempt: attempt, _permits: permits })
    }
    fn attempt(&self, id: NodeId) -> Result<Attempt<'_>> {
        let mut nodes = self.nodes.borrow_mut();
        let new = || Rc::new(Node { places: Semaphore::new(NODE_MAX), attempts: Cell::new(0) });
        let node = nodes.entry(id).or_insert_with(new).clone();
        if node.attempts.get() >= NODE_MAX + WAITING_MAX {
            let e = format!("too many small files are to become chunks of node {id}; retry");
            return Err(Error::new(Status::Overloaded, e));
        }
        node.attempts.set(node.attempts.get() + 1);
        Ok(Attempt { all: self, id, node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    fn now<F: Future>(f: Pin<&mut F>) -> Option<F::Output> {
        match f.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_node_that_does_not_answer_leaves_places_to_others() {
        let spills = Spills::new();
        let (stuck, lively) = (NodeId(1), NodeId(2));
        let mut asked: Vec<_> =
            (0..NODE_MAX + WAITING_MAX).map(|_| Box::pin(spills.place(stuck))).collect();
        let held: Vec<_> = asked.iter_mut().filter_map(|a| now(a.as_mut())).collect();
        assert_eq!(held.len(), NODE_MAX);
        let refused = now(Box::pin(spills.place(stuck)).as_mut()).expect("at once").err();
        assert_eq!(refused.map(|e| e.status), Some(Status::Overloaded));
        let others: Vec<_> =
            (0..NODE_MAX).filter_map(|_| now(Box::pin(spills.place(lively)).as_mut())).collect();
        assert_eq!(others.len(), NODE_MAX);
        // Those that give up leave, and others may come.
        asked.truncate(NODE_MAX);
        assert!(now(Box::pin(spills.place(stuck)).as_mut()).is_none(), "it waits");
        drop((held, others, asked));
        assert!(spills.nodes.borrow().is_empty());
        assert_eq!(spills.places.free(), ALL_MAX);
    }
}
