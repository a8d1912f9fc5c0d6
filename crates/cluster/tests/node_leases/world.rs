//! What happens in a world, choice by choice.

use super::{
    Budget, Chain, Choice, Fault, Granted, INTERVAL, NOW, Node, OVERTAKEN, Sent, Setting,
    UNANSWERED_LEASES, UNDER_WAY_MAX, World, id,
};
use glowfs_cluster::{Beat, LeaseConfig, NodeLeases, Verdict};
use glowfs_types::Incarnation;
use std::collections::BTreeSet;

impl World {
    pub fn new(nodes: usize, setting: Setting, left: Budget) -> Self {
        // What becomes of a chain when a member has a new life is left out.
        assert!(nodes == 1 || !setting.storage || left.crashes == 0);
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
            chain: Chain {
                serving: (0..nodes).collect(),
                unheard: BTreeSet::new(),
                holds: (0..nodes).collect(),
            },
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
    pub fn begins(&mut self, overlap: u64) {
        let fault = self.setting.fault;
        let extra =
            if fault == Some(Fault::OverlapForgotten) { 0 } else { overlap + self.setting.longer };
        let began = if fault == Some(Fault::NoQuiet) { NOW - self.setting.window() } else { NOW };
        self.book = Some(NodeLeases::new(self.config(), self.alive.iter().copied(), began, extra));
    }
    pub fn serves(&self, i: usize) -> bool {
        self.nodes[i].until > NOW
    }
    pub fn well(&self, i: usize) -> bool {
        self.book.as_ref().is_some_and(|b| b.alive(id(i)) && !b.deaf(id(i)))
    }
    /// It serves, and its chain goes by it.
    pub fn in_chain(&self, i: usize) -> bool {
        self.chain.serving.contains(&i) && self.serves(i) && self.well(i)
    }
    /// Nobody serves its chain: as mgmtd reckons (`State::is_needed`).
    fn needed(&self, i: usize) -> bool {
        let fault = self.setting.fault;
        let dead = !self.book.as_ref().is_some_and(|b| b.alive(id(i)));
        match fault {
            Some(Fault::NeededUntold) => return false,
            Some(Fault::NeededDeafUntold) if !dead => return false,
            _ => {}
        }
        !(0..self.nodes.len()).any(|n| {
            let serves =
                self.chain.serving.contains(&n) || fault == Some(Fault::NeededByLivingOnly);
            serves && self.well(n)
        })
    }
    /// What becomes of the chain by what mgmtd knows now (`cluster/chain.rs: table`, `take_over`): as long as one that serves is alive, the dead are out of it; as long as one is well, the deaf
    /// are; if none is alive, the first one that is and has everything begins; if all who serve are deaf, they give way to one that is well and has everything (`give_way`). Who comes back is brought up to date first ([`Choice::UpToDate`]).
    fn settle_chain(&mut self) {
        let Some(book) = self.book.as_ref().filter(|_| self.setting.storage) else { return };
        let (alive, deaf) = (|i: &usize| book.alive(id(*i)), |i: &usize| book.deaf(id(*i)));
        let mut serving = self.chain.serving.clone();
        if !serving.iter().any(alive)
            && let Some(first) = self.chain.holds.iter().find(|i| alive(i))
        {
            serving.insert(*first);
        }
        if serving.iter().any(alive) {
            serving.retain(alive);
        }
        if serving.iter().any(|i| !deaf(i)) {
            serving.retain(|i| !deaf(i));
        }
        if serving.iter().all(|i| alive(i) && deaf(i))
            && let Some(heir) = self.heir(book)
        {
            serving = BTreeSet::from([heir]);
        }
        assert!(
            serving.iter().all(|i| self.chain.holds.contains(i)),
            "who begins to serve lacks writes: {serving:?}, {self:#?}"
        );
        let over = book.over_ms(NOW);
        let out: Vec<_> = self.chain.serving.difference(&serving).copied().collect();
        let taken_out_alive: Vec<_> = out.into_iter().filter(alive).collect();
        taken_out_alive.into_iter().for_each(|i| self.fence(i, over));
        self.new_version(serving);
    }
    /// A node's chain goes on without it while it lives: when every lease from before is over, or it knows.
    fn fence(&mut self, i: usize, over: u64) {
        let n = &mut self.nodes[i];
        (n.fence, n.before) = (Some(over), n.until);
        let answers = std::mem::take(&mut self.answers).into_iter();
        self.answers = answers.map(|a| Granted { before: a.before || a.node == i, ..a }).collect();
    }
    /// Who is well and has everything. (Where the chain's version is active, that is nobody but those who serve.)
    fn heir(&self, book: &NodeLeases) -> Option<usize> {
        let fault = self.setting.fault;
        if fault == Some(Fault::NoHeir) {
            return None;
        }
        let well = |i: &usize| book.alive(id(*i)) && !book.deaf(id(*i));
        let holds = |i: &usize| self.chain.holds.contains(i) || fault == Some(Fault::HeirUnproven);
        (0..self.nodes.len()).find(|i| well(i) && holds(i))
    }
    fn new_version(&mut self, serving: BTreeSet<usize>) {
        if serving != self.chain.serving {
            self.chain.unheard = serving.clone();
            self.chain.holds.extend(&serving);
            self.chain.serving = serving;
        }
    }
    /// A node hears of the newest version, and adopts it. When all have, it is active, and the others may lack what is acknowledged from now on. (In fact mgmtd hears of that one heartbeat
    /// later, and when who left alive is fenced; until then more have everything.)
    fn adopts(&mut self, i: usize) {
        let chain = &mut self.chain;
        if chain.unheard.remove(&i) && chain.unheard.is_empty() {
            chain.holds = chain.serving.clone();
        }
    }
    /// Who can be brought up to date now: it has a lease, and so has somebody who serves.
    pub fn up_to_date(&self) -> Vec<Choice> {
        let nodes = || 0..self.nodes.len();
        let source = self.chain.unheard.is_empty() && nodes().any(|i| self.in_chain(i));
        let comes = |i: &usize| {
            source && !self.chain.serving.contains(i) && self.serves(*i) && self.well(*i)
        };
        nodes().filter(comes).map(Choice::UpToDate).collect()
    }
    pub fn send(&mut self, i: usize, leaving: bool) {
        let n = &mut self.nodes[i];
        n.sequence += 1;
        let last = *n.in_time.get_or_insert(NOW);
        let unanswered_ms = match self.setting.storage {
            true => (NOW - last).min(UNANSWERED_LEASES * self.setting.leases.lease_ms),
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
    pub fn beat(&mut self, sent: &Sent, former: bool) {
        let i = sent.beat.node.0 as usize - 1;
        let unanswered_ms =
            if self.setting.fault == Some(Fault::DeafUnseen) { 0 } else { sent.beat.unanswered_ms };
        let beat = Beat { needed: self.needed(i), unanswered_ms, ..sent.beat };
        let book = if former { self.former.as_mut().map(|f| &mut f.0) } else { self.book.as_mut() };
        let book = book.expect("somebody is there");
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
        let lease = book.lease_ms();
        if verdict == Verdict::Left && !former {
            self.given_away(i, beat.incarnation.0);
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
        self.settle_chain();
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
    pub fn look(&mut self) {
        let Some(book) = &mut self.book else { return };
        let dead = book.tick(NOW);
        let lives: Vec<_> = dead.iter().map(|d| book.life(*d).0).collect();
        for (d, life) in dead.iter().zip(lives) {
            self.given_away(d.0 as usize - 1, life);
        }
        self.settle_chain();
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
    pub fn answered(&mut self, a: &Granted) {
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
        if !a.before {
            self.adopts(a.node);
        }
    }
    fn is_back(&mut self, i: usize) {
        let right_for = self.nodes[i].right_for;
        let life = self.nodes[i].life + 1;
        self.nodes[i] =
            Node { life, sequence: 0, until: 0, before: 0, in_time: None, fence: None, right_for };
    }
    pub fn time(&mut self, by: &[u64]) {
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
    pub fn apply(&mut self, choice: &Choice) {
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
            Choice::Round(steps, last_first) => self.round(steps, *last_first),
            Choice::UpToDate(i) => {
                let serving = self.chain.serving.iter().copied().chain([*i]).collect();
                self.new_version(serving);
            }
        }
    }
}
