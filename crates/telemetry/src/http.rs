//! GET /health and /metrics over a tiny HTTP/1.1 server.

use glowfs_rt::{Address, Rt};
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::{Result, Status};
use std::rc::Rc;

/// Says how the service is, now.
pub type StatusFn = Rc<dyn Fn() -> ServiceStatus>;

/// Serves health and metrics. Dropping it stops it.
pub struct HttpServer {
    address: Address,
}

impl HttpServer {
    /// Starts to listen.
    pub fn start(_rt: &Rt, _address: &Address, _status: StatusFn) -> Result<Self> {
        Err(Status::NotSupported.into())
    }
    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }
}
