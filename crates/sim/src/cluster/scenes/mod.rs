//! Chosen faults, each in a cluster of its own, where chance seldom or never forms them; what must hold is asserted: a scene panics if it does not.
//!
//! Tests play them with seeds of their own; `./mutants` plays with many seeds those that a planted bug shows in and no random run reaches.

pub mod as_shipped;
mod common;
pub mod doomed;
pub mod forwards;
pub mod repairs;
pub mod retries;
pub mod sources;
