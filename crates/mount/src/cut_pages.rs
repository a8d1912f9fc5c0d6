//! [`CutPages`]: pages of a file that the kernel may still have from before another client cut it.
//!
//! The recall of a cut has the kernel give them back, and the cut waits for that, but not for ever: then the file may be long again when they come. So until they have
//! come they go no further than the file was long at any moment since the cut, as far as meta has said. What this client makes longer itself counts as long: it may have stored there since.

use std::cell::Cell;
use std::rc::Rc;

/// See the module.
#[derive(Default)]
pub struct CutPages(Rc<State>);

#[derive(Default)]
struct State {
    /// Cuts for which the kernel is still giving pages back.
    pending: Cell<u32>,
    /// The least length since the first of them. None: it is not known yet.
    limit: Cell<Option<u64>>,
    /// How long this client has made it since.
    grown: Cell<u64>,
}

/// The kernel is giving pages back, until this is dropped.
pub struct Pending(Rc<State>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
        if self.0.pending.get() == 0 {
            self.0.limit.set(None);
            self.0.grown.set(0);
        }
    }
}

impl CutPages {
    /// Another client has cut the file.
    pub fn begin(&self) -> Pending {
        self.0.pending.set(self.0.pending.get() + 1);
        Pending(self.0.clone())
    }
    /// Meta says that the file is so long.
    pub fn heard(&self, len: u64) {
        if self.0.pending.get() > 0 {
            self.0.limit.set(Some(self.0.limit.get().map_or(len, |limit| limit.min(len))));
        }
    }
    /// This client has made it at least so long.
    pub fn grew(&self, len: u64) {
        if self.0.pending.get() > 0 {
            self.0.grown.set(self.0.grown.get().max(len));
        }
    }
    /// How far pages are to be written.
    pub fn limit(&self) -> u64 {
        self.0.limit.get().map_or(u64::MAX, |limit| limit.max(self.0.grown.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_before_go_as_far_as_the_file_was_long_since() {
        let cut = CutPages::default();
        cut.heard(5);
        assert_eq!(cut.limit(), u64::MAX, "nobody has cut it");
        let first = cut.begin();
        cut.heard(700);
        let second = cut.begin();
        cut.heard(9000);
        assert_eq!(cut.limit(), 700, "it was made longer since");
        cut.grew(300);
        cut.heard(20);
        assert_eq!(cut.limit(), 300, "by this client");
        drop(first);
        assert_eq!(cut.limit(), 300);
        drop(second);
        cut.grew(10);
        assert_eq!(cut.limit(), u64::MAX, "the kernel has none of them any more");
    }
}
