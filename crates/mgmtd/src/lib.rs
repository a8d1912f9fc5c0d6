//! The cluster manager: routing info, leases, configuration, users and client sessions.
//!
//! A thin I/O shell around `cluster` (what follows from what) and `placement` (which targets make which chains): it keeps the
//! state in the key-value engine and talks to nodes. Several instances may run; one is primary by a lease in the engine.
//!
//! Guarantees: every change is one durable transaction that compares the primary's lease; the copy in memory changes only
//! after the commit; nothing is answered from a copy that is newer than the engine. Must never: act as primary after its
//! lease ended, or keep a token itself (only its BLAKE3 hash).

mod api;
mod balance;
mod clients;
mod config;
mod core;
mod deaf;
mod edit;
mod goodbyes;
mod ground;
mod growing;
mod heartbeat;
pub mod kept;
mod keys;
mod laying;
mod metrics;
mod operate;
mod primary;
mod records;
mod remove_node;
mod repair;
mod routing;
mod second;
mod service;
mod skipped;
mod slow;
mod standby;
mod state;
mod store;
mod tables;
mod time;
mod tokens;
mod tuning;
mod unlisted;
mod users;

pub use config::{Config, Timing};
pub use service::{Running, start, start_with_engine};
pub use skipped::skip_targets;
