//! Holding a chunk still while its committed content is mended in place (at the same version).
//!
//! A repair replaces committed content, so nothing may be staged or committed on the chunk meanwhile: what is under way ends
//! first, updates of clients queue, those of the predecessor are refused and come again, reads wait.

use crate::{Action, ChunkView, Replica, Ticket};
use glowfs_types::{ChunkId, Status};

impl Replica {
    pub(crate) fn hold(
        &mut self,
        ticket: Ticket,
        chunk: ChunkId,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let lane = self.lanes.entry(chunk).or_default();
        if lane.held.is_some() {
            return out.push(Action::Held(ticket, Err(Status::Busy)));
        }
        lane.held = Some((ticket, false));
        self.progress(chunk, store, out);
    }

    pub(crate) fn let_go(
        &mut self,
        ticket: Ticket,
        chunk: ChunkId,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        if lane.held.is_some_and(|h| h.0 == ticket) {
            lane.held = None;
            self.progress(chunk, store, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, ChunkBrief, ChunkView, Event, Forwarded, Replica, Ticket, Update};
    use glowfs_types::routing::{ChainInfo, ChainMember, PublicState};
    use glowfs_types::{
        ChainId, ChainVersion, ChunkId, ChunkVersion, NodeId, Redundancy, Status, TargetId,
    };

    struct Store(u64);
    impl ChunkView for Store {
        fn chunk(&self, _: ChunkId) -> ChunkBrief {
            ChunkBrief { committed: ChunkVersion(self.0), exists: self.0 > 0, content_crc: 0 }
        }
        fn has_room(&self) -> bool {
            true
        }
    }

    const V: ChainVersion = ChainVersion(1);

    /// Target `me` of a chain of two, both serving.
    fn replica(me: u64) -> Replica {
        let member =
            |i| ChainMember { target: TargetId(i), node: NodeId(i), state: PublicState::Serving };
        let info = ChainInfo {
            id: ChainId(1),
            version: V,
            activated: V,
            activated_serving: Vec::new(),
            members: vec![member(1), member(2)],
            redundancy: Redundancy::Replicated,
            preferred: Vec::new(),
            lost: ChainVersion(0),
        };
        let mut r = Replica::new(TargetId(me), ChainVersion(0), &[], &[]);
        step(&mut r, Event::Chain(Some(info)), 0);
        step(&mut r, Event::Adopted(V), 0);
        r
    }
    fn step(r: &mut Replica, event: Event, committed: u64) -> Vec<Action> {
        let mut out = Vec::new();
        r.step(event, &Store(committed), &mut out);
        out
    }
    fn update(ticket: u64) -> Event {
        Event::Update {
            ticket: Ticket(ticket),
            chain_version: V,
            chunk: ChunkId::default(),
            update: Update::default(),
        }
    }
    fn forward(ticket: u64, version: u64) -> Event {
        let f = Forwarded {
            chain_version: V,
            chunk: ChunkId::default(),
            version: ChunkVersion(version),
            base: ChunkVersion(version - 1),
            generation: 0,
            full: false,
            sync: false,
            update: Update::default(),
        };
        Event::Forward(Ticket(ticket), f)
    }

    #[test]
    fn a_held_chunk_is_still_until_it_is_let_go() {
        let mut r = replica(1);
        let chunk = ChunkId::default();
        let held = step(&mut r, Event::Hold(Ticket(1), chunk), 3);
        assert_eq!(held, [Action::Held(Ticket(1), Ok(()))]);
        let second = step(&mut r, Event::Hold(Ticket(2), chunk), 3);
        assert_eq!(second, [Action::Held(Ticket(2), Err(Status::Busy))]);
        assert_eq!(step(&mut r, update(3), 3), [], "it queues");
        let read = Event::Read { ticket: Ticket(4), chain_version: V, chunk };
        assert_eq!(step(&mut r, read, 3), [], "it waits");
        assert_eq!(step(&mut r, Event::LetGo(Ticket(2), chunk), 3), [], "not the holder");
        let on = step(&mut r, Event::LetGo(Ticket(1), chunk), 3);
        assert!(on.contains(&Action::ReadNow(Ticket(4))), "{on:?}");
        assert!(
            on.iter().any(|a| matches!(a, Action::Stage { version: ChunkVersion(4), .. })),
            "{on:?}"
        );
    }

    #[test]
    fn a_hold_waits_for_what_is_under_way_and_refuses_what_comes() {
        let mut r = replica(2);
        let chunk = ChunkId::default();
        assert_eq!(step(&mut r, forward(1, 4), 3).len(), 1, "staged");
        assert_eq!(step(&mut r, Event::Hold(Ticket(2), chunk), 3), []);
        assert_eq!(
            step(&mut r, forward(3, 5), 3),
            [Action::Reply(Ticket(3), Err(Status::Overloaded))]
        );
        let done = step(&mut r, Event::Staged(chunk, ChunkVersion(4), Ok(())), 4);
        assert!(done.contains(&Action::Held(Ticket(2), Ok(()))), "{done:?}");
        step(&mut r, Event::LetGo(Ticket(2), chunk), 4);
        assert!(r.is_quiet());
    }
}
