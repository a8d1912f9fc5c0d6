//! One node of the world: the core, its store, and what the service shell does around them.

use super::shown::Reading;
use super::store::{Op, Store, crc};
use super::{Back, Choice, Content, Fault, Msg, Pay, World, Write, chunk};
use glowfs_craq::resync::{Transfer, compare};
use glowfs_craq::{
    Action, ChunkBrief, ChunkView, Event, Form, Forwarded, Loaded, Origin, Replica, Ticket,
    TimerId, Update,
};
use glowfs_types::wire::data::{ChannelRecord, ChunkSummary};
use glowfs_types::{
    ChainVersion, ChannelId, ChunkId, ChunkVersion, ClientId, Seq, Status, TargetId,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum From {
    Client(u8, u8),
    Node { node: u8, life: u8, back: Back },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub me: u8,
    pub life: u8,
    pub replica: Option<Replica>,
    pub store: Store,
    pub ops: Vec<Op>,
    pub fenced: bool,
    pub full: bool,
    pub told: (u64, u64),
    pub tickets: BTreeMap<Ticket, (From, Pay, Update)>,
    pub next_ticket: u64,
    pub payloads: BTreeMap<(ChunkId, u64), (Pay, Update)>,
    pub timers: Vec<TimerId>,
    /// The writes that each client had begun when the last age ended here.
    pub begun: Vec<u8>,
    /// The chain version of the resync that we send, and the transfers that are outstanding (`None`: the page is).
    pub sync: Option<(u64, Option<BTreeSet<u16>>)>,
    pub next_tag: u16,
    pub answers_lost: Vec<(u8, Back, Status)>,
    /// What was read here and is not told yet.
    pub readings: Vec<Reading>,
    /// It is of an older release: it shows at once what it has committed, and asks nobody for a word; nor does it know what that is.
    pub older: bool,
}

pub struct View<'a>(pub &'a Store, pub bool);
impl ChunkView for View<'_> {
    fn chunk(&self, chunk: ChunkId) -> ChunkBrief {
        self.0.chunks.get(&chunk).map_or_else(ChunkBrief::default, |m| ChunkBrief {
            committed: ChunkVersion(m.committed),
            exists: m.committed > 0 && !m.removed,
            content_crc: crc(&m.content),
        })
    }
    fn has_room(&self) -> bool {
        !self.1
    }
}

impl Node {
    pub fn new(me: u8) -> Self {
        Self {
            me,
            life: 0,
            replica: Some(Replica::new(TargetId(u64::from(me) + 1), ChainVersion(0), &[], &[])),
            store: Store::default(),
            ops: Vec::new(),
            fenced: false,
            full: false,
            told: (0, 0),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            payloads: BTreeMap::new(),
            timers: Vec::new(),
            begun: Vec::new(),
            sync: None,
            next_tag: 0,
            answers_lost: Vec::new(),
            readings: Vec::new(),
            older: false,
        }
    }

    pub fn restart(&mut self, fault: Option<Fault>) {
        let mut pending = Vec::new();
        for (id, m) in &self.store.chunks {
            pending.extend(m.pending.iter().map(|s| Loaded {
                chunk: *id,
                version: ChunkVersion(s.version),
                origin: s.origin,
                removes: s.removes,
            }));
        }
        let channels = self.store.channels.iter().map(|(&(client, channel), &(seq, chunk, v))| {
            ChannelRecord { client, channel, seq, chunk, version: ChunkVersion(v) }
        });
        let channels: Vec<_> = channels.collect();
        let former = if fault == Some(Fault::FormerLifeTrusted) { 0 } else { self.store.adopted };
        self.life += 1;
        self.fenced = false;
        self.told = (0, 0);
        self.replica = Some(Replica::new(
            TargetId(u64::from(self.me) + 1),
            ChainVersion(former),
            &pending,
            &channels,
        ));
    }

    pub fn crash(&mut self, applied: bool) {
        let ops = std::mem::take(&mut self.ops);
        if applied {
            for op in ops {
                let _ = self.store.run(&op);
            }
        }
        self.replica = None;
        self.readings.clear();
        self.begun.clear();
        self.tickets.clear();
        self.payloads.clear();
        self.timers.clear();
        self.sync = None;
    }
}

fn summaries(list: &[(ChunkId, ChunkVersion, Content)]) -> Vec<ChunkSummary> {
    list.iter()
        .map(|(id, v, c)| ChunkSummary {
            chunk: *id,
            committed: *v,
            pending: *v,
            len: c.len() as u32,
            content_crc: crc(c),
            chunk_bytes: 1,
        })
        .collect()
}

pub fn origin(client: u8, number: u8) -> Origin {
    Origin {
        client: ClientId(u128::from(client) + 1),
        // Now the one and now the other, each idle meanwhile.
        channel: ChannelId(1 + u64::from(number % 2)),
        seq: Seq(u64::from(number) + 1),
    }
}

impl World {
    pub fn ticket(&mut self, i: u8, from: From, pay: Pay, update: Update) -> Ticket {
        let n = &mut self.nodes[i as usize];
        n.next_ticket += 1;
        let t = Ticket(n.next_ticket);
        n.tickets.insert(t, (from, pay, update));
        t
    }

    pub fn feed(&mut self, i: u8, event: Event) {
        let n = &mut self.nodes[i as usize];
        let Some(r) = &mut n.replica else { return };
        let mut out = Vec::new();
        r.step(event, &View(&n.store, n.full), &mut out);
        for action in out {
            self.perform(i, action);
        }
        if self.fault == Some(Fault::ShownAtOnce) {
            self.show_at_once(i);
        }
    }

    fn perform(&mut self, i: u8, action: Action) {
        let n = &mut self.nodes[i as usize];
        match action {
            Action::Adopt(v) => {
                let syncs =
                    n.replica.as_ref().and_then(|r| r.adopting()).is_some_and(|v| v.syncing());
                n.ops.push(Op::Adopt(v.0, syncs));
            }
            Action::Stage { ticket, chunk, version, commit, onto } => {
                let (_, pay, update) =
                    n.tickets.get(&ticket).expect("it waits for its answer").clone();
                n.payloads.insert((chunk, version.0), (pay.clone(), update));
                n.ops.push(Op::Stage { chunk, version: version.0, pay, update, commit, onto });
            }
            Action::StageAgain { chunk, version, onto, .. } => {
                let version = version.0;
                let (pay, update) =
                    n.payloads.get(&(chunk, version)).expect("not released yet").clone();
                n.ops.push(Op::Stage { chunk, version, pay, update, commit: false, onto });
            }
            Action::Commit(c, v) => n.ops.push(Op::Commit(c, v.0)),
            Action::Discard(c, v) => n.ops.push(Op::Discard(c, v.0)),
            Action::Release(c, v) => {
                n.payloads.remove(&(c, v.0));
            }
            Action::Forward {
                id,
                target,
                chain_version,
                chunk,
                version,
                base,
                generation,
                form,
                mut update,
                ..
            } => {
                update.vouches &= !n.older;
                let (pay, full) = match form {
                    Form::Original => (
                        n.payloads.get(&(chunk, version.0)).expect("not released yet").0.clone(),
                        false,
                    ),
                    Form::Full { removed: true } => (Pay::Remove, true),
                    Form::Full { removed: false } => {
                        (Pay::Full(n.store.content(chunk, version.0)), true)
                    }
                };
                let f = Forwarded {
                    chain_version,
                    chunk,
                    version,
                    base,
                    generation,
                    full,
                    sync: false,
                    update,
                };
                let (life, to) = (n.life, (target.0 - 1) as u8);
                self.send(Msg::Forward { from: i, life, to, back: Back::Forward(id), f, pay });
                if self.fault == Some(Fault::CommitBeforeAck) {
                    self.feed(i, Event::Answer(id, Ok(0)));
                }
            }
            Action::Reply(ticket, result) => self.reply(i, ticket, result.map(|d| d.chunk)),
            Action::Pause(_) | Action::Rest(_) if self.fault == Some(Fault::NeverAgain) => {}
            Action::Pause(t) | Action::Rest(t) => n.timers.push(t),
            Action::Forget(clients, some) => {
                self.nodes[i as usize].ops.push(Op::Forget(clients, some));
            }
            Action::ForgetChannels(clients) => {
                self.nodes[i as usize].ops.push(Op::ForgetAll(clients));
            }
            Action::Diverged(c, v) => panic!("node {i}: content of {c} differs at {v}"),
            // It comes back by itself when mgmtd took it out, as after a restart; what its store was asked ends before. Of no other reason it may fail here.
            Action::Failed(status)
                if self.refused && status == self.refusal && status != Status::Overloaded =>
            {
                self.gave_way = self.nodes.iter().any(|n| n.older);
                self.nodes[i as usize].crash(true)
            }
            Action::Failed(status) => panic!("node {i} failed: {status}"),
            Action::ReadNow(ticket) => self.told(i, ticket),
            Action::ReadRefused(ticket, _) => drop(self.waits_no_more(i, ticket)),
            Action::AskPredecessor(chunk, _) if self.fault == Some(Fault::ToldUnvouched) => {
                self.tell_all(i, chunk);
            }
            Action::AskPredecessor(..) | Action::Refresh | Action::Held(..) | Action::Report => {}
        }
    }

    fn reply(&mut self, i: u8, ticket: Ticket, result: Result<ChunkId, Status>) {
        let n = &mut self.nodes[i as usize];
        let (from, ..) = n.tickets.remove(&ticket).expect("answered once");
        // Without a lease nothing is told.
        let lease = !n.fenced || self.fault == Some(Fault::LeaseUnchecked);
        let result = if lease { result } else { Err(Status::NoLease) };
        let theirs = result.map(|_| 0);
        match from {
            From::Client(client, number) if self.closed => {
                self.client_answered(client, number, theirs.map(|_: u32| ()));
            }
            From::Client(client, number) => {
                self.send(Msg::Response { client, number, result: theirs.map(|_: u32| ()) });
            }
            From::Node { node, life, back } => {
                self.send(Msg::Answer { to: node, life, back, result: theirs });
            }
        }
    }

    pub fn answer(&mut self, i: u8, life: u8, back: Back, result: Result<u32, Status>) {
        let n = &mut self.nodes[i as usize];
        if n.life != life || n.replica.is_none() {
            return;
        }
        match back {
            Back::Forward(id) => self.feed(i, Event::Answer(id, result)),
            Back::Sync(tag) => {
                let Some((_, Some(left))) = &mut n.sync else { return };
                if !left.remove(&tag) {
                    return;
                }
                match result {
                    Err(_) => n.sync = None,
                    Ok(_) if left.is_empty() => self.sync_finish(i),
                    Ok(_) => {}
                }
            }
            Back::Done => {
                if result.is_err() {
                    n.sync = None;
                }
            }
        }
    }

    pub fn may_sync(&self, i: u8) -> bool {
        let n = &self.nodes[i as usize];
        let Some(view) = n.replica.as_ref().and_then(|r| r.view()) else { return false };
        let due = view.serving() && view.successor.is_some_and(|s| s.2) && !n.fenced;
        due && n.sync.as_ref().is_none_or(|s| s.0 != view.version.0) && self.budget.syncs > 0
    }

    fn sync_finish(&mut self, i: u8) {
        let n = &mut self.nodes[i as usize];
        let Some(r) = &n.replica else { return };
        let Some(view) = r.view().copied() else { return };
        let Some(version) = n.sync.as_ref().map(|s| s.0) else { return };
        let Some((to, ..)) = view.successor.filter(|_| view.version.0 == version) else { return };
        if !r.may_finish_sync() {
            // As in the service: it waits; here by beginning again.
            n.sync = None;
            return;
        }
        let channels = r
            .channel_records()
            .into_iter()
            .map(|c| {
                ((c.client.0 - 1) as u8, (c.seq.0 - 1) as u8, c.chunk.index as u8, c.version.0)
            })
            .collect();
        let (life, to) = (n.life, (to.0 - 1) as u8);
        self.send(Msg::SyncDone { from: i, life, to, chain_version: version, channels });
    }

    fn sync_page(
        &mut self,
        i: u8,
        version: u64,
        theirs: Option<Vec<(ChunkId, ChunkVersion, Content)>>,
    ) {
        let n = &mut self.nodes[i as usize];
        if n.sync.as_ref().map(|s| s.0) != Some(version) {
            return;
        }
        let view = n.replica.as_ref().and_then(|r| r.view()).copied();
        let (Some(theirs), Some(view)) = (theirs, view.filter(|v| v.version.0 == version)) else {
            n.sync = None;
            return;
        };
        let Some((to, ..)) = view.successor else { return };
        let page = compare(&summaries(&theirs), false, &summaries(&n.store.list()), false);
        let mut page = page;
        let r = n.replica.as_ref().expect("it has a view");
        let id = |t: &Transfer| match t {
            Transfer::Replace(id) | Transfer::Remove(id) => *id,
        };
        // As in the service: what came through the chain needs no transfer, what is on its way is waited for.
        page.transfers.retain(|t| !r.is_covered(id(t)));
        if self.fault == Some(Fault::NothingTransferred) {
            page.transfers.clear();
        }
        if page.transfers.iter().any(|t| r.is_active(id(t))) {
            n.sync = None;
            return;
        }
        let first = n.next_tag;
        n.next_tag += page.transfers.len() as u16;
        n.sync = Some((version, Some((first..n.next_tag).collect())));
        if page.transfers.is_empty() {
            return self.sync_finish(i);
        }
        for (k, t) in page.transfers.into_iter().enumerate() {
            let n = &self.nodes[i as usize];
            let (Transfer::Replace(id) | Transfer::Remove(id)) = t;
            let m = n.store.chunks.get(&id).cloned().unwrap_or_default();
            let removes = m.committed == 0 || m.removed;
            let pay = if removes { Pay::Remove } else { Pay::Full(m.content) };
            let f = Forwarded {
                chain_version: view.version,
                chunk: id,
                version: ChunkVersion(
                    m.committed + u64::from(self.fault == Some(Fault::VersionMiscounted)),
                ),
                base: ChunkVersion(0),
                generation: 0,
                full: true,
                sync: true,
                update: Update { needs_room: !removes, removes, ..Update::default() },
            };
            let (life, to) = (n.life, (to.0 - 1) as u8);
            self.send(Msg::Forward {
                from: i,
                life,
                to,
                back: Back::Sync(first + k as u16),
                f,
                pay,
            });
        }
    }

    pub fn node_deliver(&mut self, to: u8, msg: Msg) {
        match msg {
            Msg::Request { client, number, chain_version, remove, .. } => {
                let update = Update {
                    origin: Some(origin(client, number)),
                    flush: false,
                    needs_room: !remove,
                    removes: remove,
                    vouches: false,
                };
                let pay = if remove { Pay::Remove } else { Pay::Append((client, number)) };
                let ticket = self.ticket(to, From::Client(client, number), pay, update);
                let at = chunk(self.clients[client as usize].chunk);
                let chain_version = ChainVersion(chain_version);
                self.feed(to, Event::Update { ticket, chain_version, chunk: at, update });
            }
            Msg::Forward { from, life, back, mut f, pay, .. } => {
                f.update.vouches &= !self.nodes[to as usize].older;
                let ticket = self.ticket(to, From::Node { node: from, life, back }, pay, f.update);
                self.feed(to, Event::Forward(ticket, f));
            }
            Msg::Answer { life, back, result, .. } => self.answer(to, life, back, result),
            Msg::SyncList { from, life, chain_version, .. } => {
                let n = &self.nodes[to as usize];
                let ok = n.replica.as_ref().is_some_and(|r| {
                    r.check(ChainVersion(chain_version)).is_ok_and(|v| v.receiving())
                });
                let page = ok.then(|| n.store.list());
                self.send(Msg::SyncPage { to: from, life, chain_version, page });
            }
            Msg::SyncPage { life, chain_version, page, .. } => {
                if self.nodes[to as usize].life == life {
                    self.sync_page(to, chain_version, page);
                }
            }
            Msg::SyncDone { from, life, chain_version, channels, .. } => {
                let version = ChainVersion(chain_version);
                let records: Vec<_> = channels
                    .iter()
                    .map(|&(c, number, index, v)| {
                        let o = origin(c, number);
                        ChannelRecord {
                            client: o.client,
                            channel: o.channel,
                            seq: o.seq,
                            chunk: chunk(index),
                            version: ChunkVersion(v),
                        }
                    })
                    .collect();
                let n = &mut self.nodes[to as usize];
                let fits = n
                    .replica
                    .as_ref()
                    .is_some_and(|r| r.check(version).is_ok_and(|v| v.receiving()));
                if fits {
                    for r in &records {
                        let have = n.store.channels.entry((r.client, r.channel)).or_insert((
                            r.seq,
                            r.chunk,
                            r.version.0,
                        ));
                        if have.0 < r.seq {
                            *have = (r.seq, r.chunk, r.version.0);
                        }
                    }
                }
                self.feed(to, Event::Channels(version, records));
                let from = From::Node { node: from, life, back: Back::Done };
                let ticket = self.ticket(to, from, Pay::Remove, Update::default());
                let answer = match self.fault {
                    Some(Fault::NeverUpToDate) => Some(Ok(chunk(0))),
                    Some(Fault::NeverDone) => Some(Err(Status::Pending)),
                    _ => None,
                };
                if let Some(answer) = answer {
                    return self.reply(to, ticket, answer);
                }
                self.feed(to, Event::SyncDone(ticket, version));
            }
            Msg::Ask { from, life, chain_version, about, waits, .. } => {
                let vouched = self.word(to, chain_version, &about, waits);
                self.send(Msg::Word { to: from, life, chain_version, vouched });
            }
            Msg::Word { life, chain_version, vouched, .. } => {
                if self.nodes[to as usize].life == life {
                    self.feed(to, Event::Vouched(ChainVersion(chain_version), vouched));
                }
            }
            Msg::Response { .. } => unreachable!("goes to a client"),
        }
    }

    pub fn node_apply(&mut self, choice: &Choice) {
        match *choice {
            Choice::Disk(i, k) => {
                let n = &mut self.nodes[i as usize];
                let op = n.ops.remove(k);
                let result = n.store.run(&op);
                let event = match op {
                    Op::Stage { chunk, version, update, .. } => {
                        if self.fault == Some(Fault::AckBeforeTail) {
                            self.ack_at_head(i, update);
                        }
                        Event::Staged(chunk, ChunkVersion(version), result)
                    }
                    Op::Commit(c, v) => Event::Committed(c, ChunkVersion(v), result),
                    Op::Discard(c, _) => Event::Discarded(c, result),
                    Op::Forget(..) => return,
                    Op::ForgetAll(_) => Event::Forgotten,
                    Op::Adopt(v, _) => Event::Adopted(ChainVersion(v)),
                };
                self.feed(i, event);
            }
            Choice::Refuse(i, k) => {
                self.budget.refusals -= 1;
                self.refused = true;
                let refused = Err(self.refusal);
                let event = match self.nodes[i as usize].ops.remove(k) {
                    Op::Stage { chunk, version, .. } => {
                        Event::Staged(chunk, ChunkVersion(version), refused)
                    }
                    Op::Commit(c, v) => Event::Committed(c, ChunkVersion(v), refused),
                    Op::Discard(c, _) => Event::Discarded(c, refused),
                    _ => unreachable!("this is not refused"),
                };
                self.feed(i, event);
            }
            Choice::Timer(i) => {
                if !self.closed {
                    self.budget.pauses = self.budget.pauses.saturating_sub(1);
                }
                let t = self.nodes[i as usize].timers.remove(0);
                self.feed(i, Event::Timer(t));
            }
            Choice::Crash(i, applied) => {
                self.budget.crashes -= 1;
                self.nodes[i as usize].crash(applied);
            }
            Choice::Restart(i) => self.nodes[i as usize].restart(self.fault),
            Choice::Fence(i) => {
                self.budget.fences -= 1;
                self.nodes[i as usize].fenced = true;
            }
            Choice::Unfence(i) => {
                // The routing info of the heartbeat's answer is in force before the lease is.
                self.tell(i);
                self.nodes[i as usize].fenced = false;
            }
            Choice::Fill(i) => {
                self.budget.fills -= 1;
                self.nodes[i as usize].full = true;
            }
            Choice::Age(i) => {
                self.budget.ages -= 1;
                self.nodes[i as usize].begun = self.begun();
                self.feed(i, Event::Age);
            }
            Choice::Ask(i) => self.ask(i),
            Choice::AskFor(i) => self.ask_for_reader(i),
            Choice::Read(i, at) => self.read(i, at),
            Choice::Drain(i) => self.nodes[i as usize].full = false,
            Choice::Tell(i) => self.tell(i),
            Choice::StartSync(i) => {
                self.budget.syncs = self.budget.syncs.saturating_sub(1);
                let n = &mut self.nodes[i as usize];
                let view = n.replica.as_ref().and_then(|r| r.view()).copied().expect("may sync");
                n.sync = Some((view.version.0, None));
                let (life, to) = (n.life, (view.successor.expect("may sync").0.0 - 1) as u8);
                self.send(Msg::SyncList { from: i, life, to, chain_version: view.version.0 });
            }
            _ => unreachable!("not a choice of a node"),
        }
    }

    fn tell(&mut self, i: u8) {
        let trusted = self.fault == Some(Fault::FormerLifeTrusted);
        if self.chain.lives[i as usize] != self.nodes[i as usize].life && !trusted {
            // What mgmtd says of a former life is not for this one.
            return;
        }
        self.nodes[i as usize].told = (self.chain.version, self.chain.activated);
        let mut info = self.chain.info();
        if self.fault == Some(Fault::ActivationIgnored) {
            info.activated = info.version;
        }
        self.feed(i, Event::Chain(Some(info)));
    }
}

/// For messages of failed checks.
pub fn show(content: &[Write]) -> String {
    content.iter().map(|w| format!("{}.{} ", w.0, w.1)).collect()
}
