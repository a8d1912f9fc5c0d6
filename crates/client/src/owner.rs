//! Which metadata service changes an inode: its owner, as long as that answers. Pure.
//!
//! All clients send what changes the names of a directory, or what is noted of a file, to the same service, so changes of a hot one meet there, where they are
//! put into one transaction, and not in the engine, where they are conflicts. Nothing that is right depends on it: any service takes any call, whoever
//! sees other services alive than the others asks another one, and the engine's transactions decide.
//!
//! The owner is found by rendezvous hashing: each service has a weight for each inode, and the greatest is the owner's. Who comes takes over only what it has the
//! greatest weight for; of who goes, each other service gets a part.

use glowfs_types::layout::splitmix64;
use glowfs_types::routing::{NodeStatus, Role, RoutingInfo};
use glowfs_types::{InodeId, NodeId};
use std::cmp::Reverse;
use std::rc::Rc;

/// The metadata services of one routing info.
pub struct Owners {
    info: Rc<RoutingInfo>,
    /// With whether mgmtd does not hear from it.
    services: Vec<(NodeId, bool)>,
}

impl Owners {
    /// Those of `info`.
    pub fn of(info: &Rc<RoutingInfo>) -> Self {
        let metas = info.nodes.values().filter(|n| {
            n.role == Role::Meta && !n.addresses.is_empty() && n.status != NodeStatus::Disabled
        });
        let services = metas.map(|n| (n.id, n.status == NodeStatus::Failed)).collect();
        Self { info: info.clone(), services }
    }
    /// Whether they are of this very routing info.
    pub fn are_of(&self, info: &Rc<RoutingInfo>) -> bool {
        Rc::ptr_eq(&self.info, info)
    }
    /// The owner of an inode among those that mgmtd hears from and that need not be avoided; of all if there is none.
    pub fn owner(&self, inode: InodeId, avoid: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let place = |(node, failed): &&(NodeId, bool)| {
            (*failed, avoid(*node), Reverse(weight(inode, *node)))
        };
        self.services.iter().min_by_key(place).map(|(node, _)| *node)
    }
}

fn weight(inode: InodeId, node: NodeId) -> u64 {
    splitmix64(splitmix64(inode.0) ^ node.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::tests::{cluster, node};

    const INODES: u64 = 12_000;

    /// The services 10, 11, ... of a cluster.
    fn services(count: u64) -> RoutingInfo {
        let mut info = cluster();
        for n in 10..10 + count {
            info.nodes.insert(NodeId(n), node(n, Role::Meta));
        }
        info
    }
    fn owners(info: RoutingInfo, avoid: impl Fn(NodeId) -> bool) -> Vec<u64> {
        let owners = Owners::of(&Rc::new(info));
        (0..INODES).map(|i| owners.owner(InodeId(i), &avoid).expect("an owner").0).collect()
    }
    fn share(of: &[u64], node: u64) -> f64 {
        of.iter().filter(|o| **o == node).count() as f64 / of.len() as f64
    }

    #[test]
    fn inodes_are_spread_evenly() {
        assert!(Owners::of(&Rc::new(cluster())).owner(InodeId(1), |_| false).is_none());
        for count in 1..=5 {
            let all = owners(services(count), |_| false);
            for n in 10..10 + count {
                let fair = 1.0 / count as f64;
                assert!((share(&all, n) - fair).abs() < 0.02, "{n} of {count}");
            }
        }
    }

    #[test]
    fn who_comes_takes_a_share_and_moves_nothing_else() {
        let (four, five) = (owners(services(4), |_| false), owners(services(5), |_| false));
        let mut moved = 0.0;
        for (before, after) in four.iter().zip(&five).filter(|(before, after)| before != after) {
            assert_eq!(*after, 14, "from {before} to the new one only");
            moved += 1.0 / INODES as f64;
        }
        assert!((moved - 0.2f64).abs() < 0.02, "{moved}");
    }

    /// Whoever finds out that a service is gone, by mgmtd or by itself, asks the same service in its place.
    #[test]
    fn who_goes_leaves_a_share_to_each_and_moves_nothing_else() {
        let before = owners(services(4), |_| false);
        let mut gone = services(4);
        gone.nodes.get_mut(&NodeId(12)).expect("node").status = NodeStatus::Failed;
        let failed = owners(gone.clone(), |_| false);
        gone.nodes.remove(&NodeId(12));
        assert_eq!(failed, owners(gone, |_| false));
        assert_eq!(failed, owners(services(4), |n| n == NodeId(12)));
        for (before, after) in before.iter().zip(&failed) {
            assert!(*after != 12 && (before == after || *before == 12));
        }
        for n in [10, 11, 13] {
            assert!((share(&failed, n) - 1.0 / 3.0).abs() < 0.02, "{n}");
        }
    }

    #[test]
    fn somebody_is_asked_though_nobody_is_well() {
        let mut info = services(2);
        info.nodes.get_mut(&NodeId(10)).expect("node").status = NodeStatus::Failed;
        assert!(owners(info.clone(), |n| n == NodeId(11)).iter().all(|o| *o == 11));
        info.nodes.get_mut(&NodeId(11)).expect("node").status = NodeStatus::Failed;
        let all = owners(info.clone(), |_| true);
        assert!(all.contains(&10) && all.contains(&11));
        info.nodes.get_mut(&NodeId(11)).expect("node").status = NodeStatus::Disabled;
        assert!(owners(info, |_| true).iter().all(|o| *o == 10));
    }
}
