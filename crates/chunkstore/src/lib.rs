//! Chunks on one disk: log, block files, checksums, recovery.
//!
//! [`Store`] is the store of one disk (one directory): all targets of the disk share one log and the block files.
//! Guarantees: a byte that does not match its checksum never leaves; what was acknowledged survives a SIGKILL, what was
//! flushed survives the loss of power; bytes that a recoverable state refers to are never overwritten, but damaged ones by what they were.
//! Must never: trust a byte from the disk that it has not verified, retry a failed flush, block the thread.
//!
//! The bytes on disk are documented in `docs/formats/chunk-store.md`.

mod alloc;
mod api;
mod behind;
mod checkpoint;
mod chunk;
mod codec;
mod compact;
mod copy;
mod crc;
mod doubt;
mod epochs;
mod extents;
mod flush;
mod fold;
mod format;
mod gate;
mod health;
mod leaving;
mod list;
mod log;
mod mend;
mod open;
mod present;
mod read;
mod record;
mod recovery;
mod retired;
mod room;
mod signal;
mod slots;
mod stage;
mod state;
mod store;
mod unflushed;

pub use api::{
    ChunkState, PENDING_MAX, PendingState, ReadOutcome, SMALL_WRITE_BYTES, ScrubResult, StageKind,
    StageRequest, StoreConfig, StoreSpace, TARGET_META_BYTES_MAX,
};
pub use mend::{AsIs, BadBlock};
pub use room::Promise;
pub use store::Store;
