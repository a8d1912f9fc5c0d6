//! What the last serving target sends to the syncing one behind it.
//!
//! The source pages through the chunks of both sides in chunk order. A chunk that differs in version, length or checksum is
//! replaced; one that only the receiver has is removed. Updates that come meanwhile travel as whole contents (the first of each chunk)
//! through the chain itself, and the receiver lets what came later win, so neither side has to lock anything.

use glowfs_types::ChunkId;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::data::ChunkSummary;

/// One difference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Transfer {
    /// Send the whole chunk.
    Replace(ChunkId),
    /// Have the receiver remove it.
    Remove(ChunkId),
}

/// One page compared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// What to send.
    pub transfers: Vec<Transfer>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<ChunkId>,
    /// Chunks that were equal.
    pub equal: u64,
}

/// Compares a page of the receiver with a page of the source: both began after the same chunk, both are in order, and `more`
/// says for each whether it was cut off.
pub fn compare(
    theirs: &[ChunkSummary],
    their_more: bool,
    ours: &[ChunkSummary],
    our_more: bool,
) -> Page {
    // Both lists are complete only up to the nearer end.
    let end =
        |list: &[ChunkSummary], more: bool| if more { list.last().map(|c| c.chunk) } else { None };
    let (their_end, our_end) = (end(theirs, their_more), end(ours, our_more));
    let bound = match (their_end, our_end) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let within = |c: &&ChunkSummary| bound.is_none_or(|b| c.chunk <= b);
    let mut page = Page { next: bound, ..Page::default() };
    let mut theirs = theirs.iter().filter(within).peekable();
    for our in ours.iter().filter(within) {
        while let Some(t) = theirs.next_if(|t| t.chunk < our.chunk) {
            page.transfers.push(Transfer::Remove(t.chunk));
        }
        match theirs.next_if(|t| t.chunk == our.chunk) {
            Some(t) if same(t, our) => page.equal += 1,
            // A source chunk with pending versions only travels through the chain. What the receiver has under its name is of a life before a
            // removal that the source need not know of: the resync may not end with it in place.
            Some(_) if our.committed.0 == 0 => page.transfers.push(Transfer::Remove(our.chunk)),
            None if our.committed.0 == 0 => {}
            _ => page.transfers.push(Transfer::Replace(our.chunk)),
        }
    }
    page.transfers.extend(theirs.map(|t| Transfer::Remove(t.chunk)));
    if planted(Mutant::ResyncSkipsRemoved) {
        page.transfers.retain(|t| matches!(t, Transfer::Replace(_)));
    }
    page
}

fn same(a: &ChunkSummary, b: &ChunkSummary) -> bool {
    (a.committed, a.len, a.content_crc, a.chunk_bytes)
        == (b.committed, b.len, b.content_crc, b.chunk_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{ChunkVersion, DataId, VolumeId};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn summary(index: u64, version: u64) -> ChunkSummary {
        ChunkSummary {
            chunk: ChunkId { volume: VolumeId(1), data: DataId(1), index },
            committed: ChunkVersion(version),
            pending: ChunkVersion(version),
            len: 1,
            content_crc: version as u32,
            chunk_bytes: 65536,
        }
    }

    /// A source that never heard of a chunk's removal begins it anew at version 1. A receiver with content of before would take its first versions
    /// for ones that it has, or refuse them for ever.
    #[test]
    fn content_from_before_a_removal_goes_where_the_chunk_just_begins_anew() {
        let begun = ChunkSummary { pending: ChunkVersion(1), ..summary(7, 0) };
        let page = compare(&[summary(7, 5)], false, std::slice::from_ref(&begun), false);
        assert_eq!(page.transfers, [Transfer::Remove(begun.chunk)]);
        assert_eq!(page.equal, 0);
        let page = compare(&[], false, &[begun], false);
        assert_eq!(page.transfers, []);
    }

    proptest! {
        /// Whatever both sides hold and however it is paged, applying the transfers makes them equal.
        #[test]
        fn paged_comparison_makes_equal(
            theirs: BTreeMap<u8, u8>, ours: BTreeMap<u8, u8>, limit in 1usize..9, their_limit in 1usize..9,
        ) {
            let list = |m: &BTreeMap<u8, u8>| -> Vec<_> {
                m.iter().map(|(i, v)| summary(u64::from(*i), u64::from(*v) + 1)).collect()
            };
            let (mut a, b) = (list(&theirs), list(&ours));
            let cut = |all: &[ChunkSummary], after: Option<ChunkId>, n: usize| {
                let rest: Vec<_> = all.iter().filter(|c| after.is_none_or(|x| c.chunk > x)).cloned().collect();
                let more = rest.len() > n;
                (rest.into_iter().take(n).collect::<Vec<_>>(), more)
            };
            let mut after = None;
            for round in 0.. {
                prop_assert!(round < 1000, "does not end");
                let (t, tm) = cut(&a, after, their_limit);
                let (o, om) = cut(&b, after, limit);
                let page = compare(&t, tm, &o, om);
                for transfer in &page.transfers {
                    match transfer {
                        Transfer::Remove(c) => a.retain(|s| s.chunk != *c),
                        Transfer::Replace(c) => {
                            a.retain(|s| s.chunk != *c);
                            a.extend(b.iter().filter(|s| s.chunk == *c).cloned());
                            a.sort_by_key(|s| s.chunk);
                        }
                    }
                }
                after = page.next;
                if after.is_none() { break; }
            }
            prop_assert_eq!(a, b);
        }
    }
}
