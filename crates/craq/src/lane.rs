//! The window of pending versions of one chunk.

use crate::{ForwardId, Onto, Ticket, TimerId, Update};
use glowfs_types::{ChunkVersion, Status};
use std::collections::VecDeque;

/// Who waits for an update.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Waiter {
    pub ticket: Ticket,
    pub client: bool,
}

/// How far the own store is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Stage {
    Running {
        commit: bool,
    },
    Done {
        committed: bool,
    },
    Refused(Status),
    /// The store had no place for it in its queue, or it came behind such a one: nothing of it is stored. It is staged again in its turn.
    Again {
        /// It is by now.
        under_way: bool,
        /// It is not before a pause: it was refused for itself, and not for one before it.
        pause: bool,
    },
}

impl Stage {
    /// Whether it is at the store, and then whether it is committed at once.
    pub fn under_way(self) -> Option<bool> {
        match self {
            Self::Running { commit } => Some(commit),
            Self::Again { under_way: true, .. } => Some(false),
            _ => None,
        }
    }
}

/// How far the successor is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Ack {
    /// To be sent.
    Unsent,
    /// To be sent when everything before it is answered.
    InOrder,
    Sent(ForwardId),
    /// To be sent after a pause.
    Paused(TimerId),
    /// The successor took nothing of it.
    Refused(Status),
    /// Committed there, with this content checksum (0: not known).
    Acked(u32),
}

impl Ack {
    /// Nothing of it is on its way, and nothing but its turn is waited for.
    pub(crate) fn is_to_send(self) -> bool {
        matches!(self, Self::Unsent | Self::InOrder)
    }
}

/// One pending version.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Entry {
    pub version: ChunkVersion,
    pub update: Update,
    pub stage: Stage,
    /// What it is staged on top of.
    pub onto: Onto,
    pub ack: Ack,
    /// The service still holds the update as it came.
    pub original: bool,
    /// Messages sent to the successor under this chain version.
    pub copies: u8,
    /// It began under a former chain version: a former successor may have committed (and shown) it.
    pub former: bool,
    /// It was sent to a serving successor of a former chain version, which may have committed (and shown) it.
    pub shown: bool,
    /// Commit is decided (and under way).
    pub decided: bool,
    pub waiters: Vec<Waiter>,
}

/// A client's update that waits for room in the window.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Queued {
    pub update: Update,
    pub tickets: Vec<Ticket>,
}

/// Everything under way on one chunk.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Lane {
    pub entries: VecDeque<Entry>,
    pub queue: VecDeque<Queued>,
    pub readers: VecDeque<Ticket>,
    /// Versions that are being taken back, with whether their stage still runs.
    pub doomed: Vec<(ChunkVersion, bool)>,
    /// The least version of the discard that is under way. An earlier one that is taken back meanwhile needs one of its own.
    pub discarding: Option<ChunkVersion>,
    /// Who mends the committed content (or waits to), and whether it may.
    pub held: Option<(Ticket, bool)>,
}

impl Lane {
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
            && self.queue.is_empty()
            && self.readers.is_empty()
            && self.doomed.is_empty()
            && self.held.is_none()
    }
    /// Whether versions are being taken back, or the content is being mended: nothing new may enter until that is done.
    pub fn is_clearing(&self) -> bool {
        !self.doomed.is_empty() || self.held.is_some()
    }
    /// Whether the own store has all versions up to that one.
    pub fn stored_up_to(&self, version: ChunkVersion) -> bool {
        let mut up_to = self.entries.iter().filter(|e| e.version <= version);
        up_to.all(|e| matches!(e.stage, Stage::Done { .. }))
    }
    pub fn entry(&mut self, version: ChunkVersion) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.version == version)
    }
    pub fn newest(&self) -> Option<ChunkVersion> {
        self.entries.back().map(|e| e.version)
    }
}
