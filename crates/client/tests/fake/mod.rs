//! A cluster in memory behind real connections: one mgmtd, some meta services that share their state, and storage nodes whose
//! replicas share their chunks. Faults are put in per node, per request.

#![allow(dead_code, reason = "each test file uses a part")]

use glowfs_client::{Client, ClientConfig, FileAccess, OpenFile};
use glowfs_net::{Handler, Incoming, Reply, Server, TrustAll};
use glowfs_rt::{Duration, Rt, sync::Notify};
use glowfs_types::checksum::crc32c;
use glowfs_types::routing::*;
use glowfs_types::wire::copy::CopyChunk;
use glowfs_types::wire::data::*;
use glowfs_types::wire::flush::*;
use glowfs_types::wire::hello::HelloReply;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::sparse::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

pub const CHUNK: u64 = 65536;
/// What [`open_other`] opens,
const OTHER: InodeId = InodeId(6);
/// and what its chunks are stored under.
pub const OTHER_DATA: DataId = DataId(1000);

/// What a node does with a request of a method.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Refuses it.
    Refuse(Status),
    /// Does it, but breaks the connection instead of answering.
    DoAndCut,
    /// Never answers.
    Silent,
    /// Does it after a while.
    Late(Duration),
    /// Does it, and answers after a while.
    AnswerLate(Duration),
    /// READ: flips a bit behind the checksum.
    Flip,
}

#[derive(Default)]
pub struct State {
    pub routing: RefCell<RoutingInfo>,
    pub changed: Notify,
    pub chunks: RefCell<BTreeMap<ChunkId, Vec<u8>>>,
    /// (client, channel) -> (seq, applied how often).
    pub channels: RefCell<BTreeMap<(u128, u64), (u64, u32)>>,
    pub applied_twice: Cell<bool>,
    pub faults: RefCell<BTreeMap<(NodeId, u16), VecDeque<Fault>>>,
    pub calls: RefCell<BTreeMap<(NodeId, u16), u64>>,
    pub requests: RefCell<Vec<RequestId>>,
    pub epoch: Cell<u64>,
    /// How many of the epochs left the data id as it was: truncates to a length that is not 0.
    pub kept_data: Cell<u64>,
    /// The life of the metadata engine; 0: meta does not say.
    pub life: Cell<u64>,
    /// Storage takes writes to the data of older epochs, as it does until that is collected.
    pub uncollected: Cell<bool>,
    pub capability_ms: Cell<u64>,
    /// How long the file is, as far as meta was told.
    pub len: Cell<u64>,
    pub capabilities: Cell<u64>,
    pub standby: RefCell<BTreeSet<NodeId>>,
    /// Nodes from which no piece comes that is to be copied.
    pub dumb: RefCell<BTreeSet<NodeId>>,
    pub sessions: RefCell<BTreeSet<ClientId>>,
    pub meta_conns: RefCell<Vec<Rc<glowfs_net::Conn>>>,
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

struct Node {
    rt: Rt,
    id: NodeId,
    state: Rc<State>,
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
    /// Another client cuts the file to nothing, which gives it a new data id: this client is told.
    pub async fn cut(&self) {
        let epoch = self.state.epoch.get() + 1;
        self.state.epoch.set(epoch);
        self.recall(epoch).await;
    }
    /// Another client cuts the file within its first chunk, which leaves it its data id: this client is told.
    pub async fn shorten(&self, len: usize) {
        let epoch = self.state.epoch.get() + 1;
        self.state.epoch.set(epoch);
        self.state.kept_data.set(self.state.kept_data.get() + 1);
        let data = DataId(self.state.data_now());
        // Storage cuts when those who had it open have answered.
        self.recall(epoch).await;
        let mut chunks = self.state.chunks.borrow_mut();
        if let Some(content) = chunks.get_mut(&ChunkId { volume: VolumeId(1), data, index: 0 }) {
            content.truncate(len);
        }
    }
    async fn recall(&self, epoch: u64) {
        self.try_recall(epoch).await.expect("recalled");
    }
    /// Tells this client that another one has cut the file.
    pub async fn try_recall(&self, epoch: u64) -> Result<()> {
        let conn = self.state.meta_conns.borrow().last().cloned().expect("connection");
        let recall = Recall {
            volume: VolumeId(1),
            inode: InodeId(5),
            name: None,
            epoch: Some(TruncateEpoch(epoch)),
            data: true,
            append: None,
        };
        let told = conn.call_msg(method::RECALL, &recall, Duration::from_secs(2)).await;
        told.map(|_: Empty| ())
    }
    /// What another client has written to the first chunk, and told meta of.
    pub fn put(&self, bytes: &[u8]) {
        let id = ChunkId { volume: VolumeId(1), data: DataId(self.state.data_now()), index: 0 };
        self.state.chunks.borrow_mut().insert(id, bytes.to_vec());
        self.state.len.set(bytes.len() as u64);
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

/// The file there is, open for all.
pub async fn open(client: &Rc<Client>) -> Rc<OpenFile> {
    open_inode(client, InodeId(5)).await
}

/// Another file, which nobody cuts.
pub async fn open_other(client: &Rc<Client>) -> Rc<OpenFile> {
    open_inode(client, OTHER).await
}

async fn open_inode(client: &Rc<Client>, inode: InodeId) -> Rc<OpenFile> {
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session: client.new_session(),
        append: false,
        inline: false,
        exec: false,
    };
    let query = Open { caller: Caller::default(), request: RequestId(0), inode, flags };
    let reply = client.open(query).await.expect("open");
    let access = FileAccess { caller: Caller::default(), read: true, write: true, exec: false };
    client.open_file(&reply, access).expect("file")
}

/// Data lies on chains of its own, as that of files does.
pub fn layout(data: DataId) -> Layout {
    Layout {
        table: ChainTableId(1),
        table_version: 1,
        chunk_bytes: CHUNK as u32,
        stripe: 3,
        start: (data.0 - 7) as u32 % 3,
        redundancy: Redundancy::Replicated,
        durability: Durability::Written,
        inline_bytes: 0,
    }
}

impl Handler for Node {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let rt = self.rt.clone();
        rt.spawn_detached(async move { self.run(incoming).await });
    }
    fn connected(&self, conn: &Rc<glowfs_net::Conn>) {
        if (10..20).contains(&self.id.0) {
            self.state.meta_conns.borrow_mut().push(conn.clone());
        }
    }
}

impl Node {
    async fn run(self: Rc<Self>, mut incoming: Incoming) {
        let key = (self.id, incoming.method());
        *self.state.calls.borrow_mut().entry(key).or_default() += 1;
        let fault = self.state.faults.borrow_mut().get_mut(&key).and_then(VecDeque::pop_front);
        match fault {
            Some(Fault::Refuse(status)) => return incoming.reply(Err(Error::new(status, "fault"))),
            Some(Fault::Silent) => {
                self.rt.sleep(Duration::from_secs(30)).await;
                return;
            }
            Some(Fault::Late(d)) => self.rt.sleep(d).await,
            _ => {}
        }
        let result = self.serve(&mut incoming, matches!(fault, Some(Fault::Flip))).await;
        if matches!(fault, Some(Fault::DoAndCut)) {
            incoming.conn().close();
            return;
        }
        if let Some(Fault::AnswerLate(d)) = fault {
            self.rt.sleep(d).await;
        }
        incoming.reply(result);
    }

    async fn serve(&self, incoming: &mut Incoming, flip: bool) -> Result<Reply> {
        match incoming.method() {
            method::READ => self.read(incoming, flip),
            method::WRITE => self.write(incoming),
            method::COPY_CHUNK => self.copy(incoming),
            method::LIST_EXTENTS => self.list(incoming),
            method::FLUSH => {
                let _: Flush = incoming.msg()?;
                Ok(Reply::msg(&Empty {}))
            }
            method::FLUSH_TARGETS => {
                let asked: FlushTargets = incoming.msg()?;
                let info = self.state.routing.borrow();
                let answer = |t: &FlushTarget| {
                    let chain = info.chains.get(&t.chain).filter(|c| c.version == t.chain_version);
                    let here = chain.and_then(|c| c.serving().find(|m| m.target == t.target));
                    match here.is_some_and(|m| m.node == self.id) {
                        true => Status::Ok.code(),
                        false => Status::WrongChainVersion.code(),
                    }
                };
                let statuses = asked.targets.iter().map(answer).collect();
                Ok(Reply::msg(&FlushTargetsReply { statuses }))
            }
            method::QUERY_EXTENT => self.extent(incoming),
            method::REMOVE_DATA => self.remove(incoming),
            100..200 => self.mgmtd(incoming).await,
            300..400 => self.meta(incoming),
            m => Err(Error::new(Status::UnknownMethod, format!("{m}"))),
        }
    }

    async fn mgmtd(&self, incoming: &Incoming) -> Result<Reply> {
        if incoming.method() == method::GET_PRIMARY {
            let info = self.state.routing.borrow();
            let standby = self.state.standby.borrow();
            let primary =
                info.nodes.values().find(|n| n.role == Role::Mgmtd && !standby.contains(&n.id));
            return Ok(Reply::msg(&PrimaryInfo {
                cluster: ClusterId(0),
                node: primary.map(|n| n.id),
                addresses: primary.map(|n| n.addresses.clone()).unwrap_or_default(),
                silent_ms: 0,
            }));
        }
        if self.state.standby.borrow().contains(&self.id) {
            return Err(Error::new(Status::NotPrimary, "standby"));
        }
        match incoming.method() {
            method::GET_ROUTING => {
                let q: GetRouting = incoming.msg()?;
                if self.state.routing.borrow().version <= q.have {
                    let news = self.state.changed.wait();
                    let _ = self.rt.timeout(Duration::from_millis(q.wait_ms), news).await;
                }
                Ok(Reply::msg(&*self.state.routing.borrow()))
            }
            method::CLIENT_SESSION => {
                let q: ClientSession = incoming.msg()?;
                self.state.sessions.borrow_mut().insert(q.client);
                Ok(Reply::msg(&ClientSessionReply { session_ms: 3000, routing_stale_ms: 3000 }))
            }
            method::CLIENT_GOODBYE => {
                let q: ClientGoodbye = incoming.msg()?;
                self.state.sessions.borrow_mut().remove(&q.client);
                Ok(Reply::msg(&Empty {}))
            }
            m => Err(Error::new(Status::UnknownMethod, format!("{m}"))),
        }
    }

    /// One file: inode 5, data id 7 + the times that it was cut to nothing.
    pub fn open_reply(state: &State) -> OpenReply {
        let epoch = TruncateEpoch(state.epoch.get());
        Self::reply_of(state, InodeId(5), DataId(state.data_now()), epoch)
    }
    fn reply_of(state: &State, inode: InodeId, data: DataId, epoch: TruncateEpoch) -> OpenReply {
        state.capabilities.set(state.capabilities.get() + 1);
        let capability = Capability::new(
            VolumeId(1),
            inode,
            data,
            SessionId(1),
            epoch,
            // A serial number, so that a renewed one differs.
            state.capabilities.get(),
            capability::rights::READ | capability::rights::WRITE,
        );
        OpenReply {
            attr: Attr {
                inode,
                data,
                layout: Some(layout(data)),
                epoch,
                len: state.len.get(),
                life: state.life.get(),
                ..Attr::default()
            },
            session: Some(SessionId(1)),
            capability: capability.as_bytes().to_vec(),
            capability_ms: state.capability_ms.get(),
            lease_ms: 0,
            content: None,
        }
    }

    fn meta(&self, incoming: &Incoming) -> Result<Reply> {
        let open = || Self::open_reply(&self.state);
        let open_one = |inode: InodeId| match inode {
            OTHER => Self::reply_of(&self.state, OTHER, OTHER_DATA, TruncateEpoch(0)),
            _ => open(),
        };
        let attr = || AttrReply {
            attr: open().attr,
            lease_ms: 0,
            open: None,
            dir: None,
            name_lease_ms: None,
        };
        match incoming.method() {
            method::OPEN => {
                let q: Open = incoming.msg()?;
                self.state.requests.borrow_mut().push(q.request);
                Ok(Reply::msg(&open_one(q.inode)))
            }
            method::RENEW => Ok(Reply::msg(&open_one(incoming.msg::<Renew>()?.inode))),
            method::GETATTR => Ok(Reply::msg(&attr())),
            method::SETATTR => {
                assert_eq!(incoming.msg::<SetAttr>()?.len, Some(0), "the only one there is");
                self.state.epoch.set(self.state.epoch.get() + 1);
                Ok(Reply::msg(&attr()))
            }
            method::UNLINK => {
                let q: Unlink = incoming.msg()?;
                assert_ne!(q.caller.client, ClientId(0));
                self.state.requests.borrow_mut().push(q.request);
                Ok(Reply::msg(&UnlinkReply::default()))
            }
            method::LOOKUP => Err(Error::new(Status::NotFound, "no such entry")),
            m => Err(Error::new(Status::UnknownMethod, format!("{m}"))),
        }
    }

    fn check_target(&self, chain: u64, version: u64, target: u64) -> Result<()> {
        let info = self.state.routing.borrow();
        let c = info.chains.get(&ChainId(chain)).ok_or(Status::NoTarget)?;
        if c.version.0 != version {
            return Err(Status::WrongChainVersion.into());
        }
        let ok = c.serving().any(|m| m.target.0 == target && m.node == self.id);
        if ok { Ok(()) } else { Err(Status::NotServing.into()) }
    }

    fn read(&self, incoming: &mut Incoming, flip: bool) -> Result<Reply> {
        let body = incoming.body().to_vec();
        let room = incoming.reply_room() as u32;
        let mut buf = incoming.reply_buffer()?;
        let read = Read::parse(&body, room)?;
        let chunks = self.state.chunks.borrow();
        let mut results = Vec::new();
        for op in read.ops {
            let mut result = ReadResult::default();
            match self.check_target(op.chain.get(), op.chain_version.get(), op.target.get()) {
                Err(e) => result.status = e.status.code().into(),
                Ok(()) => {
                    let (at, len) = (op.at.get() as usize, op.len.get() as usize);
                    let out = &mut buf[at..at + len];
                    out.fill(0);
                    let id = ChunkId::from(op.chunk);
                    let here = Self::of_chain(&id, ChainId(op.chain.get()));
                    let chunk = chunks.get(&id).filter(|_| here);
                    let chunk = chunk.map(Vec::as_slice).unwrap_or_default();
                    let have = chunk.get(op.offset.get() as usize..).unwrap_or_default();
                    let n = have.len().min(len);
                    out[..n].copy_from_slice(&have[..n]);
                    result.len = (n as u32).into();
                    result.crc = crc32c(out).into();
                    if flip {
                        out[0] ^= 1;
                    }
                }
            }
            results.push(result);
        }
        Ok(Reply { body: results.as_bytes().to_vec(), bulk: Some(buf) })
    }

    fn write(&self, incoming: &mut Incoming) -> Result<Reply> {
        let body = incoming.body().to_vec();
        let payload = incoming.take_bulk()?;
        let u = Update::parse(&body)?;
        if u.head.kind == update::WRITE {
            let crcs = u.crcs.iter().map(|c| c.get());
            if !checksum::verify_pieces(u.head.offset.get(), &payload, crcs) {
                return Err(Status::Corrupt.into());
            }
        }
        self.update(*u.head, &payload)
    }

    fn copy(&self, incoming: &Incoming) -> Result<Reply> {
        let q: CopyChunk = incoming.msg()?;
        let head = q.head()?;
        if self.state.dumb.borrow().contains(&q.node) {
            return Err(Error::new(Status::Disconnected, "that node does not send it"));
        }
        let bytes = {
            let chunks = self.state.chunks.borrow();
            let from = chunks.get(&q.from).map(Vec::as_slice).unwrap_or_default();
            let at = |i| from.get(q.from_offset as usize + i).copied().unwrap_or(0);
            (0..head.len.get() as usize).map(at).collect::<Vec<u8>>()
        };
        self.update(head, &bytes)
    }

    fn list(&self, incoming: &Incoming) -> Result<Reply> {
        let q: ListExtents = incoming.msg()?;
        let chunks = self.state.chunks.borrow();
        let mine = chunks.iter().filter(|(id, _)| {
            id.data == q.from.data && id.index >= q.from.index && Self::of_chain(id, q.chain)
        });
        let chunks = mine.map(|(id, content)| {
            let blocks = (content.len() as u64).div_ceil(EXTENT_BLOCK_BYTES) as u32;
            ChunkExtents { index: id.index, runs: vec![(0, blocks)] }
        });
        Ok(Reply::msg(&ListExtentsReply { chunks: chunks.collect(), ..Default::default() }))
    }

    fn update(&self, head: UpdateHead, payload: &[u8]) -> Result<Reply> {
        self.check_target(head.chain.get(), head.chain_version.get(), head.target.get())?;
        {
            let info = self.state.routing.borrow();
            let c = info.chains.get(&ChainId(head.chain.get())).ok_or(Status::NoTarget)?;
            if c.head().map(|m| m.node) != Some(self.id) {
                return Err(Status::NotServing.into());
            }
        }
        let chunk: ChunkId = head.chunk.into();
        if !Self::of_chain(&chunk, ChainId(head.chain.get())) {
            return Err(Error::new(Status::InvalidArgument, "nobody looks for it on this chain"));
        }
        let data_now = self.state.data_now();
        if head.capability.data.get() != data_now && !self.state.uncollected.get() {
            return Err(Error::new(Status::BadCapability, "of an older epoch"));
        }
        let seq = head.seq.get();
        let mut channels = self.state.channels.borrow_mut();
        let known = channels.entry((head.client.get(), head.channel.get())).or_insert((0, 0));
        if seq < known.0 {
            return Err(Status::OldSequence.into());
        }
        if seq > known.0 {
            *known = (seq, 1);
            let mut chunks = self.state.chunks.borrow_mut();
            let content = chunks.entry(chunk).or_default();
            let end = (head.offset.get() + head.len.get()) as usize;
            if head.kind == update::TRUNCATE {
                content.resize(head.len.get() as usize, 0);
            } else {
                content.resize(content.len().max(end), 0);
                content[head.offset.get() as usize..end].copy_from_slice(payload);
            }
        }
        Ok(Reply::body(
            UpdateResult { version: 1.into(), ..Default::default() }.as_bytes().to_vec(),
        ))
    }

    fn of_chain(chunk: &ChunkId, chain: ChainId) -> bool {
        layout(chunk.data).position(chunk.index, 3) + 1 == chain.0 as u32
    }

    fn extent(&self, incoming: &Incoming) -> Result<Reply> {
        let q: QueryExtent = incoming.msg()?;
        let chunks = self.state.chunks.borrow();
        let mine =
            chunks.iter().filter(|(id, _)| id.data == q.data.data && Self::of_chain(id, q.chain));
        let mut reply = QueryExtentReply::default();
        for (id, content) in mine {
            reply.last = Some((id.index, content.len() as u32));
            reply.chunks += 1;
            reply.bytes += content.len() as u64;
        }
        Ok(Reply::msg(&reply))
    }

    fn remove(&self, incoming: &Incoming) -> Result<Reply> {
        let q: RemoveData = incoming.msg()?;
        Capability::read_from_bytes(&q.capability)
            .map_err(|_| Error::from(Status::BadCapability))?;
        let mut chunks = self.state.chunks.borrow_mut();
        let ids: Vec<ChunkId> = chunks
            .keys()
            .filter(|id| {
                id.data == q.from.data && id.index >= q.from.index && Self::of_chain(id, q.chain)
            })
            .copied()
            .collect();
        let removed = ids.len().min(q.limit as usize);
        for id in &ids[..removed] {
            chunks.remove(id);
        }
        Ok(Reply::msg(&RemoveDataReply { removed: removed as u32, more: ids.len() > removed }))
    }
}

/// Bytes that differ by place and seed.
pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Reads so much: how many came, and the buffer.
pub async fn read(rt: &Rt, file: &OpenFile, offset: u64, len: usize) -> Result<(usize, Vec<u8>)> {
    let (result, buf) = file.read(offset, rt.alloc(len)).await;
    assert_eq!(buf.len(), len, "the buffer keeps its length");
    result.map(|n| (n, buf.to_vec()))
}
