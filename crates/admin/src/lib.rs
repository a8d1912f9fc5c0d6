//! The operator's commands: `glowfs admin`.
//!
//! Every command works against any service's address, prints a table for people and, with `--json`, JSON for
//! programs: an array of objects whose fields only ever grow. Commands that change something say what they did.

mod args;
mod cluster;
mod config;
mod damaged;
mod everyone;
mod files;
mod fsck;
mod layout;
mod meta;
mod operate;
mod orphans;
mod output;
mod part;
mod progress;
mod remove_tree;
mod resyncs;
mod run;
mod scrub;
mod status;
mod trash;
mod trees;
mod users;

pub use args::{AdminArgs, Command};
pub use meta::{offline, run as run_offline};
pub use remove_tree::{RemoveTreeArgs, remove_tree};
pub use run::run;

/// What `glowfs admin fsck` exits with when it found nothing wrong and could not decide everything. (2 is for wrong arguments.)
const NOT_DECIDED: u8 = 3;

/// What the process exits with after an error of a command.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<fsck::NotDecided>() { NOT_DECIDED } else { 1 }
}
