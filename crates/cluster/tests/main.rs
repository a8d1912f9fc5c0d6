//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod closer;
mod elections;
mod explore;
mod leases;
mod node_leases;
mod table;
#[path = "../../craq/tests/walk/mod.rs"]
mod walk;
mod world;
