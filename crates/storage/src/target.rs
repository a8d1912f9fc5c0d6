//! One target: the replication core, and the requests and payloads that it knows by number only.

use crate::admission::{Admitted, Share};
use crate::damaged::Ledger;
use crate::mend::Lost;
use crate::node::Node;
use crate::scrub::Progress;
use crate::slow::Watch;
use glowfs_chunkstore::{StageKind, Store};
use glowfs_craq::{
    Action, ChunkBrief, ChunkView, Done, Event, Loaded, Origin, Replica, Ticket, View,
};
use glowfs_net::Incoming;
use glowfs_rt::sync::{Notify, OneSender};
use glowfs_rt::{Buf, Instant};
use glowfs_types::routing::LocalState;
use glowfs_types::wire::data::{ChannelRecord, UpdateHead};
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
    /// A peer; `client` if it entered here.
    Peer { incoming: Box<Incoming>, client: bool, began: Instant, _admitted: Option<Admitted> },
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
    /// Room for the actions of one step.
    actions: RefCell<Vec<Action>>,
    tickets: Cell<u64>,
    /// The chain version whose resync is being sent.
    pub syncing: Cell<ChainVersion>,
    /// The view changed.
    pub turned: Notify,
    /// The successor's pace.
    pub watch: Watch,
    /// Repairs that wait until their chunk is still.
    pub holds: RefCell<BTreeMap<Ticket, OneSender<Result<(), Status>>>>,
    pub scrub: Progress,
    /// Pending versions that are built on damaged content, and how often that was found.
    pub damaged: RefCell<BTreeMap<(ChunkId, ChunkVersion), u32>>,
    /// Damaged blocks that nobody has.
    pub lost: RefCell<Lost>,
    /// The same for operators, for longer.
    pub damage: RefCell<Ledger>,
}

/// «GTM1»: the record that stands with a target.
const META_MAGIC: [u8; 4] = *b"GTM1";

/// The record of an adopted chain version.
pub(crate) fn save_meta(adopted: ChainVersion) -> Vec<u8> {
    [&META_MAGIC[..], &adopted.0.to_le_bytes()].concat()
}

/// The inverse; an empty record is that of a new target.
pub(crate) fn load_meta(bytes: &[u8]) -> Result<ChainVersion> {
    if bytes.is_empty() {
        return Ok(ChainVersion(0));
    }
    let rest = bytes.strip_prefix(&META_MAGIC[..]).and_then(|b| b.first_chunk::<8>());
    rest.map(|b| ChainVersion(u64::from_le_bytes(*b))).ok_or_else(|| {
        Error::new(
            Status::NewerFormat,
            "the record of a target is not understood; the store was written by a newer build",
        )
    })
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
        let adopted = Node::adopted(&store, id)?;
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
            replica: RefCell::new(Replica::new(id, adopted, &pending, &channels)),
            asked: RefCell::default(),
            reads: RefCell::default(),
            payloads: RefCell::default(),
            events: RefCell::default(),
            running: Cell::new(false),
            actions: RefCell::default(),
            tickets: Cell::new(0),
            syncing: Cell::new(ChainVersion(0)),
            turned: Notify::default(),
            watch: Watch::default(),
            holds: RefCell::default(),
            scrub: Progress::default(),
            damaged: RefCell::default(),
            lost: RefCell::default(),
            damage: RefCell::default(),
        }))
    }

    /// The adopted view.
    pub fn view(&self) -> Option<View> {
        self.replica.borrow().view().copied()
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

    /// Gives an event to the core and does what it says. An event that comes up meanwhile is taken after that, so
    /// the actions of one step are always begun in their order.
    pub fn feed(self: &Rc<Self>, event: Event) {
        self.events.borrow_mut().push_back(event);
        if self.running.replace(true) {
            return;
        }
        let mut actions = self.actions.take();
        loop {
            let Some(event) = self.events.borrow_mut().pop_front() else { break };
            {
                let node = self.node.upgrade();
                let store =
                    StoreView { store: &self.store, target: self.id, node: node.as_deref() };
                self.replica.borrow_mut().step(event, &store, &mut actions);
            }
            for action in actions.drain(..) {
                self.perform(action);
            }
        }
        self.actions.replace(actions);
        self.running.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_round_trips_and_strange_ones_are_refused() {
        let golden = b"GTM1\x07\0\0\0\0\0\0\0";
        assert_eq!(save_meta(ChainVersion(7)), golden);
        assert_eq!(load_meta(golden).expect("valid"), ChainVersion(7));
        assert_eq!(load_meta(b"").expect("new"), ChainVersion(0));
        for bad in [&b"GTM2\x07\0\0\0\0\0\0\0"[..], b"GTM1\x07", b"x"] {
            assert_eq!(load_meta(bad).err().map(|e| e.status), Some(Status::NewerFormat));
        }
    }
}
