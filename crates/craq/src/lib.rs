//! Chain replication of one target as a pure state machine.
//!
//! [`Replica::step`] takes an [`Event`] and appends [`Action`]s; it has no clock, no disk and no socket, so that the service
//! and a model checker drive the same code. The rules, and the test that holds each, stand in `docs/replication.md`.
//!
//! Guarantees: versions of a chunk commit in order; an update is answered only when every writer behind this target has
//! committed it and this target has decided to; nothing is done under a chain version other than the adopted one.
//! Must never: touch time, randomness, I/O, or iterate in an order that is not determined.

mod api;
mod arrive;
mod change;
mod dedupe;
mod hold;
mod lane;
mod progress;
mod read;
mod renumber;
mod replica;
pub mod resync;
mod shown;
mod view;

pub use api::{
    Action, ChunkBrief, ChunkView, Done, Event, Form, ForwardId, Forwarded, Loaded, Onto, Origin,
    Ticket, TimerId, Update,
};
pub use dedupe::{AGED_AT_ONCE, CLIENT_CHANNELS_MAX, TARGET_CHANNELS_MAX};
pub use renumber::Renumbered;
pub use replica::Replica;
pub use shown::About;
pub use view::View;

/// The greatest number of pending versions of one chunk.
pub const WINDOW: usize = 16;
/// The greatest number of chunks of which versions are not vouched for: a predecessor that sends updates and does not answer for them is told that there is no room.
pub const UNVOUCHED_MAX: usize = 16 * 1024;
/// The greatest number of client updates of one chunk that wait for room in its window.
pub const QUEUE_MAX: usize = 256;
/// The greatest number of reads of one chunk that wait for its pending versions.
pub const READERS_MAX: usize = 1024;
