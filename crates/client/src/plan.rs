//! How a read is cut into requests: extents of a layout, grouped so that one request covers neighbours in the caller's
//! buffer that the same node is asked for. Pure.

use glowfs_types::layout::Extent;
use glowfs_types::wire::data::READ_OPS_MAX;
use glowfs_types::wire::frame::BULK_BYTES_MAX;
use std::ops::Range;

/// Groups consecutive extents that have the same key (the node to ask), within the bounds of one request.
pub fn group<K: PartialEq>(extents: &[Extent], keys: &[K]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut start = 0;
    let mut bytes = 0u64;
    for (i, e) in extents.iter().enumerate() {
        let len = u64::from(e.len);
        let fits = i - start < READ_OPS_MAX as usize
            && bytes + len <= u64::from(BULK_BYTES_MAX)
            && keys.get(i) == keys.get(start);
        if i > start && !fits {
            groups.push(start..i);
            start = i;
            bytes = 0;
        }
        bytes += len;
    }
    if start < extents.len() {
        groups.push(start..extents.len());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::tests::layout;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn groups_cover_everything_once_and_keep_bounds(offset in 0u64..1 << 30, len in 1u64..40 << 20, nodes in 1u64..4) {
            let l = layout(2);
            let extents: Vec<_> = l.extents(offset, len).collect();
            let keys: Vec<u64> = extents.iter().map(|e| e.index / 3 % nodes).collect();
            let groups = group(&extents, &keys);
            let mut next = 0;
            for g in &groups {
                prop_assert_eq!(g.start, next);
                prop_assert!(g.end > g.start && g.len() <= READ_OPS_MAX as usize);
                prop_assert!(keys[g.clone()].iter().all(|k| *k == keys[g.start]));
                next = g.end;
            }
            prop_assert_eq!(next, extents.len());
        }
    }

    #[test]
    fn neighbours_of_one_node_share_a_request() {
        let l = layout(1);
        let extents: Vec<_> = l.extents(0, 4 * 65536).collect();
        assert_eq!(group(&extents, &[1, 1, 1, 1]), vec![std::ops::Range { start: 0, end: 4 }]);
        assert_eq!(group(&extents, &[1, 1, 2, 1]), [0..2, 2..3, 3..4]);
        assert!(group::<u8>(&[], &[]).is_empty());
    }
}
