//! Where one more member of a chain goes.

use crate::Place;
use glowfs_types::NodeId;

/// What a place carries already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Burden {
    /// Targets.
    pub targets: u32,
    /// How many of them belong to chains with the same nodes as the one that a place is looked for.
    pub shared: u32,
    /// Bytes that are free for more.
    pub free_bytes: u64,
}

impl Burden {
    /// One more target comes, and takes that much.
    pub fn take(&mut self, bytes: u64) {
        self.targets += 1;
        self.free_bytes = self.free_bytes.saturating_sub(bytes);
    }
}

/// The best of `places` for one more member, of so many bytes, of a chain whose members that stay are on `members` (node and rack).
/// `burdens` are what the places carry.
///
/// Never on a node that has a member, or where there is no room for it; on a rack without one if there is such a place; then the disk that
/// carries least for its size; then the one that shares least with the others, so that recovery traffic spreads; then the first. `None` if
/// there is no such place.
pub fn replacement(
    places: &[Place],
    burdens: &[Burden],
    members: &[(NodeId, String)],
    bytes: u64,
) -> Option<usize> {
    let free = |p: &Place| members.iter().all(|(node, _)| *node != p.node);
    let all = places.iter().zip(burdens).enumerate();
    let fit = all.filter(|(_, (p, b))| free(p) && b.free_bytes >= bytes);
    let best = fit.min_by_key(|(_, (p, b))| {
        let near = !p.rack.is_empty() && members.iter().any(|(_, rack)| *rack == p.rack);
        // Per TiB, so that whole numbers tell small differences apart.
        let load = ((u128::from(b.targets) + 1) << 40) / u128::from(p.capacity_bytes.max(1));
        (near, load, b.shared, p.node, p.disk_index, p.store)
    });
    best.map(|(i, _)| i)
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

    fn burdens(carried: &[(u32, u32)]) -> Vec<Burden> {
        let of = |&(targets, shared)| Burden { targets, shared, free_bytes: 1 << 30 };
        carried.iter().map(of).collect()
    }

    #[test]
    fn apart_first_then_the_emptiest_then_the_least_shared() {
        let p = [place(1, 0, ""), place(2, 0, ""), place(3, 0, ""), place(3, 1, "")];
        let best = |carried: &[(u32, u32)], members: &[(u64, &str)]| {
            replacement(&p, &burdens(carried), &on(members), 0)
        };
        assert_eq!(best(&[(0, 0), (5, 0), (5, 0), (4, 0)], &[(1, "")]), Some(3));
        assert_eq!(best(&[(0, 0), (5, 2), (5, 1), (5, 2)], &[(1, "")]), Some(2));
        assert_eq!(best(&[(0, 0); 4], &[(1, ""), (2, ""), (3, "")]), None);
        // A disk of half the size carries half as much.
        let mut p = p.clone();
        p[3].capacity_bytes /= 2;
        let carried = burdens(&[(9, 0), (9, 0), (5, 0), (4, 0)]);
        assert_eq!(replacement(&p, &carried, &on(&[(1, ""), (2, "")]), 0), Some(2));
    }

    #[test]
    fn racks_come_before_load_and_yield_when_there_is_no_other() {
        let p = [place(1, 0, "a"), place(2, 0, "a"), place(3, 0, "b")];
        let b = burdens(&[(0, 0), (0, 0), (9, 0)]);
        assert_eq!(replacement(&p, &b, &on(&[(1, "a")]), 0), Some(2));
        assert_eq!(replacement(&p, &b, &on(&[(1, "a"), (3, "b")]), 0), Some(1));
    }

    /// Not even where it would be on a rack of its own.
    #[test]
    fn nothing_goes_where_there_is_no_room_for_it() {
        let p = [place(1, 0, "a"), place(2, 0, "a"), place(3, 0, "b")];
        let mut b = burdens(&[(0, 0), (9, 0), (0, 0)]);
        b[2].take((1 << 30) - 9);
        assert_eq!(replacement(&p, &b, &on(&[(1, "a")]), 9), Some(2));
        assert_eq!(replacement(&p, &b, &on(&[(1, "a")]), 10), Some(1));
        assert_eq!(replacement(&p, &b, &on(&[(1, "a")]), (1 << 30) + 1), None);
    }
}
