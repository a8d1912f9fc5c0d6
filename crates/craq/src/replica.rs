//! [`Replica`]: the state of one target, and what is dispatched where.

use crate::api::local_state;
use crate::dedupe::{Channels, Forgotten};
use crate::lane::{Ack, Entry, Lane, Stage};
use crate::progress::Again;
use crate::shown::Unvouched;
use crate::{Action, ChunkView, Done, Event, ForwardId, Loaded, Onto, Ticket, TimerId, View};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::routing::LocalState;
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, ClientId, Status, TargetId};
use std::collections::{BTreeMap, BTreeSet};

/// The replication of one target.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replica {
    pub(crate) me: TargetId,
    /// Chain versions up to this one belong to a former life: nothing is done under them.
    pub(crate) former: ChainVersion,
    pub(crate) view: Option<View>,
    /// Known, but not persisted yet.
    pub(crate) next: Option<View>,
    pub(crate) lanes: BTreeMap<ChunkId, Lane>,
    pub(crate) channels: Channels,
    pub(crate) forwards: BTreeMap<ForwardId, (ChunkId, ChunkVersion)>,
    pub(crate) timers: BTreeMap<TimerId, (ChunkId, ChunkVersion)>,
    /// What the store has still to be asked again.
    pub(crate) again: BTreeMap<TimerId, Again>,
    pub(crate) ids: u64,
    /// How often we took versions of a chunk back under this chain version.
    pub(crate) taken_back: BTreeMap<ChunkId, u64>,
    /// The same of the predecessor, as far as it told.
    pub(crate) generations: BTreeMap<ChunkId, u16>,
    /// Syncing: the newest version of each chunk that came under this chain version and is committed here. (What is under way may still
    /// be refused by the store, and must then be taken when it comes again.)
    pub(crate) received: BTreeMap<ChunkId, ChunkVersion>,
    /// With a syncing successor: the chunks that it got through the chain under this chain version.
    pub(crate) covered: BTreeSet<ChunkId>,
    /// The syncing successor has refused, under this chain version, to build an update on what it has.
    pub(crate) whole_only: bool,
    /// What may not be shown yet.
    pub(crate) unvouched: BTreeMap<ChunkId, Unvouched>,
    /// Who has read what may not be told yet.
    pub(crate) telling: BTreeMap<ChunkId, Vec<(ChunkVersion, Ticket)>>,
    /// In this life it was a member under an active chain version. (Of one that is brought up to date it is said with the next active version only if this one was active
    /// when what was here of before had still to be dropped: until then it would but wait longer if it were to begin the chain again.)
    pub(crate) takes_part: bool,
    /// The successor has said, under this chain version, that it shows nothing that we do not vouch for ([`Replica::shows_nothing_early`]).
    pub(crate) successor_asks: bool,
    /// Syncing, under a chain version that is active: what is here of before it is being dropped. Only then the view is active here too.
    pub(crate) dropping: bool,
    /// Clients whose channels the store has still to forget.
    pub(crate) unforgotten: BTreeSet<ClientId>,
    /// It is at that.
    pub(crate) forgetting: bool,
    pub(crate) sync_done: bool,
    pub(crate) failed: Option<Status>,
}

impl Replica {
    /// The replica of a target that was just opened: `adopted` is the chain version it had persisted, `pending` and
    /// `channels` are what its store holds (channels: of committed versions only).
    pub fn new(
        me: TargetId,
        adopted: ChainVersion,
        pending: &[Loaded],
        channels: &[ChannelRecord],
    ) -> Self {
        let mut r = Self {
            me,
            former: if planted(Mutant::IncarnationUnchecked) { ChainVersion(0) } else { adopted },
            view: None,
            next: None,
            lanes: BTreeMap::new(),
            channels: Channels::default(),
            forwards: BTreeMap::new(),
            timers: BTreeMap::new(),
            again: BTreeMap::new(),
            ids: 0,
            taken_back: BTreeMap::new(),
            generations: BTreeMap::new(),
            received: BTreeMap::new(),
            covered: BTreeSet::new(),
            whole_only: false,
            unvouched: BTreeMap::new(),
            telling: BTreeMap::new(),
            takes_part: false,
            successor_asks: false,
            dropping: false,
            unforgotten: BTreeSet::new(),
            forgetting: false,
            sync_done: false,
            failed: None,
        };
        for record in channels {
            r.channels.merge(record);
        }
        for p in pending {
            if let Some(origin) = &p.origin {
                r.channels.begin(origin, p.chunk);
            }
            let entry = Entry {
                version: p.version,
                update: crate::Update {
                    origin: p.origin,
                    removes: p.removes,
                    ..Default::default()
                },
                stage: Stage::Done { committed: false },
                onto: Onto::Previous,
                ack: Ack::Unsent,
                original: false,
                copies: 0,
                former: true,
                shown: true,
                decided: false,
                waiters: Vec::new(),
            };
            r.lanes.entry(p.chunk).or_default().entries.push_back(entry);
        }
        r
    }

    /// Takes one event.
    pub fn step(&mut self, event: Event, store: &dyn ChunkView, out: &mut Vec<Action>) {
        if let Some(status) = self.failed {
            return Self::refuse(event, status, out);
        }
        match event {
            Event::Chain(info) => self.chain_known(info.as_ref(), store, out),
            Event::Adopted(version) => self.adopted(version, store, out),
            Event::Update { ticket, chain_version, chunk, update } => {
                self.update(ticket, chain_version, chunk, update, store, out);
            }
            Event::Forward(ticket, f) => self.forwarded(ticket, &f, store, out),
            Event::Staged(chunk, version, result) => {
                self.staged(chunk, version, result, store, out)
            }
            Event::Committed(chunk, version, result) => {
                self.committed(chunk, version, result, store, out);
            }
            Event::Discarded(chunk, result) => self.discarded(chunk, result, store, out),
            Event::Answer(id, result) => self.answered(id, result, store, out),
            Event::Timer(id) => self.timer(id, store, out),
            Event::Vouched(version, list) => self.vouched(version, &list, out),
            Event::SuccessorAsks(version) => {
                self.successor_asks |= self.view.is_some_and(|v| v.version == version);
            }
            Event::Read { ticket, chain_version, chunk } => {
                self.read(ticket, chain_version, chunk, out);
            }
            Event::Tell { ticket, chain_version, chunk, version } => {
                self.tell(ticket, chain_version, (chunk, version), out);
            }
            Event::ReadExpired(ticket, chunk) => self.read_expired(ticket, chunk, out),
            Event::Hold(ticket, chunk) => self.hold(ticket, chunk, store, out),
            Event::LetGo(ticket, chunk) => self.let_go(ticket, chunk, store, out),
            Event::Unreadable(chunk) => {
                if self.lanes.get(&chunk).is_some_and(|l| !l.entries.is_empty()) {
                    self.fail(Status::Corrupt, out);
                }
            }
            Event::DiskFailed => self.fail(Status::DiskFailed, out),
            Event::SyncDone(ticket, version) => self.sync_done(ticket, version, out),
            Event::Forgotten => {
                self.forgetting = false;
                self.dropped(out);
            }
            Event::Age => {
                let gone = self.channels.age();
                Self::forgotten(gone, out);
            }
            Event::AgeOn => {
                let gone = self.channels.age_on();
                Self::forgotten(gone, out);
            }
            Event::Channels(version, records) => {
                if self.view.is_some_and(|v| v.version == version && v.receiving()) {
                    for record in &records {
                        self.channels.merge(record);
                    }
                }
            }
        }
    }

    fn forgotten((clients, channels): Forgotten, out: &mut Vec<Action>) {
        if !clients.is_empty() || !channels.is_empty() {
            out.push(Action::Forget(clients, channels));
        }
    }

    /// Whether an age has steps left ([`Event::AgeOn`]).
    pub fn is_ageing(&self) -> bool {
        self.failed.is_none() && self.channels.is_ageing()
    }
    /// What to report of this target.
    pub fn local(&self) -> LocalState {
        let up_to_date = self.view.is_some_and(|v| v.serving() || (v.syncing() && self.sync_done));
        local_state(self.failed.is_some(), up_to_date)
    }
    /// The adopted view.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
    /// The view that is to be adopted once it is persisted.
    pub fn adopting(&self) -> Option<&View> {
        self.next.as_ref()
    }
    /// The newest chain version that is persisted.
    pub fn adopted_version(&self) -> ChainVersion {
        self.view.map_or(self.former, |v| v.version)
    }
    /// The last committed write of every channel.
    pub fn channel_records(&self) -> Vec<ChannelRecord> {
        self.channels.records().collect()
    }
    /// Channels known, and pending versions.
    pub fn sizes(&self) -> (usize, usize) {
        (self.channels.len(), self.lanes.values().map(|l| l.entries.len()).sum())
    }
    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.lanes.is_empty() && self.next.is_none()
    }
    /// Whether messages of this chain version are understood; what to answer if not.
    pub fn check(&self, version: ChainVersion) -> Result<&View, Status> {
        match &self.view {
            _ if self.failed.is_some() => Err(Status::NotServing),
            None => Err(Status::NotServing),
            // A newer one is known: the lease may have been renewed with it, and says nothing of the old one.
            Some(v) if planted(Mutant::ChainVersionUnchecked) => Ok(v),
            Some(_) if self.next.is_some() => Err(Status::WrongChainVersion),
            Some(v) if v.version != version => Err(Status::WrongChainVersion),
            Some(v) => Ok(v),
        }
    }

    /// Whether a resync may end: the successor has everything that anybody may have seen before it joined, and it knows of all that may not be shown yet.
    pub fn may_finish_sync(&self) -> bool {
        let mut entries = self.lanes.values().flat_map(|l| &l.entries);
        let lacks = entries.any(|e| (e.decided || e.former) && !matches!(e.ack, Ack::Acked(_)));
        // What came to it through the chain it asks about itself; what it was sent otherwise, or had already, it shows. What came under this chain version it gets
        // through the chain before it is committed here.
        let mut held = self.unvouched.iter().filter(|(_, u)| u.holds_sync);
        !lacks && held.all(|(chunk, _)| self.covered.contains(chunk))
    }
    /// Whether the syncing successor has got the chunk through the chain under this chain version: a resync has nothing to
    /// add.
    pub fn is_covered(&self, chunk: ChunkId) -> bool {
        self.covered.contains(&chunk)
    }
    /// Whether versions of a chunk are under way: a resync waits for them, since the successor may have a later one than is
    /// committed here.
    pub fn is_active(&self, chunk: ChunkId) -> bool {
        self.lanes.get(&chunk).is_some_and(|l| !l.readable())
    }
    pub(crate) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Ids up to `next` are used.
    pub(crate) fn reserve_ids(&mut self, next: u64) {
        self.ids = self.ids.max(next);
    }

    /// The newest version of a chunk, pending or committed.
    pub(crate) fn newest(&self, chunk: ChunkId, store: &dyn ChunkView) -> ChunkVersion {
        let pending = self.lanes.get(&chunk).and_then(Lane::newest);
        pending.unwrap_or_else(|| store.chunk(chunk).committed)
    }

    /// The target cannot go on: everyone who waits is told to go elsewhere.
    pub(crate) fn fail(&mut self, status: Status, out: &mut Vec<Action>) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(status);
        self.unvouched.clear();
        self.tell_nobody(out);
        for (_, lane) in std::mem::take(&mut self.lanes) {
            for w in lane.entries.into_iter().flat_map(|e| e.waiters) {
                out.push(Action::Reply(w.ticket, Err(Status::NotServing)));
            }
            for ticket in lane.queue.into_iter().flat_map(|q| q.tickets) {
                out.push(Action::Reply(ticket, Err(Status::NotServing)));
            }
            for ticket in lane.readers {
                out.push(Action::ReadRefused(ticket, Status::NotServing));
            }
            if let Some((ticket, false)) = lane.held {
                out.push(Action::Held(ticket, Err(Status::NotServing)));
            }
        }
        self.forwards.clear();
        self.timers.clear();
        self.again.clear();
        out.push(Action::Failed(status));
        out.push(Action::Report);
    }

    fn refuse(event: Event, _why: Status, out: &mut Vec<Action>) {
        match event {
            Event::Update { ticket, .. }
            | Event::Forward(ticket, _)
            | Event::SyncDone(ticket, _) => {
                out.push(Action::Reply(ticket, Err(Status::NotServing)));
            }
            Event::Read { ticket, .. } | Event::Tell { ticket, .. } => {
                out.push(Action::ReadRefused(ticket, Status::NotServing));
            }
            Event::Hold(ticket, _) => out.push(Action::Held(ticket, Err(Status::NotServing))),
            _ => {}
        }
    }

    fn sync_done(&mut self, ticket: Ticket, version: ChainVersion, out: &mut Vec<Action>) {
        let chunk = ChunkId::default();
        match self.check(version).map(|v| v.receiving()) {
            Ok(true) => {
                self.sync_done = true;
                let done = Done { chunk, version: ChunkVersion(0), flush: false };
                out.push(Action::Reply(ticket, Ok(done)));
                out.push(Action::Report);
            }
            Ok(false) => out.push(Action::Reply(ticket, Err(Status::NotServing))),
            Err(status) => out.push(Action::Reply(ticket, Err(status))),
        }
    }
}
