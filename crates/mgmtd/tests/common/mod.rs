//! A small cluster for tests: mgmtd over an engine in memory, and storages that only heartbeat.
#![allow(missing_docs, clippy::expect_used)]

pub mod operate;

use glowfs_agent::{Agent, AgentConfig, Report};
use glowfs_kv::{Engine, EngineConfig, Memory, Transaction};
use glowfs_mgmtd::{Config, Running, Timing, start_with_engine};
use glowfs_net::{Conn, Connector, NoCalls};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::routing::{ChainInfo, LocalState, PublicState, Role, RoutingInfo, TargetInfo};
use glowfs_types::wire::Empty;
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

pub const CLUSTER: ClusterId = ClusterId(0xC1);
pub const SERVICE_TOKEN: &str = "the-service-token";
pub const ROOT_TOKEN: &str = "the-root-token";
pub const SECOND: Duration = Duration::from_secs(1);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub struct World {
    pub rt: Rt,
    pub dir: tempfile::TempDir,
    pub engine: Rc<dyn Engine>,
    /// Dropping a connector closes its connections.
    connectors: RefCell<Vec<Rc<Connector>>>,
}

impl World {
    pub fn new(rt: &Rt) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("service"), SERVICE_TOKEN).expect("write");
        std::fs::write(dir.path().join("root"), format!("{ROOT_TOKEN}\n")).expect("write");
        Self { rt: rt.clone(), dir, engine: Memory::engine(), connectors: RefCell::default() }
    }
    pub fn config(&self, node: u64) -> Config {
        Config {
            node_id: node,
            cluster_id: CLUSTER.to_string(),
            listen: vec!["tcp://127.0.0.1:0".into()],
            http: None,
            // Not looked at: the tests give their own.
            engine: EngineConfig::Remote { addresses: vec!["tcp://127.0.0.1:1".into()] },
            service_token_file: self.dir.path().join("service"),
            root_token_file: self.dir.path().join("root"),
            tags: BTreeMap::new(),
            transports: vec![],
            timing: Timing::default(),
        }
    }
    pub async fn mgmtd(&self, node: u64) -> Running {
        self.mgmtd_with(self.config(node)).await
    }
    pub async fn mgmtd_with(&self, config: Config) -> Running {
        start_with_engine(&self.rt, config, Some(self.engine.clone())).await.expect("mgmtd starts")
    }
    pub async fn conn(&self, at: &[String], token: &str) -> Result<Rc<Conn>> {
        let hello = Hello {
            cluster: CLUSTER,
            token: token.into(),
            role: Some(Role::Client),
            client: ClientId(9),
            ..Hello::default()
        };
        let connector = Connector::new(&self.rt, hello, Rc::new(NoCalls));
        self.connectors.borrow_mut().push(connector.clone());
        connector.connect(at).await
    }
}

pub fn at(running: &Running) -> Vec<String> {
    running.addresses().iter().map(|a| a.to_string()).collect()
}

/// What a store would keep over restarts.
#[derive(Default)]
pub struct Disk {
    pub life: Cell<u64>,
    pub clean: Cell<bool>,
    /// Targets that were made on it before, and the version that each has adopted, with something in them.
    pub holds: RefCell<BTreeMap<TargetId, ChainVersion>>,
}

/// What a storage says of its stores.
pub fn stores_of(agent: &Agent, node: NodeId, disks: &[(StoreId, u32)]) -> RegisterStores {
    let offer = |&(store, disk_index)| StoreOffer { store, disk_index, capacity_bytes: 1 << 30 };
    RegisterStores {
        node,
        stores: disks.iter().map(offer).collect(),
        incarnation: agent.incarnation(),
        hostname: glowfs_net::local_hostname(),
    }
}

/// A storage that only heartbeats: it adopts every version and «resyncs» after a moment.
pub struct FakeStorage {
    pub node: NodeId,
    pub store: StoreId,
    pub disk: Rc<Disk>,
    pub agent: Agent,
    pub fake: Rc<Fake>,
}

pub struct Fake {
    store: StoreId,
    disk: Rc<Disk>,
    life: Incarnation,
    clean: bool,
    routing: RefCell<Rc<RoutingInfo>>,
    synced: RefCell<BTreeMap<TargetId, ChainVersion>>,
    /// Whether it resyncs when it is told to.
    pub syncs: Cell<bool>,
    pub used: Cell<u64>,
    /// Whether its disk is broken, and it says so.
    pub broken: Cell<bool>,
    /// Targets that it names, whatever the routing info says.
    pub names: RefCell<Vec<TargetId>>,
    /// Those of which it heard that they were removed.
    pub told_gone: RefCell<Vec<TargetId>>,
}

impl Report for Fake {
    fn targets(&self) -> Vec<TargetReport> {
        let routing = self.routing.borrow();
        let bound = |t: &TargetInfo| {
            routing.chains.get(&t.chain).is_some_and(|c| c.members.iter().any(|m| m.target == t.id))
        };
        let mine = routing.targets.values().filter(|t| t.store == self.store && bound(t));
        let (names, holds) = (self.names.borrow(), self.disk.holds.borrow());
        let adopted_of = |id| holds.get(&id).copied().unwrap_or_default();
        let unbound = |id: &&TargetId| !routing.targets.get(*id).is_some_and(bound);
        let named = names.iter().chain(holds.keys().filter(unbound)).map(|id| TargetReport {
            target: *id,
            local: LocalState::Online,
            incarnation: self.life,
            clean: self.clean,
            machine_since: Incarnation(0),
            adopted: adopted_of(*id),
            used_bytes: 1,
            store: self.store,
            known: ChainVersion(0),
            served: None,
            nonce: 0,
            former: 0,
        });
        mine.map(|t| {
            let adopted = routing.chains.get(&t.chain).map(|c| c.version).unwrap_or_default();
            let adopted = adopted.max(adopted_of(t.id));
            let synced = self.synced.borrow().get(&t.id) == Some(&adopted);
            let local = match synced {
                _ if self.broken.get() => LocalState::Offline,
                true => LocalState::UpToDate,
                false => LocalState::Online,
            };
            TargetReport {
                target: t.id,
                local,
                incarnation: self.life,
                clean: self.clean,
                machine_since: Incarnation(0),
                adopted,
                used_bytes: self.used.get() + u64::from(holds.contains_key(&t.id)),
                store: self.store,
                known: adopted,
                served: None,
                nonce: 0,
                former: 0,
            }
        })
        .chain(named)
        .collect()
    }
    fn removed(&self, targets: &[TargetId]) {
        *self.told_gone.borrow_mut() = targets.to_vec();
    }
}

impl FakeStorage {
    pub fn start(w: &World, node: u64, mgmtd: Vec<String>, disk: Rc<Disk>) -> Self {
        Self::start_with(w, node, StoreId(u128::from(node)), mgmtd, disk)
    }
    pub fn start_with(
        w: &World,
        node: u64,
        store: StoreId,
        mgmtd: Vec<String>,
        disk: Rc<Disk>,
    ) -> Self {
        Self::start_as(w, node, store, mgmtd, disk, |_| {})
    }
    /// The same with settings of its own: another host, say.
    pub fn start_as(
        w: &World,
        node: u64,
        store: StoreId,
        mgmtd: Vec<String>,
        disk: Rc<Disk>,
        tune: impl FnOnce(&mut AgentConfig),
    ) -> Self {
        disk.life.set(disk.life.get() + 1);
        let fake = Rc::new(Fake {
            store,
            disk: disk.clone(),
            life: Incarnation(disk.life.get()),
            clean: disk.clean.replace(false) || disk.life.get() == 1,
            routing: RefCell::default(),
            synced: RefCell::default(),
            syncs: Cell::new(true),
            used: Cell::new(0),
            broken: Cell::new(false),
            names: RefCell::default(),
            told_gone: RefCell::default(),
        });
        let mut config =
            AgentConfig::new(CLUSTER, Role::Storage, NodeId(node), mgmtd, SERVICE_TOKEN.into());
        config.addresses = vec![format!("tcp://127.0.0.1:{}", 10_000 + node)];
        tune(&mut config);
        let addresses = std::mem::take(&mut config.addresses);
        let agent = Agent::start(&w.rt, config, fake.clone()).expect("agent");
        let (f, a, rt) = (fake.clone(), agent.clone(), w.rt.clone());
        agent.on_routing_change(move |r| {
            *f.routing.borrow_mut() = r.clone();
            a.report_now();
            let (f, a, rt2) = (f.clone(), a.clone(), rt.clone());
            rt.spawn_detached(async move {
                rt2.sleep(ms(20)).await;
                f.resync(&a);
            });
        });
        let f = Self { node: NodeId(node), store: fake.store, disk, agent, fake };
        w.rt.spawn_detached({
            let (agent, node, rt) = (f.agent.clone(), f.node, w.rt.clone());
            async move {
                // As a storage does: first its stores, until they are taken, then heartbeats.
                let register = stores_of(&agent, node, &[(store, 0)]);
                let link = agent.link();
                while let Err(e) =
                    link.call::<_, Empty>(method::REGISTER_STORES, &register, ms(5000)).await
                {
                    if e.status == Status::ShuttingDown {
                        return;
                    }
                    rt.sleep(ms(50)).await;
                }
                agent.announce(addresses);
            }
        });
        f
    }
    /// Does what it was told to do while it did not ([`Fake::syncs`]).
    pub fn resync(&self) {
        self.fake.resync(&self.agent);
    }
    /// Ends it like SIGKILL does: no word to anybody.
    pub fn kill(self) -> Rc<Disk> {
        self.disk.clean.set(false);
        self.agent.kill();
        self.disk
    }
    /// Ends it in good order.
    pub async fn stop(self) -> Rc<Disk> {
        self.disk.clean.set(true);
        self.agent.stop().await;
        self.disk
    }
}

impl Fake {
    /// Brings every syncing target of an active chain version up to date.
    fn resync(&self, agent: &Agent) {
        if !self.syncs.get() {
            return;
        }
        let routing = self.routing.borrow().clone();
        let mut news = false;
        for t in routing.targets.values().filter(|t| t.store == self.store) {
            let Some(chain) = routing.chains.get(&t.chain) else { continue };
            let syncing =
                chain.members.iter().any(|m| m.target == t.id && m.state == PublicState::Syncing);
            if syncing && chain.activated == chain.version {
                self.synced.borrow_mut().insert(t.id, chain.version);
                news = true;
            }
        }
        if news {
            agent.report_now();
        }
    }
}

/// Waits until `f` holds for the agent's routing info; the time it took.
pub async fn until(
    rt: &Rt,
    agent: &Agent,
    limit: Duration,
    what: &str,
    f: impl Fn(&RoutingInfo) -> bool,
) -> Duration {
    let began: Instant = rt.now();
    loop {
        let now = agent.routing();
        if f(&now) {
            return rt.now().since(began);
        }
        let left = (began + limit).since(rt.now());
        if rt.timeout(left, agent.routing_after(now.version)).await.is_err() {
            panic!("not within {limit:?}: {what}\n{:#?}", agent.routing().chains);
        }
    }
}

pub fn all_chains(r: &RoutingInfo, f: impl Fn(&ChainInfo) -> bool) -> bool {
    !r.chains.is_empty() && r.chains.values().all(f)
}

pub fn healthy(c: &ChainInfo) -> bool {
    c.activated == c.version && c.members.iter().all(|m| m.state == PublicState::Serving)
}

pub async fn create_table(agent: &Agent, replicas: u32, chains: u32) -> CreateTableReply {
    let create = CreateTable {
        table: ChainTableId(1),
        replicas,
        chains,
        description: "test".into(),
        dry_run: false,
    };
    agent.link().call(method::CREATE_TABLE, &create, ms(5000)).await.expect("table")
}

/// The epoch of the primary's lease, from the engine.
pub async fn epoch(w: &World) -> u64 {
    let tx = Transaction::new(w.engine.clone());
    let value = tx.get(b"mgmtd/epoch/").await.expect("read").expect("there is a primary");
    // A version, and an array: holder, life, epoch.
    let mut d = minicbor::Decoder::new(&value[1..]);
    d.array().expect("an array");
    d.skip().and_then(|()| d.skip()).expect("holder and life");
    d.u64().expect("the epoch")
}

/// An engine that takes its time for every call.
pub struct Slow {
    pub rt: Rt,
    pub engine: Rc<dyn Engine>,
    pub delay: Duration,
}

impl Slow {
    fn later<T: 'static>(
        &self,
        call: glowfs_rt::BoxFuture<Result<T>>,
    ) -> glowfs_rt::BoxFuture<Result<T>> {
        let (rt, delay) = (self.rt.clone(), self.delay);
        Box::pin(async move {
            rt.sleep(delay).await;
            call.await
        })
    }
}

impl Engine for Slow {
    fn begin(&self) -> glowfs_rt::BoxFuture<Result<glowfs_kv::Version>> {
        self.later(self.engine.begin())
    }
    fn get(
        &self,
        version: glowfs_kv::Version,
        keys: Vec<glowfs_kv::Key>,
    ) -> glowfs_rt::BoxFuture<Result<Vec<Option<glowfs_kv::Value>>>> {
        self.later(self.engine.get(version, keys))
    }
    fn get_range(
        &self,
        version: glowfs_kv::Version,
        begin: glowfs_kv::Key,
        end: glowfs_kv::Key,
        limit: u32,
        reverse: bool,
    ) -> glowfs_rt::BoxFuture<Result<glowfs_kv::RangePage>> {
        self.later(self.engine.get_range(version, begin, end, limit, reverse))
    }
    fn commit(
        &self,
        commit: glowfs_types::wire::kv::Commit,
    ) -> glowfs_rt::BoxFuture<Result<glowfs_kv::Version>> {
        self.later(self.engine.commit(commit))
    }
    fn flush_barrier(&self) -> glowfs_rt::BoxFuture<Result<()>> {
        self.later(self.engine.flush_barrier())
    }
}
