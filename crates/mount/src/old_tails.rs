//! [`OldTails`]: last pages of an open file that the kernel took to end before where it ended, until the kernel has given them back.
//!
//! Another client had made the file longer, and then this one did: the kernel goes by what it did itself, and takes the zeros behind the end that it knew for contents.
//! Guarantee: as long as such a page is noted, nothing that lies between that end and the end of the page is written back.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// The kernel's.
const PAGE_BYTES: u64 = 4096;

/// See the module. Where the file ended for the kernel; one entry for each request that makes it longer.
#[derive(Default)]
pub struct OldTails(Rc<RefCell<Vec<u64>>>);

/// One of them, until this is dropped.
pub struct OldTail {
    all: Rc<RefCell<Vec<u64>>>,
    end: u64,
}

impl OldTail {
    /// Where the kernel took the file to end. In the middle of a page.
    pub fn end(&self) -> u64 {
        self.end
    }
    /// Whether a write that begins there holds the page itself.
    pub fn is_in_page_of(&self, offset: u64) -> bool {
        offset < behind(self.end)
    }
}

impl Drop for OldTail {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        if let Some(i) = all.iter().position(|end| *end == self.end) {
            all.swap_remove(i);
        }
    }
}

fn behind(end: u64) -> u64 {
    end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX)
}

/// Whether a page goes on behind that end.
pub fn is_within_a_page(end: u64) -> bool {
    end % PAGE_BYTES != 0
}

impl OldTails {
    /// The kernel takes the file to end there, and is about to take it for longer.
    pub fn begin(&self, end: u64) -> OldTail {
        self.0.borrow_mut().push(end);
        OldTail { all: self.0.clone(), end }
    }
    /// What of a range of bytes is to be written back.
    pub fn written_of(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = vec![range];
        for end in self.0.borrow().iter() {
            let cut = |r: Range<u64>| {
                [r.start..r.end.min(*end), r.start.max(behind(*end))..r.end].into_iter()
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
        assert_eq!(tails.written_of(0..9000), [0..9000]);
        let first = tails.begin(5000);
        assert_eq!(tails.written_of(0..20_000), [0..5000, 8192..20_000]);
        assert_eq!(tails.written_of(4096..8192), [4096..5000]);
        assert_eq!(tails.written_of(5000..8192), []);
        assert_eq!(tails.written_of(8192..9000), [8192..9000]);
        let (again, later) = (tails.begin(5000), tails.begin(12_300));
        assert_eq!(tails.written_of(0..20_000), [0..5000, 8192..12_300, 16_384..20_000]);
        drop(again);
        drop(later);
        assert_eq!(tails.written_of(0..9000), [0..5000, 8192..9000], "the first is there still");
        assert!(first.is_in_page_of(8191) && !first.is_in_page_of(8192));
        drop(first);
        assert_eq!(tails.written_of(0..9000), [0..9000]);
    }
}
