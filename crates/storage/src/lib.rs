//! The storage service: a thin shell of I/O around the replication core (`glowfs-craq`) and the chunk store.
//!
//! Guarantees: what it acknowledges is held by every serving target of the chain; it serves nothing without a lease;
//! a disk that fails takes its own targets offline and no others. Must never: decide anything about replication that
//! the core should decide, or hand a byte to a client that was not verified.

mod config;

pub use config::StorageConfig;

use glowfs_rt::{Address, Rt};
use glowfs_types::{Error, Result, Status};

/// A storage service that runs.
pub struct Running {
    addresses: Vec<Address>,
}

/// Starts a storage service: opens or formats the stores, joins the cluster, serves. Returns when it listens.
pub async fn start(rt: &Rt, config: StorageConfig) -> Result<Running> {
    config.validate()?;
    let _ = rt;
    Err(Error::new(Status::NotSupported, "the storage service is not built yet"))
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
    /// Stops gracefully: tells mgmtd, refuses new work, closes the stores.
    pub async fn stop(self) -> Result<()> {
        Ok(())
    }
}
