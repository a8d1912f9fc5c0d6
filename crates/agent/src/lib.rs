//! A service's link to mgmtd: heartbeats, lease, routing info, tokens, capability keys.
//!
//! One [`Agent`] per process. It tells mgmtd that the process lives and what its targets are doing, and keeps what
//! mgmtd says: the right to serve ([`Agent::lease_valid`]), the routing info ([`Agent::routing`]), the keys of
//! capabilities, the configuration, the cluster's time ([`Agent::cluster_ns`]). It also answers what a token stands for ([`Agent::authenticator`]).
//!
//! Guarantees: the lease counts from the moment the heartbeat was *sent*, on CLOCK_BOOTTIME; a reply's routing info is
//! in force before its lease is. A process has no lease before its first heartbeat was answered. Must never: extend a
//! lease by any other means than an answered heartbeat.

mod agent;
mod config;
mod contact;
mod lease;
mod link;
mod notify;
mod time;
mod tokens;

pub use agent::{Agent, NoTargets, Report};
pub use config::AgentConfig;
pub use lease::Lease;
pub use link::MgmtdLink;
pub use notify::Notify;
pub use time::CLOCK_OFF_MAX;
pub use tokens::{TokenCache, TokenSource, token_hash};
