//! Two worlds that behave alike are made equal: what can have no effect any more is dropped, and moments, epochs and renewals are counted anew (`mod.rs` says why nothing is lost by it).

use super::{Doing, Fault, Instance, NOW, World};
use crate::closer::closer;
use glowfs_cluster::LeaseRecord;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    /// Forgets what can have no effect any more, and gives moments, epochs and renewals new names: see the module. What an instance remembers is compared
    /// only with itself and with what is stored, so each has its own names.
    pub fn put_in_order(&mut self) {
        let window = self.setting.lease + self.setting.margin;
        let stored = self.record.clone();
        // A write that found what is not there any more never happens.
        self.late.retain(|(found, _)| *found == stored);
        self.given_up.retain(|r| stored.as_ref().is_some_and(|n| n.epoch == r.epoch));
        for i in &mut self.instances {
            // Nor does this one; only that it is the same as what was stored (by an earlier one) may be of interest.
            if let Doing::Writing { found, new, .. } = &i.doing
                && *found != stored
                && Some(new) != stored.as_ref()
                && self.setting.fault != Some(Fault::NothingCompared)
            {
                i.doing = Doing::Nothing;
            }
            let mut all = BTreeSet::from([NOW]);
            i.words(
                &stored,
                &mut |m| {
                    all.insert(*m);
                },
                &mut |_| {},
                &mut |_| {},
            );
            let names = closer(all, window, NOW, NOW);
            i.words(&stored, &mut |m| *m = names[m], &mut |_| {}, &mut |_| {});
        }
        let Some(stored) = stored else { return };
        // What is stored is always the same record but for its holder.
        let own = Counts::of(&stored, |record, _| {
            record(&mut stored.clone());
            self.late.iter().for_each(|(_, new)| record(&mut new.clone()));
            self.given_up.iter().for_each(|r| record(&mut r.clone()));
        });
        for i in &mut self.instances {
            let counts = Counts::of(&stored, |record, epoch| {
                i.clone().words(&Some(stored.clone()), &mut |_| {}, record, epoch);
            });
            i.words(&Some(stored.clone()), &mut |_| {}, &mut |r| counts.record(r), &mut |e| {
                counts.epoch(e)
            });
        }
        self.record.iter_mut().for_each(|r| own.record(r));
        let renamed = |mut r: LeaseRecord| {
            own.record(&mut r);
            r
        };
        let late = std::mem::take(&mut self.late).into_iter();
        self.late = late.map(|(found, new)| (found.map(renamed), renamed(new))).collect();
        self.given_up = std::mem::take(&mut self.given_up).into_iter().map(renamed).collect();
    }
}

impl Instance {
    /// Shows everything that is remembered.
    pub fn words(
        &mut self,
        stored: &Option<LeaseRecord>,
        moment: &mut dyn FnMut(&mut u64),
        record: &mut dyn FnMut(&mut LeaseRecord),
        epoch: &mut dyn FnMut(&mut u64),
    ) {
        self.election.reword((stored.as_ref(), NOW), moment, record, epoch);
        match &mut self.doing {
            Doing::Nothing => {}
            Doing::Asked { began } => moment(began),
            Doing::Read { began, found } => {
                moment(began);
                found.iter_mut().for_each(record);
            }
            Doing::Writing { began, found, new } => {
                moment(began);
                found.iter_mut().for_each(&mut *record);
                record(new);
            }
            Doing::Written { began, new } => {
                moment(began);
                record(new);
            }
        }
    }
}

/// How epochs and renewals are counted anew, from what is stored.
struct Counts {
    epochs: BTreeMap<u64, u64>,
    renewals: BTreeMap<u64, BTreeMap<u64, u64>>,
}

impl Counts {
    fn of(
        stored: &LeaseRecord,
        show: impl Fn(&mut dyn FnMut(&mut LeaseRecord), &mut dyn FnMut(&mut u64)),
    ) -> Self {
        let mut renewals: BTreeMap<u64, BTreeSet<u64>> =
            BTreeMap::from([(stored.epoch, BTreeSet::from([stored.renewal]))]);
        let mut epochs = BTreeSet::from([stored.epoch]);
        show(
            &mut |r| {
                renewals.entry(r.epoch).or_default().insert(r.renewal);
            },
            &mut |e| {
                epochs.insert(*e);
            },
        );
        epochs.extend(renewals.keys());
        // Only what is the same and what comes next is ever asked.
        let names = |(e, all): (u64, BTreeSet<u64>)| {
            let keeps = if e == stored.epoch { stored.renewal } else { *all.first().unwrap_or(&0) };
            (e, closer(all, 2, keeps, NOW))
        };
        Self {
            epochs: closer(epochs, 2, stored.epoch, NOW),
            renewals: renewals.into_iter().map(names).collect(),
        }
    }
    fn record(&self, r: &mut LeaseRecord) {
        r.renewal = self.renewals[&r.epoch][&r.renewal];
        r.epoch = self.epochs[&r.epoch];
    }
    fn epoch(&self, e: &mut u64) {
        *e = self.epochs[e];
    }
}
