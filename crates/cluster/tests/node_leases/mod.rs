//! Leases of nodes, walked through every order of events (`walk/mod.rs`; [`walk::all_is_well`]): heartbeats and answers that take any time or are lost, nodes and primaries that pause for any time
//! (nothing has to happen soon), clocks that run apart, nodes that die, leave and come back, primaries that end, or are overtaken by a later life of themselves while they still grant leases.
//!
//! In every state: a node whose chains are given away, since it was silent or since it is deaf, does not serve any more, whatever is on its way to it. From every
//! state, if things happen at once from then on: somebody serves as soon as he has been heard `return_beats` times and his lease could be renewed, however often he fell before
//! (no rule keeps out whom others wait for); and all serve when the longest pause is over, and go on. And there is a way from every state to one in which all serve.
//!
//! Storage nodes are those of one chain, of which the world knows who serves in it ([`World::settle_chain`] says what mgmtd does by what it knows). Of two of them it is tried from every state what
//! becomes of it if each goes on in one way for good, silent, heard, or heard and answered: where one that has everything is heard and answered, somebody serves as soon as mgmtd can know that,
//! whoever else was kept out, and however often; and who is not heard, or hears nothing, does not stay in the chain of one that serves.
//!
//! Time goes in steps, as in `elections/mod.rs`: each process counts from its own present, and a clock errs by one step, once in any time of a lease and the margin. What is further apart than
//! the longest time that anything is compared with might as well be further. Of each node so many heartbeats and so many answers are on their way at once ([`UNDER_WAY_MAX`]).
#![allow(missing_docs)]

mod cases;
mod rounds;
mod same;
mod world;

use crate::walk;
use glowfs_cluster::{Beat, LeaseConfig, NodeLeases};
use glowfs_types::NodeId;
use std::collections::BTreeSet;

/// The present by each clock; far enough from the beginning that nothing is before it.
const NOW: u64 = 1000;
/// Heartbeats, and answers, of one node that are on their way at once.
const UNDER_WAY_MAX: usize = 1;
/// How long a primary that is overtaken by a later life of itself may still act; all by one clock, so the margin is for whoever overtakes.
const OVERTAKEN: u64 = 3;
/// The time between two heartbeats if nothing is in their way.
const INTERVAL: u64 = 1;
/// For how many leases a node has heard no answer in time: more makes no difference.
const UNANSWERED_LEASES: u64 = 2;

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
    /// More falls of a node than so many are not told apart (in rounds).
    falls: u32,
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
    /// A heartbeat is taken for one of a node without which a chain can do.
    NeededUntold,
    /// The same, but of a dead node.
    NeededDeafUntold,
    /// Who lives is taken for one that can serve the chain, though it lacks what was written without it.
    NeededByLivingOnly,
    /// mgmtd does not see that a node lacks answers.
    DeafUnseen,
    /// Who is deaf and the last one that serves keeps its chain from one that has everything.
    NoHeir,
    /// It gives way to anybody who is well.
    HeirUnproven,
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

/// The chain of all storage nodes, as far as it matters here who is in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Chain {
    /// If none of them is alive, those who served last.
    serving: BTreeSet<usize>,
    /// Of those, who has not adopted the newest version.
    unheard: BTreeSet<usize>,
    /// Who has everything that was acknowledged: also who left, until the version without it is active.
    holds: BTreeSet<usize>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    setting: Setting,
    left: Budget,
    nodes: Vec<Node>,
    /// Recorded as alive.
    alive: BTreeSet<NodeId>,
    chain: Chain,
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
    /// What each node has of one step; whether the last one is heard first.
    Round(Vec<Step>, bool),
    /// It has been brought up to date by one that serves.
    UpToDate(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Silent,
    /// It is heard, and does not hear.
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

impl walk::World for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        if self.setting.rounds {
            return self.rounds();
        }
        let mut out = self.up_to_date();
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
            Choice::Round(steps, _) => steps.iter().any(|s| *s != Step::Answered),
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
            self.goes_on();
        }
    }
    fn is_end(&self) -> bool {
        (0..self.nodes.len()).all(|i| self.in_chain(i))
    }
    fn at_rest(&self) -> Result<(), String> {
        if self.is_end() {
            Ok(())
        } else {
            Err("nothing happens any more, and not all serve".into())
        }
    }
}
