//! What may be shown: only what all serving members of the chain have stored.
//!
//! A write is sent on before the own store has it, so a member behind may have committed what those before it hold in memory only. It takes note of
//! each version that comes to it (*unvouched*), and asks its predecessor, which *vouches* for a version when its own store has it and it shows it itself
//! as far as those before it are concerned. So what is shown is stored by all before the one that shows it (they said so), by that one, and by all behind
//! it (it committed); whoever of them stays, and whatever becomes of its process, has it.
//!
//! Guarantees: content that is not vouched for is not shown; an acknowledgement waits for none of this. A word counts only under a chain version that is active, and
//! so does it that a member is gone: until then it may be called on to take over. Must never: vouch for what is in memory only, or for those before on their behalf;
//! take content of a predecessor of an older release, which does not vouch, for unvouched: nobody would ever vouch for it.

use crate::{Action, ChunkView, Replica};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, Status};

/// The versions of one chunk that came and that nobody has vouched for yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Unvouched {
    /// The first of them.
    pub from: ChunkVersion,
    /// The last.
    pub upto: ChunkVersion,
}

impl Replica {
    /// A version came, of a predecessor that vouches.
    pub(crate) fn came_unvouched(&mut self, chunk: ChunkId, version: ChunkVersion) {
        let new = Unvouched { from: version, upto: version };
        let u = self.unvouched.entry(chunk).or_insert(new);
        // A whole content may be of a lesser version than what came in a former life of the chunk.
        u.from = u.from.min(version);
        u.upto = u.upto.max(version);
    }

    /// Versions from this one on were taken back.
    pub(crate) fn unvouched_no_more(&mut self, chunk: ChunkId, from: ChunkVersion) {
        let Some(u) = self.unvouched.get_mut(&chunk) else { return };
        if from <= u.from {
            self.unvouched.remove(&chunk);
        } else if from <= u.upto {
            u.upto = ChunkVersion(from.0 - 1);
        }
    }

    /// Whether content of that version, read out of the store, may be told: it was committed, perhaps only after the read was let go on.
    pub fn may_tell(&self, chunk: ChunkId, version: ChunkVersion) -> bool {
        self.unvouched.get(&chunk).is_none_or(|u| version < u.from)
    }

    /// What this target has to ask its predecessor about: of each chunk from that one on the newest version.
    pub fn unvouched(&self, from: ChunkId) -> impl Iterator<Item = (ChunkId, ChunkVersion)> + '_ {
        self.unvouched.range(from..).map(|(chunk, u)| (*chunk, u.upto))
    }

    /// Whom to ask, and under which chain version: nobody while a word would not count.
    pub fn asks_predecessor(&self) -> Option<crate::View> {
        let view = self.view.filter(|v| v.active && (v.serving() || v.syncing()))?;
        let asks = view.predecessor.is_some() && self.next.is_none() && self.failed.is_none();
        asks.then_some(view)
    }

    /// Whether neither this target nor a serving one behind it shows what its predecessor does not vouch for. (One that is brought up to date shows nothing.)
    pub fn shows_nothing_early(&self) -> bool {
        self.successor_asks
            || self.view.is_some_and(|v| v.successor.is_none_or(|(_, _, syncing)| syncing))
    }

    /// Whether the successor has said so under this chain version.
    pub fn successor_asks(&self) -> bool {
        self.successor_asks
    }

    /// Whether all up to that version is stored here, and by all serving members before this one.
    pub fn vouches(
        &self,
        chain_version: ChainVersion,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<bool, Status> {
        if !self.check(chain_version)?.serving() {
            return Err(Status::NotServing);
        }
        // What is not under way is in the store: each version of a member behind came through here.
        let lane = self.lanes.get(&chunk);
        let stored = lane.is_none_or(|l| l.stored_up_to(version));
        Ok(stored && self.may_tell(chunk, version))
    }

    /// The predecessor vouches for these, and for all versions before.
    pub(crate) fn vouched(
        &mut self,
        chain_version: ChainVersion,
        list: &[(ChunkId, ChunkVersion)],
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        if !self.check(chain_version).is_ok_and(|v| v.active) {
            return;
        }
        for (chunk, version) in list {
            let Some(u) = self.unvouched.get_mut(chunk) else { continue };
            if *version >= u.upto {
                self.unvouched.remove(chunk);
                self.progress(*chunk, store, out);
            } else {
                u.from = u.from.max(version.next());
            }
        }
    }

    /// Nobody is before a head.
    pub(crate) fn vouch_for_itself(&mut self) {
        let Some(view) = self.view.filter(|v| v.may_commit()) else { return };
        self.takes_part = true;
        if view.head {
            self.unvouched.clear();
        }
    }

    /// Who begins a chain again knows what it had stored in its former life, not what it had taken note of: it shows nothing before it is certain that nobody
    /// else is called on.
    pub fn begins_again(&self) -> bool {
        !self.takes_part && self.view.is_some_and(|v| v.head)
    }

    /// Whether this chunk may be shown, as it is committed.
    pub(crate) fn is_vouched(&self, chunk: ChunkId) -> bool {
        !self.begins_again() && !self.unvouched.contains_key(&chunk)
    }
}
