//! Histories: calls and answers in the order in which they happened, and how much of them overlaps.

use std::sync::Mutex;
use todc_utils::{Action, History, Specification, WGLChecker};

struct Inner<T> {
    actions: Vec<(usize, Action<T>)>,
    begun: usize,
    /// An operation failed: whether it took effect is not known, so the history says nothing.
    spoiled: bool,
}

/// The history of one key. Shared by threads.
pub struct Recorder<T> {
    key: String,
    inner: Mutex<Inner<T>>,
}

/// What was found about one key.
pub struct Kept {
    /// Which.
    pub key: String,
    /// Its operations.
    pub operations: usize,
    /// Of these, such that overlap another one.
    pub overlapping: usize,
    /// The history, if no order explains it.
    pub violation: Option<String>,
}

impl<T: Clone + std::fmt::Debug> Recorder<T> {
    /// An empty one.
    pub fn new(key: String) -> Self {
        Self { key, inner: Mutex::new(Inner { actions: vec![], begun: 0, spoiled: false }) }
    }
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }
    /// A process calls (with any answer: it is not known yet); false: the history is long enough.
    pub fn call(&self, process: usize, op: T, most: usize) -> bool {
        let mut i = self.inner();
        if i.begun >= most {
            return false;
        }
        i.begun += 1;
        i.actions.push((process, Action::Call(op)));
        true
    }
    /// It is answered; none: it failed.
    pub fn answer(&self, process: usize, op: Option<T>) {
        let mut i = self.inner();
        match op {
            Some(op) => i.actions.push((process, Action::Response(op))),
            None => i.spoiled = true,
        }
    }
    /// Looks for an order. Call when nothing is on its way. None: there is nothing to say.
    pub fn check<S: Specification<Operation = T>>(&self) -> Option<Kept> {
        let i = self.inner();
        if i.spoiled || i.actions.is_empty() {
            return None;
        }
        let good = WGLChecker::<S>::is_linearizable(History::from_actions(i.actions.clone()));
        Some(Kept {
            key: self.key.clone(),
            operations: i.begun,
            overlapping: overlapping(&i.actions),
            violation: (!good).then(|| format!("{}: {:?}", self.key, i.actions)),
        })
    }
}

/// How many operations were under way at the same time as another one.
pub fn overlapping<T>(actions: &[(usize, Action<T>)]) -> usize {
    let mut open: Vec<(usize, bool)> = vec![];
    let mut count = 0;
    for (process, action) in actions {
        match action {
            Action::Call(_) => {
                let others = !open.is_empty();
                open.iter_mut().for_each(|o| o.1 = true);
                open.push((*process, others));
            }
            Action::Response(_) => {
                if let Some(at) = open.iter().position(|o| o.0 == *process) {
                    count += usize::from(open.remove(at).1);
                }
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{MountNames, NameOp, Names, Register, RegisterOp};
    use RegisterOp::{Read, Write};

    /// (process, begins, ends, what) to a recorder.
    fn record<T: Clone + std::fmt::Debug>(ops: &[(usize, u64, u64, T)]) -> Recorder<T> {
        let r = Recorder::new("k".into());
        let mut events: Vec<(u64, usize, bool, T)> = vec![];
        for (process, from, to, op) in ops {
            events.push((*from, *process, true, op.clone()));
            events.push((*to, *process, false, op.clone()));
        }
        events.sort_by_key(|e| e.0);
        for (_, process, call, op) in events {
            if call {
                assert!(r.call(process, op, 1000));
            } else {
                r.answer(process, Some(op));
            }
        }
        r
    }
    fn block(ops: &[(usize, u64, u64, RegisterOp)]) -> Kept {
        record(ops).check::<Register>().expect("something")
    }
    fn names(ops: &[(usize, u64, u64, NameOp)]) -> Kept {
        record(ops).check::<Names>().expect("something")
    }

    #[test]
    fn blocks_that_are_registers_and_such_that_are_not() {
        let good = block(&[(0, 1, 5, Write(1)), (1, 2, 3, Read(0)), (1, 4, 6, Read(1))]);
        assert!(good.violation.is_none() && good.operations == 3 && good.overlapping == 3);
        let stale = block(&[(0, 1, 2, Write(1)), (1, 3, 4, Read(0))]);
        assert!(stale.violation.is_some() && stale.overlapping == 0);
        let back = block(&[(0, 1, 9, Write(1)), (1, 2, 3, Read(1)), (2, 4, 5, Read(0))]);
        assert!(back.violation.is_some(), "new, then old, while the write is under way");
        let lost = block(&[(0, 1, 2, Write(1)), (1, 3, 4, Write(2)), (0, 5, 6, Read(1))]);
        assert!(lost.violation.is_some());
        let twice = block(&[
            (0, 1, 2, Write(1)),
            (1, 3, 4, Write(2)),
            (2, 5, 6, Read(2)),
            (2, 7, 8, Read(1)),
        ]);
        assert!(twice.violation.is_some(), "a write that was applied again");
    }

    #[test]
    fn names_that_are_atomic_and_such_that_are_not() {
        use NameOp::{Create, Open, Rename, Unlink};
        let good = names(&[
            (0, 1, 3, Create("a", Some(7))),
            (1, 2, 4, Create("a", None)),
            (0, 5, 8, Rename("a", "b", true)),
            (1, 6, 7, Open("a", None)),
            (2, 6, 9, Open("b", Some(7))),
            (0, 10, 11, Unlink("b", true)),
            (0, 12, 13, Unlink("b", false)),
        ]);
        assert!(good.violation.is_none(), "{:?}", good.violation);
        let both = names(&[(0, 1, 3, Create("a", Some(7))), (1, 2, 4, Create("a", Some(8)))]);
        assert!(both.violation.is_some(), "two created the same name");
        let gone = names(&[
            (0, 1, 2, Create("a", Some(7))),
            (0, 3, 4, Create("b", Some(8))),
            (0, 5, 9, Rename("a", "b", true)),
            (1, 6, 7, Open("b", None)),
        ]);
        assert!(gone.violation.is_some(), "a name that is replaced is there at all times");
        let split = names(&[
            (0, 1, 2, Create("a", Some(7))),
            (0, 3, 9, Rename("a", "b", true)),
            (1, 4, 5, Open("b", Some(7))),
            (1, 6, 7, Open("a", Some(7))),
        ]);
        assert!(split.violation.is_some(), "half of a rename");
    }

    #[test]
    fn the_kernel_renames_a_file_onto_itself_without_asking() {
        use NameOp::{Create, Open, Rename};
        let ops = [
            (0, 1, 2, Create("a", Some(7))),
            (0, 3, 6, Rename("a", "b", true)),
            (1, 4, 7, Rename("a", "b", true)),
            (0, 8, 9, Open("b", Some(7))),
        ];
        assert!(names(&ops).violation.is_some(), "nobody could order them");
        assert!(record(&ops).check::<MountNames>().expect("something").violation.is_none());
        // The first name is there again when the second one is looked up.
        let mut ops = ops.to_vec();
        ops[2].2 = 9; // It takes longer.
        ops.splice(
            3..,
            [
                (2, 6, 7, Create("a", Some(8))),
                (0, 10, 11, Open("b", Some(7))),
                (0, 12, 13, Open("a", Some(8))),
            ],
        );
        assert!(names(&ops).violation.is_some(), "nobody could order them");
        assert!(record(&ops).check::<MountNames>().expect("something").violation.is_none());
        // But not if that file never had the first name.
        let ops = [
            (0, 1, 2, Create("a", Some(7))),
            (0, 3, 4, Create("b", Some(8))),
            (0, 5, 6, Rename("a", "b", true)),
            (0, 7, 8, Open("b", Some(8))),
        ];
        assert!(record(&ops).check::<MountNames>().expect("something").violation.is_some());
        let ops = [(0, 1, 2, Create("a", Some(7))), (0, 3, 4, Rename("b", "c", true))];
        assert!(record(&ops).check::<MountNames>().expect("something").violation.is_some());
    }

    #[test]
    fn a_failed_operation_says_nothing_and_histories_are_bounded() {
        let r = Recorder::new("k".into());
        assert!(r.call(0, Write(1), 2));
        r.answer(0, None);
        assert!(r.call(0, Write(2), 2) && !r.call(0, Write(3), 2));
        assert!(r.check::<Register>().is_none());
    }
}
