//! The metadata service: the namespace's rules served over RPC, and the background work that they need.

mod config;

pub use config::{CommitMode, EngineConfig, MetaConfig, RootConfig, Tuning};

use glowfs_rt::{Address, Rt};
use glowfs_types::{Error, Result, Status};

/// A metadata service that runs.
pub struct Running {
    addresses: Vec<Address>,
}

/// Starts a metadata service: opens the engine, joins the cluster, serves. Returns when it listens; it answers KV_* from then on, and
/// file system calls once mgmtd has answered its heartbeat.
pub async fn start(rt: &Rt, config: MetaConfig) -> Result<Running> {
    config.validate()?;
    let _ = rt;
    Err(Error::new(Status::NotSupported, "the metadata service is not built yet"))
}

impl Running {
    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
    /// Resolves when the service cannot go on.
    pub async fn failed(&self) -> Error {
        std::future::pending().await
    }
    /// Stops gracefully: tells mgmtd, refuses new work, flushes and closes the engine.
    pub async fn stop(self) -> Result<()> {
        Ok(())
    }
}
