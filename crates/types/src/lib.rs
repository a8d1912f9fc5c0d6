//! Ids, layouts, errors, routing info and every wire message of GlowFS.
//!
//! This crate has no I/O, no clock and no threads. Everything that two processes, or two builds, must agree on
//! is here; the bytes are documented in `docs/formats/` and held by golden tests.

pub mod capability;
pub mod checksum;
mod depth;
mod ids;
pub mod layout;
pub mod limits;
pub mod mode;
pub mod mutant;
pub mod routing;
mod status;
pub mod tuning;
pub mod wire;

pub use capability::{Capability, CapabilityKey};
pub use depth::Depth;
pub use ids::*;
pub use layout::{Durability, Layout, Redundancy};
pub use status::{Error, Result, Status};
