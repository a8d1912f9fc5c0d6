//! What happens in a world, choice by choice.

use super::{Budget, Choice, Doing, Fault, Instance, NOW, Setting, World};
use glowfs_cluster::{Command, Election, ElectionConfig, LeaseRecord, Standing};
use glowfs_types::NodeId;
use std::collections::BTreeSet;

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
    pub fn new(candidates: usize, setting: Setting, left: Budget) -> Self {
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
    pub fn acting(&self) -> Vec<(usize, u64)> {
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
    pub fn apply(&mut self, choice: &Choice) {
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
    /// Things happen at once, and no more troubles: somebody becomes primary soon, and stays it.
    pub fn prompt(mut self) {
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
