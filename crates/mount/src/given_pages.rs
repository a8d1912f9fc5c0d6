//! [`GivenPages`]: how far into a file the kernel may have pages of it, which writes that go past its page cache make old.
//!
//! The kernel forgets them around such a write itself, but not every kernel does, and not all of them at both ends of it. Guarantee: never less than what it has got since
//! it was last told to forget. It may be more.

use std::cell::Cell;

/// See the module.
#[derive(Default)]
pub struct GivenPages(Cell<u64>);

impl GivenPages {
    /// The kernel is about to be given contents up to there.
    pub fn give(&self, end: u64) {
        self.0.set(self.0.get().max(end));
    }
    /// It keeps what it has from before.
    pub fn kept(&self) {
        self.0.set(u64::MAX);
    }
    /// If it may have some of what lies from there on, up to where. Whoever asks tells it to forget that, and [gives](Self::give) it again where it did not.
    pub fn take_from(&self, from: u64) -> Option<u64> {
        let end = self.0.get();
        self.0.set(end.min(from));
        (end > from).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_appends_to_what_nobody_reads_has_nothing_forgotten() {
        let given = GivenPages::default();
        assert_eq!(given.take_from(0), None, "nothing was read");
        given.give(5000);
        assert_eq!(given.take_from(8192), None);
        assert_eq!(given.take_from(4096), Some(5000), "its last page was");
        assert_eq!(given.take_from(4096), None, "once");
        assert_eq!(given.take_from(0), Some(4096), "the first is there still");
        given.kept();
        assert_eq!((given.take_from(1 << 40), given.take_from(1 << 40)), (Some(u64::MAX), None));
    }
}
