//! The simulator: virtual time, seeded network and disks, cluster tests and checkers.
pub mod cluster;
