//! The simulator: virtual time, seeded network and disks, cluster tests and checkers.
//!
//! [`world`] is the second backend of `glowfs-rt`: the shipped services run in it unchanged, and a seed replays
//! whatever happened.

pub mod cluster;
pub mod memory;
pub mod world;
