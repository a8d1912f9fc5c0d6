//! The chain state table: what becomes of a chain when mgmtd hears something of its targets.
//!
//! The invariant behind all rules: *every serving member holds every acknowledged write*, and whoever may begin to serve
//! when nobody serves must hold a [`Proof`]. A chain version acknowledges nothing before it is active, and it is active
//! only when all its writers adopted it and that was recorded. So a member that was serving when the newest active version was made,
//! or became serving since, holds all that was ever acknowledged, as long as its memory can be trusted (clean lives).
//!
//! [`Chain::step`] applies the table once. A change of members makes one new version; an activation makes none.

use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::routing::{ChainInfo, ChainMember, LocalState, PublicState};
use glowfs_types::{ChainId, ChainVersion, Incarnation, NodeId, Redundancy, TargetId};
use std::collections::BTreeMap;

/// After how many steps a chain has settled, whatever was heard; more would be a defect of the table.
pub const STEPS_MAX: usize = 8;

/// What a member can prove about the writes that the chain acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum Proof {
    /// Nothing: writes may have been acknowledged without it.
    #[default]
    None,
    /// It holds all of them.
    Holds,
    /// It held all of them, but a life of it ended without a clean shutdown, so the last ones may be lost.
    Suspect,
    /// The same, but only processes ended, not the machine, and its start found nothing of them missing: it has all of them, unless its disk failed then.
    Killed,
}

/// What is remembered of a member beyond the routing info.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemberRecord {
    /// The life that was accounted for last; 0 if none was heard yet.
    pub incarnation: Incarnation,
    /// What that life drew by lot; 0: not known.
    pub nonce: u32,
    /// What it can prove.
    pub proof: Proof,
    /// The newest chain version in which it was serving.
    pub served: ChainVersion,
    /// It is on its way out ([`Chain::retire`]): offline for good, whatever is heard of it.
    pub retired: bool,
    /// While the record is known to be older than the stores ([`Chain::restored`]): what it had served under when it was first heard then, before
    /// what was counted on since.
    pub brought: Option<ChainVersion>,
    /// Its store was put back as it was before, and it has not served since.
    pub put_back: bool,
}

/// What mgmtd knows of a target now. A target of a dead node counts as [`LocalState::Offline`]; one of which nothing was
/// heard yet has no observation, and nothing is decided about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Observation {
    /// The state that its node reported.
    pub local: LocalState,
    /// The life that reported it.
    pub incarnation: Incarnation,
    /// What that life drew by lot, and what the life of the store before it did; 0: not known.
    pub nonce: u32,
    /// See `nonce`.
    pub former: u32,
    /// When its node reported it, it knew the routing info that says which life is accounted for.
    pub informed: bool,
    /// Whether the life before that one ended with a clean shutdown.
    pub clean: bool,
    /// The first life since which its machine was not started again, and its store cut nothing off that had been acknowledged; 0: not known.
    pub machine_since: Incarnation,
    /// The newest chain version it adopted.
    pub adopted: ChainVersion,
    /// The newest one that it adopted as a serving member.
    pub served: ChainVersion,
    /// Whether it holds no chunk at all.
    pub empty: bool,
    /// Whether it may begin or go on to sync (false for a while after it was too slow).
    pub may_sync: bool,
    /// The newest chain version it knows; it serves under no older one.
    pub known: ChainVersion,
    /// It lives, but is to blame for messages of this chain that do not arrive ([`crate::Reach`]), or cannot hold a lease for mgmtd's do not
    /// ([`crate::NodeLeases::deaf`]).
    pub unreachable: bool,
    /// Every lease that was granted before the chain's version was in force is over: whoever has one knows that version.
    pub fenced: bool,
    /// An operator has said that its disk is gone for good, and that another one is in its place.
    pub replaced: bool,
}

/// Observations by target.
pub type View = BTreeMap<TargetId, Observation>;

/// Why a member changed its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Its node is dead, or reported the target as unusable.
    Gone,
    /// A new life of it began; the old one is over.
    NewLife,
    /// Its store was put back as it was before.
    PutBack,
    /// It is back.
    Back,
    /// Its turn to be brought up to date.
    Turn,
    /// It is equal to its predecessor, and flushed.
    UpToDate,
    /// It was serving last, or in the newest active version, and its memory can be trusted.
    Proven,
    /// All that might know more were interrupted as well: it is named the source of the others.
    NamedSource,
    /// The chain was never active and all members are there, empty.
    Newborn,
    /// There is nobody (any more) to be brought up to date from.
    NoSource,
    /// It was too slow.
    TooSlow,
    /// Messages within the chain do not reach it (or do not leave it).
    Unreachable,
    /// Its chain went on after the record of it was copied.
    Older,
    /// It holds nothing and never took part, though the record says that it served.
    MadeAnew,
    /// Another one took over.
    TakenOver,
    /// It leaves the chain.
    Retired,
    /// An operator forced it.
    Forced,
}

/// One change, for logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The member.
    pub target: TargetId,
    /// Before.
    pub from: PublicState,
    /// After.
    pub to: PublicState,
    /// Why.
    pub why: Evidence,
}

/// A chain with what is remembered of its members. Stored as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// What everybody knows.
    pub info: ChainInfo,
    /// What only mgmtd knows, for each member.
    pub records: BTreeMap<TargetId, MemberRecord>,
}

use PublicState::{LastSrv, Offline, Serving, Syncing, Waiting};

/// A member while a step works on it.
pub(crate) struct Slot {
    pub target: TargetId,
    pub from: PublicState,
    pub to: PublicState,
    pub why: Evidence,
    /// None: nothing is known.
    pub local: Option<LocalState>,
    pub seen: Option<Observation>,
}

impl Slot {
    pub fn up(&self) -> bool {
        matches!(self.local, Some(LocalState::Online | LocalState::UpToDate))
    }
    fn down(&self) -> bool {
        self.local == Some(LocalState::Offline)
    }
    pub fn blamed(&self) -> bool {
        self.up() && self.seen.is_some_and(|o| o.unreachable)
    }
    /// Whether it may still answer reads under a version in which it was serving.
    fn may_answer(&self, record: Option<&MemberRecord>) -> bool {
        let served = record.map_or(ChainVersion(0), |r| r.served);
        let knows = self.seen.map_or(ChainVersion(0), |o| o.known.max(o.adopted));
        served > ChainVersion(0) && !self.down() && !self.fenced() && knows <= served
    }
    /// Whether nobody need wait for it any more.
    fn gone_for_good(&self) -> bool {
        self.down() && self.seen.is_some_and(|o| o.replaced)
    }
    /// Whether every lease from before the chain's version is over.
    fn fenced(&self) -> bool {
        self.seen.is_some_and(|o| o.fenced)
    }
    pub fn set(&mut self, to: PublicState, why: Evidence) {
        self.to = to;
        self.why = why;
    }
}

impl Chain {
    /// A chain that was never active. Its first version is 1 and all members are offline until they are heard.
    pub fn new(id: ChainId, members: &[(TargetId, NodeId)]) -> Self {
        Self {
            info: ChainInfo {
                id,
                version: ChainVersion(1),
                activated: ChainVersion(0),
                activated_serving: Vec::new(),
                members: members
                    .iter()
                    .map(|&(target, node)| ChainMember { target, node, state: Offline })
                    .collect(),
                redundancy: Redundancy::Replicated,
                preferred: members.iter().map(|m| m.0).collect(),
                lost: ChainVersion(0),
            },
            records: members.iter().map(|m| (m.0, MemberRecord::default())).collect(),
        }
    }

    /// Applies the table until nothing changes (at most [`STEPS_MAX`] times). `None` if nothing changed at all.
    pub fn settle(&self, view: &View) -> Option<(Chain, Vec<Change>)> {
        let (mut chain, mut changes) = self.step(view)?;
        for _ in 1..STEPS_MAX {
            let Some((next, more)) = chain.step(view) else { break };
            chain = next;
            changes.extend(more);
        }
        Some((chain, changes))
    }

    /// Applies the table once. `None` if nothing changes.
    pub fn step(&self, view: &View) -> Option<(Chain, Vec<Change>)> {
        let mut next = self.clone();
        let mut slots = next.account_lives(view);
        next.doubt_those_made_anew(&mut slots);
        let older = next.find_older(&mut slots);
        table(&mut slots, &self.info, &next.records);
        if slots.iter().any(|s| s.to == Serving) {
            next.give_way(&mut slots);
        } else {
            next.take_over(&mut slots, &next.records);
        }
        let changes: Vec<Change> = slots
            .iter()
            .filter(|s| s.from != s.to)
            .map(|s| Change { target: s.target, from: s.from, to: s.to, why: s.why })
            .collect();
        if changes.is_empty() && older.is_none() {
            next.activate(&slots);
        } else {
            next.begin_version(older.unwrap_or_default());
            next.arrange(&slots);
        }
        (next != *self).then_some((next, changes))
    }

    /// Begins a version, behind `after` as well; its members follow ([`Chain::note_serving`]). Every change of members goes through here.
    pub(crate) fn begin_version(&mut self, after: ChainVersion) {
        // Records of older builds do not have it of versions that began with members that came or went.
        self.note_serving();
        self.info.version = self.info.version.max(after).next();
    }

    /// Notes of all who serve now that they do so in this version: until it is known that they know of a later one, they may answer reads under it.
    pub(crate) fn note_serving(&mut self) {
        let version = self.info.version;
        for m in self.info.members.iter().filter(|m| m.state == Serving) {
            self.records.entry(m.target).or_default().served = version;
        }
    }

    /// Notes new lives; a life that cannot be trusted counts as offline in this step, even if it is back already.
    fn account_lives(&mut self, view: &View) -> Vec<Slot> {
        // Whoever was forced to begin need not have adopted anything.
        let begins = self.info.lost > self.info.activated;
        let restored = self.restored();
        let mut slots = Vec::with_capacity(self.info.members.len());
        for m in &self.info.members {
            let record = self.records.entry(m.target).or_default();
            let least = match begins {
                true => ChainVersion(0),
                // What is active was heard of others by now: it says nothing of this one's store, but what it brought itself does.
                false if restored => record.brought.unwrap_or_default(),
                false => self.info.activated,
            };
            let seen = view.get(&m.target).copied().filter(|o| record.counts(o));
            let mut slot = Slot {
                target: m.target,
                from: m.state,
                to: m.state,
                why: Evidence::Gone,
                local: seen.map(|o| o.local),
                seen,
            };
            if let Some(why) = seen.and_then(|o| record.account(&o, least)) {
                let offline_first = match m.state {
                    // Even if it ended cleanly and nobody heard of that: no life acts under a chain version of a former one, so it needs a new
                    // one. What it holds is as good as before.
                    Serving => !planted(Mutant::IncarnationUnchecked),
                    // What it was sent before does not count any more.
                    Syncing => !planted(Mutant::IncarnationUnchecked),
                    Waiting | LastSrv | Offline => false,
                };
                if offline_first {
                    slot.local = Some(LocalState::Offline);
                    slot.why = why;
                }
            }
            slots.push(slot);
        }
        slots
    }

    /// When nobody serves: who may.
    fn take_over(&self, slots: &mut [Slot], records: &BTreeMap<TargetId, MemberRecord>) {
        let proof = |s: &Slot| records.get(&s.target).map_or(Proof::None, |r| r.proof);
        let best = |slots: &[Slot], fit: &dyn Fn(&Slot) -> bool| {
            let fits = |s: &&Slot| s.up() && fit(s);
            let last = slots.iter().filter(fits).find(|s| s.from == LastSrv);
            last.or_else(|| slots.iter().find(fits)).map(|s| s.target)
        };
        // The last one is just back, so it counts as there in the next step: it may know more than who was there before it, if the record is an old one.
        let back =
            |s: &Slot| s.to == LastSrv && s.seen.is_some_and(|o| o.local != LocalState::Offline);
        if slots.iter().any(|s| s.from == Serving && back(s) && proof(s) == Proof::Holds) {
            return;
        }
        // Who is gone for good is not waited for: what it alone knew is lost, and what it had acknowledged or shown those have who were only killed. If all
        // of them lost their power, it is told as any such loss is. (A record from the past does not say who has what: by one, all are waited for.)
        let gone = |s: &Slot| s.gone_for_good() && !self.restored();
        let mut holders = slots.iter().filter(|s| proof(s) != Proof::None && !gone(s));
        let may_prove = self.proofs_count(slots);
        let mut winner =
            best(slots, &|s| may_prove && proof(s) == Proof::Holds).map(|t| (t, Evidence::Proven));
        if winner.is_none() {
            // Whoever held everything is here, and all were interrupted: nobody can know more.
            if holders.all(|s| s.up() && proof(s) != Proof::Holds) {
                // Who began to serve in a version that was never active may not have flushed what the others have: its adoption of
                // that version does so.
                let served = |s: &Slot| self.info.activated_serving.contains(&s.target);
                let is = |p: Proof| move |s: &Slot| proof(s) == p;
                // The first to commit is the tail, and others may have had in memory only what it has shown to readers.
                let last_killed = || {
                    let killed = |t: &&TargetId| {
                        slots.iter().any(|s| s.target == **t && s.up() && is(Proof::Killed)(s))
                    };
                    self.info.activated_serving.iter().rev().find(killed).copied()
                };
                winner = last_killed()
                    .or_else(|| best(slots, &is(Proof::Killed)))
                    .or_else(|| best(slots, &|s| is(Proof::Suspect)(s) && served(s)))
                    .or_else(|| best(slots, &is(Proof::Suspect)))
                    .map(|t| (t, Evidence::NamedSource));
            }
        }
        if let Some((target, why)) = winner {
            for s in slots.iter_mut() {
                if s.target == target {
                    s.set(Serving, why);
                } else if s.to == LastSrv {
                    s.set(Offline, Evidence::TakenOver);
                }
            }
            return;
        }
        let newborn = self.info.activated == ChainVersion(0)
            && slots.iter().all(|s| s.up() && s.seen.is_some_and(|o| o.empty));
        if newborn {
            for s in slots.iter_mut() {
                s.set(Serving, Evidence::Newborn);
            }
        }
    }

    /// Puts the new states in force: order, and what serving proves.
    fn arrange(&mut self, slots: &[Slot]) {
        // Who is named lost what it had not flushed, if its machine went down with it.
        let suspect =
            |s: &Slot| self.records.get(&s.target).is_some_and(|r| r.proof == Proof::Suspect);
        let named = |s: &Slot| s.why == Evidence::NamedSource && s.to == Serving;
        if slots.iter().any(|s| named(s) && suspect(s)) && !planted(Mutant::LossUntold) {
            self.info.lost = self.info.version;
        }
        let mut gone = Vec::new();
        let mut members = Vec::with_capacity(slots.len());
        for (m, s) in self.info.members.iter().zip(slots) {
            let member = ChainMember { state: s.to, ..*m };
            if s.to == Offline && s.from != Offline {
                gone.push(member);
            } else {
                members.push(member);
            }
            if s.to == Serving {
                let record = self.records.entry(s.target).or_default();
                record.proof = Proof::Holds;
                // Called upon to take over: it stays.
                record.retired = false;
                record.put_back = false;
            }
        }
        members.extend(gone);
        members.sort_by_key(|m| rank(m.state));
        self.info.members = members;
        self.note_serving();
    }

    /// Records the version as active if all its writers adopted it; and those that were retired alive, or are away: until then
    /// they may answer reads under the version before.
    fn activate(&mut self, slots: &[Slot]) {
        let version = self.info.version;
        let mut writers = slots.iter().filter(|s| matches!(s.to, Serving | Syncing));
        let adopted = |s: &Slot| s.up() && s.seen.is_some_and(|o| o.adopted == version);
        let retired = |s: &&Slot| self.records.get(&s.target).is_some_and(|r| r.retired);
        // Who was dropped alive must know it before anything is acknowledged without it.
        let mut others = slots.iter().filter(|s| !matches!(s.to, Serving | Syncing));
        let fenced = others.all(|s| !s.may_answer(self.records.get(&s.target)));
        let ready = slots.iter().any(|s| s.to == Serving)
            && writers.all(adopted)
            && fenced
            && slots.iter().filter(retired).all(|s| s.down() || adopted(s) || s.fenced());
        if !ready || self.info.activated == version {
            return;
        }
        self.info.activated = version;
        self.info.activated_serving = self.info.serving().map(|m| m.target).collect();
        self.records.values_mut().for_each(|r| r.brought = None);
        // From now on writes may be acknowledged without the others.
        for s in slots.iter().filter(|s| s.to != Serving) {
            self.records.entry(s.target).or_default().proof = Proof::None;
        }
    }
}

/// The place of a state in the order of members.
fn rank(state: PublicState) -> u8 {
    match state {
        Serving => 0,
        LastSrv => 1,
        Syncing => 2,
        Waiting => 3,
        Offline => 4,
    }
}

/// The rows of the table.
fn table(slots: &mut [Slot], info: &ChainInfo, records: &BTreeMap<TargetId, MemberRecord>) {
    let remaining = slots.iter().any(|s| s.from == Serving && !s.down());
    // A report takes a serving member out only while another one, that was heard and that nobody blames, goes on (or `give_way` finds one that can).
    let sound = slots.iter().any(|s| s.from == Serving && s.up() && !s.blamed());
    let proof = |t: &TargetId| records.get(t).map_or(Proof::None, |r| r.proof);
    let retired = |t: &TargetId| records.get(t).is_some_and(|r| r.retired);
    // If all serving ones go at once, one keeps the mark of the last: the one that can prove most.
    let last = slots
        .iter()
        .filter(|s| s.from == Serving)
        .min_by_key(|s| match proof(&s.target) {
            Proof::Holds => 0,
            Proof::Killed => 1,
            Proof::Suspect | Proof::None => 2,
        })
        .map(|s| s.target);
    for s in slots.iter_mut() {
        let why_gone = s.why;
        match s.from {
            Serving if s.down() && remaining => s.set(Offline, why_gone),
            Serving if s.down() && Some(s.target) == last => s.set(LastSrv, why_gone),
            Serving if s.down() => s.set(Offline, why_gone),
            Serving if sound && s.blamed() => s.set(Waiting, Evidence::Unreachable),
            LastSrv if remaining => s.set(Offline, Evidence::TakenOver),
            Syncing | Waiting if s.down() => s.set(Offline, why_gone),
            Syncing if !remaining => s.set(Waiting, Evidence::NoSource),
            Syncing if s.seen.is_some_and(|o| !o.may_sync) => s.set(Waiting, Evidence::TooSlow),
            // Under an inactive version, writes may still be acknowledged under the one before, past this target.
            Syncing
                if s.local == Some(LocalState::UpToDate)
                    && info.activated == info.version
                    && s.seen.is_some_and(|o| o.adopted == info.version) =>
            {
                s.set(Serving, Evidence::UpToDate);
            }
            Offline if s.up() && !retired(&s.target) => s.set(Waiting, Evidence::Back),
            Serving | LastSrv | Syncing | Waiting | Offline => {}
        }
    }
    let syncing = slots.iter().any(|s| s.from == Syncing && s.to != Waiting && s.to != Offline);
    if remaining && !syncing {
        let turn = slots.iter_mut().find(|s| {
            s.from == Waiting && s.to == Waiting && s.up() && s.seen.is_some_and(|o| o.may_sync)
        });
        if let Some(s) = turn {
            s.set(Syncing, Evidence::Turn);
        }
    }
}
