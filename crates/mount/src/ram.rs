//! A file system in memory, to test the mount without a cluster and to measure FUSE alone.
//!
//! It behaves as the cluster does where that matters here: lengths are known to «meta» only when they are reported,
//! a truncate gives the file a new epoch and new data, and an open file sticks to the data it knows until it is told.
//! Nothing is checked that the kernel checks (permissions).

mod content;
mod meta;
mod power;
mod switches;

pub use meta::{RamFile, RamFs};
pub use switches::*;

use crate::service::start_on;
use crate::{MountConfig, Running};
use glowfs_rt::Rt;
use glowfs_types::Result;
use std::rc::Rc;

/// Mounts it. Compiled here, once: not for each program that calls it.
pub async fn start(rt: &Rt, config: MountConfig, fs: Rc<RamFs>) -> Result<Running> {
    start_on(rt, config, fs).await
}
