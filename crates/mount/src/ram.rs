//! A file system in memory, to test the mount without a cluster and to measure FUSE alone.
//!
//! It behaves as the cluster does where that matters here: lengths are known to «meta» only when they are reported,
//! a truncate gives the file a new epoch and new data, and an open file sticks to the data it knows until it is told.
//! Nothing is checked that the kernel checks (permissions).

mod content;
mod meta;
mod power;
mod switches;

pub use meta::{RamFile, RamFs};
pub use switches::*;
