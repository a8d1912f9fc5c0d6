//! Writes to contents with the metadata of which nobody heard whether they took effect: all attempts failed, or whoever waited gave up.
//!
//! A copy of one may be on its way still, held up in a service that is cut off. So before this client changes the file again, or says what it did, it
//! tells meta to refuse what it sent before (the fence of its session): what took effect by then is there, and nothing comes later. Must
//! never: change a file whose doubts are not settled.

use crate::client::Client;
use crate::file::OpenFile;
use crate::retry::again_meta;
use glowfs_types::wire::meta::Sync;
use glowfs_types::{Error, InodeId, Result, Status};
use std::cell::Cell;

/// What an open file knows of it.
#[derive(Default)]
pub(crate) struct Doubts {
    /// Sent with every write.
    fence: Cell<u64>,
    /// Writes with this number or a smaller one are in doubt.
    open: Cell<Option<u64>>,
}

/// A write that is on its way. Unless its outcome is known at the end, it is in doubt from then on.
pub(crate) struct Sent<'a> {
    doubts: &'a Doubts,
    /// The number that it goes with.
    pub fence: u64,
    known: bool,
}

impl Doubts {
    /// A write is sent.
    pub fn sent(&self) -> Sent<'_> {
        Sent { doubts: self, fence: self.fence.get(), known: false }
    }
    /// The number that writes go with now.
    pub fn fence(&self) -> u64 {
        self.fence.get()
    }
    /// Whether some write is in doubt.
    pub fn any(&self) -> bool {
        self.open.get().is_some()
    }
}

impl Sent<'_> {
    /// What came of it.
    pub fn answered<T>(&mut self, outcome: &Result<T>) {
        // Without its session it has no effect any more.
        self.known = outcome.as_ref().err().is_none_or(|e| !again_meta(e.status));
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.known {
            self.doubts.open.set(self.doubts.open.get().max(Some(self.fence)));
        }
    }
}

impl Client {
    /// Returns when no write to this file that this client has sent, and that nobody waits for any more, can take effect later.
    pub(crate) async fn settle_doubts(&self, inode: InodeId) -> Result<()> {
        for file in self.core.files.in_doubt(inode) {
            self.settle_doubts_of(&file).await?;
        }
        Ok(())
    }

    async fn settle_doubts_of(&self, file: &OpenFile) -> Result<()> {
        let doubts = file.doubts();
        let (Some(of), Some(session)) = (doubts.open.get(), file.session()) else { return Ok(()) };
        let fence = doubts.fence.get().max(of.saturating_add(1));
        // What is sent from here on is not in doubt.
        doubts.fence.set(fence);
        let q = Sync {
            caller: file.access().caller.clone(),
            inode: file.inode(),
            session: Some(session),
            epoch: file.epoch(),
            fence,
            // A fence that a loss of power takes away would let through what it was to hold back.
            durable: true,
            ..Sync::default()
        };
        match self.sync_as_it_is(q).await {
            Ok(_) => {}
            // Without a session, or without the file, nothing can come any more.
            Err(Error { status: Status::SessionEnded | Status::Stale, .. }) => {}
            Err(e) => return Err(e.context("a write that was given up may still be on its way")),
        }
        if doubts.open.get().is_some_and(|open| open < fence) {
            doubts.open.set(None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_final_answer_is_in_doubt() {
        let doubts = Doubts::default();
        doubts.sent().answered(&Ok(()));
        doubts.sent().answered::<()>(&Err(Status::NoSpace.into()));
        assert!(!doubts.any());
        doubts.sent().answered::<()>(&Err(Status::Disconnected.into()));
        assert!(doubts.any());
        doubts.open.set(None);
        doubts.fence.set(7);
        drop(doubts.sent());
        assert_eq!(doubts.open.get(), Some(7), "given up");
    }
}
