//! The operator's commands: `glowfs admin`.
//!
//! Every command works against any service's address, prints a table for people and, with `--json`, JSON for
//! programs: an array of objects whose fields only ever grow. Commands that change something say what they did.

mod args;
mod cluster;
mod config;
mod damaged;
mod files;
mod fsck;
mod layout;
mod meta;
mod operate;
mod orphans;
mod output;
mod part;
mod progress;
mod resyncs;
mod run;
mod scrub;
mod trash;
mod users;

pub use args::{AdminArgs, Command};
pub use meta::{offline, run as run_offline};
pub use run::run;
