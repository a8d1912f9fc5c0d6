//! Members that mgmtd hears, and blames for they hear nothing: what becomes of their chains if that stays so.

use super::*;
use glowfs_types::routing::PublicState;

/// A planted fault of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Who serves and is to blame gives way to anybody who is up.
    HeirUnproven,
    /// It gives way to nobody.
    NoHeir,
}

impl World {
    /// What mgmtd makes of what it knows, with what is wrong on purpose.
    pub fn step_with_fault(&self) -> Option<(Chain, Vec<Change>)> {
        let view = self.view();
        match self.fault {
            None => self.chain.step(&view),
            Some(Fault::HeirUnproven) => {
                self.gives_way_to_anybody(&view).or_else(|| self.chain.step(&view))
            }
            Some(Fault::NoHeir) => self.chain.step(&self.whom_nobody_blames(view)),
        }
    }
    /// The step in which those who serve give way, as if all held everything. Nothing else may come of that: who does not begin to serve in it proves what it did before
    /// (there are two members: the other one is who gives way, and no life of it was accounted for now).
    fn gives_way_to_anybody(&self, view: &View) -> Option<(Chain, Vec<Change>)> {
        let mut chain = self.chain.clone();
        chain.records.values_mut().for_each(|r| r.proof = Proof::Holds);
        let (mut next, changes) = chain.step(view)?;
        let left = |c: &Change| c.from == Serving && c.why == Evidence::Unreachable;
        let began = |c: &Change| c.to == Serving && c.why == Evidence::Proven;
        let heir = changes.iter().find(|c| began(c)).map(|c| c.target)?;
        if !changes.iter().any(left) {
            return None;
        }
        for (t, r) in next.records.iter_mut().filter(|(t, _)| **t != heir) {
            r.proof = self.chain.records.get(t)?.proof;
        }
        Some((next, changes))
    }
    /// What is heard, without any blame if those are to blame who would give way.
    fn whom_nobody_blames(&self, mut view: View) -> View {
        let info = &self.chain.info;
        let blamed = |t: TargetId| {
            view.get(&t).is_some_and(|o| o.unreachable && o.local != LocalState::Offline)
        };
        let keeps = info.head().is_some() && info.serving().all(|m| blamed(m.target));
        if keeps && info.activated != info.version {
            view.values_mut().for_each(|o| o.unreachable = false);
        }
        view
    }
    /// Whether mgmtd takes it for alive and blames it, though it has no lease.
    fn deaf(&self, i: usize) -> bool {
        let r = self.real[i];
        let alive = matches!(self.seen[i], Seen(Some((local, life, ..))) if local != LocalState::Offline && life == r.life);
        self.member(i) && alive && self.blamed[i] && r.process && !r.up
    }
    /// Who is deaf now is so for good, and nothing else fails: where one of the others lives and holds everything as far as is known, the chain goes on, and without the deaf.
    pub fn goes_on_without_the_deaf(&self) {
        let deaf: Vec<_> = (0..self.real.len()).filter(|i| self.deaf(*i)).collect();
        let holds = |i: &usize| {
            let record = self.chain.records.get(&TargetId(*i as u64 + 1));
            record.is_some_and(|r| {
                let own = self.real[*i].process && r.incarnation.0 == self.real[*i].life;
                r.proof == Proof::Holds && own
            })
        };
        if deaf.is_empty() || !(0..self.real.len()).any(|i| holds(&i) && !deaf.contains(&i)) {
            return;
        }
        let mut w = self.clone();
        for i in 0..w.real.len() {
            (w.blamed[i], w.pauses[i]) = (deaf.contains(&i), deaf.contains(&i));
        }
        if w.is_left_to(&deaf) {
            return;
        }
        for _ in 0..40 {
            for i in 0..w.real.len() {
                if deaf.contains(&i) {
                    w.report(i);
                    while w.scan() {}
                } else {
                    w.is_well(i);
                }
            }
            w.fenced = true;
            w.check();
            let info = &w.chain.info;
            let without = info.serving().all(|m| !deaf.contains(&at(m.target)));
            if info.activated == info.version && info.head().is_some() && without {
                return;
            }
        }
        panic!("does not go on without {deaf:?}: {self:#?}\nends as {w:#?}");
    }
    /// Whether the chain's version is active with the deaf alone when mgmtd has heard them, before anybody else: then nobody else has everything any more. That the chain stands still
    /// so is a known gap (docs/status.md, G246).
    fn is_left_to(&self, deaf: &[usize]) -> bool {
        let mut w = self.clone();
        deaf.iter().for_each(|&i| w.report(i));
        while w.scan() {}
        let info = &w.chain.info;
        let theirs = info.serving().all(|m| deaf.contains(&at(m.target)));
        info.activated == info.version && info.head().is_some() && theirs
    }
    /// A member that is well does what it is to do, and mgmtd hears of it.
    pub fn is_well(&mut self, i: usize) {
        let r = &mut self.real[i];
        if !r.up {
            if !r.process {
                r.process = true;
                r.life += 1;
                r.synced = false;
            }
            r.up = true;
        }
        self.adopt(i);
        let v = self.real[i].adopted;
        let (serving, syncing, active) = self.history[&v].clone();
        if active
            && syncing.contains(&i)
            && serving.iter().all(|&s| self.acts(s, v))
            && self.acts(i, v)
        {
            let r = &mut self.real[i];
            (r.complete, r.certain, r.unplugged, r.synced) = (true, true, false, true);
        }
        self.report(i);
        while self.scan() {}
        // Who was retired leaves.
        if self.chain.retired(TargetId(i as u64 + 1)) {
            self.change(self.chain.dismiss(TargetId(i as u64 + 1)));
        }
    }
    /// Whether all members serve under a version that is active.
    pub fn serves_in_full(&self) -> bool {
        let info = &self.chain.info;
        info.activated == info.version
            && info.members.iter().all(|m| m.state == PublicState::Serving)
    }
}
