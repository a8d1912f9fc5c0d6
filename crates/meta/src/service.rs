//! A metadata service: its start, the dispatch of calls to [`crate::ops`], its stop.
//!
//! Guarantees: calls of the file system are answered only by a service that is ready and has its lease, both when the call comes and when its answer
//! leaves; the engine is served from the start on, for mgmtd needs it before there is a lease. No more than `inflight_ops` calls are in work, those left
//! out that only wait, and of nobody more than he leaves free ([`Shares`]); nobody's calls keep the thread from others ([`Fair`]). Must never: end before the engine is flushed and closed; how long calls and mgmtd may hold that up is bounded ([`Running::stop`]).

use crate::append::AskedBack;
use crate::background;
use crate::callbacks::Peers;
use crate::config::MetaConfig;
use crate::cuts_ended::CutsEnded;
use crate::cuts_under_way::CutsUnderWay;
use crate::engine;
use crate::fair::Fair;
use crate::finishing::Finishing;
use crate::fought::Fought;
use crate::held::{self, Held};
use crate::ids::{IdKind, Ids};
use crate::leases::Leases;
use crate::locks::LockWaits;
use crate::metrics::Metrics;
use crate::ops;
use crate::orphans::Orphans;
use crate::pace::Pace;
use crate::reopen::Listed;
use crate::spills::Spills;
use crate::state::{Asker, Service, VOLUME, ms};
use crate::telling::Telling;
use crate::together::Together;
use crate::users::Users;
use glowfs_agent::{Agent, AgentConfig, NoTargets};
use glowfs_client::{Client, ClientConfig};
use glowfs_kv::serve::KvService;
use glowfs_kv::{Embedded, RunOptions, dump, run_transaction_with};
use glowfs_namespace::{Context, RootSpec, bootstrap};
use glowfs_net::{
    ConnectorOptions, Handler, Incoming, Reply, Server, ServerOptions, Transport, local_host_id,
    read_token_file,
};
use glowfs_rt::sync::Shares;
use glowfs_rt::{Address, Duration, Instant, Rt};
use glowfs_telemetry::{HttpServer, RELEASE};
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::{HelloReply, ServiceStatus};
use glowfs_types::wire::meta::Caller;
use glowfs_types::wire::method;
use glowfs_types::{ChainTableId, Error, Layout, Redundancy, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Pause between attempts to get ready.
const READY_PAUSE: Duration = Duration::from_millis(100);
/// How long a stop waits for calls in work.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A metadata service that runs.
pub struct Running {
    service: Rc<Service>,
    server: Rc<Server>,
    embedded: Option<Embedded>,
    http: Option<HttpServer>,
}

/// Starts a metadata service: opens the engine, joins the cluster, serves. Returns when it listens; it answers KV_* from then on, and
/// file system calls once mgmtd has answered its heartbeat.
pub async fn start(rt: &Rt, config: MetaConfig) -> Result<Running> {
    config.validate()?;
    let token = read_token_file(&config.service_token_file)?;
    let options = ConnectorOptions::from_names(&config.transports)?;
    let (engine, embedded) = engine::open(rt, &config, &token, &options).await?;
    let agent = start_agent(rt, &config, &token, options)?;
    let client = Client::start(rt, client_config(&config, &token)?)?;
    let metrics = Metrics::new();
    let apart = embedded.is_none();
    let together = apart.then(|| Together::new(rt, engine.clone(), metrics.together()));
    let service = Rc::new_cyclic(|own| Service {
        own: own.clone(),
        rt: rt.clone(),
        engine: engine.clone(),
        users: Users::new(rt, agent.link().clone()),
        agent,
        chunks: client.chunk_io(),
        inode_ids: Ids::new(IdKind::Inode),
        data_ids: Ids::new(IdKind::Data),
        metrics,
        ready: Cell::new(false),
        fatal: RefCell::default(),
        stopping: Cell::new(false),
        inflight: Shares::new(usize::try_from(config.tuning.inflight_ops).unwrap_or(usize::MAX)),
        fair: Fair::new(rt),
        orphans: Orphans::default(),
        gc_pace: Pace::new(rt.now()),
        leases: RefCell::new(Leases::new(ms(config.tuning.attr_lease_ms), rt.now())),
        telling: Telling::default(),
        finishing: Finishing::default(),
        fought: RefCell::new(Fought::default()),
        lock_waits: LockWaits::default(),
        asked_back: AskedBack::default(),
        together,
        spills: Spills::new(),
        cuts: CutsUnderWay::default(),
        cuts_ended: CutsEnded::default(),
        listed: Listed::default(),
        held: Held::new(),
        started: rt.now(),
        peers: RefCell::default(),
        space: RefCell::default(),
        space_of: RefCell::default(),
        config,
    });
    let kv = embedded.as_ref().map(|_| KvService::new(rt, engine));
    let (engine, started) = (embedded.clone(), rt.now());
    let handler = Rc::new(MetaHandler { service: service.clone(), kv, engine, started });
    let server = Rc::new(listen(&service, handler.clone())?);
    *service.peers.borrow_mut() = Some(Peers::new(&server));
    let addresses = server.addresses().iter().map(Address::to_string).collect();
    service.agent.announce(addresses);
    let http = match &service.config.http {
        Some(address) => {
            let address: Address = address.parse().map_err(|e| {
                Error::new(Status::InvalidArgument, format!("meta configuration: http: {e}"))
            })?;
            Some(HttpServer::start(rt, &address, Rc::new(move || handler.status()))?)
        }
        None => None,
    };
    let task = service.clone();
    rt.spawn_detached(async move { get_ready(&task).await });
    background::start(&service);
    rt.spawn_detached(held::watch(service.clone(), embedded.clone()));
    Ok(Running { service, server, embedded, http })
}

fn start_agent(
    rt: &Rt,
    config: &MetaConfig,
    token: &str,
    connector: ConnectorOptions,
) -> Result<Agent> {
    let base = AgentConfig::new(
        config.cluster()?,
        Role::Meta,
        config.node(),
        config.mgmtd.clone(),
        token.to_owned(),
    );
    let agent =
        AgentConfig { tags: config.tags.clone(), http: config.http.clone(), connector, ..base };
    Agent::start(rt, agent, Rc::new(NoTargets))
}

fn client_config(config: &MetaConfig, token: &str) -> Result<ClientConfig> {
    Ok(ClientConfig {
        mgmtd: config.mgmtd.clone(),
        token: token.to_owned(),
        role: Role::Meta,
        description: "garbage collection and lengths".into(),
        cluster: config.cluster()?,
        node: config.node(),
        host: local_host_id(),
        pid: glowfs_rt::process::pid(),
        transports: config.transports.clone(),
        session: false,
        data_total: Duration::from_secs(20),
        ..ClientConfig::default()
    })
}

fn listen(s: &Rc<Service>, handler: Rc<MetaHandler>) -> Result<Server> {
    let mut addresses = Vec::new();
    for a in &s.config.listen {
        let a = a.parse::<Address>();
        addresses.push(a.map_err(|e| Error::new(Status::InvalidArgument, format!("listen: {e}")))?);
    }
    let info = HelloReply {
        cluster: s.config.cluster()?,
        role: Some(Role::Meta),
        node: s.config.node(),
        release: RELEASE.to_owned(),
        mgmtd: s.config.mgmtd.clone(),
        ..HelloReply::default()
    };
    let transports = ConnectorOptions::from_names(&s.config.transports)?.transports;
    let options =
        ServerOptions { shm: transports.contains(&Transport::Shm), ..ServerOptions::default() };
    Server::start_with(&s.rt, addresses, info, s.agent.authenticator(), handler, options)
}

/// Makes the root directory and fetches the first ids, however long mgmtd and the engine take.
async fn get_ready(s: &Rc<Service>) {
    s.agent.ready().await;
    let mut said = false;
    while !s.stopping.get() {
        match prepare(s).await {
            Ok(()) => {
                s.ready.set(true);
                tracing::info!(node = %s.config.node(), "metadata service is ready");
                return;
            }
            // No retry makes this build understand what a newer one wrote, or mends what is there.
            Err(error) if matches!(error.status, Status::NewerFormat | Status::Corrupt) => {
                *s.fatal.borrow_mut() = Some(error);
                return;
            }
            Err(error) => {
                if !said {
                    tracing::warn!(%error, "metadata service is not ready yet");
                    said = true;
                }
                s.rt.sleep(READY_PAUSE).await;
            }
        }
    }
}

async fn prepare(s: &Rc<Service>) -> Result<()> {
    let root = &s.config.root;
    let layout = Layout {
        table: ChainTableId(root.table),
        table_version: 0,
        chunk_bytes: root.chunk_bytes,
        stripe: root.stripe,
        start: 0,
        redundancy: Redundancy::Replicated,
        durability: root.durability.into(),
        inline_bytes: root.inline_bytes,
    };
    let spec = RootSpec { mode: root.mode, uid: root.uid, gid: root.gid, layout };
    let caller = Caller { volume: VOLUME, ..Caller::default() };
    let options = RunOptions { idempotent: true, ..RunOptions::durable() };
    let work = async |tx: &glowfs_kv::Transaction| {
        dump::check_whole(tx).await?;
        bootstrap(&Context::new(tx, &caller, &**s), &spec).await
    };
    run_transaction_with(&s.rt, &s.engine, options, work).await?;
    s.look_at_contents().await?;
    if s.inode_ids.take().is_err() {
        s.inode_ids.fetch(&s.rt, &s.engine, VOLUME).await?;
    }
    if s.data_ids.take().is_err() {
        s.data_ids.fetch(&s.rt, &s.engine, VOLUME).await?;
    }
    Ok(())
}

struct MetaHandler {
    service: Rc<Service>,
    kv: Option<KvService>,
    engine: Option<Embedded>,
    started: Instant,
}

impl MetaHandler {
    fn status(&self) -> ServiceStatus {
        let s = &self.service;
        let (healthy, detail) = match s.check() {
            Ok(()) => (true, String::new()),
            Err(e) => (false, e.message),
        };
        let engine = self.engine.as_ref().map(Embedded::stats).unwrap_or_default();
        let room = match (engine.full, engine.short) {
            (true, _) => Some("the disk of the metadata engine is full: nothing can be changed"),
            (_, true) => {
                Some("the disk of the metadata engine is nearly full: what needs room is refused")
            }
            _ => None,
        };
        let healthy = healthy && !engine.full;
        let said = [Some(detail), room.map(str::to_owned), s.agent.clock_complaint()];
        let said = said.into_iter().flatten();
        let detail = said.filter(|d| !d.is_empty()).collect::<Vec<_>>().join("; ");
        ServiceStatus {
            role: Some(Role::Meta),
            node: s.config.node(),
            pid: glowfs_rt::process::pid(),
            release: RELEASE.to_owned(),
            healthy,
            detail,
            uptime_ns: u64::try_from(s.rt.now().since(self.started).as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Service {
    /// Whether file system calls can be answered now.
    fn check(&self) -> Result<()> {
        if self.stopping.get() {
            return Err(Error::new(Status::ShuttingDown, "the metadata service is stopping"));
        }
        self.agent.lease().check()?;
        if !self.ready.get() {
            return Err(Error::new(Status::Overloaded, "the metadata service is starting; retry"));
        }
        Ok(())
    }
}

impl Handler for MetaHandler {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let m = incoming.method();
        match &self.kv {
            Some(kv) if KvService::takes(m) => return kv.handle(incoming),
            _ => {}
        }
        let s = self.service.clone();
        match m {
            method::SERVICE_STATUS => return incoming.reply(Ok(Reply::msg(&self.status()))),
            method::ECHO => {
                let body = incoming.body().to_vec();
                return incoming.reply(Ok(Reply::body(body)));
            }
            m if !ops::takes(m) => {
                let e = format!("method {} ({m}) is not served by meta", method::name(m));
                return incoming.reply(Err(Error::new(Status::UnknownMethod, e)));
            }
            _ => {}
        }
        if let Err(e) = s.check() {
            return incoming.reply(Err(e));
        }
        let who = Asker::of(incoming.conn());
        let Some(place) = s.inflight.take(who) else {
            s.metrics.refused.inc();
            let e = "the metadata service has too many calls in work; retry";
            return incoming.reply(Err(Error::new(Status::Overloaded, e)));
        };
        let rt = s.rt.clone();
        rt.spawn_detached(async move {
            let begin = s.rt.now();
            let work = ops::answer(&s, m, incoming.conn(), incoming.body(), place);
            let mut result = s.fair.run(who, work).await;
            // The lease may have ended during the work: then somebody else may rule already.
            if let (Ok(_), Err(e)) = (&result, s.agent.lease().check()) {
                result = Err(e);
            }
            incoming.reply(result);
            let nanos = u64::try_from(s.rt.now().since(begin).as_nanos()).unwrap_or(u64::MAX);
            s.metrics.record(m, nanos);
        });
    }
}

impl Running {
    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }
    /// Where health and metrics are served, if anywhere.
    pub fn http(&self) -> Option<&Address> {
        self.http.as_ref().map(HttpServer::address)
    }
    /// Resolves when the service cannot go on: the engine has stopped taking commits, or what is in it is of a newer build or not whole.
    pub async fn failed(&self) -> Error {
        loop {
            if let Some(e) = self.service.fatal.borrow().clone() {
                return e;
            }
            if let Some(e) = self.embedded.as_ref().and_then(Embedded::failure) {
                return e;
            }
            self.service.rt.sleep(ms(200)).await;
        }
    }
    /// Stops gracefully: refuses new work, lets calls in work end (bounded), tells mgmtd, flushes and closes the engine.
    pub async fn stop(self) -> Result<()> {
        let s = self.service.clone();
        s.stopping.set(true);
        let end = s.rt.now() + STOP_GRACE;
        while s.inflight.taken() > 0 && s.rt.now() < end {
            s.rt.sleep(ms(5)).await;
        }
        // Bounded: with mgmtd gone there is nobody to tell.
        let _ = s.rt.timeout(STOP_GRACE, s.agent.clone().stop()).await;
        if let Ok(server) = Rc::try_unwrap(self.server) {
            server.stop().await;
        }
        s.chunks.client().close().await;
        match &self.embedded {
            Some(engine) => engine.close().await,
            None => Ok(()),
        }
    }
}
