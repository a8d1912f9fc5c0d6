//! Lives of stores: whether the one that is heard is known, is a new one, or one of a store that was put back as it was before.
//!
//! A store counts its lives. One that is put back (a snapshot of its disk, a disk that was cloned) counts again what was counted before; it may lack anything that
//! was acknowledged since, so it proves nothing, whatever its record says. Guarantees: a store that was copied before the life that is accounted for is
//! known by one of these signs, whatever its number is by now:
//!
//! - the number is that of the life that is accounted for, and the life has drawn another lot (`nonce`);
//! - the number is less, and the node knew the greater one when it said so (otherwise it may be a late message of a former life);
//! - the number is the next one, and the life before it has not drawn the lot of the one that is accounted for;
//! - it has adopted an older chain version than the active one, which whoever can prove something had adopted durably before it became active. (Where the record
//!   is older than the stores ([`crate::Chain::restored`]), the active one may be only what others have said: what this member brought itself counts instead.)
//!
//! What cannot be told apart: a copy that was made during the very life that is accounted for looks like that life, interrupted.

use crate::{Evidence, MemberRecord, Observation, Proof};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{ChainVersion, Incarnation};

impl MemberRecord {
    /// Whether a life with that number and lot is the one that is accounted for. Older builds have no lot: of them the number must do.
    pub fn accounts_for(&self, incarnation: Incarnation, nonce: u32) -> bool {
        let same_lot = nonce == self.nonce || nonce == 0 || self.nonce == 0;
        incarnation == self.incarnation && same_lot
    }

    /// Whether what was observed counts: not if it is of a former life, as far as is known.
    pub(crate) fn counts(&self, o: &Observation) -> bool {
        o.incarnation >= self.incarnation || o.informed
    }

    /// Takes note of the life that is seen, and says what it is if it is not the one that is accounted for. `least` is the chain version that whoever can prove
    /// something has adopted.
    pub(crate) fn account(&mut self, o: &Observation, least: ChainVersion) -> Option<Evidence> {
        if self.accounts_for(o.incarnation, o.nonce) {
            if o.nonce != 0 {
                self.nonce = o.nonce;
            }
            return None;
        }
        let put_back = self.is_older(o, least);
        if put_back {
            self.proof = Proof::None;
            self.put_back = true;
        } else {
            // A life that was skipped may have ended in any way.
            let first = self.incarnation == Incarnation(0);
            let clean = planted(Mutant::IncarnationUnchecked)
                || first
                || (o.clean && o.incarnation == self.incarnation.next());
            if !clean {
                self.proof = self.interrupted(o);
            }
        }
        (self.incarnation, self.nonce) = (o.incarnation, o.nonce);
        Some(if put_back { Evidence::PutBack } else { Evidence::NewLife })
    }

    /// Whether the store of a life that is not accounted for is not what that one, or one after it, has left.
    fn is_older(&self, o: &Observation, least: ChainVersion) -> bool {
        let both_drew = o.nonce != 0 && self.nonce != 0;
        let next = o.incarnation == self.incarnation.next();
        // What was never more than empty was made anew, and proves nothing for that (`Chain::doubt_those_made_anew`).
        let anew = o.empty && o.adopted == ChainVersion(0);
        o.incarnation <= self.incarnation
            || (next && both_drew && o.former != self.nonce)
            || (self.proof != Proof::None && o.adopted < least && !anew)
    }

    /// What it can still prove when a life of it ended without a clean shutdown.
    fn interrupted(&self, now: &Observation) -> Proof {
        // All lives that were not accounted for yet ran under one boot of the machine, and none found damage where the last one's updates were.
        let machine_went_on =
            now.machine_since > Incarnation(0) && now.machine_since <= self.incarnation;
        match self.proof {
            Proof::Holds if machine_went_on => Proof::Killed,
            Proof::Holds => Proof::Suspect,
            // Since then it acknowledged nothing, and what it had was flushed before its next life was reported.
            other => other,
        }
    }
}
