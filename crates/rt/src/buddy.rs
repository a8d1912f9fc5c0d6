//! Pure bookkeeping of a range of pages: a buddy allocator with exact lengths.
//!
//! A piece is carved from the smallest free power-of-two block that holds it; what is behind it stays free. Freed
//! pieces join their neighbours again, so nothing fragments for good. Pieces of one size that come and go
//! are kept aside for a moment ([`RECENT_MAX`]) to save the joining and splitting.

use std::collections::BTreeSet;

/// Pieces of one power-of-two size that are kept aside.
const RECENT_MAX: usize = 32;
/// Blocks of up to `2^RECENT_ORDER` pages are kept aside.
const RECENT_ORDER: usize = 8;

/// Which pages of a range are free.
pub(crate) struct Buddy {
    /// Free blocks of `2^order` pages, by their first page.
    free: Vec<BTreeSet<u32>>,
    recent: Vec<Vec<u32>>,
    free_pages: u64,
}

impl Buddy {
    /// All of `pages` free.
    pub(crate) fn new(pages: u32) -> Self {
        let orders = (u32::BITS - pages.leading_zeros()).max(1) as usize;
        let mut new = Self {
            free: vec![BTreeSet::new(); orders],
            recent: vec![Vec::new(); orders.min(RECENT_ORDER + 1)],
            free_pages: 0,
        };
        new.join(0, pages);
        new.free_pages = u64::from(pages);
        new
    }
    /// Number of free pages.
    pub(crate) fn free_pages(&self) -> u64 {
        self.free_pages
    }
    /// The first of `pages` (at least one) adjacent pages, which are in use then.
    pub(crate) fn alloc(&mut self, pages: u32) -> Option<u32> {
        let order = pages.next_power_of_two().trailing_zeros() as usize;
        if pages.is_power_of_two()
            && let Some(page) = self.recent.get_mut(order).and_then(Vec::pop)
        {
            self.free_pages -= u64::from(pages);
            return Some(page);
        }
        let page = self.carve(order).or_else(|| {
            self.forget_recent();
            self.carve(order)
        })?;
        self.join(page + pages, (1 << order) - pages);
        self.free_pages -= u64::from(pages);
        Some(page)
    }
    /// Gives pages back; they must be in use.
    pub(crate) fn release(&mut self, page: u32, pages: u32) {
        self.free_pages += u64::from(pages);
        let order = pages.trailing_zeros() as usize;
        if pages.is_power_of_two()
            && let Some(recent) = self.recent.get_mut(order)
            && recent.len() < RECENT_MAX
        {
            recent.push(page);
            return;
        }
        self.join(page, pages);
    }

    /// Takes a block of `2^order` pages out of the free ones.
    fn carve(&mut self, order: usize) -> Option<u32> {
        let from = (order..self.free.len()).find(|o| !self.free[*o].is_empty())?;
        let page = self.free[from].pop_first()?;
        for lower in (order..from).rev() {
            self.free[lower].insert(page + (1 << lower));
        }
        Some(page)
    }
    /// Adds pages to the free blocks, joining them with their neighbours.
    fn join(&mut self, mut page: u32, mut pages: u32) {
        while pages > 0 {
            let size_order = (u32::BITS - 1 - pages.leading_zeros()) as usize;
            let align_order = page.trailing_zeros() as usize;
            let mut order = size_order.min(align_order).min(self.free.len() - 1);
            let (mut block, step) = (page, 1 << order);
            while order + 1 < self.free.len() && self.free[order].remove(&(block ^ (1 << order))) {
                block &= !(1 << order);
                order += 1;
            }
            self.free[order].insert(block);
            page += step;
            pages -= step;
        }
    }
    fn forget_recent(&mut self) {
        for order in 0..self.recent.len() {
            for page in std::mem::take(&mut self.recent[order]) {
                self.join(page, 1 << order);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_nothing_is_lost(
            total in 1u32..5000,
            steps in prop::collection::vec((any::<bool>(), 1u32..700), 1..300),
        ) {
            let mut buddy = Buddy::new(total);
            let mut used: Vec<(u32, u32)> = Vec::new();
            for (take, n) in steps {
                if take {
                    if let Some(page) = buddy.alloc(n) {
                        prop_assert!(page + n <= total);
                        prop_assert!(used.iter().all(|(p, l)| page + n <= *p || p + l <= page));
                        used.push((page, n));
                    }
                } else if !used.is_empty() {
                    let (page, pages) = used.swap_remove(n as usize % used.len());
                    buddy.release(page, pages);
                }
                let in_use: u64 = used.iter().map(|(_, l)| u64::from(*l)).sum();
                prop_assert_eq!(buddy.free_pages() + in_use, u64::from(total));
            }
            for (page, pages) in used.drain(..) {
                buddy.release(page, pages);
            }
            // Everything joined again: the greatest power of two fits.
            prop_assert!(buddy.alloc(1 << (31 - total.leading_zeros())).is_some());
        }
    }
}
