//! [`Unflushed`]: what this client was told is written of a file, and is not known to be flushed, so that an fsync does not hide that it is gone.
//!
//! When all replicas of a chain lose their power, it begins again from one of them, without what that one had not flushed; since which version stands in the
//! routing info ([`glowfs_types::routing::ChainInfo::lost`]). What was acknowledged under an older version and is not known to be flushed counts as lost. All open
//! files of an inode share one record, and each of them hears of a loss once. Bounded by the chains of the file.

use glowfs_types::{ChainId, ChainVersion, DataId, TruncateEpoch};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Updates of one chain.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// The oldest chain version under which one of them was acknowledged.
    since: ChainVersion,
    /// The number of the newest one.
    newest: u64,
    /// Its truncate epoch.
    epoch: TruncateEpoch,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    notes: RefCell<BTreeMap<(DataId, ChainId), Note>>,
    /// Updates noted so far.
    number: Cell<u64>,
    /// The newest truncate epoch of the file that was noted.
    epoch: Cell<TruncateEpoch>,
    /// The number of the newest loss that was found, 0 for none; numbers of losses are the client's.
    loss: Cell<u64>,
}

/// A moment, such as the begin of a flush: what was noted before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun(u64);

impl Unflushed {
    /// An update was acknowledged.
    pub fn note(
        &self,
        (data, epoch): (DataId, TruncateEpoch),
        chain: ChainId,
        version: ChainVersion,
    ) {
        let newest = self.number.get() + 1;
        self.number.set(newest);
        let mut notes = self.notes.borrow_mut();
        if epoch > self.epoch.get() {
            self.epoch.set(epoch);
            // What was written before the file was cut to nothing is nobody's any more.
            notes.retain(|(of, _), note| *of == data || note.epoch >= epoch);
        }
        let fresh = Note { since: version, newest, epoch };
        let note = notes.entry((data, chain)).or_insert(fresh);
        *note = Note { since: note.since.min(version), newest, epoch: note.epoch.max(epoch) };
    }

    /// A flush, or a truncate to nothing, begins.
    pub fn begin(&self) -> Begun {
        Begun(self.number.get())
    }

    /// This client has cut the file to nothing, and asked for that at `asked`: what was acknowledged before is nobody's any more.
    pub fn cut_to_nothing(&self, asked: Begun) {
        self.notes.borrow_mut().retain(|_, note| note.newest > asked.0);
    }

    /// It has made durable what it covers of `data`, the file's since truncate epoch `epoch`, on these chains, each of which says since when something may be
    /// gone. Whether something is that no flush had told of yet.
    pub fn flushed(
        &self,
        begun: Begun,
        (data, epoch): (DataId, TruncateEpoch),
        lost: &BTreeMap<ChainId, ChainVersion>,
    ) -> bool {
        let mut gone = false;
        self.notes.borrow_mut().retain(|(of, chain), note| {
            if *of != data {
                // What was written before the file was cut to nothing is nobody's any more.
                return note.epoch >= epoch;
            }
            let Some(lost) = lost.get(chain) else { return true };
            gone |= note.since < *lost;
            note.since = note.since.max(*lost);
            note.newest > begun.0
        });
        gone
    }

    /// Without a flush: whether something is gone that nobody has told of yet, by what is known of the chains.
    pub fn look(&self, lost: impl Fn(ChainId) -> Option<ChainVersion>) -> bool {
        let mut gone = false;
        for ((_, chain), note) in self.notes.borrow_mut().iter_mut() {
            let lost = lost(*chain).unwrap_or_default();
            gone |= note.since < lost;
            note.since = note.since.max(lost);
        }
        gone
    }

    /// Whether nothing is noted.
    pub fn is_empty(&self) -> bool {
        self.notes.borrow().is_empty()
    }

    /// The number of the newest loss.
    pub fn loss(&self) -> u64 {
        self.loss.get()
    }
    /// A loss of that number was found.
    pub fn found(&self, number: u64) {
        self.loss.set(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: (DataId, TruncateEpoch) = (DataId(7), TruncateEpoch(1));
    const CHAIN: ChainId = ChainId(1);

    fn lost(version: u64) -> BTreeMap<ChainId, ChainVersion> {
        [(CHAIN, ChainVersion(version))].into()
    }
    fn write(u: &Unflushed, version: u64) {
        u.note(DATA, CHAIN, ChainVersion(version));
    }

    #[test]
    fn what_was_flushed_before_the_power_went_is_not_lost() {
        let u = Unflushed::default();
        write(&u, 3);
        let begun = u.begin();
        assert!(!u.flushed(begun, DATA, &lost(0)));
        assert!(u.is_empty());
        assert!(!u.flushed(u.begin(), DATA, &lost(5)));
        write(&u, 5);
        assert!(!u.flushed(u.begin(), DATA, &lost(5)), "written since");
    }

    #[test]
    fn what_was_not_is_told_of_once() {
        let u = Unflushed::default();
        write(&u, 3);
        write(&u, 5);
        assert!(u.look(|_| Some(ChainVersion(5))));
        assert!(!u.look(|_| Some(ChainVersion(5))));
        assert!(!u.flushed(u.begin(), DATA, &lost(5)));
        write(&u, 5);
        // Two flushes at once.
        let (one, two) = (u.begin(), u.begin());
        assert!(u.flushed(one, DATA, &lost(9)) && !u.flushed(two, DATA, &lost(9)));
    }

    #[test]
    fn a_flush_covers_what_came_before_it() {
        let u = Unflushed::default();
        let begun = u.begin();
        write(&u, 3);
        assert!(!u.flushed(begun, DATA, &lost(0)));
        assert!(!u.is_empty(), "written after it began");
        assert!(u.flushed(u.begin(), DATA, &lost(4)));
    }

    /// A file that is cut to nothing and written again and again, and never flushed, left a note behind each time.
    #[test]
    fn notes_are_of_the_present_data_only() {
        let u = Unflushed::default();
        for n in 1..100 {
            u.note((DataId(n), TruncateEpoch(n)), ChainId(n), ChainVersion(3));
        }
        assert!(!u.look(|c| Some(ChainVersion(if c == ChainId(99) { 0 } else { 5 }))), "{u:?}");
        assert_eq!(u.notes.borrow().len(), 1);
    }

    #[test]
    fn what_was_cut_off_is_nobodys_loss() {
        let u = Unflushed::default();
        write(&u, 3);
        let now = (DataId(8), TruncateEpoch(2));
        u.note(now, ChainId(2), ChainVersion(3));
        let lost = [(ChainId(1), ChainVersion(5)), (ChainId(2), ChainVersion(0))].into();
        assert!(!u.flushed(u.begin(), now, &lost));
        assert!(u.is_empty(), "{u:?}");
    }

    #[test]
    fn a_truncate_to_nothing_takes_what_was_written_before_it_was_asked_for() {
        let u = Unflushed::default();
        write(&u, 3);
        let asked = u.begin();
        u.note(DATA, ChainId(2), ChainVersion(3));
        u.cut_to_nothing(asked);
        assert!(!u.look(|c| (c == CHAIN).then_some(ChainVersion(5))));
        assert!(u.look(|_| Some(ChainVersion(5))), "written meanwhile");
    }
}
