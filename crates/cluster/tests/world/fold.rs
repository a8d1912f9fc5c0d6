//! The canonical form of a state: two states with the same form behave alike for ever, so that the walk of everything ends.
//!
//! - Targets are numbered by their place in the chain: the core knows them by their order only.
//! - Of versions it matters who adopted the present one, and who still acts under which older one: not their numbers.
//! - Of lives it matters how far what was heard and what runs is ahead of what was accounted for.
//! - What nothing can depend on any more is left out (the view of a dead process, cleanness of a life accounted for).

use super::*;
use std::hash::{DefaultHasher, Hash, Hasher};

impl World {
    /// The canonical form, as 128 bits of its hash (of 10^8 states, two share them with a probability below 10^-22).
    pub fn fold(&self) -> u128 {
        let mut forms = [DefaultHasher::new(), DefaultHasher::new()];
        0x5eed_u64.hash(&mut forms[1]);
        for h in &mut forms {
            self.fold_into(h);
        }
        (u128::from(forms[0].finish()) << 64) | u128::from(forms[1].finish())
    }

    fn fold_into(&self, h: &mut impl Hasher) {
        let info = &self.chain.info;
        let mut order: Vec<usize> = info.members.iter().map(|m| at(m.target)).collect();
        order.extend((0..self.real.len()).filter(|i| !self.member(*i)));
        let place = |i: usize| order.iter().position(|&x| x == i);
        let now = info.version.0;
        let b = self.left;
        (b.crashes, b.cuts, b.retires, b.spares, b.blames, self.fenced).hash(h);
        (info.activated == info.version, info.activated.0 == 0).hash(h);
        let mut old: Vec<u64> = Vec::new();
        for &i in &order {
            let member = info.members.iter().find(|m| at(m.target) == i);
            let record = self.chain.records.get(&TargetId(i as u64 + 1)).copied();
            let accounted = record.map_or(0, |r| r.incarnation.0);
            member.map(|m| m.state).hash(h);
            record
                .map(|r| (accounted == 0, r.proof, r.retired, r.served >= info.activated))
                .hash(h);
            let r = self.real[i];
            let ahead = |life: u64, clean: bool, since: u64| {
                let by = life as i64 - accounted as i64;
                (by, by > 0 && clean, since <= accounted)
            };
            (
                r.up,
                r.process,
                ahead(r.life, r.clean, r.since),
                r.complete,
                r.complete && r.certain,
                r.complete && r.unplugged,
            )
                .hash(h);
            (r.process && r.adopted == now, r.process && r.synced, r.up && r.fenced_in).hash(h);
            // An older version counts as long as something can still be done under it.
            let acts = r.up && r.fenced_in && r.adopted != now;
            let acts_under = self.history.get(&r.adopted).filter(|_| acts);
            if let Some((serving, _, false)) = acts_under {
                // It will never be active: reads may be answered under it, and nothing else.
                serving.contains(&i).hash(h);
            }
            if let Some((serving, syncing, true)) = acts_under {
                let class = old.iter().position(|&v| v == r.adopted).unwrap_or_else(|| {
                    old.push(r.adopted);
                    old.len() - 1
                });
                let places = |of: &[usize]| {
                    let mut p: Vec<_> = of.iter().map(|&i| place(i)).collect();
                    p.sort_unstable();
                    p
                };
                (class, places(serving), places(syncing)).hash(h);
            }
            let seen = self.seen[i].0.map(|(local, life, clean, adopted, since)| {
                let heard = local != LocalState::Offline;
                // What it is known to know: the present version, or one after the last in which it served.
                let served = record.map_or(0, |r| r.served.0);
                let knows = (heard && adopted == now, heard && adopted > served);
                (local, ahead(life, clean, since), knows)
            });
            (seen, self.blamed[i]).hash(h);
        }
    }
}
