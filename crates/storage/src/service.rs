//! Starting and stopping.

use crate::StorageConfig;
use crate::disk::{Disk, close_untouched};
use crate::lanes::Lanes;
use crate::node::Node;
use crate::report::Reporter;
use crate::serve::Service;
use glowfs_agent::{Agent, AgentConfig};
use glowfs_chunkstore::Store;
use glowfs_net::{ConnectorOptions, Server, local_host_id, local_hostname, read_token_file};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Address, Duration, Rt};
use glowfs_telemetry::HttpServer;
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::wire::hello::{Hello, HelloReply};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{RegisterStores, RegisterStoresReply, StoreOffer};
use glowfs_types::{ClusterId, Error, Result, Status};
use std::rc::Rc;

/// The pause before the stores are registered again after a failure.
const REGISTER_PAUSE: Duration = Duration::from_millis(50);
/// How long one registration may take.
const REGISTER_DEADLINE: Duration = Duration::from_secs(2);
/// How long a stopping service lets requests in work finish.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// How long the stores of a stopping service may take to close, all at once. With the other bounds this fits into the time that the process has.
const CLOSE_DEADLINE: Duration = Duration::from_secs(6);

/// A storage service that runs.
pub struct Running {
    node: Rc<Node>,
    server: Server,
    http: Option<HttpServer>,
    addresses: Vec<Address>,
}

/// Starts a storage service: opens or formats the stores, joins the cluster, serves. Returns when it listens; it serves chunks
/// as soon as mgmtd gave it a lease.
pub async fn start(rt: &Rt, config: StorageConfig) -> Result<Running> {
    config.validate()?;
    let token = read_token_file(&config.service_token_file)?;
    let cluster = config.cluster()?;
    let mut disks = Vec::new();
    for (i, path) in config.disks.iter().enumerate() {
        match Disk::open(rt, i as u32, path, config.store()?).await {
            Ok(disk) => disks.push(disk),
            Err(e) => {
                for store in disks.iter().filter_map(|d| d.store().ok()) {
                    close_untouched(&store).await;
                }
                return Err(e);
            }
        }
    }
    if let Some(problem) =
        disks.iter().all(|d| d.store().is_err()).then(|| disks[0].problem()).flatten()
    {
        return Err(problem.context("no disk could be opened"));
    }
    let stores: Vec<Store> = disks.iter().filter_map(|d| d.store().ok()).collect();
    let started = serve(rt, config, (cluster, token), disks);
    if started.is_err() {
        // A port that is taken, say: nobody was served.
        for store in &stores {
            close_untouched(store).await;
        }
    }
    started
}

/// The service over its disks.
fn serve(
    rt: &Rt,
    config: StorageConfig,
    (cluster, token): (ClusterId, String),
    disks: Vec<Disk>,
) -> Result<Running> {
    let options = ConnectorOptions::from_names(&config.transports)?;
    let node = Node::new(rt, config, disks)?;
    let config = &node.config;
    let hello = Hello {
        cluster,
        token: token.clone(),
        role: Some(Role::Storage),
        node: config.node(),
        host: local_host_id(),
        release: glowfs_telemetry::RELEASE.to_owned(),
        ..Hello::default()
    };
    let _ = node.lanes.set(Lanes::new(rt, hello, options.clone()));
    let http = start_http(rt, &node)?;
    let mut agent_config =
        AgentConfig::new(cluster, Role::Storage, config.node(), config.mgmtd.clone(), token);
    agent_config.tags = config.tags.clone();
    agent_config.http = http.as_ref().map(|h| http_address(h.address()));
    agent_config.connector = options;
    let agent = Agent::start(rt, agent_config, Rc::new(Reporter(node.clone())))?;
    let _ = node.agent.set(agent.clone());
    let server = start_server(rt, &node, &agent).inspect_err(|_| {
        node.stopping.set(true);
        agent.kill();
    })?;
    let addresses = server.addresses().to_vec();
    watch(&node, &agent);
    rt.spawn_detached(node.clone().watch_successors());
    rt.spawn_detached(node.clone().forget_old_channels());
    let announced = addresses.iter().map(|a| a.to_string()).collect();
    let register = register(node.clone(), agent.clone());
    rt.spawn_detached(async move {
        register.await;
        agent.announce(announced);
    });
    tracing::info!(node = config.node_id, ?addresses, "storage service listens");
    Ok(Running { node, server, http, addresses })
}

fn http_address(address: &Address) -> String {
    let text = address.to_string();
    text.strip_prefix("tcp://").unwrap_or(&text).to_owned()
}

fn start_http(rt: &Rt, node: &Rc<Node>) -> Result<Option<HttpServer>> {
    let Some(text) = &node.config.http else { return Ok(None) };
    let address: Address = text.parse().map_err(|e| {
        Error::new(Status::InvalidArgument, format!("storage configuration: http: {e}"))
    })?;
    let status = Rc::downgrade(node);
    let status = move || status.upgrade().map(|n| n.status()).unwrap_or_default();
    HttpServer::start(rt, &address, Rc::new(status)).map(Some)
}

fn start_server(rt: &Rt, node: &Rc<Node>, agent: &Agent) -> Result<Server> {
    let mut listen = Vec::new();
    for text in &node.config.listen {
        listen.push(text.parse().map_err(|e| {
            Error::new(Status::InvalidArgument, format!("storage configuration: listen: {e}"))
        })?);
    }
    let info = HelloReply {
        cluster: node.config.cluster()?,
        role: Some(Role::Storage),
        node: node.config.node(),
        release: glowfs_telemetry::RELEASE.to_owned(),
        mgmtd: node.config.mgmtd.clone(),
        ..HelloReply::default()
    };
    let service = Rc::new(Service(node.clone()));
    Server::start(rt, listen, info, agent.authenticator(), service)
}

/// Follows the routing info and the health of the stores.
fn watch(node: &Rc<Node>, agent: &Agent) {
    let weak = Rc::downgrade(node);
    agent.on_routing_change(move |routing| {
        if let Some(node) = weak.upgrade() {
            node.routing_changed(routing);
        }
    });
    let weak = Rc::downgrade(node);
    agent.on_config_change(move |item| {
        if let Some(node) = weak.upgrade() {
            node.tune(item);
        }
    });
    for disk in &node.disks {
        if let Ok(store) = disk.store() {
            node.watch_store(disk, &store);
        }
    }
}

/// Offers the stores of the disks that work to mgmtd until it took them.
pub(crate) async fn register(node: Rc<Node>, agent: Agent) {
    let mut said = false;
    while !node.stopping.get() {
        // Anew each time: a disk may fail, or be replaced, while this tries.
        let stores = node.disks.iter().filter_map(|d| {
            let store = d.store().ok().filter(|s| s.failure().is_none())?;
            let capacity_bytes = store.space().total_bytes;
            Some(StoreOffer { store: store.id(), disk_index: d.index, capacity_bytes })
        });
        let offer = RegisterStores {
            node: node.config.node(),
            stores: stores.collect(),
            incarnation: agent.incarnation(),
            hostname: local_hostname(),
        };
        let call = agent.link().call::<_, RegisterStoresReply>(
            method::REGISTER_STORES,
            &offer,
            REGISTER_DEADLINE,
        );
        match call.await {
            Ok(reply) => return node.refuse(reply.refused).await,
            Err(e) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(error = %e, "mgmtd did not take the stores yet; trying on");
                }
                node.rt.sleep(REGISTER_PAUSE).await;
            }
        }
    }
}

impl Running {
    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
    /// Where health and metrics are served.
    pub fn http(&self) -> Option<&Address> {
        self.http.as_ref().map(|h| h.address())
    }
    /// Whether it may serve now.
    pub fn lease_valid(&self) -> bool {
        self.node.agent.get().is_some_and(Agent::lease_valid)
    }
    /// The cluster's time, if mgmtd told it, in ns.
    pub fn cluster_time(&self) -> Option<u64> {
        self.node.agent.get().and_then(Agent::cluster_time)
    }
    /// What it knows of the cluster (version 0: nothing yet).
    pub fn routing(&self) -> Rc<RoutingInfo> {
        self.node.agent.get().map(Agent::routing).unwrap_or_default()
    }
    /// Resolves when the service cannot go on: every disk has failed.
    pub async fn failed(&self) -> Error {
        loop {
            // One that fails may be replaced before the last one does.
            let mut works = self.node.disks.iter().filter_map(|d| d.store().ok());
            match works.find(|s| s.failure().is_none()) {
                Some(store) => drop(store.failed().await),
                None => break,
            }
        }
        match self.node.disks.iter().rev().find_map(|d| d.problem()) {
            Some(e) => e.context("every disk has failed"),
            None => std::future::pending().await,
        }
    }
    /// Stops gracefully: lets requests in work finish, closes the stores, tells mgmtd.
    pub async fn stop(self) -> Result<()> {
        let node = &self.node;
        node.stopping.set(true);
        let end = node.rt.now() + DRAIN_DEADLINE;
        while node.admission.ops() > 0 && node.rt.now() < end {
            node.rt.sleep(Duration::from_millis(5)).await;
        }
        node.say_last_words().await;
        self.server.stop().await;
        let closed = join_all(node.disks.iter().map(|d| close(&node.rt, d))).await;
        if let Some(agent) = node.agent() {
            agent.clone().stop().await;
        }
        if let Some(lanes) = node.lanes.get() {
            lanes.close();
        }
        drop(self.http);
        closed.into_iter().collect()
    }
}

/// Closes the store of a disk. One that hangs must not keep those of the others from being closed cleanly.
async fn close(rt: &Rt, disk: &Disk) -> Result<()> {
    let Ok(store) = disk.store() else { return Ok(()) };
    let late =
        |_| Err(Error::new(Status::TimedOut, format!("not closed within {CLOSE_DEADLINE:?}")));
    let closed = rt.timeout(CLOSE_DEADLINE, store.close()).await.unwrap_or_else(late);
    closed.map_err(|e| e.context(format_args!("disk {}", disk.path))).inspect_err(|e| {
        tracing::warn!(error = %e, "a store was not closed cleanly; it is recovered when it is opened");
    })
}
