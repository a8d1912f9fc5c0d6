//! Chain versions: adopting a new one, and what becomes of everything under way.

use crate::lane::Ack;
use crate::{Action, ChunkView, Replica, View};
use glowfs_types::routing::ChainInfo;
use glowfs_types::{ChainVersion, ChunkId, Status};

impl Replica {
    /// The routing info says this of our chain. Nothing is done under a version before it is persisted, and nothing ever
    /// under a version of a former life.
    pub(crate) fn chain_known(
        &mut self,
        info: Option<&ChainInfo>,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let Some(info) = info else { return };
        if info.version <= self.former {
            return;
        }
        let view = View::of(info, self.me);
        if let Some(have) = &mut self.view
            && have.version >= view.version
        {
            if have.version == view.version && view.active && !have.active {
                have.active = true;
                self.progress_all(store, out);
            }
            return;
        }
        match &mut self.next {
            Some(next) if next.version > view.version => {}
            Some(next) if next.version == view.version => next.active |= view.active,
            _ => {
                self.next = Some(view);
                out.push(Action::Adopt(view.version));
            }
        }
    }

    /// A chain version is persisted: from now on only it counts.
    pub(crate) fn adopted(
        &mut self,
        version: ChainVersion,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let Some(view) = self.next.take_if(|n| n.version == version) else { return };
        self.view = Some(view);
        self.sync_done = false;
        self.forwards.clear();
        self.timers.clear();
        self.taken_back.clear();
        self.generations.clear();
        self.received.clear();
        self.covered.clear();
        let chunks: Vec<ChunkId> = self.lanes.keys().copied().collect();
        for chunk in &chunks {
            self.turn_lane(*chunk, &view, out);
        }
        out.push(Action::Report);
        self.progress_all(store, out);
    }

    /// One chunk under the new view: whoever asked under the old one is answered where its answer cannot come from here any
    /// more; pending versions are sent again, whatever the former successor said; a target that begins to sync drops them.
    fn turn_lane(&mut self, chunk: ChunkId, view: &View, out: &mut Vec<Action>) {
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        for e in &mut lane.entries {
            e.ack = Ack::Unsent;
            e.copies = 0;
            e.former = true;
            e.waiters.retain(|w| {
                let keep = w.client && view.head;
                if !keep {
                    let status =
                        if w.client { Status::NotServing } else { Status::WrongChainVersion };
                    out.push(Action::Reply(w.ticket, Err(status)));
                }
                keep
            });
        }
        if !view.head {
            for q in lane.queue.drain(..) {
                if let Some(origin) = &q.update.origin {
                    self.channels.abort(origin, chunk);
                }
                for ticket in q.tickets {
                    out.push(Action::Reply(ticket, Err(Status::NotServing)));
                }
            }
        }
        if !view.serving() {
            for ticket in lane.readers.drain(..) {
                out.push(Action::ReadRefused(ticket, Status::NotServing));
            }
        }
        if view.syncing() {
            self.take_back(chunk, 0, Status::WrongChainVersion, out);
        }
    }
}
