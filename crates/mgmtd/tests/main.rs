//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod clients;
mod common;
mod disks;
mod growing;
mod lease;
mod nodes;
mod reach;
mod repair;
mod restored;
mod service;
