//! The accepting side.

use crate::{Authenticator, Conn, Handler, limits};
use glowfs_rt::{Address, Duration, Rt};
use glowfs_types::wire::hello::HelloReply;
use glowfs_types::{Result, Status};
use std::rc::Rc;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections served at a time; one more is closed at once.
    pub connections_max: usize,
    /// How long [`Server::stop`] lets answers go out.
    pub stop_grace: Duration,
    /// Offer shared memory on Unix sockets.
    pub shm: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: limits::SERVER_CONNECTIONS_MAX,
            stop_grace: limits::STOP_GRACE,
            shm: true,
        }
    }
}

/// Listens on some addresses and serves the connections. Dropping it stops listening and closes all of them.
pub struct Server {
    addresses: Vec<Address>,
}

impl Server {
    /// Starts to listen. `info` is the template of the hello's answer: features, user and root are filled in per connection.
    pub fn start(
        rt: &Rt,
        addresses: Vec<Address>,
        info: HelloReply,
        authenticator: Rc<dyn Authenticator>,
        handler: Rc<dyn Handler>,
    ) -> Result<Server> {
        Self::start_with(rt, addresses, info, authenticator, handler, ServerOptions::default())
    }
    /// The same with settings.
    pub fn start_with(
        _rt: &Rt,
        _addresses: Vec<Address>,
        _info: HelloReply,
        _authenticator: Rc<dyn Authenticator>,
        _handler: Rc<dyn Handler>,
        _options: ServerOptions,
    ) -> Result<Server> {
        Err(Status::NotSupported.into())
    }
    /// Where it listens, with the real ports.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
    /// What later connections are told (the cluster id may become known after the start).
    pub fn set_info(&self, _info: HelloReply) {}
    /// The connections now.
    pub fn connections(&self) -> Vec<Rc<Conn>> {
        Vec::new()
    }
    /// Stops: accepts nothing more, answers new calls `ShuttingDown`, lets outstanding answers go out (bounded), closes.
    pub async fn stop(self) {}
}
