//! The election of mgmtd's primary, walked through every order of events (`walk/mod.rs`; [`all_is_well`]): candidates that read and write the record of the lease by transactions which take
//! any time, processes that pause for any time (nothing has to happen soon), clocks that run apart, writes of which nobody learns what became of them and that happen late or
//! never, processes that die, or stop and give the lease up, and come back.
//!
//! In every state: at most one acts as primary, and it is the one that the record names, in the epoch that is recorded; so epochs of those who act only grow. With every
//! write of the record: the epoch stays with its holder, or is the next one. And from every state, without further troubles, somebody is primary in the end; if things happen at
//! once, within a lease, the margin and some looks, and it stays so.
//!
//! Time goes in steps. A clock may go one step more or one less than it should, once in any time of a lease and the margin: that is the bound that the margin allows
//! (`lease_ms + margin_ms` by the fastest clock is not less than `lease_ms` by the slowest). Clocks of two instances are never compared, so each counts from its own present, and what is
//! further apart than a lease and the margin might as well be further.
//!
//! In the larger walks a transaction reads what is there when it begins (`reads_later`). One that began earlier and read the same can do only less: silence and the lease count from
//! its beginning, so it claims only where the other one could claim, too, and for a time that ends sooner; and one that only looks learns nothing more.
#![allow(missing_docs)]

use crate::walk::{self, all_is_well, is_found};
use glowfs_cluster::{Command, Election, ElectionConfig, LeaseRecord, Standing};
use glowfs_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// The present by each instance's own clock; far enough from the beginning that nothing is before it.
const NOW: u64 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Setting {
    lease: u64,
    margin: u64,
    /// Clocks may go slow, fast.
    slow: bool,
    fast: bool,
    /// It is tried from every state what becomes of it if everything happens at once.
    prompt: bool,
    /// What a transaction reads may be newer than its beginning, see the module.
    reads_later: bool,
    /// Who comes back listens elsewhere.
    elsewhere: bool,
    fault: Option<Fault>,
}

/// What is wrong in a world, on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    /// A primary counts its lease from the answer.
    LeaseFromAnswer,
    /// A standby waits for no margin.
    NoMargin,
    /// A write counts as done if its outcome is not known.
    UnknownIsWon,
    /// A write is made whatever is recorded by then.
    NothingCompared,
    /// A standby that sees no renewal does nothing.
    NeverClaims,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Nothing,
    /// A transaction began.
    Asked {
        began: u64,
    },
    /// It has read.
    Read {
        began: u64,
        found: Option<LeaseRecord>,
    },
    Writing {
        began: u64,
        found: Option<LeaseRecord>,
        new: LeaseRecord,
    },
    /// It is written, and will be told. (One that was not has nothing to wait for.)
    Written {
        began: u64,
        new: LeaseRecord,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Instance {
    election: Election,
    life: u64,
    doing: Doing,
    /// It stops, and begins nothing any more.
    stopping: bool,
    /// Has done something in its life; those before it did so first.
    begun: bool,
    /// Steps until its clock may err again.
    right_for: u64,
}

/// How much of each trouble may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Budget {
    crashes: u8,
    stops: u8,
    /// Writes of which the outcome is not known.
    losses: u8,
    /// Steps by which clocks err.
    errs: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    setting: Setting,
    left: Budget,
    instances: Vec<Instance>,
    record: Option<LeaseRecord>,
    /// Writes that may still happen, with what they found.
    late: BTreeSet<(Option<LeaseRecord>, LeaseRecord)>,
    /// Of those who give the lease up.
    given_up: BTreeSet<LeaseRecord>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Choice {
    /// Time goes on; each clock by so much.
    Time(Vec<u64>),
    Ask(usize),
    Reads(usize),
    Hears(usize),
    Writes(usize),
    Learns(usize),
    /// It does not learn what became of its write.
    Loses(usize),
    Late((Option<LeaseRecord>, LeaseRecord)),
    GivesUp(LeaseRecord),
    Crash(usize),
    Stop(usize),
    ComesBack(usize),
}

fn election(s: &Setting, i: usize, life: u64) -> Election {
    Election::new(ElectionConfig {
        node: NodeId(i as u64 + 1),
        life,
        addresses: vec![if s.elsewhere { life.to_string() } else { String::new() }],
        lease_ms: s.lease,
        margin_ms: if s.fault == Some(Fault::NoMargin) { 0 } else { s.margin },
        node_lease_ms: 1,
        renew_ms: 1,
    })
}

impl World {
    fn new(candidates: usize, setting: Setting, left: Budget) -> Self {
        let instance = |i| Instance {
            election: election(&setting, i, 1),
            life: 1,
            doing: Doing::Nothing,
            stopping: false,
            begun: false,
            right_for: 0,
        };
        let instances = (0..candidates).map(instance).collect();
        let mut w = Self {
            setting,
            left,
            instances,
            record: None,
            late: BTreeSet::new(),
            given_up: BTreeSet::new(),
        };
        w.put_in_order();
        w
    }
    /// Who acts, in which epoch.
    fn acting(&self) -> Vec<(usize, u64)> {
        let epoch =
            |(i, instance): (usize, &Instance)| match instance.election.clone().standing(NOW) {
                Standing::Primary { epoch, .. } => Some((i, epoch)),
                Standing::Standby => None,
            };
        self.instances.iter().enumerate().filter_map(epoch).collect()
    }
    /// The record is replaced.
    fn record(&mut self, new: LeaseRecord) {
        if let Some(old) = &self.record {
            let kept = new.epoch == old.epoch
                && (new.holder == NodeId(0) || (new.holder, new.life) == (old.holder, old.life));
            assert!(kept || new.epoch == old.epoch + 1, "epochs: {old:?} becomes {new:?}");
        }
        self.record = Some(new);
    }
    fn write(&mut self, found: &Option<LeaseRecord>, new: &LeaseRecord) -> bool {
        let same = self.record == *found || self.setting.fault == Some(Fault::NothingCompared);
        if same {
            self.record(new.clone());
        }
        same
    }
    fn hears(&mut self, i: usize, began: u64, found: Option<LeaseRecord>) {
        let fault = self.setting.fault;
        let command = self.instances[i].election.read(found.as_ref(), began, NOW);
        let claims = |new: &LeaseRecord| {
            found.as_ref().is_some_and(|f| f.holder.0 != 0 && f.epoch < new.epoch)
        };
        self.instances[i].doing = match command {
            Command::Write(new) if fault == Some(Fault::NeverClaims) && claims(&new) => {
                Doing::Nothing
            }
            Command::Write(new) => Doing::Writing { began, found, new },
            Command::Wait => Doing::Nothing,
        };
    }
    fn learns(&mut self, i: usize, began: u64, new: LeaseRecord, done: Option<bool>) {
        let fault = self.setting.fault;
        let from = if fault == Some(Fault::LeaseFromAnswer) { NOW } else { began };
        let e = &mut self.instances[i].election;
        match done {
            Some(true) => e.won(&new, from),
            Some(false) => e.lost(),
            None if fault == Some(Fault::UnknownIsWon) => e.won(&new, from),
            None => e.unknown(&new, from),
        }
    }
    fn comes_back(&mut self, i: usize) {
        let life = self.instances[i].life + 1;
        if let Doing::Writing { found, new, .. } = &self.instances[i].doing {
            self.late.insert((found.clone(), new.clone()));
        }
        let right_for = self.instances[i].right_for;
        self.instances[i] = Instance {
            election: election(&self.setting, i, life),
            life,
            doing: Doing::Nothing,
            stopping: false,
            begun: true,
            right_for,
        };
    }
    fn time(&mut self, by: &[u64]) {
        let window = self.setting.lease + self.setting.margin;
        for (i, by) in self.instances.iter_mut().zip(by) {
            i.right_for = if *by == 1 { i.right_for.saturating_sub(1) } else { window };
            self.left.errs -= u8::from(*by != 1);
            // What is in the future stays; the present goes on, so all else is longer ago.
            i.words(&self.record, &mut |m| *m -= by, &mut |_| {}, &mut |_| {});
        }
    }
    fn apply(&mut self, choice: &Choice) {
        match choice {
            Choice::Time(by) => self.time(by),
            Choice::Ask(i) => {
                self.instances[*i].begun = true;
                self.instances[*i].doing = Doing::Asked { began: NOW };
                if !self.setting.reads_later {
                    self.apply(&Choice::Reads(*i));
                }
            }
            Choice::Late((found, new)) => {
                self.late.remove(&(found.clone(), new.clone()));
                self.write(found, new);
            }
            Choice::GivesUp(new) => {
                self.given_up.remove(new);
                if self.record.as_ref().is_some_and(|r| r.epoch == new.epoch) {
                    self.record(new.clone());
                }
            }
            Choice::Crash(i) => {
                self.left.crashes -= 1;
                self.comes_back(*i);
            }
            Choice::Stop(i) => {
                self.left.stops -= 1;
                self.instances[*i].stopping = true;
                self.given_up.extend(self.instances[*i].election.give_up(NOW));
            }
            Choice::ComesBack(i) => self.comes_back(*i),
            Choice::Reads(i)
            | Choice::Hears(i)
            | Choice::Writes(i)
            | Choice::Learns(i)
            | Choice::Loses(i) => {
                let i = *i;
                let doing = std::mem::replace(&mut self.instances[i].doing, Doing::Nothing);
                let loses = matches!(choice, Choice::Loses(_));
                match doing {
                    Doing::Asked { began } => {
                        self.instances[i].doing = Doing::Read { began, found: self.record.clone() };
                    }
                    Doing::Read { began, found } => self.hears(i, began, found),
                    Doing::Writing { began, found, new } if loses => {
                        self.left.losses -= 1;
                        self.late.insert((found, new.clone()));
                        self.learns(i, began, new, None);
                    }
                    Doing::Writing { began, found, new } => {
                        if self.write(&found, &new) {
                            self.instances[i].doing = Doing::Written { began, new };
                        } else {
                            self.learns(i, began, new, Some(false));
                        }
                    }
                    Doing::Written { began, new } if loses => {
                        self.left.losses -= 1;
                        self.learns(i, began, new, None);
                    }
                    Doing::Written { began, new } => self.learns(i, began, new, Some(true)),
                    Doing::Nothing => unreachable!("not a choice"),
                }
            }
        }
    }

    /// Forgets what can have no effect any more, and gives moments, epochs and renewals new names: see the module. What an instance remembers is compared
    /// only with itself and with what is stored, so each has its own names.
    fn put_in_order(&mut self) {
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
    /// Things happen at once, and no more troubles: somebody becomes primary soon, and stays it.
    fn prompt(mut self) {
        let limit = 2 * (self.setting.lease + self.setting.margin) + 4;
        let mut since = None;
        for step in 0..2 * limit {
            for i in 0..self.instances.len() {
                let mut began = false;
                loop {
                    let next = match self.instances[i].doing {
                        Doing::Nothing if self.instances[i].stopping => Choice::ComesBack(i),
                        Doing::Nothing if began => break,
                        Doing::Nothing => {
                            began = true;
                            Choice::Ask(i)
                        }
                        Doing::Asked { .. } => Choice::Reads(i),
                        Doing::Read { .. } => Choice::Hears(i),
                        Doing::Writing { .. } => Choice::Writes(i),
                        Doing::Written { .. } => Choice::Learns(i),
                    };
                    self.apply(&next);
                }
            }
            let acting = self.acting();
            let mine = self.record.as_ref().map(|r| (r.holder, r.epoch));
            let stays = !acting.is_empty() && (since.is_none() || since == Some(mine));
            assert!(
                stays || step <= limit,
                "no primary, or not for long, though nothing is in its way: {self:#?}"
            );
            since = if acting.is_empty() { None } else { Some(mine) };
            self.apply(&Choice::Time(vec![1; self.instances.len()]));
        }
        assert!(since.is_some(), "no primary though nothing is in its way: {self:#?}");
    }
}

impl Instance {
    /// Shows everything that is remembered.
    fn words(
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

/// The same numbers, in the same order, with no more than `gap` between two neighbours; one of them has a name that is given. What is nearer than `gap` to another one is so afterwards, by as
/// much, and nothing else is.
pub fn closer(all: BTreeSet<u64>, gap: u64, one: u64, name: u64) -> BTreeMap<u64, u64> {
    let mut names = BTreeMap::new();
    let (mut last, mut next) = (one, name);
    for n in all.range(one..) {
        next += (n - last).min(gap);
        last = *n;
        names.insert(*n, next);
    }
    let (mut last, mut next) = (one, name);
    for n in all.range(..one).rev() {
        next -= (last - n).min(gap);
        last = *n;
        names.insert(*n, next);
    }
    names
}

impl walk::World for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        let mut out = Vec::new();
        let mut times = vec![Vec::new()];
        for i in &self.instances {
            let mut steps = vec![1];
            if i.right_for == 0 && self.setting.slow {
                steps.push(0);
            }
            if i.right_for == 0 && self.setting.fast {
                steps.push(2);
            }
            times = times
                .iter()
                .flat_map(|t: &Vec<u64>| steps.iter().map(move |s| [&t[..], &[*s]].concat()))
                .collect();
        }
        times.retain(|t| t.iter().filter(|by| **by != 1).count() <= self.left.errs.into());
        out.extend(times.into_iter().map(Choice::Time));
        out.extend(self.late.iter().cloned().map(Choice::Late));
        out.extend(self.given_up.iter().cloned().map(Choice::GivesUp));
        for (at, i) in self.instances.iter().enumerate() {
            match &i.doing {
                // Of candidates that are alike it is the first one that begins.
                Doing::Nothing if !i.stopping && self.instances[..at].iter().all(|b| b.begun) => {
                    out.push(Choice::Ask(at))
                }
                Doing::Nothing => {}
                Doing::Asked { .. } => out.push(Choice::Reads(at)),
                Doing::Read { .. } => out.push(Choice::Hears(at)),
                Doing::Writing { .. } | Doing::Written { .. } => {
                    out.push(if matches!(i.doing, Doing::Writing { .. }) {
                        Choice::Writes(at)
                    } else {
                        Choice::Learns(at)
                    });
                    if self.left.losses > 0 {
                        out.push(Choice::Loses(at));
                    }
                }
            }
            if i.stopping {
                out.push(Choice::ComesBack(at));
            } else if self.left.stops > 0 && i.begun {
                out.push(Choice::Stop(at));
            }
            if self.left.crashes > 0 && i.begun {
                out.push(Choice::Crash(at));
            }
        }
        out
    }
    fn is_trouble(&self, choice: &Choice) -> bool {
        match choice {
            Choice::Time(by) => by.iter().any(|b| *b != 1),
            Choice::Crash(_) | Choice::Stop(_) | Choice::Loses(_) | Choice::Late(_) => true,
            _ => false,
        }
    }
    fn go(&mut self, choice: &Choice) {
        self.apply(choice);
        self.put_in_order();
    }
    fn check(&self) {
        let acting = self.acting();
        assert!(acting.len() <= 1, "two act as primary: {acting:?}");
        for (i, epoch) in acting {
            let r = self.record.as_ref().expect("somebody wrote it");
            let own = (NodeId(i as u64 + 1), self.instances[i].life, epoch);
            assert_eq!((r.holder, r.life, r.epoch), own, "who acts is not who is recorded");
        }
        if self.setting.prompt {
            self.clone().prompt();
        }
    }
    fn is_end(&self) -> bool {
        !self.acting().is_empty()
    }
    fn at_rest(&self) -> Result<(), String> {
        if self.acting().is_empty() {
            Err("nothing happens any more, and there is no primary".into())
        } else {
            Ok(())
        }
    }
}

/// More states than any walk has: one that comes to this is no walk to the end, and fails.
const STATES_MAX: usize = 40_000_000;

const PLAIN: Setting = Setting {
    lease: 2,
    margin: 1,
    slow: false,
    fast: false,
    prompt: false,
    reads_later: false,
    elsewhere: false,
    fault: None,
};
const SHORT: Setting = Setting { lease: 1, ..PLAIN };
const CALM: Budget = Budget { crashes: 0, stops: 0, losses: 0, errs: 0 };

fn walk(candidates: usize, setting: Setting, left: Budget) {
    all_is_well(
        &format!("{candidates} candidates, {setting:?}, {left:?}"),
        World::new(candidates, setting, left),
        STATES_MAX,
    );
}

fn finds(fault: Fault, setting: Setting, left: Budget, reason: &str) {
    let setting = Setting { fault: Some(fault), ..setting };
    is_found(World::new(2, setting, left), STATES_MAX, reason);
}

#[test]
fn two_candidates_at_any_pace() {
    walk(2, Setting { prompt: true, ..PLAIN }, CALM);
}

#[test]
fn two_candidates_and_a_crash() {
    walk(2, SHORT, Budget { crashes: 1, ..CALM });
}

/// Found that who had given the lease up was primary again when it heard of a renewal from before.
#[test]
fn two_candidates_of_which_one_gives_the_lease_up() {
    walk(2, SHORT, Budget { stops: 1, ..CALM });
}

#[test]
fn two_candidates_and_a_write_of_which_nobody_hears() {
    walk(2, SHORT, Budget { losses: 1, ..CALM });
}

#[test]
#[ignore = "a minute"]
fn two_candidates_and_clocks_that_err() {
    walk(2, Setting { fast: true, ..PLAIN }, Budget { errs: 1, ..CALM });
    walk(2, Setting { slow: true, ..PLAIN }, Budget { errs: 1, ..CALM });
    walk(2, Setting { elsewhere: true, ..PLAIN }, Budget { crashes: 1, ..CALM });
    walk(2, PLAIN, Budget { losses: 1, ..CALM });
}

#[test]
#[ignore = "many minutes"]
fn two_candidates_and_two_failures() {
    walk(2, Setting { reads_later: true, ..PLAIN }, CALM);
    walk(2, SHORT, Budget { crashes: 2, ..CALM });
    walk(2, SHORT, Budget { crashes: 1, losses: 1, ..CALM });
    walk(2, SHORT, Budget { crashes: 1, stops: 1, ..CALM });
}

#[test]
#[ignore = "many minutes"]
fn three_candidates() {
    walk(3, SHORT, CALM);
}

/// The test of the tests.
#[test]
fn planted_faults_are_found() {
    finds(Fault::LeaseFromAnswer, PLAIN, CALM, "who acts is not who is recorded");
    finds(
        Fault::NoMargin,
        Setting { fast: true, ..PLAIN },
        Budget { errs: 1, ..CALM },
        "who acts is not who is recorded",
    );
    finds(
        Fault::UnknownIsWon,
        PLAIN,
        Budget { losses: 1, ..CALM },
        "who acts is not who is recorded",
    );
    finds(Fault::NothingCompared, PLAIN, CALM, "epochs: ");
    finds(Fault::NeverClaims, Setting { prompt: true, ..PLAIN }, CALM, "no primary");
}
