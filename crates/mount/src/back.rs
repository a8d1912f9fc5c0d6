//! [`Back`]: what of a file was written, answered and is not sent yet (the option `write_back`).
//!
//! One set of writes is gathered while at most one other is on its way, so writes reach storage in the order of the sets.

use crate::gather::{Gathered, Run};
use glowfs_types::{Result, TruncateEpoch};
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that wait in all files of the mount, gathered or on their way.
#[derive(Clone, Default)]
pub struct Waiting(Rc<Cell<usize>>);

impl Waiting {
    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.0.get()
    }
    fn replace(&self, before: usize, after: usize) {
        self.0.set(self.0.get() - before + after);
    }
}

/// A set that is being sent.
struct Flying {
    end: u64,
    at_ns: u64,
    held: usize,
}

/// See the module.
pub struct Back {
    gathered: Gathered,
    /// When the last write of the set was answered.
    at_ns: u64,
    /// Some of the set went to the end of the file as it was.
    appends: bool,
    /// The number of the set that is being gathered.
    number: u64,
    /// The number of the last set that has ended.
    ended: u64,
    flying: Option<Flying>,
    /// What is being gathered is old enough to be sent.
    due: bool,
    /// Another client has cut the file, and it is not known yet where.
    cut: bool,
    /// All that waits was written after the cut that began this truncate epoch, or went with it as far as it had to. Meta tells of one cut more than once.
    covered: TruncateEpoch,
    waiting: Waiting,
}

impl Back {
    /// Nothing yet; what will be is counted there as well.
    pub fn new(waiting: Waiting) -> Self {
        Self {
            gathered: Gathered::default(),
            at_ns: 0,
            appends: false,
            number: 1,
            ended: 0,
            flying: None,
            due: false,
            cut: false,
            covered: TruncateEpoch::default(),
            waiting,
        }
    }
    /// Bytes gathered, and in how many pieces.
    pub fn size(&self) -> (usize, usize) {
        (self.gathered.held(), self.gathered.count())
    }
    /// All bytes that are not sent.
    pub fn unsent(&self) -> usize {
        self.gathered.held() + self.flying.as_ref().map_or(0, |f| f.held)
    }
    /// Where the last of what is not sent ends.
    pub fn end(&self) -> u64 {
        let flying = self.flying.as_ref().map_or(0, |f| f.end);
        self.gathered.end().unwrap_or(0).max(flying)
    }
    /// When the last of what is not sent was written.
    pub fn written_ns(&self) -> Option<u64> {
        let flying = self.flying.as_ref().map(|f| f.at_ns);
        if self.gathered.is_empty() { flying } else { Some(self.at_ns) }
    }
    /// The number of the last set that holds something now; 0: all is sent.
    pub fn last(&self) -> u64 {
        match (self.gathered.is_empty(), &self.flying) {
            (false, _) => self.number,
            (true, Some(_)) => self.number - 1,
            (true, None) => 0,
        }
    }
    /// Whether the set of that number has ended, and all before it.
    pub fn has_ended(&self, number: u64) -> bool {
        self.ended >= number
    }
    /// The set of that number is old enough to be sent. Whether it is still being gathered; then it goes as soon as nothing is on its way.
    pub fn is_due(&mut self, number: u64) -> bool {
        let gathered = self.number == number && !self.gathered.is_empty();
        self.due |= gathered;
        gathered
    }

    /// A write is answered. Returns the number of its set if it is the first of it.
    pub fn gather(&mut self, offset: u64, bytes: &[u8], now_ns: u64, append: bool) -> Option<u64> {
        let (first, before) = (self.gathered.is_empty(), self.gathered.held());
        self.gathered.write(offset, bytes);
        self.waiting.replace(before, self.gathered.held());
        self.at_ns = now_ns;
        self.appends |= append;
        first.then_some(self.number)
    }
    /// What was gathered is to be sent now, unless something is on its way or there is nothing: the runs, and when the last write was answered.
    pub fn take(&mut self) -> Option<(Vec<Run>, u64)> {
        if self.flying.is_some() || self.gathered.is_empty() {
            return None;
        }
        let (end, held) = (self.gathered.end().unwrap_or(0), self.gathered.held());
        let runs = self.gathered.take();
        self.flying = Some(Flying { end, at_ns: self.at_ns, held });
        (self.appends, self.due) = (false, false);
        self.number += 1;
        Some((runs, self.at_ns))
    }
    /// What was on its way has arrived, or some of it never will. Then appends behind it are lost as well: a hole would stay before them.
    /// Whether the next set is due.
    pub fn ended<T>(&mut self, outcome: &Result<T>) -> bool {
        let Some(flying) = self.flying.take() else { return false };
        self.waiting.replace(flying.held, 0);
        self.ended = self.number - 1;
        if outcome.is_err() && self.appends {
            self.waiting.replace(self.gathered.held(), 0);
            self.gathered = Gathered::default();
            self.appends = false;
            (self.ended, self.number) = (self.number, self.number + 1);
        }
        self.due && !self.gathered.is_empty()
    }

    /// Another client has cut the file, which has that epoch since: what was written before counts only as far as the file reaches now.
    pub fn note_cut(&mut self, epoch: TruncateEpoch) {
        if epoch <= self.covered {
            return;
        }
        self.cut = self.last() != 0;
        self.heard_of(epoch);
    }
    /// This client knows that epoch; if nothing waits, what will be written is written after the cut that began it.
    pub fn heard_of(&mut self, epoch: TruncateEpoch) {
        if self.last() == 0 {
            self.covered = self.covered.max(epoch);
        }
    }
    /// Meta has lost the truncates after that epoch with its power: what begins such an epoch from now on is another cut.
    pub fn went_back(&mut self, epoch: TruncateEpoch) {
        self.covered = self.covered.min(epoch);
    }
    /// Whether it has to be asked how long the file is, before anything is sent or gathered.
    pub fn wants_length(&self) -> bool {
        self.cut
    }
    /// The file was found to be so long under that epoch, by who asked after the last [`Self::note_cut`].
    pub fn cut_at(&mut self, len: u64, epoch: TruncateEpoch) {
        if std::mem::take(&mut self.cut) {
            self.cut_off(len, epoch);
        }
    }
    /// It was found to be so long under that epoch, which nobody may have told of yet, and was cut to nothing since the one that was known.
    pub fn cut_to_nothing(&mut self, len: u64, epoch: TruncateEpoch) {
        if epoch > self.covered {
            self.cut_off(len, epoch);
        }
    }
    fn cut_off(&mut self, len: u64, epoch: TruncateEpoch) {
        self.covered = self.covered.max(epoch);
        let before = self.gathered.held();
        self.gathered.cut(len);
        self.waiting.replace(before, self.gathered.held());
        if let Some(flying) = &mut self.flying {
            flying.end = flying.end.min(len);
        }
    }
    /// What is on its way counts only before this.
    pub fn limit(&self) -> u64 {
        self.flying.as_ref().map_or(0, |f| f.end)
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        let held = self.unsent();
        self.waiting.replace(held, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{Error, Status};

    fn failed() -> Result<()> {
        Err(Error::from(Status::NoSpace))
    }

    #[test]
    fn sets_go_one_after_the_other_and_are_counted() {
        let all = Waiting::default();
        let (mut a, mut b) = (Back::new(all.clone()), Back::new(all.clone()));
        assert_eq!((a.last(), a.end(), a.written_ns()), (0, 0, None));
        assert_eq!(a.gather(10, &[1; 10], 5, false), Some(1));
        assert_eq!(a.gather(20, &[2; 10], 6, false), None);
        assert_eq!(b.gather(0, &[3; 7], 6, false), Some(1));
        assert_eq!((a.end(), a.written_ns(), a.last(), all.bytes()), (30, Some(6), 1, 27));
        let (runs, at) = a.take().expect("gathered");
        assert_eq!((runs.len(), runs[0].offset, runs[0].len, at), (1, 10, 20, 6));
        assert_eq!(a.gather(0, &[4; 5], 7, false), Some(2));
        assert!(a.take().is_none(), "one at a time");
        assert_eq!((a.end(), a.last(), a.written_ns(), all.bytes()), (30, 2, Some(7), 32));
        assert!(!a.has_ended(1));
        assert!(!a.is_due(1), "it is on its way");
        assert!(a.is_due(2));
        assert!(a.ended(&Ok(())), "the next one has waited long enough");
        assert!(a.has_ended(1) && !a.has_ended(2));
        assert_eq!((a.end(), all.bytes()), (5, 12));
        assert!(a.take().is_some());
        assert!(!a.ended(&Ok(())));
        assert_eq!((a.last(), a.end(), a.written_ns()), (0, 0, None));
        drop((a, b));
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn appends_behind_what_is_lost_are_lost() {
        let all = Waiting::default();
        let mut a = Back::new(all.clone());
        a.gather(0, &[1; 10], 5, true);
        assert!(a.take().is_some());
        a.gather(10, &[2; 10], 6, true);
        let last = a.last();
        a.ended(&failed());
        assert_eq!((a.end(), a.last(), all.bytes()), (0, 0, 0));
        assert!(a.has_ended(last), "nobody waits for it");
        // What stands where it stands does not depend on what was lost.
        a.gather(0, &[1; 10], 5, false);
        assert!(a.take().is_some());
        a.gather(10, &[2; 10], 6, false);
        a.ended(&failed());
        assert_eq!((a.end(), all.bytes()), (20, 10));
    }

    #[test]
    fn what_another_client_cut_off_does_not_come_back() {
        let all = Waiting::default();
        let mut a = Back::new(all.clone());
        a.note_cut(TruncateEpoch(1));
        assert!(!a.wants_length(), "nothing was written before");
        a.gather(0, &[1; 10], 5, false);
        assert!(a.take().is_some());
        a.gather(10, &[1; 10], 5, false);
        a.note_cut(TruncateEpoch(2));
        assert!(a.wants_length());
        a.cut_at(4, TruncateEpoch(2));
        assert_eq!((a.end(), a.limit(), a.size().0, all.bytes()), (4, 4, 0, 10));
        a.gather(30, &[1; 10], 5, false);
        a.cut_at(4, TruncateEpoch(2));
        assert_eq!(a.end(), 40, "written after the cut");
    }

    #[test]
    fn what_was_written_after_a_cut_stays_when_it_is_told_again() {
        let [first, second, third, fourth] = [2, 3, 4, 5].map(TruncateEpoch);
        let mut a = Back::new(Waiting::default());
        a.gather(0, &[1; 10], 5, false);
        a.note_cut(first);
        a.cut_at(4, first);
        a.gather(30, &[1; 10], 5, false);
        a.note_cut(first);
        assert!(!a.wants_length());
        assert_eq!(a.end(), 40);
        a.note_cut(second);
        assert!(a.wants_length(), "that is another one");
        a.cut_at(0, second);
        assert_eq!(a.end(), 0);
        // Nothing waited when it was heard of, by meta's word or in an answer.
        a.note_cut(third);
        a.gather(30, &[1; 10], 5, false);
        a.note_cut(third);
        assert!(!a.wants_length());
        a.heard_of(fourth);
        a.note_cut(fourth);
        assert!(a.wants_length(), "some was written before");
        // Of two truncates of one epoch the first went with the power.
        a.cut_at(40, fourth);
        a.went_back(third);
        a.note_cut(fourth);
        assert!(a.wants_length());
    }

    #[test]
    fn a_cut_to_nothing_that_nobody_has_told_of_takes_along_what_was_written_before() {
        let mut a = Back::new(Waiting::default());
        a.gather(0, &[1; 10], 5, false);
        assert!(a.take().is_some());
        a.gather(10, &[1; 10], 5, false);
        a.cut_to_nothing(3, TruncateEpoch(2));
        assert_eq!((a.end(), a.limit()), (3, 3));
        a.gather(30, &[1; 10], 5, false);
        a.cut_to_nothing(0, TruncateEpoch(2));
        a.note_cut(TruncateEpoch(2));
        assert!(!a.wants_length());
        assert_eq!(a.end(), 40, "written after it");
    }
}
