//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod common;
mod golden;
mod hello;
mod rpc;
mod stopped;
mod versions;
