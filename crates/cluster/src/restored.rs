//! Records that are older than the stores: mgmtd's part of older metadata that was put back.
//!
//! A target never adopts a version that mgmtd has not recorded before. So one that knows a newer version than the record proves that the chain went on, with
//! whatever members, after the record was copied: what the record says of who holds everything may be wrong. Then
//!
//! - the next version lies behind all that were ever adopted, for targets do nothing under others;
//! - whoever has not adopted the newest version of them was not there when it was active, and can prove nothing;
//! - nobody takes over before all are there who can still prove something, or an operator forces it: who is away may know of a newer version.
//!
//! That a chain is in this state stands in its record: some version was active, and nobody served in it (`activated_serving` is empty).

use crate::chain::{Chain, Slot};
use crate::{Evidence, Observation, Proof};
use glowfs_types::ChainVersion;
use glowfs_types::routing::{LocalState, PublicState};

impl Chain {
    /// Its record was older than the stores, and nobody has served since that was found.
    pub fn restored(&self) -> bool {
        self.info.activated > ChainVersion(0) && self.info.activated_serving.is_empty()
    }

    /// Looks whether the record, which is `self` with new lives accounted for, is older than the stores, and what remains of its proofs. The least version that
    /// the next one must be greater than, if so.
    pub(crate) fn find_older(
        &mut self,
        before: &Chain,
        slots: &mut [Slot],
    ) -> Option<ChainVersion> {
        let seen = || slots.iter().filter_map(|s| Some((s.target, s.seen?)));
        let newest = seen().map(|(_, o)| o.known.max(o.adopted)).max()?;
        let adopted = seen().map(|(_, o)| o.adopted).max()?;
        // What a new life has adopted it adopted in a former one, perhaps before the record was put back.
        let unaccounted = seen()
            .filter(|(t, o)| before.records.get(t).is_none_or(|r| o.incarnation > r.incarnation))
            .any(|(_, o)| o.adopted > self.info.activated);
        let older = newest > self.info.version || (self.restored() && unaccounted);
        let serves = |s: &Slot| {
            s.from == PublicState::Serving
                && s.up()
                && s.seen.is_some_and(|o| o.adopted == self.info.version)
        };
        // A chain that serves by its record goes on; who knows more came too late.
        let goes_on = self.info.activated == self.info.version && slots.iter().any(serves);
        if older && !goes_on {
            self.info.activated = self.info.activated.max(adopted);
            self.info.activated_serving.clear();
            for s in slots.iter_mut() {
                if matches!(s.from, PublicState::Serving | PublicState::Syncing) {
                    (s.local, s.why) = (Some(LocalState::Offline), Evidence::Older);
                }
            }
        }
        if self.restored() {
            // Of one that is away the record alone is known.
            let lacks =
                |o: Observation| o.local != LocalState::Offline && o.adopted < self.info.activated;
            for s in slots.iter().filter(|s| s.seen.is_some_and(lacks)) {
                self.records.entry(s.target).or_default().proof = Proof::None;
            }
        }
        older.then_some(newest)
    }
}
