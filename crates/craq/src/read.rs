//! Reads: committed content only, never from a replica that holds a pending version of the chunk. What was read is told when all have stored it (`shown.rs`).

use crate::{Action, READERS_MAX, Replica, Ticket};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{ChainVersion, ChunkId, Status};

impl Replica {
    /// Someone wants to read.
    pub(crate) fn read(
        &mut self,
        ticket: Ticket,
        version: ChainVersion,
        chunk: ChunkId,
        out: &mut Vec<Action>,
    ) {
        match self.can_read(version, chunk) {
            Ok(true) => out.push(Action::ReadNow(ticket)),
            Ok(false) => {
                let lane = self.lanes.entry(chunk).or_default();
                if lane.readers.len() >= READERS_MAX {
                    out.push(Action::ReadRefused(ticket, Status::Overloaded));
                } else {
                    lane.readers.push_back(ticket);
                }
            }
            Err(status) => {
                if status == Status::WrongChainVersion && version > self.adopted_version() {
                    out.push(Action::Refresh);
                }
                out.push(Action::ReadRefused(ticket, status));
            }
        }
    }

    /// Whether the chunk may be read at once; `false` means that a pending version must resolve first.
    pub fn can_read(&self, version: ChainVersion, chunk: ChunkId) -> Result<bool, Status> {
        if !self.check(version)?.serving() {
            return Err(Status::NotServing);
        }
        let readable = self.lanes.get(&chunk).is_none_or(|l| l.readable());
        Ok(planted(Mutant::DirtyRead) || readable && !self.begins_again())
    }

    /// A read has waited long enough.
    pub(crate) fn read_expired(&mut self, ticket: Ticket, chunk: ChunkId, out: &mut Vec<Action>) {
        self.tell_expired(ticket, chunk, out);
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        if let Some(at) = lane.readers.iter().position(|t| *t == ticket) {
            lane.readers.remove(at);
            out.push(Action::ReadRefused(ticket, Status::Pending));
        }
        self.drop_idle(chunk);
    }
}
