//! [`Client`]: one connection of this process with the cluster.

use crate::core::Core;
use crate::retry::again_meta;
use crate::{ChunkIo, ClientConfig, FileAccess, OpenFile, link};
use glowfs_net::{Bulk, Request};
use glowfs_rt::{BoxFuture, Duration, Rt};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::data::StorageInfo;
use glowfs_types::wire::hello::{HelloReply, ServiceStatus};
use glowfs_types::wire::meta::{OpenReply, Recall};
use glowfs_types::wire::{Empty, decode, encode, method};
use glowfs_types::{
    ClientId, Error, InodeId, NodeId, RequestId, Result, RoutingVersion, SessionId, Status,
};
use minicbor::{Decode, Encode};
use std::rc::Rc;

/// How long [`Client::refresh_routing`] waits for news.
const REFRESH: Duration = Duration::from_secs(2);

/// How long a definite refusal (of a token) must last before [`Client::ready`] believes it.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(3);

/// Told of a RECALL after the client has stopped using the old capability; the answer goes to meta when it returns.
pub trait RecallHandler {
    /// Drops what is cached of the inode or entry. What it does before it returns is done at once, the rest when writes under the old capability have ended.
    fn recall(&self, recall: Recall) -> BoxFuture<()>;
    /// Gives the right to append back, when appends that are on their way have ended and meta knows the length. `grant` is the name that
    /// meta has for it, also if it is not known here.
    fn give_append(&self, inode: InodeId, grant: RequestId) -> BoxFuture<Result<()>> {
        let _ = (inode, grant);
        let e = "this client never takes the right to append";
        Box::pin(async move { Err(Error::new(Status::NotSupported, e)) })
    }
    /// Whether the file is open here in a way that the client library does not see (it knows its open files itself).
    fn in_use(&self, inode: InodeId) -> bool {
        let _ = inode;
        false
    }
}

/// One connection of this process with the cluster. Shared within its thread. Dropping it closes its connections without a goodbye:
/// the cluster then waits for the end of its session; call [`Client::close`] instead.
pub struct Client {
    pub(crate) core: Rc<Core>,
}

impl Client {
    /// Starts without waiting for the cluster: calls wait (within their bounds) until it answers. For services, which
    /// start in any order.
    pub fn start(rt: &Rt, config: ClientConfig) -> Result<Rc<Self>> {
        let core = Core::new(rt, config)?;
        rt.spawn_detached(link::poll_routing(core.clone()));
        if core.config.session {
            rt.spawn_detached(link::keep_session(core.clone()));
            rt.spawn_detached(link::keep_metas(core.clone()));
        }
        Ok(Rc::new(Self { core }))
    }
    /// Starts and waits, at most [`ClientConfig::connect_timeout`], until the cluster answered and routing info is here.
    pub async fn connect(rt: &Rt, config: ClientConfig) -> Result<Rc<Self>> {
        let client = Self::start(rt, config)?;
        client.ready().await?;
        Ok(client)
    }
    /// Waits until the cluster answered, at most [`ClientConfig::connect_timeout`]. A definite refusal (a wrong token, another
    /// cluster) is returned when it lasts for some seconds.
    pub async fn ready(&self) -> Result<()> {
        let core = &self.core;
        let began = core.rt.now();
        let until = began + core.config.connect_timeout;
        loop {
            // Meta asks the clients that mgmtd knows before it gives up what a file holds: so be known before the first open.
            if core.fresh().is_some() && (core.registered.get() || !core.config.session) {
                return Ok(());
            }
            // A manager that has just started does not know the tokens yet: it gets a moment.
            let waited = core.rt.now().since(began);
            let refused = core.link_problem.borrow().clone().filter(|e| !again_meta(e.status));
            if let Some(e) = refused.filter(|_| waited >= REFUSAL_PATIENCE) {
                return Err(e);
            }
            let left = until.since(core.rt.now());
            if left.is_zero() {
                core.routing(Duration::ZERO).await?;
                let e = "mgmtd does not open a session for this client";
                let problem = core.link_problem.borrow().clone();
                return Err(problem.unwrap_or_else(|| Error::new(Status::TimedOut, e)));
            }
            let news = core.changed.wait();
            let _ = core.rt.timeout(left, news).await;
        }
    }
    /// The runtime.
    pub fn rt(&self) -> &Rt {
        &self.core.rt
    }
    /// What it was started with.
    pub fn config(&self) -> &ClientConfig {
        &self.core.config
    }
    /// This life of the client.
    pub fn id(&self) -> ClientId {
        self.core.id()
    }
    /// What the primary mgmtd said of itself and of the token's user.
    pub fn hello(&self) -> Option<HelloReply> {
        self.core.hello.borrow().clone()
    }
    /// An id for a call that must take effect once.
    pub fn new_request(&self) -> RequestId {
        RequestId(self.core.rt.random_u128())
    }
    /// An id for a write-open.
    pub fn new_session(&self) -> SessionId {
        SessionId(self.core.rt.random_u128())
    }
    /// The newest routing info (empty before the first answer). For display; calls check its age themselves.
    pub fn routing(&self) -> Rc<RoutingInfo> {
        self.core.routing.borrow().clone()
    }
    /// Waits a moment (2 s) for routing info newer than `than`; answers the newest there is.
    pub async fn refresh_routing(&self, than: RoutingVersion) -> Result<Rc<RoutingInfo>> {
        let core = &self.core;
        let until = core.rt.now() + REFRESH;
        while core.routing.borrow().version <= than {
            let left = until.since(core.rt.now());
            if left.is_zero() || core.closed.get() {
                break;
            }
            core.pause(left, than).await;
        }
        core.routing(REFRESH).await
    }
    /// Who is told of recalls (the mount).
    pub fn on_recall(&self, handler: Rc<dyn RecallHandler>) {
        *self.core.recall.borrow_mut() = Some(handler);
    }
    /// A file that meta opened, ready for I/O. `reply` is from OPEN or from MAKE with `open`.
    pub fn open_file(
        self: &Rc<Self>,
        reply: &OpenReply,
        access: FileAccess,
    ) -> Result<Rc<OpenFile>> {
        OpenFile::new(self, reply, access)
    }
    /// Chunk operations that need no open file.
    pub fn chunk_io(self: &Rc<Self>) -> ChunkIo {
        ChunkIo::new(self.clone())
    }
    /// A control call to the primary mgmtd, retried until `ClientConfig::meta_total`. Only for methods that may be repeated.
    pub async fn mgmtd<Q: Encode<()>, R>(&self, method: u16, q: &Q) -> Result<R>
    where
        R: for<'b> Decode<'b, ()>,
    {
        decode(&self.core.primary_retry(method, encode(q), self.core.config.meta_total).await?)
    }
    /// The same, not repeated: for what the caller has to think about again when it was refused.
    pub async fn mgmtd_once<Q: Encode<()>, R>(&self, method: u16, q: &Q) -> Result<R>
    where
        R: for<'b> Decode<'b, ()>,
    {
        decode(&self.core.primary_call(method, &encode(q), self.core.config.meta_attempt).await?)
    }
    /// A control call to one node of the routing info; one attempt.
    pub async fn node_call<Q: Encode<()>, R>(&self, node: NodeId, method: u16, q: &Q) -> Result<R>
    where
        R: for<'b> Decode<'b, ()>,
    {
        let core = &self.core;
        let time = core.config.meta_attempt;
        let info = core.routing.borrow().clone();
        let whom = |e: Error| e.context(format_args!("{} at node {node}", method::name(method)));
        let conn = core.conn(&info, node, time).await.map_err(whom)?;
        let request = Request {
            method,
            body: encode(q),
            bulk: Bulk::None,
            tenant: core.config.tenant,
            deadline: time,
        };
        let response = conn.call(request).await.map_err(whom)?;
        decode(&response.body)
    }
    /// What a service of the routing info says of itself.
    pub async fn status(&self, node: NodeId) -> Result<ServiceStatus> {
        self.node_call(node, method::SERVICE_STATUS, &Empty {}).await
    }
    /// Disks and targets of a storage node.
    pub async fn storage_info(&self, node: NodeId) -> Result<StorageInfo> {
        self.node_call(node, method::STORAGE_INFO, &Empty {}).await
    }
    /// Ends the session and closes every connection. Calls after it fail.
    pub async fn close(&self) {
        if self.core.closed.replace(true) {
            return;
        }
        if self.core.config.session && self.core.confirmed.get().is_some() {
            link::goodbye(&self.core).await;
        }
        self.core.shut();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.core.shut();
    }
}
