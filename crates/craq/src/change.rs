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
            if have.version == view.version && view.active && !have.active && !self.dropping {
                have.active = true;
                if have.syncing() {
                    self.drop_former(out);
                }
                self.vouch_for_itself(out);
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
        self.dropping = false;
        self.forwards.clear();
        self.timers.clear();
        self.taken_back.clear();
        self.generations.clear();
        self.received.clear();
        self.covered.clear();
        self.whole_only = false;
        // What is unvouched stays so, whoever vouches now.
        self.unvouched.values_mut().for_each(|u| u.holds_sync = true);
        let asked = std::mem::take(&mut self.successor_asks);
        if !view.serving() {
            self.tell_nobody(out);
        }
        self.vouch_for_itself(out);
        let chunks: Vec<ChunkId> = self.lanes.keys().copied().collect();
        for chunk in &chunks {
            self.turn_lane(*chunk, &view, asked, out);
        }
        if view.syncing() && view.active {
            self.drop_former(out);
        }
        out.push(Action::Report);
        self.progress_all(store, out);
    }

    /// A target that is brought up to date drops its pending versions, and the records of what it has committed, which may be of writes that
    /// the chain does not have: those of the chain come with the resync. But not before the chain version is active: until then
    /// they may be the only copy of what was acknowledged, and mgmtd may still call on this target to take over. And before anything comes:
    /// to others the version is not active here before all that is done.
    fn drop_former(&mut self, out: &mut Vec<Action>) {
        self.dropping = true;
        if let Some(view) = &mut self.view {
            view.active = false;
        }
        self.unforgotten.append(&mut self.channels.clear());
        let chunks: Vec<ChunkId> = self.lanes.keys().copied().collect();
        for chunk in chunks {
            self.take_back(chunk, 0, Status::WrongChainVersion, out);
        }
        self.unvouched.clear();
        self.dropped(out);
    }

    /// Goes on with that: the store forgets the channels when nothing is under way that could bring one back.
    pub(crate) fn dropped(&mut self, out: &mut Vec<Action>) {
        let under_way = self.lanes.values().any(|l| !l.doomed.is_empty());
        if !self.dropping || under_way || self.forgetting {
            return;
        }
        if !self.unforgotten.is_empty() {
            self.forgetting = true;
            out.push(Action::ForgetChannels(std::mem::take(&mut self.unforgotten)));
        } else {
            self.dropping = false;
            if let Some(view) = &mut self.view {
                view.active = true;
            }
        }
    }

    /// One chunk under the new view: whoever asked under the old one is answered where its answer cannot come from here any
    /// more; pending versions are sent again, whatever the former successor said.
    fn turn_lane(&mut self, chunk: ChunkId, view: &View, asked: bool, out: &mut Vec<Action>) {
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        for e in &mut lane.entries {
            // A successor that asks shows nothing that is not stored here; what is stored here is not refused here any more.
            let waits = asked && e.update.vouches;
            e.shown |= e.copies > 0 && !matches!(e.ack, Ack::Refused(_)) && !waits;
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
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, ChunkBrief, ChunkView, Event, Replica, Ticket, Update};
    use glowfs_types::routing::{ChainInfo, ChainMember, PublicState};
    use glowfs_types::{ChainId, ChainVersion, ChunkId, NodeId, Redundancy, Status, TargetId};

    struct Empty;
    impl ChunkView for Empty {
        fn chunk(&self, _: ChunkId) -> ChunkBrief {
            ChunkBrief::default()
        }
        fn has_room(&self) -> bool {
            true
        }
    }

    fn chain(version: u64, states: [PublicState; 2]) -> ChainInfo {
        let member = |(i, state): (u64, PublicState)| ChainMember {
            target: TargetId(i),
            node: NodeId(i),
            state,
        };
        ChainInfo {
            id: ChainId(1),
            version: ChainVersion(version),
            activated: ChainVersion(version),
            activated_serving: Vec::new(),
            members: (1..).zip(states).map(member).collect(),
            redundancy: Redundancy::Replicated,
            preferred: Vec::new(),
            lost: ChainVersion(0),
        }
    }

    fn step(r: &mut Replica, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        r.step(event, &Empty, &mut out);
        out
    }

    /// A node that was cut off learns with its new lease that the chain went on without it. Until that is persisted it still
    /// has the view in which it served: nothing may be read or taken under it.
    #[test]
    fn a_view_is_over_as_soon_as_a_newer_one_is_known() {
        use PublicState::{Serving, Waiting};
        let mut r = Replica::new(TargetId(1), ChainVersion(0), &[], &[]);
        step(&mut r, Event::Chain(Some(chain(5, [Serving, Serving]))));
        step(&mut r, Event::Adopted(ChainVersion(5)));
        let read = |n| Event::Read {
            ticket: Ticket(n),
            chain_version: ChainVersion(5),
            chunk: ChunkId::default(),
        };
        assert_eq!(step(&mut r, read(1)), [Action::ReadNow(Ticket(1))]);
        step(&mut r, Event::Chain(Some(chain(7, [Waiting, Serving]))));
        assert_eq!(
            step(&mut r, read(2)),
            [Action::ReadRefused(Ticket(2), Status::WrongChainVersion)]
        );
        let update = Event::Update {
            ticket: Ticket(3),
            chain_version: ChainVersion(5),
            chunk: ChunkId::default(),
            update: Update::default(),
        };
        assert_eq!(
            step(&mut r, update),
            [Action::Reply(Ticket(3), Err(Status::WrongChainVersion))]
        );
        step(&mut r, Event::Adopted(ChainVersion(7)));
        let late = Event::Read {
            ticket: Ticket(4),
            chain_version: ChainVersion(7),
            chunk: ChunkId::default(),
        };
        assert_eq!(step(&mut r, late), [Action::ReadRefused(Ticket(4), Status::NotServing)]);
    }
}
