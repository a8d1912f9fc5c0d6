//! Rounds, in which everything happens that is to happen in one step of time; and what must become of a world if each node goes on in one way for good.

use super::{Choice, Step, UNANSWERED_LEASES, World};

const STEPS: [Step; 3] = [Step::Silent, Step::Heard, Step::Answered];

impl World {
    pub fn round(&mut self, steps: &[Step], last_first: bool) {
        if self.book.is_none() {
            self.begins(0);
        }
        let mut order: Vec<usize> = (0..steps.len()).collect();
        if last_first {
            order.reverse();
        }
        for i in order.into_iter().filter(|i| steps[*i] != Step::Silent) {
            self.send(i, false);
            while let Some(sent) = self.beats.pop_first() {
                self.beat(&sent, false);
            }
            while let Some(a) = self.answers.pop_first() {
                if steps[i] == Step::Answered {
                    self.answered(&a);
                }
            }
        }
        self.look();
        self.time(&vec![1; self.nodes.len() + 1]);
    }
    /// All that a round can be.
    fn all_rounds(&self) -> Vec<(Vec<Step>, bool)> {
        let mut rounds = vec![Vec::new()];
        for _ in &self.nodes {
            let with = |r: &Vec<Step>| STEPS.map(|s| [&r[..], &[s]].concat());
            rounds = rounds.iter().flat_map(with).collect();
        }
        let orders = |r: Vec<Step>| {
            let heard = r.iter().filter(|s| **s != Step::Silent).count();
            let orders = if heard > 1 { &[false, true][..] } else { &[false] };
            orders.iter().map(move |last_first| (r.clone(), *last_first))
        };
        rounds.into_iter().flat_map(orders).collect()
    }
    pub fn rounds(&self) -> Vec<Choice> {
        let rounds = self.all_rounds().into_iter();
        let mut out: Vec<_> = rounds.map(|(r, last_first)| Choice::Round(r, last_first)).collect();
        out.extend(self.up_to_date());
        if self.left.crashes > 0 {
            out.extend((0..self.nodes.len()).map(Choice::Crash));
        }
        if self.left.changes > 0 && self.book.is_some() {
            out.push(Choice::Ends);
        }
        out
    }
    /// What must be so soon, if each node is silent, is heard, or is heard and answered from now on, and no other trouble comes.
    pub fn goes_on(&self) {
        for (steps, last_first) in self.all_rounds() {
            self.clone().goes_on_with(&steps, last_first);
        }
    }
    fn goes_on_with(mut self, steps: &[Step], last_first: bool) {
        let answered = |i: &usize| steps[*i] == Step::Answered;
        // One that has everything lives on and hears.
        if !self.chain.holds.iter().any(answered) {
            return;
        }
        let l = self.setting.leases;
        // To be heard so often, and to have a lease.
        let back = u64::from(l.return_beats) + 1;
        let silent = l.lease_ms + self.setting.longer + l.margin_ms;
        // Who does not hear may be back first and have the chain, until that is known.
        let deaf = steps.contains(&Step::Heard);
        let known = if deaf { UNANSWERED_LEASES * l.lease_ms + 1 } else { 0 };
        let begins = silent + back + known;
        let out = begins.max(UNANSWERED_LEASES * l.lease_ms + 2);
        let all = silent + back + l.pauses.longest_ms + 2;
        self.beats.clear();
        self.answers.clear();
        let (mut needed_for, mut was_well) = (0, false);
        for step in 0.. {
            let serve = (0..self.nodes.len()).filter(|i| self.in_chain(*i)).count();
            let needed = !self.chain.serving.iter().any(|i| self.well(*i));
            needed_for = if needed { needed_for + 1 } else { 0 };
            assert!(
                needed_for <= back && (step < begins || serve > 0),
                "nobody serves after {step} steps {steps:?}, and somebody could: {self:#?}"
            );
            let gone = self.chain.serving.iter().all(answered);
            assert!(
                step < out || gone,
                "who is silent or deaf is in the chain after {step} steps {steps:?}: {self:#?}"
            );
            let full = serve == self.nodes.len() || !(0..self.nodes.len()).all(|i| answered(&i));
            assert!(
                step < all || full,
                "not all serve after {step} steps without troubles: {self:#?}"
            );
            let well = serve > 0 && gone && full;
            assert!(
                well || !was_well,
                "all was well, and is not after {step} steps {steps:?}: {self:#?}"
            );
            // From the states that come then it is tried, too.
            if well && (was_well || step > 0) {
                return;
            }
            was_well = well;
            self.round(steps, last_first);
            while let Some(choice) = self.up_to_date().pop() {
                self.apply(&choice);
            }
        }
    }
}
