//! The same world without what only makes it larger, so that it can be walked to its end: [`World::closed`]. What is left out, and why nothing is lost by it:
//!
//! - *Requests and answers of clients* are under way for no time. A request that arrives late is one that was sent late by a client that knew an older chain
//!   version, and every client may know any version that a node has adopted: [`Choice::Attempt`] asks whoever takes itself for the head, under the version that it
//!   goes by. All other requests are refused before they change anything. An answer changes the client only, and it may be
//!   lost, or come too late, by the loss of a lease; the sooner it is there, the more is demanded of what is read.
//! - *A client tries again* when it was refused or its node died; without an answer only as often as `repeats` says, and then the first try still runs.
//! - *A crashed process is back at once.* Until mgmtd has taken note of the new life, which it does whenever it likes, nothing can be asked of it that could not be asked of a process that is away, and
//!   all is answered with an error.
//! - *The first of clients that are alike is the one with the least number.* Until then the states of the world are the same if they are exchanged, and so is all that is demanded.
//! - *What comes in vain*: an update or a question of a resync that comes to a node which does not go by that chain version (yet), or has no lease, is refused before anything is
//!   changed, and comes again after a pause. Nobody but the sender can tell that from a message that takes so much longer, and the sender
//!   goes by the one as by the other. So it happens `pauses` times, which shows that the core does send again, and from then on messages take so much longer. One that can never be taken
//!   any more goes with the chain version of its sender.
//! - *A predecessor's word* (`craq/shown.rs`) is asked for and there in one step, and only where it says something: under one chain version what it vouches for it goes on to vouch for, so
//!   a word that comes late is one that was asked for late. That is so because no store refuses anything here; where one does, a number is given again, and words take their time (`explore.rs`).
//! - *Readers that wait for a word* are not there: in each step all that could be read is looked at instead (`check.rs`). Of those who wait: `explore.rs`.
//! - *Resyncs* are without bound: one that failed begins again, so an end is one by itself.

use super::node::{From, origin};
use super::{Choice, Client, Fault, Msg, Pay, World, chunk};
use crate::walk;
use glowfs_craq::{Event, Update};
use glowfs_types::ChainVersion;

impl World {
    /// Makes it one for walks.
    pub fn close(mut self) -> Self {
        self.closed = true;
        self.budget.syncs = 1;
        self.put_in_order();
        self
    }

    fn waits(&self, client: u8) -> bool {
        let mine = |f: &From| matches!(f, From::Client(c, _) if *c == client);
        self.nodes.iter().any(|n| n.tickets.values().any(|t| mine(&t.0)))
    }

    fn attempts(&self, out: &mut Vec<Choice>) {
        let alike = |a: &Client, b: &Client| {
            (a.chunk, a.writes, &a.removals) == (b.chunk, b.writes, &b.removals)
        };
        for (i, c) in self.clients.iter().enumerate() {
            let begun = |c: &Client| c.waiting || c.number > 0;
            let turn = self.clients[..i].iter().all(|before| !alike(before, c) || begun(before));
            if c.number >= c.writes || !turn || (self.waits(i as u8) && c.repeats == 0) {
                continue;
            }
            for n in
                self.nodes.iter().filter(|n| !n.fenced || self.fault == Some(Fault::LeaseUnchecked))
            {
                let Some(r) = &n.replica else { continue };
                if r.view().is_some_and(|v| v.head && r.check(v.version).is_ok()) {
                    out.push(Choice::Attempt(i as u8, n.me));
                }
            }
        }
    }

    pub fn attempt(&mut self, client: u8, node: u8) {
        let waits = self.waits(client);
        let c = &mut self.clients[client as usize];
        c.waiting = true;
        if waits {
            c.repeats -= 1;
        }
        let (number, at) = (c.number, chunk(c.chunk));
        let update =
            Update { origin: Some(origin(client, number)), needs_room: true, ..Update::default() };
        let ticket =
            self.ticket(node, From::Client(client, number), Pay::Append((client, number)), update);
        let r = self.nodes[node as usize].replica.as_ref();
        let chain_version = r.and_then(|r| r.view()).map_or(ChainVersion(0), |v| v.version);
        self.feed(node, Event::Update { ticket, chain_version, chunk: at, update });
    }

    /// Whether whoever gets that refuses it for what it is at that moment, and nothing else comes of it.
    pub fn comes_in_vain(&self, msg: &Msg) -> bool {
        let (to, version) = match msg {
            Msg::Forward { to, f, .. } => (*to, f.chain_version),
            Msg::SyncList { to, chain_version, .. } | Msg::SyncDone { to, chain_version, .. } => {
                (*to, ChainVersion(*chain_version))
            }
            _ => return false,
        };
        let n = &self.nodes[to as usize];
        let fenced = n.fenced && self.fault != Some(Fault::LeaseUnchecked);
        let takes = n
            .replica
            .as_ref()
            .and_then(|r| r.check(version).ok())
            .is_some_and(|v| v.serving() || v.receiving());
        fenced || !takes
    }

    /// Everything that can happen next in a closed world.
    pub fn closed_choices(&self) -> Vec<Choice> {
        let vain = self.budget.pauses > 0;
        let msgs = self.msgs.keys().filter(|m| vain || !self.comes_in_vain(m));
        let mut out: Vec<_> = msgs.cloned().map(Choice::Deliver).collect();
        for (i, n) in self.nodes.iter().enumerate() {
            let i = i as u8;
            let disks = if self.serial_disks { n.ops.len().min(1) } else { n.ops.len() };
            for (k, op) in n.ops.iter().enumerate().take(disks) {
                let ahead = |o: &super::store::Op| o.chunk() == op.chunk() || o.forgets();
                if !n.ops[..k].iter().any(ahead) {
                    out.push(Choice::Disk(i, k));
                }
            }
            if !n.timers.is_empty() {
                out.push(Choice::Timer(i));
            }
            if self.budget.crashes > 0 {
                out.push(Choice::Crash(i, false));
                if !n.ops.is_empty() {
                    out.push(Choice::Crash(i, true));
                }
            }
            if n.fenced {
                out.push(Choice::Unfence(i));
            } else if self.budget.fences > 0 {
                out.push(Choice::Fence(i));
            }
            let accounted = self.chain.lives[i as usize] == n.life
                || self.fault == Some(Fault::FormerLifeTrusted);
            if n.told != (self.chain.version, self.chain.activated) && !n.fenced && accounted {
                out.push(Choice::Tell(i));
            }
            if self.may_sync(i) {
                out.push(Choice::StartSync(i));
            }
            if self.may_ask(i) {
                out.push(Choice::Ask(i));
            }
        }
        self.attempts(&mut out);
        self.mgmtd_choices(&mut out);
        out
    }

    /// Who crashed is back, as a new life.
    pub fn come_back(&mut self) {
        for n in self.nodes.iter_mut().filter(|n| n.replica.is_none()) {
            n.restart(self.fault);
        }
    }
}

impl walk::World for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        World::choices(self)
    }
    fn is_trouble(&self, choice: &Choice) -> bool {
        matches!(choice, Choice::Crash(..) | Choice::Fence(_))
    }
    fn go(&mut self, choice: &Choice) {
        self.apply(choice);
    }
    fn at_rest(&self) -> Result<(), String> {
        let lacks = self.lacks();
        if lacks.is_empty() { Ok(()) } else { Err(lacks.join("; ")) }
    }
}
