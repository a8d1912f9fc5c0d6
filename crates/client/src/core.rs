//! What the parts of one client share: connections, routing info, bounds.

use crate::channel::ChannelPool;
use crate::closes::CloseQueue;
use crate::config::ClientConfig;
use crate::file::Files;
use crate::flush::Flushes;
use crate::hedge::Hedger;
use crate::opens::Opens;
use crate::owner::Owners;
use crate::retry::{Policy, Retry};
use crate::silent::SilentMetas;
use crate::{RecallHandler, recall};
use glowfs_net::{Conn, Connector, ConnectorOptions, Target};
use glowfs_rt::sync::{Acquire, Either, Notify, Semaphore, select};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::limits::UPDATE_TRIED_MAX_MS;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::hello::{Hello, HelloReply, features};
use glowfs_types::{ClientId, Error, HostId, NodeId, Result, RoutingVersion, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long a node that did not answer is asked last.
const SUSPECT: Duration = Duration::from_secs(1);

/// The shared state of one client.
pub(crate) struct Core {
    pub rt: Rt,
    pub config: ClientConfig,
    /// This life of the client; another one begins when the cluster has declared the last one dead.
    id: Cell<ClientId>,
    pub started_ns: u64,
    pub connector: Rc<Connector>,
    pub routing: RefCell<Rc<RoutingInfo>>,
    /// When the request was sent whose answer last confirmed the routing info.
    pub confirmed: Cell<Option<Instant>>,
    pub stale: Cell<Duration>,
    /// The routing info or its age changed.
    pub changed: Notify,
    /// Somebody needs news from mgmtd sooner than the poll would bring them.
    pub wanted: Notify,
    pub primary: RefCell<Option<Target>>,
    pub hello: RefCell<Option<HelloReply>>,
    pub link_problem: RefCell<Option<Error>>,
    /// The metadata service that was used last for what need not go to an owner.
    pub meta_node: Cell<Option<NodeId>>,
    pub owners: RefCell<Option<Owners>>,
    silent_metas: RefCell<SilentMetas>,
    suspects: RefCell<BTreeMap<NodeId, Instant>>,
    /// The connections of late, with the version of the routing info that they were found by.
    near: RefCell<BTreeMap<NodeId, (RoutingVersion, Rc<Conn>)>>,
    pub channels: Rc<ChannelPool>,
    pub bytes: Semaphore,
    pub hedger: RefCell<Hedger>,
    pub flushes: Flushes,
    /// How often writes of ours were found to be lost before they were durable.
    pub losses: Cell<u64>,
    pub files: Files,
    pub opens: Opens,
    pub closes: CloseQueue,
    pub recall: RefCell<Option<Rc<dyn RecallHandler>>>,
    /// A service said that our session has ended.
    pub doubted: Notify,
    /// mgmtd has opened our session.
    pub registered: Cell<bool>,
    pub closed: Cell<bool>,
}

impl Core {
    pub fn new(rt: &Rt, config: ClientConfig) -> Result<Rc<Self>> {
        if config.mgmtd.is_empty() {
            return Err(Error::new(
                Status::InvalidArgument,
                "no address of a mgmtd service is given; set `mgmtd = [\"tcp://HOST:PORT\"]`",
            ));
        }
        let options = ConnectorOptions::from_names(&config.transports)?;
        let id = ClientId(rt.random_u128());
        let hello = hello(&config, id);
        Ok(Rc::new_cyclic(|core| Self {
            rt: rt.clone(),
            id: Cell::new(id),
            started_ns: rt.unix_ns(),
            connector: Connector::with_options(
                rt,
                hello,
                recall::handler(rt, core.clone()),
                options,
            ),
            routing: RefCell::default(),
            confirmed: Cell::new(None),
            stale: Cell::new(config.routing_stale),
            changed: Notify::default(),
            wanted: Notify::default(),
            primary: RefCell::default(),
            hello: RefCell::default(),
            link_problem: RefCell::default(),
            meta_node: Cell::new(None),
            owners: RefCell::default(),
            silent_metas: RefCell::default(),
            suspects: RefCell::default(),
            near: RefCell::default(),
            channels: ChannelPool::new(config.channels),
            bytes: Semaphore::new(config.inflight_bytes.max(1)),
            hedger: RefCell::new(Hedger::new(config.hedge_min, config.read_attempt / 2)),
            flushes: Flushes::default(),
            losses: Cell::new(0),
            files: Files::default(),
            opens: Opens::default(),
            closes: CloseQueue::default(),
            recall: RefCell::default(),
            doubted: Notify::default(),
            registered: Cell::new(false),
            closed: Cell::new(false),
            config,
        }))
    }

    /// This life of the client.
    pub fn id(&self) -> ClientId {
        self.id.get()
    }
    /// The cluster has declared this client dead (it was paused or cut off for too long): it goes on as a new one. Files that were open
    /// for writing stay dead: others may have gone on with them.
    pub fn be_reborn(&self) {
        let id = ClientId(self.rt.random_u128());
        tracing::warn!(old = %self.id(), new = %id, "the cluster ended this client's session; going on as a new client");
        self.id.set(id);
        self.registered.set(false);
        self.connector.set_hello(hello(&self.config, id));
        self.connector.disconnect();
    }

    pub fn meta_policy(&self) -> Policy {
        self.policy(self.config.meta_attempt, self.config.meta_total)
    }
    pub fn read_policy(&self) -> Policy {
        self.policy(self.config.read_attempt, self.config.data_total)
    }
    pub fn write_policy(&self) -> Policy {
        let most = Duration::from_millis(UPDATE_TRIED_MAX_MS);
        self.policy(self.config.write_attempt, self.config.data_total.min(most))
    }
    fn policy(&self, attempt: Duration, total: Duration) -> Policy {
        Policy {
            attempt,
            total,
            backoff_min: self.config.backoff_min,
            backoff_max: self.config.backoff_max,
        }
    }

    /// Room for so many bytes on their way. Held for an attempt and not over pauses, or a chain that is away would hold all others up; and never while a channel is
    /// waited for, since those who have one wait for room.
    pub fn room(&self, bytes: usize) -> Acquire {
        self.bytes.acquire(bytes.min(self.config.inflight_bytes.max(1)))
    }

    /// A new call that may be retried.
    pub fn retry(&self, policy: Policy) -> Retry {
        Retry::new(policy, self.rt.turn_began())
    }

    /// The routing info, if it is fresh enough to act on.
    pub fn fresh(&self) -> Option<Rc<RoutingInfo>> {
        let age = self.rt.now().since(self.confirmed.get()?);
        (age <= self.stale.get()).then(|| self.routing.borrow().clone())
    }

    /// Fresh routing info, if it is here.
    pub fn routing_now(&self) -> Option<Rc<RoutingInfo>> {
        if self.closed.get() { None } else { self.fresh() }
    }
    /// Fresh routing info; waits for it at most for `bound`.
    pub async fn routing(&self, bound: Duration) -> Result<Rc<RoutingInfo>> {
        let until = self.rt.now() + bound;
        loop {
            if self.closed.get() {
                return Err(Error::new(Status::ShuttingDown, "this client is closed"));
            }
            if let Some(info) = self.fresh() {
                return Ok(info);
            }
            let left = until.since(self.rt.now());
            if left.is_zero() {
                return Err(self.no_routing(bound));
            }
            let news = self.changed.wait();
            self.wanted.notify_all();
            let _ = self.rt.timeout(left, news).await;
        }
    }

    /// Waits until mgmtd knows this life of the client, at most as long as a call to meta may take. Meta asks the clients that mgmtd knows before it gives up
    /// what a file holds, so nothing is opened before.
    pub async fn known_to_mgmtd(&self) -> Result<()> {
        let known = || self.registered.get() || !self.config.session;
        if known() {
            return Ok(());
        }
        let until = self.rt.now() + self.config.meta_total;
        loop {
            let news = self.changed.wait();
            if self.closed.get() {
                return Err(Error::new(Status::ShuttingDown, "this client is closed"));
            }
            if known() {
                return Ok(());
            }
            let left = until.since(self.rt.now());
            if left.is_zero() {
                return Err(self.no_session());
            }
            let _ = self.rt.timeout(left, news).await;
        }
    }
    fn no_session(&self) -> Error {
        let problem = self.link_problem.borrow();
        let why = problem.as_ref().map_or_else(String::new, |e| format!(": {e}"));
        let e = format!("mgmtd does not open a session for this client{why}");
        Error::new(Status::Disconnected, e)
    }

    fn no_routing(&self, bound: Duration) -> Error {
        let problem = self.link_problem.borrow();
        let why = problem.as_ref().map_or_else(|| "no answer yet".to_owned(), ToString::to_string);
        Error::new(
            Status::Disconnected,
            format!(
                "no fresh routing info from mgmtd for {:.1} s (asked {}): {why}",
                bound.as_secs_f64(),
                self.config.mgmtd.join(", ")
            ),
        )
    }

    /// A pause before another attempt; ends early when newer routing info than `than` is here.
    pub async fn pause(&self, pause: Duration, than: RoutingVersion) {
        if self.routing.borrow().version > than {
            // News since the failed attempt: act on them at once, but let others run.
            self.rt.yield_now().await;
            return;
        }
        self.wanted.notify_all();
        let mut sleep = Box::pin(self.rt.sleep(pause));
        loop {
            let news = self.changed.wait();
            match select(&mut sleep, news).await {
                Either::Left(()) => return,
                Either::Right(()) if self.routing.borrow().version > than || self.closed.get() => {
                    return;
                }
                Either::Right(()) => {}
            }
        }
    }

    /// The connection to a node, if it is the one that the last question for this version of the routing info had for an answer. (Finding it
    /// by its addresses costs more than a small message.)
    pub fn conn_now(&self, info: &RoutingInfo, node: NodeId) -> Option<Rc<Conn>> {
        let near = self.near.borrow();
        let (version, conn) = near.get(&node)?;
        let good = *version == info.version && !conn.is_closed() && !self.closed.get();
        good.then(|| conn.clone())
    }
    /// The connection to a node of the routing info, and its name for errors.
    pub async fn conn(
        &self,
        info: &RoutingInfo,
        node: NodeId,
        bound: Duration,
    ) -> Result<Rc<Conn>> {
        if self.closed.get() {
            return Err(Error::new(Status::ShuttingDown, "this client is closed"));
        }
        let n = info.nodes.get(&node).ok_or_else(|| {
            Error::new(
                Status::NoTarget,
                format!("node {node} is not in routing info version {}", info.version),
            )
        })?;
        let target = Target {
            addresses: n.addresses.clone(),
            host: (n.host != HostId(0)).then_some(n.host),
            node: Some(node),
        };
        match self.rt.timeout(bound, self.connector.connect_to(&target)).await {
            Ok(Ok(conn)) => {
                let mut near = self.near.borrow_mut();
                near.retain(|_, (version, _)| *version == info.version);
                near.insert(node, (info.version, conn.clone()));
                Ok(conn)
            }
            // The cluster has declared this client dead, and it will soon know: calls go on under its new life.
            Ok(Err(e)) if e.status == Status::SessionEnded => {
                self.doubted.notify_all();
                Err(Error::new(Status::Disconnected, e.message))
            }
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Error::new(
                Status::Disconnected,
                format!(
                    "{} does not accept a connection within {:.1} s",
                    n.addresses.join(", "),
                    bound.as_secs_f64()
                ),
            )),
        }
    }

    /// Notes that a node did not answer.
    pub fn suspect(&self, node: NodeId) {
        self.suspects.borrow_mut().insert(node, self.rt.now() + SUSPECT);
    }
    /// Whether a node did not answer a moment ago.
    pub fn is_suspect(&self, node: NodeId) -> bool {
        let mut suspects = self.suspects.borrow_mut();
        if suspects.is_empty() {
            return false;
        }
        let now = self.rt.now();
        match suspects.get(&node) {
            Some(until) if *until > now => true,
            Some(_) => {
                suspects.remove(&node);
                false
            }
            None => false,
        }
    }
    /// Notes that a metadata service did not answer. It is no owner before it does; only a client with a session looks whether that is so.
    pub fn silent_meta(&self, node: NodeId) {
        if self.config.session {
            self.silent_metas.borrow_mut().fell_silent(node, self.rt.now());
        }
    }
    /// Whether a metadata service is better not asked for anything now: it would be waited for.
    pub fn avoids_meta(&self, node: NodeId) -> bool {
        self.is_suspect(node) || self.silent_metas.borrow().is_silent(node)
    }
    /// Whether it did not answer, and it is time to look whether it does.
    pub fn is_meta_to_be_asked(&self, node: NodeId) -> bool {
        self.silent_metas.borrow().is_to_be_asked(node, self.rt.now())
    }
    /// It does.
    pub fn meta_answers(&self, node: NodeId) {
        self.silent_metas.borrow_mut().answered(node, self.rt.now());
    }
    /// Takes an error of an attempt at `node` into account.
    pub fn blame(&self, node: NodeId, error: &Error) {
        if matches!(error.status, Status::TimedOut | Status::Disconnected) {
            self.suspect(node);
        }
    }

    /// Ends everything; waiting calls fail.
    pub fn shut(&self) {
        self.closed.set(true);
        self.near.borrow_mut().clear();
        self.changed.notify_all();
        self.wanted.notify_all();
        self.connector.close();
    }
}

fn hello(config: &ClientConfig, id: ClientId) -> Hello {
    Hello {
        cluster: config.cluster,
        token: config.token.clone(),
        role: Some(config.role),
        node: config.node,
        client: id,
        host: config.host,
        features: features::SHM,
        release: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
