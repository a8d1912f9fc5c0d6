//! The connecting side: one connection per service, kept and renewed.

use crate::limits::{CONNECTOR_ENTRIES_MAX, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN};
use crate::waiters::Waiters;
use crate::{Conn, Handler, handshake};
use glowfs_rt::{Address, Duration, Instant, Rt, Stream};
use glowfs_types::wire::hello::{Hello, features};
use glowfs_types::{Error, HostId, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// A way to talk to a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// A Unix socket, bulk inline.
    Unix,
    /// A Unix socket, bulk through shared memory.
    Shm,
}

impl std::str::FromStr for Transport {
    type Err = glowfs_types::Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "tcp" => Ok(Self::Tcp),
            "unix" => Ok(Self::Unix),
            "shm" => Ok(Self::Shm),
            _ => Err(glowfs_types::Error::new(
                Status::InvalidArgument,
                format!("transport «{s}» is not known; choose from tcp, unix, shm"),
            )),
        }
    }
}

/// Settings of a connector.
#[derive(Clone, Debug)]
pub struct ConnectorOptions {
    /// What may be used. `Shm` is used where it can be, `Unix` before `Tcp`.
    pub transports: Vec<Transport>,
    /// The time one address has to connect and answer the hello.
    pub connect_deadline: Duration,
}

impl ConnectorOptions {
    /// Settings from the `transports` list of a configuration file; an empty one means «all».
    pub fn from_names(transports: &[String]) -> Result<Self> {
        let mut options = Self::default();
        if !transports.is_empty() {
            options.transports = transports.iter().map(|t| t.parse()).collect::<Result<_>>()?;
        }
        Ok(options)
    }
}

impl Default for ConnectorOptions {
    fn default() -> Self {
        Self {
            transports: vec![Transport::Shm, Transport::Unix, Transport::Tcp],
            connect_deadline: crate::limits::HANDSHAKE_DEADLINE,
        }
    }
}

/// A service to connect to. A path of a Unix socket means something on its own host only, so whoever knows the host or the
/// node should say so: then another node that listens on the same path elsewhere is never taken for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Target {
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its host: Unix sockets are tried only if it is ours.
    pub host: Option<HostId>,
    /// Its node id: a service that says it is another one is refused.
    pub node: Option<NodeId>,
}

/// Connects, and remembers the connections.
pub struct Connector {
    rt: Rt,
    hello: RefCell<Hello>,
    handler: Rc<dyn Handler>,
    options: ConnectorOptions,
    entries: RefCell<BTreeMap<Target, Entry>>,
    closed: Cell<bool>,
}

#[derive(Default)]
struct Entry {
    conn: Option<Rc<Conn>>,
    /// Somebody is connecting; the others wait for the outcome.
    busy: bool,
    waiters: Rc<Waiters>,
    /// How the last attempt failed; those who waited for it get the same answer.
    failure: Option<Error>,
    /// The pause before the next attempt, and when it may begin.
    pause: Duration,
    not_before: Instant,
}

/// Gives the right to connect up, whatever happens to the attempt.
struct Attempt<'a> {
    connector: &'a Connector,
    target: &'a Target,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut entries = self.connector.entries.borrow_mut();
        if let Some(entry) = entries.get_mut(self.target) {
            entry.busy = false;
            entry.waiters.wake();
        }
    }
}

impl Connector {
    /// A connector that introduces itself with `hello`. `handler` serves the calls that peers make over our connections.
    pub fn new(rt: &Rt, hello: Hello, handler: Rc<dyn Handler>) -> Rc<Self> {
        Self::with_options(rt, hello, handler, ConnectorOptions::default())
    }
    /// The same with settings.
    pub fn with_options(
        rt: &Rt,
        hello: Hello,
        handler: Rc<dyn Handler>,
        options: ConnectorOptions,
    ) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            hello: RefCell::new(hello),
            handler,
            options,
            entries: RefCell::default(),
            closed: Cell::new(false),
        })
    }
    /// What later connections are told of us.
    pub fn set_hello(&self, hello: Hello) {
        *self.hello.borrow_mut() = hello;
    }
    /// The connection to the service at one of `addresses`: the cached one, or a new one. After failures it pauses before it
    /// tries again (at most a second), so callers bound it with their own deadline.
    pub async fn connect(&self, addresses: &[String]) -> Result<Rc<Conn>> {
        self.connect_to(&Target { addresses: addresses.to_vec(), ..Target::default() }).await
    }
    /// The same for a service of which more is known.
    pub async fn connect_to(&self, target: &Target) -> Result<Rc<Conn>> {
        loop {
            if self.closed.get() {
                return Err(Error::new(Status::Disconnected, "this connector was closed"));
            }
            if let Some(conn) = self.cached(target) {
                return Ok(conn);
            }
            if self.claim(target)? {
                break;
            }
            if let Some(failure) = self.wait(target).await {
                return Err(failure);
            }
        }
        let _attempt = Attempt { connector: self, target };
        let not_before = self.entries.borrow().get(target).map(|e| e.not_before);
        if let Some(at) = not_before.filter(|&at| at > self.rt.now()) {
            self.rt.sleep_until(at).await;
        }
        let result = self.attempt(target).await;
        self.remember(target, result)
    }

    fn cached(&self, target: &Target) -> Option<Rc<Conn>> {
        let entries = self.entries.borrow();
        entries.get(target)?.conn.clone().filter(|conn| !conn.is_closed())
    }

    /// Whether the caller is the one to connect.
    fn claim(&self, target: &Target) -> Result<bool> {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= CONNECTOR_ENTRIES_MAX && !entries.contains_key(target) {
            entries.retain(|_, e| e.busy || e.conn.as_ref().is_some_and(|c| !c.is_closed()));
            if entries.len() >= CONNECTOR_ENTRIES_MAX {
                let what = format!("{CONNECTOR_ENTRIES_MAX} connections are open");
                return Err(Error::new(Status::Overloaded, what));
            }
        }
        let entry = entries.entry(target.clone()).or_default();
        if entry.busy {
            return Ok(false);
        }
        entry.busy = true;
        entry.failure = None;
        Ok(true)
    }

    /// Waits for the attempt of another task; how it failed.
    async fn wait(&self, target: &Target) -> Option<Error> {
        poll_fn(|cx| match self.entries.borrow().get(target) {
            Some(entry) if entry.busy => {
                entry.waiters.register(cx);
                Poll::Pending
            }
            Some(entry) => Poll::Ready(entry.failure.clone()),
            None => Poll::Ready(None),
        })
        .await
    }

    fn remember(&self, target: &Target, result: Result<Rc<Conn>>) -> Result<Rc<Conn>> {
        if self.closed.get()
            && let Ok(conn) = &result
        {
            conn.close();
        }
        let jitter = self.rt.random_below(1000) as u32;
        let now = self.rt.now();
        if let Some(entry) = self.entries.borrow_mut().get_mut(target) {
            match &result {
                Ok(conn) => {
                    entry.conn = Some(conn.clone());
                    // A service that accepts and breaks at once is paced too.
                    entry.pause = Duration::ZERO;
                    entry.not_before = now + RECONNECT_PAUSE_MIN;
                }
                Err(e) => {
                    entry.conn = None;
                    entry.failure = Some(e.clone());
                    entry.pause = (entry.pause * 2).clamp(RECONNECT_PAUSE_MIN, RECONNECT_PAUSE_MAX);
                    entry.not_before = now + entry.pause / 2 + entry.pause * jitter / 2000;
                }
            }
        }
        result
    }

    /// Tries the addresses, the best first.
    async fn attempt(&self, target: &Target) -> Result<Rc<Conn>> {
        let mut failures = Vec::new();
        let mut status = Status::Disconnected;
        for address in self.candidates(target, &mut failures) {
            let deadline = self.options.connect_deadline;
            let outcome = match self.rt.timeout(deadline, self.one(&address, target)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::new(Status::TimedOut, format!("no answer in {deadline:?}"))),
            };
            match outcome {
                Ok(conn) => return Ok(conn),
                Err(e) => {
                    // What the service itself said tells more than that another address cannot be reached.
                    if !matches!(e.status, Status::Disconnected | Status::TimedOut) {
                        status = e.status;
                    }
                    failures.push(format!("{address}: {}", e.message));
                }
            }
        }
        if failures.is_empty() {
            failures.push("no address that the configured transports can use".into());
        }
        Err(Error::new(status, format!("cannot connect: {}", failures.join("; "))))
    }

    /// Unix sockets first, where they may be used, then the others in their order.
    fn candidates(&self, target: &Target, failures: &mut Vec<String>) -> Vec<Address> {
        let may = |t: Transport| self.options.transports.contains(&t);
        let own_host = self.hello.borrow().host;
        let same_host = target.host.is_none_or(|h| h == own_host && h != HostId::default());
        let mut unix = Vec::new();
        let mut tcp = Vec::new();
        for text in &target.addresses {
            match text.parse() {
                Ok(address @ Address::Unix(_)) => {
                    if same_host && (may(Transport::Unix) || may(Transport::Shm)) {
                        unix.push(address);
                    }
                }
                Ok(address) if may(Transport::Tcp) => tcp.push(address),
                Ok(_) => {}
                Err(e) => failures.push(e.to_string()),
            }
        }
        unix.extend(tcp);
        unix
    }

    async fn one(&self, address: &Address, target: &Target) -> Result<Rc<Conn>> {
        let stream = self
            .rt
            .connect(address)
            .await
            .map_err(|e| Error::new(Status::Disconnected, e.to_string()))?;
        let guard = Unfinished(Some(stream.clone()));
        let mut hello = self.hello.borrow().clone();
        hello.features =
            if self.options.transports.contains(&Transport::Shm) { features::SHM } else { 0 };
        if hello.release.is_empty() {
            hello.release = glowfs_telemetry::RELEASE.into();
        }
        let (inbound, peer) = handshake::connect(&self.rt, stream, &hello).await?;
        if let Some(node) = target.node
            && peer.node != node
        {
            let what = format!("is node {}, not node {node}", peer.node);
            return Err(Error::new(Status::Disconnected, what));
        }
        guard.finish();
        Ok(Conn::start(&self.rt, inbound, peer, self.handler.clone()))
    }

    /// Closes all connections and forgets them, for good.
    pub fn close(&self) {
        self.closed.set(true);
        self.disconnect();
    }

    /// Closes all connections; later calls connect anew, with the hello of then.
    pub fn disconnect(&self) {
        let conns: Vec<_> =
            self.entries.borrow_mut().values_mut().filter_map(|e| e.conn.take()).collect();
        conns.into_iter().for_each(|conn| conn.close());
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.close();
    }
}

/// Shuts a stream down whose handshake failed or was given up.
struct Unfinished(Option<Stream>);

impl Unfinished {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.shutdown();
        }
    }
}
