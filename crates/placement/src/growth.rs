//! What more chains should be laid over, where disks carry some already.

use crate::Place;

/// The places, with what each lacks of its share in the place of its size: of all targets, those that it carries (`carried`, in the order of `places`)
/// and `more` that come, each disk should carry as many as its size says. A disk that carries its share or more has none left, and takes a target only
/// where members of a chain would not find distinct nodes otherwise.
pub fn lacking(places: &[Place], carried: &[u32], more: u32) -> Vec<Place> {
    let sum: u128 = places.iter().map(|p| u128::from(p.capacity_bytes.max(1))).sum();
    let all = carried.iter().map(|c| u128::from(*c)).sum::<u128>() + u128::from(more);
    // In thousandths of a target, so that small shares are told apart.
    let lack = |p: &Place, carried: u32| {
        let share = all * 1000 * u128::from(p.capacity_bytes.max(1)) / sum.max(1);
        share.saturating_sub(u128::from(carried) * 1000)
    };
    let each = places.iter().zip(carried);
    each.map(|(p, c)| Place {
        capacity_bytes: u64::try_from(lack(p, *c)).unwrap_or(u64::MAX),
        ..p.clone()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, plan};
    use glowfs_types::{NodeId, StoreId};

    fn disk(node: u64, capacity_bytes: u64) -> Place {
        let store = StoreId(u128::from(node));
        Place { node: NodeId(node), store, disk_index: 0, capacity_bytes, rack: String::new() }
    }

    /// What every disk carries after `chains` more chains of two.
    fn grown(disks: &[Place], carried: &[u32], chains: u32) -> Vec<u32> {
        let more = lacking(disks, carried, chains * 2);
        let plan = plan(&more, Request { replicas: 2, chains }).expect("a plan");
        plan.loads().iter().zip(carried).map(|(new, old)| new + old).collect()
    }

    #[test]
    fn new_disks_catch_up() {
        let disks: Vec<_> = (1..=6).map(|n| disk(n, 1 << 40)).collect();
        assert_eq!(grown(&disks, &[8, 8, 8, 8, 0, 0], 8), [8; 6]);
        assert_eq!(grown(&disks, &[0; 6], 9), [3; 6]);
        // Not all at once: those that carry their share take none.
        assert_eq!(grown(&disks, &[8, 8, 8, 8, 0, 0], 4), [8, 8, 8, 8, 4, 4]);
    }

    #[test]
    fn sizes_count() {
        let disks = [disk(1, 1 << 40), disk(2, 1 << 40), disk(3, 2 << 40), disk(4, 2 << 40)];
        assert_eq!(grown(&disks, &[6, 6, 0, 0], 12), [6, 6, 12, 12]);
    }

    /// One new node alone cannot hold two members of a chain.
    #[test]
    fn members_lie_on_distinct_nodes_all_the_same() {
        let disks: Vec<_> = (1..=3).map(|n| disk(n, 1 << 40)).collect();
        let after = grown(&disks, &[8, 8, 0], 8);
        assert_eq!(after[2], 8, "every chain has one member there: {after:?}");
        assert_eq!(after.iter().sum::<u32>(), 32);
        assert!(after[0].abs_diff(after[1]) <= 1, "{after:?}");
    }
}
