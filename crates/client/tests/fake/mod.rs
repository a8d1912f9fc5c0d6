//! A cluster in memory behind real connections: one mgmtd, some meta services that share their state, and storage nodes whose
//! replicas share their chunks. Faults are put in per node, per request.

mod files;
mod meta;
mod mgmtd;
mod node;
mod others;
mod storage;

pub use files::{OTHER_DATA, bytes, layout, open, open_other, read};
pub use node::Fault;

use glowfs_client::{Client, ClientConfig};
use glowfs_net::{Server, TrustAll};
use glowfs_rt::{Duration, Rt, sync::Notify};
use glowfs_types::routing::*;
use glowfs_types::wire::hello::HelloReply;
use glowfs_types::*;
use node::Node;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

pub const CHUNK: u64 = 65536;

/// The files of one flush.
pub type Flushed = Vec<(VolumeId, DataId)>;

#[derive(Default)]
pub struct State {
    pub routing: RefCell<RoutingInfo>,
    pub changed: Notify,
    pub chunks: RefCell<BTreeMap<ChunkId, Vec<u8>>>,
    /// (client, channel) -> (seq, applied how often).
    pub channels: RefCell<BTreeMap<(u128, u64), (u64, u32)>>,
    pub faults: RefCell<BTreeMap<(NodeId, u16), VecDeque<Fault>>>,
    pub calls: RefCell<BTreeMap<(NodeId, u16), u64>>,
    pub requests: RefCell<Vec<RequestId>>,
    /// What the flushes were of.
    pub flushed: RefCell<Vec<Option<Flushed>>>,
    pub epoch: Cell<u64>,
    /// How many of the epochs left the data id as it was: truncates to a length that is not 0.
    pub kept_data: Cell<u64>,
    /// The life of the metadata engine; 0: meta does not say.
    pub life: Cell<u64>,
    /// Storage takes writes to the data of older epochs, as it does until that is collected.
    pub uncollected: Cell<bool>,
    pub capability_ms: Cell<u64>,
    /// For how long meta leases attributes.
    pub lease_ms: Cell<u64>,
    /// How long the file is, as far as meta was told.
    pub len: Cell<u64>,
    pub capabilities: Cell<u64>,
    pub standby: RefCell<BTreeSet<NodeId>>,
    /// Nodes from which no piece comes that is to be copied.
    pub dumb: RefCell<BTreeSet<NodeId>>,
    pub sessions: RefCell<BTreeSet<ClientId>>,
    pub meta_conns: RefCell<Vec<Rc<glowfs_net::Conn>>>,
    /// Files that were opened by clients that the managers did not know.
    pub opened_unknown: Cell<u64>,
}

impl State {
    fn data_now(&self) -> u64 {
        7 + self.epoch.get() - self.kept_data.get()
    }
}

pub struct Fake {
    pub rt: Rt,
    pub state: Rc<State>,
    servers: RefCell<BTreeMap<NodeId, Server>>,
    pub mgmtd: Vec<String>,
}

impl Fake {
    /// `mgmtds` managers (the last one is primary), `metas` (10..) and three storage nodes (20..) with three chains of three.
    pub async fn start(rt: &Rt, mgmtds: u64, metas: u64) -> Rc<Fake> {
        let state = Rc::new(State { capability_ms: Cell::new(60_000), ..State::default() });
        let mut fake = Fake {
            rt: rt.clone(),
            state: state.clone(),
            servers: RefCell::default(),
            mgmtd: vec![],
        };
        let mut info = RoutingInfo { version: RoutingVersion(1), ..Default::default() };
        for i in 1..=mgmtds {
            fake.mgmtd.push(fake.serve(&mut info, NodeId(i), Role::Mgmtd));
            if i < mgmtds {
                state.standby.borrow_mut().insert(NodeId(i));
            }
        }
        for i in 0..metas {
            fake.serve(&mut info, NodeId(10 + i), Role::Meta);
        }
        for i in 0..3 {
            fake.serve(&mut info, NodeId(20 + i), Role::Storage);
        }
        for c in 0..3u64 {
            let members = (0..3).map(|i| 20 + (c + i) % 3).map(|n| ChainMember {
                target: TargetId(100 * (c + 1) + n),
                node: NodeId(n),
                state: PublicState::Serving,
            });
            let id = ChainId(c + 1);
            let version = ChainVersion(1);
            info.chains.insert(
                id,
                ChainInfo {
                    id,
                    version,
                    activated: version,
                    activated_serving: vec![],
                    members: members.collect(),
                    redundancy: Redundancy::Replicated,
                    preferred: vec![],
                    lost: ChainVersion(0),
                },
            );
        }
        info.tables.push(ChainTable {
            id: ChainTableId(1),
            version: 1,
            chains: (1..=3).map(ChainId).collect(),
            description: String::new(),
            replicas: 0,
        });
        *state.routing.borrow_mut() = info;
        Rc::new(fake)
    }

    fn serve(&self, info: &mut RoutingInfo, id: NodeId, role: Role) -> String {
        let node = Rc::new(Node { rt: self.rt.clone(), id, state: self.state.clone() });
        let hello = HelloReply { node: id, role: Some(role), ..Default::default() };
        let listen = vec!["tcp://127.0.0.1:0".parse().expect("address")];
        let server =
            Server::start(&self.rt, listen, hello, Rc::new(TrustAll), node).expect("listen");
        let address = server.addresses()[0].to_string();
        self.servers.borrow_mut().insert(id, server);
        info.nodes.insert(
            id,
            NodeInfo {
                id,
                role,
                addresses: vec![address.clone()],
                host: HostId(0),
                hostname: String::new(),
                pid: 0,
                tags: BTreeMap::new(),
                status: NodeStatus::Active,
                last_heartbeat_ns: 0,
                config_version: ConfigVersion(0),
                release: String::new(),
                http: None,
                kept_out_ms: 0,
            },
        );
        address
    }

    /// The process is gone.
    pub fn kill(&self, node: NodeId) {
        self.servers.borrow_mut().remove(&node);
    }
    pub fn fault(&self, node: NodeId, method: u16, faults: &[Fault]) {
        self.state
            .faults
            .borrow_mut()
            .entry((node, method))
            .or_default()
            .extend(faults.iter().cloned());
    }
    pub fn calls(&self, node: NodeId, method: u16) -> u64 {
        self.state.calls.borrow().get(&(node, method)).copied().unwrap_or(0)
    }
    /// Takes a node out of every chain, as mgmtd does when its lease ran out.
    pub fn fail_over(&self, node: NodeId) {
        let mut info = self.state.routing.borrow_mut();
        info.version = info.version.next();
        for chain in info.chains.values_mut() {
            if let Some(i) = chain.members.iter().position(|m| m.node == node) {
                let mut m = chain.members.remove(i);
                m.state = PublicState::Offline;
                chain.members.push(m);
                chain.version = chain.version.next();
            }
        }
        drop(info);
        self.state.changed.notify_all();
    }
    /// All replicas of a chain lose their power at once, and it begins again from one of them.
    pub fn lose_power(&self, chain: ChainId) {
        let mut info = self.state.routing.borrow_mut();
        info.version = info.version.next();
        if let Some(chain) = info.chains.get_mut(&chain) {
            chain.version = chain.version.next();
            chain.lost = chain.version;
        }
        drop(info);
        self.state.changed.notify_all();
    }
    /// Older metadata is put back: mgmtd has the routing info of so many versions ago.
    pub fn put_back(&self, versions: u64) {
        let mut info = self.state.routing.borrow_mut();
        info.version = RoutingVersion(info.version.0.saturating_sub(versions));
    }
    pub fn config(&self) -> ClientConfig {
        ClientConfig {
            mgmtd: self.mgmtd.clone(),
            token: "t".into(),
            read_attempt: Duration::from_millis(300),
            write_attempt: Duration::from_millis(300),
            meta_attempt: Duration::from_millis(300),
            data_total: Duration::from_secs(10),
            meta_total: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            hedge: false,
            ..ClientConfig::default()
        }
    }
    pub async fn client(&self) -> Rc<Client> {
        Client::connect(&self.rt, self.config()).await.expect("connects")
    }
    /// What the chunks hold of the file.
    pub fn content(&self, data: u64, offset: u64, len: u64) -> Vec<u8> {
        let chunks = self.state.chunks.borrow();
        (offset..offset + len)
            .map(|at| {
                let id = ChunkId { volume: VolumeId(1), data: DataId(data), index: at / CHUNK };
                chunks.get(&id).and_then(|c| c.get((at % CHUNK) as usize)).copied().unwrap_or(0)
            })
            .collect()
    }
}
