//! Where one more member of a chain goes.

use crate::Place;
use glowfs_types::NodeId;

/// The best of `places` for one more member of a chain whose members that stay are on `members` (node and rack). `loads` are
/// the targets that each place carries already, and `shared` how many of them belong to chains with the same nodes.
///
/// Never on a node that has a member; on a rack without one if there is such a place; then the disk that carries least
/// for its size; then the one that shares least with the others, so that recovery traffic spreads; then the first. `None` if no
/// node is free.
pub fn replacement(
    places: &[Place],
    loads: &[u32],
    shared: &[u32],
    members: &[(NodeId, String)],
) -> Option<usize> {
    let load = |i: usize| {
        let targets = u128::from(loads.get(i).copied().unwrap_or(0)) + 1;
        // Per TiB, so that whole numbers tell small differences apart.
        (targets << 40) / u128::from(places[i].capacity_bytes.max(1))
    };
    (0..places.len())
        .filter(|&i| members.iter().all(|(node, _)| *node != places[i].node))
        .min_by_key(|&i| {
            let p = &places[i];
            let near = !p.rack.is_empty() && members.iter().any(|(_, rack)| *rack == p.rack);
            let met = shared.get(i).copied().unwrap_or(0);
            (near, load(i), met, p.node, p.disk_index, p.store)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::StoreId;

    fn place(node: u64, disk: u32, rack: &str) -> Place {
        Place {
            node: NodeId(node),
            store: StoreId(u128::from(node * 10 + u64::from(disk))),
            disk_index: disk,
            capacity_bytes: 1 << 40,
            rack: rack.into(),
        }
    }
    fn on(nodes: &[(u64, &str)]) -> Vec<(NodeId, String)> {
        nodes.iter().map(|&(n, r)| (NodeId(n), r.to_owned())).collect()
    }

    #[test]
    fn apart_first_then_the_emptiest_then_the_least_shared() {
        let p = [place(1, 0, ""), place(2, 0, ""), place(3, 0, ""), place(3, 1, "")];
        assert_eq!(replacement(&p, &[0, 5, 5, 4], &[], &on(&[(1, "")])), Some(3));
        assert_eq!(replacement(&p, &[0, 5, 5, 5], &[0, 2, 1, 2], &on(&[(1, "")])), Some(2));
        assert_eq!(replacement(&p, &[0; 4], &[], &on(&[(1, ""), (2, ""), (3, "")])), None);
        // A disk of half the size carries half as much.
        let mut p = p;
        p[3].capacity_bytes /= 2;
        assert_eq!(replacement(&p, &[9, 9, 5, 4], &[], &on(&[(1, ""), (2, "")])), Some(2));
    }

    #[test]
    fn racks_come_before_load_and_yield_when_there_is_no_other() {
        let p = [place(1, 0, "a"), place(2, 0, "a"), place(3, 0, "b")];
        assert_eq!(replacement(&p, &[0, 0, 9], &[], &on(&[(1, "a")])), Some(2));
        assert_eq!(replacement(&p, &[0, 0, 9], &[], &on(&[(1, "a"), (3, "b")])), Some(1));
    }
}
