//! Records that are older than the stores: mgmtd's part of older metadata that was put back.
//!
//! A target never adopts a version that mgmtd has not recorded before. So one that knows a newer version than the record proves that the chain went on, with
//! whatever members, after the record was copied: what the record says of who holds everything may be wrong. Then
//!
//! - the next version lies behind all that were ever adopted, for targets do nothing under others;
//! - whoever had not adopted the newest version of them as a serving member was not there when it was active, and can prove nothing: who stops, or is cut off,
//!   adopts the version without it, too. What counts is what each brought when it was first heard: the versions that are counted on to since are adopted by who is
//!   there, and say nothing;
//! - whoever was made anew, empty, proves nothing, also before anybody is heard who knows more;
//! - nobody takes over before all are there who can still prove something, or an operator forces it: who is away may know of a newer version.
//!
//! That a chain is in this state stands in its record: some version was active, and nobody served in it (`activated_serving` is empty).

use crate::chain::{Chain, Slot};
use crate::{Evidence, Proof};
use glowfs_types::routing::{LocalState, PublicState};
use glowfs_types::{ChainVersion, TargetId};

impl Chain {
    /// Its record was older than the stores, and nobody has served since that was found.
    pub fn restored(&self) -> bool {
        self.info.activated > ChainVersion(0) && self.info.activated_serving.is_empty()
    }

    /// Takes the proof of members that hold nothing and never adopted a version, though the record says that they served: they had left the chain after it was
    /// copied, and were made anew when it was put back. (Who serves without having adopted anything since the chain was forced to begin with it does so
    /// rightly.)
    pub(crate) fn doubt_those_made_anew(&mut self, slots: &mut [Slot]) {
        let begins = self.info.lost > self.info.activated;
        if self.info.activated == ChainVersion(0) {
            return;
        }
        for s in slots {
            let anew = s.seen.is_some_and(|o| {
                o.local != LocalState::Offline && o.empty && o.adopted == ChainVersion(0)
            });
            let serves = s.from == PublicState::Serving;
            let record = self.records.entry(s.target).or_default();
            if !anew || record.proof == Proof::None || (serves && begins) {
                continue;
            }
            record.proof = Proof::None;
            if serves {
                (s.local, s.why) = (Some(LocalState::Offline), Evidence::MadeAnew);
            }
        }
    }

    /// Looks whether the record, which is `self` with new lives accounted for, is older than the stores, and what remains of its proofs. The least version that
    /// the next one must be greater than, if so.
    pub(crate) fn find_older(&mut self, slots: &mut [Slot]) -> Option<ChainVersion> {
        let seen = || slots.iter().filter_map(|s| Some((s.target, s.seen?)));
        let newest = seen().map(|(_, o)| o.known.max(o.adopted)).max()?;
        // Of who was heard before it may be a version that was counted on to since.
        let fresh = |t: &TargetId| self.records.get(t).is_none_or(|r| r.brought.is_none());
        let adopted = seen().filter(|(t, _)| fresh(t)).map(|(_, o)| o.adopted).max();
        let unaccounted = adopted.is_some_and(|a| a > self.info.activated);
        let older = newest > self.info.version || (self.restored() && unaccounted);
        let serves = |s: &Slot| {
            s.from == PublicState::Serving
                && s.up()
                && s.seen.is_some_and(|o| o.adopted == self.info.version)
        };
        // A chain that serves by its record goes on; who knows more came too late.
        let goes_on = self.info.activated == self.info.version && slots.iter().any(serves);
        if older && !goes_on {
            self.info.activated = self.info.activated.max(adopted.unwrap_or_default());
            self.info.activated_serving.clear();
            for s in slots.iter_mut() {
                if matches!(s.from, PublicState::Serving | PublicState::Syncing) {
                    (s.local, s.why) = (Some(LocalState::Offline), Evidence::Older);
                }
            }
        }
        if self.restored() {
            self.weigh(slots);
        }
        older.then_some(newest)
    }

    /// Notes what each member brought when it was first heard, and takes the proof of those who lack what others have.
    fn weigh(&mut self, slots: &[Slot]) {
        for s in slots {
            // Of one that is away the record alone is known.
            if let Some(o) = s.seen.filter(|o| o.local != LocalState::Offline) {
                self.records.entry(s.target).or_default().brought.get_or_insert(o.served);
            }
        }
        for record in self.records.values_mut() {
            if record.brought.is_some_and(|b| b < self.info.activated) {
                record.proof = Proof::None;
            }
        }
    }
}
