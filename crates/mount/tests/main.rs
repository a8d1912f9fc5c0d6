//! All tests of this crate in one program, but the unit tests and those that are run over each way to mount (`device.rs`, `uring.rs`, `write_back.rs`): each program of
//! its own would be linked with everything anew. One test at a time, for the switches of the RAM file system are the process's (`common::alone`).

mod again;
mod aio;
mod background;
mod common;
mod cut_meanwhile;
mod durable;
mod failed;
mod forgotten;
mod gathered;
mod given;
mod interrupted;
mod listed;
mod lost_chunks;
mod lost_power;
mod mapped;
mod overtaken;
mod pieces;
mod read_ahead;
mod replaced;
mod sessions;
mod unanswered;
mod unlock;
