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
    /// Whether it may have some of what lies from there on. Whoever asks tells it to forget that.
    pub fn take_from(&self, from: u64) -> bool {
        let has = self.0.get() > from;
        self.0.set(self.0.get().min(from));
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_appends_to_what_nobody_reads_has_nothing_forgotten() {
        let given = GivenPages::default();
        assert!(!given.take_from(0), "nothing was read");
        given.give(5000);
        assert!(!given.take_from(8192));
        assert!(given.take_from(4096), "its last page was");
        assert!(!given.take_from(4096), "once");
        assert!(given.take_from(0), "the first is there still");
        given.kept();
        assert!(given.take_from(1 << 40) && !given.take_from(1 << 40));
    }
}
