//! The client library: everything that touches files of a GlowFS cluster goes through here (mount, admin, meta's
//! removal of data).
//!
//! Guarantees: a call that may be sent twice carries the same identity both times (request id, or channel and
//! sequence number), so it takes effect once; an error says which node, chain and address was asked and what was tried;
//! every wait has a bound. Must never: give a retry a new identity, reuse a channel whose last outcome is unknown,
//! or hand a caller bytes whose checksum was not verified (tcp) at the place that read them.

mod ask;
mod batch;
mod channel;
mod chunk_io;
mod client;
mod closes;
mod config;
mod copy;
mod core;
mod doubt;
mod few;
mod file;
mod flush;
mod heads;
mod hedge;
mod inline;
mod link;
mod meta;
mod opens;
mod owner;
mod path;
mod plan;
mod read;
mod recall;
mod retry;
mod routes;
mod silent;
mod sparse;
mod unflushed;
mod vain;
mod write;
mod zero;

pub use batch::{BATCH_ENTRIES_MAX, Batch, BatchConfig, Completion, Holes};
pub use chunk_io::{ChunkIo, DataExtent};
pub use client::{Client, RecallHandler};
pub use config::ClientConfig;
pub use file::{FileAccess, OpenFile};
pub use path::OpenHow;
pub use read::Found;
pub use write::CUTS_MAX;
