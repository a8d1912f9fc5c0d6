//! The heart of an instance: election, the watch over leases, and changes of the routing info.
//!
//! Guarantees: what is in memory is what the engine has on disk, of the epoch in which this instance is primary; one change at a time; when a change may
//! be stored and memory lacks it, this instance steps down and loads anew. Must never: hand out a change before the engine has it; act after its lease has
//! run out; let the loop that renews the lease wait for longer than one lasts, or the one that watches nodes wait for the engine.

use crate::edit::Edit;
use crate::goodbyes::Goodbyes;
use crate::routing::Turns;
use crate::state::State;
use crate::store::{Outcome, Store, Writes};
use crate::{Config, metrics::Metrics};
use glowfs_cluster::{Change, ClusterTime, Command, Election, LeaseRecord, Standing};
use glowfs_net::Connector;
use glowfs_rt::sync::{Notify, Semaphore};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::routing::TargetInfo;
use glowfs_types::{
    ChainId, ClusterId, Error, Incarnation, NodeId, Result, RoutingVersion, Status,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The greatest number of chains changed by one transaction (its size is bounded by the engine).
const CHAINS_PER_CHANGE: usize = 128;
/// The shortest pause between two looks at the primary's lease.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(20);
/// The pause after a change failed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// One instance.
pub struct Inner {
    pub rt: Rt,
    pub config: Config,
    pub cluster: ClusterId,
    pub store: Store,
    pub service_hash: [u8; 32],
    pub root_hash: [u8; 32],
    pub addresses: Vec<String>,
    pub election: RefCell<Election>,
    pub time: RefCell<ClusterTime>,
    /// Present while this instance is primary.
    pub state: RefCell<Option<State>>,
    /// The epoch whose state is being loaded.
    pub loading: Cell<Option<u64>>,
    /// How often this instance stepped down. What was being loaded then may lack a change that was stored meanwhile.
    pub stepped_down: Cell<u64>,
    /// Held by whoever changes the routing info or records: one change at a time.
    pub lock: Semaphore,
    /// The routing info changed, or this instance stepped down.
    pub changed: Notify,
    /// Who gets an answer about the routing info next.
    pub turns: Turns,
    /// Clients that end.
    pub goodbyes: Goodbyes,
    /// Ends of sessions are stored, or not.
    pub ended: Notify,
    /// There is something to settle.
    pub work: Notify,
    pub stopping: Cell<bool>,
    pub fatal: RefCell<Option<Error>>,
    pub failed: Notify,
    pub engine_ok: Cell<bool>,
    /// Why it does not, if so.
    pub engine_problem: RefCell<Option<Error>>,
    /// It was said in the log that another mgmtd has this one's node id.
    pub twin_told: Cell<bool>,
    /// Connections to the engine's host and to other instances.
    pub connector: Rc<Connector>,
    /// One life of this process, for its heartbeats as a standby.
    pub incarnation: Incarnation,
    pub started: Instant,
    pub metrics: Metrics,
}

impl Inner {
    /// Milliseconds of this instance's CLOCK_BOOTTIME.
    pub fn now_ms(&self) -> u64 {
        self.rt.now().0 / 1_000_000
    }
    /// The epoch, if this instance is primary now and knows the state.
    pub fn primary(&self) -> Result<u64> {
        self.epoch().ok_or_else(|| self.not_primary())
    }
    /// The same for who does not ask why not.
    pub fn epoch(&self) -> Option<u64> {
        let standing = self.election.borrow_mut().standing(self.now_ms());
        let known = self.state.borrow().as_ref().map(|s| s.epoch);
        match standing {
            Standing::Primary { epoch, .. } => known.filter(|known| *known == epoch),
            _ => None,
        }
    }
    fn not_primary(&self) -> Error {
        let election = self.election.borrow();
        let hint = match election.elsewhere() {
            Some(r) => format!("the primary is node {} at {}", r.holder, r.addresses.join(", ")),
            None => "no primary is known yet; try again".into(),
        };
        Error::new(Status::NotPrimary, format!("this mgmtd is a standby: {hint}"))
    }
    /// Uses the state, if this instance is primary.
    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> Result<T> {
        self.primary()?;
        match self.state.borrow_mut().as_mut() {
            Some(s) => Ok(f(s)),
            None => Err(Error::new(Status::NotPrimary, "this mgmtd has just stepped down")),
        }
    }
    /// Notes something in the state of an epoch that nobody will say again, also while the lease has run out: a renewal that was on its way may make
    /// this instance primary again, with this very state. What is loaded for another epoch is looked at as a whole.
    pub fn remember(&self, epoch: u64, f: impl FnOnce(&mut State)) {
        if let Some(s) = self.state.borrow_mut().as_mut()
            && s.epoch == epoch
        {
            f(s);
        }
    }
    /// Puts a change in force in memory that the engine took as one of `epoch`. If the lease ran out meanwhile, memory lacks what is stored.
    /// It is dropped then: a renewal that was on its way may make this instance primary again, in the same epoch.
    pub fn stored<T>(&self, epoch: u64, f: impl FnOnce(&mut State) -> T) -> Result<T> {
        let known = self.state.borrow().as_ref().map(|s| s.epoch);
        if known == Some(epoch)
            && let Ok(done) = self.with(f)
        {
            return Ok(done);
        }
        // What is loaded for a later epoch has the change.
        if known.is_none_or(|known| known == epoch) {
            self.step_down("the lease ran out while a change was being stored");
        }
        // Not `NotPrimary`: by that a caller knows that nothing was done.
        Err(Error::new(
            Status::CommitUnknown,
            "the lease of this mgmtd ran out while the change was being stored; it is stored: look before it is repeated",
        ))
    }
    /// Stops to be primary, at once.
    pub fn step_down(&self, why: &str) {
        self.stepped_down.set(self.stepped_down.get() + 1);
        self.election.borrow_mut().step_down();
        if self.state.borrow_mut().take().is_some() {
            tracing::warn!(why, "not primary any more");
        }
        self.metrics.primary.set(0);
        self.metrics.set_chains([0; 3]);
        self.changed.notify_all();
    }
    /// The same for what a change of `epoch` says; one of an epoch that is over says nothing of this one, whose state has been loaded, or is, since the change began.
    fn step_down_from(&self, epoch: u64, why: &str) {
        let known = self.state.borrow().as_ref().map(|s| s.epoch);
        match self.loading.get().or(known) {
            Some(now) if now != epoch => {
                tracing::info!(epoch, now, why, "a change of an epoch that is over");
            }
            _ => self.step_down(why),
        }
    }
    /// Ends the instance with an error that no retry can heal.
    pub fn fail(&self, e: Error) {
        tracing::error!(error = %e, "mgmtd cannot go on");
        *self.fatal.borrow_mut() = Some(e);
        self.failed.notify_all();
    }

    /// Keeps the lease, or waits for its turn.
    pub async fn elect(self: Rc<Self>) {
        let period = Duration::from_millis(self.config.timing.primary_renew_ms);
        while !self.stopping.get() && self.fatal.borrow().is_none() {
            let before = self.engine_ok.get();
            let began = self.rt.now();
            match self.elect_once().await {
                Ok(()) => {
                    self.engine_ok.set(true);
                    self.engine_problem.replace(None);
                    if !before {
                        tracing::info!("the metadata engine answers");
                    }
                }
                // No retry makes this build understand what a newer one wrote.
                Err(e) if matches!(e.status, Status::NewerFormat | Status::Corrupt) => self.fail(e),
                Err(e) => {
                    self.engine_ok.set(false);
                    // The first failure, and each of another kind: what was wrong at the start may hide what is wrong later.
                    let told = self.engine_problem.replace(Some(e.clone()));
                    if told.is_none_or(|t| t.status != e.status) {
                        tracing::warn!(error = %e, "the metadata engine does not answer");
                    }
                }
            }
            if self.primary().is_err() && self.state.borrow().is_some() {
                self.step_down("the lease ran out");
            }
            self.tell_of_twin();
            // The period counts from the beginning: a slow renewal leaves less of the lease, not more time to the next one.
            let mut next = began + period;
            if let Some(due) = self.election.borrow().due_ms() {
                // A standby looks at the very moment at which the lease has run out.
                let left = due.saturating_sub(self.now_ms());
                next = next.min(self.rt.now() + Duration::from_millis(left));
            }
            self.rt.sleep_until(next.max(self.rt.now() + RENEW_PAUSE_MIN)).await;
        }
    }

    async fn elect_once(self: &Rc<Self>) -> Result<()> {
        let began = self.now_ms();
        let limit = Duration::from_millis(self.config.timing.primary_lease_ms);
        let slow = |_| Error::new(Status::TimedOut, "the metadata engine is too slow");
        let (tx, record, mark) =
            self.rt.timeout(limit, self.store.lease()).await.map_err(slow)??;
        self.read_mark(mark);
        let command = self.election.borrow_mut().read(record.as_ref(), began, self.now_ms());
        if let Command::Write(new) = command {
            let write = self.store.put_lease(tx, record.as_ref(), (&new, self.mark()));
            let done = self.rt.timeout(limit, write).await.map_err(slow).and_then(|r| r);
            let mut election = self.election.borrow_mut();
            match done {
                Ok(()) => election.won(&new, began),
                Err(e) if matches!(e.status, Status::Conflict | Status::TooOld) => election.lost(),
                Err(e) => {
                    election.unknown(&new, began);
                    return Err(e);
                }
            }
        }
        let standing = self.election.borrow_mut().standing(self.now_ms());
        match standing {
            Standing::Primary { epoch, .. } => {
                let known = self.state.borrow().as_ref().is_some_and(|s| s.epoch == epoch);
                if !known && self.loading.get().is_none() {
                    // Beside this loop, which must renew the lease meanwhile, however long it takes.
                    self.loading.set(Some(epoch));
                    self.rt.spawn_detached(self.clone().load_as_primary(epoch));
                }
            }
            Standing::Standby if self.state.borrow().is_some() => {
                self.step_down("another instance is primary");
            }
            Standing::Standby => {}
        }
        Ok(())
    }

    async fn load_as_primary(self: Rc<Self>, epoch: u64) {
        match self.become_primary(epoch).await {
            Ok(()) => {}
            Err(e) if e.status == Status::NewerFormat => self.fail(e),
            Err(e) => tracing::warn!(error = %e, "the state could not be loaded; trying on"),
        }
        self.loading.set(None);
    }

    /// Gives the lease up, so that a standby need not wait.
    pub async fn resign(&self) {
        let Some(record) = self.election.borrow_mut().give_up(self.now_ms()) else { return };
        let give_up = async {
            let (tx, now, _) = self.store.lease().await?;
            let mine = now.as_ref().is_some_and(|n: &LeaseRecord| n.epoch == record.epoch);
            let new = (&record, self.mark());
            if mine { self.store.put_lease(tx, now.as_ref(), new).await } else { Ok(()) }
        };
        let _ = self.rt.timeout(Duration::from_millis(500), give_up).await;
        self.step_down("stopping");
    }

    /// Looks at leases and client sessions, again and again.
    pub async fn watch(self: Rc<Self>) {
        let period = Duration::from_millis(self.config.timing.scan_ms);
        while !self.stopping.get() {
            self.rt.sleep(period).await;
            let (now_ms, now_ns, own) = (self.now_ms(), self.rt.unix_ns(), self.config.node());
            let dead = self.with(|s| {
                if let Some(said) = s.said.get_mut(&own) {
                    said.last_heartbeat_ns = now_ns;
                }
                s.look_at_fences(now_ms);
                let dead = s.leases.tick(now_ms);
                for node in &dead {
                    s.touch_node(*node);
                }
                let pause = |n: &NodeId| s.leases.pause_ms(*n);
                dead.into_iter().map(|n| (n, pause(&n))).collect::<Vec<_>>()
            });
            for (node, well_for_ms) in dead.unwrap_or_default() {
                // So long it must be well before it counts again, if others serve its chains meanwhile.
                tracing::warn!(%node, well_for_ms, "node is silent: its lease ran out");
                self.metrics.deaths.inc();
                self.work.notify_all();
            }
            let busy = self.with(|s| !s.dirty_nodes.is_empty() || !s.dirty_chains.is_empty());
            if busy.unwrap_or(false) {
                self.work.notify_all();
            }
        }
    }

    /// Ends the sessions of clients that are silent, again and again. Apart from [`Inner::watch`]: this waits for the engine, and who waits there
    /// takes the silence of nodes meanwhile for its own.
    pub async fn watch_clients(self: Rc<Self>) {
        let period = Duration::from_millis(self.config.timing.scan_ms);
        while !self.stopping.get() {
            self.rt.sleep(period).await;
            self.expire_clients().await;
        }
    }

    /// Settles whenever there is something to settle.
    pub async fn settler(self: Rc<Self>) {
        while !self.stopping.get() {
            let work = self.work.wait();
            let busy = self.with(|s| !s.dirty_nodes.is_empty() || !s.dirty_chains.is_empty());
            if !busy.unwrap_or(false) {
                work.await;
                continue;
            }
            if let Err(e) = self.settle().await {
                tracing::warn!(error = %e, "the routing info could not be changed");
                self.rt.sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Decides about all that was heard before the call; returns when that is in force.
    pub async fn settle(&self) -> Result<()> {
        let _held = self.lock.acquire(1).await;
        loop {
            let now_ms = self.now_ms();
            let (epoch, planned) = self.with(|s| (s.epoch, plan_changes(s, now_ms)))?;
            let (edit, log, nodes, chains) = planned;
            let (nodes, chains) = match (nodes.is_empty(), chains.is_empty()) {
                (true, true) => return self.with(|s| s.leases.settled()),
                _ => (nodes, chains),
            };
            if let Err(e) = self.commit(edit).await {
                // Not in force: look at them again.
                self.remember(epoch, |s| {
                    s.dirty_nodes.extend(nodes);
                    s.dirty_chains.extend(chains);
                });
                return Err(e);
            }
            for (chain, c) in log {
                self.metrics.transitions.inc();
                tracing::info!(%chain, target_id = %c.target, from = %c.from, to = %c.to, why = ?c.why, "member changed");
            }
        }
    }

    /// Makes a change; the lock must be held. The copy in memory changes only after the engine has it on disk.
    pub async fn commit(&self, edit: Edit) -> Result<()> {
        if edit.is_empty() {
            return Ok(());
        }
        let (epoch, from) = self.with(|s| (s.epoch, s.version))?;
        let to = if edit.changes_routing() { from.next() } else { from };
        let writes = edit.writes(to);
        let routing = (to != from).then_some((from, to));
        if planted(Mutant::RoutingBeforeCommit) {
            self.with(|s| edit.apply(s, to, self.now_ms()))?;
            self.changed.notify_all();
            return self.write(epoch, routing, &writes).await;
        }
        self.write(epoch, routing, &writes).await?;
        self.stored(epoch, |s| edit.apply(s, to, self.now_ms()))?;
        if to != from {
            self.metrics.version.set(i64::try_from(to.0).unwrap_or(i64::MAX));
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Writes keys as the primary.
    pub async fn write(
        &self,
        epoch: u64,
        routing: Option<(RoutingVersion, RoutingVersion)>,
        writes: &Writes,
    ) -> Result<()> {
        match self.store.change(epoch, routing, writes).await? {
            Outcome::Done => Ok(()),
            Outcome::Superseded => {
                self.step_down_from(epoch, "another primary changed the records");
                Err(Error::new(Status::NotPrimary, "this mgmtd has just stepped down"))
            }
            Outcome::Unknown => {
                let why = "the metadata engine did not say whether it has the last change";
                self.step_down_from(epoch, why);
                let e = format!("{why}: look before it is repeated");
                Err(Error::new(Status::CommitUnknown, e))
            }
        }
    }
}

type Planned = (Edit, Vec<(ChainId, Change)>, BTreeSet<NodeId>, BTreeSet<ChainId>);

/// Takes what is dirty and works out what becomes of it.
fn plan_changes(s: &mut State, now_ms: u64) -> Planned {
    let nodes = std::mem::take(&mut s.dirty_nodes);
    let mut chains = BTreeSet::new();
    while chains.len() < CHAINS_PER_CHANGE {
        let Some(id) = s.dirty_chains.pop_first() else { break };
        chains.insert(id);
    }
    let mut edit = Edit::default();
    let mut log = Vec::new();
    for id in &nodes {
        if let Some(wanted) = s.wanted_node(*id)
            && s.nodes.get(id).is_none_or(|i| i.value != wanted)
        {
            edit.nodes.push(wanted);
        }
    }
    for id in &chains {
        let Some(item) = s.chains.get(id) else { continue };
        let chain = &item.value;
        let view = chain
            .info
            .members
            .iter()
            .filter_map(|m| Some((m.target, s.observation(m.target, now_ms)?)))
            .collect();
        let settled = chain.settle(&view);
        let changed = settled.is_some();
        let (next, changes) = settled.unwrap_or_else(|| (chain.clone(), Vec::new()));
        log.extend(changes.into_iter().map(|c| (*id, c)));
        for (target, record) in &next.records {
            let (Some(item), Some(seen)) = (s.targets.get(target), view.get(target)) else {
                continue;
            };
            let old = &item.value;
            if !changed && old.local == seen.local && old.incarnation == record.incarnation {
                continue;
            }
            if record.put_back && !chain.records.get(target).is_some_and(|r| r.put_back) {
                tracing::warn!(chain = %id, target_id = %target, "an older state of its disk was put back: what was acknowledged since may be missing there");
            }
            let new = TargetInfo {
                local: seen.local,
                incarnation: record.incarnation,
                nonce: record.nonce,
                adopted: seen.adopted,
                used_bytes: s.heard.get(target).map_or(old.used_bytes, |h| h.report.used_bytes),
                ..old.clone()
            };
            if new != *old {
                edit.targets.push(new);
            }
        }
        if changed {
            edit.chains.push(next);
        }
    }
    (edit, log, nodes, chains)
}
