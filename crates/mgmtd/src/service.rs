//! Starting and stopping.

use crate::Config;
use crate::api::Api;
use crate::core::Inner;
use crate::goodbyes::Goodbyes;
use crate::metrics::Metrics;
use crate::routing::Turns;
use crate::store::Store;
use crate::tokens::Tokens;
use glowfs_cluster::{Election, ElectionConfig};
use glowfs_kv::Engine;
use glowfs_net::{Connector, ConnectorOptions, NoCalls, Server, read_token_file};
use glowfs_rt::sync::{Notify, Semaphore};
use glowfs_rt::{Address, Rt};
use glowfs_telemetry::HttpServer;
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::{Hello, HelloReply, ServiceStatus};
use glowfs_types::{ClientId, Error, Incarnation, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A running instance.
pub struct Running {
    pub(crate) inner: Rc<Inner>,
    server: Server,
    http: Option<HttpServer>,
}

/// Starts an instance. It listens at once and becomes primary or standby as soon as the engine answers.
pub async fn start(rt: &Rt, config: Config) -> Result<Running> {
    start_with_engine(rt, config, None).await
}

/// The same over a given engine (tests; a process that hosts the engine itself).
pub async fn start_with_engine(
    rt: &Rt,
    config: Config,
    engine: Option<Rc<dyn Engine>>,
) -> Result<Running> {
    config.validate()?;
    let service_token = read_token_file(&config.service_token_file)?;
    let root_token = read_token_file(&config.root_token_file)?;
    if service_token == root_token {
        return Err(Error::new(
            Status::InvalidArgument,
            "service_token_file and root_token_file hold the same token, so root would be a service: give each its own",
        ));
    }
    let listen = config
        .listen
        .iter()
        .map(|a| a.parse().map_err(|e| Error::new(Status::InvalidArgument, format!("listen: {e}"))))
        .collect::<Result<Vec<Address>>>()?;
    let connector = connector(rt, &config, &service_token)?;
    let engine = match engine {
        Some(engine) => engine,
        None => {
            let name = format!("mgmtd-{}", config.node_id);
            config.engine.open(rt, config.cluster()?, &name, || connector.clone())?
        }
    };
    let tokens = Rc::new(Tokens::default());
    let api = Rc::new(Late::default());
    let info = HelloReply {
        cluster: config.cluster()?,
        role: Some(Role::Mgmtd),
        node: config.node(),
        release: glowfs_telemetry::RELEASE.to_owned(),
        ..HelloReply::default()
    };
    let server = Server::start(rt, listen, info.clone(), tokens.clone(), api.clone())?;
    let addresses: Vec<String> = server.addresses().iter().map(|a| a.to_string()).collect();
    server.set_info(HelloReply { mgmtd: addresses.clone(), ..info });
    let mut config = config;
    let http = match config.http.take() {
        None => None,
        Some(at) => {
            let at: Address = at
                .parse()
                .map_err(|e| Error::new(Status::InvalidArgument, format!("http: {e}")))?;
            let late = api.clone();
            Some(HttpServer::start(rt, &at, Rc::new(move || late.status()))?)
        }
    };
    // The real port, not the one asked for.
    config.http = http.as_ref().map(|h| h.address().to_string().replace("tcp://", ""));
    let hashes = (
        *blake3::hash(service_token.as_bytes()).as_bytes(),
        *blake3::hash(root_token.as_bytes()).as_bytes(),
    );
    let inner = Rc::new(new_inner(rt, config, (engine, connector), addresses, hashes)?);
    // Cannot be set twice: they were made above.
    let _ = tokens.0.set(inner.clone());
    let _ = api.0.set(Rc::new(Api(inner.clone())));
    rt.spawn_detached(inner.clone().elect());
    rt.spawn_detached(inner.clone().watch());
    rt.spawn_detached(inner.clone().watch_clients());
    rt.spawn_detached(inner.clone().settler());
    rt.spawn_detached(inner.clone().announce());
    rt.spawn_detached(inner.clone().repair());
    Ok(Running { inner, server, http })
}

fn new_inner(
    rt: &Rt,
    config: Config,
    (engine, connector): (Rc<dyn Engine>, Rc<Connector>),
    addresses: Vec<String>,
    (service_hash, root_hash): ([u8; 32], [u8; 32]),
) -> Result<Inner> {
    let election = Election::new(ElectionConfig {
        node: config.node(),
        life: rt.random(),
        addresses: addresses.clone(),
        lease_ms: config.timing.primary_lease_ms,
        margin_ms: config.timing.margin_ms,
        node_lease_ms: config.timing.node_lease_ms,
        renew_ms: config.timing.primary_renew_ms,
    });
    Ok(Inner {
        rt: rt.clone(),
        cluster: config.cluster()?,
        store: Store { engine },
        service_hash,
        root_hash,
        addresses,
        election: RefCell::new(election),
        time: RefCell::default(),
        state: RefCell::new(None),
        loading: Cell::new(None),
        stepped_down: Cell::new(0),
        lock: Semaphore::new(1),
        changed: Notify::new(),
        turns: Turns::default(),
        goodbyes: Goodbyes::default(),
        ended: Notify::new(),
        work: Notify::new(),
        stopping: Cell::new(false),
        fatal: RefCell::new(None),
        failed: Notify::new(),
        engine_ok: Cell::new(false),
        engine_problem: RefCell::default(),
        twin_told: Cell::new(false),
        connector,
        incarnation: Incarnation(rt.unix_ns()),
        started: rt.now(),
        metrics: Metrics::new(),
        config,
    })
}

fn connector(rt: &Rt, config: &Config, token: &str) -> Result<Rc<Connector>> {
    let hello = Hello {
        cluster: config.cluster()?,
        token: token.to_owned(),
        role: Some(Role::Mgmtd),
        node: config.node(),
        client: ClientId(0),
        host: glowfs_net::local_host_id(),
        release: glowfs_telemetry::RELEASE.to_owned(),
        ..Hello::default()
    };
    let options = ConnectorOptions::from_names(&config.transports)?;
    Ok(Connector::with_options(rt, hello, Rc::new(NoCalls), options))
}

/// Serves as soon as the instance exists: the server knows its addresses before that.
#[derive(Default)]
struct Late(std::cell::OnceCell<Rc<Api>>);

impl Late {
    fn status(&self) -> ServiceStatus {
        self.0.get().map(|api| api.0.status()).unwrap_or_default()
    }
}

impl glowfs_net::Handler for Late {
    fn handle(self: Rc<Self>, incoming: glowfs_net::Incoming) {
        match self.0.get() {
            Some(api) => api.clone().handle(incoming),
            None => incoming.reply(Err(Error::new(Status::ShuttingDown, "mgmtd is starting"))),
        }
    }
}

impl Running {
    /// Where it listens, with the real ports.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }
    /// Where health and metrics are served.
    pub fn http(&self) -> Option<&Address> {
        self.http.as_ref().map(HttpServer::address)
    }
    /// Whether it is primary now.
    pub fn is_primary(&self) -> bool {
        self.inner.epoch().is_some()
    }
    /// Whether it is primary and holds a node for dead: that node must not serve any more.
    pub fn declares_dead(&self, node: NodeId) -> bool {
        self.is_primary()
            && self.inner.state.borrow().as_ref().is_some_and(|s| !s.leases.alive(node))
    }
    /// What it is and how it is.
    pub fn status(&self) -> ServiceStatus {
        self.inner.status()
    }
    /// Resolves on a fatal error.
    pub async fn failed(&self) -> Error {
        loop {
            let failed = self.inner.failed.wait();
            if let Some(e) = &*self.inner.fatal.borrow() {
                return e.clone();
            }
            failed.await;
        }
    }
    /// Stops: gives the primary's lease up and closes.
    pub async fn stop(self) {
        self.inner.stopping.set(true);
        self.inner.resign().await;
        self.inner.work.notify_all();
        self.server.stop().await;
        self.inner.connector.close();
    }
    /// Ends it as a crash would: nothing is given up. For tests.
    pub async fn crash(self) {
        self.inner.stopping.set(true);
        self.inner.election.borrow_mut().step_down();
        self.inner.state.borrow_mut().take();
        self.inner.work.notify_all();
        self.server.stop().await;
    }
}
