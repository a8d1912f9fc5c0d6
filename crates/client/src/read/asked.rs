//! Which replicas a read has asked, whom it asks next, and for whom it has patience.
//!
//! Guarantees: no replica is asked twice before each has been asked once, in whatever order they are by then. And nobody is waited for longer than one attempt takes while somebody else has
//! not been asked: a connection that delivers much is no sign that a disk behind it does. Only where each has been asked in vain, those are waited for that were silent: what carries
//! their answers may be slow.

use crate::routes::Place;
use glowfs_types::{NodeId, Status};

/// What was asked in vain.
#[derive(Default)]
pub(super) struct Asked(Vec<Failed>);

struct Failed {
    node: NodeId,
    /// It did not answer in time.
    silent: bool,
    /// It was in the present round.
    now: bool,
}

impl Asked {
    /// One was asked, and this came of it.
    pub(super) fn failed(&mut self, node: NodeId, status: Status) {
        // Overloaded: it may be the connection on which there was no room.
        let silent = matches!(status, Status::TimedOut | Status::Overloaded);
        self.0.retain(|f| f.node != node);
        self.0.push(Failed { node, silent, now: true });
    }
    /// Who is asked next, in this round or the one that begins.
    pub(super) fn next(&mut self, order: &[Place]) -> Option<Place> {
        let asked = |p: &Place| self.0.iter().any(|f| f.now && f.node == p.node);
        if let Some(next) = order.iter().find(|p| !asked(p)) {
            return Some(*next);
        }
        self.0.iter_mut().for_each(|f| f.now = false);
        order.first().copied()
    }
    /// Whether that one is waited for as long as its connection delivers.
    pub(super) fn waits_for(&self, node: NodeId, order: &[Place]) -> bool {
        let of = |node| self.0.iter().find(|f| f.node == node);
        order.len() == 1
            || (of(node).is_some_and(|f| f.silent) && order.iter().all(|p| of(p.node).is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{ChainId, ChainVersion, TargetId};

    fn places(nodes: &[u64]) -> Vec<Place> {
        let place = |n: &u64| Place {
            chain: ChainId(1),
            version: ChainVersion(1),
            target: TargetId(*n),
            node: NodeId(*n),
        };
        nodes.iter().map(place).collect()
    }

    #[test]
    fn each_is_asked_once_though_the_order_turns_and_then_who_was_silent_is_waited_for() {
        let mut asked = Asked::default();
        let mut ask = |order: &[u64], status| {
            let order = places(order);
            let node = asked.next(&order).expect("somebody").node;
            let waits = asked.waits_for(node, &order);
            asked.failed(node, status);
            (node.0, waits)
        };
        assert_eq!(ask(&[1, 2, 3], Status::TimedOut), (1, false));
        assert_eq!(ask(&[2, 3, 1], Status::DiskFailed), (2, false));
        assert_eq!(ask(&[3, 1, 2], Status::TimedOut), (3, false));
        assert_eq!(ask(&[2, 3, 1], Status::TimedOut), (2, false), "it had answered");
        assert_eq!(ask(&[1, 2, 3], Status::TimedOut), (1, true));
        assert_eq!(ask(&[1, 2, 3, 4], Status::TimedOut), (3, false), "another one has come");
    }

    #[test]
    fn who_is_the_only_one_is_waited_for_at_once() {
        assert!(Asked::default().waits_for(NodeId(1), &places(&[1])));
        assert!(!Asked::default().waits_for(NodeId(1), &places(&[1, 2])));
    }
}
