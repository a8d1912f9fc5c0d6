//! The connecting side: one connection per service, kept and renewed.

use crate::{Conn, Handler};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::hello::Hello;
use glowfs_types::{HostId, NodeId, Result, Status};
use std::rc::Rc;

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
    _private: (),
}

impl Connector {
    /// A connector that introduces itself with `hello`. `handler` serves the calls that peers make over our connections.
    pub fn new(rt: &Rt, hello: Hello, handler: Rc<dyn Handler>) -> Rc<Self> {
        Self::with_options(rt, hello, handler, ConnectorOptions::default())
    }
    /// The same with settings.
    pub fn with_options(
        _rt: &Rt,
        _hello: Hello,
        _handler: Rc<dyn Handler>,
        _options: ConnectorOptions,
    ) -> Rc<Self> {
        Rc::new(Self { _private: () })
    }
    /// What later connections are told of us.
    pub fn set_hello(&self, _hello: Hello) {}
    /// The connection to the service at one of `addresses`: the cached one, or a new one. After failures it pauses before it
    /// tries again (at most a second), so callers bound it with their own deadline.
    pub async fn connect(&self, addresses: &[String]) -> Result<Rc<Conn>> {
        self.connect_to(&Target { addresses: addresses.to_vec(), ..Target::default() }).await
    }
    /// The same for a service of which more is known.
    pub async fn connect_to(&self, _target: &Target) -> Result<Rc<Conn>> {
        Err(Status::NotSupported.into())
    }
    /// Closes all connections and forgets them.
    pub fn close(&self) {}
}
