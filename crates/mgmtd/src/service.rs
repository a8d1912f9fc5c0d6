//! Starting and stopping.

use crate::Config;
use glowfs_kv::Engine;
use glowfs_rt::{Address, Rt};
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// A running instance.
pub struct Running {
    addresses: Vec<Address>,
}

/// Starts an instance. It listens at once and becomes primary or standby as soon as the engine answers.
pub async fn start(rt: &Rt, config: Config) -> Result<Running> {
    start_with_engine(rt, config, None).await
}

/// The same over a given engine (tests; a process that hosts the engine itself).
pub async fn start_with_engine(
    _rt: &Rt,
    config: Config,
    _engine: Option<Rc<dyn Engine>>,
) -> Result<Running> {
    config.validate()?;
    Err(Status::NotSupported.into())
}

impl Running {
    /// Where it listens, with the real ports.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
    /// Resolves on a fatal error.
    pub async fn failed(&self) -> Error {
        std::future::pending().await
    }
    /// Stops: gives the primary's lease up and closes.
    pub async fn stop(self) {}
}
