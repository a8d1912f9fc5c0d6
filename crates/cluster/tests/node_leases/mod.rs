//! Leases of nodes, walked through every order of events (`walk/mod.rs`; [`all_is_well`]): heartbeats and answers that take any time or are lost, nodes and primaries that pause for any time
//! (nothing has to happen soon), clocks that run apart, nodes that die, leave and come back, primaries that end, or are overtaken by a later life of themselves while they still grant leases.
//!
//! In every state: a node whose chains are given away, since it was silent or since it is deaf, does not serve any more, whatever is on its way to it. From every
//! state, if things happen at once from then on: somebody serves as soon as he has been heard `return_beats` times and his lease could be renewed, however often he fell before
//! (no rule keeps out whom others wait for); and all serve when the longest pause is over, and go on. And there is a way from every state to one in which all serve.
//!
//! Time goes in steps, as in `elections/mod.rs`: each process counts from its own present, and a clock errs by one step, once in any time of a lease and the margin. What is further apart than
//! the longest time that anything is compared with might as well be further. Of each node so many heartbeats and so many answers are on their way at once ([`UNDER_WAY_MAX`]).
#![allow(missing_docs)]

mod cases;

use crate::closer::closer;
use crate::walk;
use glowfs_cluster::{Beat, FallPauses, LeaseConfig, NodeLeases, Verdict};
use glowfs_types::{Incarnation, NodeId};
use std::collections::BTreeSet;

/// The present by each clock; far enough from the beginning that nothing is before it.
const NOW: u64 = 1000;
/// Heartbeats, and answers, of one node that are on their way at once.
const UNDER_WAY_MAX: usize = 1;
/// How long a primary that is overtaken by a later life of itself may still act; all by one clock, so the margin is for whoever overtakes.
const OVERTAKEN: u64 = 3;
/// The time between two heartbeats if nothing is in their way.
const INTERVAL: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Setting {
    leases: LeaseConfig,
    /// The first primary grants leases that are so much longer.
    longer: u64,
    /// Storage nodes: they may be deaf, and are kept out for a while when they fall again and again.
    storage: bool,
    /// Primaries are overtaken while they act, rather than followed when they do not.
    overtaken: bool,
    slow: bool,
    fast: bool,
    /// It is tried from every state what becomes of it if everything happens at once.
    prompt: bool,
    /// Time goes on when all has happened that is to happen: each node is silent, or heard, or heard and answered, and mgmtd looks.
    rounds: bool,
    fault: Option<Fault>,
}

/// What is wrong in a world, on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    /// A node counts its lease from the answer.
    LeaseFromAnswer,
    /// mgmtd waits for no margin.
    NoMargin,
    /// A new primary does not wait for leases of the one before.
    NoQuiet,
    /// It does not wait longer for one that may still act.
    OverlapForgotten,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    life: u64,
    sequence: u64,
    /// It serves until then, by its own clock.
    until: u64,
    /// Of that, by leases from before its chains were given away because it is deaf.
    before: u64,
    /// When the newest heartbeat was sent that was answered in time; before there is one, when the first was sent.
    in_time: Option<u64>,
    /// By mgmtd's clock, when leases from before are over.
    fence: Option<u64>,
    right_for: u64,
}

/// On its way to mgmtd.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Sent {
    beat: Beat,
    at: u64,
}
/// On its way to a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Granted {
    node: usize,
    life: u64,
    sent: u64,
    lease: u64,
    /// With the chains of before they were given away.
    before: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Budget {
    crashes: u8,
    changes: u8,
    errs: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    setting: Setting,
    left: Budget,
    nodes: Vec<Node>,
    /// Recorded as alive.
    alive: BTreeSet<NodeId>,
    book: Option<NodeLeases>,
    /// A primary that was overtaken, and until when it may act.
    former: Option<(NodeLeases, u64)>,
    beats: BTreeSet<Sent>,
    answers: BTreeSet<Granted>,
    right_for: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Choice {
    /// Time goes on; mgmtd's clock and those of the nodes by so much.
    Time(Vec<u64>),
    Send(usize),
    Beat(Sent),
    /// It comes to the primary that was overtaken.
    BeatToFormer(Sent),
    Answer(Granted),
    LoseBeat(Sent),
    LoseAnswer(Granted),
    Look,
    Crash(usize),
    Leave(usize),
    Ends,
    Begins,
    Overtaken,
    /// What each node has of one step.
    Round(Vec<Step>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Silent,
    Heard,
    Answered,
}

fn id(i: usize) -> NodeId {
    NodeId(i as u64 + 1)
}

impl Setting {
    /// Nothing is compared with a longer time.
    fn longest(&self, nodes: usize) -> u64 {
        let l = &self.leases;
        let lease = l.lease_ms + self.longer;
        let fall = if self.storage { (2 * lease).max(l.pauses.longest_ms) } else { 0 };
        // Who fell silent together is looked for among storage nodes, of several.
        let together = if self.storage && nodes > 1 { 4 * (lease + l.margin_ms) } else { 0 };
        let overtaken = if self.overtaken { OVERTAKEN + l.margin_ms } else { 0 };
        (lease + l.margin_ms + overtaken).max(fall).max(together)
    }
    fn window(&self) -> u64 {
        self.leases.lease_ms + self.longer + self.leases.margin_ms
    }
}

impl World {
    fn new(nodes: usize, setting: Setting, left: Budget) -> Self {
        let node = Node {
            life: 1,
            sequence: 0,
            until: 0,
            before: 0,
            in_time: None,
            fence: None,
            right_for: 0,
        };
        let mut w = Self {
            setting,
            left,
            nodes: vec![node; nodes],
            alive: (0..nodes).map(id).collect(),
            book: None,
            former: None,
            beats: BTreeSet::new(),
            answers: BTreeSet::new(),
            right_for: 0,
        };
        let first =
            LeaseConfig { lease_ms: setting.leases.lease_ms + setting.longer, ..w.config() };
        w.book = Some(NodeLeases::new(first, w.alive.iter().copied(), NOW, 0));
        w.put_in_order();
        w
    }
    fn config(&self) -> LeaseConfig {
        let margin_ms = if self.setting.fault == Some(Fault::NoMargin) {
            0
        } else {
            self.setting.leases.margin_ms
        };
        LeaseConfig { margin_ms, ..self.setting.leases }
    }
    /// The book of a new primary.
    fn begins(&mut self, overlap: u64) {
        let fault = self.setting.fault;
        let extra =
            if fault == Some(Fault::OverlapForgotten) { 0 } else { overlap + self.setting.longer };
        let began = if fault == Some(Fault::NoQuiet) { NOW - self.setting.window() } else { NOW };
        self.book = Some(NodeLeases::new(self.config(), self.alive.iter().copied(), began, extra));
    }
    fn serves(&self, i: usize) -> bool {
        self.nodes[i].until > NOW
    }
    fn well(&self, i: usize) -> bool {
        self.book.as_ref().is_some_and(|b| b.alive(id(i)) && !b.deaf(id(i)))
    }
    /// Nobody else could serve what it holds: as if all nodes were of one chain.
    fn needed(&self, i: usize) -> bool {
        !(0..self.nodes.len()).any(|n| n != i && self.well(n))
    }
    fn send(&mut self, i: usize, leaving: bool) {
        let n = &mut self.nodes[i];
        n.sequence += 1;
        let last = *n.in_time.get_or_insert(NOW);
        let unanswered_ms = match self.setting.storage {
            true => (NOW - last).min(2 * self.setting.leases.lease_ms),
            false => 0,
        };
        let beat = Beat {
            node: id(i),
            incarnation: Incarnation(n.life),
            sequence: n.sequence,
            leaving,
            unanswered_ms,
            storage: self.setting.storage,
            needed: false,
        };
        self.beats.insert(Sent { beat, at: NOW });
    }
    fn beat(&mut self, sent: &Sent, former: bool) {
        let i = sent.beat.node.0 as usize - 1;
        let beat = Beat { needed: self.needed(i), ..sent.beat };
        let book = if former { self.former.as_mut().map(|f| &mut f.0) } else { self.book.as_mut() };
        let book = book.expect("somebody is there");
        let deaf = book.deaf(beat.node);
        let verdict = book.beat(beat, NOW);
        let mut grants =
            matches!(verdict, Verdict::Alive | Verdict::Joined) && book.alive(beat.node);
        if verdict == Verdict::Joined {
            // It is recorded before the answer; an epoch that is over records nothing.
            grants &= !former;
            book.settled();
            self.alive.insert(beat.node);
        }
        if grants {
            book.granted(beat.node, NOW);
        }
        let (lease, over, now_deaf) = (book.lease_ms(), book.over_ms(NOW), book.deaf(beat.node));
        if verdict == Verdict::Left && !former {
            self.given_away(i, beat.incarnation.0);
        }
        if now_deaf && !deaf && !former {
            // Its chains go on without it when every lease from before is over, or it knows.
            let n = &mut self.nodes[i];
            (n.fence, n.before) = (Some(over), n.until);
            let answers = std::mem::take(&mut self.answers).into_iter();
            self.answers =
                answers.map(|a| Granted { before: a.before || a.node == i, ..a }).collect();
        }
        let life = beat.incarnation.0;
        let answers = self.answers.iter().filter(|a| a.node == i).count();
        // Who is granted nothing is answered all the same, unless the message is old.
        let answers_at_least =
            self.setting.storage && !former && !matches!(verdict, Verdict::Stale | Verdict::Left);
        let lease = if grants { lease } else { 0 };
        if (grants || answers_at_least) && answers < UNDER_WAY_MAX {
            self.answers.insert(Granted { node: i, life, sent: sent.at, lease, before: false });
        }
    }
    /// mgmtd holds it for dead.
    fn given_away(&mut self, i: usize, life: u64) {
        let n = &self.nodes[i];
        assert!(
            (life > 0 && n.life > life) || n.until <= NOW,
            "node {i} is given away, and serves for {} more: {self:#?}",
            n.until - NOW
        );
        self.alive.remove(&id(i));
    }
    fn look(&mut self) {
        let Some(book) = &mut self.book else { return };
        let dead = book.tick(NOW);
        let lives: Vec<_> = dead.iter().map(|d| book.life(*d).0).collect();
        for (d, life) in dead.iter().zip(lives) {
            self.given_away(d.0 as usize - 1, life);
        }
    }
    fn fences(&mut self) {
        for (i, n) in self.nodes.iter_mut().enumerate() {
            if n.fence.take_if(|at| *at <= NOW).is_some() {
                assert!(
                    n.before <= NOW,
                    "node {i} is given away deaf, and serves by a lease from before"
                );
                n.before = 0;
            }
        }
    }
    fn answered(&mut self, a: &Granted) {
        let n = &mut self.nodes[a.node];
        if n.life != a.life {
            return;
        }
        let from = if self.setting.fault == Some(Fault::LeaseFromAnswer) { NOW } else { a.sent };
        n.until = n.until.max(from + a.lease);
        // Who knows the newer chains does nothing under the older ones.
        n.before = if a.before { n.before.max(from + a.lease) } else { 0 };
        if NOW - a.sent + INTERVAL <= self.setting.leases.lease_ms {
            n.in_time = n.in_time.max(Some(a.sent));
        }
    }
    fn is_back(&mut self, i: usize) {
        let right_for = self.nodes[i].right_for;
        let life = self.nodes[i].life + 1;
        self.nodes[i] =
            Node { life, sequence: 0, until: 0, before: 0, in_time: None, fence: None, right_for };
    }
    fn time(&mut self, by: &[u64]) {
        let window = self.setting.window();
        let (mgmtd, nodes) = by.split_first().expect("mgmtd is there");
        let mut right = vec![&mut self.right_for];
        right.extend(self.nodes.iter_mut().map(|n| &mut n.right_for));
        for (right, by) in right.into_iter().zip(by) {
            *right = if *by == 1 { right.saturating_sub(1) } else { window };
            self.left.errs -= u8::from(*by != 1);
        }
        self.mgmtd_moments(&mut |m| *m -= mgmtd);
        for (i, by) in nodes.iter().enumerate() {
            self.node_moments(i, &mut |m| *m -= by);
        }
        self.former.take_if(|f| f.1 <= NOW);
        self.fences();
    }
    fn apply(&mut self, choice: &Choice) {
        match choice {
            Choice::Time(by) => self.time(by),
            Choice::Send(i) => self.send(*i, false),
            Choice::Beat(sent) => {
                self.beats.remove(sent);
                self.beat(sent, false);
            }
            Choice::BeatToFormer(sent) => {
                self.beats.remove(sent);
                self.beat(sent, true);
            }
            Choice::Answer(a) => {
                self.answers.remove(a);
                self.answered(a);
            }
            Choice::LoseBeat(sent) => {
                self.beats.remove(sent);
            }
            Choice::LoseAnswer(a) => {
                self.answers.remove(a);
            }
            Choice::Look => self.look(),
            Choice::Crash(i) => {
                self.left.crashes -= 1;
                self.is_back(*i);
            }
            Choice::Leave(i) => {
                self.left.crashes -= 1;
                // It serves nothing any more, says so, and takes no answer.
                self.nodes[*i].until = 0;
                self.send(*i, true);
                self.is_back(*i);
            }
            Choice::Ends => {
                self.left.changes -= 1;
                self.book = None;
            }
            Choice::Begins => self.begins(0),
            Choice::Overtaken => {
                self.left.changes -= 1;
                self.former = self.book.take().map(|b| (b, NOW + OVERTAKEN));
                self.begins(OVERTAKEN + self.setting.leases.margin_ms);
            }
            Choice::Round(steps) => self.round(steps),
        }
    }
    fn round(&mut self, steps: &[Step]) {
        if self.book.is_none() {
            self.begins(0);
        }
        for (i, step) in steps.iter().enumerate().filter(|(_, s)| **s != Step::Silent) {
            self.send(i, false);
            while let Some(sent) = self.beats.pop_first() {
                self.beat(&sent, false);
            }
            while let Some(a) = self.answers.pop_first() {
                if *step == Step::Answered {
                    self.answered(&a);
                }
            }
        }
        self.look();
        self.time(&vec![1; self.nodes.len() + 1]);
    }
    fn mgmtd_moments(&mut self, f: &mut dyn FnMut(&mut u64)) {
        let silence_only = !self.setting.storage;
        let books = self.book.iter_mut().chain(self.former.iter_mut().map(|former| &mut former.0));
        books.for_each(|b| b.reword(silence_only, f, &mut |_, _| {}));
        self.former.iter_mut().for_each(|former| f(&mut former.1));
        self.nodes.iter_mut().filter_map(|n| n.fence.as_mut()).for_each(f);
    }
    fn node_moments(&mut self, i: usize, f: &mut dyn FnMut(&mut u64)) {
        let n = &mut self.nodes[i];
        for until in [&mut n.until, &mut n.before] {
            if *until > NOW {
                f(until);
            } else {
                *until = 0;
            }
        }
        n.in_time.iter_mut().for_each(&mut *f);
        for mut s in std::mem::take(&mut self.beats) {
            if s.beat.node == id(i) {
                f(&mut s.at);
            }
            self.beats.insert(s);
        }
        for mut a in std::mem::take(&mut self.answers) {
            if a.node == i {
                f(&mut a.sent);
            }
            self.answers.insert(a);
        }
    }
    fn sequences(&mut self, i: usize, f: &mut dyn FnMut(&mut u64)) {
        f(&mut self.nodes[i].sequence);
        for mut s in std::mem::take(&mut self.beats) {
            if s.beat.node == id(i) {
                f(&mut s.beat.sequence);
            }
            self.beats.insert(s);
        }
        let books = self.book.iter_mut().chain(self.former.iter_mut().map(|former| &mut former.0));
        books.for_each(|b| {
            b.reword(!self.setting.storage, &mut |_| {}, &mut |node, sequence| {
                if node == id(i) {
                    f(sequence);
                }
            });
        });
    }
    /// Forgets what can have no effect any more, and gives moments and sequence numbers new names.
    fn put_in_order(&mut self) {
        let longest = self.setting.longest(self.nodes.len());
        // What grants nothing any more, or is for a former life, is as good as lost.
        let (nodes, lease) = (&self.nodes, self.setting.leases.lease_ms);
        let counts = self.setting.fault == Some(Fault::LeaseFromAnswer);
        self.answers.retain(|a| {
            a.life == nodes[a.node].life && (counts || a.sent + a.lease.max(lease) > NOW)
        });
        let mut all = BTreeSet::from([NOW]);
        self.mgmtd_moments(&mut |m| {
            all.insert(*m);
        });
        let names = closer(all, longest, NOW, NOW);
        self.mgmtd_moments(&mut |m| *m = names[m]);
        for i in 0..self.nodes.len() {
            let mut all = BTreeSet::from([NOW]);
            self.node_moments(i, &mut |m| {
                all.insert(*m);
            });
            let names = closer(all, longest, NOW, NOW);
            self.node_moments(i, &mut |m| *m = names[m]);
            if !self.setting.storage {
                self.nodes[i].in_time = None;
            }
            let mut all = BTreeSet::from([0]);
            self.sequences(i, &mut |s| {
                all.insert(*s);
            });
            let names = closer(all, 1, 0, 0);
            self.sequences(i, &mut |s| *s = names[s]);
        }
    }
    fn rounds(&self) -> Vec<Choice> {
        let steps = [Step::Silent, Step::Heard, Step::Answered];
        let mut rounds = vec![Vec::new()];
        for _ in &self.nodes {
            rounds = rounds
                .iter()
                .flat_map(|r: &Vec<Step>| steps.map(|s| [&r[..], &[s]].concat()))
                .collect();
        }
        let mut out: Vec<_> = rounds.into_iter().map(Choice::Round).collect();
        if self.left.crashes > 0 {
            out.extend((0..self.nodes.len()).map(Choice::Crash));
        }
        if self.left.changes > 0 && self.book.is_some() {
            out.push(Choice::Ends);
        }
        out
    }
    /// Things happen at once, and no more troubles.
    fn prompt(mut self) {
        let l = self.setting.leases;
        // To be silent for certain, to be heard, to hear, and to be heard to hear.
        let quick =
            (l.lease_ms + self.setting.longer) * 2 + l.margin_ms + u64::from(l.return_beats) + 2;
        let slow = quick + l.pauses.longest_ms + 2;
        self.beats.clear();
        self.answers.clear();
        for step in 0..slow + 4 {
            let serve = (0..self.nodes.len()).filter(|i| self.serves(*i) && self.well(*i)).count();
            assert!(
                step < quick || serve > 0,
                "nobody serves after {step} steps without troubles: {self:#?}"
            );
            assert!(
                step < slow || serve == self.nodes.len(),
                "not all serve after {step} steps without troubles: {self:#?}"
            );
            self.round(&vec![Step::Answered; self.nodes.len()]);
        }
    }
}

impl walk::World for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        if self.setting.rounds {
            return self.rounds();
        }
        let mut out = Vec::new();
        let mut times = vec![Vec::new()];
        for right_for in
            std::iter::once(self.right_for).chain(self.nodes.iter().map(|n| n.right_for))
        {
            let mut steps = vec![1];
            if right_for == 0 && self.setting.slow {
                steps.push(0);
            }
            if right_for == 0 && self.setting.fast {
                steps.push(2);
            }
            times = times
                .iter()
                .flat_map(|t: &Vec<u64>| steps.iter().map(move |s| [&t[..], &[*s]].concat()))
                .collect();
        }
        times.retain(|t| t.iter().filter(|by| **by != 1).count() <= self.left.errs.into());
        out.extend(times.into_iter().map(Choice::Time));
        for (i, n) in self.nodes.iter().enumerate() {
            if self.beats.iter().filter(|s| s.beat.node == id(i)).count() < UNDER_WAY_MAX {
                out.push(Choice::Send(i));
            }
            // The first life of a node is heard before another one begins.
            if self.left.crashes > 0 && n.sequence > 0 {
                out.extend([Choice::Crash(i), Choice::Leave(i)]);
            }
        }
        for sent in &self.beats {
            if self.book.is_some() {
                out.push(Choice::Beat(sent.clone()));
            }
            if self.former.is_some() {
                out.push(Choice::BeatToFormer(sent.clone()));
            }
            out.push(Choice::LoseBeat(sent.clone()));
        }
        for a in &self.answers {
            out.extend([Choice::Answer(a.clone()), Choice::LoseAnswer(a.clone())]);
        }
        match &self.book {
            Some(_) => {
                out.push(Choice::Look);
                if self.left.changes > 0 {
                    out.push(if self.setting.overtaken { Choice::Overtaken } else { Choice::Ends });
                }
            }
            None => out.push(Choice::Begins),
        }
        out
    }
    fn is_trouble(&self, choice: &Choice) -> bool {
        match choice {
            Choice::Time(by) => by.iter().any(|b| *b != 1),
            Choice::Round(steps) => steps.iter().any(|s| *s != Step::Answered),
            Choice::LoseBeat(_) | Choice::LoseAnswer(_) | Choice::Crash(_) | Choice::Leave(_) => {
                true
            }
            Choice::Ends | Choice::Overtaken | Choice::BeatToFormer(_) => true,
            _ => false,
        }
    }
    fn go(&mut self, choice: &Choice) {
        self.apply(choice);
        self.put_in_order();
    }
    fn check(&self) {
        if self.setting.prompt {
            self.clone().prompt();
        }
    }
    fn is_end(&self) -> bool {
        (0..self.nodes.len()).all(|i| self.serves(i) && self.well(i))
    }
    fn at_rest(&self) -> Result<(), String> {
        if self.is_end() {
            Ok(())
        } else {
            Err("nothing happens any more, and not all serve".into())
        }
    }
}
