//! Which mgmtd is primary: a lease kept in the key-value engine.
//!
//! The record has an *epoch*, which every transaction of a primary compares, and a *renewal* counter. Clocks of two instances are
//! never compared: a standby watches the record, and when it has not changed for the lease and a margin of the standby's own
//! time, it writes the next epoch. A primary counts from the moment it *began* the transaction that renewed, and steps down when that
//! is a lease ago, whatever it still hopes to hear.
//!
//! The record also says for how long nodes may have been granted leases, by this primary or by one before: instances may be configured otherwise, and one
//! that grants shorter leases must not take a node for dead that still has a long one ([`Election::overlap_ms`]). When those of before are
//! over, the primary records its own.

use glowfs_types::NodeId;
use glowfs_types::mutant::{Mutant, planted};

/// What stands in the engine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaseRecord {
    /// The primary; 0 if it gave the lease up.
    pub holder: NodeId,
    /// One life of that primary.
    pub life: u64,
    /// Grows with every change of the primary.
    pub epoch: u64,
    /// Grows with every renewal.
    pub renewal: u64,
    /// How long it lives without a renewal, in ms.
    pub lease_ms: u64,
    /// Where the primary listens.
    pub addresses: Vec<String>,
    /// The longest lease that a node may have, granted in this epoch or before, in ms; 0: not known (records of builds that did not note it).
    pub node_lease_ms: u64,
}

/// Settings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElectionConfig {
    /// This instance.
    pub node: NodeId,
    /// This life of it.
    pub life: u64,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// How long a primary may act after a renewal, in ms.
    pub lease_ms: u64,
    /// How much longer a standby waits, in ms.
    pub margin_ms: u64,
    /// The lease that this instance grants nodes, in ms.
    pub node_lease_ms: u64,
    /// The time between two renewals, in ms.
    pub renew_ms: u64,
}

/// An earlier life of this instance that listened elsewhere is taken for gone when it was silent for so many renewals. (One that listened at the same
/// place is gone: two processes cannot.)
const SILENT_RENEWALS: u64 = 2;
/// A record of our node id that was written again so often while we watched is of a process that lives. (One write may have been on its way.)
const TWIN_WRITES: u32 = 2;

/// What this instance is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// Not primary.
    Standby,
    /// Primary of an epoch until a moment (ms of its own clock), unless it renews.
    Primary {
        /// The epoch, compared by every transaction.
        epoch: u64,
        /// When it must stop to act.
        until_ms: u64,
    },
}

/// What to do next with the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Write this, if the record is still what was read.
    Write(LeaseRecord),
    /// Nothing; look again later.
    Wait,
}

/// The election as one instance sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Election {
    config: ElectionConfig,
    standing: Standing,
    seen: Option<LeaseRecord>,
    seen_since_ms: u64,
    /// For how long after the last claim an earlier life of this instance may still believe to be primary, in ms.
    overlap_ms: u64,
    /// How much longer than those that this instance grants leases of nodes may be that were granted before its epoch, in ms.
    longer_ms: u64,
    /// The epoch in which it leads, and when it first saw that recorded, in ms.
    leads: Option<(u64, u64)>,
    /// What was written with an unknown outcome, and when that began.
    tried: Option<(LeaseRecord, u64)>,
    /// The greatest epoch that this life has won.
    claimed: u64,
    /// How often in a row the record was written again by one other life with our node id.
    rewritten: u32,
    /// The record is that of another process with our node id, which lives.
    twin: bool,
    /// It gave the lease up: whatever it still hears of what it wrote before, it is not primary any more.
    gave_up: bool,
}

impl Election {
    /// A standby.
    pub fn new(config: ElectionConfig) -> Self {
        Self {
            config,
            standing: Standing::Standby,
            seen: None,
            seen_since_ms: 0,
            overlap_ms: 0,
            longer_ms: 0,
            leads: None,
            tried: None,
            claimed: 0,
            rewritten: 0,
            twin: false,
            gave_up: false,
        }
    }
    /// What this instance is at `now_ms`. A lease that ran out is gone, unless a renewal that was on its way is found to be stored:
    /// then it goes on in the same epoch, for nobody else can have been primary. What it missed between is for its owner to know.
    pub fn standing(&mut self, now_ms: u64) -> Standing {
        if let Standing::Primary { until_ms, .. } = self.standing
            && now_ms >= until_ms
            && !planted(Mutant::PrimaryOutlivesLease)
        {
            self.standing = Standing::Standby;
        }
        self.standing
    }
    /// The newest record that was read, for redirects.
    pub fn seen(&self) -> Option<&LeaseRecord> {
        self.seen.as_ref()
    }
    /// The newest record, if another process holds the lease.
    pub fn elsewhere(&self) -> Option<&LeaseRecord> {
        let other = |r: &&LeaseRecord| r.holder != NodeId(0) && r.holder != self.config.node;
        self.seen.as_ref().filter(|r| self.twin || other(r))
    }
    /// The newest record, if another process with our own node id holds the lease.
    pub fn twin(&self) -> Option<&LeaseRecord> {
        self.seen.as_ref().filter(|_| self.twin)
    }
    /// How long ago, in ms, the record last changed as far as this instance saw: a sign of life of its holder.
    pub fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.seen_since_ms)
    }
    /// How long a holder must have been silent before its lease is over for certain, in ms. What the record says comes from outside: at most for ever.
    fn silence_ms(&self, r: &LeaseRecord) -> u64 {
        r.lease_ms.saturating_add(self.config.margin_ms)
    }
    /// When, on its own clock, a standby may claim the lease if it sees no renewal until then.
    pub fn due_ms(&self) -> Option<u64> {
        let held = self.seen.as_ref().filter(|r| r.holder != NodeId(0))?;
        let standby = self.standing == Standing::Standby;
        standby.then_some(self.silence_ms(held).saturating_add(self.seen_since_ms))
    }
    /// How much longer than a lease that it grants this primary must wait before it declares anybody dead, in ms: until the primary before has stopped
    /// to grant leases, and those are over.
    pub fn overlap_ms(&self) -> u64 {
        self.overlap_ms.saturating_add(self.longer_ms)
    }
    /// The record was read as `record` (`None`: absent) by a transaction that began at `began_ms` and whose answer came at
    /// `now_ms`: what to write in it. What was read may be as old as the beginning and as new as the answer; so silence
    /// counts from the answer that first showed a record to the beginning of the transaction that still showed it.
    pub fn read(&mut self, record: Option<&LeaseRecord>, began_ms: u64, now_ms: u64) -> Command {
        self.standing(now_ms);
        if let Some((tried, began)) = self.tried.take()
            && record == Some(&tried)
        {
            // The write whose outcome was not known did happen.
            self.won(&tried, began);
            self.standing(now_ms);
        }
        self.look_for_twin(record);
        if self.seen.as_ref() != record {
            self.seen = record.cloned();
            self.seen_since_ms = now_ms;
        }
        if self.gave_up {
            return Command::Wait;
        }
        let mine = record.is_some_and(|r| self.is_mine(r));
        match (self.standing, record) {
            (Standing::Primary { epoch, .. }, Some(r)) if mine && r.epoch == epoch => {
                let leads = self.leads.filter(|l| l.0 == epoch).unwrap_or((epoch, now_ms));
                self.leads = Some(leads);
                let over_ms = (leads.1 + self.config.margin_ms)
                    .saturating_add(self.overlap_ms)
                    .saturating_add(r.node_lease_ms);
                let own = self.config.node_lease_ms;
                let node_lease_ms = if began_ms >= over_ms { own } else { r.node_lease_ms };
                Command::Write(LeaseRecord { renewal: r.renewal + 1, node_lease_ms, ..r.clone() })
            }
            (Standing::Primary { .. }, _) => {
                self.standing = Standing::Standby;
                Command::Wait
            }
            (Standing::Standby, None) => Command::Write(self.claim(0, 0)),
            (Standing::Standby, Some(r)) => {
                let free = r.holder == NodeId(0);
                let silent_ms = began_ms.saturating_sub(self.seen_since_ms);
                let expired = silent_ms >= self.silence_ms(r);
                // An earlier life of this very instance: its process is gone.
                let own_past = self.of_our_id(r)
                    && !self.twin
                    && (r.addresses == self.config.addresses
                        || silent_ms >= SILENT_RENEWALS * self.config.renew_ms);
                self.overlap_ms =
                    if own_past && !free && !expired { self.silence_ms(r) } else { 0 };
                self.longer_ms = r.node_lease_ms.saturating_sub(self.config.node_lease_ms);
                if free || own_past || mine || expired {
                    Command::Write(self.claim(r.epoch, r.node_lease_ms))
                } else {
                    Command::Wait
                }
            }
        }
    }
    fn is_mine(&self, r: &LeaseRecord) -> bool {
        r.holder == self.config.node && r.life == self.config.life
    }
    /// Whether a record is of another life with our node id.
    fn of_our_id(&self, r: &LeaseRecord) -> bool {
        r.holder == self.config.node && r.life != self.config.life
    }
    /// Another life with our id that writes while we watch, or after us, is no former one: our id was given twice. Whoever is not primary then waits as for
    /// anybody else's lease, or the two would take it from each other for ever.
    fn look_for_twin(&mut self, record: Option<&LeaseRecord>) {
        let Some(r) = record.filter(|r| self.of_our_id(r)) else {
            (self.rewritten, self.twin) = (0, false);
            return;
        };
        match &self.seen {
            Some(seen) if seen == r => {}
            Some(seen) if seen.life == r.life && self.of_our_id(seen) => self.rewritten += 1,
            _ => self.rewritten = 0,
        }
        let after_us = self.claimed > 0 && r.epoch > self.claimed;
        self.twin = after_us || self.rewritten >= TWIN_WRITES;
    }
    fn claim(&self, epoch: u64, node_lease_ms: u64) -> LeaseRecord {
        LeaseRecord {
            holder: self.config.node,
            life: self.config.life,
            epoch: epoch + 1,
            renewal: 0,
            lease_ms: self.config.lease_ms,
            addresses: self.config.addresses.clone(),
            node_lease_ms: node_lease_ms.max(self.config.node_lease_ms),
        }
    }
    /// The write of `record`, whose transaction began at `began_ms`, was committed.
    pub fn won(&mut self, record: &LeaseRecord, began_ms: u64) {
        self.tried = None;
        self.twin = false;
        self.claimed = self.claimed.max(record.epoch);
        self.seen = Some(record.clone());
        self.seen_since_ms = began_ms;
        if self.gave_up {
            // A renewal that was on its way: others may be primary by now.
            return;
        }
        self.standing =
            Standing::Primary { epoch: record.epoch, until_ms: began_ms + self.config.lease_ms };
    }
    /// The write certainly did not happen (conflict). Who is primary shows the next read.
    pub fn lost(&mut self) {
        self.tried = None;
    }
    /// It is not known whether the write happened.
    pub fn unknown(&mut self, record: &LeaseRecord, began_ms: u64) {
        self.tried = Some((record.clone(), began_ms));
    }
    /// A transaction found another epoch: step down at once.
    pub fn step_down(&mut self) {
        self.standing = Standing::Standby;
    }
    /// The record to write in order to give the lease up, if it is held. This life is never primary again.
    pub fn give_up(&mut self, now_ms: u64) -> Option<LeaseRecord> {
        self.gave_up = true;
        let Standing::Primary { .. } = self.standing(now_ms) else { return None };
        self.standing = Standing::Standby;
        let held = self.seen.clone()?;
        Some(LeaseRecord {
            holder: NodeId(0),
            renewal: held.renewal + 1,
            addresses: Vec::new(),
            ..held
        })
    }
    /// For model checkers, to which two states are one if they differ only in when they are and in how epochs and renewals are counted: shows all moments (of this
    /// instance's clock, in ms) and all records and epochs that are remembered, to be put in other words. What can have no effect any more while `stored` is what stands
    /// in the engine is forgotten: how long another record, or one of our own, has stood (who claims by another one fails); since when it leads (read only where leases of
    /// nodes differ in length); that it was primary, after `now_ms` is past its lease.
    pub fn reword(
        &mut self,
        (stored, now_ms): (Option<&LeaseRecord>, u64),
        moment: &mut dyn FnMut(&mut u64),
        record: &mut dyn FnMut(&mut LeaseRecord),
        epoch: &mut dyn FnMut(&mut u64),
    ) {
        self.standing(now_ms);
        if let Standing::Primary { epoch: leads, until_ms } = &mut self.standing {
            epoch(leads);
            moment(until_ms);
        }
        if self.seen.as_ref() != stored || self.seen.as_ref().is_none_or(|r| self.is_mine(r)) {
            self.seen_since_ms = 0;
        } else {
            moment(&mut self.seen_since_ms);
        }
        self.seen.iter_mut().for_each(&mut *record);
        if let Some((tried, began_ms)) = &mut self.tried {
            record(tried);
            moment(began_ms);
        }
        if self.claimed > 0 {
            epoch(&mut self.claimed);
        }
        self.leads = None;
        self.rewritten = self.rewritten.min(TWIN_WRITES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(node: u64) -> Election {
        Election::new(ElectionConfig {
            node: NodeId(node),
            life: 1,
            addresses: Vec::new(),
            lease_ms: 700,
            margin_ms: 200,
            node_lease_ms: 1500,
            renew_ms: 200,
        })
    }
    fn write(e: &mut Election, record: Option<&LeaseRecord>, at_ms: u64) -> LeaseRecord {
        match e.read(record, at_ms, at_ms) {
            Command::Write(new) => new,
            Command::Wait => panic!("nothing to write"),
        }
    }

    /// Times of a damaged record, or of a far newer release, are as long as they say: nobody takes over early.
    #[test]
    fn times_of_a_record_are_waited_for_however_long_they_are() {
        let first = write(&mut election(1), None, 1000);
        for forever in [u64::MAX, u64::MAX - 100] {
            let mut two = election(2);
            let held = LeaseRecord { lease_ms: forever, node_lease_ms: forever, ..first.clone() };
            assert!(matches!(two.read(Some(&held), 0, 0), Command::Wait));
            assert!(matches!(two.read(Some(&held), 1 << 40, 1 << 40), Command::Wait), "{forever}");
            assert_eq!(two.due_ms(), Some(u64::MAX));
        }
    }

    /// Its last renewal was stored, and it has not heard so yet: it gives the lease up, another one takes it, and then the answer is there.
    #[test]
    fn who_gave_the_lease_up_is_not_primary_again_by_a_renewal_from_before() {
        let (mut one, mut two) = (election(1), election(2));
        let first = write(&mut one, None, 1000);
        one.won(&first, 1000);
        let renewed = write(&mut one, Some(&first), 1200);
        let given_up = one.give_up(1210).expect("it held the lease");
        let next = write(&mut two, Some(&given_up), 1220);
        two.won(&next, 1220);
        assert!(matches!(two.standing(1230), Standing::Primary { epoch: 2, .. }));
        one.won(&renewed, 1200);
        assert_eq!(one.standing(1230), Standing::Standby, "two primaries");
        // Nor by one of which it did not hear what became of it.
        one.unknown(&renewed, 1200);
        assert_eq!(one.read(Some(&renewed), 1240, 1240), Command::Wait);
        assert_eq!(one.standing(1240), Standing::Standby);
    }
}
