//! The metadata service: the namespace's rules served over RPC, and the background work that they need.
//!
//! It keeps no state of its own: everything is in the engine, so several services over one engine work side by side (each gives
//! out ids of its own ranges). With the embedded engine it also serves KV_* to mgmtd and to further meta services.
//!
//! Guarantees: a call takes effect in one transaction; a retry with the same request id takes effect once, and not at all
//! after one copy of it was refused; garbage collection and
//! cuts act on flushed commits only. Must never: trust a uid or a group that the connection's token does not cover, or
//! answer without a lease.

#[macro_use]
mod shapes;

mod append;
mod background;
mod callbacks;
mod clients;
mod closes;
mod config;
mod cut;
mod cuts_ended;
mod cuts_under_way;
mod engine;
mod fair;
mod finishing;
mod fought;
mod fsck;
mod garbage;
mod held;
mod ids;
mod idset;
mod inline;
mod lane;
mod leases;
mod locks;
mod metrics;
mod names;
mod once;
mod ops;
mod orphans;
mod pace;
mod portions;
mod reaper;
mod recall;
mod removed;
mod reopen;
mod service;
mod spills;
mod state;
mod telling;
mod together;
mod trash;
mod trees;
mod users;

pub use config::{CommitMode, MetaConfig, RootConfig, Tuning, WriteDurability};
pub use engine::open_engine;
pub use service::{Running, start};
pub use state::VOLUME;
