//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod addresses;
mod batches;
mod cluster;
mod fake;
mod held;
mod lives;
mod losses;
mod owners;
mod pending;
mod restored;
mod truncates;
