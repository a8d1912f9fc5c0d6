//! One target: the replication core, and the requests and payloads that it knows by number only.

use crate::admission::{Admitted, Share};
use crate::behind::Class;
use crate::damaged::Ledger;
use crate::mend::Lost;
use crate::node::Node;
use crate::scrub::Progress;
use crate::slow::Watch;
use crate::vouch::{Happened, Vouches};
use glowfs_chunkstore::{StageKind, Store};
use glowfs_craq::{
    Action, ChunkBrief, ChunkView, Done, Event, Loaded, Origin, Replica, Ticket, View,
};
use glowfs_net::Incoming;
use glowfs_rt::sync::{Notify, OneSender, Semaphore};
use glowfs_rt::{Buf, Instant};
use glowfs_types::routing::LocalState;
use glowfs_types::wire::data::{ChannelRecord, UpdateHead, update};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, Error, Result, Status, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// An update with its bytes.
pub(crate) struct Payload {
    pub head: UpdateHead,
    pub crcs: Vec<u32>,
    pub bytes: Buf,
}

/// Who is to be answered.
pub(crate) enum Waiting {
    /// A peer; `client` if it entered here. What it is compared with, if it is of a client at all.
    Peer {
        incoming: Box<Incoming>,
        client: bool,
        began: Instant,
        class: Option<Class>,
        _admitted: Option<Admitted>,
    },
    /// A task of this process.
    Local(OneSender<Result<Done, Status>>),
}

impl Waiting {
    /// Whether the update entered the chain here.
    pub fn entered_here(&self) -> bool {
        match self {
            Self::Peer { client, .. } => *client,
            Self::Local(_) => true,
        }
    }
}

/// A request that the core knows by its ticket.
pub(crate) struct Asked {
    pub waiting: Waiting,
    pub payload: Rc<Payload>,
}

/// One target of this node.
pub(crate) struct Target {
    pub id: TargetId,
    pub store: Store,
    /// What its store has of the node's admission.
    pub share: Rc<Share>,
    pub node: Weak<Node>,
    pub replica: RefCell<Replica>,
    pub asked: RefCell<BTreeMap<Ticket, Asked>>,
    pub reads: RefCell<BTreeMap<Ticket, OneSender<Result<(), Status>>>>,
    pub payloads: RefCell<BTreeMap<(ChunkId, ChunkVersion), Rc<Payload>>>,
    events: RefCell<VecDeque<Event>>,
    running: Cell<bool>,
    /// The record as it is in the store, and who changes it now.
    meta: Cell<Meta>,
    saving: Semaphore,
    /// Room for the actions of one step.
    actions: RefCell<Vec<Action>>,
    tickets: Cell<u64>,
    /// The chain version whose resync is being sent.
    pub syncing: Cell<ChainVersion>,
    /// The view changed.
    pub turned: Notify,
    /// The successor's pace.
    pub watch: Watch,
    /// The predecessor's, of whom it asks what it vouches for.
    pub ahead: Watch,
    /// Repairs that wait until their chunk is still.
    pub holds: RefCell<BTreeMap<Ticket, OneSender<Result<(), Status>>>>,
    pub scrub: Progress,
    /// Pending versions that are built on damaged content, and how often that was found.
    pub damaged: RefCell<BTreeMap<(ChunkId, ChunkVersion), u32>>,
    /// What may not be shown yet: asking the predecessor about it.
    pub vouches: Vouches,
    /// The store is forgetting channels of clients, or is about to.
    pub forgets: Cell<bool>,
    /// Damaged blocks that nobody has.
    pub lost: RefCell<Lost>,
    /// The same for operators, for longer.
    pub damage: RefCell<Ledger>,
}

/// «GTM1»: the record that stands with a target.
const META_MAGIC: [u8; 4] = *b"GTM1";

/// What that record holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Meta {
    /// The adopted chain version.
    pub adopted: ChainVersion,
    /// When the last whole scrub of it ended, or when it was first seen: from here the next one is due. Nanoseconds since the Unix epoch; 0: not known.
    pub scrubbed_ns: u64,
    /// The newest chain version that was adopted as a serving member of it.
    pub served: ChainVersion,
}

impl Meta {
    /// Takes note of a chain version, in which the target serves or not.
    pub fn adopt(&mut self, version: ChainVersion, serves: bool) {
        self.adopted = version;
        if serves {
            self.served = version;
        }
    }
    fn save(self) -> Vec<u8> {
        let fields = [self.adopted.0, self.scrubbed_ns, self.served.0].map(u64::to_le_bytes);
        [&META_MAGIC[..], fields.as_flattened()].concat()
    }
    /// The inverse; an empty record is that of a new target.
    fn load(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let rest = bytes.strip_prefix(&META_MAGIC[..]).and_then(|b| b.split_first_chunk::<8>());
        let (adopted, rest) = rest.ok_or_else(|| {
            Error::new(
                Status::NewerFormat,
                "the record of a target is not understood; the store was written by a newer build",
            )
        })?;
        let adopted = u64::from_le_bytes(*adopted);
        // Older builds end here, or after the time; what they adopted they may have served under.
        let (scrubbed, rest) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let served = rest.first_chunk::<8>();
        Ok(Self {
            adopted: ChainVersion(adopted),
            scrubbed_ns: u64::from_le_bytes(*scrubbed),
            served: ChainVersion(served.map_or(adopted, |b| u64::from_le_bytes(*b))),
        })
    }
}

/// The store as the core sees it.
struct StoreView<'a> {
    store: &'a Store,
    target: TargetId,
    node: Option<&'a Node>,
}

impl ChunkView for StoreView<'_> {
    fn chunk(&self, chunk: ChunkId) -> ChunkBrief {
        self.store.chunk(self.target, chunk).map_or_else(ChunkBrief::default, |s| ChunkBrief {
            committed: s.committed,
            exists: s.exists(),
            content_crc: if s.exists() { s.content_crc } else { 0 },
        })
    }
    fn has_room(&self) -> bool {
        self.node.is_none_or(|n| n.has_room(self.store))
    }
}

fn origin_of(record: &ChannelRecord) -> Origin {
    Origin { client: record.client, channel: record.channel, seq: record.seq }
}

impl Target {
    /// The target as its store holds it.
    pub fn open(node: &Rc<Node>, store: Store, id: TargetId) -> Result<Rc<Self>> {
        let meta = Meta::load(&store.target_meta(id).unwrap_or_default())?;
        let mut pending = Vec::new();
        for chunk in store.chunks_pending(id) {
            pending.extend(store.pending(id, chunk).into_iter().map(|p| Loaded {
                chunk,
                version: p.version,
                origin: p.channel.as_ref().map(origin_of),
                removes: p.kind == StageKind::Remove,
            }));
        }
        let running: Vec<Origin> = pending.iter().filter_map(|p| p.origin).collect();
        let mut channels = store.channels(id);
        channels.retain(|c| !running.contains(&origin_of(c)));
        Ok(Rc::new(Self {
            id,
            share: node.admission.share_of(&store),
            store,
            node: Rc::downgrade(node),
            replica: RefCell::new(Replica::new(id, meta.adopted, &pending, &channels)),
            asked: RefCell::default(),
            reads: RefCell::default(),
            payloads: RefCell::default(),
            events: RefCell::default(),
            running: Cell::new(false),
            meta: Cell::new(meta),
            saving: Semaphore::new(1),
            actions: RefCell::default(),
            tickets: Cell::new(0),
            syncing: Cell::new(ChainVersion(0)),
            turned: Notify::default(),
            watch: Watch::default(),
            ahead: Watch::default(),
            holds: RefCell::default(),
            scrub: Progress::default(),
            damaged: RefCell::default(),
            vouches: Vouches::default(),
            forgets: Cell::new(false),
            lost: RefCell::default(),
            damage: RefCell::default(),
        }))
    }

    /// The record as it is in the store.
    pub fn meta(&self) -> Meta {
        self.meta.get()
    }
    /// Changes the record durably; one change waits for the other, so that none is taken back.
    pub async fn save(&self, change: impl FnOnce(&mut Meta)) -> Result<()> {
        let _alone = self.saving.acquire(1).await;
        let mut meta = self.meta.get();
        change(&mut meta);
        self.store.put_target_meta(self.id, meta.save()).await?;
        self.meta.set(meta);
        Ok(())
    }
    /// The adopted view.
    pub fn view(&self) -> Option<View> {
        self.replica.borrow().view().copied()
    }
    /// Whether the core vouches for that.
    pub fn vouches_for(
        &self,
        chain_version: ChainVersion,
        chunk: ChunkId,
        version: ChunkVersion,
    ) -> Result<bool, Status> {
        let store = StoreView { store: &self.store, target: self.id, node: None };
        self.replica.borrow().vouches(chain_version, chunk, version, &store)
    }
    /// Whether it takes part in the chain under that version: it has adopted it, no newer one, and neither it nor its store has failed.
    pub fn can_go_on(&self, version: ChainVersion) -> bool {
        self.store.failure().is_none() && self.replica.borrow().check(version).is_ok()
    }
    /// The newest chain version it knows of; it serves under no older one.
    pub fn known(&self) -> ChainVersion {
        let replica = self.replica.borrow();
        replica.adopting().map_or(replica.adopted_version(), |v| v.version)
    }
    /// The state to report.
    pub fn local(&self) -> LocalState {
        if self.store.failure().is_some() {
            LocalState::Offline
        } else {
            self.replica.borrow().local()
        }
    }
    /// A new ticket.
    pub fn ticket(&self) -> Ticket {
        let n = self.tickets.get() + 1;
        self.tickets.set(n);
        Ticket(n)
    }
    /// Gives an update to the core: `event` makes the event of its ticket.
    pub fn ask(self: &Rc<Self>, asked: Asked, event: impl FnOnce(Ticket) -> Event) {
        let ticket = self.ticket();
        self.asked.borrow_mut().insert(ticket, asked);
        self.feed(event(ticket));
    }

    /// The chunks of a data id, from one on, of which updates are under way that are no removals, with the chunk size that these name. The store shows none of
    /// a new chunk before it is staged.
    pub fn under_way(&self, from: ChunkId) -> BTreeMap<ChunkId, u32> {
        let upto = ChunkId { index: u64::MAX, ..from };
        let (asked, payloads) = (self.asked.borrow(), self.payloads.borrow());
        let range = (from, ChunkVersion(0))..=(upto, ChunkVersion(u64::MAX));
        // What waits for its turn has no version yet.
        let waiting = asked.values().map(|a| &a.payload.head);
        let heads = waiting.chain(payloads.range(range).map(|(_, p)| &p.head));
        let chunks = heads
            .filter(|head| head.kind != update::REMOVE)
            .map(|head| (ChunkId::from(head.chunk), head.chunk_bytes.get()));
        chunks.filter(|(chunk, _)| (from..=upto).contains(chunk)).collect()
    }

    /// Gives an event to the core and does what it says. An event that comes up meanwhile is taken after that, so
    /// the actions of one step are always begun in their order.
    pub fn feed(self: &Rc<Self>, event: Event) {
        if self.running.replace(true) {
            return self.events.borrow_mut().push_back(event);
        }
        let mut actions = self.actions.take();
        // Mostly there is but this one, which is not put into the queue: events are large.
        let mut next = Some(event);
        while let Some(event) = next {
            let happened = Happened::of(&event);
            {
                let node = self.node.upgrade();
                let store =
                    StoreView { store: &self.store, target: self.id, node: node.as_deref() };
                self.replica.borrow_mut().step(event, &store, &mut actions);
            }
            for action in actions.drain(..) {
                self.perform(action);
            }
            self.vouches.after(happened);
            next = self.events.borrow_mut().pop_front();
        }
        self.actions.replace(actions);
        self.running.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_hears_of_a_version_has_not_served_under_it() {
        let mut meta = Meta::default();
        meta.adopt(ChainVersion(10), true);
        meta.adopt(ChainVersion(11), false);
        let (adopted, served) = (ChainVersion(11), ChainVersion(10));
        assert_eq!(meta, Meta { adopted, served, ..Meta::default() });
    }

    #[test]
    fn the_record_round_trips_and_strange_ones_are_refused() {
        let golden = b"GTM1\x07\0\0\0\0\0\0\0\x09\x01\0\0\0\0\0\0\x05\0\0\0\0\0\0\0";
        let (adopted, served) = (ChainVersion(7), ChainVersion(5));
        let meta = Meta { adopted, scrubbed_ns: 265, served };
        assert_eq!(meta.save(), golden);
        assert_eq!(Meta::load(golden).expect("valid"), meta);
        let older = Meta { served: adopted, ..meta };
        assert_eq!(Meta::load(&golden[..20]).expect("of an older build"), older);
        let oldest = Meta { scrubbed_ns: 0, ..older };
        assert_eq!(Meta::load(&golden[..12]).expect("of an older one"), oldest);
        assert_eq!(Meta::load(b"").expect("new"), Meta::default());
        for bad in [&b"GTM2\x07\0\0\0\0\0\0\0"[..], b"GTM1\x07", b"x"] {
            assert_eq!(Meta::load(bad).err().map(|e| e.status), Some(Status::NewerFormat));
        }
    }
}
