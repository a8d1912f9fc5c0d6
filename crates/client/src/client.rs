//! [`Client`]: one connection of this process with the cluster.

use crate::{ChunkIo, ClientConfig, FileAccess, OpenFile};
use glowfs_rt::{BoxFuture, Rt};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::data::StorageInfo;
use glowfs_types::wire::hello::{HelloReply, ServiceStatus};
use glowfs_types::wire::meta::{OpenReply, Recall};
use glowfs_types::{ClientId, Error, NodeId, RequestId, Result, RoutingVersion, SessionId, Status};
use minicbor::{Decode, Encode};
use std::rc::Rc;

/// Told of a RECALL after the client has stopped using the old capability; the answer goes to meta when it returns.
pub trait RecallHandler {
    /// Drops what is cached of the inode or entry.
    fn recall(&self, recall: Recall) -> BoxFuture<()>;
}

/// One connection of this process with the cluster. Shared within its thread.
pub struct Client {
    rt: Rt,
    config: ClientConfig,
    id: ClientId,
}

impl Client {
    /// Starts without waiting for the cluster: calls wait (within their bounds) until it answers. For services, which
    /// start in any order.
    pub fn start(rt: &Rt, config: ClientConfig) -> Result<Rc<Self>> {
        Ok(Rc::new(Self { rt: rt.clone(), config, id: ClientId(rt.random_u128()) }))
    }
    /// Starts and waits, at most [`ClientConfig::connect_timeout`], until the cluster answered and routing info is here.
    pub async fn connect(rt: &Rt, config: ClientConfig) -> Result<Rc<Self>> {
        let client = Self::start(rt, config)?;
        client.ready().await?;
        Ok(client)
    }
    /// Waits until the cluster answered.
    pub async fn ready(&self) -> Result<()> {
        Err(unbuilt())
    }
    /// The runtime.
    pub fn rt(&self) -> &Rt {
        &self.rt
    }
    /// What it was started with.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }
    /// This life of the client.
    pub fn id(&self) -> ClientId {
        self.id
    }
    /// What the primary mgmtd said of itself and of the token's user.
    pub fn hello(&self) -> Option<HelloReply> {
        None
    }
    /// An id for a call that must take effect once.
    pub fn new_request(&self) -> RequestId {
        RequestId(self.rt.random_u128())
    }
    /// An id for a write-open.
    pub fn new_session(&self) -> SessionId {
        SessionId(self.rt.random_u128())
    }
    /// The newest routing info (empty before the first answer). For display; calls check its age themselves.
    pub fn routing(&self) -> Rc<RoutingInfo> {
        Rc::default()
    }
    /// Asks mgmtd for routing info newer than `than` and waits for it at most a moment.
    pub async fn refresh_routing(&self, than: RoutingVersion) -> Result<Rc<RoutingInfo>> {
        let _ = than;
        Err(unbuilt())
    }
    /// Who is told of recalls (the mount).
    pub fn on_recall(&self, handler: Rc<dyn RecallHandler>) {
        let _ = handler;
    }
    /// A file that meta opened, ready for I/O. `reply` is from OPEN or from MAKE with `open`.
    pub fn open_file(self: &Rc<Self>, reply: &OpenReply, access: FileAccess) -> Result<Rc<OpenFile>> {
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
        let _ = (method, q);
        Err(unbuilt())
    }
    /// A control call to one node of the routing info; one attempt.
    pub async fn node_call<Q: Encode<()>, R>(&self, node: NodeId, method: u16, q: &Q) -> Result<R>
    where
        R: for<'b> Decode<'b, ()>,
    {
        let _ = (node, method, q);
        Err(unbuilt())
    }
    /// What a service says of itself.
    pub async fn status(&self, node: NodeId) -> Result<ServiceStatus> {
        let _ = node;
        Err(unbuilt())
    }
    /// Disks and targets of a storage node.
    pub async fn storage_info(&self, node: NodeId) -> Result<StorageInfo> {
        let _ = node;
        Err(unbuilt())
    }
    /// Ends the session and closes every connection. Calls after it fail.
    pub async fn close(&self) {}
}

pub(crate) fn unbuilt() -> Error {
    Error::new(Status::NotSupported, "not built yet")
}
