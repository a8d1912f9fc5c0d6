//! The heartbeat loop and what it keeps: the lease, the routing info, keys of capabilities, the cluster's time.
//!
//! Guarantees: a lease counts from before its heartbeat was made, not from the answer; routing info only goes forward, and what came with an answer is in
//! force before the lease that it grants. Must never: let an answer that does not come keep the next heartbeat from being sent for longer than
//! `heartbeat_deadline`, or keep a lease when [`Agent::stop`] has begun.

use crate::contact::Contact;
use crate::time::Time;
use crate::{AgentConfig, Lease, MgmtdLink, Notify, TokenCache};
use glowfs_net::{Authenticator, Connector, NoCalls};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::routing::{NodeInfo, NodeStatus, RoutingInfo};
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{ConfigItem, GetRouting, Heartbeat, HeartbeatReply, TargetReport};
use glowfs_types::{
    CapabilityKey, ClientId, ConfigVersion, Incarnation, Result, RoutingVersion, Status, TargetId,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The shortest time between two heartbeats, so that a burst of changes makes few of them.
const HEARTBEAT_SPACING: Duration = Duration::from_millis(2);
/// The pause after mgmtd was not reached, or the one that was is not the primary.
const HEARTBEAT_RETRY: Duration = Duration::from_millis(20);
/// The pause after a routing request failed.
const ROUTING_RETRY: Duration = Duration::from_millis(100);
/// How long the leaving heartbeat may take.
const LEAVE_DEADLINE: Duration = Duration::from_millis(500);

/// What a service tells of its targets with each heartbeat.
pub trait Report {
    /// The states of its targets now. Empty for services without any.
    fn targets(&self) -> Vec<TargetReport>;
    /// Of those that it told of, these were removed from the cluster.
    fn removed(&self, _targets: &[TargetId]) {}
}

/// The report of a service without targets.
pub struct NoTargets;
impl Report for NoTargets {
    fn targets(&self) -> Vec<TargetReport> {
        Vec::new()
    }
}

type RoutingCallback = Rc<dyn Fn(&Rc<RoutingInfo>)>;
type ConfigCallback = Rc<dyn Fn(&Rc<ConfigItem>)>;

struct Inner {
    rt: Rt,
    config: AgentConfig,
    reporter: Rc<dyn Report>,
    link: Rc<MgmtdLink>,
    connector: Rc<Connector>,
    authenticator: Rc<dyn Authenticator>,
    lease: Lease,
    contact: Contact,
    time: Time,
    /// What the last heartbeat failed with, if it did.
    failing: Cell<Option<Status>>,
    incarnation: Incarnation,
    sequence: Cell<u64>,
    addresses: RefCell<Vec<String>>,
    routing: RefCell<Rc<RoutingInfo>>,
    routing_changed: Notify,
    on_routing: RefCell<Vec<RoutingCallback>>,
    keys: RefCell<Rc<BTreeMap<u32, CapabilityKey>>>,
    item: RefCell<Option<Rc<ConfigItem>>>,
    on_config: RefCell<Vec<ConfigCallback>>,
    poke: Notify,
    /// Counts answered heartbeats; `answered_poke` is the poke count that the newest of them had seen when it was built.
    answered: Notify,
    answered_poke: Cell<u64>,
    stopping: Cell<bool>,
}

/// A service's link to mgmtd. Cheap to clone.
#[derive(Clone)]
pub struct Agent(Rc<Inner>);

impl Agent {
    /// Starts the link. Returns at once; [`Agent::ready`] waits for the first answered heartbeat. Heartbeats begin when the
    /// process's addresses are known: at once if the configuration has them, else with [`Agent::announce`].
    pub fn start(rt: &Rt, config: AgentConfig, reporter: Rc<dyn Report>) -> Result<Agent> {
        config.validate()?;
        let hello = Hello {
            cluster: config.cluster,
            token: config.service_token.clone(),
            role: Some(config.role),
            node: config.node,
            client: ClientId(0),
            host: config.host,
            features: 0,
            release: config.release.clone(),
        };
        let connector =
            Connector::with_options(rt, hello, Rc::new(NoCalls), config.connector.clone());
        let link = Rc::new(MgmtdLink::new(rt, connector.clone(), config.mgmtd.clone()));
        let authenticator = Rc::new(TokenCache::new(
            rt,
            config.cluster,
            &config.service_token,
            config.token_ttl,
            link.clone(),
        ));
        let inner = Rc::new(Inner {
            rt: rt.clone(),
            reporter,
            link,
            connector,
            authenticator,
            lease: Lease::new(rt),
            contact: Contact::new(config.heartbeat_interval),
            time: Time::default(),
            failing: Cell::new(None),
            // Grows from life to life as long as the clock does not go back by more than a restart takes.
            incarnation: Incarnation(rt.unix_ns()),
            sequence: Cell::new(0),
            addresses: RefCell::new(config.addresses.clone()),
            routing: RefCell::default(),
            routing_changed: Notify::new(),
            on_routing: RefCell::default(),
            keys: RefCell::default(),
            item: RefCell::default(),
            on_config: RefCell::default(),
            poke: Notify::new(),
            answered: Notify::new(),
            answered_poke: Cell::new(0),
            stopping: Cell::new(false),
            config,
        });
        rt.spawn_detached(inner.clone().heartbeats());
        rt.spawn_detached(inner.clone().routing_watch());
        Ok(Agent(inner))
    }
    /// Says where this process listens; heartbeats carry it from now on.
    pub fn announce(&self, addresses: Vec<String>) {
        *self.0.addresses.borrow_mut() = addresses;
        self.0.poke.notify();
    }
    /// Waits for the first answered heartbeat (for ever, if mgmtd is not there; bound it with a time-out).
    pub async fn ready(&self) {
        self.0.answered.past(0).await;
    }
    /// Sends a heartbeat now, because the state of a target changed.
    pub fn report_now(&self) {
        self.0.poke.notify();
    }
    /// Sends a heartbeat now and waits until one that was built after this call is answered.
    pub async fn report_and_wait(&self) {
        self.0.poke.notify();
        let mine = self.0.poke.count();
        let mut seen = self.0.answered.count();
        while self.0.answered_poke.get() < mine && !self.0.stopping.get() {
            seen = self.0.answered.past(seen).await;
        }
    }
    /// The right to serve; ask it when a request is taken and again before it is answered.
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }
    /// Whether this process may serve now.
    pub fn lease_valid(&self) -> bool {
        self.0.lease.valid()
    }
    /// The routing info as far as it is known here (version 0: nothing yet).
    pub fn routing(&self) -> Rc<RoutingInfo> {
        self.0.routing.borrow().clone()
    }
    /// Calls `f` after every change of the routing info. `f` must not block; it may use the agent.
    pub fn on_routing_change(&self, f: impl Fn(&Rc<RoutingInfo>) + 'static) {
        self.0.on_routing.borrow_mut().push(Rc::new(f));
    }
    /// Waits until the routing info is newer than `have`.
    pub async fn routing_after(&self, have: RoutingVersion) -> Rc<RoutingInfo> {
        loop {
            let seen = self.0.routing_changed.count();
            let now = self.routing();
            if now.version > have {
                return now;
            }
            self.0.routing_changed.past(seen).await;
        }
    }
    /// The keys of capabilities by id; another map only when they are others.
    pub fn capability_keys(&self) -> Rc<BTreeMap<u32, CapabilityKey>> {
        self.0.keys.borrow().clone()
    }
    /// The key to sign with: the one with the greatest id.
    pub fn signing_key(&self) -> Option<(u32, CapabilityKey)> {
        self.0.keys.borrow().last_key_value().map(|(id, key)| (*id, key.clone()))
    }
    /// Calls `f` whenever mgmtd names a newer configuration.
    pub fn on_config_change(&self, f: impl Fn(&Rc<ConfigItem>) + 'static) {
        self.0.on_config.borrow_mut().push(Rc::new(f));
    }
    /// Decides what the token of a hello stands for. Give it to [`glowfs_net::Server`].
    pub fn authenticator(&self) -> Rc<dyn Authenticator> {
        self.0.authenticator.clone()
    }
    /// Calls mgmtd's primary.
    pub fn link(&self) -> &Rc<MgmtdLink> {
        &self.0.link
    }
    /// The cluster's time, in ns since the Unix epoch: what several services look at and that ends or is remembered for a while goes by it. As long as mgmtd has not
    /// told it (an older release does not) it is the wall clock.
    pub fn cluster_ns(&self) -> u64 {
        self.cluster_time().unwrap_or_else(|| self.0.rt.unix_ns())
    }
    /// The same, only if mgmtd told it.
    pub fn cluster_time(&self) -> Option<u64> {
        self.0.time.told(&self.0.rt)
    }
    /// What people should know of the wall clock of this machine, if it is wrong.
    pub fn clock_complaint(&self) -> Option<String> {
        self.0.time.complaint()
    }
    /// The life of this process.
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }
    /// Ends the loops without a word to mgmtd, as a crash of the process would. For tests.
    pub fn kill(&self) {
        self.0.stopping.set(true);
        self.0.lease.drop_now();
        self.0.connector.close();
        self.0.poke.notify();
        self.0.answered.notify();
    }
    /// Stops serving (the lease ends at once), tells mgmtd that the node leaves, and ends the loops. Call it when the service
    /// has finished its requests and, for storage, closed its stores.
    pub async fn stop(self) {
        let inner = &self.0;
        inner.stopping.set(true);
        inner.lease.drop_now();
        inner.poke.notify();
        inner.answered.notify();
        if !inner.addresses.borrow().is_empty() {
            let heartbeat = inner.heartbeat(true, Duration::ZERO);
            let left = inner
                .link
                .call::<_, HeartbeatReply>(method::HEARTBEAT, &heartbeat, LEAVE_DEADLINE)
                .await;
            if let Err(e) = left {
                tracing::warn!(error = %e, "mgmtd was not told that this node leaves");
            }
        }
        inner.connector.close();
    }
}

impl Inner {
    fn heartbeat(&self, leaving: bool, unanswered: Duration) -> Heartbeat {
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let config_version =
            self.item.borrow().as_ref().map_or(ConfigVersion(0), |item| item.version);
        Heartbeat {
            node: NodeInfo {
                id: self.config.node,
                role: self.config.role,
                addresses: self.addresses.borrow().clone(),
                host: self.config.host,
                hostname: self.config.hostname.clone(),
                pid: self.config.pid,
                tags: self.config.tags.clone(),
                status: NodeStatus::Active,
                last_heartbeat_ns: 0,
                config_version,
                release: self.config.release.clone(),
                http: self.config.http.clone(),
                kept_out_ms: 0,
            },
            incarnation: self.incarnation,
            sequence,
            targets: self.reporter.targets(),
            routing_version: self.routing.borrow().version,
            leaving,
            unanswered_ms: u64::try_from(unanswered.as_millis()).unwrap_or(u64::MAX),
            time_ns: Some(self.time.told(&self.rt).unwrap_or(0)),
        }
    }

    async fn heartbeats(self: Rc<Self>) {
        while !self.stopping.get() {
            let seen = self.poke.count();
            if self.addresses.borrow().is_empty() {
                self.poke.past(seen).await;
                continue;
            }
            // The lease counts from here: before the message is built, so before it is sent.
            let sent = self.rt.now();
            let heartbeat = self.heartbeat(false, self.contact.sends(sent));
            let mut beat = Box::pin(self.clone().beat(heartbeat, sent, seen));
            let interval = self.config.heartbeat_interval;
            match self.rt.timeout(interval, &mut beat).await {
                Ok(again) if again => self.rt.sleep(HEARTBEAT_RETRY).await,
                Ok(_) => {
                    self.rt.sleep_until(sent + HEARTBEAT_SPACING).await;
                    let pause = (sent + interval).since(self.rt.now());
                    let _ = self.rt.timeout(pause, self.poke.past(seen)).await;
                }
                Err(_) if self.contact.may_wait() => {
                    let me = self.clone();
                    self.rt.spawn_detached(async move {
                        beat.await;
                        me.contact.waited();
                    });
                }
                // Too many wait already: this one not for longer than a mute primary is believed to be there.
                Err(_) => {
                    let _ = self.rt.timeout(self.config.heartbeat_deadline, beat).await;
                }
            }
        }
    }

    /// One heartbeat and its answer. True if mgmtd's primary was not reached, and trying at once may help.
    async fn beat(self: Rc<Self>, heartbeat: Heartbeat, sent: Instant, seen: u64) -> bool {
        let (patience, worth) = (self.config.heartbeat_deadline, self.contact.worth());
        let answer: Result<HeartbeatReply> =
            self.link.once(method::HEARTBEAT, &heartbeat, patience, worth.max(patience)).await;
        if self.stopping.get() {
            return false;
        }
        match answer {
            Ok(reply) => {
                if self.failing.replace(None).is_some() {
                    tracing::info!("mgmtd answers heartbeats again");
                }
                let lease = Duration::from_millis(reply.lease_ms);
                self.contact.answered(sent, self.rt.now(), lease);
                self.time.answered(&self.rt, sent, (reply.time_ns, reply.wall_ns));
                // First what the cluster looks like, then the right to serve in it.
                self.take(reply);
                let from = if planted(Mutant::LeaseFromReply) { self.rt.now() } else { sent };
                self.lease.extend(from, lease);
                self.answered_poke.set(self.answered_poke.get().max(seen));
                self.answered.notify();
                false
            }
            // A later one was there first.
            Err(e)
                if e.status == Status::OldSequence && heartbeat.sequence < self.sequence.get() =>
            {
                false
            }
            Err(e) => {
                // The first, and each of another kind: nobody answers at the start, and then the token is refused.
                if self.failing.replace(Some(e.status)) != Some(e.status) {
                    tracing::warn!(error = %e, "heartbeat failed");
                }
                use Status::{Disconnected, NotPrimary, ShuttingDown, TimedOut};
                matches!(e.status, Disconnected | NotPrimary | ShuttingDown | TimedOut)
            }
        }
    }

    /// Keeps what a reply brought.
    fn take(&self, reply: HeartbeatReply) {
        if !reply.capability_keys.is_empty() {
            let keys: BTreeMap<_, _> =
                reply.capability_keys.iter().map(|(id, key)| (*id, CapabilityKey(**key))).collect();
            // Every answer brings them. Whoever remembers what they have signed sees by the map that they are the same.
            if **self.keys.borrow() != keys {
                *self.keys.borrow_mut() = Rc::new(keys);
            }
        }
        if let Some(item) = reply.config {
            let newer = self.item.borrow().as_ref().is_none_or(|have| have.version < item.version);
            if newer {
                let item = Rc::new(item);
                *self.item.borrow_mut() = Some(item.clone());
                let callbacks = self.on_config.borrow().clone();
                for f in callbacks {
                    f(&item);
                }
            }
        }
        if let Some(delta) = reply.routing {
            self.apply(delta);
        }
        if !reply.removed.is_empty() {
            self.reporter.removed(&reply.removed);
        }
    }

    /// Brings the copy of the routing info forward and tells those who watch.
    fn apply(&self, delta: RoutingInfo) {
        let before = self.routing.borrow().version;
        if delta.version <= before {
            return;
        }
        let now = {
            let mut routing = self.routing.borrow_mut();
            Rc::make_mut(&mut routing).apply(delta);
            routing.clone()
        };
        self.routing_changed.notify();
        let callbacks = self.on_routing.borrow().clone();
        for f in callbacks {
            f(&now);
        }
    }

    /// Keeps a routing request waiting at mgmtd, so that changes arrive as soon as they are made.
    async fn routing_watch(self: Rc<Self>) {
        let wait_ms = u64::try_from(self.config.routing_wait.as_millis()).unwrap_or(u64::MAX);
        while !self.stopping.get() {
            let have = self.routing.borrow().version;
            let question = GetRouting { have, wait_ms };
            let deadline = self.config.routing_wait + self.contact.worth();
            match self.link.call::<_, RoutingInfo>(method::GET_ROUTING, &question, deadline).await {
                Ok(delta) if !self.stopping.get() => self.apply(delta),
                Ok(_) => return,
                Err(_) => self.rt.sleep(ROUTING_RETRY).await,
            }
        }
    }
}
