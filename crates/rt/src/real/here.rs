//! Small operations on files that lie in memory (tmpfs): this thread does them, between its turns.
//!
//! A tmpfs cannot say whether it would wait, so the ring hands all that it is asked to threads of the kernel. To wake one of them costs more than a small copy takes. (Large ones are
//! left to those threads: they copy while this one sends.) Bound: about [`TURN_BYTES`] a turn, so that answers leave before more is read.
//! Must never get what a disk is asked: that would hold up everything else of this thread. (What was swapped out does.)

use super::ops::OpTable;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Bytes that are copied in one turn, to the end of the operation that reaches it.
const TURN_BYTES: usize = 256 << 10;
/// What an operation counts besides its bytes: it is a system call.
const CALL_BYTES: usize = 4 << 10;

/// See the module.
#[derive(Default)]
pub(super) struct Here {
    waiting: RefCell<VecDeque<usize>>,
}

impl Here {
    /// It is done in one of the next turns, after those that came before.
    pub(super) fn push(&self, key: usize) {
        self.waiting.borrow_mut().push_back(key);
    }
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
    /// Does some of what waits.
    pub(super) fn work(&self, ops: &OpTable) {
        let mut left = TURN_BYTES;
        while left > 0 {
            let Some(key) = self.waiting.borrow_mut().pop_front() else { return };
            let Some(call) = ops.call(key) else { continue };
            let result = call.run();
            let bytes = result.as_ref().map_or(0, |n| *n);
            left = left.saturating_sub(bytes.saturating_add(CALL_BYTES));
            if ops.finish(key, result) {
                self.waiting.borrow_mut().push_front(key);
            }
        }
    }
}
