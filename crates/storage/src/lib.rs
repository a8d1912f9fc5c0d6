//! The storage service: a thin shell of I/O around the replication core (`glowfs-craq`) and the chunk store.
//!
//! Guarantees: what it acknowledges is held by every serving target of the chain; it serves nothing without a lease;
//! a disk that fails takes its own targets offline and no others. Must never: decide anything about replication that
//! the core should decide, or hand a byte to a client that was not verified.

mod admission;
mod behind;
mod config;
mod copy;
mod damaged;
mod disk;
mod dismiss;
mod effects;
mod fence;
mod flush;
mod forward;
mod lanes;
mod list_data;
mod list_extents;
mod mend;
mod metrics;
mod node;
mod pace;
mod query;
mod read;
mod remove;
mod repair;
mod report;
mod revive;
mod scrub;
mod sending;
mod serve;
mod service;
mod slow;
mod sync_progress;
mod sync_sink;
mod sync_source;
mod sync_turns;
mod take_up;
mod target;
mod tuning;
mod update;
mod verified;
mod vouch;
mod whole;

pub use config::{CHANNELS_PER_MESSAGE, SYNC_PAGE_MAX, StorageConfig};
pub use service::{Running, start};
