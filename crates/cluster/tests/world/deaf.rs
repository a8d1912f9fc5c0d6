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
    /// What mgmtd goes by, with what is wrong on purpose.
    pub fn with_fault(&self) -> (Chain, View) {
        let (mut chain, mut view) = (self.chain.clone(), self.view());
        let serving: Vec<_> = chain.info.serving().map(|m| m.target).collect();
        let blamed = |t: &TargetId| {
            view.get(t).is_some_and(|o| o.unreachable && o.local != LocalState::Offline)
        };
        let active = chain.info.activated == chain.info.version;
        if serving.is_empty() || active || !serving.iter().all(blamed) {
            return (chain, view);
        }
        match self.fault {
            None => {}
            Some(Fault::HeirUnproven) => {
                chain.records.values_mut().for_each(|r| r.proof = Proof::Holds);
            }
            Some(Fault::NoHeir) => view.values_mut().for_each(|o| o.unreachable = false),
        }
        (chain, view)
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
