//! A cluster of shipped services in one world: starting, stopping, crashing, and asking it.

pub use super::shape::Shape;
use super::watch::Watch;
use crate::world::{SimNode, World};
use glowfs_client::{Client, ClientConfig};
use glowfs_kv::EngineConfig;
use glowfs_mgmtd as mgmtd;
use glowfs_rt::{Duration, Rt};
use glowfs_types::routing::{PublicState, Role, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{CreateTable, CreateTableReply};
use glowfs_types::{ChainTableId, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

const PORT: u16 = 7000;
/// How often a storage service is started that finds no sound disk, and the pause between: longer than faults last.
const STARTS_MAX: u32 = 20;
const START_PAUSE: Duration = Duration::from_secs(1);
/// What services show.
pub const SERVICE_TOKEN: &str = "service-token-of-the-simulated-cluster";
/// What the clients show.
pub const ROOT_TOKEN: &str = "root-token-of-the-simulated-cluster";
/// The directory of a storage service.
pub const DISK: &str = "/disk0";
/// The cluster's id.
pub const CLUSTER: &str = "0123456789abcdef0123456789abcdef";
/// The time between two looks at what must always hold.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Bytes in a chunk of the cluster's files, where nothing else is said: the smallest.
pub const CHUNK_BYTES: u32 = 64 << 10;

/// How long clients try.
const TRIED: Duration = Duration::from_secs(900);
/// The log of a disk: so small that checkpoints come often.
const LOG_BYTES: u64 = 2 << 20;

/// One service of the cluster.
#[derive(Clone)]
pub struct Service {
    /// Its node.
    pub node: SimNode,
    /// What it does.
    pub role: Role,
    id: u64,
}

impl Service {
    /// Its node id.
    pub fn id(&self) -> NodeId {
        NodeId(self.id)
    }
    /// Turns bits over in all blocks that the first disk of a storage node holds of chunks; in how many.
    pub fn damage_chunks(&self) -> u64 {
        let disk = self.node.disk("/disk0");
        let mut flipped = 0;
        for (name, len) in disk.files() {
            if name.starts_with("log") || name.starts_with("blocks") {
                for block in 0..len / 4096 {
                    flipped += u64::from(disk.flip(&name, block * 4096 + 1000));
                }
            }
        }
        flipped
    }
}

/// See the module.
pub struct Cluster {
    /// The world it is in.
    pub world: World,
    /// Cluster managers.
    pub managers: Vec<Service>,
    /// Metadata services; the first one hosts the engine.
    pub metas: Vec<Service>,
    /// Storage services.
    pub storages: Vec<Service>,
    /// Client nodes.
    pub clients: Vec<SimNode>,
    shape: Shape,
    tuning: glowfs_meta::Tuning,
    tokens: Tokens,
    /// Services that ended or did not start by themselves.
    pub failures: Rc<RefCell<Vec<String>>>,
    /// What must hold at every moment.
    pub watch: Rc<Watch>,
}

/// The token files: the services read them before anything else, from the real disk.
struct Tokens {
    dir: PathBuf,
}

impl Tokens {
    fn new(seed: u64) -> Self {
        thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });
        let n = COUNT.replace(COUNT.get() + 1);
        let name = format!(
            "glowfs-sim-{}-{:?}-{seed}-{n}",
            std::process::id(),
            std::thread::current().id()
        );
        let dir = std::env::temp_dir().join(name.replace(['(', ')'], ""));
        std::fs::create_dir_all(&dir).expect("a directory for token files");
        for (file, token) in [("service", SERVICE_TOKEN), ("root", ROOT_TOKEN)] {
            std::fs::write(dir.join(file), format!("{token}\n")).expect("a token file");
        }
        Self { dir }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Cluster {
    /// Starts every service in a new world.
    pub fn start(seed: u64, shape: Shape) -> Self {
        Self::start_tuned(seed, shape, glowfs_meta::Tuning::default())
    }
    /// The same with other bounds and periods of the metadata services.
    pub fn start_tuned(seed: u64, shape: Shape, tuning: glowfs_meta::Tuning) -> Self {
        // A crash of a simulated node is a power failure: what was not flushed may be gone.
        let commit = glowfs_meta::CommitMode::Flush;
        Self::start_as_told(seed, shape, glowfs_meta::Tuning { commit, ..tuning })
    }
    /// The same; changes of metadata are flushed when `tuning` says so.
    pub fn start_as_told(seed: u64, shape: Shape, tuning: glowfs_meta::Tuning) -> Self {
        let world = World::new(seed);
        let service = |name: &str, role, id| Service { node: world.node(name), role, id };
        let cluster = Self {
            managers: (0..shape.managers)
                .map(|i| service(&format!("mgmtd{i}"), Role::Mgmtd, 1 + i as u64))
                .collect(),
            metas: (0..shape.metas)
                .map(|i| service(&format!("meta{i}"), Role::Meta, 10 + i as u64))
                .collect(),
            storages: (0..shape.storages)
                .map(|i| service(&format!("storage{i}"), Role::Storage, 100 + i as u64))
                .collect(),
            clients: (0..shape.clients).map(|i| world.node(&format!("client{i}"))).collect(),
            shape,
            tuning,
            tokens: Tokens::new(seed),
            failures: Rc::default(),
            watch: Rc::default(),
            world,
        };
        for s in cluster.services() {
            cluster.launch(&s);
        }
        cluster
    }

    /// What it is made of.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// Every service.
    pub fn services(&self) -> Vec<Service> {
        self.managers.iter().chain(&self.metas).chain(&self.storages).cloned().collect()
    }

    /// The manager that is primary now.
    pub fn primary(&self) -> Option<Service> {
        let name = self.watch.primary()?;
        self.managers.iter().find(|m| m.node.name() == name).cloned()
    }

    /// Where a service listens.
    pub fn address(service: &Service) -> String {
        service.node.address(PORT).to_string()
    }

    /// Starts the process of a service on its node, which is up.
    pub fn launch(&self, service: &Service) {
        let rt = service.node.rt();
        let failures = self.failures.clone();
        let name = service.node.name().to_owned();
        let note = move |what: String| failures.borrow_mut().push(format!("{name}: {what}"));
        let listen = vec![Self::address(service)];
        let mgmtd = self.manager_addresses();
        let token = self.tokens.path("service");
        match service.role {
            Role::Mgmtd => {
                let config = self.mgmtd_config(service, listen, &token);
                let (watch, watched) = (self.watch.clone(), service.node.name().to_owned());
                rt.clone().spawn_detached(async move {
                    match mgmtd::start(&rt, config).await {
                        Ok(running) => {
                            let running = Rc::new(running);
                            watch.started(&watched, running.clone());
                            note(running.failed().await.to_string());
                        }
                        Err(e) => note(format!("start: {e}")),
                    }
                });
            }
            Role::Meta => {
                let config = self.meta_config(service, listen, mgmtd, &token);
                rt.clone().spawn_detached(async move {
                    match glowfs_meta::start(&rt, config).await {
                        Ok(running) => note(running.failed().await.to_string()),
                        Err(e) => note(format!("start: {e}")),
                    }
                });
            }
            _ => {
                let config = self.storage_config(service);
                let (watch, watched, id) =
                    (self.watch.clone(), service.node.name().to_owned(), service.id());
                rt.clone().spawn_detached(async move {
                    for attempt in 1.. {
                        match glowfs_storage::start(&rt, config.clone()).await {
                            Ok(running) => {
                                let running = Rc::new(running);
                                watch.storage_started(&watched, id, running.clone());
                                return note(running.failed().await.to_string());
                            }
                            // Every disk of it reads wrongly just now: whoever supervises it starts it again.
                            Err(e) if e.status == Status::Corrupt && attempt < STARTS_MAX => {
                                rt.sleep(START_PAUSE).await;
                            }
                            Err(e) => return note(format!("start: {e}")),
                        }
                    }
                });
            }
        }
    }

    fn mgmtd_config(&self, s: &Service, listen: Vec<String>, token: &Path) -> mgmtd::Config {
        mgmtd::Config {
            node_id: s.id,
            cluster_id: CLUSTER.into(),
            listen,
            http: None,
            engine: EngineConfig::Remote { addresses: vec![Self::address(&self.metas[0])] },
            service_token_file: token.to_owned(),
            root_token_file: self.tokens.path("root"),
            tags: Default::default(),
            transports: Vec::new(),
            timing: Default::default(),
        }
    }

    fn meta_config(
        &self,
        s: &Service,
        listen: Vec<String>,
        mgmtd: Vec<String>,
        token: &Path,
    ) -> glowfs_meta::MetaConfig {
        glowfs_meta::MetaConfig {
            node_id: s.id,
            cluster_id: CLUSTER.into(),
            listen,
            http: None,
            mgmtd,
            service_token_file: token.to_owned(),
            engine: if s.id == self.metas[0].id {
                EngineConfig::Embedded { dir: "/engine".into() }
            } else {
                EngineConfig::Remote { addresses: vec![Self::address(&self.metas[0])] }
            },
            transports: Vec::new(),
            tags: Default::default(),
            root: glowfs_meta::RootConfig {
                table: 1,
                chunk_bytes: self.shape.chunk_bytes,
                stripe: self.shape.stripe,
                // The contents of most files begin in chunks here, those of the files of `small` do not.
                inline_bytes: 0,
                ..Default::default()
            },
            tuning: glowfs_meta::Tuning {
                request_keep_ms: TRIED.as_millis() as u64 + 10_000,
                ..self.tuning.clone()
            },
            format: true,
        }
    }

    /// What a storage service is started with.
    pub fn storage_config(&self, s: &Service) -> glowfs_storage::StorageConfig {
        glowfs_storage::StorageConfig {
            node_id: s.id,
            cluster_id: CLUSTER.into(),
            listen: vec![Self::address(s)],
            http: None,
            mgmtd: self.manager_addresses(),
            service_token_file: self.tokens.path("service"),
            disks: (0..self.shape.disks).map(|i| format!("/disk{i}").into()).collect(),
            transports: Vec::new(),
            tags: Default::default(),
            reserve_bytes: 1 << 20,
            log_bytes: LOG_BYTES,
            inflight_bytes: self.shape.inflight_bytes,
            inflight_ops: self.shape.inflight_ops,
            read_wait_ms: 200,
            sync_chunks: 4,
            sync_bytes_per_s: 0,
            sync_share_percent: 50,
            sync_targets: 4,
            sync_floor_percent: 10,
            sync_page_chunks: self.shape.sync_page.0,
            sync_channels: self.shape.sync_page.1,
            scrub_bytes_per_s: 64 << 20,
            scrub_interval_s: self.shape.scrub_interval_s,
            disk_check_ms: 2000,
            disk_stuck_ms: self.shape.disk_stuck_ms,
            operation_stuck_ms: 40_000,
            slow_after_ms: 3000,
            slow_report_ms: 3000,
        }
    }

    fn manager_addresses(&self) -> Vec<String> {
        self.managers.iter().map(Self::address).collect()
    }
    /// Lets time pass, watching.
    pub fn run_for(&self, time: Duration) {
        self.run_until(time, || false);
    }
    /// The same until `done` says so. False if that did not happen within `limit`.
    pub fn run_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let (watch, world) = (self.watch.clone(), &self.world);
        let mut look_at = world.now();
        world.run_until(limit, || {
            if world.now() >= look_at {
                look_at = world.now() + LOOK_EVERY;
                watch.look(world.now());
            }
            done()
        })
    }
    /// Ends a service's process: with its machine's power, or alone.
    pub fn crash(&self, service: &Service, power: bool) {
        if service.node.is_up() {
            self.watch.ended(service.node.name());
            if power { service.node.crash() } else { service.node.kill() }
        }
    }
    /// Starts it again.
    pub fn restart(&self, service: &Service) {
        if !service.node.is_up() {
            service.node.restart();
            self.launch(service);
        }
    }

    /// What a client of the cluster is told.
    pub fn client_config(&self) -> ClientConfig {
        ClientConfig {
            mgmtd: self.manager_addresses(),
            token: ROOT_TOKEN.into(),
            description: "simulated".into(),
            connect_timeout: Duration::from_secs(120),
            // Nothing may fail for good here, or the checkers would have to guess what it did.
            meta_total: TRIED,
            data_total: TRIED,
            ..ClientConfig::default()
        }
    }

    /// Runs something with a client of its own on a client node, at most `limit`.
    pub fn with_client<T: 'static, F: Future<Output = Result<T>> + 'static>(
        &self,
        node: &SimNode,
        limit: Duration,
        work: impl FnOnce(Rt, Rc<Client>) -> F + 'static,
    ) -> Result<T> {
        self.with_config(node, limit, self.client_config(), work)
    }
    /// The same with another configuration.
    pub fn with_config<T: 'static, F: Future<Output = Result<T>> + 'static>(
        &self,
        node: &SimNode,
        limit: Duration,
        config: ClientConfig,
        work: impl FnOnce(Rt, Rc<Client>) -> F + 'static,
    ) -> Result<T> {
        let rt = node.rt();
        let out = self.world.run(node, limit, async move {
            let client = Client::connect(&rt, config).await?;
            let result = work(rt, client.clone()).await;
            client.close().await;
            result
        });
        out.unwrap_or_else(|| {
            Err(glowfs_types::Error::new(
                glowfs_types::Status::TimedOut,
                format!("not done within {limit:?} of simulated time"),
            ))
        })
    }

    /// Waits until all storage nodes are known, lays the chains, and waits until they serve.
    pub fn bootstrap(&self) -> Result<()> {
        let shape = self.shape;
        self.with_client(
            &self.clients[0].clone(),
            Duration::from_secs(120),
            move |rt, client| async move {
                loop {
                    let known =
                        client.routing().nodes.values().filter(|n| n.role == Role::Storage).count();
                    if known == shape.storages {
                        break;
                    }
                    rt.sleep(Duration::from_millis(100)).await;
                }
                rt.sleep(Duration::from_secs(1)).await;
                let query = CreateTable {
                    table: ChainTableId(1),
                    replicas: shape.replicas,
                    chains: shape.chains,
                    description: "simulated".into(),
                    dry_run: false,
                };
                let _: CreateTableReply = client.mgmtd(method::CREATE_TABLE, &query).await?;
                wait_serving(&rt, &client, shape).await;
                Ok(())
            },
        )
    }
}

async fn wait_serving(rt: &Rt, client: &Client, shape: Shape) {
    while !all_serve(&client.routing(), shape) {
        rt.sleep(Duration::from_millis(50)).await;
    }
}

/// Whether every member of every chain serves, and that is active.
pub fn all_serve(info: &RoutingInfo, shape: Shape) -> bool {
    info.chains.len() == shape.chains as usize
        && info.chains.values().all(|c| {
            c.members.len() == shape.replicas as usize
                && c.activated == c.version
                && c.members.iter().all(|m| m.state == PublicState::Serving)
        })
}
