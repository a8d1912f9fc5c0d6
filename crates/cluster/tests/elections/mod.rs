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

mod cases;
mod same;
mod world;

use crate::walk;
use glowfs_cluster::{Election, LeaseRecord};
use glowfs_types::NodeId;
use std::collections::BTreeSet;

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
