//! [`OldTails`]: last pages of an open file that the kernel took to end before where it ended, until the kernel has given them back.
//!
//! Another client had made the file longer, and then this one did: the kernel goes by what it did itself, and takes the zeros behind the end that it knew for contents.
//! Guarantee: as long as such a page is noted, nothing is written back of it that lies between that end and where the file ended (or the end of the page, where the kernel has bytes there
//! that belong elsewhere: those of an append, and those of a copy that it does not have). Where it is not sure what the kernel took for the end ([`crate::kernel_len`]), these are all pages that
//! may be the last.

use crate::kernel_len::Between;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// The kernel's.
const PAGE_BYTES: u64 = 4096;

/// See the module. What is not written; one entry for each request that makes the file longer.
#[derive(Default)]
pub struct OldTails(Rc<RefCell<Vec<Range<u64>>>>);

/// One of them, until this is dropped.
pub struct OldTail {
    all: Rc<RefCell<Vec<Range<u64>>>>,
    end: Between,
    range: Range<u64>,
}

impl OldTail {
    /// Where the kernel took the file to end.
    pub fn old_end(&self) -> Between {
        self.end
    }
    /// Whether a write that begins there may hold the page itself.
    pub fn is_in_page_of(&self, offset: u64) -> bool {
        offset < behind(self.end.most)
    }
}

impl Drop for OldTail {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        if let Some(i) = all.iter().position(|range| *range == self.range) {
            all.swap_remove(i);
        }
    }
}

fn behind(end: u64) -> u64 {
    end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX)
}

/// Whether a page goes on behind that end, or may do so.
pub fn is_within_a_page(end: Between) -> bool {
    end.least < end.most || !end.least.is_multiple_of(PAGE_BYTES)
}

impl OldTails {
    /// The kernel takes the file to end there, and is about to take it for longer; it ended at `to`.
    pub fn begin(&self, end: Between, to: u64) -> OldTail {
        let range = end.least..to.min(behind(end.most));
        self.0.borrow_mut().push(range.clone());
        OldTail { all: self.0.clone(), end, range }
    }
    /// What of a range of bytes is to be written back.
    pub fn written_of(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = vec![range];
        for old in self.0.borrow().iter() {
            let cut = |r: Range<u64>| {
                [r.start..r.end.min(old.start), r.start.max(old.end)..r.end].into_iter()
            };
            pieces = pieces.into_iter().flat_map(cut).filter(|r| !r.is_empty()).collect();
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_the_old_end_in_its_page_is_not_written() {
        let tails = OldTails::default();
        let written = |range| {
            let pieces = tails.written_of(range);
            pieces.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>()
        };
        assert_eq!(written(0..9000), [(0, 9000)]);
        let begin = |end, to| tails.begin(Between::exactly(end), to);
        let first = begin(5000, u64::MAX);
        assert_eq!(written(0..20_000), [(0, 5000), (8192, 20_000)]);
        assert_eq!(written(4096..8192), [(4096, 5000)]);
        assert_eq!(written(5000..8192), []);
        assert_eq!(written(8192..9000), [(8192, 9000)]);
        let (again, later) = (begin(5000, u64::MAX), begin(12_300, 90_000));
        assert_eq!(written(0..20_000), [(0, 5000), (8192, 12_300), (16_384, 20_000)]);
        drop(again);
        drop(later);
        assert_eq!(written(0..9000), [(0, 5000), (8192, 9000)], "the first is there still");
        assert!(first.is_in_page_of(8191) && !first.is_in_page_of(8192));
        drop(first);
        assert_eq!(written(0..9000), [(0, 9000)]);
        let short = begin(5000, 5050);
        assert_eq!(written(0..9000), [(0, 5000), (5050, 9000)], "stored since");
        drop(short);
    }

    /// The kernel may have passed over what ended early.
    #[test]
    fn nor_what_lies_behind_where_the_kernel_may_take_the_file_to_end() {
        let tails = OldTails::default();
        let end = Between { least: 4096, most: 9000 };
        assert!(is_within_a_page(end) && !is_within_a_page(Between::exactly(4096)));
        let tail = tails.begin(end, 10_000);
        assert_eq!(tails.written_of(0..20_000), [0..4096, 10_000..20_000]);
        assert!(tail.is_in_page_of(12_287) && !tail.is_in_page_of(12_288));
        drop(tail);
        let tail = tails.begin(end, u64::MAX);
        assert_eq!(tails.written_of(0..20_000), [0..4096, 12_288..20_000]);
        drop(tail);
        assert_eq!(tails.written_of(0..20_000).len(), 1);
    }
}
