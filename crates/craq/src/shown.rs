//! What may be shown: only what all serving members of the chain have stored.
//!
//! A write is sent on before the own store has it, so a member behind may have committed what those before it hold in memory only. It takes note of
//! each version that comes to it (*unvouched*), and asks its predecessor, which *vouches* for a version when its own store has it and it shows it itself
//! as far as those before it are concerned. So what is shown is stored by all before the one that shows it (they said so), by that one, and by all behind
//! it (it committed); whoever of them stays, and whatever becomes of its process, has it.
//!
//! Guarantees: content that is not vouched for is not shown; an acknowledgement waits for none of this. A read waits for the word on the version that it has read, whatever came
//! since. A word counts only under a chain version that is active, for the very update that was asked about, and so does it that a member is gone: until then it may be called on
//! to take over. Must never: vouch for what is in memory only or is not here at all, or for those before on their behalf;
//! take content of a predecessor of an older release, which does not vouch, for unvouched: nobody would ever vouch for it.

use crate::{Action, ChunkView, READERS_MAX, Replica, Ticket};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, Status};

/// What a target asks its predecessor about, and what that one vouches for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct About {
    /// The chunk.
    pub chunk: ChunkId,
    /// All versions up to this one.
    pub version: ChunkVersion,
    /// How often the one that asks had taken versions of the chunk back under this chain version. A number that was taken back is given again, so a word that was
    /// asked for before that may be of another update. It never leaves the process of the asker, and does not come to its end.
    pub generation: u64,
}

/// The versions of one chunk that came and that nobody has vouched for yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Unvouched {
    /// The first of them.
    pub from: ChunkVersion,
    /// The last.
    pub upto: ChunkVersion,
    /// The syncing successor may get it otherwise than through the chain, and would show it: the resync does not end before it is vouched for.
    pub holds_sync: bool,
}

impl Replica {
    /// A version came, of a predecessor that vouches.
    pub(crate) fn came_unvouched(&mut self, chunk: ChunkId, version: ChunkVersion) {
        let new = Unvouched { from: version, upto: version, holds_sync: false };
        let u = self.unvouched.entry(chunk).or_insert(new);
        // A whole content may be of a lesser version than what came in a former life of the chunk.
        u.from = u.from.min(version);
        u.upto = u.upto.max(version);
    }

    /// Versions from this one on were taken back. They were pending, so nobody has read them.
    pub(crate) fn unvouched_no_more(&mut self, chunk: ChunkId, from: ChunkVersion) {
        let Some(u) = self.unvouched.get_mut(&chunk) else { return };
        if from <= u.from {
            self.unvouched.remove(&chunk);
        } else if from <= u.upto {
            u.upto = ChunkVersion(from.0 - 1);
        }
    }

    /// Whether nothing of that version waits for the predecessor's word.
    fn is_vouched(&self, chunk: ChunkId, version: ChunkVersion) -> bool {
        self.unvouched.get(&chunk).is_none_or(|u| version < u.from)
    }

    /// Whether content of that version, read out of the store under that chain version, may be told.
    pub fn may_tell(
        &self,
        chain_version: ChainVersion,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<bool, Status> {
        // Who does not serve any more may have dropped its notes.
        if !self.check(chain_version)?.serving() {
            return Err(Status::NotServing);
        }
        Ok(!self.begins_again() && self.is_vouched(chunk, version))
    }

    /// Someone has read that version and waits until it may be told.
    pub(crate) fn tell(
        &mut self,
        ticket: Ticket,
        chain_version: ChainVersion,
        (chunk, version): (ChunkId, ChunkVersion),
        out: &mut Vec<Action>,
    ) {
        match self.may_tell(chain_version, chunk, version) {
            Ok(true) => out.push(Action::ReadNow(ticket)),
            Ok(false) => {
                let waiting = self.telling.entry(chunk).or_default();
                if waiting.len() >= READERS_MAX {
                    return out.push(Action::ReadRefused(ticket, Status::Overloaded));
                }
                waiting.push((version, ticket));
                out.push(Action::AskPredecessor(chunk, version));
            }
            Err(status) => out.push(Action::ReadRefused(ticket, status)),
        }
    }

    /// Lets go who waits for what is vouched for by now, and has it asked what the others wait for.
    fn tell_readers(&mut self, chunk: ChunkId, out: &mut Vec<Action>) {
        let from = self.unvouched.get(&chunk).map(|u| u.from);
        let Some(waiting) = self.telling.get_mut(&chunk) else { return };
        let told = waiting.extract_if(.., |(version, _)| from.is_none_or(|from| *version < from));
        out.extend(told.map(|(_, ticket)| Action::ReadNow(ticket)));
        match waiting.iter().map(|(version, _)| *version).min() {
            Some(version) => out.push(Action::AskPredecessor(chunk, version)),
            None => drop(self.telling.remove(&chunk)),
        }
    }

    /// Who waits is sent elsewhere: this target does not serve any more.
    pub(crate) fn tell_nobody(&mut self, out: &mut Vec<Action>) {
        let waiting = std::mem::take(&mut self.telling).into_values().flatten();
        out.extend(waiting.map(|(_, t)| Action::ReadRefused(t, Status::NotServing)));
    }

    /// One that waits has waited long enough.
    pub(crate) fn tell_expired(&mut self, ticket: Ticket, chunk: ChunkId, out: &mut Vec<Action>) {
        let Some(waiting) = self.telling.get_mut(&chunk) else { return };
        if let Some(at) = waiting.iter().position(|(_, t)| *t == ticket) {
            waiting.remove(at);
            out.push(Action::ReadRefused(ticket, Status::Pending));
        }
        if waiting.is_empty() {
            self.telling.remove(&chunk);
        }
    }

    fn about(&self, chunk: ChunkId, version: ChunkVersion) -> About {
        let generation = self.taken_back.get(&chunk).copied().unwrap_or(0);
        About { chunk, version, generation }
    }

    /// What this target has to ask its predecessor about: of each chunk from that one on the newest version.
    pub fn unvouched(&self, from: ChunkId) -> impl Iterator<Item = About> + '_ {
        self.unvouched.range(from..).map(|(chunk, u)| self.about(*chunk, u.upto))
    }

    /// What to ask for somebody who waits for that version; nothing if it is vouched for.
    pub fn unvouched_of(&self, chunk: ChunkId, version: ChunkVersion) -> Option<About> {
        let u = self.unvouched.get(&chunk).filter(|u| u.from <= version)?;
        Some(self.about(chunk, version.min(u.upto)))
    }

    /// How many chunks there are of which something is not vouched for.
    pub fn unvouched_chunks(&self) -> usize {
        self.unvouched.len()
    }

    /// Whom to ask, and under which chain version: nobody while a word would not count.
    pub fn asks_predecessor(&self) -> Option<crate::View> {
        let view = self.view.filter(|v| v.active && (v.serving() || v.syncing()))?;
        let asks = view.predecessor.is_some() && self.next.is_none() && self.failed.is_none();
        asks.then_some(view)
    }

    /// Whether neither this target nor one behind it shows what its predecessor does not vouch for. One that is brought up to date shows nothing yet; but it may under the very next
    /// chain version, before the predecessor has heard of that, so of it, too, this counts only once it has said so.
    pub fn shows_nothing_early(&self) -> bool {
        self.successor_asks || self.view.is_some_and(|v| v.successor.is_none())
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
        store: &dyn ChunkView,
    ) -> Result<bool, Status> {
        if !self.check(chain_version)?.serving() {
            return Err(Status::NotServing);
        }
        // It may have been taken back here, and its number not be given again yet.
        let here = self.newest(chunk, store) >= version;
        let stored = self.lanes.get(&chunk).is_none_or(|l| l.stored_up_to(version));
        Ok(here && stored && self.is_vouched(chunk, version))
    }

    /// The predecessor vouches for these, and for all versions before.
    pub(crate) fn vouched(
        &mut self,
        chain_version: ChainVersion,
        list: &[About],
        out: &mut Vec<Action>,
    ) {
        if !self.check(chain_version).is_ok_and(|v| v.active) {
            return;
        }
        for word in list {
            if self.about(word.chunk, word.version) != *word {
                continue;
            }
            let Some(u) = self.unvouched.get_mut(&word.chunk) else { continue };
            if word.version >= u.upto {
                self.unvouched.remove(&word.chunk);
            } else {
                u.from = u.from.max(word.version.next());
            }
            self.tell_readers(word.chunk, out);
        }
    }

    /// Nobody is before a head.
    pub(crate) fn vouch_for_itself(&mut self, out: &mut Vec<Action>) {
        let Some(view) = self.view.filter(|v| v.may_commit()) else { return };
        self.takes_part = true;
        if view.head {
            self.unvouched.clear();
        }
        if self.next.is_some() {
            // As soon as a newer view is known this one is over: who waits is told under that one, or sent elsewhere.
            return;
        }
        let chunks: Vec<ChunkId> = self.telling.keys().copied().collect();
        for chunk in chunks {
            self.tell_readers(chunk, out);
        }
    }

    /// Who begins a chain again knows what it had stored in its former life, not what it had taken note of: it shows nothing before it is certain that nobody
    /// else is called on.
    pub fn begins_again(&self) -> bool {
        !self.takes_part && self.view.is_some_and(|v| v.head)
    }
}

#[cfg(test)]
mod tests;
