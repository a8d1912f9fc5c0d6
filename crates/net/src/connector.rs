//! The connecting side: one connection per service, kept and renewed.

use crate::dial::Dial;
use crate::limits::{CONNECTOR_ENTRIES_MAX, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN};
use crate::waiters::Waiters;
use crate::{Conn, Handler};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::wire::hello::Hello;
use glowfs_types::{Error, HostId, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
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
    /// How long memory is kept from reuse that was shared with a peer whose end of the connection has closed ([`crate::limits::QUARANTINE`]).
    pub quarantine: Duration,
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
            quarantine: crate::limits::QUARANTINE,
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
    dial: Rc<Dial>,
    /// Counts how often all connections were ended.
    round: Cell<u64>,
    this: Weak<Connector>,
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

/// What becomes of an attempt whose connection nobody may use.
fn closed(result: Result<Rc<Conn>>) -> Error {
    match result {
        Ok(conn) => {
            conn.close();
            Error::new(Status::Disconnected, "the connections were closed while this one was made")
        }
        Err(e) => e,
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
        Rc::new_cyclic(|this| Self {
            rt: rt.clone(),
            dial: Dial::new(rt, hello, handler, options),
            round: Cell::new(0),
            this: this.clone(),
            entries: RefCell::default(),
            closed: Cell::new(false),
        })
    }
    /// What later connections are told of us.
    pub fn set_hello(&self, hello: Hello) {
        *self.dial.hello.borrow_mut() = hello;
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
        let (rt, dial, this) = (self.rt.clone(), self.dial.clone(), self.this.clone());
        let (target, round) = (target.clone(), self.round.get());
        let not_before = self.entries.borrow().get(&target).map(|e| e.not_before);
        // It goes on when the caller's time is up: the address that answers may be the last one of the list.
        let attempt = self.rt.spawn(async move {
            if let Some(at) = not_before.filter(|&at| at > rt.now()) {
                rt.sleep_until(at).await;
            }
            let result = dial.attempt(&target).await;
            match this.upgrade() {
                Some(connector) => connector.remember(&target, round, result),
                None => Err(closed(result)),
            }
        });
        attempt.await
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

    /// Ends an attempt: what came of it is there for all who wait.
    fn remember(
        &self,
        target: &Target,
        round: u64,
        mut result: Result<Rc<Conn>>,
    ) -> Result<Rc<Conn>> {
        if self.closed.get() || self.round.get() != round {
            // What the service was told of us does not hold any more, or nobody wants it.
            result = Err(closed(result));
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
            entry.busy = false;
            entry.waiters.wake();
        }
        result
    }

    /// Closes all connections and forgets them, for good.
    pub fn close(&self) {
        self.closed.set(true);
        self.disconnect();
    }

    /// Closes all connections; later calls connect anew, with the hello of then.
    pub fn disconnect(&self) {
        self.round.set(self.round.get() + 1);
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
