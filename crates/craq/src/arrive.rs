//! Updates that arrive: from clients at the head, from the predecessor elsewhere.

use crate::dedupe::Seen;
use crate::lane::{Ack, Entry, Queued, Stage, Waiter};
use crate::{
    Action, ChunkView, Done, Forwarded, Onto, QUEUE_MAX, Replica, Ticket, UNVOUCHED_MAX, Update,
    WINDOW,
};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, Status};

fn refuse(ticket: Ticket, status: Status, out: &mut Vec<Action>) {
    out.push(Action::Reply(ticket, Err(status)));
}

impl Replica {
    fn wrong_version(&self, theirs: ChainVersion, status: Status, out: &mut Vec<Action>) {
        if status == Status::WrongChainVersion && theirs > self.adopted_version() {
            out.push(Action::Refresh);
        }
    }

    /// A client's update.
    pub(crate) fn update(
        &mut self,
        ticket: Ticket,
        version: ChainVersion,
        chunk: ChunkId,
        update: Update,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let active = match self.check(version) {
            Err(status) => {
                self.wrong_version(version, status, out);
                return refuse(ticket, status, out);
            }
            Ok(view) if !view.head => return refuse(ticket, Status::NotServing, out),
            Ok(view) => view.may_commit(),
        };
        let seen = update.origin.as_ref().map_or(Seen::New, |o| self.channels.look(o, chunk));
        match seen {
            Seen::Old => return refuse(ticket, Status::OldSequence, out),
            // Committed under a former version, but before the present one is active another target may still take over.
            Seen::Done(_) if !active => return refuse(ticket, Status::Pending, out),
            Seen::Done(version) => {
                let done = Done { chunk, version, flush: update.flush };
                return out.push(Action::Reply(ticket, Ok(done)));
            }
            Seen::Running => return self.join(ticket, chunk, &update, out),
            Seen::New => {}
        }
        if update.origin.as_ref().is_some_and(|o| self.channels.is_full(o)) {
            return refuse(ticket, Status::Overloaded, out);
        }
        if update.needs_room && !store.has_room() {
            return refuse(ticket, Status::NoSpace, out);
        }
        // Nobody is before the head.
        let update = Update { vouches: true, ..update };
        let brief = store.chunk(chunk);
        if update.removes && !brief.exists && !self.lanes.contains_key(&chunk) {
            if !active {
                return refuse(ticket, Status::Pending, out);
            }
            let done = Done { chunk, version: brief.committed, flush: update.flush };
            return out.push(Action::Reply(ticket, Ok(done)));
        }
        let lane = self.lanes.entry(chunk).or_default();
        if lane.is_clearing() || lane.entries.len() >= WINDOW || !lane.queue.is_empty() {
            if lane.queue.len() >= QUEUE_MAX {
                return refuse(ticket, Status::Overloaded, out);
            }
            lane.queue.push_back(Queued { update, tickets: vec![ticket] });
            if let Some(origin) = &update.origin {
                self.channels.begin(origin, chunk);
            }
            return;
        }
        let version = self.newest(chunk, store).next();
        self.admit(Waiter { ticket, client: true }, chunk, version, update, Onto::Previous, out);
        self.progress(chunk, store, out);
    }

    /// A retry of an update that is still on its way.
    fn join(&mut self, ticket: Ticket, chunk: ChunkId, update: &Update, out: &mut Vec<Action>) {
        let Some(lane) = self.lanes.get_mut(&chunk) else {
            return refuse(ticket, Status::Pending, out);
        };
        if let Some(e) = lane.entries.iter_mut().find(|e| e.update.origin == update.origin) {
            // A retry may ask for more than the first try did.
            e.update.flush |= update.flush;
            e.waiters.push(Waiter { ticket, client: true });
        } else if let Some(q) = lane.queue.iter_mut().find(|q| q.update.origin == update.origin) {
            q.tickets.push(ticket);
        } else {
            refuse(ticket, Status::Pending, out);
        }
    }

    /// An update from the predecessor.
    pub(crate) fn forwarded(
        &mut self,
        ticket: Ticket,
        f: &Forwarded,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let view = match self.check(f.chain_version) {
            Ok(view) => *view,
            Err(status) => {
                self.wrong_version(f.chain_version, status, out);
                return refuse(ticket, status, out);
            }
        };
        if view.syncing() && !view.active {
            return refuse(ticket, Status::Overloaded, out);
        }
        if view.syncing() {
            return self.forwarded_in_sync(ticket, f, store, out);
        }
        if !view.serving() || view.head || f.sync {
            return refuse(ticket, Status::NotServing, out);
        }
        let brief = store.chunk(f.chunk);
        let waiter = Waiter { ticket, client: false };
        let has = brief.committed;
        let lane = self.lanes.entry(f.chunk).or_default();
        let clearing = lane.is_clearing();
        let (newest, empty) = (lane.newest().unwrap_or(has), lane.entries.is_empty());
        let full = lane.entries.len() >= WINDOW;
        let known = self.generations.get(&f.chunk).copied().unwrap_or(0);
        let status = if clearing {
            Status::Overloaded
        } else if f.generation < known {
            Status::VersionGap
        } else if let Some(e) = lane.entry(f.version) {
            if e.update.origin != f.update.origin {
                Status::VersionGap
            } else if e.decided {
                let done = Done { chunk: f.chunk, version: f.version, flush: f.update.flush };
                return out.push(Action::Reply(ticket, Ok(done)));
            } else {
                e.update.flush |= f.update.flush;
                // The predecessor has given the message before this one up: it takes its place, with what it holds of memory. Said is nothing
                // that would have it take anything back.
                for w in e.waiters.extract_if(.., |w| !w.client) {
                    refuse(w.ticket, Status::Overloaded, out);
                }
                e.waiters.push(waiter);
                return;
            }
        } else if f.version <= has {
            let done = Done { chunk: f.chunk, version: f.version, flush: f.update.flush };
            out.push(Action::Reply(ticket, Ok(done)));
            return self.drop_idle(f.chunk);
        } else if !(f.base == newest || (f.base.0 == 0 && empty && !brief.exists))
            || f.version <= newest
        {
            Status::VersionGap
        } else if f.update.needs_room && !store.has_room() {
            Status::NoSpace
        } else if full || self.unvouched.len() >= UNVOUCHED_MAX {
            Status::Overloaded
        } else {
            if f.update.vouches {
                self.came_unvouched(f.chunk, f.version);
            }
            if f.generation > 0 {
                self.generations.insert(f.chunk, f.generation);
            }
            // Nothing is under way here then. Only the core can say so: to the store, what lies between may just be on its way.
            let anew = f.base.0 == 0 && f.version > newest.next();
            let onto = if anew { Onto::Nothing } else { Onto::Previous };
            self.admit(waiter, f.chunk, f.version, f.update, onto, out);
            return self.progress(f.chunk, store, out);
        };
        refuse(ticket, status, out);
        self.drop_idle(f.chunk);
    }

    /// A syncing target takes whole contents in any order; what came later under this chain version wins, whatever the
    /// store has from before. Other updates it takes only on top of just what came last.
    fn forwarded_in_sync(
        &mut self,
        ticket: Ticket,
        f: &Forwarded,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let waiter = Waiter { ticket, client: false };
        let lane = self.lanes.entry(f.chunk).or_default();
        let seen = self.received.get(&f.chunk).copied().max(lane.newest());
        let unvouched = self.unvouched.len();
        if lane.is_clearing() || lane.entries.len() >= WINDOW || unvouched >= UNVOUCHED_MAX {
            refuse(ticket, Status::Overloaded, out);
        } else if seen.is_some_and(|v| v >= f.version) {
            // Superseded or a duplicate: answered with what superseded it.
            let record = f.update.origin.filter(|_| !f.sync);
            match lane.entries.iter_mut().find(|e| e.version >= f.version && !e.decided) {
                Some(e) => e.waiters.push(waiter),
                None => {
                    let done = Done { chunk: f.chunk, version: f.version, flush: f.update.flush };
                    out.push(Action::Reply(ticket, Ok(done)));
                }
            }
            if let Some(origin) = record {
                self.channels.commit(&origin, f.chunk, f.version);
            }
        } else if !f.full && seen != Some(f.base) {
            refuse(ticket, Status::VersionGap, out);
        } else if f.update.needs_room && !store.has_room() {
            refuse(ticket, Status::NoSpace, out);
        } else {
            let onto = if f.full { Onto::Anything } else { Onto::Previous };
            if f.update.vouches && !f.sync {
                self.came_unvouched(f.chunk, f.version);
            }
            self.admit(waiter, f.chunk, f.version, f.update, onto, out);
            self.progress(f.chunk, store, out);
        }
        self.drop_idle(f.chunk);
    }

    /// Takes an update into the window: stages it, and (in `progress`) sends it on at once.
    pub(crate) fn admit(
        &mut self,
        waiter: Waiter,
        chunk: ChunkId,
        version: ChunkVersion,
        update: Update,
        onto: Onto,
        out: &mut Vec<Action>,
    ) {
        if let Some(origin) = &update.origin {
            self.channels.begin(origin, chunk);
        }
        let last = self.view.is_some_and(|v| v.successor.is_none() && v.may_commit());
        let lane = self.lanes.entry(chunk).or_default();
        // Alone in its window only: else a later version could be committed before an earlier one is decided, and the content
        // as of the earlier one could not be sent to a successor that joins just then.
        let commit = last && lane.entries.is_empty();
        lane.entries.push_back(Entry {
            version,
            update,
            stage: Stage::Running { commit },
            onto,
            ack: Ack::Unsent,
            original: true,
            copies: 0,
            former: false,
            shown: false,
            decided: false,
            waiters: vec![waiter],
        });
        out.push(Action::Stage { ticket: waiter.ticket, chunk, version, commit, onto });
    }

    /// Forgets a chunk on which nothing is under way.
    pub(crate) fn drop_idle(&mut self, chunk: ChunkId) {
        if self.lanes.get(&chunk).is_some_and(|l| l.is_idle()) {
            self.lanes.remove(&chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Action, CLIENT_CHANNELS_MAX, ChunkBrief, ChunkView, Event, Form, Forwarded, Onto, Origin,
        Replica, Ticket, Update,
    };
    use glowfs_types::routing::{ChainInfo, ChainMember, PublicState};
    use glowfs_types::{
        ChainId, ChainVersion, ChannelId, ChunkId, ChunkVersion, ClientId, NodeId, Redundancy, Seq,
        Status, TargetId,
    };

    struct Empty;
    impl ChunkView for Empty {
        fn chunk(&self, _: ChunkId) -> ChunkBrief {
            ChunkBrief::default()
        }
        fn has_room(&self) -> bool {
            true
        }
    }

    const V: ChainVersion = ChainVersion(5);

    /// A store in which each chunk has that version.
    struct Has(u64);
    impl ChunkView for Has {
        fn chunk(&self, _: ChunkId) -> ChunkBrief {
            let (committed, exists) = (ChunkVersion(self.0), true);
            ChunkBrief { committed, exists, ..ChunkBrief::default() }
        }
        fn has_room(&self) -> bool {
            true
        }
    }

    fn step_over(r: &mut Replica, event: Event, store: &dyn ChunkView) -> Vec<Action> {
        let mut out = Vec::new();
        r.step(event, store, &mut out);
        out
    }
    fn step(r: &mut Replica, event: Event) -> Vec<Action> {
        step_over(r, event, &Empty)
    }
    /// The last of so many members.
    fn last_of(members: u64) -> Replica {
        member_of(members, members, PublicState::Serving)
    }
    /// That one of so many members, the last of which has that state.
    fn member_of(members: u64, me: u64, last: PublicState) -> Replica {
        let state = |i| if i == members { last } else { PublicState::Serving };
        let member = |i| ChainMember { target: TargetId(i), node: NodeId(i), state: state(i) };
        let info = ChainInfo {
            id: ChainId(1),
            version: V,
            activated: V,
            activated_serving: Vec::new(),
            members: (1..=members).map(member).collect(),
            redundancy: Redundancy::Replicated,
            preferred: Vec::new(),
            lost: ChainVersion(0),
        };
        let mut r = Replica::new(TargetId(me), ChainVersion(0), &[], &[]);
        step(&mut r, Event::Chain(Some(info)));
        step(&mut r, Event::Adopted(V));
        r
    }

    /// A forward is sent again and again while the store does not end: only the newest is held, and with it one payload.
    #[test]
    fn a_forward_that_is_repeated_takes_the_place_of_the_one_before() {
        let mut r = last_of(2);
        let chunk = ChunkId::default();
        let f = Forwarded {
            chain_version: V,
            chunk,
            version: ChunkVersion(1),
            base: ChunkVersion(0),
            generation: 0,
            full: false,
            sync: false,
            update: Update::default(),
        };
        let begun = step(&mut r, Event::Forward(Ticket(1), f));
        assert!(begun.iter().any(|a| matches!(a, Action::Stage { .. })), "{begun:?}");
        for again in 2..9 {
            let before = Action::Reply(Ticket(again - 1), Err(Status::Overloaded));
            assert_eq!(step(&mut r, Event::Forward(Ticket(again), f)), [before]);
        }
        let done = step(&mut r, Event::Staged(chunk, ChunkVersion(1), Ok(())));
        let replies = done.iter().filter(|a| matches!(a, Action::Reply(..)));
        assert!(matches!(replies.collect::<Vec<_>>()[..], [Action::Reply(Ticket(8), Ok(_))]));
    }

    #[test]
    fn a_syncing_target_builds_on_what_came_last_and_on_nothing_else() {
        let mut r = member_of(2, 2, PublicState::Syncing);
        let chunk = ChunkId::default();
        let forwarded = |r: &mut Replica, version, base, full| {
            let f = Forwarded {
                chain_version: V,
                chunk,
                version: ChunkVersion(version),
                base: ChunkVersion(base),
                generation: 0,
                full,
                sync: false,
                update: Update::default(),
            };
            let out = step_over(r, Event::Forward(Ticket(version), f), &Has(5));
            match out.first() {
                Some(Action::Stage { onto, .. }) => Ok(*onto),
                Some(Action::Reply(_, Err(status))) => Err(*status),
                other => panic!("{other:?}"),
            }
        };
        // Its store has that version, of before: it may be another content.
        assert_eq!(forwarded(&mut r, 6, 5, false), Err(Status::VersionGap));
        assert_eq!(forwarded(&mut r, 6, 5, true), Ok(Onto::Anything));
        step(&mut r, Event::Staged(chunk, ChunkVersion(6), Ok(())));
        assert_eq!(forwarded(&mut r, 8, 7, false), Err(Status::VersionGap));
        assert_eq!(forwarded(&mut r, 7, 6, false), Ok(Onto::Previous));
    }

    /// Each update of a chunk, however small, was sent as the whole chunk, for as long as the resync of all others took.
    #[test]
    fn a_syncing_successor_is_sent_whole_only_what_it_cannot_build_on() {
        let mut r = member_of(2, 1, PublicState::Syncing);
        let chunk = ChunkId::default();
        let mut sent = |version: u64, answer: Result<u32, Status>| {
            let ticket = Ticket(version);
            let update = Update::default();
            let event = Event::Update { ticket, chain_version: V, chunk, update };
            let store = Has(version - 1);
            let begun = step_over(&mut r, event, &store);
            assert!(!begun.iter().any(|a| matches!(a, Action::Forward { .. })), "staged first");
            let mut out =
                step_over(&mut r, Event::Staged(chunk, ChunkVersion(version), Ok(())), &store);
            let mut forms = vec![];
            while let Some((id, base, form)) = out.iter().find_map(|a| match a {
                Action::Forward { id, base, form, .. } => Some((*id, *base, *form)),
                _ => None,
            }) {
                assert_eq!(base, ChunkVersion(version - 1));
                let answer = if forms.is_empty() { answer } else { Ok(0) };
                forms.push(form);
                out = step_over(&mut r, Event::Answer(id, answer), &store);
                let pause = out.iter().find_map(|a| match a {
                    Action::Pause(timer) => Some(*timer),
                    _ => None,
                });
                if let Some(timer) = pause {
                    out = step_over(&mut r, Event::Timer(timer), &store);
                }
            }
            step_over(
                &mut r,
                Event::Committed(chunk, ChunkVersion(version), Ok(())),
                &Has(version),
            );
            forms
        };
        let whole = Form::Full { removed: false };
        assert_eq!(sent(6, Ok(0)), [whole], "what it has of it is of before");
        assert_eq!(sent(7, Ok(0)), [Form::Original]);
        assert_eq!(
            sent(8, Err(Status::VersionGap)),
            [Form::Original, whole],
            "of an older release"
        );
        assert_eq!(sent(9, Ok(0)), [whole], "it is asked no more");
    }

    /// A write on a channel, each to a chunk of its own; how it was answered.
    fn write(r: &mut Replica, channel: usize) -> Result<(), Status> {
        let chunk = ChunkId { index: channel as u64, ..ChunkId::default() };
        let channel = ChannelId(channel as u64);
        let origin = Some(Origin { client: ClientId(7), channel, seq: Seq(1) });
        let update = Update { origin, ..Update::default() };
        let event = Event::Update { ticket: Ticket(1), chain_version: V, chunk, update };
        let mut out = step(r, event);
        if out.iter().any(|a| matches!(a, Action::Stage { .. })) {
            out = step(r, Event::Staged(chunk, ChunkVersion(1), Ok(())));
        }
        let answer = out.iter().find_map(|a| match a {
            Action::Reply(_, result) => Some(result.map(drop)),
            _ => None,
        });
        answer.expect("answered")
    }

    /// A client that takes a new channel for each write is refused at the bound; retries of what it wrote are answered as ever, and when an age has
    /// gone by without those channels it has room again.
    #[test]
    fn a_client_that_takes_ever_new_channels_is_refused() {
        let mut r = last_of(1);
        for channel in 0..CLIENT_CHANNELS_MAX {
            assert_eq!(write(&mut r, channel), Ok(()));
        }
        assert_eq!(write(&mut r, CLIENT_CHANNELS_MAX), Err(Status::Overloaded));
        assert_eq!(write(&mut r, 0), Ok(()), "a retry");
        assert_eq!(r.sizes().0, CLIENT_CHANNELS_MAX);
        assert_eq!(step(&mut r, Event::Age), []);
        step(&mut r, Event::Age);
        let mut last = vec![];
        while r.is_ageing() {
            last = step(&mut r, Event::AgeOn);
        }
        assert_eq!(last, [Action::Forget([ClientId(7)].into(), Default::default())]);
        assert_eq!(write(&mut r, CLIENT_CHANNELS_MAX), Ok(()));
    }
}
