//! A whole small chain in one value: replicas (the shipped core), model stores, messages in flight, clients and a model of
//! mgmtd. Whatever can happen next is a [`Choice`]; the explorer takes all of them, the simulation a random one.
//!
//! Content is the list of writes applied, so that order, loss and double application all show.

#![allow(missing_docs)]

mod check;
mod closed;
mod fault;
mod mgmtd;
mod node;
mod same;
mod shown;
mod store;

use glowfs_craq::{About, ForwardId, Forwarded};
use glowfs_types::routing::PublicState;
use glowfs_types::{ChunkId, ChunkVersion, DataId, Status, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

pub use fault::Fault;
pub use mgmtd::Chain;
pub use node::Node;
pub use store::Model;
use store::Op;

/// One write of a client: (client, number).
pub type Write = (u8, u8);
/// What a chunk went through. `None` stands for a removal.
pub type Content = Vec<Write>;

pub fn chunk(i: u8) -> ChunkId {
    ChunkId { volume: VolumeId(1), data: DataId(1), index: u64::from(i) }
}

/// What travels with an update.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pay {
    Append(Write),
    Full(Content),
    Remove,
}

/// Where an answer goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Back {
    Forward(ForwardId),
    Sync(u16),
    Done,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Msg {
    Request {
        to: u8,
        client: u8,
        number: u8,
        chain_version: u64,
        remove: bool,
    },
    Response {
        client: u8,
        number: u8,
        result: Result<(), Status>,
    },
    Forward {
        from: u8,
        life: u8,
        to: u8,
        back: Back,
        f: Forwarded,
        pay: Pay,
    },
    Answer {
        to: u8,
        life: u8,
        back: Back,
        result: Result<u32, Status>,
    },
    SyncList {
        from: u8,
        life: u8,
        to: u8,
        chain_version: u64,
    },
    SyncPage {
        to: u8,
        life: u8,
        chain_version: u64,
        page: Option<Vec<(ChunkId, ChunkVersion, Content)>>,
    },
    SyncDone {
        from: u8,
        life: u8,
        to: u8,
        chain_version: u64,
        channels: Vec<(u8, u8, u8, u64)>,
    },
    /// To the predecessor: what of these does it vouch for? And whether all from the sender on show nothing else.
    Ask {
        from: u8,
        life: u8,
        to: u8,
        chain_version: u64,
        about: Vec<About>,
        waits: bool,
    },
    /// Its word.
    Word {
        to: u8,
        life: u8,
        chain_version: u64,
        vouched: Vec<About>,
    },
}

impl Msg {
    /// The node that it goes to; none for an answer to a client.
    pub fn to(&self) -> Option<u8> {
        match self {
            Msg::Response { .. } => None,
            Msg::Request { to, .. }
            | Msg::Forward { to, .. }
            | Msg::Answer { to, .. }
            | Msg::SyncList { to, .. }
            | Msg::SyncPage { to, .. }
            | Msg::SyncDone { to, .. }
            | Msg::Ask { to, .. }
            | Msg::Word { to, .. } => Some(*to),
        }
    }
}

/// A client: does its writes one after the other, on its chunk, and repeats each until it is answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    pub chunk: u8,
    pub number: u8,
    pub writes: u8,
    pub waiting: bool,
    /// Repeats left.
    pub repeats: u8,
    /// Which of its writes are removals.
    pub removals: Vec<u8>,
}

/// How much of each kind of trouble may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    pub crashes: u8,
    pub fences: u8,
    pub losses: u8,
    pub duplicates: u8,
    pub pauses: u8,
    pub fills: u8,
    /// Stages that a store refuses, having taken nothing; for want of a place in its queue also commits and discards.
    pub refusals: u8,
    /// Tries of resyncs.
    pub syncs: u8,
    /// Ages of channels.
    pub ages: u8,
    /// Reads that are told later than they read.
    pub reads: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub nodes: Vec<Node>,
    pub chain: Chain,
    pub msgs: BTreeMap<Msg, u8>,
    pub clients: Vec<Client>,
    pub acked: BTreeSet<(u8, Write)>,
    /// The longest content of each chunk that could be read so far, and its version.
    pub observed: BTreeMap<u8, (Content, u64)>,
    pub budget: Budget,
    /// Only the oldest operation of a store may end next (fewer interleavings).
    pub serial_disks: bool,
    /// Ages end while updates from before them may still come: must show as a defect.
    pub hasty: bool,
    /// A stage was refused: targets may give way.
    pub refused: bool,
    /// With a member of an older release: one could not store what that one may have shown, and gave way. If that one goes, too, what was read of it may be gone, and what was seen
    /// is not asked for any more (`docs/replication.md`).
    pub gave_way: bool,
    /// What a refused stage is refused with.
    pub refusal: Status,
    /// A predecessor's word is under way for a while (else it is asked and there in one step).
    pub slow_words: bool,
    /// Who has crashed stays away until the troubles end (fewer interleavings).
    pub stay_away: bool,
    /// See `closed.rs`.
    pub closed: bool,
    /// What is wrong in this world, on purpose.
    pub fault: Option<Fault>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Choice {
    Deliver(Msg),
    Duplicate(Msg),
    Lose(Msg),
    /// The n-th operation of a node's store ends.
    Disk(u8, usize),
    /// That operation, a stage, is refused for want of room.
    Refuse(u8, usize),
    Timer(u8),
    Crash(u8, bool),
    Restart(u8),
    Fence(u8),
    Unfence(u8),
    Fill(u8),
    Drain(u8),
    Tell(u8),
    StartSync(u8),
    /// A node asks its predecessor what it vouches for.
    Ask(u8),
    /// The same, of what somebody has read and waits for.
    AskFor(u8),
    /// Somebody reads that chunk of a node.
    Read(u8, u8),
    Send(u8),
    Repeat(u8),
    /// A client's request, from its sending to its arrival at that node.
    Attempt(u8, u8),
    Age(u8),
    Declare(u8),
    Rejoin(u8),
    Promote(u8),
    TakeOver(u8),
    Activate,
}

impl World {
    /// `replicas` nodes that serve, and clients: (chunk, writes).
    pub fn new(replicas: u8, clients: &[(u8, u8)], budget: Budget) -> World {
        let mut w = World {
            nodes: (0..replicas).map(Node::new).collect(),
            chain: Chain::new(replicas),
            msgs: BTreeMap::new(),
            clients: clients
                .iter()
                .map(|&(chunk, writes)| Client {
                    chunk,
                    number: 0,
                    writes,
                    waiting: false,
                    repeats: 2,
                    removals: Vec::new(),
                })
                .collect(),
            acked: BTreeSet::new(),
            observed: BTreeMap::new(),
            budget,
            serial_disks: false,
            hasty: false,
            refused: false,
            gave_way: false,
            refusal: Status::NoSpace,
            slow_words: false,
            stay_away: false,
            closed: false,
            fault: None,
        };
        for i in 0..replicas {
            w.apply(&Choice::Tell(i));
            w.apply(&Choice::Disk(i, 0));
        }
        w.apply(&Choice::Activate);
        for i in 0..replicas {
            w.apply(&Choice::Tell(i));
        }
        w
    }

    /// Every replica has a chunk that was removed as that version.
    pub fn remove(&mut self, at: u8, version: u64) {
        for n in &mut self.nodes {
            let model = Model { committed: version, removed: true, ..Model::default() };
            n.store.chunks.insert(chunk(at), model);
        }
    }

    /// Every replica has that of a chunk, as that version.
    pub fn fill(&mut self, at: u8, content: &Content, version: u64) {
        for n in &mut self.nodes {
            let model = Model { committed: version, content: content.clone(), ..Model::default() };
            n.store.chunks.insert(chunk(at), model);
        }
    }

    pub fn send(&mut self, msg: Msg) {
        *self.msgs.entry(msg).or_default() += 1;
    }

    /// Everything that can happen next; the troubles only as far as the budget goes.
    pub fn choices(&self) -> Vec<Choice> {
        if self.closed {
            return self.closed_choices();
        }
        let mut out = Vec::new();
        let b = &self.budget;
        for msg in self.msgs.keys() {
            out.push(Choice::Deliver(msg.clone()));
            if b.losses > 0 {
                out.push(Choice::Lose(msg.clone()));
            }
            if b.duplicates > 0 && !matches!(msg, Msg::SyncPage { .. } | Msg::Response { .. }) {
                out.push(Choice::Duplicate(msg.clone()));
            }
        }
        for (i, n) in self.nodes.iter().enumerate() {
            let i = i as u8;
            if n.replica.is_none() {
                if !self.stay_away {
                    out.push(Choice::Restart(i));
                }
                continue;
            }
            let disks = if self.serial_disks { n.ops.len().min(1) } else { n.ops.len() };
            for (k, op) in n.ops.iter().enumerate() {
                // Operations of one chunk end in their order, and nothing overtakes what is forgotten.
                let ahead = |o: &Op| o.chunk() == op.chunk() || o.forgets();
                if k < disks && !n.ops[..k].iter().any(ahead) {
                    out.push(Choice::Disk(i, k));
                }
                // That there is no room for an update is known before those ahead of it have ended.
                let queued = self.refusal == Status::Overloaded && op.chunk().is_some();
                if b.refusals > 0 && (op.stages() || queued) {
                    out.push(Choice::Refuse(i, k));
                }
            }
            if !n.timers.is_empty() && b.pauses > 0 {
                out.push(Choice::Timer(i));
            }
            if b.crashes > 0 {
                out.push(Choice::Crash(i, false));
                if !n.ops.is_empty() {
                    out.push(Choice::Crash(i, true));
                }
            }
            if n.fenced {
                out.push(Choice::Unfence(i));
            } else if b.fences > 0 {
                out.push(Choice::Fence(i));
            }
            if n.full {
                out.push(Choice::Drain(i));
            } else if b.fills > 0 {
                out.push(Choice::Fill(i));
            }
            let accounted = self.chain.lives[i as usize] == n.life;
            if n.told != (self.chain.version, self.chain.activated) && !n.fenced && accounted {
                out.push(Choice::Tell(i));
            }
            if self.may_sync(i) {
                out.push(Choice::StartSync(i));
            }
            if self.may_ask(i) {
                out.push(Choice::Ask(i));
            }
            if self.may_ask_for_reader(i) {
                out.push(Choice::AskFor(i));
            }
            out.extend(self.may_read(i).into_iter().map(|at| Choice::Read(i, at)));
            if b.ages > 0 && (self.hasty || self.nothing_older_comes(&n.begun)) {
                out.push(Choice::Age(i));
            }
        }
        for (i, c) in self.clients.iter().enumerate() {
            if c.number < c.writes {
                if !c.waiting {
                    out.push(Choice::Send(i as u8));
                } else if c.repeats > 0 && self.chain.head().is_some() {
                    out.push(Choice::Repeat(i as u8));
                }
            }
        }
        self.mgmtd_choices(&mut out);
        out
    }

    pub fn apply(&mut self, choice: &Choice) {
        match choice {
            Choice::Deliver(msg) => {
                if self.closed && self.comes_in_vain(msg) {
                    self.budget.pauses -= 1;
                }
                self.take(msg);
                self.deliver(msg.clone());
            }
            Choice::Duplicate(msg) => {
                self.budget.duplicates -= 1;
                self.deliver(msg.clone());
            }
            Choice::Lose(msg) => {
                self.budget.losses -= 1;
                self.take(msg);
                self.lose(msg.clone(), Status::TimedOut);
            }
            Choice::Send(i) | Choice::Repeat(i) => {
                let c = &mut self.clients[*i as usize];
                if matches!(choice, Choice::Repeat(_)) {
                    c.repeats = c.repeats.saturating_sub(1);
                }
                c.waiting = true;
                let (number, remove) = (c.number, c.removals.contains(&c.number));
                if let Some(to) = self.chain.head() {
                    let chain_version = self.chain.version;
                    self.send(Msg::Request { to, client: *i, number, chain_version, remove });
                }
            }
            Choice::Attempt(client, node) => self.attempt(*client, *node),
            Choice::Declare(_)
            | Choice::Rejoin(_)
            | Choice::Promote(_)
            | Choice::TakeOver(_)
            | Choice::Activate => {
                self.mgmtd_apply(choice);
            }
            other => self.node_apply(other),
        }
        self.observe();
        if self.closed {
            self.budget.syncs = 1;
            self.come_back();
            self.put_in_order();
        }
    }

    /// Whether all serve, under an active version.
    pub fn serve_again(&self) -> bool {
        let all = (0..self.nodes.len()).all(|i| self.chain.state(i as u8) == PublicState::Serving);
        let told = |n: &Node| n.told == (self.chain.version, self.chain.activated);
        all && self.chain.activated == self.chain.version && self.nodes.iter().all(told)
    }

    /// How many writes each client has begun.
    pub fn begun(&self) -> Vec<u8> {
        self.clients.iter().map(|c| c.number + u8::from(c.waiting)).collect()
    }

    /// Whether no request for any of these writes can arrive any more: none is on its way, nobody will repeat it.
    fn nothing_older_comes(&self, begun: &[u8]) -> bool {
        let older = |client: usize, n: u8| begun.get(client).is_some_and(|b| n < *b);
        let repeats = |(i, c): (usize, &Client)| c.waiting && older(i, c.number);
        let under_way = |m: &Msg| match m {
            Msg::Request { client, number, .. } => older(usize::from(*client), *number),
            _ => false,
        };
        !self.clients.iter().enumerate().any(repeats) && !self.msgs.keys().any(under_way)
    }

    fn take(&mut self, msg: &Msg) {
        if let Some(n) = self.msgs.get_mut(msg) {
            *n -= 1;
            if *n == 0 {
                self.msgs.remove(msg);
            }
        }
    }

    /// A message that does not arrive: whoever waits for its answer learns that the call failed.
    pub fn lose(&mut self, msg: Msg, status: Status) {
        match msg {
            Msg::Forward { from, life, back, .. } => {
                self.send(Msg::Answer { to: from, life, back, result: Err(status) });
            }
            Msg::Answer { to, life, back, .. } => {
                self.nodes[to as usize].answers_lost.push((life, back, status));
            }
            Msg::SyncList { from, life, chain_version, .. } => {
                self.send(Msg::SyncPage { to: from, life, chain_version, page: None });
            }
            Msg::SyncDone { from, life, .. } => {
                self.send(Msg::Answer { to: from, life, back: Back::Done, result: Err(status) });
            }
            Msg::SyncPage { to, life, chain_version, .. } => {
                self.send(Msg::SyncPage { to, life, chain_version, page: None });
            }
            Msg::Request { .. } | Msg::Response { .. } | Msg::Ask { .. } | Msg::Word { .. } => {}
        }
        for i in 0..self.nodes.len() {
            for (life, back, status) in std::mem::take(&mut self.nodes[i].answers_lost) {
                self.answer(i as u8, life, back, Err(status));
            }
        }
    }

    fn deliver(&mut self, msg: Msg) {
        let Some(to) = msg.to() else {
            if let Msg::Response { client, number, result } = msg {
                self.client_answered(client, number, result);
            }
            return;
        };
        let node = &self.nodes[to as usize];
        if node.replica.is_none() {
            return match msg {
                Msg::Answer { .. } | Msg::SyncPage { .. } | Msg::Word { .. } => {}
                Msg::Request { client, number, .. } => {
                    self.send(Msg::Response { client, number, result: Err(Status::Disconnected) });
                }
                other => self.lose(other, Status::Disconnected),
            };
        }
        if node.fenced
            && self.fault != Some(Fault::LeaseUnchecked)
            && matches!(
                msg,
                Msg::Request { .. }
                    | Msg::Forward { .. }
                    | Msg::SyncList { .. }
                    | Msg::SyncDone { .. }
                    | Msg::Ask { .. }
            )
        {
            return match msg {
                Msg::Request { client, number, .. } => {
                    self.send(Msg::Response { client, number, result: Err(Status::NoLease) });
                }
                other => self.lose(other, Status::NoLease),
            };
        }
        self.node_deliver(to, msg);
    }

    pub fn client_answered(&mut self, client: u8, number: u8, result: Result<(), Status>) {
        let c = &mut self.clients[client as usize];
        if c.number != number || !c.waiting {
            // A late answer to an earlier try.
            return;
        }
        match result {
            Ok(()) => {
                if !c.removals.contains(&number) {
                    self.acked.insert((c.chunk, (client, number)));
                }
                c.number += 1;
                c.waiting = false;
            }
            // An application sees this one; the write is given up.
            Err(Status::NoSpace) => {
                c.number += 1;
                c.waiting = false;
            }
            Err(Status::OldSequence) => {
                panic!("the newest write of client {client} was called old")
            }
            Err(_) => {}
        }
    }
}
