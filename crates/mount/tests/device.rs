//! The tests of the mount over `/dev/fuse`.

#[path = "suite/bounds.rs"]
mod bounds;
mod common;
#[path = "suite/demands.rs"]
mod demands;
#[path = "suite/posix.rs"]
mod posix;
#[path = "suite/programs.rs"]
mod programs;
#[path = "suite/rings.rs"]
mod rings;
