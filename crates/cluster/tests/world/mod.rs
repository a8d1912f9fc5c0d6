//! The model of a chain that the explorer walks: mgmtd's core for real, its targets and what they hold as a model.
//!
//! The targets follow the rules that mgmtd and storages follow: a node that was declared dead adopts the newest version before
//! it serves again, and so does a new life; a target is declared dead only when it has stopped. A crash makes what a target holds
//! uncertain, which is the worst case of a loss of power; only when nobody is certain any more, the named source defines
//! what was written.
#![allow(missing_docs)]

use glowfs_cluster::*;
use glowfs_types::routing::PublicState::{Serving, Syncing};
use glowfs_types::routing::{ChainInfo, LocalState};
use glowfs_types::*;
use std::collections::BTreeMap;

mod deaf;
mod fold;

pub use deaf::Fault;

/// One target, as it really is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Real {
    /// Runs and has a lease.
    up: bool,
    /// Its process exists (without `up`: it is cut off).
    process: bool,
    life: u64,
    clean: bool,
    /// The first life since which its machine was not started again.
    since: u64,
    synced: bool,
    adopted: u64,
    /// The adopted routing info accounts for its life.
    fenced_in: bool,
    /// It holds every acknowledged write.
    complete: bool,
    /// It was not interrupted since that was established.
    certain: bool,
    /// It lost power since then (if before the first write: with nothing to lose).
    unplugged: bool,
}

/// What mgmtd last heard of a target: state, life, clean, adopted version, since when the machine runs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seen(Option<(LocalState, u64, bool, u64, u64)>);

/// Without a bound.
pub const ANY: u64 = u64::MAX;

/// What may happen in one walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Processes that end, cleanly or not.
    pub crashes: u64,
    /// Nodes that are cut off (their process lives on); [`ANY`]: without a bound.
    pub cuts: u64,
    /// Members that are retired.
    pub retires: u64,
    /// Targets that may join.
    pub spares: u64,
    /// Targets that mgmtd blames for messages that do not arrive, rightly or not.
    pub blames: u64,
}

/// A chain and its targets.
#[derive(Clone, Debug)]
pub struct World {
    pub chain: Chain,
    pub seen: Vec<Seen>,
    pub real: Vec<Real>,
    /// Who wrote under which version, and whether it was ever active; of versions that somebody may still act under.
    pub history: BTreeMap<u64, (Vec<usize>, Vec<usize>, bool)>,
    /// Every lease from before the chain's version is over.
    pub fenced: bool,
    /// Whom mgmtd blames.
    pub blamed: Vec<bool>,
    /// Who is not to be brought up to date: while it is deaf. (In the walk anybody may be.)
    pub pauses: Vec<bool>,
    /// What may still happen.
    pub left: Bounds,
    /// What is wrong, on purpose.
    pub fault: Option<Fault>,
}

fn at(t: TargetId) -> usize {
    t.0 as usize - 1
}

fn sets(info: &ChainInfo) -> (Vec<usize>, Vec<usize>) {
    let pick = |s| {
        let mut v: Vec<usize> =
            info.members.iter().filter(|m| m.state == s).map(|m| at(m.target)).collect();
        v.sort_unstable();
        v
    };
    (pick(Serving), pick(Syncing))
}

impl World {
    /// A newborn chain of `n` replicas, and spare targets.
    pub fn new(n: u64, left: Bounds) -> Self {
        let all = (n + left.spares) as usize;
        let ids: Vec<_> = (1..=n).map(|i| (TargetId(i), NodeId(i))).collect();
        let real = Real {
            up: true,
            process: true,
            life: 1,
            clean: true,
            since: 1,
            synced: false,
            adopted: 0,
            fenced_in: false,
            complete: true,
            certain: true,
            unplugged: false,
        };
        let mut w = Self {
            chain: Chain::new(ChainId(1), &ids),
            seen: vec![Seen(None); all],
            real: vec![real; all],
            history: BTreeMap::new(),
            fenced: false,
            blamed: vec![false; all],
            pauses: vec![false; all],
            left,
            fault: None,
        };
        for spare in &mut w.real[n as usize..] {
            (spare.complete, spare.certain) = (false, false);
        }
        w.note();
        w
    }
    fn view(&self) -> View {
        let mut view = View::new();
        for (i, seen) in self.seen.iter().enumerate() {
            if let Seen(Some((local, life, clean, adopted, since))) = *seen {
                let o = Observation {
                    local,
                    incarnation: Incarnation(life),
                    nonce: 0,
                    former: 0,
                    informed: false,
                    clean,
                    machine_since: Incarnation(since),
                    adopted: ChainVersion(adopted),
                    served: ChainVersion(adopted),
                    // Only whether the chain was ever active matters.
                    empty: self.chain.info.activated == ChainVersion(0),
                    may_sync: !self.pauses[i],
                    known: ChainVersion(adopted),
                    unreachable: self.blamed[i],
                    fenced: self.fenced,
                    replaced: false,
                };
                view.insert(TargetId(i as u64 + 1), o);
            }
        }
        view
    }
    fn note(&mut self) {
        let info = &self.chain.info;
        let (serving, syncing) = sets(info);
        let entry =
            self.history.entry(info.version.0).or_insert((serving.clone(), syncing.clone(), false));
        assert_eq!(
            (&entry.0, &entry.1),
            (&serving, &syncing),
            "a version never changes its members"
        );
        entry.2 |= info.activated == info.version;
    }
    fn report(&mut self, i: usize) {
        let r = self.real[i];
        let local = if r.synced { LocalState::UpToDate } else { LocalState::Online };
        self.seen[i] = Seen(Some((local, r.life, r.clean, r.adopted, r.since)));
    }
    fn adopt(&mut self, i: usize) {
        let info = &self.chain.info;
        let record = self.chain.records.get(&TargetId(i as u64 + 1));
        let r = &mut self.real[i];
        if r.adopted != info.version.0 {
            r.synced = false;
        }
        r.adopted = info.version.0;
        r.fenced_in = record.is_some_and(|record| record.incarnation.0 == r.life);
        self.forget();
    }
    /// Versions that nobody can act under any more are history.
    fn forget(&mut self) {
        let now = self.chain.info.version.0;
        let real = &self.real;
        self.history.retain(|v, _| *v == now || real.iter().any(|r| r.adopted == *v));
    }
    /// One look of mgmtd at the chain.
    pub fn scan(&mut self) -> bool {
        let Some((next, changes)) = self.step_with_fault() else { return false };
        assert!(next.info.version >= self.chain.info.version, "versions never go back");
        assert!(next.info.activated >= self.chain.info.activated);
        assert!(changes.is_empty() == (next.info.version == self.chain.info.version));
        let ranks: Vec<_> = next.info.members.iter().map(|m| m.state != Serving).collect();
        assert!(ranks.is_sorted(), "serving members come first");
        assert!(sets(&next.info).1.len() <= 1, "one syncs at a time");
        for c in &changes {
            if c.why == Evidence::Newborn {
                // Nothing was ever acknowledged.
                self.real[at(c.target)].complete = true;
                self.real[at(c.target)].certain = true;
                self.real[at(c.target)].unplugged = false;
            }
            if c.why == Evidence::NamedSource && next.info.activated > ChainVersion(0) {
                // Whoever was serving since the newest activation and was never interrupted would be proof.
                for (i, r) in self.real.iter().enumerate() {
                    let record = self.chain.records.get(&TargetId(i as u64 + 1));
                    let served = record.is_some_and(|r| r.served >= next.info.activated);
                    assert!(
                        i == at(c.target) || !(r.complete && r.certain && served),
                        "{:?} is named the source, but target {} holds everything: {self:#?}",
                        c.target,
                        i + 1
                    );
                    assert!(
                        self.real[at(c.target)].complete || !(r.complete && !r.unplugged && served),
                        "{:?} is named the source and lost something, but target {} has it: {self:#?}",
                        c.target,
                        i + 1
                    );
                }
                for (i, r) in self.real.iter_mut().enumerate() {
                    r.complete = i == at(c.target);
                    let record = next.records.get(&TargetId(i as u64 + 1));
                    let known = record.is_some_and(|record| record.incarnation.0 == r.life);
                    r.certain = r.complete && r.process && known;
                    r.unplugged = false;
                }
            }
        }
        self.begin(next);
        true
    }
    fn begin(&mut self, next: Chain) {
        self.fenced &= next.info.version == self.chain.info.version;
        self.chain = next;
        self.note();
        self.forget();
    }
    /// The leases from before the version run out by time; whoever has got another one since knows the version.
    fn wait_for_leases(&mut self) -> bool {
        let now = self.chain.info.version.0;
        for i in 0..self.real.len() {
            let r = self.real[i];
            if r.up && r.fenced_in && r.adopted != now && !self.cut(i) {
                return false;
            }
        }
        !std::mem::replace(&mut self.fenced, true)
    }
    /// Cut off: the process lives on without a lease.
    fn cut(&mut self, i: usize) -> bool {
        if self.left.cuts == 0 {
            return false;
        }
        if self.left.cuts != ANY {
            self.left.cuts -= 1;
        }
        self.real[i].up = false;
        true
    }
    /// A change of members, if it is allowed now.
    fn change(&mut self, next: Result<Chain>) -> bool {
        let Ok(next) = next else { return false };
        assert_eq!(next.info.version, self.chain.info.version.next());
        self.begin(next);
        true
    }
    fn member(&self, i: usize) -> bool {
        self.chain.records.contains_key(&TargetId(i as u64 + 1))
    }
    fn acts(&self, i: usize, version: u64) -> bool {
        let r = self.real[i];
        r.up && r.fenced_in && r.adopted == version
    }
    /// Everything that may happen next.
    pub fn next(&self) -> Vec<World> {
        let mut out = Vec::new();
        let mut push = |f: &dyn Fn(&mut World) -> bool| {
            let mut w = self.clone();
            if f(&mut w) {
                out.push(w);
            }
        };
        push(&|w| w.scan());
        push(&|w| w.wait_for_leases());
        for i in 0..self.real.len() {
            let (r, id) = (self.real[i], TargetId(i as u64 + 1));
            if self.left.spares > 0 && !self.member(i) && r.adopted == 0 && r.life == 1 {
                push(&|w| {
                    w.left.spares -= 1;
                    w.change(w.chain.join(id, NodeId(id.0)))
                });
                continue;
            }
            if self.left.retires > 0 {
                push(&|w| {
                    w.left.retires -= 1;
                    w.change(w.chain.retire(id).map(|(next, _)| next))
                });
            }
            push(&|w| w.change(w.chain.dismiss(id)));
            push(&|w| {
                let Ok(next) = w.chain.reinstate(id) else { return false };
                w.begin(next);
                true
            });
            if self.left.blames > 0 {
                push(&|w| {
                    w.left.blames -= 1;
                    !std::mem::replace(&mut w.blamed[i], true)
                });
            }
            push(&|w| std::mem::take(&mut w.blamed[i]));
            if !r.up && r.process && self.left.blames > 0 {
                // It is heard, but hears nothing itself.
                push(&|w| {
                    w.report(i);
                    true
                });
            }
            if r.up {
                push(&|w| {
                    w.report(i);
                    true
                });
                push(&|w| {
                    w.adopt(i);
                    true
                });
                push(&|w| w.cut(i));
                if self.left.crashes > 0 {
                    // A loss of power, a process that is killed, and a clean end. The next life begins at once but serves nothing yet.
                    for (clean, power) in [(false, true), (false, false), (true, false)] {
                        push(&|w| {
                            // Before the first activation nothing was acknowledged, so nothing is missing.
                            let empty = w.chain.info.activated == ChainVersion(0);
                            w.left.crashes -= 1;
                            let r = &mut w.real[i];
                            r.up = false;
                            r.process = false;
                            r.clean = clean;
                            if power {
                                r.since = r.life + 1;
                                r.unplugged = true;
                            }
                            r.complete &= !power || empty;
                            r.certain &= clean;
                            true
                        });
                    }
                }
                push(&|w| {
                    let v = r.adopted;
                    let Some((serving, syncing, active)) = w.history.get(&v) else { return false };
                    let whole = serving.iter().all(|&s| w.acts(s, v));
                    if !active
                        || !whole
                        || !syncing.contains(&i)
                        || !w.acts(i, v)
                        || serving.is_empty()
                    {
                        return false;
                    }
                    w.real[i].complete = true;
                    w.real[i].certain = true;
                    w.real[i].unplugged = false;
                    w.real[i].synced = true;
                    true
                });
            } else {
                // mgmtd notices.
                push(&|w| {
                    let Seen(Some((local, ..))) = &mut w.seen[i] else { return false };
                    *local = LocalState::Offline;
                    true
                });
                push(&|w| {
                    let r = &mut w.real[i];
                    if !r.process {
                        r.process = true;
                        r.life += 1;
                        r.synced = false;
                        r.fenced_in = false;
                    }
                    r.up = true;
                    w.report(i);
                    // Its heartbeat is answered when the chain has settled, with the newest version.
                    while w.scan() {}
                    w.adopt(i);
                    true
                });
            }
        }
        for (&v, (serving, syncing, active)) in &self.history {
            let writers = || serving.iter().chain(syncing);
            if *active && !serving.is_empty() && writers().all(|&i| self.acts(i, v)) {
                // A write is acknowledged: whoever did not take part misses it.
                push(&|w| {
                    for i in 0..w.real.len() {
                        let writes = serving.contains(&i) || syncing.contains(&i);
                        w.real[i].complete &= writes;
                    }
                    true
                });
            }
        }
        out
    }
    /// Whoever can answer a read must hold everything; reads are answered under versions that are not active, too.
    pub fn check(&self) {
        for (i, r) in self.real.iter().enumerate() {
            let Some((serving, ..)) = self.history.get(&r.adopted) else { continue };
            if serving.contains(&i) && self.acts(i, r.adopted) {
                assert!(r.complete, "target {} serves and misses writes: {self:#?}", i + 1);
            }
        }
    }
    /// From here on nothing fails: all serve in the end.
    pub fn heal(&self) {
        let mut w = self.clone();
        w.blamed.fill(false);
        for _ in 0..40 {
            (0..w.real.len()).for_each(|i| w.is_well(i));
            w.check();
            if w.serves_in_full() {
                return;
            }
        }
        panic!("does not heal: {self:#?}\nends as {w:#?}");
    }
}
