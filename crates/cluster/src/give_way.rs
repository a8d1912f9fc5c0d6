//! Members that serve and cannot: whom they give way to.
//!
//! A member that is blamed ([`Observation::unreachable`](crate::Observation)) stays while it is the last one, since it alone may have what was acknowledged. Where that is not so, it keeps its
//! chain from going on: others left (they were away), it was to serve without them and has not heard of it, so that version was never active; and when one of
//! them is back, it waits to be brought up to date by one that cannot.
//!
//! Guarantees: who is given way to is up, is not blamed, and holds every acknowledged write. For
//!
//! - it has [`Proof::Holds`], so it was serving when the newest active version began, or began to serve since, and its lives since then ended cleanly;
//! - the chain's version is not active, and with the next change it never is. Nothing was acknowledged in it, nor in those between it and the active one; and what was acknowledged in that one is
//!   with all who could serve then, whoever left before or after it. Were it active, the proofs of all others would be gone ([`Chain::step`]); it is looked at all the same.
//!   That it never was is known by the record alone, so true records are a premise. Of metadata that were copied before that version was recorded as active, and put back, nothing shows that
//!   it was, as long as nobody tells of a later one: what was acknowledged in it may be lost (docs/replication.md, Records from the past).
//! - of a record that was put back ([`Chain::restored`]) all must be there that can prove something.
//!
//! Nor do two sides serve. Those who give way are taken out alive, and hold everything still, until the version without them is active: they can be given way to in their turn. It is active when
//! each of them has adopted it, or knows a later version than it served in, or can have no lease from before any more, as with all who are taken out alive (`chain.rs: may_answer`); and whoever else was taken out
//! of versions that were never active is waited for in the same way. Until then they may answer reads by the active version, under which nothing is acknowledged any more without the member that
//! is given way to, which is under a later one.
//!
//! Must never: have a chain given up by one that is not blamed, or of which nothing is known yet.

use crate::Proof;
use crate::chain::{Chain, Evidence, Slot};
use glowfs_types::TargetId;
use glowfs_types::routing::PublicState::{Serving, Waiting};

impl Chain {
    /// After the table, on the chain as it was with new lives accounted for: if all who serve are to blame, and somebody else holds everything, it serves, and they wait.
    pub(crate) fn give_way(&self, slots: &mut [Slot]) {
        let mut serving = slots.iter().filter(|s| s.to == Serving).peekable();
        if serving.peek().is_none() || !serving.all(Slot::blamed) {
            return;
        }
        let Some(heir) = self.heir(slots) else { return };
        for s in slots.iter_mut() {
            if s.target == heir {
                s.set(Serving, Evidence::Proven);
            } else if s.to == Serving {
                s.set(Waiting, Evidence::Unreachable);
            }
        }
    }

    /// The first member that can serve, does not, and holds everything.
    fn heir(&self, slots: &[Slot]) -> Option<TargetId> {
        if self.info.activated == self.info.version || !self.proofs_count(slots) {
            return None;
        }
        let fits = |s: &&Slot| s.to != Serving && s.up() && !s.blamed();
        let holds =
            |s: &&Slot| self.records.get(&s.target).is_some_and(|r| r.proof == Proof::Holds);
        slots.iter().filter(fits).find(holds).map(|s| s.target)
    }

    /// Whether what members can prove may be gone by: of a record that was put back only when all are there that can prove something.
    pub(crate) fn proofs_count(&self, slots: &[Slot]) -> bool {
        let proof = |s: &Slot| self.records.get(&s.target).map_or(Proof::None, |r| r.proof);
        !self.restored() || slots.iter().filter(|s| proof(s) != Proof::None).all(Slot::up)
    }
}
